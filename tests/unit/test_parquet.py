"""Parquet files as traces; and what is said where pyarrow is missing."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.errors import TraceError, UsageError
from mocker_replay.trace import concatenate, open_trace
from mocker_replay.trace.decompression import TextLimit
from mocker_replay.trace.parquet import ParquetLines


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def test_a_table_with_the_columns_of_mooncake(tmp_path: Path) -> None:
    columns = {
        "timestamp": [0.5, 7.0, 9.0],
        "input_length": [8, 5, None],
        "output_length": [2, 3, 0],
        "hash_ids": [[1, 2], [2**62], [5]],
        "session_id": [None, "a", "a"],
    }
    path = write(tmp_path / "trace.bin", columns, row_group_size=2)
    with open_trace(path, trace_format="auto", trace_block_size=8) as source:
        facts, batch = source.scan(), concatenate(list(source.batches(2)))
    assert (facts.format, facts.name, batch.lines.tolist()) == ("mooncake", "trace.bin", [1, 2, 3])
    assert (batch.input_tokens.tolist(), batch.session_names) == ([8, 5, 8], [None, "a", "a"])
    assert batch.hash_ids.tolist() == [1, 2**62, 5]


def test_times_of_a_table_keep_their_digits(tmp_path: Path) -> None:
    start = datetime.datetime(2023, 11, 16, 18, 17, 3, 979961)
    columns = {
        "TIMESTAMP": [start, start + datetime.timedelta(microseconds=1)],
        "ContextTokens": [5, 6],
        "GeneratedTokens": [1, 2],
    }
    with open_trace(write(tmp_path / "a.parquet", columns), trace_format="auto") as source:
        facts, batch = source.scan(), concatenate(list(source.batches()))
    assert (facts.format, batch.timestamp_ms.tolist(), batch.lines.tolist()) == ("azure", [0.0, 0.001], [1, 2])


def test_faults_name_the_row(tmp_path: Path) -> None:
    columns = {"Timestamp": [1.5, 2.5], "Request tokens": [3, -1], "Response tokens": [1, None]}
    path = write(tmp_path / "a.parquet", columns)
    with open_trace(path, trace_format="auto") as source, pytest.raises(TraceError) as caught:
        source.scan()
    assert [(fault.line, fault.field) for fault in caught.value.faults] == [
        (2, "Request tokens"),
        (2, "Response tokens"),
    ]


def test_what_is_no_parquet_after_all(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"timestamp": [1]})
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TraceError, match="cannot be read as Parquet"):
        open_trace(path)


def test_a_table_that_grows_out_of_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", {"hash_ids": [[7] * 1000] * 2000})
    monkeypatch.setattr("mocker_replay.trace.decompression.MIN_SUSPECT_BYTES", 1 << 20)
    file = ParquetLines(str(path), TextLimit())
    with pytest.raises(TraceError, match="like a decompression bomb"):
        list(file.blocks(100))
    file.close()


@pytest.mark.parametrize("paths", [("a", "a"), ("-",)])
def test_it_is_read_alone_and_from_a_file(tmp_path: Path, paths: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"PAR1")
    with (tmp_path / "a").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UsageError, match="is read alone, and not from standard input"):
            open_trace(paths)


def test_without_pyarrow_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"which needs pyarrow: pip install 'mocker-replay\[parquet\]'"):
        open_trace(tmp_path / "a")
