"""One rank of the TensorRT-LLM flavour: whoever is admitted has room for its whole life, so nobody is preempted.

Queues, pool and the work of one request are those of `Rank`; who is scheduled, what may be generated and who emits is
told here.
"""

from __future__ import annotations

from tests.model.request import Request, ceil_div
from tests.model.scheduler import Outcome, Rank


class TrtllmRank(Rank):
    """Scheduler and cache of one data-parallel rank."""

    def submit(self, number: int, tokens: list[int], n_out: int) -> Request:
        request = super().submit(number, tokens, n_out)
        request.n_out = self.most_output(request.n_in, n_out)
        request.max_model_len = None  # it is in n_out
        return request

    def most_output(self, n_in: int, n_out: int) -> int:
        pool_tokens = self.pool.num_blocks * self.block_size
        if n_in < pool_tokens:
            n_out = min(n_out, pool_tokens - n_in)
        if self.config.max_model_len is not None:
            n_out = min(n_out, max(0, self.config.max_model_len - n_in))
        return n_out

    def whole_life(self, request: Request) -> int:
        return ceil_div(request.n_in + request.n_out, self.block_size)

    @property
    def headroom(self) -> int:
        booked = sum(max(0, self.whole_life(r) - ceil_div(r.alloc, self.block_size)) for r in self.running)
        return max(0, self.pool.num_blocks - self.pool.active - booked)

    # Who is scheduled

    def _defers(self, wave: int) -> bool:
        return False

    def _schedule_running(self) -> None:
        for request in list(self.running):
            if self.budget == 0 or self._schedule(request, 0) is Outcome.BLOCKED:
                break

    def _schedule_waiting(self) -> None:
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            head = self.waiting[0]
            if self._is_hopeless(head):
                self.waiting.remove(head)
                self.result.rejected.append(head)
                continue
            cached, active = self._cached_blocks(head)
            if max(0, self.whole_life(head) - active) > self.headroom:
                break
            budget = self.budget
            if self._schedule(head, cached * self.block_size) is Outcome.BLOCKED:
                break
            if self.budget == budget == 0:
                break

    def _is_hopeless(self, request: Request) -> bool:
        limit = self.config.max_model_len
        return (limit is not None and request.n_in >= limit) or self.whole_life(request) > self.pool.num_blocks

    def _cached_blocks(self, request: Request) -> tuple[int, int]:
        """Leading complete blocks that are cached, and how many of these somebody holds."""
        found = [self.pool.primary(entry.identity) for entry in request.table]
        cached = found.index(None) if None in found else len(found)
        return cached, sum(copy.references > 0 for copy in found[:cached] if copy is not None)

    def _preempt_one(self, take_back: bool = True) -> Request:
        raise AssertionError("booked, but the pool has no room")

    # Who emits

    def _is_first_token(self, request: Request) -> bool:
        """The end of a prompt brings its token along, without a decode."""
        return self.result.scheduled[request].prompt > 0

    def _set_bursts_aside(self, ready: list[Request]) -> tuple[list[Request], int]:
        slots = sum(self._burst_blocks(r) - ceil_div(r.length, self.block_size) for r in ready)
        assert self.pool.set_aside(slots), "booked, but the pool has no room"
        return ready, slots

    def _fail_head(self) -> None:
        """The rank stands still: the prompt must go into one pass and is too long for it."""
        assert not self.running, f"stands still with running requests: {self.running}"
        request = self.waiting.pop(0)
        assert not self.config.enable_chunked_prefill
        assert request.n_in > self.config.max_num_batched_tokens, f"stands still, not hopeless: {request}"
        self.result.failed.append((request, "prompt_over_budget"))
