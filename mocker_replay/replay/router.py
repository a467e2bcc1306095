"""Placement by cached prefixes among workers of one kind: the router mode kv_router.

Decides the worker and rank of a request from what the event stream has shown so far: the blocks each rank said it
stored, the requests placed there and their first tokens. Never looks into an engine.

For each (worker, rank): cost = (prompt tokens of this request that are not cached there + prompt tokens of requests
placed there whose prefill has not ended, less what they had cached) / block_size + distinct full prompt blocks held by
the requests active there, this one included. The lowest cost wins. Where the reference breaks ties at random without a
seed, ours draws from a seeded generator, so that equal inputs give equal placements.

Source: replay specification, section 4.2.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec import Struct, field

from mocker_replay._core.chacha import ChaCha12Rng
from mocker_replay._core.event_buffer import KIND_NAMES, EventBuffer
from mocker_replay.replay.cached_blocks import REMOVED, STORED, CachedBlocks
from mocker_replay.report.facts import Placement

FIRST_TOKEN: Final = KIND_NAMES.index("first_token")
TERMINAL: Final = KIND_NAMES.index("terminal")
_KINDS: Final = (STORED, REMOVED, FIRST_TOKEN, TERMINAL)


class Ties:
    """Who gets a request where several ranks cost the same."""

    def __init__(self, seed: int) -> None:
        self._rng = ChaCha12Rng(seed)

    def pick(self, request: int, pool: str, costs: Sequence[float]) -> int:
        """One of the ranks of the lowest cost, by its number in the pool (agg, prefill or decode)."""
        lowest = min(costs)
        best = [at for at, cost in enumerate(costs) if cost == lowest]
        return best[0] if len(best) == 1 else best[self._rng.below(len(best))]


class HitRates:
    """Hit rates of placements: cached blocks over all blocks of the prompt, the partial one included.

    Args:
        late: a sample does not see the placements of its own instant.
    """

    def __init__(self, *, late: bool = False) -> None:
        self._late = late
        self._rates: list[tuple[float, float]] = []  # when [ms], rate; in order

    def add(self, at_ms: float, placement: Placement) -> None:
        """One more placement."""
        rate = placement.overlap_blocks / placement.prompt_blocks if placement.prompt_blocks else 0.0
        self._rates.append((at_ms, rate))

    def take(self, sample_ms: float) -> tuple[float, int]:
        """Sum and number of those that a sample sees and none before it saw; the last one of a run is at infinity."""
        num = bisect_left(self._rates, (sample_ms, -1.0)) if self._late else len(self._rates)
        taken, self._rates = self._rates[:num], self._rates[num:]
        return sum(rate for _, rate in taken), num


class _Rank(Struct):
    """What the router has seen of the requests of one rank."""

    active: Counter[int] = field(default_factory=Counter)  # chain hashes of full prompt blocks of active requests
    pending_tokens: int = 0  # uncached prompt tokens of requests without a first token


class _Active(Struct, frozen=True):
    rank: int  # index over all ranks
    blocks: tuple[int, ...]
    tokens: int  # uncached prompt tokens


class KvRouter:
    """Places requests by cost; told of everything through the event stream."""

    def __init__(
        self,
        num_workers: int,
        dp_size: int,
        block_size: int,
        trace_block_size: int,
        seed: int,
        event_lag_ms: float = 0.0,
    ) -> None:
        self._dp_size = dp_size
        self._block_size = block_size
        self._ranks = [_Rank() for _ in range(num_workers * dp_size)]
        self._cached = CachedBlocks(len(self._ranks), block_size, trace_block_size, event_lag_ms)
        self._active: dict[int, _Active] = {}
        self._pending: set[int] = set()
        self._ties = Ties(seed)
        self.placements: dict[int, Placement] = {}
        self.hits = HitRates()

    def choose(self, now_ms: float, request: int, input_tokens: int, hash_ids: Sequence[int]) -> Placement:
        """Place a request that arrives now; it counts as active from here on."""
        blocks = tuple(self._cached.chain(input_tokens, hash_ids))
        overlaps = self._cached.overlaps(now_ms, blocks)
        costs = [self._cost(rank, overlaps[i], input_tokens, blocks) for i, rank in enumerate(self._ranks)]
        chosen = self._ties.pick(request, "agg", costs)
        entry = _Active(chosen, blocks, input_tokens - overlaps[chosen] * self._block_size)
        self._active[request] = entry
        self._pending.add(request)
        self._ranks[chosen].pending_tokens += entry.tokens
        self._ranks[chosen].active.update(blocks)
        placement = placement_at(chosen, self._dp_size, overlaps, input_tokens, self._block_size)
        self.placements[request] = placement
        self.hits.add(now_ms, placement)
        return placement

    def consume(self, events: EventBuffer) -> None:
        """Take in what became visible: stored and removed blocks, first tokens, ends."""
        for kind, at_ms, worker, rank, request, words, _ in events.rows_of(_KINDS, 0):
            if kind == FIRST_TOKEN:
                self._prefilled(request)
            elif kind == TERMINAL:
                self._ended(request)
            else:
                assert words is not None, "a cache event names its blocks"
                self._cached.note(kind, at_ms, worker * self._dp_size + rank, words)

    def _prefilled(self, request: int) -> None:
        if request in self._pending:
            self._pending.discard(request)
            entry = self._active[request]
            self._ranks[entry.rank].pending_tokens -= entry.tokens

    def _ended(self, request: int) -> None:
        self._prefilled(request)
        entry = self._active.pop(request)
        active = self._ranks[entry.rank].active
        active.subtract(entry.blocks)
        for block in entry.blocks:
            if active[block] == 0:
                del active[block]

    def _cost(self, rank: _Rank, overlap: int, input_tokens: int, blocks: tuple[int, ...]) -> float:
        prefill_tokens = input_tokens - overlap * self._block_size + rank.pending_tokens
        held = len(rank.active) + sum(1 for block in set(blocks) if block not in rank.active)
        return prefill_tokens / self._block_size + held


def placement_at(at: int, dp_size: int, overlaps: Sequence[int], input_tokens: int, block_size: int) -> Placement:
    """What is told of a request that goes to this rank of its pool, given the cached blocks of all ranks there."""
    return Placement(
        worker=at // dp_size,
        rank=at % dp_size,
        overlap_blocks=overlaps[at],
        best_overlap_blocks=max(overlaps),
        prompt_blocks=-(-input_tokens // block_size),
        overlap_tokens=overlaps[at] * block_size,
    )
