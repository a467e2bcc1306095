"""Tables of comma-separated values, line by line, for the formats that are such tables.

Decides how a header and rows are read, in one file or several that may each repeat the header, and which lines are no
rows. A quoted value ends in its line. Never knows what a column means.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Final

from mocker_replay.trace.exact_json import is_blank
from mocker_replay.trace.faults import FaultList
from mocker_replay.trace.line_file import LineBlock, Lines

_NUMBER: Final = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
MAX_NUMBER_CHARS: Final = 64
BOM: Final = b"\xef\xbb\xbf"


class CsvTable:
    """One reading of a table: its rows as texts in the order of the columns that were asked for."""

    def __init__(self, file: Lines, required: Sequence[str], optional: Sequence[str], faults: FaultList) -> None:
        self._file = file
        self._required = tuple(required)
        self._wanted = (*required, *optional)
        self._faults = faults
        self._places: list[int] = []  # of the wanted columns in a row, -1 where there is none
        self._num_columns = 0
        self.unknown: set[str] = set()

    def blocks(self, max_rows: int) -> Iterator[list[tuple[int, list[str]]]]:
        """Rows with their lines; a column that the table does not have is "" in each."""
        has_header = False
        for block in self._file.blocks(max_rows):
            start = 0
            if not has_header:
                start = next((at for at, text in enumerate(block.lines) if not is_blank(text)), len(block.lines))
                if start == len(block.lines):
                    continue
                if not self._read_header(block.lines[start], block.first_line + start):
                    return
                has_header = True
                start += 1
            elif self._is_header_of_next(block):
                if not self._read_header(block.lines[0], block.first_line):
                    return
                start = 1
            found = []
            for at in range(start, len(block.lines)):
                values = self._values(block.lines[at], block.first_line + at)
                if values is not None:
                    found.append((block.first_line + at, values))
            yield found

    def _is_header_of_next(self, block: LineBlock) -> bool:
        """True for the first line of a further file that names the columns once more."""
        if self._file.locate(block.first_line)[1] != 1:
            return False
        return all(name.encode() in block.lines[0] for name in self._required)

    def _read_header(self, text: bytes, line: int) -> bool:
        if text.startswith(BOM):
            self._faults.add(line, "", "must not begin with a byte-order mark")
            return False
        names = self._split(text, line)
        if names is None:
            return False
        names = [name.strip() for name in names]
        missing = [name for name in self._required if name not in names]
        twice = sorted({name for name in self._wanted if names.count(name) > 1})
        for name in missing:
            self._faults.add(line, name, "is required as a column", text[:200])
        for name in twice:
            self._faults.add(line, name, "must not be given twice", text[:200])
        self._num_columns = len(names)
        self._places = [names.index(name) if name in names else -1 for name in self._wanted]
        self.unknown |= {name for name in names if name and name not in self._wanted}
        return not missing and not twice

    def _values(self, text: bytes, line: int) -> list[str] | None:
        fields = self._split(text, line)
        if fields is None:
            return None
        if len(fields) != self._num_columns:
            if not is_blank(text):
                rule = f"must have {self._num_columns} values, one a column, but has {len(fields)}"
                self._faults.add(line, "", rule, text[:200])
            return None
        if self._num_columns == 1 and is_blank(text):
            return None
        return [fields[at] if at >= 0 else "" for at in self._places]

    def _split(self, text: bytes, line: int) -> list[str] | None:
        if text.endswith(b"\r"):
            text = text[:-1]
        try:
            decoded = text.decode()
        except UnicodeDecodeError as bad:
            start = max(0, bad.start - 10)
            self._faults.add(line, "", f"must be UTF-8, but byte {bad.start + 1} is not", text[start:][:20])
            return None
        if "\0" in decoded:
            self._faults.add(line, "", f"must be text, but byte {text.index(0) + 1} is NUL", text[:200])
            return None
        if '"' not in decoded:
            return decoded.split(",")
        try:
            (fields,) = csv.reader([decoded], strict=True)
        except (csv.Error, ValueError):  # also a value of more than 128 KiB
            self._faults.add(line, "", "must be comma-separated values; a quoted one ends in its line", text[:200])
            return None
        return fields


def whole_number(text: str, low: int, high: int) -> int | None:
    """The integer a value is, None if it is none or out of range."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        return None
    value = int(text)
    return value if low <= value <= high else None


def seconds_to_ms(text: str) -> float | None:
    """Decimal seconds as ms, rounded once; None if the text is no finite number."""
    if len(text) > MAX_NUMBER_CHARS or not _NUMBER.fullmatch(text):
        return None
    if "e" in text or "E" in text:
        try:
            value = float(Decimal(text).scaleb(3))
        except (InvalidOperation, OverflowError):
            return None
    else:
        value = float(f"{text}e3")
    return value + 0.0 if -1e300 < value < 1e300 else None
