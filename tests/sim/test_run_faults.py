"""Whole runs with faults from outside: interrupts, full disks, closed pipes, models that fail. Seeds name the cases."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from mocker_replay.config import EngineConfig, ReplayOptions, TimingModel
from mocker_replay.errors import ExitCode, InvariantError, OutputError
from mocker_replay.log.reader import EventLogReader
from mocker_replay.replay import replay

ROOT = Path(__file__).resolve().parent.parent.parent
CLI = [sys.executable, "-m", "mocker_replay"]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


def write_trace(path: Path, rows: int, seed: int, output_tokens: int = 40) -> Path:
    rng = random.Random(seed)
    at_ms, lines = 0.0, []
    for _ in range(rows):
        at_ms += rng.expovariate(1 / 20.0)
        blocks = rng.randint(1, 6)
        row = {
            "timestamp": round(at_ms, 3),
            "input_length": blocks * 512 - rng.randint(0, 500),
            "output_length": rng.randint(0, output_tokens),
            "hash_ids": [0] + [rng.randint(1, 40) for _ in range(blocks - 1)],
        }
        lines.append(orjson.dumps(row))
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def read_log(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Events and footer."""
    with EventLogReader(path) as log:
        events = list(log.events())
        assert log.footer is not None
        return events, log.footer


class FailsAt:
    """A timing model that raises in its n-th pass with prefill."""

    def __init__(self, n: int) -> None:
        self.left = n

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError("the model's own fault")
        return 10.0

    def decode(self, batch_size: int, active_kv_tokens: int, mean_context_length: int, total_kv_tokens: int) -> float:
        return 1.0


class OutOfRangeAt(FailsAt):
    """A timing model whose n-th prefill takes no time that is a time."""

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        self.left -= 1
        return float("inf") if self.left < 0 else 10.0


@pytest.mark.parametrize("seed", range(5))
def test_an_engine_that_stops_in_mid_run_keeps_what_was_true(seed: int, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 200, seed)
    good = EngineConfig(timing_model=TimingModel("callback", callable=FailsAt(10**9)), num_gpu_blocks=200)
    bad = EngineConfig(timing_model=TimingModel("callback", callable=OutOfRangeAt(20 + 7 * seed)), num_gpu_blocks=200)
    replay(trace, good, events=tmp_path / "whole.jsonl", event_level="tokens")
    with pytest.raises(InvariantError, match="out of range"):
        replay(
            trace, bad, events=tmp_path / "part.jsonl", event_level="tokens", requests=tmp_path / "r.jsonl",
            summary=tmp_path / "s.json",
        )  # fmt: skip
    told, footer = read_log(tmp_path / "part.jsonl")
    told = [event for event in told if event["event"] != "cut"]
    assert told == read_log(tmp_path / "whole.jsonl")[0][: len(told)]
    assert footer["end"] == "stopped"
    ended = footer["finished"] + footer["failed"] + footer["rejected"] + footer["cancelled"]
    assert footer["arrived"] == ended + footer["cut"]
    summary = orjson.loads((tmp_path / "s.json").read_bytes())
    assert summary["cut"] is True
    assert len((tmp_path / "r.jsonl").read_bytes().splitlines()) == ended


def test_a_model_that_raises_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 50, 1)
    config = EngineConfig(timing_model=TimingModel("callback", callable=FailsAt(5)))
    with pytest.raises(InvariantError, match=r"ZeroDivisionError.*own fault") as caught:
        replay(trace, config, events=tmp_path / "e.jsonl")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert read_log(tmp_path / "e.jsonl")[1]["end"] == "stopped"


@pytest.mark.parametrize("output", ["events", "requests", "summary", "telemetry"])
def test_a_full_disk_ends_with_its_reason(output: str, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 50, 2)
    others = {name: tmp_path / name for name in ("events", "requests", "summary", "telemetry") if name != output}
    with pytest.raises(OutputError, match=r"/dev/full.*No space left"):
        replay(trace, **{output: "/dev/full"}, **others)  # type: ignore[arg-type]
    for path in others.values():  # what is there is whole
        if path.name == "events" and path.exists():
            assert read_log(path)[1]["end"] == "complete"


@pytest.mark.parametrize("limit_ms", [0.0, 100.0, 333.25])
def test_a_run_cut_by_its_limit_conserves_requests(limit_ms: float, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 100, 3)
    result = replay(trace, {}, ReplayOptions(max_sim_time_ms=limit_ms), events=tmp_path / "e.jsonl")
    footer = read_log(tmp_path / "e.jsonl")[1]
    assert footer["end"] == "time_limit"
    assert footer["arrived"] == footer["finished"] + footer["cut"] == result.summary["num_requests"]
    assert result.facts.cut


@pytest.mark.parametrize("seed", range(3))
def test_ctrl_c_keeps_partial_results(seed: int, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 20_000, seed, output_tokens=2_000)
    outputs = ["--events", str(tmp_path / "e.jsonl.gz"), "--event-level", "tokens", "--requests", str(tmp_path / "r"),
               "--summary", str(tmp_path / "s.json")]  # fmt: skip
    process = subprocess.Popen([*CLI, "run", str(trace), *outputs, "--quiet"], env=ENV, cwd=tmp_path)
    partial = next_partial(tmp_path)  # the run has begun to write
    time.sleep(0.05 * seed)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == ExitCode.INTERRUPTED, partial
    footer = read_log(tmp_path / "e.jsonl.gz")[1]
    assert footer["end"] == "interrupted"
    summary = orjson.loads((tmp_path / "s.json").read_bytes())
    assert summary["interrupted"] is True
    assert summary["num_requests"] == footer["arrived"] == footer["finished"] + footer["cut"]
    assert len((tmp_path / "r").read_bytes().splitlines()) == footer["finished"]


def next_partial(folder: Path) -> str:
    """Wait for the temporary file of the log."""
    while True:
        for path in folder.iterdir():
            if path.name.startswith(".e.jsonl.gz"):
                return path.name
        time.sleep(0.01)


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 2_000, 4)
    process = subprocess.Popen(
        [*CLI, "run", str(trace), "--events", "-"], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b'{"event":"header"')
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert errors == b""


@pytest.mark.parametrize(("suffix", "magic"), [(".gz", b"\x1f\x8b"), (".zst", b"\x28\xb5\x2f\xfd")])
def test_every_output_is_compressed_by_its_name(suffix: str, magic: bytes, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 50, 5)
    names = ("events", "requests", "summary", "telemetry")
    outputs = {name: tmp_path / f"{name}.json{suffix}" for name in names}
    replay(trace, **outputs)  # type: ignore[arg-type]
    for path in outputs.values():
        assert path.read_bytes().startswith(magic)
    records = decompressed(outputs["requests"]).splitlines()
    assert len(records) == orjson.loads(decompressed(outputs["summary"]))["num_requests"] == 50


def decompressed(path: Path) -> bytes:
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    return zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())


def test_a_broken_invariant_keeps_the_outputs_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 50, 6)
    held = [[3, 0, 1, 0]]  # three blocks in use and one request running, after the last event
    monkeypatch.setattr("mocker_replay.replay.books.RunBooks._gauges", lambda run: held)
    with pytest.raises(InvariantError, match=r"ranks that still hold something.*\(3, 0, 1, 0\)"):
        replay(trace, events=tmp_path / "e.jsonl", summary=tmp_path / "s.json")
    assert read_log(tmp_path / "e.jsonl")[1]["end"] == "stopped"
    assert orjson.loads((tmp_path / "s.json").read_bytes())["cut"] is True
