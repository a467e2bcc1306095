"""The BurstGPT traces: CSV of calls to a service, with the time in seconds and the tokens of request and response.

Decides which rows are failed calls (no response token) and what becomes of them. The session of newer releases is not
replayed: each row arrives when it did. Never repairs a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from mocker_replay.trace.base import MAX_TOKENS, Float64s
from mocker_replay.trace.csv_table import CsvTable, seconds_to_ms, whole_number
from mocker_replay.trace.faults import FaultList
from mocker_replay.trace.flat import FlatColumns, FlatRules, unknown_text
from mocker_replay.trace.line_file import Lines

COLUMNS: Final = ("Timestamp", "Request tokens", "Response tokens")
_OPTIONAL: Final = ("Total tokens", "Model", "Session ID", "Elapsed time", "Log Type")
_MAX_MODELS: Final = 8  # named in a warning
_MAX_NAME_CHARS: Final = 60


class BurstGptFormat:
    """See FlatFormat."""

    name = "burstgpt"
    timestamp_unit: Final = "s"
    has_hash_ids = False
    tells_failures = True

    def reading(self, file: Lines, rules: FlatRules, faults: FaultList) -> BurstGptReading:
        return BurstGptReading(file, rules, faults)

    def to_ms(self, times: Any, origin: Any) -> Float64s:
        given: Float64s = times
        return given

    def origin_text(self, origin: Any) -> str:
        return f"{origin / 1000.0:.15g} s"


class BurstGptReading:
    """See FlatReading."""

    def __init__(self, file: Lines, rules: FlatRules, faults: FaultList) -> None:
        self._rules = rules
        self._faults = faults
        self._table = CsvTable(file, COLUMNS, _OPTIONAL, faults)
        self._models: dict[str, None] = {}  # in order of first appearance
        self.num_failed = 0

    def columns(self, max_rows: int) -> Iterator[FlatColumns]:
        for block in self._table.blocks(max_rows):
            kept = [row for line, values in block if (row := self._row(line, values)) is not None]
            lines, times, inputs, outputs = (list(column) for column in zip(*kept, strict=True)) if kept else ([],) * 4
            yield FlatColumns(
                lines=np.array(lines, np.int64),
                times=np.array(times, np.float64),
                input_tokens=np.array(inputs, np.int64),
                output_tokens=np.array(outputs, np.int64),
            )

    def finish(self) -> list[str]:
        found = [unknown_text(self._table.unknown)] if self._table.unknown else []
        if len(self._models) > 1:
            names = ", ".join(list(self._models)[:_MAX_MODELS]) + (
                " and more" if len(self._models) > _MAX_MODELS else ""
            )
            found.append(f"calls of several models are replayed by one engine: {names}")
        return found

    def _row(self, line: int, values: list[str]) -> tuple[int, float, int, int] | None:
        time_ms = seconds_to_ms(values[0])
        lowest = 1 if self._rules.failed_rows == "keep" else 0
        inputs = whole_number(values[1], lowest, MAX_TOKENS)
        outputs = whole_number(values[2], 0, MAX_TOKENS)
        if time_ms is None:
            self._faults.add(line, COLUMNS[0], "must be a finite number of seconds", values[0].encode())
        if inputs == 0 and outputs != 0:  # a call that failed may have none
            inputs, lowest = None, 1
        if inputs is None:
            self._faults.add(line, COLUMNS[1], f"must be an integer from {lowest} to {MAX_TOKENS}", values[1].encode())
        if outputs is None:
            self._faults.add(line, COLUMNS[2], f"must be an integer from 0 to {MAX_TOKENS}", values[2].encode())
        if time_ms is None or inputs is None or outputs is None or not self._is_sum(line, values[3], inputs + outputs):
            return None
        if len(self._models) <= _MAX_MODELS and values[4]:
            self._models[values[4][:_MAX_NAME_CHARS]] = None
        if outputs == 0:
            self.num_failed += 1
            if self._rules.failed_rows == "refuse":
                self._faults.add(
                    line, COLUMNS[2], "must not be 0, a failed call, with --failed-rows refuse", values[2].encode()
                )
            if self._rules.failed_rows != "keep":
                return None
        return line, time_ms, inputs, outputs

    def _is_sum(self, line: int, text: str, total: int) -> bool:
        """A table without totals has nothing to hold the parts against."""
        if text == "" or whole_number(text, 0, 2 * MAX_TOKENS) == total:
            return True
        self._faults.add(
            line, "Total tokens", f"must be {total}, the sum of request and response tokens", text.encode()
        )
        return False
