"""Sessions that arrive at the same instant, in another order.

Decides the order within each instant by a seed; whoever arrives alone keeps its place in the file. Times stay. What
such an order changes is what a file could not have told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from msgspec import Struct

from mocker_replay._core.chacha import ChaCha12Rng
from mocker_replay.trace.base import Int64s, RowBatch
from mocker_replay.trace.transforms.rows import held, take
from mocker_replay.trace.transforms.step import Incoming


class ShuffleTies(Struct, frozen=True):
    """First turns at one instant change places among themselves; later turns stay where they are, or move behind."""

    seed: int

    starts_at_zero: ClassVar[bool] = False

    @property
    def text(self) -> str:
        return f"shuffle-ties={self.seed}"

    def apply(self, batches: Iterator[RowBatch], incoming: Incoming) -> Iterator[RowBatch]:
        for rows in held(batches):
            place = np.arange(len(rows))
            for tied in _tied_rows(rows):
                place[tied] = tied[_permutation(len(tied), self.seed, rows.lines[tied])]
            later = np.flatnonzero(rows.turn > 0)
            if len(later):
                first_place = np.empty(int(rows.session.max()) + 1, np.int64)
                is_first = rows.turn == 0
                first_place[rows.session[is_first]] = place[is_first]
                place[later] = np.maximum(place[later], first_place[rows.session[later]])
            yield take(rows, np.lexsort((rows.turn, place)))


def _tied_rows(rows: RowBatch) -> Iterator[Int64s]:
    """Positions of first turns that arrive together, group by group."""
    firsts = np.flatnonzero((rows.turn == 0) & ~np.isnan(rows.timestamp_ms))
    order = firsts[np.argsort(rows.timestamp_ms[firsts], kind="stable")]
    starts = np.flatnonzero(np.diff(rows.timestamp_ms[order], prepend=np.nan) != 0.0)
    for group in np.split(order, starts[1:]):
        if len(group) > 1:
            yield group


def _permutation(count: int, seed: int, lines: Int64s) -> Int64s:
    """A shuffle that follows from the seed and the first line of the group: other groups have no part in it."""
    rng = ChaCha12Rng((seed + int(lines[0]) * 0x9E3779B97F4A7C15) % 2**64)
    order = np.arange(count)
    for at in range(count - 1, 0, -1):
        other = rng.below(at + 1)
        order[at], order[other] = order[other], order[at]
    return order
