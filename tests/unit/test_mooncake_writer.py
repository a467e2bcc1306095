"""Rows written as canonical Mooncake lines: the form, and that every trace replays to the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mocker_replay.config import ReplayOptions
from mocker_replay.config.decimals import read_json_number
from mocker_replay.replay import replay
from mocker_replay.report.summary import without_wall_clock
from mocker_replay.trace import concatenate, open_trace
from mocker_replay.trace.decimals import write_number
from mocker_replay.trace.mooncake_writer import MooncakeWriter
from tests.conftest import MakeTrace, make_row

FOLDER = Path(__file__).parents[2] / "traces"


def converted(path: Path, batch_rows: int = 1024, **options: Any) -> tuple[bytes, MooncakeWriter]:
    writer = MooncakeWriter()
    with open_trace(path, **options) as source:
        text = b"".join(writer.lines(batch) for batch in source.batches(batch_rows))
    return text, writer


def test_fields_stand_in_one_order_and_defaults_are_left_out(make_trace: MakeTrace) -> None:
    rows = [
        {"deadline_ms": 20, "priority": -1, "hash_ids": [5, 6], "output_tokens": 3, "request_id": "x", "note": 1}
        | {"cancel_after_ms": 2.50, "session_id": "a", "strict_priority": 2, "created_time": 1.0, "input_tokens": 600},
        make_row(4, 10, 0, priority=0, session_id=None, cancel_after_ms=None, output_token_ids=[]),
    ]
    text, writer = converted(make_trace([*map(json.dumps, rows), "", "  "]))
    assert text == (
        b'{"timestamp":1,"input_length":600,"output_length":3,"hash_ids":[5,6],"session_id":"a","request_id":"x",'
        b'"priority":-1,"strict_priority":2,"cancel_after_ms":2.5,"deadline_ms":20}\n'
        b'{"timestamp":4,"input_length":10,"output_length":0,"hash_ids":[0]}\n'
    )
    assert (writer.num_rows, writer.num_inexact) == (2, 0)


def test_think_times_that_timestamps_tell_are_not_written_again(make_trace: MakeTrace) -> None:
    turns = [
        make_row(10, session_id="a"),
        make_row(25, session_id="a"),
        make_row(30, session_id="a", delay=1),
        make_row(31, session_id="a"),
        make_row(None, session_id="a"),
        make_row(None, session_id="a", delay=0.5),
        make_row(41, session_id="a", delay=10),
        make_row(90, session_id="b", delay=0),
    ]
    text, _ = converted(make_trace(turns), 3)
    written = [json.loads(line) for line in text.splitlines()]
    assert [(row.get("timestamp"), row.get("delay")) for row in written] == [
        (10, None), (25, None), (30, 1), (31, None), (None, 0), (None, 0.5), (41, None), (90, None),
    ]  # fmt: skip


def test_what_a_reading_assumed_stands_in_the_file(make_trace: MakeTrace) -> None:
    rows = [make_row(1.5, 900, hash_ids=[3]), make_row(None, 100, hash_ids=[3, 4, 5]), make_row(2, 600, hash_ids=[])]
    text, _ = converted(make_trace(rows), timestamp_unit="s", missing_timestamps="previous", missing_hash_ids="private")
    assert [(row["timestamp"], row["hash_ids"]) for row in map(json.loads, text.splitlines())] == [
        (1500, [3, 6]), (1500, [3]), (2000, [7, 8]),
    ]  # fmt: skip
    plain = make_trace([line.decode() for line in text.splitlines()], "plain.jsonl")
    assert converted(plain, surplus_hash_ids="refuse")[0] == text


def test_a_closed_loop_needs_no_times(make_trace: MakeTrace) -> None:
    rows = [make_row(None, session_id="a"), make_row(5, session_id="a", delay=2), make_row(9, session_id="a")]
    text, _ = converted(make_trace(rows), closed_loop=True)
    assert [(row.get("timestamp"), row.get("delay")) for row in map(json.loads, text.splitlines())] == [
        (None, None), (5, 2), (9, None),
    ]  # fmt: skip


@given(st.floats(-1e15, 1e15, allow_nan=False) | st.integers(-(2**60), 2**60).map(float))
def test_a_number_reads_back(value: float) -> None:
    text = write_number(value)
    assert float(text) == value
    assert not text.endswith(".0") or abs(value) >= 2**53
    known = json.loads(text)
    assert isinstance(known, int) == (value.is_integer() and abs(value) < 2**53)


def test_a_time_that_no_decimal_gives_back_is_counted(make_trace: MakeTrace) -> None:
    rng = np.random.Generator(np.random.PCG64(5))
    values = rng.uniform(1e3, 1e6, 20_000)
    beyond = next(value for value in values.tolist() if read_json_number(write_number(value)) != value)
    with open_trace(make_trace([make_row(0)])) as source:
        batch = concatenate(list(source.batches()))
    batch.timestamp_ms[0] = beyond
    writer = MooncakeWriter()
    assert json.loads(writer.lines(batch))["timestamp"] == beyond
    assert writer.num_inexact == 1


# -- the same run -------------------------------------------------------------------------------------


def run_of(path: Path, tmp_path: Path, **options: Any) -> list[bytes]:
    log, requests = tmp_path / "log.jsonl", tmp_path / "requests.jsonl"
    settings_ = ReplayOptions(**options)
    result = replay(path, options=settings_, events=log, event_level="passes", requests=requests)
    # The header names the digest of the trace; all else must be the same.
    events = log.read_bytes().split(b"\n", 1)[1]
    return [events, requests.read_bytes(), repr(without_wall_clock(result.summary)).encode()]


@pytest.mark.parametrize(
    "name", sorted(path.name for path in FOLDER.glob("*.jsonl") if path.name != "agent-graph.jsonl")
)
def test_a_shipped_trace_replays_to_the_same_run(name: str, tmp_path: Path) -> None:
    text, _ = converted(FOLDER / name)
    path = tmp_path / name
    path.write_bytes(text)
    assert converted(path)[0] == text
    assert run_of(path, tmp_path) == run_of(FOLDER / name, tmp_path)


times = st.one_of(st.integers(0, 500), st.floats(0, 1e5).map(lambda x: round(x, 3)), st.floats(0, 1e7))


@st.composite
def rows_of_sessions(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows whose later turns give a timestamp, a think time, both or neither."""
    rows: list[dict[str, Any]] = []
    known: dict[str, float] = {}
    clock = sorted(draw(st.lists(times, min_size=1, max_size=8)))
    for timestamp in clock:
        name = draw(st.sampled_from(["a", "b", None, None]))
        row = make_row(timestamp, draw(st.integers(1, 1500)), draw(st.integers(0, 5)), session_id=name)
        kind = draw(st.sampled_from(["time", "delay", "both", "neither"])) if name in known else "time"
        if kind in ("delay", "neither"):
            del row["timestamp"]
        elif name is not None:
            known[name] = timestamp
        if kind in ("delay", "both"):
            row["delay"] = draw(times)
        rows.append(row)
    return rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows_of_sessions(), st.sampled_from(["ms", "ms", "s", "us"]))
def test_rows_come_back_as_they_were(tmp_path: Path, rows: list[dict[str, Any]], unit: str) -> None:
    path, copy = tmp_path / "trace.jsonl", tmp_path / "copy.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text, writer = converted(path, 3, timestamp_unit=unit)
    copy.write_bytes(text)
    with open_trace(path, timestamp_unit=unit) as source, open_trace(copy) as again:
        first, second = (concatenate(list(trace.batches())) for trace in (source, again))
    exact = ("lines", "input_tokens", "output_tokens", "hash_ids", "session", "turn", "session_names")
    for name in exact if writer.num_inexact else (*exact, "delay_ms"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), strict=True)
    if not writer.num_inexact:
        np.testing.assert_array_equal(first.timestamp_ms, second.timestamp_ms)
    else:  # at most one unit in the last place
        np.testing.assert_allclose(first.timestamp_ms, second.timestamp_ms, rtol=3e-16)
    assert converted(copy)[0] == text or writer.num_inexact
