"""What a live engine tells about itself: gauges as a latest value, cache events and forward-pass metrics as they come.

Decides how records become these values, never when they are published. Source: boundary specification, section 8.4;
units stand in docs/metrics.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mocker_replay.events import EventKind
from mocker_replay.shells.published import EventRecord


class EngineMetrics(NamedTuple):
    """Gauges of one rank, after the last command or pass."""

    rank: int
    active_blocks: int  # owned by a request [blocks]
    total_blocks: int  # [blocks]
    running: int  # [requests]
    waiting: int  # preempted ones included [requests]
    preemptions: int  # since the start
    cache_hit_tokens: int = 0  # of the last pass that looked prompts up; flavours without the figure say 0
    cache_total_tokens: int = 0

    @property
    def cache_usage(self) -> float:
        """Share of the blocks that requests own, 0 to 1."""
        return self.active_blocks / self.total_blocks

    @property
    def idle(self) -> bool:
        """No request is running or waiting."""
        return self.running == 0 and self.waiting == 0

    def latched(self, before: EngineMetrics) -> EngineMetrics:
        """A snapshot without look-ups keeps the cache figures of the one before."""
        if self.cache_total_tokens or not before.cache_total_tokens:
            return self
        return self._replace(cache_hit_tokens=before.cache_hit_tokens, cache_total_tokens=before.cache_total_tokens)


class KvEvent(NamedTuple):
    """Blocks that appeared in or left the prefix cache of a rank."""

    rank: int
    t_ms: float  # modelled time
    stored: bool  # removed otherwise
    block_hashes: tuple[int, ...]  # chain hashes, unsigned 64-bit
    local_hashes: tuple[int, ...]  # content hashes of stored blocks; empty for removed ones
    parent_hash: int | None  # chain hash before the first stored block; None at the start of a sequence


class ForwardPass(NamedTuple):
    """Forward-pass metrics of one rank and pass, under the reference's field names (docs/event-log.md, `fpm`)."""

    rank: int
    t_ms: float  # modelled end of the pass
    values: Mapping[str, float]


KvPublisher = Callable[[KvEvent], None]
ForwardPassPublisher = Callable[[ForwardPass], None]


def kv_events(records: Sequence[EventRecord], words: Sequence[int]) -> list[KvEvent]:
    """Cache events among the records of one rank, in order."""
    events = []
    for record in records:
        payload = [word % 2**64 for word in words[record.c : record.c + record.d]]
        if record.kind == EventKind.KV_REMOVED:
            events.append(KvEvent(record.rank, record.t_ms, False, tuple(payload), (), None))
        elif record.kind == EventKind.KV_STORED:
            parent = payload[0] if record.b > 0 else None
            events.append(KvEvent(record.rank, record.t_ms, True, tuple(payload[1::2]), tuple(payload[2::2]), parent))
    return events


def forward_pass(record: EventRecord, words: Sequence[int]) -> ForwardPass:
    """Values of an FPM record; its payload is the bits of doubles."""
    from mocker_replay._core.event_buffer import FPM_FIELDS

    payload = words[record.c : record.c + record.d]
    doubles = struct.unpack(f"<{len(payload)}d", struct.pack(f"<{len(payload)}q", *payload))
    return ForwardPass(record.rank, record.t_ms, dict(zip(FPM_FIELDS, doubles, strict=True)))
