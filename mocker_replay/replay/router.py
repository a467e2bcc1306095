"""Placement by cached prefixes: the router mode kv_router.

Decides the worker and rank of a request from what the event stream has shown so far: the blocks each rank said it
stored, the requests placed there and their first tokens. Never looks into an engine.

For each (worker, rank): cost = (prompt tokens of this request that are not cached there + prompt tokens of requests
placed there whose prefill has not ended, less what they had cached) / block_size + distinct full prompt blocks held by
the requests active there, this one included. The lowest cost wins. Where the reference breaks ties at random without a
seed, ours draws from a seeded generator, so that equal inputs give equal placements.

Source: replay specification, section 4.2.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Sequence

from msgspec import Struct, field
from xxhash import xxh3_64_intdigest

from mocker_replay._core.chacha import ChaCha12Rng
from mocker_replay._core.event_buffer import KIND_NAMES, EventBuffer
from mocker_replay.report.facts import Placement

_HASH_SEED = 1337
_STORED, _REMOVED, _FIRST_TOKEN, _TERMINAL = (
    KIND_NAMES.index(name) for name in ("kv_stored", "kv_removed", "first_token", "terminal")
)
_U64 = 2**64 - 1


class _Rank(Struct):
    """What the router has seen of one rank."""

    stored: set[int] = field(default_factory=set)  # chain hashes
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
        self._trace_block_size = trace_block_size
        self._event_lag_ms = event_lag_ms  # how late the router sees stored and removed blocks
        self._unseen: deque[tuple[float, int, bool, list[int]]] = deque()  # (seen at [ms], rank, stored, hashes)
        self._ranks = [_Rank() for _ in range(num_workers * dp_size)]
        self._active: dict[int, _Active] = {}
        self._pending: set[int] = set()
        self._ties = ChaCha12Rng(seed)
        self.placements: dict[int, Placement] = {}
        self._hits: tuple[float, int] = (0.0, 0)  # since they were last taken

    def choose(self, now_ms: float, request: int, input_tokens: int, hash_ids: Sequence[int]) -> Placement:
        """Place a request that arrives now; it counts as active from here on."""
        self._see_until(now_ms)
        blocks = tuple(self._chain(input_tokens, hash_ids))
        overlaps = [self._overlap(rank, blocks) for rank in self._ranks]
        costs = [self._cost(rank, overlaps[i], input_tokens, blocks) for i, rank in enumerate(self._ranks)]
        best = [i for i, cost in enumerate(costs) if cost == min(costs)]
        chosen = best[0] if len(best) == 1 else best[self._ties.below(len(best))]
        overlap = overlaps[chosen]
        entry = _Active(chosen, blocks, input_tokens - overlap * self._block_size)
        self._active[request] = entry
        self._pending.add(request)
        self._ranks[chosen].pending_tokens += entry.tokens
        self._ranks[chosen].active.update(blocks)
        placement = Placement(
            worker=chosen // self._dp_size,
            rank=chosen % self._dp_size,
            overlap_blocks=overlap,
            best_overlap_blocks=max(overlaps),
            prompt_blocks=-(-input_tokens // self._block_size),
            overlap_tokens=overlap * self._block_size,
        )
        self.placements[request] = placement
        rate = overlap / placement.prompt_blocks if placement.prompt_blocks else 0.0
        self._hits = (self._hits[0] + rate, self._hits[1] + 1)
        return placement

    def take_hit_rates(self) -> tuple[float, int]:
        """Sum and number of the hit rates of placements since the last call."""
        hits, self._hits = self._hits, (0.0, 0)
        return hits

    def consume(self, events: EventBuffer) -> None:
        """Take in what became visible: stored and removed blocks, first tokens, ends."""
        records = events.records_array()
        kinds = records["kind"]
        chosen = records[(kinds == _STORED) | (kinds == _REMOVED) | (kinds == _FIRST_TOKEN) | (kinds == _TERMINAL)]
        words = events.words_array() if len(chosen) else None
        for record in chosen:
            kind, request = int(record["kind"]), int(record["request"])
            if kind == _FIRST_TOKEN:
                self._prefilled(request)
            elif kind == _TERMINAL:
                self._ended(request)
            else:
                assert words is not None
                first, end = int(record["c"]), int(record["c"]) + int(record["d"])
                # Stored: the parent's hash, then (block hash, local hash) for each block.
                hashes = words[first:end] if kind == _REMOVED else words[first + 1 : end : 2]
                rank = int(record["worker"]) * self._dp_size + int(record["rank"])
                seen_ms = float(record["t_ms"]) + self._event_lag_ms
                self._unseen.append((seen_ms, rank, kind == _STORED, [word & _U64 for word in hashes.tolist()]))

    def _see_until(self, now_ms: float) -> None:
        while self._unseen and self._unseen[0][0] <= now_ms:
            _, rank, stored, hashes = self._unseen.popleft()
            if stored:
                self._ranks[rank].stored.update(hashes)
            else:
                self._ranks[rank].stored.difference_update(hashes)

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

    def _overlap(self, rank: _Rank, blocks: tuple[int, ...]) -> int:
        return sum(1 for _ in itertools.takewhile(rank.stored.__contains__, blocks))

    def _cost(self, rank: _Rank, overlap: int, input_tokens: int, blocks: tuple[int, ...]) -> float:
        prefill_tokens = input_tokens - overlap * self._block_size + rank.pending_tokens
        held = len(rank.active) + sum(1 for block in set(blocks) if block not in rank.active)
        return prefill_tokens / self._block_size + held

    def _chain(self, input_tokens: int, hash_ids: Sequence[int]) -> list[int]:
        """Chain hashes of the full prompt blocks; a prompt token is its trace hash id."""
        chain: list[int] = []
        words = [int(key & 0xFFFFFFFF).to_bytes(4, "little") for key in hash_ids]
        uniform: dict[bytes, int] = {}
        for block in range(input_tokens // self._block_size):
            first, last = block * self._block_size, (block + 1) * self._block_size
            ids = range(first // self._trace_block_size, (last - 1) // self._trace_block_size + 1)
            if len(ids) == 1:
                word = words[ids[0]]
                local = uniform.get(word)
                if local is None:
                    local = uniform[word] = xxh3_64_intdigest(word * self._block_size, _HASH_SEED)
            else:
                size = self._trace_block_size
                spans = ((i, min((i + 1) * size, last) - max(i * size, first)) for i in ids)
                local = xxh3_64_intdigest(b"".join(words[i] * count for i, count in spans), _HASH_SEED)
            if chain:
                local = xxh3_64_intdigest(chain[-1].to_bytes(8, "little") + local.to_bytes(8, "little"), _HASH_SEED)
            chain.append(local)
        return chain
