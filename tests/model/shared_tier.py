"""A host tier that ranks share: one set of entries, and copies that share bandwidth. Slow and plain.

Every copy under way gets an equal share of what the pool has for its direction, and of the link of its rank. Shares
change with every copy that begins or ends, so an end is known only while nothing else happens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.model.chains import Chains
from tests.model.host_tier import HostTier, Key, TierConfig, Transfer
from tests.model.offload import OffloadRank
from tests.model.request import Request
from tests.model.scheduler import PassResult


@dataclass
class SharedTransfer(Transfer):
    member: int = 0
    from_ms: float = math.inf  # its first byte; infinite while it is only prepared
    left_bytes: float = 0.0
    sources: list[Any] = field(default_factory=list)  # copies on the device that a store holds


@dataclass
class SharedTier(HostTier):
    num_members: int = 0
    clock_ms: float = 0.0
    now_ms: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})  # `left_bytes` count until then
    delivered: dict[int, list[SharedTransfer]] = field(default_factory=dict)
    woken: set[int] = field(default_factory=set)
    over: set[int] = field(default_factory=set)  # copies that have ended

    chains: Chains = field(default_factory=lambda: Chains(0))  # of all members: a prompt is the same to each

    @classmethod
    def of(cls, config: TierConfig, block_size: int) -> SharedTier:
        chains = Chains(block_size)
        return cls(config, chains.number_of, chains=chains)

    def join(self) -> int:
        self.num_members += 1
        self.delivered[self.num_members - 1] = []
        return self.num_members - 1

    def figures(self) -> dict[str, int]:
        resident = sum(entry.pending is None for entry in self.entries.values())
        return {
            "capacity_blocks": self.config.num_blocks,
            "resident_blocks": resident,
            "used_blocks": len(self.entries),
        }

    # What members ask

    def next_of(self, member: int) -> float | None:
        if self.delivered[member] or member in self.woken:
            return self.clock_ms
        ends = [end for is_store in (True, False) if (end := self._next_end(is_store)) is not None]
        return min(ends + self._begins(), default=None)

    def take(self, member: int, at_ms: float) -> tuple[list[SharedTransfer], bool]:
        """Its own copies that have ended by then, and whether those of others have."""
        self.advance(at_ms)
        own, woken = self.delivered[member], member in self.woken
        self.delivered[member] = []
        self.woken.discard(member)
        return own, woken

    def submit_of(self, member: int, at_ms: float) -> None:
        for transfer in list(self.transfers.values()):
            assert isinstance(transfer, SharedTransfer)
            if transfer.member == member and transfer.is_store and transfer.from_ms == math.inf:
                self._begin(transfer, at_ms)

    def load_for(self, member: int, keys: Sequence[Key], at_ms: float) -> SharedTransfer | None:
        load = self.schedule_load(keys, at_ms)
        if load is None:
            return None
        assert isinstance(load, SharedTransfer)
        load.member = member
        self._begin(load, at_ms)
        return load

    def cancel_at(self, load: Transfer, at_ms: float) -> None:
        self.advance(at_ms)
        if load.number in self.over:
            self.delivered = {m: [t for t in ended if t is not load] for m, ended in self.delivered.items()}
        else:
            self.cancel_load(load.number)

    # Time. Whenever a copy begins or ends, those of both directions are counted.

    def advance(self, at_ms: float) -> None:
        while True:
            ends = {is_store: self._next_end(is_store) for is_store in (True, False)}
            next_ms = min([end for end in ends.values() if end is not None] + self._begins(), default=math.inf)
            if next_ms > at_ms:
                break
            self._count(next_ms)
            if next_ms == ends[True]:
                self._deliver(True, next_ms)
            elif next_ms == ends[False]:
                self._deliver(False, next_ms)
        self._count(at_ms)

    def _deliver(self, is_store: bool, end_ms: float) -> None:
        """Copies that end together do so in their order, though rounding may leave a little of one."""
        ended: list[SharedTransfer] = []
        while self._next_end(is_store) == end_ms or not ended:
            self._run_to(is_store, end_ms)
            done = [t for t in self._of(is_store) if t.from_ms <= end_ms and t.left_bytes <= 0.0]
            ended += done
            self.over |= {t.number for t in done}
        for transfer in sorted(ended, key=lambda t: t.number):
            transfer.end_ms = end_ms
            self._finish(transfer)
            self.delivered[transfer.member].append(transfer)
            self.woken |= set(range(self.num_members)) - {transfer.member}

    def _count(self, at_ms: float) -> None:
        for is_store in (True, False):
            self._run_to(is_store, max(at_ms, self.now_ms[is_store]))
        self.clock_ms = max(self.clock_ms, at_ms)

    def _begins(self) -> list[float]:
        return [t.from_ms for is_store in (True, False) for t in self._of(is_store) if t.from_ms > self.clock_ms]

    def _begin(self, transfer: SharedTransfer, at_ms: float) -> None:
        self.advance(at_ms)
        transfer.from_ms = at_ms + self.config.latency_ms
        transfer.left_bytes = float(len(transfer.keys) * self.config.block_bytes)
        self.advance(at_ms)

    def all_of(self, is_store: bool) -> list[SharedTransfer]:
        """Those of one direction, prepared ones too."""
        return [t for t in self.transfers.values() if t.is_store == is_store]  # type: ignore[misc]

    def _of(self, is_store: bool) -> list[SharedTransfer]:
        """Those on their way in one direction, or waiting for their first byte."""
        assert all(isinstance(t, SharedTransfer) for t in self.transfers.values())
        on_their_way = [t for t in self.transfers.values() if t.is_store == is_store and t.number not in self.over]
        return [t for t in on_their_way if t.from_ms < math.inf]  # type: ignore

    def _rate(self, transfer: SharedTransfer, active: list[SharedTransfer]) -> float:
        """[bytes/ms]"""
        config = self.config
        link_gbps = config.d2h_gbps if transfer.is_store else config.h2d_gbps
        cap_gbps = config.shared_d2h_gbps if transfer.is_store else config.shared_h2d_gbps
        shares = [math.inf]
        if link_gbps > 0.0:
            shares.append(link_gbps * 1e6 / sum(t.member == transfer.member for t in active))
        if cap_gbps > 0.0:
            shares.append(cap_gbps * 1e6 / len(active))
        return min(shares)

    def _step(self, is_store: bool, now_ms: float, left: dict[int, float], to_ms: float) -> tuple[float, bool]:
        """Copy until the next copy begins or ends, or until `to_ms`: (when that is, whether one ended)."""
        coming = [t.from_ms for t in self._of(is_store) if t.from_ms > now_ms]
        active = [t for t in self._of(is_store) if t.from_ms <= now_ms and t.number in left]
        ends = {t.number: now_ms + left[t.number] / self._rate(t, active) for t in active}
        then_ms = min([to_ms, *coming, *ends.values()])
        for transfer in active:
            if ends[transfer.number] <= then_ms:
                left[transfer.number] = 0.0
            else:
                left[transfer.number] -= (then_ms - now_ms) * self._rate(transfer, active)
        return then_ms, any(end <= then_ms for end in ends.values())

    def _next_end(self, is_store: bool) -> float | None:
        """When the next copy ends, if nothing else happens until then."""
        left = {t.number: t.left_bytes for t in self._of(is_store)}
        now_ms, ended = self.now_ms[is_store], False
        while left and not ended:
            now_ms, ended = self._step(is_store, now_ms, left, math.inf)
        return now_ms if ended else None

    def _run_to(self, is_store: bool, to_ms: float) -> None:
        """Count what was copied until then; nothing ends before."""
        left = {t.number: t.left_bytes for t in self._of(is_store)}
        while self.now_ms[is_store] < to_ms and left:
            self.now_ms[is_store], _ = self._step(is_store, self.now_ms[is_store], left, to_ms)
        if left and self.now_ms[is_store] == to_ms:
            self._step(is_store, to_ms, left, to_ms)
        for transfer in self._of(is_store):
            transfer.left_bytes = left[transfer.number]
        self.now_ms[is_store] = to_ms

    def _new(self, is_store: bool, keys: list[Key]) -> Transfer:
        transfer = SharedTransfer(self.next_transfer, is_store, keys)
        self.transfers[transfer.number] = transfer
        self.next_transfer += 1
        return transfer


class SharingRank(OffloadRank):
    """A rank of such a tier. Blocks that are being copied out cannot be handed out: when that ends nobody can say."""

    tier: SharedTier

    def _join(self, tier: SharedTier) -> None:
        self.tier, self.chains = tier, tier.chains
        self.member = tier.join()
        self.now_ms = 0.0
        self.is_last_resort = self.may_give_back = self.hopes = False

    @property
    def next_internal_ms(self) -> float | None:
        return self.tier.next_of(self.member)

    @property
    def copies(self) -> bool:
        mine = any(t.member == self.member for is_store in (True, False) for t in self.tier.all_of(is_store))
        return mine or bool(self.tier.delivered[self.member])

    @property
    def waits_for_stores(self) -> bool:
        return not self.running

    def next_instant(self) -> None:
        if self.any_to_try:
            self.stalled = False

    def nothing_moves(self, now_ms: float) -> bool:
        """Nobody moves any more: where loads hold each other up, one of them is given back; hope for others is over."""
        if not self.stalled or not (self.hopes or any(self.hosted[r].loaded for r in self.set_aside)):
            return False
        self.is_last_resort, self.stalled = True, False
        return True

    def _may_give_back(self) -> bool:
        return self.may_give_back

    def _fail_head(self) -> None:
        if not self.tier.delivered[self.member]:  # else a load that took no time is about to be seen
            super()._fail_head()

    def _give_up_on(self, request: Request, reason: str) -> None:
        """Another worker may store a part of a prompt that is over the budget."""
        if reason == "prompt_over_budget" and not self.may_give_back:
            self.stalled = self.hopes = True
        else:
            super()._give_up_on(request, reason)

    def execute(self, start_ms: float, wave: int) -> PassResult:
        self.now_ms = start_ms
        self.may_give_back, self.is_last_resort, self.hopes = self.is_last_resort, False, False
        return super().execute(start_ms, wave)

    def process_internal(self, at_ms: float) -> None:
        self._take(at_ms)

    def _take(self, at_ms: float) -> None:
        self.now_ms = at_ms
        own, woken = self.tier.take(self.member, at_ms)
        if own or woken:
            self.stalled, self.looks_again = False, True
            self.seen += 1
        for transfer in own:
            if transfer.is_store:
                for copy in reversed(transfer.sources):
                    self.pool.release(copy)
            else:
                (request,) = [r for r in self.waiting if self.hosted[r].load is transfer]
                self._activate(request)

    def pass_ended(self, end_ms: float, idle: bool) -> None:
        self._take(end_ms)
        self.tier.submit_of(self.member, end_ms)
        self._take(end_ms)

    def _begin_load(self, keys: list[Key], not_before_ms: float) -> Transfer | None:
        return self.tier.load_for(self.member, keys, self.result.start_ms)

    def _cancel_load(self, load: Transfer) -> None:
        self.tier.cancel_at(load, self.now_ms)

    def _is_loading(self, key: Key) -> bool:
        """Also by a load that has ended and was not taken yet."""
        loads = [self.hosted[request].load for request in self.waiting]
        return any(load is not None and key in load.keys for load in loads)

    def _load_of(self, key: Key) -> None:
        """Whose load it was does not count: who waits is left alone until a copy has ended."""

    def _is_left_alone(self, request: Request) -> bool:
        """It was told to wait for a copy, and this rank has seen none end since."""
        return self.hosted[request].asked == self.seen

    def _look_at_tier(self) -> None:
        self.tier.advance(self.result.start_ms)

    def _read(self, store: Transfer, sources: list[Any]) -> None:
        assert isinstance(store, SharedTransfer)
        store.member, store.sources = self.member, sources
        for copy in sources:
            copy.references += 1

    def _preempt_one(self, take_back: bool = True) -> Request:
        victim = super()._preempt_one(take_back)
        self.to_fence = []
        return victim
