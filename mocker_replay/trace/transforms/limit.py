"""The first rows of a trace.

Decides by the order of the rows, so the last sessions may lose their later turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from msgspec import Struct

from mocker_replay.trace.base import RowBatch
from mocker_replay.trace.transforms.rows import take
from mocker_replay.trace.transforms.step import Incoming


class LimitRows(Struct, frozen=True):
    """At most so many rows."""

    num_rows: int

    starts_at_zero: ClassVar[bool] = False

    @property
    def text(self) -> str:
        return f"limit-rows={self.num_rows}"

    def apply(self, batches: Iterator[RowBatch], incoming: Incoming) -> Iterator[RowBatch]:
        left = self.num_rows
        for batch in batches:
            # Read on to the end: the source tells there whether the file is still the one that was scanned.
            yield batch if len(batch) <= left else take(batch, np.arange(left))
            left -= min(left, len(batch))
