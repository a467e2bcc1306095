"""One rank of the SGLang flavour: admission by budgets, chunks, decode with retraction, pass by pass and page by page.

A pass is computed whole when it starts; `execute` says what it did.
Source: SGLang engine specification, sections 2 to 9.
"""

from __future__ import annotations

from typing import Any

from tests.model.chains import Chains
from tests.model.config import ModelConfig
from tests.model.radix import Key, Node, RadixTree
from tests.model.records import forward_pass_record
from tests.model.request import Request, Status, ceil_div
from tests.model.sampler import BurstSampler
from tests.model.scheduler import PassResult, Work
from tests.model.timing import scaled_ms

MATCH_MIN_TOKENS = 32  # below it lpm looks for twins in the queue
SORT_MAX = 128  # requests
RANKS_CONSERVATIVENESS = 0.3  # of the one that is set, where several ranks share a worker


class Standstill(Exception):
    """A pass of no length changed nothing: the run is over."""


class SglangRequest(Request):
    """A request, with the pages it holds."""

    def __init__(self, number: int, tokens: list[int], n_out: int, config: ModelConfig) -> None:
        super().__init__(number, len(tokens), n_out, [], config.max_model_len)
        self.page_size = config.block_size
        self.tokens = tokens
        self.owned = 0
        self.num_pages = 0
        self.published = 0  # tokens
        self.node: Node | None = None  # while it is admitted

    @property
    def wanted(self) -> int:
        """M: outputs asked for, as far as the model goes."""
        left = self.n_out if self.max_model_len is None else min(self.n_out, self.max_model_len - self.n_in)
        return max(0, left)

    def keys(self, end: int) -> list[Key]:
        """What the first `end` pages hold; a page with a token of its own is nobody else's."""
        size = self.page_size
        named = self.n_in // size
        return [
            tuple(self.tokens[at * size : (at + 1) * size]) if at < named else ("own", self.number, at)
            for at in range(end)
        ]


class SglangRank:
    """Scheduler and pages of one data-parallel rank."""

    def __init__(self, config: ModelConfig, sampler_seed: int) -> None:
        self.config, self.settings = config, config.sglang
        self.page_size = config.block_size
        self.tree = RadixTree(config.num_gpu_blocks)
        self.chains = Chains(config.block_size)
        self.sampler = BurstSampler(sampler_seed, config.accept_rates)
        self.running: list[SglangRequest] = []
        self.waiting: list[SglangRequest] = []
        conservativeness = self.settings.schedule_conservativeness
        if config.dp_size > 1:
            conservativeness *= RANKS_CONSERVATIVENESS
        self.chunk_tokens = self.settings.chunked_prefill_size // config.dp_size
        self.ratio_init = 0.7 * conservativeness
        self.ratio_min = self.ratio_init * 0.14
        self.ratio_step = (self.ratio_init - self.ratio_min) / 600
        self.ratio = self.ratio_init
        self.interval = 0
        self.stuck = False
        self.idle_deferred = False
        self.last_end_ms = 0.0  # of a pass of the group
        self.returned_loads = 0
        self.hit_tokens = 0  # of the last pass
        self.prefilled = self.worked = False  # in the pass of the group that is being computed

    # What the worker asks of any rank.

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def is_ready(self) -> bool:
        return self.has_work and not self.stuck

    @property
    def joins(self) -> bool:
        return self.has_work

    @property
    def next_internal_ms(self) -> float | None:
        return None

    def next_instant(self) -> None: ...

    copies = False

    def had_effect(self, result: PassResult) -> bool:
        return not self.stuck

    def nothing_moves(self, now_ms: float) -> bool:
        """No worker moves any more: whether this rank will, now that it knows."""
        return False

    def process_internal(self, at_ms: float) -> None: ...

    def pass_ended(self, end_ms: float, idle: bool) -> None:
        self.last_end_ms = end_ms

    def visible(self) -> set[int]:
        return set()

    def gauges(self) -> dict[str, Any]:
        total = self.config.num_gpu_blocks
        active = total - self.tree.num_free
        return {
            "active_blocks": active,
            "inactive_blocks": 0,
            "total_blocks": total,
            "active_cache_usage": active / total,
            "physical_cache_usage": active / total,
            "running_requests": len(self.running),
            "waiting_requests": len(self.waiting),
            "preemptions": 0,
        }

    def submit(self, number: int, tokens: list[int], n_out: int) -> SglangRequest:
        request = SglangRequest(number, tokens, n_out, self.config)
        self.waiting.append(request)
        self.stuck = False
        return request

    def cancel(self, number: int, in_flight: PassResult | None) -> None:
        owned = [r for r in (*self.running, *self.waiting) if r.number == number]
        for request in owned:
            (self.running if request in self.running else self.waiting).remove(request)
            if request.node is not None:
                self._release(request)
        self.stuck = False
        if in_flight is not None:
            for request in [*owned, *in_flight.completed, *in_flight.rejected]:
                if request.number == number:
                    in_flight.drop(request)

    # Pages

    def _pages(self, tokens: int) -> int:
        return ceil_div(tokens, self.page_size)

    def _floor(self, tokens: int) -> int:
        return tokens // self.page_size * self.page_size

    def _evict_for(self, pages: int) -> None:
        self.tree.evict(max(0, pages - self.tree.num_free))

    def _take(self, pages: int) -> bool:
        if pages > self.tree.num_free + self.tree.num_evictable:
            return False
        self._evict_for(pages)
        self.tree.num_free -= pages
        return True

    def _allocate(self, request: SglangRequest, start: int, end: int) -> bool:
        if request.owned > 0:
            need = self._pages(end) - request.num_pages
            if not self._take(need):
                return False
        else:
            node = self.tree.match_and_lock(request.keys(start // self.page_size))
            if not self._take(self._pages(end) - start // self.page_size):
                self.tree.unlock(node)
                return False
            request.node, request.published = node, start
        request.owned, request.num_pages = end, self._pages(end)
        return True

    def _grow(self, request: SglangRequest) -> None:
        """One token more; its page was taken with those of the others."""
        request.owned += 1
        request.num_pages = self._pages(request.owned)

    def _publish(self, request: SglangRequest) -> None:
        end = self._floor(request.owned)
        if not self.config.enable_prefix_caching or end <= request.published:
            return
        assert request.node is not None
        node, known = self._insert(request, end)
        if node is not request.node:
            self.tree.lock(node)
            self.tree.unlock(request.node)
        request.node, request.published = node, end
        self.tree.num_free += known

    def _insert(self, request: SglangRequest, end: int) -> tuple[Node, int]:
        assert request.node is not None
        keys = request.keys(end // self.page_size)[request.published // self.page_size :]
        return self.tree.insert(request.node, keys)

    def _finish(self, request: SglangRequest) -> None:
        if request.node is None:
            return
        keep = self._floor(min(request.length, request.owned)) if self.config.enable_prefix_caching else 0
        self.tree.num_free += request.num_pages - keep // self.page_size
        if keep > 0:
            self.tree.num_free += self._insert(request, keep)[1]
        self.tree.unlock(request.node)

    def _release(self, request: SglangRequest) -> None:
        assert request.node is not None
        self.tree.num_free += request.num_pages - request.published // self.page_size
        self.tree.unlock(request.node)
        request.node, request.owned, request.num_pages, request.published = None, 0, 0, 0

    # One pass

    def execute(self, start_ms: float, wave: int) -> PassResult:
        self.result = PassResult(start_ms)
        self.hit_tokens = 0
        self.retracted: list[SglangRequest] = []
        self.estimate = 0.0
        if self.interval > 0 and start_ms > self.last_end_ms:
            self.interval, self.ratio = 0, self.ratio_init  # it went by while nobody was there
        self.deferred = self.interval > 0
        self.result.deferred = self.deferred
        had_output_left = any(r.remaining > 0 for r in self.running)
        self._reject()
        self._sort()
        admitted = [] if self.deferred else self._admit()
        self.prefilled = any(end > start for _, start, end in admitted)
        self._disperse(admitted)
        if admitted:
            self._prefill(admitted)
        else:
            self._decode()
        for request in self.result.completed:
            assert isinstance(request, SglangRequest)
            self._finish(request)
        self.waiting += self.retracted
        self.idle_deferred = self.deferred and not had_output_left
        if self.retracted:
            self.ratio = self.estimate
        elif not admitted and not self.idle_deferred:
            self.ratio = max(self.ratio - self.ratio_step, self.ratio_min)
        self.result.record = forward_pass_record(self.result.scheduled.values(), self.waiting)
        self.worked = bool(admitted or self.result.tokens)
        self.stuck = (
            not self.deferred
            and not admitted
            and self.result.end_ms == start_ms
            and not (self.result.tokens or self.result.completed or self.result.rejected or self.retracted)
        )
        self.tree.check()
        return self.result

    def group_over(self, prefilled: bool, worked: bool) -> None:
        """The passes of all ranks of the group are computed."""
        if self.idle_deferred and not worked:
            self.ratio = self.ratio_init
        self.idle_deferred = False
        if prefilled and self.settings.prefill_decode_interval > 0:
            self.interval = self.settings.prefill_decode_interval
        else:
            self.interval = max(0, self.interval - 1) if worked else 0

    def _reject(self) -> None:
        limit = self.config.max_model_len
        for request in list(self.waiting):
            if limit is not None and request.n_in >= limit:
                self.waiting.remove(request)
                self.result.rejected.append(request)

    def _sort(self) -> None:
        by_match = self.settings.schedule_policy == "lpm" and self.config.enable_prefix_caching
        if not by_match or len(self.waiting) > SORT_MAX:
            return
        length = self._pages(MATCH_MIN_TOKENS) * self.page_size
        seen: set[tuple[Any, ...]] = set()
        order: dict[SglangRequest, tuple[bool, int]] = {}
        for request in self.waiting:
            match = self.tree.peek(request.keys(request.length // self.page_size)) * self.page_size
            is_twin = False
            if match <= MATCH_MIN_TOKENS and request.length >= length:
                first = tuple(request.keys(length // self.page_size))
                is_twin = first in seen
                seen.add(first)
            order[request] = (is_twin, -match)
        self.waiting.sort(key=lambda r: order[r])

    def _admit(self) -> list[tuple[SglangRequest, int, int]]:
        settings, tree, size = self.settings, self.tree, self.page_size
        reserved = 0.0
        for request in self.running:
            reserved += min(request.remaining, settings.clip_max_new_tokens) * self.ratio
        room = float((tree.num_free + tree.num_evictable) * size) - reserved
        inputs, chunk = float(settings.max_prefill_tokens), float(self.chunk_tokens)
        slots = max(0, self.config.max_num_seqs - len(self.running))
        admitted: list[tuple[SglangRequest, int, int]] = []
        while len(admitted) < slots and self.waiting:
            request = self.waiting[0]
            start = request.owned
            if start == 0 and self.config.enable_prefix_caching:
                cap = request.length if request.wanted == 0 else request.length - 1
                start = tree.peek(request.keys(cap // size)) * size
            need = request.length - start
            if need == 0 and request.owned > 0:
                break
            take = need if need <= chunk else min(need, self._floor(int(chunk)))
            if take == 0 and need > 0:
                break
            cost = self._pages(take) * size
            reserve = 0 if take < need else min(request.remaining, settings.clip_max_new_tokens)
            if cost + reserve >= room or cost > inputs or cost > chunk:
                break
            is_first = request.owned == 0
            if not self._allocate(request, start, start + take):
                break
            self.waiting.pop(0)
            if is_first:
                self.result.admissions.append((request, start))
                self.result.splits.append(None)
                self.hit_tokens += start
            admitted.append((request, start, start + take))
            room -= cost + reserve
            inputs -= cost
            chunk -= cost
            if chunk <= 0:
                break
        return admitted

    def _disperse(self, admitted: list[tuple[SglangRequest, int, int]]) -> None:
        for request, start, end in admitted:
            self.result.scheduled[request] = Work(
                request, end - start, end - start, start, end == start, request.n_in, request.length
            )
            if end < request.length:
                self._publish(request)
                self.waiting.insert(0, request)
            else:
                request.status = Status.RUNNING
                self.running.append(request)

    def _prefill(self, admitted: list[tuple[SglangRequest, int, int]]) -> None:
        count = len(admitted)
        ends, starts = (sum(entry[at] for entry in admitted) // count for at in (2, 1))
        new = max(0, ends - starts)
        self.result.end_ms = self.result.start_ms
        if new > 0:
            raw = self.config.timing.prefill(count, starts + new, starts)
            self.result.end_ms += scaled_ms(max(0.0, raw), self.config.speedup_ratio)
        going_on = []
        whole = [r for r, _, end in admitted if end == r.length]
        for request in [r for r in whole if r.remaining == 0]:
            self._complete(request)
        for request in [r for r in whole if r.remaining > 0]:
            if request.remaining == 1:
                self._token(request)
                self._complete(request)
            else:
                going_on.append(request)
        pages = sum(max(0, self._pages(r.length + 1) - r.num_pages) for r in going_on)
        self._evict_for(pages)
        if pages > self.tree.num_free:
            return
        self.tree.num_free -= pages
        for request in going_on:
            self._token(request)
            self._grow(request)
            self._publish(request)

    def _burst_most(self, request: SglangRequest) -> int:
        return min(1 + (self.config.nextn or 0), request.remaining)

    def _growth(self) -> int:
        return sum(max(0, self._pages(r.length + self._burst_most(r)) - r.num_pages) for r in self.running)

    def _decode(self) -> None:
        result, tree = self.result, self.tree
        result.end_ms = result.start_ms
        for request in list(self.running):
            if request.remaining == 0:
                self._complete(request)
        for request in self.running:  # those who have to go are counted as well
            result.scheduled[request] = Work(request, 1, 0, 0, False, request.n_in, request.length)
        while tree.num_free + tree.num_evictable < self._growth() and len(self.running) > 1:
            victim = min(self.running, key=lambda r: r.generated)
            self.running.remove(victim)
            victim.status = Status.PREEMPTED if victim.generated else Status.WAITING
            self._release(victim)
            self.retracted.append(victim)
        result.preemptions = list(self.retracted)
        growth = self._growth()
        self._evict_for(growth)
        if self.retracted:
            generated, wanted = sum(r.generated for r in self.running), sum(r.wanted for r in self.running)
            self.estimate = min(1.0, (generated + 20.0 * len(self.running)) / (wanted + 1.0))
        if not self.running or growth > tree.num_free:
            return
        total = sum(r.length for r in self.running)
        capacity = self.config.num_gpu_blocks * self.page_size
        raw = self.config.timing.decode(len(self.running), total, total // len(self.running), capacity)
        result.end_ms += scaled_ms(raw, self.config.speedup_ratio * self.config.decode_speedup_ratio)
        tree.num_free -= growth
        for request in list(self.running):
            accepted = 1 if self.config.nextn is None else self.sampler.sample()
            result.accepted[request] = accepted
            burst = min(accepted, request.remaining)
            for _ in range(burst):
                request.generated += 1
                self._grow(request)
                growth -= request.num_pages > self._pages(request.owned - 1)
                if request.remaining > 0:
                    self._publish(request)
            result.tokens.append((request, burst))
            if request.remaining == 0:
                self._complete(request)
        tree.num_free += growth

    def _token(self, request: SglangRequest) -> None:
        request.generated += 1
        self.result.tokens.append((request, 1))

    def _complete(self, request: SglangRequest) -> None:
        self.running.remove(request)
        self.result.completed.append(request)
