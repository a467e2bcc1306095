"""Graphs of requests through the verbs that make runs."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from mocker_replay.cli.app import run_main

ROOT = Path(__file__).resolve().parent.parent.parent
TRACE = str(ROOT / "traces" / "agent-graph.jsonl")
GRAPH = ["--trace-format", "agentic_mooncake", "--execution-model", "m"]


def test_run_tells_of_plays_and_fails_where_one_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, summary = tmp_path / "log.jsonl", tmp_path / "summary.json"
    files = ["--events", str(log), "--summary", str(summary)]
    assert run_main(["run", TRACE, *GRAPH, "--agentic-lanes", "2", "--max-model-len", "10000", *files]) == 4
    page = capsys.readouterr().out
    told = orjson.loads(summary.read_bytes())
    assert "2 lanes of plays, one after another" in page
    assert f"{told['skipped_requests']} never arrived: their plays had failed" in page
    assert f"24: {told['completed_trajectories']} completed, {told['incomplete_trajectories']} failed" in page
    assert run_main(["audit", str(log), "--summary", str(summary), "--quiet"]) == 0
    footer = orjson.loads(log.read_bytes().splitlines()[-1])
    assert footer["arrived"] + footer["skipped"] == 227


def test_check_profiles_a_graph(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(["check", TRACE, "--trace-format", "agentic_mooncake"]) == 0
    assert "24 plays, 240 dependencies, 94 conversations; models sample" in capsys.readouterr().out


def test_variants_are_compared_on_jittered_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    variants = ['{"name": "base"}', '{"name": "slow", "engine": {"speedup_ratio": 0.5}}']
    argv = [part for variant in variants for part in ("--variant", variant)]
    assert run_main(["compare", TRACE, *GRAPH, *argv, "--replicates", "3", "--json"]) == 0
    told = orjson.loads(capsys.readouterr().out)
    assert told["method"]["replicates"] == 3
    assert [variant["name"] for variant in told["variants"]] == ["base", "slow"]


def test_a_graph_needs_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(["run", TRACE, "--trace-format", "agentic_mooncake"]) == 2
    assert "--execution-model: is required with trace_format agentic_mooncake" in capsys.readouterr().err
