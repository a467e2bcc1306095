"""The Azure LLM inference traces: CSV of `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.

Decides how dates and times are read: as whole ticks of 100 ns, from which the earliest is subtracted before anything
becomes a float, so that differences between arrivals are exact. Never repairs a row.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from mocker_replay.trace.base import MAX_TOKENS, Float64s
from mocker_replay.trace.csv_table import CsvTable, whole_number
from mocker_replay.trace.faults import FaultList
from mocker_replay.trace.flat import FlatColumns, FlatRules, unknown_text
from mocker_replay.trace.line_file import Lines

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
TICKS_PER_S: Final = 10_000_000
_TICKS_PER_MS: Final = 10_000.0
_MINUTE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):", re.ASCII)
_MINUTE_CHARS: Final = len("2023-11-16 18:17:")
_REST: Final = re.compile(r"(\d\d)(?:\.(\d{1,9}))?(?:(Z)|([+-])(\d\d):?(\d\d))?", re.ASCII)
_MAX_KNOWN_MINUTES: Final = 4096
_RULE: Final = "must be a date and time such as 2023-11-16 18:17:03.9799600, at most seven digits of a second"
_OFFSET_RULE: Final = "must have an offset from UTC in all rows or in none"


class AzureFormat:
    """See FlatFormat."""

    name = "azure"
    timestamp_unit: Final = "datetime"
    has_hash_ids = False
    tells_failures = False

    def reading(self, file: Lines, rules: FlatRules, faults: FaultList) -> AzureReading:
        return AzureReading(file, faults)

    def to_ms(self, times: Any, origin: Any) -> Float64s:
        since: Float64s = (times - origin) / _TICKS_PER_MS
        return since

    def origin_text(self, origin: Any) -> str:
        seconds, ticks = divmod(int(origin), TICKS_PER_S)
        days, seconds = divmod(seconds, 86_400)
        date = datetime.date.fromordinal(days)
        return f"{date} {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{ticks:07}"


class AzureReading:
    """See FlatReading."""

    def __init__(self, file: Lines, faults: FaultList) -> None:
        self._faults = faults
        self._table = CsvTable(file, COLUMNS, (), faults)
        self._minutes: dict[str, int] = {}  # their ticks; rows of one minute stand together
        self._has_offset: bool | None = None
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
        ticks = self._ticks(line, values[0])
        inputs = whole_number(values[1], 1, MAX_TOKENS)
        outputs = whole_number(values[2], 0, MAX_TOKENS)
        if ticks is not None and inputs is not None and outputs is not None:
            return line, ticks, inputs, outputs
        if inputs is None:
            self._faults.add(line, COLUMNS[1], f"must be an integer from 1 to {MAX_TOKENS}", values[1])
        if outputs is None:
            self._faults.add(line, COLUMNS[2], f"must be an integer from 0 to {MAX_TOKENS}", values[2])
        return None

    def _ticks(self, line: int, text: str) -> int | None:
        """100 ns since the first day of the year 1, in UTC if an offset is given."""
        minute = self._minutes.get(text[:_MINUTE_CHARS])
        if minute is None:
            minute = minute_ticks(text[:_MINUTE_CHARS])
            if minute is not None:
                if len(self._minutes) >= _MAX_KNOWN_MINUTES:
                    self._minutes.clear()
                self._minutes[text[:_MINUTE_CHARS]] = minute
        rest = _REST.fullmatch(text, _MINUTE_CHARS)
        if minute is None or rest is None or int(rest[1]) > 59 or (rest[2] or "")[7:].strip("0"):
            self._faults.add(line, COLUMNS[0], _RULE, text)
            return None
        has_offset = rest[3] is not None or rest[4] is not None
        if self._has_offset is None:
            self._has_offset = has_offset
        if has_offset != self._has_offset:
            self._faults.add(line, COLUMNS[0], _OFFSET_RULE, text)
            return None
        ticks = minute + int(rest[1]) * TICKS_PER_S + int((rest[2] or "")[:7].ljust(7, "0"))
        if rest[4] is not None:
            offset_s = int(rest[5]) * 3600 + int(rest[6]) * 60
            ticks -= (offset_s if rest[4] == "+" else -offset_s) * TICKS_PER_S
        return ticks


def minute_ticks(text: str) -> int | None:
    """Ticks at the start of a minute, None for what is none."""
    found = _MINUTE.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute = map(int, found.groups())
    if hour > 23 or minute > 59:
        return None
    try:
        days = datetime.date(year, month, day).toordinal()
    except ValueError:
        return None
    return (days * 86_400 + hour * 3600 + minute * 60) * TICKS_PER_S
