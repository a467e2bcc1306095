"""What a transform is: one step from row batches to row batches.

Decides the protocol of a step and how its numbers are written. Never knows a single transform.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final, Protocol

import numpy as np
from msgspec import Struct

from mocker_replay.errors import Fault, UsageError
from mocker_replay.trace.base import Float64s, RowBatch

WHERE: Final = "transforms"  # how the setting is called where nobody says otherwise
# Times that are computed are whole nanoseconds: few digits, so that every parser reads them back alike.
_DIGITS_MS: Final = 6
_LARGEST_ROUNDED_MS: Final = 2.0**53 / 10**_DIGITS_MS


class Incoming(Struct, frozen=True):
    """What a step has to know of the rows that come in, before the first one."""

    origin_ms: float  # the 0 of the trace's clock in these timestamps: the earliest arrival of the trace
    trace_block_size: int  # prompt tokens a hash id stands for


class Step(Protocol):
    """One transform, ready to run. Rows keep line and session of their source; later turns follow earlier ones."""

    starts_at_zero: ClassVar[bool]  # its arrivals count from 0, whatever the clock of the trace was

    @property
    def text(self) -> str:
        """Canonical: the same work has the same text."""

    def apply(self, batches: Iterator[RowBatch], incoming: Incoming) -> Iterator[RowBatch]:
        """The rows that come out.

        Raises:
            UsageError: the rows do not go with this transform.
        """


def refusal(step: Step, rule: str) -> UsageError:
    """This trace cannot be transformed so."""
    return UsageError.of([Fault(WHERE, 0, "", step.text, rule)])


def rounded_ms(times_ms: Float64s) -> Float64s:
    """Computed times as whole nanoseconds, where float64 can tell those apart."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(np.abs(times_ms) < _LARGEST_ROUNDED_MS, np.round(times_ms, _DIGITS_MS), times_ms) + 0.0
