"""Columns of a trace that are kept, packed, from one reading of it to the next, while they are few.

Decides what is worth its memory. Never decides what a row says: what comes out is what went in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import structs

from mocker_replay.trace.base import Int64s
from mocker_replay.trace.mooncake_columns import Columns

KEPT_BYTES: Final = 8 * 2**20
_NAME_BYTES: Final = 100  # of a name, roughly
_PACKED: Final = ("lines", "input_tokens", "output_tokens", "num_hash_ids", "priority", "strict_priority")
_FLOATS: Final = ("timestamp_ms", "delay_ms", "cancel_after_ms", "deadline_ms")


class KeptRows:
    """All rows of a trace in the blocks in which they were read; nothing once they are too many."""

    def __init__(self) -> None:
        self._blocks: list[Columns] = []
        self._num_bytes = 0
        self.is_whole = True  # no block had to be given up

    def add(self, columns: Columns) -> None:
        """One block more."""
        if not self.is_whole:
            return
        packed = _with(columns, {name: _packed(getattr(columns, name)) for name in _PACKED})
        self._num_bytes += _num_bytes(packed)
        self._blocks.append(packed)
        if self._num_bytes > KEPT_BYTES:
            self.is_whole = False
            self._blocks.clear()

    def __iter__(self) -> Iterator[Columns]:
        for packed in self._blocks:
            yield _with(packed, {name: getattr(packed, name).astype(np.int64) for name in _PACKED})


def _with(columns: Columns, arrays: dict[str, Any]) -> Columns:
    return structs.replace(columns, **arrays)


def _packed(column: Int64s) -> npt.NDArray[Any]:
    """The same integers in half the room, or in none where all are 0."""
    if not column.any():
        return np.broadcast_to(np.int8(0), column.shape)
    return column.astype(np.uint32) if column.min() >= 0 and column.max() < 2**32 else column


def _num_bytes(columns: Columns) -> int:
    """Memory of packed columns, roughly."""
    arrays = [getattr(columns, name) for name in (*_PACKED, *_FLOATS, "hash_ids")]
    named = len(columns.session_ids or ()) + len(columns.request_ids or ())
    authored = sum(8 * len(ids) for ids in columns.output_ids or () if ids is not None)
    kept = sum(array.nbytes for array in arrays if array is not None and any(array.strides))
    return int(kept) + _NAME_BYTES * named + authored
