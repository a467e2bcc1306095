"""What a replay gives back: summary, per-request columns and records, telemetry, exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt
from msgspec import Struct

from mocker_replay.errors import ExitCode
from mocker_replay.report.facts import RunFacts


class ReplayResult(Struct, frozen=True):
    """One finished or cut run."""

    summary: dict[str, Any]  # names and definitions of docs/metrics.md
    columns: Mapping[str, npt.NDArray[Any]]  # one entry per trace row; times in ms, NaN where there is none
    facts: RunFacts
    telemetry: dict[str, Any] | None
    warnings: tuple[str, ...]
    exit_code: ExitCode

    def records(self) -> Iterator[dict[str, Any]]:
        """Per-request records in trace row order, of the requests that ended."""
        from mocker_replay.report.records import iter_records

        return iter_records(self.columns, self.facts)

    def record_lines(self) -> Iterator[bytes]:
        """The same as JSON lines, some at a time."""
        from mocker_replay.report.records import record_lines

        return record_lines(self.columns, self.facts)
