"""Hash ids of prompt blocks: exactly one a block, given, private, or shared by assumption.

Decides what stands in for ids that a trace does not have, as columns. Never knows a format.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from mocker_replay.config.prefix_estimate import NO_SHARING
from mocker_replay.trace.base import Float64s, Int64s, Uint64s

ID_END: Final = 2**64
MAX_MISSING_IDS: Final = 2**17  # of one prompt: memory that no byte of the trace answers for


class PrefixEstimate(Struct, frozen=True):
    """What is assumed of prompts without hash ids: the first part of each is that of its group.

    The group of row i (rows from 0) is splitmix64(i) mod num_groups; round(ratio * blocks) leading blocks of a prompt,
    a half rounded up, are the group's.
    """

    ratio: float = 0.0
    num_groups: int = 1

    @property
    def is_sharing(self) -> bool:
        return self.ratio > 0.0

    def __str__(self) -> str:
        return f"{self.ratio:g}:{self.num_groups}" if self.is_sharing else NO_SHARING

    def num_shared(self, num_blocks: Int64s) -> Int64s:
        """Leading blocks of each prompt that its group has too."""
        shared: Float64s = np.floor(self.ratio * num_blocks + 0.5)
        return np.minimum(shared.astype(np.int64), num_blocks)


def exact_ids(hash_ids: Uint64s, given: Int64s, needed: Int64s, next_private_id: int) -> Uint64s:
    """One id per prompt block: surplus ids cut off, missing ones counted up from `next_private_id`.

    Args:
        hash_ids: as given, rows one after another. given, needed: how many a row has and should have.
    """
    if np.array_equal(given, needed):
        return hash_ids
    offsets = np.zeros(len(needed) + 1, np.int64)
    np.cumsum(needed, out=offsets[1:])
    starts = np.cumsum(given) - given
    position = np.arange(len(hash_ids)) - np.repeat(starts, given)  # of each given id in its row
    is_used = position < np.repeat(needed, given)
    target = np.repeat(offsets[:-1], given)[is_used] + position[is_used]
    ids = np.empty(int(offsets[-1]), np.uint64)
    is_private = np.ones(len(ids), bool)
    is_private[target] = False
    ids[target] = hash_ids[is_used]
    num_private = int(is_private.sum())
    if num_private:
        ids[is_private] = np.arange(num_private, dtype=np.uint64) + np.uint64(next_private_id)
    return ids


def shared_ids(estimate: PrefixEstimate, first_row: int, num_blocks: Int64s) -> tuple[Uint64s, Int64s]:
    """The ids that rows have from their groups, and how many of them each row has.

    Block j of group g is j * num_groups + g: whatever the longest prompt, ids above the last one are free.
    """
    given = estimate.num_shared(num_blocks)
    rows = np.arange(first_row, first_row + len(num_blocks), dtype=np.uint64)
    groups = _splitmix64(rows) % np.uint64(estimate.num_groups)
    starts = np.cumsum(given) - given
    position = (np.arange(int(given.sum())) - np.repeat(starts, given)).astype(np.uint64)
    return position * np.uint64(estimate.num_groups) + np.repeat(groups, given), given


def _splitmix64(values: Uint64s) -> Uint64s:
    """The output function of the generator splitmix64 at each state; arithmetic is modulo 2^64."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
