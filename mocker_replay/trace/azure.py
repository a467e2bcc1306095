"""The Azure LLM inference traces: CSV of `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.

Decides how dates and times are read: as whole ticks of 100 ns, from which the earliest is subtracted before anything
becomes a float, so that differences between arrivals are exact. Never repairs a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from mocker_replay.trace.base import MAX_TOKENS, Float64s
from mocker_replay.trace.csv_table import CsvTable, whole_number
from mocker_replay.trace.datetimes import TICKS_PER_MS, DateTimes, text_of_ticks
from mocker_replay.trace.faults import FaultList
from mocker_replay.trace.flat import FlatColumns, FlatRules, unknown_text
from mocker_replay.trace.line_file import Lines

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class AzureFormat:
    """See FlatFormat."""

    name = "azure"
    timestamp_unit: Final = "datetime"
    has_hash_ids = False
    tells_failures = False

    def reading(self, file: Lines, rules: FlatRules, faults: FaultList) -> AzureReading:
        return AzureReading(file, faults)

    def to_ms(self, times: Any, origin: Any) -> Float64s:
        since: Float64s = (times - origin) / TICKS_PER_MS
        return since

    def origin_text(self, origin: Any) -> str:
        return text_of_ticks(int(origin))


class AzureReading:
    """See FlatReading."""

    def __init__(self, file: Lines, faults: FaultList) -> None:
        self._faults = faults
        self._table = CsvTable(file, COLUMNS, (), faults)
        self._datetimes = DateTimes()
        self.num_failed = 0

    def columns(self, max_rows: int) -> Iterator[FlatColumns]:
        for block in self._table.blocks(max_rows):
            kept = [row for line, values in block if (row := self._row(line, values)) is not None]
            lines, ticks, inputs, outputs = (list(column) for column in zip(*kept, strict=True)) if kept else ([],) * 4
            yield FlatColumns(
                lines=np.array(lines, np.int64),
                times=np.array(ticks, np.int64),
                input_tokens=np.array(inputs, np.int64),
                output_tokens=np.array(outputs, np.int64),
            )

    def finish(self) -> list[str]:
        return [unknown_text(self._table.unknown)] if self._table.unknown else []

    def _row(self, line: int, values: list[str]) -> tuple[int, int, int, int] | None:
        ticks = self._datetimes.ticks(values[0])
        inputs = whole_number(values[1], 1, MAX_TOKENS)
        outputs = whole_number(values[2], 0, MAX_TOKENS)
        if isinstance(ticks, int) and inputs is not None and outputs is not None:
            return line, ticks, inputs, outputs
        if isinstance(ticks, str):
            self._faults.add(line, COLUMNS[0], ticks, values[0].encode())
        if inputs is None:
            self._faults.add(line, COLUMNS[1], f"must be an integer from 1 to {MAX_TOKENS}", values[1].encode())
        if outputs is None:
            self._faults.add(line, COLUMNS[2], f"must be an integer from 0 to {MAX_TOKENS}", values[2].encode())
        return None
