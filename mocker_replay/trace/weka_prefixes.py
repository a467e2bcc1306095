"""Hash lists of one play, ordered, so that questions about common prefixes cost no comparison of lists.

Decides nothing about streams; answers which lists are prefixes of one, and how much two of them share. Lists are
compared once, as bytes, when they are sorted; after that a list is its rank and all questions are about ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mocker_replay.trace.base import Int64s

NO_RANK = -1


class PrefixOrder:
    """The distinct non-empty lists among some hash lists, in lexicographic order."""

    def __init__(self, hash_lists: Sequence[Sequence[int]]) -> None:
        # Big-endian bytes are in the order of the numbers, and comparing them is one call of C.
        keys = [np.array(ids, np.uint64).astype(">u8").tobytes() for ids in hash_lists]
        ordered = sorted({key for key in keys if key})
        rank_of = {key: rank for rank, key in enumerate(ordered)}
        self.rank = [rank_of.get(key, NO_RANK) for key in keys]  # of each list; NO_RANK: it is empty
        self.length: Int64s = np.array([len(key) // 8 for key in ordered], np.int64)  # by rank
        self._shared = np.zeros(len(ordered), np.int64)  # ids that a list and the one of the rank before have in common
        for at in range(1, len(ordered)):
            self._shared[at] = _num_shared(ordered[at - 1], ordered[at])
        self.prefix_of = self._nearest_prefixes()  # by rank: the longest proper prefix that is a list too, or NO_RANK

    def shared_with_all(self, rank: int) -> Int64s:
        """How many leading ids each list has in common with one of them, by rank."""
        shared = np.empty(len(self.length), np.int64)
        shared[rank] = self.length[rank]
        shared[rank + 1 :] = np.minimum.accumulate(self._shared[rank + 1 :])
        shared[:rank] = np.minimum.accumulate(self._shared[rank:0:-1])[::-1]
        return shared

    def _nearest_prefixes(self) -> list[int]:
        found: list[int] = []
        above: list[int] = []  # ranks of lists, each a prefix of the next
        for rank, shared in enumerate(self._shared.tolist()):
            while above and self.length[above[-1]] > shared:
                above.pop()
            found.append(above[-1] if above else NO_RANK)
            above.append(rank)
        return found


def _num_shared(left: bytes, right: bytes) -> int:
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size // 8
    differs = np.frombuffer(left[:size], np.uint64) != np.frombuffer(right[:size], np.uint64)
    return int(differs.argmax())
