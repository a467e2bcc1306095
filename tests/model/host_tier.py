"""The host tier of one rank, as its rules read: entries, recency, two lanes. Slow and plain.

Keys are whatever the caller interns prompt blocks into; `order_of` gives the number by which ties are broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Key = int


@dataclass(frozen=True)
class TierConfig:
    num_blocks: int
    block_bytes: int
    d2h_gbps: float = 32.0
    h2d_gbps: float = 32.0
    latency_ms: float = 0.0

    shared: bool = False
    shared_d2h_gbps: float = 0.0
    shared_h2d_gbps: float = 0.0

    @classmethod
    def from_engine(cls, engine: Mapping[str, Any]) -> TierConfig | None:
        """Of the keys that users write; None without a tier."""
        given = engine.get("native_host_offload")
        if not given:
            return None
        return cls(
            given["num_host_blocks"],
            (engine.get("block_size") or 64) * engine["kv_cache_bytes_per_token"],
            float(given.get("d2h_bandwidth_gbps", 32.0)),
            float(given.get("h2d_bandwidth_gbps", 32.0)),
            float(given.get("latency_to_first_byte_ms", 0.0)),
            given.get("scope", "dp_rank_local") == "cluster_shared",
            float(given.get("shared_d2h_bandwidth_gbps", 80.0)),
            float(given.get("shared_h2d_bandwidth_gbps", 80.0)),
        )

    def copy_ms(self, num_blocks: int, gbps: float) -> float:
        return float(num_blocks * self.block_bytes) / (gbps * 1e6) if gbps > 0.0 else 0.0


@dataclass
class Entry:
    pending: int | None  # the store that will fill it
    pins: int = 0
    recency: int = 0


@dataclass
class Transfer:
    number: int
    is_store: bool
    keys: list[Key]
    end_ms: float | None = None  # None: prepared
    in_flight: bool = True


@dataclass
class HostTier:
    config: TierConfig
    order_of: Callable[[Key], int]
    entries: dict[Key, Entry] = field(default_factory=dict)
    transfers: dict[int, Transfer] = field(default_factory=dict)
    store_tail_ms: float = 0.0
    load_tail_ms: float = 0.0
    next_transfer: int = 0
    next_recency: int = 0
    evicted: list[Key] = field(default_factory=list)

    # Stores

    def prepare_store(self, cohort: Sequence[Key]) -> int | str:
        """The transfer made, or "present" or "retry"; the latter two change nothing."""
        missing = list(dict.fromkeys(key for key in cohort if key not in self.entries))
        if not missing:
            return "present"
        short = max(0, len(missing) - (self.config.num_blocks - len(self.entries)))
        victims = self.victims(cohort)[:short]
        if len(victims) < short:
            return "retry"
        for key in victims:
            del self.entries[key]
        self.evicted += victims
        transfer = self._new(True, missing)
        for key in missing:
            self.entries[key] = Entry(transfer.number)
        return transfer.number

    def victims(self, spared: Sequence[Key]) -> list[Key]:
        """Who may be evicted, next one first."""
        kept = set(spared)
        able = [(e.recency, self.order_of(k), k) for k, e in self.entries.items() if e.pending is None and e.pins == 0]
        return [key for _, _, key in sorted(able) if key not in kept]

    def submit_prepared(self, at_ms: float) -> list[Transfer]:
        submitted = [t for t in self.transfers.values() if t.end_ms is None]
        for transfer in submitted:
            copy_ms = self.config.copy_ms(len(transfer.keys), self.config.d2h_gbps)
            self.store_tail_ms = max(self.store_tail_ms, at_ms + self.config.latency_ms) + copy_ms
            transfer.end_ms = self.store_tail_ms
        return submitted

    # Loads

    def schedule_load(self, keys: Sequence[Key], not_before_ms: float) -> Transfer | None:
        """None, and no change, when not all of them are resident."""
        if not keys or len(set(keys)) < len(keys) or len(keys) > self.config.num_blocks:
            return None
        if any(key not in self.entries or self.entries[key].pending is not None for key in keys):
            return None
        for key in keys:
            self.entries[key].pins += 1
        transfer = self._new(False, list(keys))
        copy_ms = self.config.copy_ms(len(keys), self.config.h2d_gbps)
        self.load_tail_ms = max(self.load_tail_ms, not_before_ms + self.config.latency_ms) + copy_ms
        transfer.end_ms = self.load_tail_ms
        return transfer

    def cancel_load(self, number: int) -> None:
        transfer = self.transfers.pop(number)
        transfer.in_flight = False
        self._unpin(transfer.keys)

    # Time and recency

    def tick(self, at_ms: float) -> list[Transfer]:
        """Finish what ends by then, in order."""
        due = [t for t in self.transfers.values() if t.end_ms is not None and t.end_ms <= at_ms]
        due.sort(key=lambda t: (t.end_ms, not t.is_store, t.number))
        for transfer in due:
            self._finish(transfer)
        return due

    def touch(self, key: Key) -> None:
        entry = self.entries.get(key)
        if entry is not None and entry.pending is None and entry.pins == 0:
            entry.recency = self.next_recency
            self.next_recency += 1

    @property
    def next_end_ms(self) -> float | None:
        return min((t.end_ms for t in self.transfers.values() if t.end_ms is not None), default=None)

    def is_resident(self, key: Key) -> bool:
        return key in self.entries and self.entries[key].pending is None

    def is_pinned(self, key: Key) -> bool:
        return key in self.entries and self.entries[key].pins > 0

    def check(self) -> None:
        assert len(self.entries) <= self.config.num_blocks
        pins: dict[Key, int] = {}
        for transfer in self.transfers.values():
            for key in transfer.keys:
                if transfer.is_store:
                    assert self.entries[key].pending == transfer.number
                else:
                    pins[key] = pins.get(key, 0) + 1
        assert pins == {key: entry.pins for key, entry in self.entries.items() if entry.pins}
        assert all(e.pending is None or e.pending in self.transfers for e in self.entries.values())

    def _new(self, is_store: bool, keys: list[Key]) -> Transfer:
        transfer = Transfer(self.next_transfer, is_store, keys)
        self.transfers[transfer.number] = transfer
        self.next_transfer += 1
        return transfer

    def _finish(self, transfer: Transfer) -> None:
        del self.transfers[transfer.number]
        transfer.in_flight = False
        if transfer.is_store:
            for key in transfer.keys:
                self.entries[key] = Entry(None, 0, self.next_recency)
            self.next_recency += 1
        else:
            self._unpin(transfer.keys)

    def _unpin(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self.entries[key].pins -= 1
            if self.entries[key].pins == 0:
                self.entries[key].recency = self.next_recency
        self.next_recency += 1
