"""One rank: queues, block pool, and the scheduling pass.

A pass is computed whole when it starts. `execute` says what it did; the engine around it decides when that
becomes visible. Time enters only through the two predictions of the timing model.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from tests.model.chains import Chains
from tests.model.config import ModelConfig
from tests.model.policies import FCFS, ModelPolicy, first_not_in, tried_next
from tests.model.pool import BlockPool, Removed, Stored
from tests.model.records import forward_pass_record
from tests.model.request import Request, Status, ceil_div
from tests.model.sampler import BurstSampler
from tests.model.timing import scaled_ms

# Under MTP two requests can preempt each other for ever; the reference does not end then.
FRUITLESS_PASSES_MAX = 1000


class Outcome(enum.Enum):
    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    PREEMPTED_ITSELF = "itself-preempted"


@dataclass(slots=True)
class Work:
    """What one pass does for one request."""

    request: Request
    total: int
    prompt: int
    prefix: int
    terminal: bool
    n_in: int
    length: int


@dataclass
class PassResult:
    """Everything one rank did in one pass."""

    start_ms: float
    admissions: list[tuple[Request, int]] = field(default_factory=list)  # (request, reused tokens)
    splits: list[tuple[int, int] | None] = field(default_factory=list)  # of each, see Rank.split_of
    preemptions: list[Request] = field(default_factory=list)
    tokens: list[tuple[Request, int]] = field(default_factory=list)  # (request, tokens emitted), in order
    accepted: dict[Request, int] = field(default_factory=dict)  # tokens, of those that emitted without prompt work
    completed: list[Request] = field(default_factory=list)
    rejected: list[Request] = field(default_factory=list)
    failed: list[tuple[Request, str]] = field(default_factory=list)
    scheduled: dict[Request, Work] = field(default_factory=dict)
    began_loads: int = 0  # from host memory
    record: dict[str, Any] = field(default_factory=dict)
    cache_events: list[Removed | Stored] = field(default_factory=list)
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    end_ms: float = 0.0
    deferred: bool = False
    decisions: list[tuple[Any, ...]] = field(default_factory=list)  # of the policy: (kind, request, other or tokens)

    def drop(self, request: Request) -> None:
        """Take what the request got in this pass out of what will be shown."""
        self.tokens = [(r, burst) for r, burst in self.tokens if r is not request]
        self.completed = [r for r in self.completed if r is not request]
        self.rejected = [r for r in self.rejected if r is not request]
        self.failed = [(r, reason) for r, reason in self.failed if r is not request]
        self.accepted.pop(request, None)

    @property
    def effect_free(self) -> bool:
        return not (
            self.admissions
            or self.preemptions
            or self.tokens
            or self.completed
            or self.rejected
            or self.record["num_prefill_requests"]
            or self.record["num_decode_requests"]
        )


class Rank:
    """Scheduler and cache of one data-parallel rank."""

    def __init__(self, config: ModelConfig, sampler_seed: int, policy: ModelPolicy = FCFS) -> None:
        self.config = config
        self.policy = policy
        self.block_size = config.block_size
        self.pool = BlockPool(config.num_gpu_blocks)
        self.chains = Chains(config.block_size)
        self.sampler = BurstSampler(sampler_seed, config.accept_rates)
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.capacity_bound = False
        self.pass_number = -1
        self.num_preemptions = 0
        self.returned_loads = 0  # see OffloadRank
        self.hit_tokens = 0  # of the last pass, where telemetry counts them
        self.prefilled = self.worked = self.stuck = False  # see SglangRank
        self.scan_at = 0  # index of the running request that is being scheduled
        self.fruitless_passes = 0  # preempting for bursts, since the last token, end or submission

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    # What a rank with a host tier does otherwise (offload.py).

    @property
    def is_ready(self) -> bool:
        return self.has_work

    @property
    def left_in_queue(self) -> bool:
        return bool(self.waiting)

    @property
    def copies(self) -> bool:
        """Whether a copy of this rank is under way."""
        return False

    def had_effect(self, result: PassResult) -> bool:
        return not result.effect_free or bool(result.failed) or result.end_ms > result.start_ms

    @property
    def joins(self) -> bool:
        """Whether it takes part in a pass that another rank begins."""
        return self.is_ready

    @property
    def next_internal_ms(self) -> float | None:
        return None

    def next_instant(self) -> None: ...

    def nothing_moves(self, now_ms: float) -> bool:
        """No worker moves any more: whether this rank will, now that it knows."""
        return False

    def group_over(self, prefilled: bool, worked: bool) -> None:
        """The passes of all ranks of the group are computed; whether one of them had prompt work, or any."""

    def visible(self) -> set[int]:
        """Identities that look-ups find."""
        return set(self.pool.copies_of)

    @property
    def waits_for_stores(self) -> bool:
        """Blocks are missing, and nobody can give way."""
        return False

    def process_internal(self, at_ms: float) -> None: ...

    def pass_ended(self, end_ms: float, idle: bool) -> None:
        """`idle`: the pass of the group had no length and no work."""

    def split_of(self, request: Request, reused: int) -> tuple[int, int] | None:
        """Of the reused tokens, those from the device and from the host; None without a tier."""
        return None

    def submit(self, number: int, tokens: list[int], n_out: int) -> Request:
        if self.config.enable_prefix_caching:
            identities = self.chains.of_prompt(tokens)
        else:
            identities = [None] * ceil_div(len(tokens), self.block_size)
        request = Request(number, len(tokens), n_out, identities, self.config.max_model_len)
        self.waiting.append(request)
        self.fruitless_passes = 0
        return request

    def cancel(self, number: int, in_flight: PassResult | None) -> None:
        """Forget a request at once, and what it was going to show with the pass in flight."""
        owned = [r for r in (*self.running, *self.waiting) if r.number == number]
        for request in owned:
            (self.running if request in self.running else self.waiting).remove(request)
            self._release(request)
        ended = (
            [] if in_flight is None else [*in_flight.completed, *in_flight.rejected, *(r for r, _ in in_flight.failed)]
        )
        (request,) = [*owned, *(r for r in ended if r.number == number)]
        if in_flight is not None:
            in_flight.drop(request)

    def gauges(self) -> dict[str, Any]:
        total = self.config.num_gpu_blocks
        active, inactive = self.pool.active, self.pool.inactive
        return {
            "active_blocks": active,
            "inactive_blocks": inactive,
            "total_blocks": total,
            "active_cache_usage": active / total,
            "physical_cache_usage": (active + inactive) / total,
            "running_requests": len(self.running),
            "waiting_requests": len(self.waiting),
            "preemptions": self.num_preemptions,
        }

    def execute(self, start_ms: float, wave: int) -> PassResult:
        """One pass at `start_ms`; every change of state happens here."""
        self.result = PassResult(start_ms)
        self.pass_number += 1
        self.budget = self._budget()
        self.prefill_count = self.prefill_isl = self.prefill_prefix = 0
        self.result.deferred = self._defers(wave)
        self._schedule_running()
        if not self.result.preemptions:
            self._schedule_waiting()
        if not self.result.deferred and not self.result.preemptions:
            self.capacity_bound = self.left_in_queue
        self._spend_time_and_emit()
        self.result.record = forward_pass_record(self.result.scheduled.values(), self.waiting)
        if self.result.effect_free and self.result.end_ms == start_ms:
            self._fail_head()
        self._count_fruitless()
        self.result.cache_events, self.pool.journal = self.pool.journal, []
        self.pool.check()
        return self.result

    def _count_fruitless(self) -> None:
        result = self.result
        if result.tokens or result.completed or result.rejected or result.failed:
            self.fruitless_passes = 0
        elif self.config.nextn is not None and result.preemptions:
            self.fruitless_passes += 1

    def _budget(self) -> int:
        whole = self.config.max_num_batched_tokens
        budget = whole if self.policy.budget is None else self.policy.budget(self)
        if budget < whole:
            self.result.decisions.append(("budget", None, budget))
        return budget

    # Step A and B

    def _defers(self, wave: int) -> bool:
        if self.config.dp_size == 1 or wave % self.config.prefill_schedule_interval == 0 or self.capacity_bound:
            return False
        return any(r.computed >= r.n_in and r.alloc >= r.n_in for r in self.running)

    def _schedule_running(self) -> None:
        self.scan_at = 0
        while self.scan_at < len(self.running) and self.budget > 0:
            request = self.running[self.scan_at]
            if self.result.deferred and request.computed < request.n_in:
                self.scan_at += 1
                continue
            reuse = 0
            if request.computed == 0:
                cached, active_cached = self._look_up(request)
                reuse, _ = self._keep_recompute(request, cached, active_cached, logits=not request.done)
            outcome = self._schedule(request, reuse)
            if outcome is Outcome.BLOCKED:
                break
            if outcome is Outcome.SCHEDULED:
                # An earlier entry that disappeared meanwhile is not made good for: the slot quirk. Only a victim that a
                # policy chose is.
                self.scan_at += 1

    def _schedule_waiting(self) -> None:
        held_back: set[Request] = set()
        keys = {request: self.policy.order(self, request) for request in self.waiting}
        while len(self.running) < self.config.max_num_seqs and not self.result.preemptions:
            request = tried_next(keys, self.waiting, held_back)
            if request is None:
                break
            reuse = self._admissible(request)
            if reuse == "reject":
                self.waiting.remove(request)
                self.result.rejected.append(request)
                continue
            first = first_not_in(self.waiting, held_back)
            if request is not first and not request.order_told:
                request.order_told = True
                self.result.decisions.append(("order", request, first))
            if reuse == "wait":
                break
            assert isinstance(reuse, int)
            if self.result.deferred and request.length - reuse > 1:
                break
            if self.policy.holds_back(self, request):
                held_back.add(request)
                self.result.decisions.append(("veto", request, None))
                continue
            outcome = self._schedule(request, reuse)
            if outcome is not Outcome.SCHEDULED:
                break
            if self.result.scheduled[request].total == 0 and self.budget == 0:
                break

    def count_hits(self, request: Request) -> int:
        """Leading blocks of everything it knows that are cached."""
        hit = 0
        for entry in request.table:
            if self.pool.primary(entry.identity) is None:
                break
            hit += 1
        return hit

    def _look_up(self, request: Request) -> tuple[int, int]:
        """Cached tokens from the start of the sequence, and how many of them other requests hold."""
        hit = hit_active = 0
        for entry in request.table:
            copy = self.pool.primary(entry.identity)
            if copy is None:
                break
            hit += 1
            hit_active += copy.references > 0
        length = request.length
        return min(hit * self.block_size, length), min(hit_active * self.block_size, length)

    def _keep_recompute(self, request: Request, cached: int, active_cached: int, logits: bool) -> tuple[int, int]:
        """Take away what must be computed again to have logits."""
        if not logits:
            return cached, active_cached
        cap = (request.length - 1) // self.block_size * self.block_size
        cached, active_cached = min(cached, cap), min(active_cached, cap)
        if self.config.nextn is not None and cached >= self.block_size:
            cached -= self.block_size
            active_cached = min(active_cached, cached)
        return cached, active_cached

    def _admissible(self, request: Request, set_aside: int = 0) -> int | str:
        """Reused tokens when the head of the queue may enter, else "reject" or "wait"."""
        limit = self.config.max_model_len
        if limit is not None and request.n_in >= limit:
            return "reject"
        cached, active_cached = self._look_up(request)
        blocks = ceil_div(request.length, self.block_size)
        if request.status is Status.WAITING and blocks > self.pool.num_blocks:
            return "reject"
        cached, active_cached = self._keep_recompute(request, cached, active_cached, logits=request.wants_tokens)
        need = max(0, blocks - active_cached // self.block_size)
        if need > self.pool.num_blocks - self.pool.active - set_aside:
            return "wait"
        return cached

    def _schedule(self, request: Request, reuse: int) -> Outcome:
        before = request.computed + reuse
        prompt_before = min(before, request.n_in)
        prompt_left = request.n_in - prompt_before
        if not self.config.enable_chunked_prefill and prompt_left > 0 and prompt_left > self.budget:
            return Outcome.BLOCKED
        take = min(request.length - before, self.budget)
        if take == 0 and request.length > before:
            return Outcome.BLOCKED
        after = before + take
        if after > request.alloc and not self._allocate(request, after, reuse):
            return Outcome.PREEMPTED_ITSELF
        request.computed = after
        self._finalise(request, before, after)
        self._note(request, take, prompt_before, after, reuse)
        return Outcome.SCHEDULED

    def _allocate(self, request: Request, after: int, reuse: int) -> bool:
        """Hold blocks up to the token `after`, preempting others; False when it had to preempt itself."""
        first, last = ceil_div(request.alloc, self.block_size), ceil_div(after, self.block_size)
        entries = request.table[first:last]
        num_hits = reuse // self.block_size
        if entries:
            hits = [entry.identity for entry in entries[:num_hits]]
            while True:
                copies = self.pool.acquire(hits, len(entries) - len(hits))  # type: ignore[arg-type]
                if copies is not None:
                    break
                if self.waits_for_stores:
                    return False
                if self._preempt_one() is request:
                    return False
            for index, (entry, copy) in enumerate(zip(entries, copies, strict=True)):
                entry.copy = copy
                entry.to_be_cached = (
                    index >= num_hits and entry.identity is not None and self.config.enable_prefix_caching
                )
        request.alloc = max(request.alloc, after)
        return True

    def _finalise(self, request: Request, before: int, after: int) -> None:
        """Blocks computed to their end become visible."""
        if not self.config.enable_prefix_caching:
            return
        run: Stored | None = None
        first = before // self.block_size
        for index, entry in enumerate(request.table[first : after // self.block_size], first):
            newly_visible = False
            if entry.identity is None:
                entry.identity = self.chains.fresh()
                entry.to_be_cached = True
            if entry.to_be_cached:
                entry.to_be_cached = False
                assert entry.copy is not None
                newly_visible = self.pool.cache(entry.copy, entry.identity)
            if not newly_visible:
                run = None
            elif run is None:
                run = Stored(request.number, index, [entry.identity])
                self.pool.journal.append(run)
            else:
                run.identities.append(entry.identity)

    def _note(self, request: Request, take: int, prompt_before: int, after: int, reuse: int) -> None:
        prompt = min(after, request.n_in) - prompt_before
        self.result.scheduled[request] = Work(
            request, take, prompt, prompt_before, request.done, request.n_in, request.length
        )
        if prompt > 0:
            self.prefill_count += 1
            self.prefill_isl += prompt_before + prompt
            self.prefill_prefix += prompt_before
        if request.status is not Status.RUNNING:
            self.waiting.remove(request)
            self.running.append(request)
            request.status = Status.RUNNING
            self.result.admissions.append((request, reuse))
            self.result.splits.append(self.split_of(request, reuse))
        self.budget -= take

    def _victim(self) -> Request:
        return self.running[-1 if self.config.preemption_mode == "lifo" else 0]

    def _preempt_one(self, take_back: bool = True) -> Request:
        usual = self._victim()
        victim = self.policy.victim(self, usual)
        if victim is not usual:
            self.result.decisions.append(("victim", victim, usual))
            self.scan_at -= self.running.index(victim) < self.scan_at
        self.running.remove(victim)
        victim.order_told = False
        victim.status = Status.PREEMPTED
        victim.computed = 0
        self.num_preemptions += 1
        self._release(victim)
        self.waiting.insert(0, victim)
        self.result.preemptions.append(victim)
        if take_back and victim in self.result.scheduled:
            work = self.result.scheduled.pop(victim)
            self.budget += work.total
            if work.prompt > 0:
                self.prefill_count -= 1
                self.prefill_isl -= work.prefix + work.prompt
                self.prefill_prefix -= work.prefix
        return victim

    def _release(self, request: Request) -> None:
        for entry in reversed(request.table):
            if entry.copy is not None:
                self.pool.release(entry.copy)
                entry.copy = None
            entry.to_be_cached = False
        request.alloc = 0

    # Step C

    def computes_from_ms(self) -> float:
        """When the blocks of the pass may be written."""
        return self.result.start_ms

    def _spend_time_and_emit(self) -> None:
        result, config = self.result, self.config
        if self.prefill_count:
            count = self.prefill_count
            raw = config.timing.prefill(count, self.prefill_isl // count, self.prefill_prefix // count)
            result.prefill_ms = scaled_ms(max(0.0, raw), config.speedup_ratio)
        ready = []
        for request in list(self.running):
            if request.computed < request.length:
                continue
            if request.done:
                self._end(request)
            else:
                ready.append(request)
        slots = 0
        if config.nextn is not None:
            ready, slots = self._set_bursts_aside(ready)
        batch = [r for r in ready if config.nextn is not None or not self._is_first_token(r)]
        if batch:
            active = sum(r.length for r in batch)
            capacity = config.num_gpu_blocks * config.block_size
            raw = config.timing.decode(len(batch), active, active // len(batch), capacity)
            result.decode_ms = scaled_ms(raw, config.speedup_ratio * config.decode_speedup_ratio)
        result.end_ms = (self.computes_from_ms() + result.prefill_ms) + result.decode_ms
        samples = [1 if config.nextn is None else self.sampler.sample() for _ in ready]
        for request, sample in zip(ready, samples, strict=True):
            if result.scheduled[request].prompt == 0:
                result.accepted[request] = sample  # in full, also when fewer tokens remained
            slots = self._emit(request, min(sample, request.remaining), slots)
        self.pool.return_set_aside(slots)

    def _is_first_token(self, request: Request) -> bool:
        work = self.result.scheduled.get(request)
        return request.generated == 0 and work is not None and work.prompt > 0

    def _burst_max(self, request: Request) -> int:
        assert self.config.nextn is not None
        return min(self.config.nextn + 1, request.remaining)

    def _burst_blocks(self, request: Request) -> int:
        """Blocks the request needs to hold its longest burst."""
        return ceil_div(request.length + self._burst_max(request), self.block_size)

    def _set_bursts_aside(self, ready: list[Request]) -> tuple[list[Request], int]:
        """Reserve room for the longest burst of everybody, preempting until it fits.

        Who could not hold its burst alone fails; so does the victim when requests have only taken the pool from
        each other for a long time.
        """
        while ready:
            slots = sum(self._burst_blocks(r) - ceil_div(r.length, self.block_size) for r in ready)
            if self.pool.set_aside(slots):
                return ready, slots
            hopeless = [r for r in ready if self._burst_blocks(r) > self.pool.num_blocks]
            if not hopeless and self.fruitless_passes >= FRUITLESS_PASSES_MAX:
                hopeless = [self._victim()]
            for request in hopeless:
                self.running.remove(request)
                self._release(request)
                self.result.failed.append((request, "burst_over_pool"))
            if not hopeless:
                self._preempt_one(take_back=False)
            ready = [r for r in self.running if r.computed == r.length and not r.done]
        return [], 0

    def _emit(self, request: Request, burst: int, slots: int) -> int:
        """Generate the tokens of one request; returns what is left of the slots set aside."""
        for _ in range(burst):
            if self.config.nextn is not None:
                self._finalise(request, request.length - 1, request.length)
            request.generate(self.block_size)
            if self.config.nextn is not None and request.alloc < request.length:
                first, last = ceil_div(request.alloc, self.block_size), ceil_div(request.length, self.block_size)
                for entry in request.table[first:last]:
                    entry.copy = self.pool.take_set_aside()
                    slots -= 1
                request.alloc = request.length
        self.result.tokens.append((request, burst))
        if request.done:
            self._end(request)
        elif self.config.nextn is not None:
            request.computed = request.length - 1
        return slots

    def _end(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        self.result.completed.append(request)

    def _head(self) -> Request:
        return min(self.waiting, key=lambda r: (self.policy.order(self, r), self.waiting.index(r)))

    def _fail_head(self) -> None:
        """The rank stands still: its head can never enter, whatever happens elsewhere."""
        assert not self.running, f"stands still with running requests: {self.running}"
        request = self._head()
        need = ceil_div(request.length, self.block_size)
        if need > self.pool.num_blocks:
            reason = "growth_over_pool"
        else:
            assert not self.config.enable_chunked_prefill
            assert request.n_in > self.config.max_num_batched_tokens, f"stands still, not hopeless: {request}"
            reason = "prompt_over_budget"
        self._give_up_on(request, reason)

    def _give_up_on(self, request: Request, reason: str) -> None:
        self.waiting.remove(request)
        self.result.failed.append((request, reason))
