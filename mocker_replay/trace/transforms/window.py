"""Sessions that arrive within a window of time.

Decides membership by the arrival of the first turn alone, so that a session stays whole: its later turns count even
where they come after the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from msgspec import Struct

from mocker_replay.config.decimals import plain_decimal
from mocker_replay.trace.base import RowBatch
from mocker_replay.trace.transforms.rows import take
from mocker_replay.trace.transforms.step import Incoming, refusal


class Window(Struct, frozen=True):
    """From `start_ms` up to, but not at, `end_ms`, counted from the earliest arrival of the trace."""

    start_ms: float = 0.0
    end_ms: float = math.inf

    starts_at_zero: ClassVar[bool] = False

    @property
    def text(self) -> str:
        end = "" if math.isinf(self.end_ms) else f"{plain_decimal(self.end_ms)}ms"
        return f"window={plain_decimal(self.start_ms)}ms:{end}"

    def apply(self, batches: Iterator[RowBatch], incoming: Incoming) -> Iterator[RowBatch]:
        kept: set[int] = set()  # named sessions within; any other has one row
        for batch in batches:
            is_first = batch.turn == 0
            if np.isnan(batch.timestamp_ms[is_first]).any():
                raise refusal(self, "needs an arrival time in the first row of each session")
            since_ms = batch.timestamp_ms - incoming.origin_ms
            is_kept = is_first & (since_ms >= self.start_ms) & (since_ms < self.end_ms)
            for at, name in enumerate(batch.session_names):
                if name is not None:
                    session = int(batch.session[at])
                    if is_kept[at]:
                        kept.add(session)
                    elif not is_first[at]:
                        is_kept[at] = session in kept
            yield take(batch, np.flatnonzero(is_kept))
