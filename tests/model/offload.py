"""A rank with a host tier: what the scheduler stores, loads, waits for. See host_tier.py for the tier itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.model.config import ModelConfig
from tests.model.host_tier import HostTier, Transfer
from tests.model.policies import FCFS, ModelPolicy, first_not_in, tried_next
from tests.model.pool import Copy
from tests.model.request import Request, ceil_div
from tests.model.scheduler import Outcome, PassResult, Rank


@dataclass
class Hosted:
    """What the tier knows of a request."""

    cursor: int = 0  # complete prompt blocks offered to the tier
    store: Transfer | None = None  # the latest one
    load: Transfer | None = None  # under way
    awaits: Transfer | None = None  # another's load for which it was set aside
    reserved: list[Copy] = field(default_factory=list)  # for the load: device hits, then private slots
    base: int = 0  # of `reserved`, the hits
    admitted: bool = False
    loaded: bool = False  # the load has come in: its blocks are held, its cost is settled
    asked: int | None = None  # what the rank had seen when it was last told to wait for a copy


class OffloadRank(Rank):
    def __init__(
        self, config: ModelConfig, sampler_seed: int, policy: ModelPolicy = FCFS, shared: HostTier | None = None
    ) -> None:
        super().__init__(config, sampler_seed, policy)
        assert config.tier is not None
        self._join(HostTier(config.tier, self.chains.number_of) if shared is None else shared)
        self.hosted: dict[Request, Hosted] = {}
        self.to_fence: list[Transfer] = []
        self.loads_started = 0
        self.gave_back = False  # in the last pass
        self.set_aside: list[Request] = []  # of those waiting, who were told to wait for a copy: they go first
        self.looks_again = False  # a copy has ended since the last pass
        self.seen = 0  # times at which a copy was seen to have ended
        self.stalled = False  # the last pass could do nothing, and no copy has ended since

    # Where a tier that ranks share does otherwise (shared_tier.py)

    def _join(self, tier: HostTier) -> None:
        self.tier = tier

    def _begin_load(self, keys: list[int], not_before_ms: float) -> Transfer | None:
        return self.tier.schedule_load(keys, not_before_ms)

    def _cancel_load(self, load: Transfer) -> None:
        self.tier.cancel_load(load.number)

    def _is_loading(self, key: int) -> bool:
        return self.tier.is_pinned(key)

    def _look_at_tier(self) -> None:
        """Before blocks are looked up."""

    def _read(self, store: Transfer, sources: list[Copy]) -> None:
        """What stands in these blocks is copied out."""
        for copy in sources:
            copy.source = store

    # What is ready

    @property
    def is_ready(self) -> bool:
        """Not when a pass could only find again that nobody can go on before a copy has ended."""
        if self.stalled or not self.has_work:
            return False
        return bool(self.running) or self.looks_again or self.any_to_try

    @property
    def left_in_queue(self) -> bool:
        return any(r not in self.set_aside for r in self.waiting)

    @property
    def any_to_try(self) -> bool:
        """Whether somebody waits who does not only wait for a copy to end."""
        return any(
            self.hosted[r].load is None and not self._awaits_load(r) and not self._is_left_alone(r)
            for r in self.waiting
        )

    def _is_left_alone(self, request: Request) -> bool:
        """Whether it is not even asked in a pass."""
        return False

    @property
    def copies(self) -> bool:
        return bool(self.tier.transfers)

    def had_effect(self, result: PassResult) -> bool:
        return super().had_effect(result) or self.gave_back

    @property
    def joins(self) -> bool:
        return self.is_ready or self.any_to_try

    @property
    def next_internal_ms(self) -> float | None:
        return self.tier.next_end_ms

    def submit(self, number: int, tokens: list[int], n_out: int) -> Request:
        request = super().submit(number, tokens, n_out)
        self.hosted[request] = Hosted()
        self.stalled = False
        return request

    def keys(self, request: Request) -> list[int]:
        keys = [entry.identity for entry in request.table[: request.n_in // self.block_size]]
        assert None not in keys
        return keys  # type: ignore[return-value]

    # Time

    def process_internal(self, at_ms: float) -> None:
        """Copies that have ended by then become visible."""
        for transfer in self.tier.tick(at_ms):
            self.stalled = False
            self.looks_again = True
            self.seen += 1
            if not transfer.is_store:
                (request,) = [r for r in self.waiting if self.hosted[r].load is transfer]
                self._activate(request)

    def pass_ended(self, end_ms: float, idle: bool) -> None:
        self.process_internal(end_ms)
        self.tier.submit_prepared(end_ms)
        self.process_internal(end_ms)

    def _activate(self, request: Request) -> None:
        hosted = self.hosted[request]
        hosted.load, hosted.loaded = None, True
        for index, copy in enumerate(hosted.reserved):
            entry = request.table[index]
            entry.copy = copy
            if index >= hosted.base:
                assert entry.identity is not None
                self.pool.cache(copy, entry.identity)
        request.alloc = min(len(hosted.reserved) * self.block_size, request.length)
        cached, _ = self._keep_recompute(request, request.alloc, request.alloc, logits=request.wants_tokens)
        hosted.cursor = cached // self.block_size  # what is reused is not offered; the rest is, also again

    def cancel(self, number: int, in_flight: PassResult | None) -> None:
        for request in self.waiting:
            if request.number == number and self.hosted[request].load is not None:
                self._drop_load(request)
                self.seen += 1  # whoever waited for it may ask again
        self.stalled = False
        super().cancel(number, in_flight)
        self.set_aside = [r for r in self.set_aside if r in self.waiting]

    def _drop_load(self, request: Request) -> None:
        hosted = self.hosted[request]
        assert hosted.load is not None
        self._cancel_load(hosted.load)
        for copy in reversed(hosted.reserved):
            self.pool.release(copy)
        hosted.load, hosted.reserved = None, []

    # A pass

    def split_of(self, request: Request, reused: int) -> tuple[int, int] | None:
        hosted = self.hosted[request]
        if hosted.admitted:
            return None  # of first admissions only
        hosted.admitted = True
        device = min(reused, hosted.base * self.block_size) if hosted.loaded else reused
        return device, reused - device

    def execute(self, start_ms: float, wave: int) -> PassResult:
        self.to_fence = []
        self.loads_started = 0
        self.looks_again = self.gave_back = False
        result = super().execute(start_ms, wave)
        result.began_loads = self.loads_started
        return result

    def computes_from_ms(self) -> float:
        start_ms = self.result.start_ms
        ends = [t.end_ms for t in self.to_fence if t.end_ms is not None]
        return max([start_ms, *ends])

    def _fail_head(self) -> None:
        if self.tier.transfers:
            self.stalled = True
            return
        came_in = [r for r in self.set_aside if self.hosted[r].loaded]
        if came_in and not self._may_give_back():
            self.stalled = True
        elif came_in:
            # Blocks wait for blocks: the last to come in gives its own back and asks again.
            self._release(came_in[-1])
            self.hosted[came_in[-1]].loaded = False
            self.returned_loads += 1
            self.gave_back = True
        else:
            super()._fail_head()
            self.set_aside = [r for r in self.set_aside if r in self.waiting]

    def _may_give_back(self) -> bool:
        """Whether a request may give back what it loaded: nobody else can change anything here."""
        return True

    def _head(self) -> Request:
        return self.set_aside[0] if self.set_aside else super()._head()

    def _fence(self, copies: list[Copy]) -> None:
        self.to_fence += [copy.source for copy in copies if copy.source is not None and copy.source.in_flight]

    def _allocate(self, request: Request, after: int, reuse: int) -> bool:
        hosted = self.hosted[request]
        held = {id(entry.copy) for entry in request.table if entry.copy is not None}
        done = super()._allocate(request, after, 0 if hosted.loaded and request.computed == 0 else reuse)
        if done:
            fresh = [e.copy for e in request.table if e.copy is not None and id(e.copy) not in held]
            self._fence([copy for copy in fresh if copy.identity is None])
        return done

    def _spend_time_and_emit(self) -> None:
        for request in self.running:
            if request in self.result.scheduled:
                self._offer(request)
        super()._spend_time_and_emit()

    def _preempt_one(self, take_back: bool = True) -> Request:
        victim = super()._preempt_one(take_back)
        hosted = self.hosted[victim]
        hosted.loaded, hosted.reserved = False, []
        if hosted.store is not None and hosted.store.in_flight:
            self.to_fence.append(hosted.store)
        return victim

    def _offer(self, request: Request) -> None:
        """Write the complete prompt blocks through."""
        hosted = self.hosted[request]
        end = min(request.computed, request.n_in) // self.block_size
        if end <= hosted.cursor:
            return
        keys = self.keys(request)
        missing = [i for i in range(hosted.cursor, end) if keys[i] not in self.tier.entries]
        if missing:
            self._look_at_tier()
            sources = [request.table[i].copy for i in missing]
            if any(copy.source is not None and copy.source.in_flight for copy in sources):  # type: ignore[union-attr]
                return
            number = self.tier.prepare_store(keys[hosted.cursor : end])
            if number == "retry":
                return
            if isinstance(number, int):
                hosted.store = self.tier.transfers[number]
                self._read(hosted.store, sources)  # type: ignore[arg-type]
                for key in reversed(keys):
                    self.tier.touch(key)
        hosted.cursor = end

    # The queue

    def _schedule_waiting(self) -> None:
        skipped: set[Request] = set()
        step: list[Request] = []
        keys = {request: self.policy.order(self, request) for request in self.waiting}
        while len(self.running) < self.config.max_num_seqs and not self.result.preemptions and self.budget > 0:
            first = [r for r in self.set_aside if r in self.waiting and r not in skipped and not self._is_left_alone(r)]
            others = [r for r in self.waiting if r not in self.set_aside]
            request = first[0] if first else tried_next(keys, others, skipped)
            if request is None:
                break
            hosted = self.hosted[request]
            if hosted.load is not None:
                skipped.add(request)
                step.append(request)
                continue
            reuse = self._admissible_loaded(request) if hosted.loaded else self._admissible_or_deferred(request)
            if reuse == "reject":
                self.waiting.remove(request)
                self.result.rejected.append(request)
                continue
            if reuse == "skip":
                if hosted.load is None:
                    hosted.asked = self.seen
                skipped.add(request)
                step.append(request)
                continue
            before = request if first else first_not_in(others, skipped)
            if request is not before and not request.order_told:
                request.order_told = True
                self.result.decisions.append(("order", request, before))
            if reuse == "wait":
                break
            assert isinstance(reuse, int)
            if self.result.deferred and request.length - reuse > 1:
                break
            if self.policy.holds_back(self, request):
                skipped.add(request)
                self.result.decisions.append(("veto", request, None))
                continue
            outcome = self._schedule(request, reuse)
            if outcome is not Outcome.SCHEDULED:
                break
        told_before = [r for r in self.set_aside if r in self.waiting]
        self.set_aside = told_before + [r for r in step if r not in told_before]

    def _admissible_loaded(self, request: Request) -> int | str:
        hosted = self.hosted[request]
        held = min(len(hosted.reserved) * self.block_size, request.length)
        cached, _ = self._keep_recompute(request, held, held, logits=request.wants_tokens)
        need = ceil_div(request.length, self.block_size) - len(hosted.reserved)
        return "wait" if need > self.pool.num_blocks - self.pool.active else cached

    def _admissible_or_deferred(self, request: Request) -> int | str:
        limit = self.config.max_model_len
        if limit is not None and request.n_in >= limit:
            return "reject"
        if self.budget > 0:
            found = self._consult_tier(request)
            if found is not None:
                return found
        return self._admissible(request)

    def _promised(self) -> int:
        """Blocks that waiting requests whose load has begun will still need; only other loads leave them room."""
        loading = [r for r in self.waiting if self.hosted[r].load is not None or self.hosted[r].loaded]
        return sum(ceil_div(r.length, self.block_size) - len(self.hosted[r].reserved) for r in loading)

    def _load_of(self, key: int) -> Transfer | None:
        """Of a tier of this rank alone, the oldest load under way that reads a block."""
        return next((t for t in self.tier.transfers.values() if not t.is_store and key in t.keys), None)

    def _awaits_load(self, request: Request) -> bool:
        """Whether the load for which it was set aside is still under way."""
        awaits = self.hosted[request].awaits
        return awaits is not None and awaits.in_flight

    def _consult_tier(self, request: Request) -> str | None:
        """ "skip" when a load started or has to wait, "wait" when there is no room for it, None for a miss."""
        hosted = self.hosted[request]
        if hosted.store is not None and hosted.store.in_flight:
            return "skip"
        keys = self.keys(request)
        if self._awaits_load(request):
            for key in reversed(keys):
                self.tier.touch(key)
            return "skip"
        base = self.count_hits(request)
        matched, deferred = 0, False
        for key in keys[base:]:
            if key not in self.tier.entries:
                break
            matched += 1
            busy = not self.tier.is_resident(key) or self._is_loading(key)
            if busy and not deferred:
                hosted.awaits = self._load_of(key)
            deferred |= busy
        for key in reversed(keys):
            self.tier.touch(key)
        if matched == 0:
            return None
        if deferred:
            return "skip"
        reuse = self._admissible(request, set_aside=self._promised())
        if isinstance(reuse, str):
            return reuse  # a prompt over the pool was looked up, touched and, with a copy under way, deferred before
        copies = self.pool.acquire(keys[:base], matched)
        if copies is None:
            return "wait"
        sources = [copy.source for copy in copies[base:] if copy.source is not None and copy.source.in_flight]
        not_before = max([self.result.start_ms, *(s.end_ms for s in sources if s.end_ms is not None)])
        load = self._begin_load(keys[base : base + matched], not_before)
        assert load is not None
        hosted.load, hosted.reserved, hosted.base = load, copies, base
        self.loads_started += 1
        return "skip"
