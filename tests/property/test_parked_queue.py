"""Parked requests: their rows against a list, and runs in which nearly everybody is parked against the slow model."""

from __future__ import annotations

import json
import random
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_replay._core.parked_queue import ParkedQueue
from mocker_replay.config import EngineConfig, ReplayOptions
from mocker_replay.replay import replay
from tests.fuzz.generate import make_case
from tests.parity.cases import Case
from tests.property.test_core_against_model import SEEDS, differences

IDS = st.one_of(st.integers(0, 50), st.sampled_from([2**32 - 1, 2**32, 2**64 - 1]))


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[str, tuple[int, int, int, list[int]]]]:
    """Rows that come and go; many of them, and long ones, so that both rings wrap and grow."""
    steps = draw(st.lists(st.sampled_from(["put", "put", "put", "take", "behind"]), max_size=300))
    ordinal = 0
    script = []
    for name in steps:
        ordinal += draw(st.integers(1, 3))
        ids = draw(st.lists(IDS, max_size=draw(st.sampled_from([2, 2, 2, 90]))))
        if ids and draw(st.booleans()):
            ids += [(ids[-1] + k) % 2**64 for k in range(1, draw(st.sampled_from([2, 3, 40])))]
        number = ordinal - draw(st.integers(1, 4)) if name == "behind" else ordinal
        script.append((name, (number, len(ids) * 4, ordinal % 7, ids)))
    return script


@settings(max_examples=150)
@given(rows())
def test_rows_come_out_as_they_went_in(script: list[tuple[str, tuple[int, int, int, list[int]]]]) -> None:
    queue = ParkedQueue()
    model: deque[tuple[int, int, int, list[int]]] = deque()
    for name, row in script:
        number, n_in, n_out, ids = row
        if name == "take":
            assert queue.take() == (model.popleft() if model else None)
        else:
            fits = not model or number > model[-1][0]
            assert queue.put(number, n_in, n_out, np.array(ids, np.uint64)) == fits
            if fits:
                model.append(row)
        assert queue.count == len(model)
        held = {ordinal for ordinal, *_ in model}
        assert all((number + d in queue) == (number + d in held) for d in range(-3, 4))
    while model:
        assert queue.take() == model.popleft()
    assert queue.take() is None


def test_memory_is_given_back_when_nobody_is_parked() -> None:
    queue = ParkedQueue()
    for ordinal in range(5000):
        assert queue.put(ordinal, 8, 1, np.array([ordinal, 2**40], np.uint64))
    assert queue.shrink() >= 5000
    for ordinal in range(5000):
        assert queue.take() == (ordinal, 8, 1, [ordinal, 2**40])
    assert queue.shrink() == 64
    assert queue.put(7, 8, 1, np.array([1], np.uint64))
    assert queue.take() == (7, 8, 1, [1])


def as_a_crowd(case: Case, seed: int) -> Case:
    """The same rows several times over, in a few bursts and not in the order of their times; some clients leave."""
    rng = random.Random(seed)
    once = [json.loads(line) for line in case.trace_text.splitlines()]
    crowd = []
    for _ in range(max(1, 90 // len(once))):
        for row in once:
            kept = {key: row[key] for key in ("input_length", "output_length", "hash_ids") if key in row}
            kept["timestamp"] = rng.choice((0, 0, 1, 20, 20.5, rng.randint(0, 60)))
            if rng.random() < 0.15:
                kept["cancel_after_ms"] = rng.choice((0, 0.5, 10, 40, rng.randint(0, 300)))
            crowd.append(kept)
    if rng.random() < 0.5:
        crowd.sort(key=lambda row: row["timestamp"])
    return replace(case, trace_text="".join(json.dumps(row) + "\n" for row in crowd))


@settings(max_examples=40)
@given(SEEDS)
def test_a_crowd_is_served_as_in_the_model(seed: int) -> None:
    case = make_case(seed)
    if case.format == "mooncake" and case.num_files == 1:
        assert differences(as_a_crowd(case, seed)) == []


def test_a_run_that_is_cut_names_everybody_who_was_parked(tmp_path: Path) -> None:
    trace, log = tmp_path / "trace.jsonl", tmp_path / "log.jsonl"
    rows = [{"timestamp": 0, "input_length": 64, "output_length": 9, "hash_ids": [i]} for i in range(100)]
    trace.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    config = EngineConfig(max_num_seqs=2, num_gpu_blocks=64)
    options = ReplayOptions(max_sim_time_ms=1.0)
    replay(trace, config, options, events=log, event_level="passes")
    lines = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    cut = [line["request"] for line in lines if line.get("event") == "cut"]
    assert sorted(cut) == sorted(f"r{i}" for i in range(100))
