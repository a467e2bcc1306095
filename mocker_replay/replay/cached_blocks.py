"""What a router knows of the caches of all ranks: the blocks they said they stored and have not removed since.

Decides how a prompt is known by its blocks, and when the router sees a cache event. Never decides where a request goes.

Source: replay specification, section 4.2.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

from mocker_replay._core.event_buffer import KIND_NAMES

STORED: Final = KIND_NAMES.index("kv_stored")
REMOVED: Final = KIND_NAMES.index("kv_removed")
_HASH_SEED = 1337
_U64 = 2**64 - 1


class CachedBlocks:
    """Blocks by rank, as chain hashes.

    Args:
        event_lag_ms: how late the router sees stored and removed blocks.
    """

    def __init__(self, num_ranks: int, block_size: int, trace_block_size: int, event_lag_ms: float) -> None:
        self._block_size = block_size
        self._trace_block_size = trace_block_size
        self._event_lag_ms = event_lag_ms
        self._stored: list[set[int]] = [set() for _ in range(num_ranks)]
        self._unseen: deque[tuple[float, int, bool, list[int]]] = deque()  # (seen at [ms], rank, stored, hashes)

    def note(self, kind: int, at_ms: float, rank: int, words: Sequence[int]) -> None:
        """A cache event of a rank, with the payload of its record."""
        # Stored: the parent's hash, then (block hash, local hash) for each block.
        hashes = words if kind == REMOVED else words[1::2]
        self._unseen.append((at_ms + self._event_lag_ms, rank, kind == STORED, [word & _U64 for word in hashes]))

    def note_stored(self, at_ms: float, rank: int, blocks: Sequence[int]) -> None:
        """A rank has these blocks, as chain hashes."""
        self._unseen.append((at_ms + self._event_lag_ms, rank, True, list(blocks)))

    def overlaps(self, now_ms: float, blocks: Sequence[int]) -> list[int]:
        """How many leading blocks of a prompt each rank has, as the router sees it now."""
        while self._unseen and self._unseen[0][0] <= now_ms:
            _, rank, stored, hashes = self._unseen.popleft()
            if stored:
                self._stored[rank].update(hashes)
            else:
                self._stored[rank].difference_update(hashes)
        return [sum(1 for _ in itertools.takewhile(rank.__contains__, blocks)) for rank in self._stored]

    def chain(self, input_tokens: int, hash_ids: Sequence[int]) -> list[int]:
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
