"""Arrivals and think times, scaled or capped.

Decides new times, in whole nanoseconds, and keeps the order of arrivals; arrivals count from 0 afterwards. Later turns
give up the timestamp they were recorded at: their think time is what counts. Never drops a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from msgspec import Struct, structs

from mocker_replay.config.decimals import plain_decimal
from mocker_replay.trace.base import Float64s, RowBatch
from mocker_replay.trace.transforms.rows import held
from mocker_replay.trace.transforms.step import Incoming, Step, refusal, rounded_ms


def _moved(step: Step, batch: RowBatch, timestamp_ms: Float64s, delay_ms: Float64s) -> RowBatch:
    """The batch at other times."""
    arrivals_ms = np.where(batch.turn == 0, timestamp_ms, np.nan)
    if np.isinf(arrivals_ms).any() or np.isinf(delay_ms).any():
        raise refusal(step, "takes times beyond the range of float64")
    return structs.replace(batch, timestamp_ms=arrivals_ms, delay_ms=delay_ms)


class ScaleArrivals(Struct, frozen=True):
    """All arrivals at `factor` times their distance from the first one: 2 is half the rate."""

    factor: float

    starts_at_zero: ClassVar[bool] = True

    @property
    def text(self) -> str:
        return f"scale-arrivals={plain_decimal(self.factor)}"

    def apply(self, batches: Iterator[RowBatch], incoming: Incoming) -> Iterator[RowBatch]:
        for batch in batches:
            with np.errstate(over="ignore"):
                scaled_ms = rounded_ms((batch.timestamp_ms - incoming.origin_ms) * self.factor)
            yield _moved(self, batch, scaled_ms, batch.delay_ms)


class ScaleDelays(Struct, frozen=True):
    """All think times times `factor`."""

    factor: float

    starts_at_zero: ClassVar[bool] = False

    @property
    def text(self) -> str:
        return f"scale-delays={plain_decimal(self.factor)}"

    def apply(self, batches: Iterator[RowBatch], incoming: Incoming) -> Iterator[RowBatch]:
        for batch in batches:
            with np.errstate(over="ignore"):
                scaled_ms = rounded_ms(batch.delay_ms * self.factor)
            yield _moved(self, batch, batch.timestamp_ms, scaled_ms)


class CapGap(Struct, frozen=True):
    """No gap between two arrivals longer than `gap_ms`: what comes behind a longer one moves up."""

    gap_ms: float

    starts_at_zero: ClassVar[bool] = True

    @property
    def text(self) -> str:
        return f"cap-gap-ms={plain_decimal(self.gap_ms)}"

    def apply(self, batches: Iterator[RowBatch], incoming: Incoming) -> Iterator[RowBatch]:
        for rows in held(batches):
            arrives = np.flatnonzero((rows.turn == 0) & ~np.isnan(rows.timestamp_ms))
            order = arrives[np.argsort(rows.timestamp_ms[arrives], kind="stable")]
            since_ms = rows.timestamp_ms[order] - incoming.origin_ms
            # How far each arrival moves up in all; without a long gap before it, nothing of it changes.
            excess_ms = np.maximum(np.diff(since_ms, prepend=0.0) - self.gap_ms, 0.0)
            capped_ms = np.full(len(rows), np.nan)
            capped_ms[order] = np.maximum.accumulate(rounded_ms(since_ms - np.cumsum(excess_ms)))
            yield _moved(self, rows, capped_ms, rows.delay_ms)


class CapDelay(Struct, frozen=True):
    """No think time longer than `delay_ms`."""

    delay_ms: float

    starts_at_zero: ClassVar[bool] = False

    @property
    def text(self) -> str:
        return f"cap-delay-ms={plain_decimal(self.delay_ms)}"

    def apply(self, batches: Iterator[RowBatch], incoming: Incoming) -> Iterator[RowBatch]:
        for batch in batches:
            yield _moved(self, batch, batch.timestamp_ms, np.minimum(batch.delay_ms, self.delay_ms))
