"""Speed of reading a trace, of writing records, of the timer, and of whole runs of the shipped traces."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from mocker_replay._core.mooncake_lines import MooncakeLines
from mocker_replay._core.timerfd import TimerFd, available
from mocker_replay.replay import replay
from mocker_replay.trace import TraceFacts, open_trace

pytestmark = pytest.mark.bench

TRACES = Path(__file__).parents[2] / "traces"
NUM_ROWS, ROW_BLOCKS = 5_000, 12
NUM_ALARMS = 2_000
# Trace -> requests, and tokens they were answered with; some clients of the last one leave.
RUNS = {
    "tiny": (12, 53),
    "chat-shared-prefix": (1_600, 363_916),
    "long-context-bursts": (486, 586_545),
    "multi-turn": (689, 183_044),
    "impatient-clients": (60, 848),
}


def rows_text() -> bytes:
    rows = (
        {
            "timestamp": 10 * row, "input_length": 512 * ROW_BLOCKS, "output_length": 20,
            "hash_ids": [*range(4), *(1_000_000 + row * 100 + at for at in range(ROW_BLOCKS - 4))],
        }
        for row in range(NUM_ROWS)
    )  # fmt: skip
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.benchmark(group="reader")
def test_scan_lines(benchmark: Any) -> None:
    text = rows_text()

    def scan() -> MooncakeLines:
        lines = MooncakeLines()
        assert lines.scan(text)
        return lines

    lines = benchmark.pedantic(scan, rounds=10, warmup_rounds=1)
    assert (lines.num_rows, lines.num_hash_ids) == (NUM_ROWS, NUM_ROWS * ROW_BLOCKS)
    if benchmark.stats is not None:  # not measured in an ordinary test run
        benchmark.extra_info["megabytes_per_second"] = len(text) / benchmark.stats.stats.min / 1e6


@pytest.mark.benchmark(group="reader")
def test_scan_trace(benchmark: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(rows_text())

    def scan() -> TraceFacts:
        with open_trace(path) as trace:
            return trace.scan()

    facts = benchmark.pedantic(scan, rounds=5, warmup_rounds=1)
    assert (facts.num_rows, facts.total_input_tokens) == (NUM_ROWS, NUM_ROWS * 512 * ROW_BLOCKS)
    assert facts.total_output_tokens == NUM_ROWS * 20


@pytest.mark.benchmark(group="records")
def test_record_lines(benchmark: Any) -> None:
    """Records of a run that has been."""
    result = replay(TRACES / "chat-shared-prefix.jsonl")
    text = benchmark.pedantic(lambda: b"".join(result.record_lines()), rounds=5, warmup_rounds=1)
    records = [json.loads(line) for line in text.splitlines()]
    assert records == json.loads(json.dumps(list(result.records())))
    assert len(records) == RUNS["chat-shared-prefix"][0]


@pytest.mark.skipif(not available, reason="no timerfd on this system")
@pytest.mark.benchmark(group="timer")
def test_timer(benchmark: Any) -> None:
    """Arm a descriptor with a time that has been, and drain it: what an alarm costs without its wait."""
    timer = TimerFd()

    def ring() -> int:
        due_ns = time.monotonic_ns() - 1_000_000
        rung = 0
        for _ in range(NUM_ALARMS):
            timer.arm(due_ns)
            rung += timer.drain()
        return rung

    try:
        assert benchmark.pedantic(ring, rounds=5, warmup_rounds=1) == NUM_ALARMS
    finally:
        timer.close()


@pytest.mark.benchmark(group="replay")
@pytest.mark.parametrize("name", RUNS)
def test_whole_run(benchmark: Any, name: str) -> None:
    result = benchmark.pedantic(lambda: replay(TRACES / f"{name}.jsonl"), rounds=3, warmup_rounds=1)
    assert (result.summary["num_requests"], result.summary["total_output_tokens"]) == RUNS[name]
