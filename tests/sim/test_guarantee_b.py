"""Guarantee B on the real clock: a minute of a public trace at its own pace, on a machine that is busy otherwise.

The nominal clock gives the accelerated log whatever happens; the measured clock, beside it at the same time, gives a
log that runs again. How late either of them was decides nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from mocker_replay.log.wall import bare_lines
from mocker_replay.replay.rerun import rerun
from mocker_replay.report.summary import without_wall_clock

ROOT = Path(__file__).resolve().parent.parent.parent
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
SLICE_MS = 60_000.0  # the last request ends some 80 s after the first one came
BUSY = "while True: pass"


@pytest.fixture(scope="module")
def minute(shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first minute of the conversation trace."""
    path = tmp_path_factory.mktemp("minute") / "minute.jsonl"
    with (shared_traces / "mooncake-conversation.jsonl").open("rb") as trace, path.open("wb") as minute:
        for line in trace:
            if orjson.loads(line)["timestamp"] >= SLICE_MS:
                break
            minute.write(line)
    return path


def start(trace: Path, name: str, *flags: str) -> subprocess.Popen[bytes]:
    """A run that writes all its outputs beside the trace."""
    outputs = {"events": "jsonl", "requests": "requests", "summary": "json"}
    argv = [
        part for flag, suffix in outputs.items() for part in (f"--{flag}", str(trace.with_name(f"{name}.{suffix}")))
    ]
    command = [sys.executable, "-m", "mocker_replay", "run", str(trace), "--quiet", "--event-level", "kv"]
    return subprocess.Popen([*command, *argv, *flags], env=ENV)


@contextmanager
def busy_core() -> Iterator[None]:
    """Somebody else wants the processor all the time."""
    with subprocess.Popen([sys.executable, "-c", BUSY]) as process:
        try:
            yield
        finally:
            process.kill()


def test_guarantee_b_a_minute_in_real_time(minute: Path) -> None:
    runs = {
        "nominal": ["--mode", "realtime", "--clock", "nominal"],
        "measured": ["--mode", "realtime"],
        "accelerated": ["--mode", "accelerated"],
    }
    with busy_core():
        processes = [start(minute, name, *flags) for name, flags in runs.items()]
        try:
            codes = [process.wait(timeout=600) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    assert codes == [0, 0, 0]
    logs = {name: minute.with_name(f"{name}.jsonl") for name in runs}
    accelerated = logs["accelerated"].read_bytes()
    assert accelerated.count(b'"event":"arrival"') > 100
    nominal = logs["nominal"].read_bytes()
    assert b',"wall":' in nominal
    assert bare_lines(nominal) == accelerated
    requests = [minute.with_name(f"{name}.requests").read_bytes() for name in ("nominal", "accelerated")]
    assert requests[0] == requests[1]
    summaries = [orjson.loads(minute.with_name(f"{name}.json").read_bytes()) for name in runs]
    told = summaries[0].pop("realtime")
    assert told["wall_duration_ms"] >= summaries[2]["duration_ms"]
    assert told["arrival_lateness"]["count"] == summaries[2]["num_requests"]
    assert without_wall_clock(summaries[0]) == without_wall_clock(summaries[2])
    for name in ("nominal", "measured"):
        again = rerun(logs[name])
        assert again.difference is None, again.difference
