"""Repairs: which there are, what they keep, what stays a fault, and that every copy passes the check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mocker_replay.errors import TraceError
from mocker_replay.trace import open_trace
from mocker_replay.trace.mooncake import MooncakeTrace
from mocker_replay.trace.repair import Repaired
from tests.property.test_trace_reader_model import SIZE, damaged, traces

ROW = '{"timestamp": 0, "input_length": 6, "output_length": 1, "hash_ids": [1, 2]}'
PLAIN: dict[str, Any] = {"surplus_hash_ids": "refuse"}


def repaired(tmp_path: Path, *lines: str, drop: bool = False, **options: Any) -> Repaired:
    path = tmp_path / "trace.jsonl"
    path.write_bytes("".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape"))
    with open_trace(path, trace_block_size=4, **{**PLAIN, **options}) as source:
        copy = source.repaired(drop=drop)
    fixed = tmp_path / "fixed.jsonl"
    fixed.write_bytes(copy.text())
    with open_trace(fixed, trace_block_size=4, closed_loop=options.get("closed_loop", False), **PLAIN) as source:
        source.scan()  # the copy passes the plain check
    return copy


def told(copy: Repaired) -> list[tuple[int, str, str, str, str]]:
    return [(fix.line, fix.field, fix.old, fix.new, fix.rule) for fix in copy.fixes]


def faults(tmp_path: Path, *lines: str, **options: Any) -> list[tuple[int, str]]:
    with pytest.raises(TraceError) as caught:
        repaired(tmp_path, *lines, **options)
    assert not (tmp_path / "fixed.jsonl").exists()
    return [(fault.line, fault.field) for fault in caught.value.faults]


def test_a_faultless_file_is_copied_byte_for_byte(tmp_path: Path) -> None:
    lines = [ROW + "\r", "", ROW.replace("6", "6 "), "  "]
    copy = repaired(tmp_path, *lines)
    assert copy.text().decode() == "".join(line + "\n" for line in lines)
    assert copy.fixes == ()


@pytest.mark.parametrize(
    ("old", "new", "field", "was", "becomes", "rule"),
    [
        (': 6,', ': 6.0,', "input_length", "6.0", "6", "plain-number"),
        (': 6,', ': 60e-1,', "input_length", "60e-1", "6", "plain-number"),
        (': 6,', ': "6",', "input_length", '"6"', "6", "plain-number"),
        (': 1,', ': " 1 ",', "output_length", '" 1 "', "1", "plain-number"),
        (': 1,', ': 1, "priority": -0,', "priority", "-0", "0", "plain-number"),
        (': 0,', ': "0.50",', "timestamp", '"0.50"', "0.50", "plain-number"),
        ("[1, 2]", '[1.0, "2"]', "hash_ids", '[1.0, "2"]', "[1, 2]", "plain-number"),
        ("[1, 2]", "[1, 2, 3]", "hash_ids", "[1, 2, 3]", "[1, 2]", "drop-surplus-ids"),
        ('"input_length": 6, ', "", "input_length", "", "8", "fill-input-length"),
        ('"input_length": 6, ', '"input_tokens": null, ', "input_tokens", "null", "8", "fill-input-length"),
        (': 6,', ': 6, "input_tokens": 6,', "input_tokens", "6", "", "drop-repeated-field"),
        (': 6,', ': 6, "input_length": 6.0,', "input_length", "6.0", "6", "plain-number"),
        (': 6,', ': null, "input_length": 6,', "input_length", "null", "", "drop-repeated-field"),
        ('{"t', '\ufeff{"t', "", "byte-order mark", "", "drop-byte-order-mark"),
    ],
)  # fmt: skip
def test_one_repair(tmp_path: Path, old: str, new: str, field: str, was: str, becomes: str, rule: str) -> None:
    assert old in ROW
    copy = repaired(tmp_path, ROW.replace(old, new, 1))
    assert told(copy)[0] == (1, field, was, becomes, rule)
    assert str(copy.fixes[0]).startswith(f"1: {field}: {rule}: " if field else f"1: {rule}: ")
    assert len(copy.lines) == 1


def test_the_rest_of_a_repaired_row_stays_as_it_was_written(tmp_path: Path) -> None:
    more = '"note": {"a": [1.50, true, null, "é\\n"], "a": 1E2}, "delay": 0.10e1, "session_id": "s"'
    first = ROW[:-1] + ', "session_id": "s"}'
    copy = repaired(tmp_path, first, ROW[:-1].replace(": 6", ": 6.0") + f", {more}}}\r")
    assert copy.lines[1].decode() == ROW[:-1] + f", {more}}}\r"
    assert told(copy) == [(2, "input_length", "6.0", "6", "plain-number")]


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (': 6,', ': 6.5,', "input_length"),
        (': 6,', ': true,', "input_length"),
        (': 6,', ': "six",', "input_length"),
        (': 6,', ': 7, "input_tokens": 6,', "input_tokens"),
        (': 6,', ': 1e400,', "input_length"),
        (': 6,', ': 1e999999999,', "input_length"),
        (': 1,', ': -1,', "output_length"),
        (': 1,', ': 1, "cancel_after_ms": -1,', "cancel_after_ms"),
        (': 0,', ': "NaN",', "timestamp"),
        ('"timestamp": 0, ', "", "timestamp"),
        ("[1, 2]", "[1]", "input_length"),
        ("[1, 2]", "[1, 2, 3, 4]", "hash_ids"),
        ("[1, 2]", '[1, "x"]', "hash_ids[1]"),
        ("[1, 2]", "[]", "input_length"),
        ("{", "", ""),
        (", ", ', "session_id": "\\ud800", ', "session_id"),
    ],
)  # fmt: skip
def test_what_would_have_to_be_guessed_stays_a_fault(tmp_path: Path, old: str, new: str, field: str) -> None:
    assert old in ROW
    row = ROW.replace(old, new, 1)
    assert faults(tmp_path, ROW, row) == [(2, field)]
    assert told(repaired(tmp_path, ROW, row, drop=True))[-1][::4] == (2, "drop-row")


def test_what_is_stated_is_written_into_the_copy(tmp_path: Path) -> None:
    bare = ROW.replace('"timestamp": 0, ', "")
    lines = [ROW.replace(": 0", ": 1.5"), bare, ROW.replace("[1, 2]", "[7]"), ROW.replace("[1, 2]", "[1, 2, 3, 4]")]
    copy = repaired(
        tmp_path, *lines, bare.replace('"hash_ids": [1, 2]', '"hash_ids": null'),
        timestamp_unit="s", missing_timestamps="previous", missing_hash_ids="private", surplus_hash_ids="ignore",
    )  # fmt: skip
    rows = [json.loads(line) for line in copy.lines]
    assert [row["timestamp"] for row in rows] == [0, 0, 0, 1500, 1500]
    assert told(copy) == [
        (1, "timestamp", "1.5", "1500", "timestamp-unit"),
        (2, "timestamp", "", "1500", "fill-timestamp"),
        (3, "timestamp", "0", "0", "timestamp-unit"),
        (3, "hash_ids", "[7]", "[7, 8]", "fill-hash-ids"),
        (3, "", "line 3", "line 1", "sort-rows"),
        (4, "hash_ids", "[1, 2, 3, 4]", "[1, 2]", "drop-surplus-ids"),
        (4, "timestamp", "0", "0", "timestamp-unit"),
        (4, "", "line 4", "line 2", "sort-rows"),
        (5, "timestamp", "", "0", "fill-timestamp"),
        (5, "hash_ids", "null", "[9, 10]", "fill-hash-ids"),
        (5, "", "line 5", "line 3", "sort-rows"),
    ]  # fmt: skip


def at(time_ms: float, session: str = "", **fields: Any) -> str:
    named = {"session_id": session} if session else {}
    return json.dumps({**json.loads(ROW), "timestamp": time_ms, **named, **fields})


def test_rows_are_sorted_where_only_their_times_order_them(tmp_path: Path) -> None:
    shuffled = [at(5, "a"), "", at(9, "a"), at(3, "b"), at(7, "a"), at(3)]
    copy = repaired(tmp_path, *shuffled)
    assert [json.loads(line)["timestamp"] for line in copy.lines] == [3, 3, 5, 7, 9]
    assert [json.loads(line).get("session_id") for line in copy.lines] == ["b", None, "a", "a", "a"]
    assert told(copy) == [
        (4, "", "line 4", "line 1", "sort-rows"),
        (5, "", "line 5", "line 4", "sort-rows"),
        (6, "", "line 6", "line 2", "sort-rows"),
    ]
    harmless = [at(5, "a"), at(3)]
    assert repaired(tmp_path, *harmless, closed_loop=True).fixes == ()
    assert repaired(tmp_path, *harmless, at(9, "a", delay=3)).fixes == ()
    (tmp_path / "fixed.jsonl").unlink()
    assert faults(tmp_path, *shuffled[:3], at(7, "a"), at(9, "c"), at(10, "c", delay=1)) == [(4, "timestamp")]


def test_equal_rows_are_two_requests(tmp_path: Path) -> None:
    assert len(repaired(tmp_path, ROW, ROW).lines) == 2


def test_a_dropped_row_takes_the_later_turns_of_its_session_with_it(tmp_path: Path) -> None:
    lines = ["nonsense", at(1, "a"), at(2, "a", output_length=-1), at(4, "b"), at(3, "a"), at(5, "b", delay=-1), at(6)]
    copy = repaired(tmp_path, *lines, drop=True)
    assert [json.loads(line)["timestamp"] for line in copy.lines] == [1, 4, 6]
    assert [(fix.line, fix.field, fix.rule) for fix in copy.fixes] == [
        (1, "", "drop-row"),
        (3, "output_length", "drop-row"),
        (5, "", "drop-later-turn"),
        (6, "delay", "drop-row"),
    ]
    (tmp_path / "fixed.jsonl").unlink()
    assert faults(tmp_path, "{}", "[]", drop=True) == [(0, "")]
    assert faults(tmp_path, " ", drop=True) == [(0, "")]
    assert faults(tmp_path, *lines) == [(1, ""), (3, "output_length"), (6, "delay")]


def test_all_faults_that_are_left_are_counted(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        repaired(tmp_path, *["{}"] * 120)
    assert (len(caught.value.faults), caught.value.omitted) == (100, 3 * 120 - 100)


def outcome(source: MooncakeTrace, *, drop: bool) -> tuple[Repaired | None, list[int]]:
    """The copy, or the lines at fault."""
    try:
        return source.repaired(drop=drop), []
    except TraceError as error:
        return None, [fault.line for fault in error.faults]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traces(), st.data())
def test_every_copy_passes_the_check(tmp_path: Path, trace: tuple[Any, str], data: st.DataObject) -> None:
    """Damaged files: refused, or repaired; with rows dropped, hardly ever refused."""
    lines = trace[1].split("\n")
    for _ in range(data.draw(st.integers(0, 3))):
        where = data.draw(st.integers(0, len(lines) - 1))
        kind = data.draw(st.sampled_from(["value", "double", "element", "cut", "insert"]))
        lines[where] = damaged(lines[where], kind, data)
    path, fixed = tmp_path / "trace.jsonl", tmp_path / "fixed.jsonl"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    for drop in (False, True):
        with open_trace(path, trace_block_size=SIZE) as source:
            copy, lines_at_fault = outcome(source, drop=drop)
        if copy is None:
            assert lines_at_fault == [0] if drop else lines_at_fault
            continue
        fixed.write_bytes(copy.text())
        with open_trace(fixed, trace_block_size=SIZE, surplus_hash_ids="refuse") as source:
            facts = source.scan()
        assert facts.num_rows <= sum(bool(line.strip()) for line in lines)
        with open_trace(fixed, trace_block_size=SIZE, surplus_hash_ids="refuse") as source:
            assert source.repaired(drop=drop).fixes == ()  # once is enough
