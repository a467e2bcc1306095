"""What a Mooncake reader makes of legal rows: columns, sessions, facts, warnings."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from mocker_replay.trace import RowBatch, TraceFacts, concatenate, open_trace

ROW = {"timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]}


def row(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in (ROW | fields).items() if value is not ...}


def read(tmp_path: Path, *rows: object, max_rows: int = 2, **options: Any) -> tuple[TraceFacts, RowBatch]:
    path = tmp_path / "trace.jsonl"
    lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
    path.write_bytes("\n".join(lines).encode())
    with open_trace(path, **({"trace_block_size": 4} | options)) as trace:
        return trace.scan(), concatenate(list(trace.batches(max_rows)))


def ids_of(batch: RowBatch) -> list[list[int]]:
    return [part.tolist() for part in np.split(batch.hash_ids, batch.hash_offsets[1:-1])]


def test_columns_of_plain_rows(tmp_path: Path) -> None:
    facts, batch = read(
        tmp_path,
        row(timestamp=0.5),
        row(timestamp=7, input_length=1, hash_ids=[2**64 - 1], priority=-3, strict_priority=2**32 - 1),
        row(timestamp=7, input_length=..., output_length=0, request_id="x"),
        row(timestamp=1e3, output_token_ids=[7, 2**32 - 1], policy_class="p"),
    )
    assert batch.first_row == 0
    assert batch.lines.tolist() == [1, 2, 3, 4]
    assert batch.timestamp_ms.tolist() == [0.5, 7.0, 7.0, 1000.0]
    assert batch.input_tokens.tolist() == [8, 1, 8, 8]
    assert batch.output_tokens.tolist() == [2, 2, 0, 2]
    assert ids_of(batch) == [[1, 2], [2**64 - 1], [1, 2], [1, 2]]
    assert batch.session.tolist() == [0, 1, 2, 3]
    assert batch.turn.tolist() == batch.delay_ms.tolist() == [0, 0, 0, 0]
    assert batch.session_names == [None] * 4
    assert batch.request_ids == [None, None, "x", None]
    assert batch.priority.tolist() == [0, -3, 0, 0]
    assert batch.strict_priority.tolist() == [0, 2**32 - 1, 0, 0]
    assert (batch.hash_ids.dtype, batch.turn.dtype, batch.priority.dtype) == (np.uint64, np.int32, np.int32)
    assert (facts.num_rows, facts.num_sessions, facts.total_input_tokens, facts.total_output_tokens) == (4, 4, 25, 6)
    assert (facts.min_first_timestamp_ms, facts.max_first_timestamp_ms, facts.span_ms) == (0.5, 1000.0, 999.5)
    assert (facts.is_sorted, facts.has_sessions, facts.is_multi_turn, facts.has_request_ids) == (
        True,
        False,
        False,
        True,
    )
    assert (facts.name, facts.format, facts.warnings) == ("trace.jsonl", "mooncake", ())
    assert facts.digest == blake3((tmp_path / "trace.jsonl").read_bytes()).hexdigest()


def test_the_patience_of_clients(tmp_path: Path) -> None:
    given = [
        {"cancel_after_ms": 12.5},
        {},
        {"cancel_after_ms": None},
        {"cancel_after_ms": 0},
        {"cancel_after_ms": 1e308},
    ]
    _, batch = read(tmp_path, *(row(**fields) for fields in given))
    assert batch.cancel_after_ms is not None, "of batches of which some name none"
    assert batch.cancel_after_ms.tolist() == [12.5, math.inf, math.inf, 0.0, 1e308]
    _, in_seconds = read(tmp_path, row(cancel_after_ms=12.5), timestamp_unit="s")
    assert in_seconds.cancel_after_ms is not None
    assert in_seconds.cancel_after_ms.tolist() == [12.5], "always in ms, as a delay"
    _, staying = read(tmp_path, row(), row(cancel_after_ms=None), row())
    assert staying.cancel_after_ms is None


def test_aliases_mixed_with_names_over_the_rows(tmp_path: Path) -> None:
    other = {"created_time": 7, "input_tokens": 5, "output_tokens": 3, "hash_ids": [1, 2], "delay_ms": 0}
    _, batch = read(tmp_path, row(), other, row(timestamp=9))
    assert batch.timestamp_ms.tolist() == [0.0, 7.0, 9.0]
    assert batch.input_tokens.tolist() == [8, 5, 8]
    assert batch.output_tokens.tolist() == [2, 3, 2]


def test_blank_lines_count_but_hold_no_row(tmp_path: Path) -> None:
    _, batch = read(tmp_path, "", json.dumps(row()) + "\r", " \t", "\u3000", row(timestamp=20), "", max_rows=1)
    assert batch.lines.tolist() == [2, 5]
    assert batch.first_row == 0


def test_null_is_absent_and_unknown_fields_are_ignored_even_twice(tmp_path: Path) -> None:
    text = '{"timestamp": 3, "output_length": 1, "hash_ids": [1], "x": {"timestamp": 9}, "x": 2, "zz": NULL}'
    facts, batch = read(
        tmp_path,
        text.replace("NULL", "null"),
        row(timestamp=20, input_length=None, session_id=None, delay=None, priority=None, output_token_ids=None),
    )
    assert batch.timestamp_ms.tolist() == [3.0, 20.0]
    assert facts.warnings == ("fields that mean nothing here were ignored: x, zz",)


def test_sessions_measure_think_time_from_the_latest_given_timestamp(tmp_path: Path) -> None:
    facts, batch = read(
        tmp_path,
        row(timestamp=0, session_id="a"),
        row(timestamp=40, session_id=""),
        row(timestamp=100, session_id="a", delay=30),
        row(timestamp=..., session_id="a"),
        row(timestamp=40),
        row(timestamp=300.5, session_id="a"),
        row(timestamp=40, session_id=""),
        row(timestamp=..., session_id="a", delay_ms=7),
    )
    assert batch.session.tolist() == [0, 1, 0, 0, 2, 0, 1, 0]
    assert batch.turn.tolist() == [0, 0, 1, 2, 0, 3, 1, 4]
    assert batch.delay_ms.tolist() == [0.0, 0.0, 30.0, 0.0, 0.0, 200.5, 0.0, 7.0]
    assert batch.session_names == ["a", "", "a", "a", None, "a", "", "a"]
    assert np.isnan(batch.timestamp_ms).tolist() == [False, False, False, True, False, False, False, True]
    assert (facts.num_sessions, facts.is_multi_turn, facts.is_sorted, facts.has_sessions) == (3, True, False, True)
    assert (facts.min_first_timestamp_ms, facts.max_first_timestamp_ms) == (0.0, 40.0)


def test_single_turn_sessions_stay_sorted(tmp_path: Path) -> None:
    facts, _ = read(tmp_path, row(session_id="a", delay=0), row(session_id="b", timestamp=50))
    assert (facts.has_sessions, facts.is_multi_turn, facts.is_sorted) == (True, False, True)


def test_a_closed_loop_needs_no_timestamps(tmp_path: Path) -> None:
    facts, batch = read(tmp_path, row(timestamp=...), row(timestamp=5), closed_loop=True)
    assert np.isnan(batch.timestamp_ms).tolist() == [True, False]
    assert (facts.min_first_timestamp_ms, facts.span_ms, facts.is_sorted) == (5.0, 0.0, True)
    facts, _ = read(tmp_path, row(timestamp=...), closed_loop=True)
    assert (facts.min_first_timestamp_ms, facts.max_first_timestamp_ms, facts.span_ms) == (None, None, 0.0)


@pytest.mark.parametrize(
    ("unit", "expected_ms"), [("s", [1500.0, 11500.0]), ("ms", [1.5, 11.5]), ("us", [0.0015, 0.0115])]
)
def test_the_unit_is_for_timestamps_and_what_is_measured_from_them(
    tmp_path: Path, unit: str, expected_ms: list[float]
) -> None:
    facts, batch = read(
        tmp_path,
        row(timestamp=1.5, session_id="a"),
        row(timestamp=11.5, session_id="a"),
        row(timestamp=..., session_id="a", delay=3),
        timestamp_unit=unit,
    )
    assert batch.timestamp_ms[:2].tolist() == expected_ms
    assert batch.delay_ms.tolist() == [0.0, expected_ms[1] - expected_ms[0], 3.0]
    has_warning = any("delays are read as ms" in warning for warning in facts.warnings)
    assert has_warning == (unit != "ms")


def test_missing_timestamps_on_request(tmp_path: Path) -> None:
    rows = [row(timestamp=...), row(timestamp=50), row(timestamp=...), row(timestamp=...), row(timestamp=90)]
    facts, batch = read(tmp_path, *rows, missing_timestamps="previous")
    assert batch.timestamp_ms.tolist() == [0.0, 50.0, 50.0, 50.0, 90.0]
    assert facts.warnings == ("3 rows without a timestamp were given that of the row above",)
    facts, batch = read(tmp_path, *rows, missing_timestamps="zero")
    assert batch.timestamp_ms.tolist() == [0.0, 50.0, 0.0, 0.0, 90.0]
    assert "3 rows without a timestamp were given 0" in facts.warnings
    assert not facts.is_sorted


def test_a_stand_in_counts_as_the_timestamp_of_its_session(tmp_path: Path) -> None:
    rows = [row(timestamp=20, session_id="b"), row(timestamp=..., session_id="a"), row(timestamp=50, session_id="a")]
    _, batch = read(tmp_path, *rows, missing_timestamps="previous", max_rows=1)
    assert batch.timestamp_ms.tolist() == [20.0, 20.0, 50.0]
    assert batch.delay_ms.tolist() == [0.0, 0.0, 30.0]


def test_surplus_ids_are_cut_off_with_a_warning(tmp_path: Path) -> None:
    rows = [row(), row(timestamp=20, input_length=3, hash_ids=[7, 8, 9]), row(timestamp=20, hash_ids=[7, 8, 9])]
    facts, batch = read(tmp_path, *rows)
    assert ids_of(batch) == [[1, 2], [7], [7, 8]]
    assert facts.warnings == (
        "2 rows with more hash_ids than their prompt has blocks of 4 tokens (first at line 2); the surplus is ignored",
    )
    facts, batch = read(tmp_path, rows[0], rows[2], surplus_hash_ids="refuse")  # one beyond is never refused
    assert ids_of(batch) == [[1, 2], [7, 8]]


def test_private_ids_are_used_by_no_other_row(tmp_path: Path) -> None:
    rows = [
        row(hash_ids=[5]),
        row(timestamp=20, hash_ids=...),
        row(timestamp=20, hash_ids=[9, 9, 9]),
        row(timestamp=20, hash_ids=None, input_length=9),
    ]
    facts, batch = read(tmp_path, *rows, missing_hash_ids="private", max_rows=2)
    assert ids_of(batch) == [[5, 10], [11, 12], [9, 9], [13, 14, 15]]
    assert facts.warnings[1] == "3 rows with 6 prompt blocks that have no hash id; these share nothing"


def timed(*timestamps: float, input_length: int = 8) -> list[dict[str, Any]]:
    return [row(timestamp=t, input_length=input_length) for t in timestamps]


@pytest.mark.parametrize(
    ("rows", "unit", "warning"),
    [
        (timed(0, 1, 2, 3), "ms", "the whole trace spans 3 ms; are its timestamps really in ms"),
        (timed(*(0.4 * i for i in range(50))), "ms", "they look like s (--timestamp-unit s)"),
        (timed(*(4000.0 * i for i in range(50))), "s", "they look like ms (--timestamp-unit ms)"),
        (timed(*(4e6 * i for i in range(50))), "ms", "they look like us (--timestamp-unit us)"),
        (timed(1.7e9, 1.7e9 + 5), "ms", "they look like s (--timestamp-unit s)"),
        (timed(1.7e12, 1.7e12 + 5000), "s", "they look like ms (--timestamp-unit ms)"),
        (timed(1.7e15, 1.7e15 + 5e6), "ms", "they look like us (--timestamp-unit us)"),
        (timed(5, 4, 50), "ms", "rows are not in order of time (first at line 2); they are sorted"),
    ],
)
def test_suspicious_times_are_mentioned(tmp_path: Path, rows: list[dict[str, Any]], unit: str, warning: str) -> None:
    facts, _ = read(tmp_path, *rows, timestamp_unit=unit)
    assert len(facts.warnings) == 1
    assert warning in facts.warnings[0]


def test_a_load_beyond_belief_is_mentioned(tmp_path: Path) -> None:
    rows = [row(timestamp=3 * i, input_length=120_000, hash_ids=[1]) for i in range(20)]
    facts, _ = read(tmp_path, *rows, trace_block_size=120_000)
    assert "look like s" in facts.warnings[0]


@pytest.mark.parametrize(
    "rows", [timed(0, 0, 0), timed(0, 20), timed(*range(0, 1000, 10)), timed(1.7e12, 1.7e12 + 5000), timed(0, 1e7)]
)
def test_ordinary_times_are_not(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    assert read(tmp_path, *rows)[0].warnings == ()


def test_two_readings_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row(timestamp=i)) + "\n" for i in range(0, 9000, 3)))
    with open_trace(path, trace_block_size=4) as trace:
        pairs = zip(trace.batches(100), trace.batches(100), strict=True)
        assert all(first.lines.tolist() == second.lines.tolist() for first, second in pairs)
