"""Jittered arrivals: what changes, what stays, and that the same seed gives the same times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_replay._core.chacha import ChaCha12Rng
from mocker_replay.replay import replay
from mocker_replay.trace import concatenate, open_trace
from mocker_replay.trace.jitter import HELD_ROWS, HeldTrace, _jittered_arrivals, hold
from tests.conftest import make_row

MakeTrace = Callable[[Iterable[Mapping[str, Any]]], Path]


def held(path: Path, **options: Any) -> HeldTrace:
    source = open_trace(path, **options)
    try:
        return hold(source)
    finally:
        source.close()


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=60), st.floats(0.01, 1.0), st.integers(0, 2**64 - 1))
def test_order_ends_and_ties_stay(times: list[int], jitter: float, seed: int) -> None:
    before = np.array(times, np.float64)
    after = _jittered_arrivals(before.copy(), jitter, ChaCha12Rng(seed))
    order = np.argsort(before, kind="stable")
    assert (np.diff(after[order]) >= 0).all()
    assert after[order[[0, -1]]].tolist() == before[order[[0, -1]]].tolist()
    assert (np.diff(after[order])[np.diff(before[order]) == 0] == 0).all()


def test_gaps_change_by_no_more_than_told(make_trace: MakeTrace) -> None:
    trace = held(make_trace([make_row(10.0 * i) for i in range(3000)]))
    times = concatenate(list(trace.jittered(0.25, 7, 0).batches())).timestamp_ms
    gaps_ms = np.diff(times)
    scale = 10.0 / gaps_ms.mean()  # the common factor that keeps the end
    assert scale == pytest.approx(1.0)
    assert 7.3 < gaps_ms.min() < 7.7
    assert 12.3 < gaps_ms.max() < 12.7
    assert gaps_ms.std() == pytest.approx(10.0 * 0.25 / 3**0.5, rel=0.05)


def test_replicates_differ_and_repeat(make_trace: MakeTrace) -> None:
    trace = held(make_trace([make_row(10.0 * i) for i in range(2 * HELD_ROWS)]))

    def times(seed: int, replicate: int) -> list[float]:
        return concatenate(list(trace.jittered(0.5, seed, replicate).batches())).timestamp_ms.tolist()

    assert times(1, 0) == times(1, 0)
    found = {tuple(times(seed, replicate)) for seed in (0, 1, 2) for replicate in range(3)}
    assert len(found) == 9
    assert concatenate(list(trace.batches())).timestamp_ms.tolist() == [10.0 * i for i in range(2 * HELD_ROWS)]


def test_sessions_keep_their_order_and_think_otherwise(make_trace: MakeTrace) -> None:
    rows = []
    for i in range(6):
        rows.append(make_row(100.0 * (5 - i), session_id=f"s{i}"))  # not in order of time
        rows.append({"input_length": 20, "output_length": 2, "hash_ids": [i], "session_id": f"s{i}", "delay": 50})
    trace = held(make_trace(rows))
    moved = concatenate(list(trace.jittered(0.5, 3, 0).batches()))
    first = moved.turn == 0
    assert (np.diff(moved.timestamp_ms[first]) < 0).all()
    delays = moved.delay_ms[~first]
    assert ((delays >= 25.0) & (delays <= 75.0)).all()
    assert len(set(delays.tolist())) == 6
    assert (moved.delay_ms[first] == 0).all()
    result = replay(trace.jittered(0.5, 3, 0))
    assert result.summary["completed_requests"] == 12
    arrivals = result.columns["arrival_ms"]
    assert (arrivals[1::2] > arrivals[::2]).all()


def test_a_held_trace_gives_the_run_of_its_file(make_trace: MakeTrace) -> None:
    path = make_trace([make_row(3.5 * i, 40 + i, 2 + i % 7) for i in range(1500)])
    assert replay(held(path)).columns["last_token_ms"].tolist() == replay(path).columns["last_token_ms"].tolist()
    with pytest.raises(ValueError, match="max_rows"):
        next(held(path).batches(10))


def test_where_there_is_nothing_to_jitter(make_trace: MakeTrace) -> None:
    at_once = held(make_trace([make_row(5.0) for _ in range(4)]))
    assert not at_once.can_jitter(closed_loop=False)
    spread = held(make_trace([make_row(5.0 * i) for i in range(4)]))
    assert spread.can_jitter(closed_loop=False)
    assert not spread.can_jitter(closed_loop=True)
    turns = [make_row(0.0, session_id="a"), {**make_row(), "session_id": "a", "delay": 5}]
    del turns[1]["timestamp"]
    assert held(make_trace(turns)).can_jitter(closed_loop=True)
