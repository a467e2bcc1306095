"""Parquet files made into lines, so that every line format can be read from one.

Decides how a row becomes a line: a JSON object of the columns that are not null, or, with the columns of a CSV format,
a row of that table. The line of a row is its place in the file, from 1. Never knows what a column means. Needs pyarrow,
which is no dependency of the package.
"""

from __future__ import annotations

import csv
import importlib
import io
import os
from collections.abc import Iterator
from typing import Any, Final

import orjson
from blake3 import blake3

from mocker_replay.errors import UsageError
from mocker_replay.trace.decompression import DecompressionError, TextLimit
from mocker_replay.trace.detection import TABLES
from mocker_replay.trace.faults import whole_file_error
from mocker_replay.trace.line_file import LineBlock

_BATCH_ROWS: Final = 1024


class ParquetLines:
    """See Lines. The digest is that of the lines made."""

    def __init__(self, path: str, limit: TextLimit) -> None:
        arrow, self._parquet = _libraries(path)
        self._errors = (arrow.ArrowException, OSError, ValueError)
        self._compute = importlib.import_module("pyarrow.compute")
        self._arrow = arrow
        self._limit = limit
        self.path = self.shown_path = path
        self.name = os.path.basename(path)
        self.digest = ""
        try:
            self.least_bytes = self._stored_bytes = os.path.getsize(path)
            self._file = self._parquet.ParquetFile(path)
        except self._errors as exc:
            raise self._unreadable(exc) from exc
        names = list(self._file.schema_arrow.names)
        self._columns = [name for name in names if names.count(name) == 1]
        if len(self._columns) != len(names):
            self.close()
            raise whole_file_error(path, "must not have two columns of one name")
        self._is_table = any(set(columns) <= set(names) for columns in TABLES.values())

    def close(self) -> None:
        self._file.close()

    def locate(self, line: int) -> tuple[str, int]:
        return self.shown_path, line

    def head(self, size: int) -> bytes:
        block = next(self._lines(min(_BATCH_ROWS, 16)), None)
        return b"" if block is None else b"\n".join(block.lines)[:size]

    def blocks(self, max_lines: int) -> Iterator[LineBlock]:
        hasher = blake3()
        num_text = 0
        for block in self._lines(max_lines):
            for line in block.lines:
                hasher.update(line)
                hasher.update(b"\n")
                num_text += len(line) + 1
            try:
                self._limit.require(num_text, self._stored_bytes)
            except DecompressionError as exc:
                raise whole_file_error(self.shown_path, str(exc)) from exc
            yield block
        self.digest = hasher.hexdigest()

    def _lines(self, max_lines: int) -> Iterator[LineBlock]:
        if self._is_table:
            yield LineBlock(0, _csv_line(self._columns))
        line = 1
        try:
            for batch in self._file.iter_batches(batch_size=max_lines, use_threads=False):
                rows = self._rows(batch)
                if rows:
                    yield LineBlock(line, b"\n".join(rows))
                line += len(rows)
        except self._errors as exc:
            raise self._unreadable(exc) from exc

    def _rows(self, batch: Any) -> list[bytes]:
        """Each row as a line; a column of times as text, with all its digits."""
        columns = [self._values(batch.column(at)) for at in range(batch.num_columns)]
        if self._is_table:
            texts = [["" if value is None else str(value) for value in column] for column in columns]
            return [_csv_line(list(row)) for row in zip(*texts, strict=True)]
        return [
            orjson.dumps(
                {name: value for name, value in zip(self._columns, row, strict=True) if value is not None}, default=str
            )
            for row in zip(*columns, strict=True)
        ]

    def _values(self, column: Any) -> list[Any]:
        types = self._arrow.types
        if types.is_timestamp(column.type) or types.is_date(column.type):
            column = self._compute.cast(column, self._arrow.string())
        return list(column.to_pylist())

    def _unreadable(self, exc: BaseException) -> Exception:
        return whole_file_error(self.shown_path, f"cannot be read as Parquet: {str(exc).splitlines()[0]}")


def _csv_line(values: list[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue().encode()


def _libraries(path: str) -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError(
            f"{path}: is a Parquet file, which needs pyarrow: pip install 'mocker-replay[parquet]'"
        ) from None
