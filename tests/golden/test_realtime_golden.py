"""A realtime log of two workers, byte for byte, and its rerun. `GOLDEN_UPDATE=1` writes the file anew."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import orjson
import pytest

from mocker_replay.config import EngineConfig, TimingModel
from mocker_replay.replay.rerun import rerun
from tests.support.realtime import Action, Arrival, Cancel, RealtimeRun

GOLDEN = Path(__file__).parent / "realtime"
CONFIG = EngineConfig(
    num_gpu_blocks=9, block_size=4, max_num_seqs=4, max_num_batched_tokens=20, dp_size=2,
    timing_model=TimingModel("fixed", 10.0, 2.5), num_gpu_blocks_is_explicit=True,
)  # fmt: skip
SCRIPT: list[Action] = [
    Arrival(0.0, 0, 18, 9, (1, 2, 3, 4, 5, 6), worker=0, rank=0),
    Arrival(0.0, 2, 20, 12, (1, 2, 3, 4, 5, 7, 8), worker=0, rank=0),
    Arrival(3.0, 1, 14, 20, (1, 2, 3, 4, 9), worker=1, rank=1, session=0, turn=0),
    Cancel(8.0, 1, discard=True),
    Arrival(12.0, 3, 60, 4, tuple(range(100, 120)), worker=0, rank=1),
    Arrival(14.0, 5, 16, 6, (1, 2, 3, 4, 5, 2**64 - 1), worker=1, rank=0, session=0, turn=1),
    Arrival(20.0, 4, 8, 8, (1, 2, 3), worker=0, rank=1),
    Cancel(22.0, 4, at_boundary=True),
    Cancel(30.0, 0),
    Arrival(61.0, 7, 8, 9, (1, 2, 3), worker=1, rank=0),
    Arrival(63.0, 6, 8, 9, (1, 2, 4), worker=1, rank=0),
    Arrival(64.0, 8, 8, 9, (1, 2, 4), worker=1, rank=0),
]
NAMES = {2: 'a "name","wall":{"of":1} its own', 6: "six"}
RUNS = {"complete-kv": ("kv", float("inf")), "interrupted-passes": ("passes", 66.0)}


def play(name: str) -> bytes:
    level, stop_ms = RUNS[name]
    run = RealtimeRun(CONFIG, num_workers=2, level=level, names=NAMES, seed=3)
    return run.play(SCRIPT, stop_ms=stop_ms, token=True)


@pytest.mark.parametrize("name", RUNS)
def test_realtime_log_is_stable_to_the_byte(name: str) -> None:
    data = play(name)
    assert play(name) == data
    path = GOLDEN / f"{name}.jsonl"
    if os.environ.get("GOLDEN_UPDATE") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    assert path.read_bytes() == data


@pytest.mark.parametrize("name", RUNS)
def test_golden_realtime_log_runs_again(name: str) -> None:
    result = rerun(GOLDEN / f"{name}.jsonl")
    assert result.difference is None
    footer = orjson.loads((GOLDEN / f"{name}.jsonl").read_bytes().splitlines()[-1])
    assert (result.num_lines, result.digest, result.end) == (footer["events"], footer["digest"], footer["end"])


def test_the_golden_logs_hold_what_a_rerun_must_know() -> None:
    lines = [orjson.loads(line) for path in GOLDEN.iterdir() for line in path.read_bytes().splitlines()]
    events = Counter(line["event"] for line in lines)
    steps = Counter(step[1] for line in lines for step in line.get("wall", {}).get("steps", ()))
    wanted = {
        "arrival",
        "command",
        "preemption",
        "finish",
        "rejection",
        "cancellation",
        "cut",
        "kv_stored",
        "kv_removed",
    }
    assert wanted <= set(events)
    assert {"command_item", "cancel_item", "boundary_apply", "boundary_finish", "cancel", "published"} <= set(steps)
    assert any(line.get("in_pass") and line["kind"] == "cancel" for line in lines)


def test_no_golden_is_left_over() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(RUNS)
