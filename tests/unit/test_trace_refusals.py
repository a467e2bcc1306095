"""Everything a Mooncake reader refuses, with line, field, value and rule."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mocker_replay.errors import ExitCode, Fault, TraceError, UsageError
from mocker_replay.trace import open_trace
from mocker_replay.trace.faults import MAX_LISTED, shown

ROW = {"timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]}


def row(**fields: Any) -> dict[str, Any]:
    """A legal row of two blocks of 4 tokens, changed; a field given as ... is left out."""
    return {name: value for name, value in (ROW | fields).items() if value is not ...}


def faults_of(tmp_path: Path, *rows: object, **options: Any) -> list[Fault]:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in rows)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with open_trace(path, trace_block_size=4, **options) as trace, pytest.raises(TraceError) as caught:
        trace.scan()
    assert caught.value.exit_code == ExitCode.USAGE
    assert all(fault.file == str(path) for fault in caught.value.faults)
    return list(caught.value.faults)


INT_IN = "must be an integer from {} to {}".format
ONE_FAULT = [
    # field as in the file, the row, field and value of the fault, the rule
    (row(timestamp="1"), "timestamp", '"1"', "must be a finite number"),
    (row(timestamp=True), "timestamp", "true", "must be a finite number"),
    ('{"timestamp": NaN, "output_length": 1, "hash_ids": [1]}', "timestamp", "NaN", "must be a finite number"),
    (
        '{"delay": -Infinity, "timestamp": 1, "output_length": 1, "hash_ids": [1]}',
        "delay", "-Infinity", "must be a finite number",
    ),
    ('{"timestamp": 1, "output_length": 1, "hash_ids": [1, NaN]}', "hash_ids[1]", "NaN", INT_IN(0, 2**64 - 1)),
    (
        '{"timestamp": 1, "output_length": 1, "hash_ids": [1], "session_id": "\\ud800"}',
        "session_id", '"\\ud800"', "must be valid Unicode",
    ),
    ('{"timestamp": 1e400, "output_length": 1, "hash_ids": [1]}', "timestamp", "1e400", "must be a finite number"),
    (row(timestamp=...), "timestamp", "", "is required for the first turn of a session in an open loop"),
    (row(timestamp=None), "timestamp", "", "is required for the first turn of a session in an open loop"),
    (row(input_length=0), "input_length", "0", INT_IN(1, 2**31 - 1)),
    (row(input_length=-1), "input_length", "-1", INT_IN(1, 2**31 - 1)),
    (row(input_length=8.0), "input_length", "8.0", INT_IN(1, 2**31 - 1)),
    (row(input_length="8"), "input_length", '"8"', INT_IN(1, 2**31 - 1)),
    (row(input_length=True), "input_length", "true", INT_IN(1, 2**31 - 1)),
    (row(input_length=10**10), "input_length", "10000000000", INT_IN(1, 2**31 - 1)),
    (row(output_length=10**10), "output_length", "10000000000", INT_IN(0, 2**31 - 1)),
    (row(output_length=2**64), "output_length", "18446744073709551616", INT_IN(0, 2**31 - 1)),
    (row(output_length=-1), "output_length", "-1", INT_IN(0, 2**31 - 1)),
    ('{"timestamp": 0, "output_length": -0, "hash_ids": [1]}', "output_length", "-0.0", INT_IN(0, 2**31 - 1)),
    (row(output_length=...), "output_length", "", "is required"),
    (row(output_length=None), "output_length", "", "is required"),
    (row(output_tokens=[2], output_length=...), "output_tokens", "[2]", INT_IN(0, 2**31 - 1)),
    (row(hash_ids=...), "hash_ids", "", "is required: one id per prompt block of 4 tokens"),
    (row(hash_ids=None), "hash_ids", "", "is required: one id per prompt block of 4 tokens"),
    (row(hash_ids=5), "hash_ids", "5", "must be a list of integers"),
    (row(hash_ids={"a": 1}), "hash_ids", '{"a": 1}', "must be a list of integers"),
    (row(hash_ids=[1, -2]), "hash_ids[1]", "-2", INT_IN(0, 2**64 - 1)),
    (row(hash_ids=[1.0, 2]), "hash_ids[0]", "1.0", INT_IN(0, 2**64 - 1)),
    (row(hash_ids=[1, 2**64]), "hash_ids[1]", "18446744073709551616", INT_IN(0, 2**64 - 1)),
    (row(hash_ids=[1, True]), "hash_ids[1]", "true", INT_IN(0, 2**64 - 1)),
    (row(hash_ids=[1, None]), "hash_ids[1]", "null", INT_IN(0, 2**64 - 1)),
    (row(hash_ids=["a", 1]), "hash_ids[0]", '"a"', INT_IN(0, 2**64 - 1)),
    (
        row(hash_ids=[1]), "input_length", "8",
        "must not exceed the 4 tokens of 1 hash_ids at trace block size 4 (block size 8 would fit)",
    ),
    (row(hash_ids=[]), "input_length", "8", "must not exceed the 0 tokens of 0 hash_ids at trace block size 4"),
    (
        row(hash_ids=[], input_length=...), "input_length", "",
        "is absent, and 0 hash_ids of 4 tokens give no length from 1 to 2147483647",
    ),
    (row(session_id=5), "session_id", "5", "must be a string"),
    (row(request_id=5), "request_id", "5", "must be a string"),
    (row(policy_class=[]), "policy_class", "[]", "must be a string"),
    (row(priority=2**31), "priority", "2147483648", INT_IN(-(2**31), 2**31 - 1)),
    (row(priority=1.0), "priority", "1.0", INT_IN(-(2**31), 2**31 - 1)),
    (row(strict_priority=-1), "strict_priority", "-1", INT_IN(0, 2**32 - 1)),
    (row(output_token_ids=[5]), "output_token_ids", "", "must hold output_length = 2 ids, but holds 1"),
    (row(output_token_ids=[5, 2**32]), "output_token_ids[1]", "4294967296", INT_IN(0, 2**32 - 1)),
    (row(output_token_ids="ab"), "output_token_ids", '"ab"', "must be a list of integers"),
    (row(cancel_after_ms=-0.5), "cancel_after_ms", "-0.5", "must be a finite number of at least 0"),
    (row(cancel_after_ms=-1), "cancel_after_ms", "-1", "must be a finite number of at least 0"),
    (row(cancel_after_ms="5"), "cancel_after_ms", '"5"', "must be a finite number of at least 0"),
    (row(cancel_after_ms=True), "cancel_after_ms", "true", "must be a finite number of at least 0"),
    (
        '{"timestamp": 1, "output_length": 1, "hash_ids": [1], "cancel_after_ms": Infinity}',
        "cancel_after_ms", "Infinity", "must be a finite number of at least 0",
    ),
    (
        '{"timestamp": 1, "output_length": 1, "hash_ids": [1], "cancel_after_ms": 5, "cancel_after_ms": 5}',
        "cancel_after_ms", "5", "must not be given twice",
    ),
    (row(delay="1"), "delay", '"1"', "must be a finite number"),
    (row(delay=5), "delay", "5", "must be 0 or absent on the first turn of session 'request_1'"),
    (row(session_id="a", delay=5), "delay", "5", "must be 0 or absent on the first turn of session 'a'"),
    (row(created_time=0), "created_time", "0", "is the same field as timestamp"),
    (row(created_time=None), "created_time", "", "is the same field as timestamp"),
    (
        '{"timestamp": 0, "timestamp": 5, "output_length": 4, "hash_ids": [1]}',
        "timestamp", "5", "must not be given twice",
    ),
    (
        '{"timestamp": 0, "output_length": 4, "hash_ids": [1], "hash_i\\u0064s": [2]}',
        "hash_ids", "[2]", "must not be given twice",
    ),
    (
        '{"timestamp": 0, "output_length": 4, "hash_ids": [1], "x": {"hash_ids": 3}, "hash_ids": [2]}',
        "hash_ids", "[2]", "must not be given twice",
    ),
    ("[1,2]", "", "[1,2]", "must be one JSON object"),
    ("null", "", "null", "must be one JSON object"),
    ("17", "", "17", "must be one JSON object"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "field", "value", "rule"), ONE_FAULT)
def test_a_faulty_row_is_named_in_all_its_parts(
    tmp_path: Path, line: object, field: str, value: str, rule: str
) -> None:
    good = row(timestamp=1)
    (fault,) = faults_of(tmp_path, line, good)
    assert (fault.line, fault.field, fault.value, fault.rule) == (1, field, value, rule)
    # The same fault after good rows, a blank line and a CRLF: the line counts every line.
    (late,) = faults_of(tmp_path, row(timestamp=-1), json.dumps(good) + "\r", "  ", line)
    assert (late.line, late.field, late.value) == (4, field, value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"timestamp": 0,', "must be one JSON object: unexpected end of data"),
        ("# hi", "must be one JSON object: unexpected character"),
        (json.dumps(ROW) + " x", "must be one JSON object: unexpected content after document at column"),
        (json.dumps(ROW) * 2, "must be one JSON object: unexpected content after document at column"),
        (json.dumps(ROW)[:-1] + ",}", "must be one JSON object: trailing comma is not allowed"),
        (json.dumps(ROW)[:-1] + ', "x": NaN}', "must be one JSON object: "),
        (json.dumps(ROW)[:-1] + ', "x": "\\ud800"}', "must be one JSON object: "),
        ("\ufeff" + json.dumps(ROW), "must not begin with a byte-order mark"),
        ('{"a": "\udcff"}', "must be UTF-8, but byte 8 is not"),
        ("\x0c" + json.dumps(ROW), "must be one JSON object: "),
        (json.dumps(ROW) + "\0", "must be one JSON object: "),
    ],
)
def test_a_line_that_is_no_json_object_says_why(tmp_path: Path, line: str, message: str) -> None:
    (fault,) = faults_of(tmp_path, row(), line)
    assert (fault.line, fault.field) == (2, "")
    assert fault.rule.startswith(message)


def test_all_faults_of_a_file_are_found_in_one_pass(tmp_path: Path) -> None:
    found = faults_of(
        tmp_path,
        row(timestamp="x", output_length=-1, hash_ids=[1, -1]),
        "{",
        row(session_id="a", timestamp=5),
        row(session_id="a", timestamp=3),
        row(timestamp=...),
        row(hash_ids=[1]),
        '{"timestamp": 1, "timestamp": 2, "output_length": 4, "hash_ids": [1]}',
    )
    assert [(fault.line, fault.field) for fault in found] == [
        (1, "timestamp"),
        (1, "output_length"),
        (1, "hash_ids[1]"),
        (2, ""),
        (4, "timestamp"),
        (5, "timestamp"),
        (6, "input_length"),
        (7, "timestamp"),
    ]


def test_a_faulty_field_causes_no_second_fault(tmp_path: Path) -> None:
    found = faults_of(
        tmp_path,
        row(session_id="a", timestamp="x"),
        row(session_id="a", timestamp=..., delay=3),
        row(session_id="b", timestamp=5, input_length=-1),
        row(session_id="b", timestamp=9),
    )
    assert [(fault.line, fault.field) for fault in found] == [(1, "timestamp"), (3, "input_length")]


def test_a_hundred_faults_are_listed_and_the_rest_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row(output_length=-1)) + "\n" for _ in range(2500)))
    with open_trace(path, trace_block_size=4) as trace, pytest.raises(TraceError) as caught:
        trace.scan()
    assert len(caught.value.faults) == MAX_LISTED
    assert caught.value.omitted == 2500 - MAX_LISTED


SESSION_FAULTS = [
    ([row(session_id="a", timestamp=100), row(session_id="a", timestamp=50)], 2, "timestamp", "must not be before 100"),
    ([row(session_id="a"), row(session_id="a", timestamp=..., delay=-1)], 2, "delay", "must not be negative"),
    ([row(session_id="a"), row(session_id="a", delay=-1)], 2, "delay", "must not be negative"),
    (
        [row(timestamp=-1.7e308, session_id="a"), row(timestamp=1.7e308, session_id="a")],
        2, "timestamp", "must be a finite time after the last one of session 'a'",
    ),
    ([row(), row(session_id="request_1")], 2, "session_id", "must not have the form request_<number>"),
    ([row(session_id="request_7"), row()], 1, "session_id", "must not have the form request_<number>"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "line", "field", "rule"), SESSION_FAULTS)
def test_sessions_that_make_no_sense(
    tmp_path: Path, rows: list[dict[str, Any]], line: int, field: str, rule: str
) -> None:
    (fault,) = faults_of(tmp_path, *rows)
    assert (fault.line, fault.field) == (line, field)
    assert fault.rule.startswith(rule)


def test_a_closed_loop_needs_no_arrivals_but_refuses_negative_ones(tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, row(timestamp=...), row(timestamp=-5), closed_loop=True)
    assert (fault.line, fault.field, fault.value) == (2, "timestamp", "-5")
    (fault,) = faults_of(
        tmp_path,
        row(session_id="a", timestamp=...),
        row(session_id="a", timestamp=5),
        closed_loop=True,
    )
    assert (fault.line, fault.field) == (2, "delay")
    assert fault.rule.startswith("is required: no earlier row of session 'a' has a timestamp")


def test_times_out_of_range(tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, row(timestamp=1e307), timestamp_unit="s")
    assert (fault.line, fault.field, fault.rule) == (1, "timestamp", "must be a finite number of milliseconds")
    (fault,) = faults_of(tmp_path, row(timestamp=-1.7e308), row(timestamp=1.7e308))
    assert (fault.line, fault.field, fault.rule) == (0, "timestamp", "must span a finite time over the trace")


def test_a_fault_shows_times_in_the_unit_of_the_file(tmp_path: Path) -> None:
    (fault,) = faults_of(
        tmp_path, row(session_id="a", timestamp=4), row(session_id="a", timestamp=2.5), timestamp_unit="s"
    )
    assert (fault.value, fault.rule) == ("2.5", "must not be before 4, the last one of session 'a'")


def test_surplus_ids_are_refused_on_request_only_beyond_one(tmp_path: Path) -> None:
    rows = [row(input_length=4, hash_ids=[1, 2]), row(input_length=16, hash_ids=list(range(16)))]
    (fault,) = faults_of(tmp_path, *rows, surplus_hash_ids="refuse")
    assert (fault.line, fault.field) == (2, "hash_ids")
    assert fault.rule == "must hold one id per 4 tokens, 4 for 16, but holds 16 (block size 1 would fit)"


@pytest.mark.parametrize("text", ["", "\n", " \n\t\n\r\n", "\u00a0\n"])
def test_a_file_without_requests_is_refused(tmp_path: Path, text: str) -> None:
    (fault,) = faults_of(tmp_path, text)
    assert (fault.line, fault.rule) == (0, "must hold at least one request")


def test_private_ids_need_room_above_the_ids_of_the_file(tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, row(hash_ids=[2**64 - 1]), missing_hash_ids="private")
    assert (fault.line, fault.field) == (0, "hash_ids")
    assert fault.rule == "leave no room above 18446744073709551615 for 1 private ids"


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (bz2.compress(json.dumps(ROW).encode()), "is compressed with bzip2; unpack it first"),
        (lzma.compress(json.dumps(ROW).encode()), "is compressed with xz; unpack it first"),
        (b"PK\x03\x04", "is a zip archive"),
        (json.dumps(ROW).encode("utf-16"), "is UTF-16"),
    ],
)
def test_files_of_another_kind_are_refused_with_a_hint(tmp_path: Path, data: bytes, rule: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(data)
    with pytest.raises(TraceError) as caught:
        open_trace(path)
    assert caught.value.faults[0].rule.startswith(rule)


@pytest.mark.parametrize(("name", "reason"), [("missing.jsonl", "No such file"), (".", "Is a directory")])
def test_a_path_that_is_no_file(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(TraceError, match=reason) as caught:
        open_trace(tmp_path / name)
    assert caught.value.faults[0].line == 0


def test_an_endless_line_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mocker_replay.trace.line_file.MAX_LINE_BYTES", 500_000)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(json.dumps(ROW).encode() + b"\n" + b" " * 2_000_000)
    with open_trace(path, trace_block_size=4) as trace, pytest.raises(TraceError) as caught:
        trace.scan()
    assert caught.value.faults[0].line == 2


@pytest.mark.parametrize(
    "options",
    [
        {"trace_block_size": 0},
        {"trace_block_size": 2**31},
        {"trace_block_size": True},
        {"timestamp_unit": "ns"},
        {"missing_timestamps": "maybe"},
        {"surplus_hash_ids": "x"},
        {"missing_hash_ids": ""},
        {"trace_format": "Mooncake"},
    ],
)
def test_an_option_out_of_range_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(ROW))
    with pytest.raises(UsageError) as caught:
        open_trace(path, **options)
    assert next(iter(options)) in str(caught.value)


def test_a_file_that_changes_after_the_scan_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mocker_replay.trace.kept_rows.KEPT_BYTES", -1)  # read again, as a longer trace is
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(ROW))
    for replacement in (row(input_length=7), row(timestamp="x")):
        path.write_text(json.dumps(ROW))
        with open_trace(path, trace_block_size=4) as trace:
            trace.scan()
            path.write_text(json.dumps(replacement))
            with pytest.raises(TraceError, match="must not change"):
                list(trace.batches())


def test_rows_that_are_kept_are_those_that_were_scanned(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(ROW))
    with open_trace(path, trace_block_size=4) as trace:
        trace.scan()
        path.write_text("gone")
        (batch,) = trace.batches()
        assert batch.input_tokens.tolist() == [ROW["input_length"]]


@pytest.mark.parametrize("name", ["chat-shared-prefix", "multi-turn", "impatient-clients"])
def test_rows_kept_and_rows_read_again_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(__file__).parents[2] / "traces" / f"{name}.jsonl"
    with open_trace(path) as trace:
        assert trace.scan().num_rows > 0
        kept = list(trace.batches())
    monkeypatch.setattr("mocker_replay.trace.kept_rows.KEPT_BYTES", -1)
    with open_trace(path) as trace:
        again = list(trace.batches())
    assert len(kept) == len(again)
    for a, b in zip(kept, again, strict=True):
        for field in a.__struct_fields__:
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


def test_batches_scan_first(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(row(output_length=-1)))
    with open_trace(path, trace_block_size=4) as trace, pytest.raises(TraceError, match="output_length"):
        next(trace.batches())
    path.write_text(json.dumps(ROW))
    with open_trace(path, trace_block_size=4) as trace, pytest.raises(ValueError, match="max_rows"):
        next(trace.batches(0))


def test_a_pipe_and_standard_input_are_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(ROW).encode()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(text,))
    writer.start()
    with open_trace(fifo, trace_block_size=4) as trace:
        writer.join()
        assert [trace.scan().num_rows, *(len(batch) for batch in trace.batches())] == [1, 1]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    with open_trace("-", trace_block_size=4) as trace:
        facts = trace.scan()
        assert (facts.path, facts.name, facts.num_rows) == ("-", "<stdin>", 1)


def test_values_are_shown_short_and_printable() -> None:
    assert shown("a" * 100) == '"' + "a" * 58 + "…"
    assert shown(b"\x1b[31m\xff") == "\\x1b[31m\\xff"
    assert shown([[[[[1]]]]]) == '[[["…"]]]'
    assert shown("\ud800") == '"\\ud800"'
    assert shown((("a", 1),)) == '{"a": 1}'
