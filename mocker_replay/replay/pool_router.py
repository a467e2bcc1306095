"""Placement by cached prefixes and load with prefill and decode workers: the router mode kv_router there.

Decides worker and rank of a request in either pool, from what the event stream has shown so far. Never decides when a
request needs a place, and never looks into an engine.

Prefill: cost = (prompt tokens that are not cached there + the same of requests placed there whose prompt is not held
yet) / block_size. Decode: cost = full prompt blocks of this request and of all requests placed there that have not
ended, shared ones counted for each. The lowest cost wins; ties as with workers of one kind.

Source: the reference, asked by experiment; docs/handoff.md, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from mocker_replay._core.event_buffer import KIND_NAMES, EventBuffer
from mocker_replay.events import HandoffStage
from mocker_replay.replay.cached_blocks import REMOVED, STORED, CachedBlocks
from mocker_replay.replay.router import TERMINAL, HitRates, Ties, placement_at
from mocker_replay.report.facts import Placement

_HANDOFF: Final = KIND_NAMES.index("handoff")
_KINDS: Final = (STORED, REMOVED, TERMINAL, _HANDOFF)


class PoolShape(Struct, frozen=True):
    """Workers of one pool and the ranks of each."""

    num_workers: int
    dp_size: int

    @property
    def num_ranks(self) -> int:
        """Ranks of all workers."""
        return self.num_workers * self.dp_size


class PoolRouter:
    """Places requests by cost; told of everything through the event stream.

    Args:
        events: of the fleet, of which those that nobody has read yet count, too.
        hits_late: a sample does not see the placements of its own instant.
        shows_held: the blocks of a held prompt count as cached, although no request finds them before its release.
    """

    def __init__(
        self,
        prefill: PoolShape,
        decode: PoolShape,
        block_size: int,
        trace_block_size: int,
        seed: int,
        events: EventBuffer,
        event_lag_ms: float = 0.0,
        *,
        hits_late: bool = False,
        shows_held: bool = False,
    ) -> None:
        self._prefill, self._decode = prefill, decode
        self._block_size = block_size
        self._events = events
        self._shows_held = shows_held
        self._scanned = 0  # records of it that were looked at
        self._cached = CachedBlocks(prefill.num_ranks, block_size, trace_block_size, event_lag_ms)
        self._pending_tokens = [0] * prefill.num_ranks  # uncached prompt tokens of requests that are not held yet
        self._held_blocks = [0] * decode.num_ranks  # full prompt blocks of requests that have not ended
        # By request: rank, uncached prompt tokens, and what its rank has when the prompt is held.
        self._at_prefill: dict[int, tuple[int, int, Sequence[int]]] = {}
        self._at_decode: dict[int, tuple[int, int]] = {}  # by request: rank, full prompt blocks
        self._ties = Ties(seed)
        self.prefill_placements: dict[int, Placement] = {}
        self.placements: dict[int, Placement] = {}  # of the decode workers
        self.hits = HitRates(late=hits_late)

    def choose_prefill(
        self, now_ms: float, request: int, input_tokens: int, hash_ids: Sequence[int]
    ) -> tuple[int, int]:
        """Worker of the prefill pool and rank for a prompt that is to be computed; it counts there from here on."""
        self._look()
        blocks = self._cached.chain(input_tokens, hash_ids)
        overlaps = self._cached.overlaps(now_ms, blocks)
        missing = [input_tokens - overlap * self._block_size for overlap in overlaps]
        costs = [
            (tokens + pending) / self._block_size for tokens, pending in zip(missing, self._pending_tokens, strict=True)
        ]
        at = self._ties.pick(request, "prefill", costs)
        self._pending_tokens[at] += missing[at]
        self._at_prefill[request] = at, missing[at], blocks if self._shows_held else ()
        placement = placement_at(at, self._prefill.dp_size, overlaps, input_tokens, self._block_size)
        self.prefill_placements[request] = placement
        self.hits.add(now_ms, placement)
        return placement.worker, placement.rank

    def choose_decode(self, now_ms: float, request: int, input_tokens: int) -> tuple[int, int]:
        """Worker of the decode pool and rank for a request whose destination is asked for; it counts there, too."""
        self._look()
        blocks = input_tokens // self._block_size
        costs = [float(held + blocks) for held in self._held_blocks]
        at = self._ties.pick(request, "decode", costs)
        self._held_blocks[at] += blocks
        self._at_decode[request] = at, blocks
        nothing = [0] * len(costs)  # what is cached there does not count
        placement = placement_at(at, self._decode.dp_size, nothing, input_tokens, self._block_size)
        self.placements[request] = placement
        return placement.worker, placement.rank

    def consume(self, events: EventBuffer) -> None:
        """Take in the rest of the records, which will be forgotten."""
        assert events is self._events, "a router reads the records of its fleet"
        self._look()
        self._scanned = 0

    def _look(self) -> None:
        for kind, at_ms, worker, rank, request, words, stage in self._events.rows_of(_KINDS, self._scanned):
            if kind == TERMINAL:
                self._leave_prefill(request)
                self._leave_decode(request)
            elif kind == _HANDOFF:
                if stage == HandoffStage.SOURCE_HELD:
                    self._held(request, at_ms)
            elif worker < self._prefill.num_workers:
                assert words is not None, "a cache event names its blocks"
                self._cached.note(kind, at_ms, worker * self._prefill.dp_size + rank, words)
        self._scanned = len(self._events)

    def _held(self, request: int, at_ms: float) -> None:
        if request in self._at_prefill:  # its client has not gone
            at, _, blocks = self._at_prefill[request]
            if blocks:
                self._cached.note_stored(at_ms, at, blocks)
            self._leave_prefill(request)

    def _leave_prefill(self, request: int) -> None:
        if request in self._at_prefill:
            at, tokens, _ = self._at_prefill.pop(request)
            self._pending_tokens[at] -= tokens

    def _leave_decode(self, request: int) -> None:
        if request in self._at_decode:
            at, blocks = self._at_decode.pop(request)
            self._held_blocks[at] -= blocks
