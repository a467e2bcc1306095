"""The Mooncake reader against a slow model, and its two ways of reading against each other."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mocker_replay.errors import TraceError
from mocker_replay.trace import concatenate, mooncake_columns, open_trace

SIZE = 4
times = st.one_of(st.integers(-50, 10**13), st.floats(-1e6, 1e12, allow_nan=False))
names = st.sampled_from(["a", "b", "", "x:y", 'q"\\', "timestamp", "true", "-0"])
legal_rows = st.fixed_dictionaries(
    {
        "input_length": st.integers(1, 40),
        "output_length": st.integers(0, 2**31 - 1),
        "hash_ids": st.lists(st.integers(0, 2**64 - 1), min_size=10, max_size=12),
    },
    optional={
        "session_id": st.one_of(st.just("a"), names),
        "delay": st.floats(0, 1e6),
        "cancel_after_ms": st.one_of(st.none(), st.integers(0, 10**20), st.floats(0, 1e6)),
        "request_id": names,
        "priority": st.integers(-(2**31), 2**31 - 1),
        "note": st.sampled_from([True, {"hash_ids": 1}, "a:b", None, [-0.5]]),
    },
)
broken_values = st.sampled_from([-1, 1.5, "1", True, 2**64, 10**10, [], [1.0], [True], {}, None, [2**64], [-1], "\n"])


def as_json(row: dict[str, Any], use_alias: bool, spaced: bool) -> str:
    if use_alias:
        row = {{"timestamp": "created_time", "input_length": "input_tokens"}.get(k, k): v for k, v in row.items()}
    return json.dumps(row, separators=None if spaced else (",", ":"), ensure_ascii=not spaced)


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[dict[str, Any]], str]:
    """Rows that are legal together, and a file of them."""
    rows = draw(st.lists(legal_rows, min_size=1, max_size=12))
    clock = sorted(draw(st.lists(times, min_size=len(rows), max_size=len(rows))))
    known: set[str] = set()
    for row, timestamp in zip(rows, clock, strict=True):  # rising, so that no think time is negative
        name = row.get("session_id")
        if name is None or name not in known:
            row["timestamp"] = timestamp
            row.pop("delay", None)
            known |= set() if name is None else {name}
        elif draw(st.booleans()):
            row["timestamp"] = timestamp
    if draw(st.integers(0, 3)) == 0:
        lines = [as_json(row, draw(st.booleans()), draw(st.booleans())) for row in rows]
        blanks = [draw(st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\n"])) for _ in lines]
    else:  # uniform files are what the fast reading accepts
        use_alias, spaced, blank = draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from(["\n", "\r\n"]))
        lines = [as_json(row, use_alias, spaced) for row in rows]
        blanks = [blank] * len(lines)
    return rows, "".join(line + blank for line, blank in zip(lines, blanks, strict=True))


def peer_float(value: float) -> float:
    """All digits as one integer, rounded, then scaled by a power of ten: two roundings."""
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    significand = float(int("".join(map(str, digits))))
    while exponent < -308:  # 1e309 is no float64
        significand, exponent = significand / 1e308, exponent + 308
    scaled = significand / float(f"1e{-exponent}") if exponent < 0 else significand * float(f"1e{exponent}")
    return -scaled if sign else scaled


def model(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Columns as the specification words them, one row at a time."""
    columns: dict[str, list[Any]] = {name: [] for name in ("ids", "session", "turn", "delay", "time")}
    sessions: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows):
        columns["ids"].append(row["hash_ids"][: math.ceil(row["input_length"] / SIZE)])
        time = peer_float(row["timestamp"]) if "timestamp" in row else None
        columns["time"].append(math.nan if time is None else time)
        key = row.get("session_id", f"row {number}")
        session = sessions.setdefault(key, {"ordinal": len(sessions), "turns": 0, "last": None})
        delay = 0.0
        if session["turns"] and "delay" in row:
            delay = peer_float(row["delay"])
        elif session["turns"] and time is not None:
            delay = time - session["last"]
        session["last"] = session["last"] if time is None else time
        columns["session"].append(session["ordinal"])
        columns["turn"].append(session["turns"])
        columns["delay"].append(delay)
        session["turns"] += 1
    return columns


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model") / "trace.jsonl"


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traces(), st.integers(1, 5))
def test_scan_and_batches_say_what_the_model_says(path: Path, trace: tuple[list[dict[str, Any]], str], n: int) -> None:
    rows, text = trace
    path.write_bytes(text.encode())
    expected = model(rows)
    with open_trace(path, trace_block_size=SIZE) as source:
        facts = source.scan()
        batches = list(source.batches(n))
    assert all(1 <= len(batch) <= n for batch in batches)
    assert [batch.first_row for batch in batches] == list(np.cumsum([0, *map(len, batches)])[:-1])
    batch = concatenate(batches)
    assert [ids.tolist() for ids in np.split(batch.hash_ids, batch.hash_offsets[1:-1])] == expected["ids"]
    assert batch.session.tolist() == expected["session"]
    assert batch.turn.tolist() == expected["turn"]
    assert batch.delay_ms.tolist() == expected["delay"]
    np.testing.assert_array_equal(batch.timestamp_ms, expected["time"])
    assert batch.input_tokens.tolist() == [row["input_length"] for row in rows]
    assert batch.output_tokens.tolist() == [row["output_length"] for row in rows]
    patience = [row.get("cancel_after_ms") for row in rows]
    if any(given is not None for given in patience):
        assert batch.cancel_after_ms is not None
        assert batch.cancel_after_ms.tolist() == [
            math.inf if given is None else peer_float(given) for given in patience
        ]
    else:
        assert batch.cancel_after_ms is None
    assert batch.priority.tolist() == [row.get("priority", 0) for row in rows]
    assert (batch.request_ids or [None] * len(rows)) == [row.get("request_id") for row in rows]
    firsts = [time for time, turn in zip(expected["time"], expected["turn"], strict=True) if turn == 0]
    assert (facts.min_first_timestamp_ms, facts.max_first_timestamp_ms) == (min(firsts), max(firsts))
    assert facts.num_rows == len(rows)
    assert facts.num_sessions == len(set(expected["session"]))
    assert facts.is_multi_turn == (facts.num_sessions < len(rows))
    assert facts.is_sorted == (not facts.is_multi_turn)
    assert facts.total_output_tokens == sum(row["output_length"] for row in rows)
    assert facts.has_request_ids == any("request_id" in row for row in rows)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traces(), st.data())
def test_the_fast_reading_accepts_nothing_that_the_exact_one_refuses(
    path: Path, trace: tuple[list[dict[str, Any]], str], data: st.DataObject
) -> None:
    _, text = trace
    lines = text.split("\n")
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(lines) - 1))
        kind = data.draw(st.sampled_from(["value", "double", "element", "cut", "insert"]))
        lines[at] = damaged(lines[at], kind, data)
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    fast = outcome(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mooncake_columns, "_scan", lambda *_: None)
        assert outcome(path) == fast
        patch.setattr(mooncake_columns, "_accept", lambda *_: None)
        assert outcome(path) == fast


def damaged(line: str, kind: str, data: st.DataObject) -> str:
    if kind == "cut":
        return line[: data.draw(st.integers(0, len(line)))]
    if kind == "insert":
        at = data.draw(st.integers(0, len(line)))
        return (
            line[:at]
            + data.draw(st.sampled_from([" ", ",", "}", "0", "-", ".5", "e9", "\udcff", "null", '"']))
            + line[at:]
        )
    try:
        row = json.loads(line)
    except ValueError:
        return line
    if kind == "element":
        return json.dumps(row | {"hash_ids": [data.draw(broken_values), *range(9)]})
    name = data.draw(st.sampled_from(sorted(row)))
    value = json.dumps(data.draw(st.one_of(st.just(row[name]), broken_values)))
    if kind == "double":
        return line.rstrip()[:-1] + f', "{name}": {value}}}'
    return json.dumps({k: v for k, v in row.items() if k != name})[:-1] + f', "{name}": {value}}}'


def outcome(path: Path) -> object:
    """Everything a reading tells, comparable."""
    with open_trace(path, trace_block_size=SIZE) as source:
        try:
            facts = source.scan()
        except TraceError as error:
            return error.faults
        batch = concatenate(list(source.batches(3)))
    columns = [getattr(batch, name) for name in batch.__slots__]
    return facts, [column.tobytes() if isinstance(column, np.ndarray) else column for column in columns]
