"""A trace of any format, converted, replays to the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mocker_replay.cli.app import run_main
from mocker_replay.config import ReplayOptions
from mocker_replay.replay import replay
from mocker_replay.report.summary import without_wall_clock

FOLDER = Path(__file__).parents[2] / "traces"
SAMPLES = [FOLDER / "agent-graph.jsonl", *sorted((FOLDER / "formats").iterdir())]
GRAPHS = ("agent-graph.jsonl", "weka-agents.jsonl")
# What stands in a summary about the file and not about the run.
OF_THE_FILE = (
    "trace",
    "trace_assumed",
    "agentic_graph",
    "weka_nested_timestamp_basis",
    "warnings",
    "config",
    "options",
)


def run_of(path: Path, folder: Path, **options: Any) -> list[Any]:
    log, requests = folder / f"{path.name}.log", folder / f"{path.name}.requests"
    result = replay(path, options=ReplayOptions(trace_format="auto", **options), events=log, requests=requests)
    summary = {name: value for name, value in without_wall_clock(result.summary).items() if name not in OF_THE_FILE}
    return [log.read_bytes().split(b"\n", 1)[1], requests.read_bytes(), repr(summary)]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_a_sample_of_any_format_replays_to_the_same_run(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "converted.jsonl"
    assert run_main(["convert", str(path), "-o", str(out)]) == 0
    told = capsys.readouterr().err
    options: dict[str, Any] = {}
    if path.name in GRAPHS:
        options["execution_model"] = "one"
        assert "--execution-model NAME" in told
    if path.name == "tool-sessions.jsonl":
        options["replay_concurrency"] = 3
        assert "--replay-concurrency SESSIONS" in told
    size = told.partition("--trace-block-size ")[2].split()
    copied = run_of(out, tmp_path, **options, **({"trace_block_size": int(size[0])} if size else {}))
    assert copied == run_of(path, tmp_path, **options)


def test_transforms_are_refused_where_they_are_not_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "converted.jsonl"
    argv = ["convert", str(FOLDER / "agent-graph.jsonl"), "-o", str(out), "--transform", "limit-rows=3"]
    assert run_main(argv) == 2
    assert "transforms are not built for a graph of requests" in capsys.readouterr().err
    assert not out.exists()


def test_deltas_are_not_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "converted.jsonl"
    source = str(FOLDER / "tiny.jsonl")
    assert run_main(["convert", source, "-o", str(out), "--trace-format", "mooncake-delta"]) == 2
    assert "a trace of deltas cannot be written" in capsys.readouterr().err
    assert not out.exists()
