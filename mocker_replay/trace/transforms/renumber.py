"""Ids made anew.

Decides new numbers only: equal hash ids stay equal, and different ones different. Changes nothing of a run but names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from msgspec import Struct, structs

from mocker_replay.trace.base import RowBatch
from mocker_replay.trace.transforms.step import Incoming


class RenumberHashIds(Struct, frozen=True):
    """Hash ids 0, 1, 2, ... in order of first appearance."""

    starts_at_zero: ClassVar[bool] = False

    @property
    def text(self) -> str:
        return "renumber-hash-ids"

    def apply(self, batches: Iterator[RowBatch], incoming: Incoming) -> Iterator[RowBatch]:
        dense: dict[int, int] = {}
        for batch in batches:
            numbers = [dense.setdefault(key, len(dense)) for key in batch.hash_ids.tolist()]
            yield structs.replace(batch, hash_ids=np.array(numbers, np.uint64))


class RenumberRequestIds(Struct, frozen=True):
    """Every request is named `r0`, `r1`, `r2`, ... by its row, whatever it was called."""

    starts_at_zero: ClassVar[bool] = False

    @property
    def text(self) -> str:
        return "renumber-request-ids"

    def apply(self, batches: Iterator[RowBatch], incoming: Incoming) -> Iterator[RowBatch]:
        row = 0
        for batch in batches:
            names: list[str | None] = [f"r{number}" for number in range(row, row + len(batch))]
            row += len(batch)
            yield structs.replace(batch, request_ids=names)
