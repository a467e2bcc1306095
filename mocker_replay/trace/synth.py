"""Synthetic workloads, written as Mooncake rows.

Decides arrivals, prefix groups and hash ids, to the bit as the peer's synthetic replay draws them, and which
trace block size the rows are written in. Never simulates: a workload is a file like any other.

Source of the random numbers: replay-and-metrics section 5 (gaps: exponential by inversion from ChaCha12 of
`arrival_seed`; groups: one bounded draw a session from ChaCha12 of 42).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Final

import orjson
from msgspec import Struct

from mocker_replay._core.chacha import ChaCha12Rng
from mocker_replay.errors import Fault, UsageError
from mocker_replay.trace.base import MAX_TOKENS
from mocker_replay.trace.decimals import write_decimal

DEFAULT_BLOCK_SIZE: Final = 64  # engine's default
DEFAULT_TRACE_BLOCK_SIZE: Final = 512  # what `run` assumes of a Mooncake file
_GROUP_SEED: Final = 42  # of the groups, whatever the arrival seed
_CLIENT_SEED: Final = 43  # of the clients that leave; the peer knows none
_LONGEST_GAP: Final = 745.0  # -ln of the smallest positive float, in means


class SyntheticWorkload(Struct, frozen=True):
    """Settings of a workload, by the peer's names; checked when made."""

    input_tokens: int
    output_tokens: int
    request_count: int  # sessions
    request_rate: float | None = None  # sessions a second, Poisson
    arrival_interval_ms: float | None = None  # constant gap; 0 = all at once
    replay_concurrency: int | None = None  # closed loop: no arrivals
    arrival_speedup_ratio: float = 1.0  # divides arrivals and delays, not in a closed loop
    arrival_seed: int = 42
    turns_per_session: int = 1  # 0 counts as 1
    inter_turn_delay_ms: float = 0.0
    shared_prefix_ratio: float = 0.0  # of a prompt's engine blocks
    num_prefix_groups: int = 0  # 0: nothing is shared
    cancel_after_ms: float | None = None  # patience of the clients that leave; None: all stay
    cancel_fraction: float = 1.0  # of the rows whose client leaves, drawn row by row
    block_size: int = DEFAULT_BLOCK_SIZE  # of the engine: the unit of shared prefixes
    trace_block_size: int | None = None  # of the rows; None: 512 if that can say it, else block_size

    def __post_init__(self) -> None:
        faults = [Fault(field, 0, "", str(getattr(self, field)), rule) for field, rule in self._faults()]
        if faults:
            raise UsageError.of(faults)

    @property
    def shared_tokens(self) -> int:
        """Leading prompt tokens that a session has in common with its group."""
        if not self._is_sharing:
            return 0
        num_blocks = -(-self.input_tokens // self.block_size)
        num_shared = math.floor(self.shared_prefix_ratio * num_blocks + 0.5)  # half away from zero
        return min(num_shared * self.block_size, self.input_tokens)

    @property
    def written_block_size(self) -> int:
        """Tokens that one hash id of the rows stands for."""
        if self.trace_block_size is not None:
            return self.trace_block_size
        return DEFAULT_TRACE_BLOCK_SIZE if self._fits(DEFAULT_TRACE_BLOCK_SIZE) else self.block_size

    def run_flags(self) -> list[str]:
        """What `run` must be told to replay the file as meant, beyond its defaults."""
        flags = []
        if self.written_block_size != DEFAULT_TRACE_BLOCK_SIZE:
            flags += ["--trace-block-size", str(self.written_block_size)]
        if self.shared_tokens and self.block_size != DEFAULT_BLOCK_SIZE:
            flags += ["--block-size", str(self.block_size)]
        if self.replay_concurrency is not None:
            flags += ["--replay-concurrency", str(self.replay_concurrency)]
        return flags

    def rows(self) -> Iterator[bytes]:
        """The rows as JSON lines, a session's turns one after another, sessions in order of arrival."""
        num_turns = max(self.turns_per_session, 1)
        is_named = num_turns > 1 or self._is_sharing or self.inter_turn_delay_ms > 0.0
        is_named |= self.replay_concurrency is not None
        delay = orjson.Fragment(write_decimal(self.inter_turn_delay_ms / self._ratio))
        prefixes, clients = self._prefixes(), ChaCha12Rng(_CLIENT_SEED)
        for number, arrival_ms in enumerate(self._arrivals_ms()):
            prefix = prefixes.next_prefix()
            timestamp = orjson.Fragment(write_decimal(arrival_ms))
            for turn in range(num_turns):
                row: dict[str, object] = {} if turn else {"timestamp": timestamp}
                row |= {"input_length": self.input_tokens, "output_length": self.output_tokens}
                row["hash_ids"] = prefix + prefixes.fresh_ids(len(prefix))
                if is_named:
                    row["session_id"] = f"session_{number}"
                if turn:
                    row["delay"] = delay
                if self.cancel_after_ms is not None and clients.uniform() < self.cancel_fraction:
                    row["cancel_after_ms"] = orjson.Fragment(write_decimal(self.cancel_after_ms))
                yield orjson.dumps(row) + b"\n"

    @property
    def _is_sharing(self) -> bool:
        return self.num_prefix_groups > 0 and self.shared_prefix_ratio > 0.0

    @property
    def _ratio(self) -> float:
        return 1.0 if self.replay_concurrency is not None else self.arrival_speedup_ratio

    def _arrivals_ms(self) -> Iterator[float]:
        if self.replay_concurrency is not None:
            for _ in range(self.request_count):
                yield 0.0
            return
        now_ms = 0.0
        for gap_ms in self._gaps_ms():
            yield now_ms / self._ratio
            now_ms += gap_ms

    def _gaps_ms(self) -> Iterator[float]:
        """As many gaps as sessions: the one after the last is not used."""
        if self.arrival_interval_ms is not None:
            # The peer turns the interval into a rate and back, and sums up; k * interval would differ.
            interval_ms = self.arrival_interval_ms and 1000.0 / (1000.0 / self.arrival_interval_ms)
            for _ in range(self.request_count):
                yield interval_ms
        else:
            assert self.request_rate is not None, "one way of arrival is checked when made"
            mean_ms, rng = 1000.0 / self.request_rate, ChaCha12Rng(self.arrival_seed)
            for _ in range(self.request_count):
                yield -mean_ms * math.log(max(1.0 - rng.uniform(), sys.float_info.min))

    def _prefixes(self) -> _Prefixes:
        size = self.written_block_size
        return _Prefixes(self.num_prefix_groups, -(-self.shared_tokens // size), -(-self.input_tokens // size))

    def _fits(self, size: int) -> bool:
        """True when blocks of this size can say where the shared prefix ends."""
        return self.shared_tokens % size == 0 or self.shared_tokens == self.input_tokens

    def _faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong, field by field; the order is that of the fields."""
        for field in ("input_tokens", "output_tokens", "request_count", "block_size", "trace_block_size"):
            value = getattr(self, field)
            if value is not None and not 1 <= value <= MAX_TOKENS:
                yield field, f"must be an integer from 1 to {MAX_TOKENS}"
        if self.replay_concurrency is not None and self.replay_concurrency < 1:
            yield "replay_concurrency", "must be at least 1"
        yield from self._arrival_faults()
        if self.turns_per_session < 0:
            yield "turns_per_session", "must not be negative"
        if not (math.isfinite(self.inter_turn_delay_ms) and self.inter_turn_delay_ms >= 0.0):
            yield "inter_turn_delay_ms", "must be finite and not negative"
        if self.cancel_after_ms is not None and not 0.0 <= self.cancel_after_ms < math.inf:
            yield "cancel_after_ms", "must be finite and not negative"
        if not 0.0 <= self.cancel_fraction <= 1.0:
            yield "cancel_fraction", "must be from 0 to 1"
        elif self.cancel_fraction < 1.0 and self.cancel_after_ms is None:
            yield "cancel_fraction", "is of use only with cancel_after_ms"
        if not 0.0 <= self.shared_prefix_ratio <= 1.0:
            yield "shared_prefix_ratio", "must be from 0 to 1"
        elif not 0 <= self.num_prefix_groups < 2**32:
            yield "num_prefix_groups", f"must be an integer from 0 to {2**32 - 1}"
        elif self.trace_block_size is not None:
            is_sound = min(self.trace_block_size, self.block_size, self.input_tokens) >= 1
            if is_sound and not self._fits(self.trace_block_size):
                yield "trace_block_size", f"must divide the shared prefix of {self.shared_tokens} tokens"

    def _arrival_faults(self) -> Iterator[tuple[str, str]]:
        ways = ("replay_concurrency", "request_rate", "arrival_interval_ms")
        given = [way for way in ways if getattr(self, way) is not None]
        if len(given) != 1:
            yield given[-1] if given else ways[1], f"exactly one of {', '.join(ways)} must be given"
        if not 0 <= self.arrival_seed < 2**64:
            yield "arrival_seed", "must be an integer from 0 to 2^64-1"
        if not (math.isfinite(self.arrival_speedup_ratio) and self.arrival_speedup_ratio > 0.0):
            yield "arrival_speedup_ratio", "must be finite and positive"
            return
        longest_ms = 0.0
        if self.request_rate is not None:
            if not (math.isfinite(self.request_rate) and self.request_rate > 0.0):
                yield "request_rate", "must be finite and positive"
                return
            longest_ms = 1000.0 / self.request_rate * _LONGEST_GAP
        elif self.arrival_interval_ms is not None:
            if not (math.isfinite(self.arrival_interval_ms) and self.arrival_interval_ms >= 0.0):
                yield "arrival_interval_ms", "must be finite and not negative"
                return
            longest_ms = self.arrival_interval_ms
        if not math.isfinite(longest_ms * self.request_count / self.arrival_speedup_ratio):
            yield given[-1], "must keep all arrivals within the range of float64"


class _Prefixes:
    """Gives out hash ids: those of a group to all its sessions, any other only once."""

    def __init__(self, num_groups: int, num_shared: int, num_ids: int) -> None:
        self._rng = ChaCha12Rng(_GROUP_SEED)
        self._num_groups = num_groups
        self._num_shared = num_shared  # ids of a prompt that its group shares
        self._num_ids = num_ids  # of a prompt
        self._of_group: dict[int, list[int]] = {}
        self._next_id = 0

    def next_prefix(self) -> list[int]:
        """The shared ids of the next session."""
        if self._num_shared == 0:
            return []
        group = self._rng.below(self._num_groups)
        if group not in self._of_group:
            self._of_group[group] = self._take(self._num_shared)
        return self._of_group[group]

    def fresh_ids(self, num_given: int) -> list[int]:
        """Ids for the rest of a prompt."""
        return self._take(self._num_ids - num_given)

    def _take(self, count: int) -> list[int]:
        first = self._next_id
        self._next_id += count
        return list(range(first, first + count))
