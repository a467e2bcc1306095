"""Graphs of requests: the product against the slow model, in real time, and what holds of every run of them."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mocker_replay._core.log_encoder import LEVELS
from mocker_replay.config import RealtimeOptions, ReplayOptions, load_engine_config
from mocker_replay.log.audit.run import audit
from mocker_replay.replay.rerun import rerun
from tests.fuzz.graphs import make_graph_case
from tests.parity import compare
from tests.parity.cases import Case as ReferenceCase
from tests.parity.runners import run_model_case, run_product_case
from tests.property.replays import NOMINAL, Case, Outputs, conserves, measured, paces, run
from tests.support.realtime_replay import Pace

seeds = st.integers(0, 2**32 - 1)
some = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def quick(seed: int) -> ReferenceCase:
    """A random graph whose run needs no samples and no profile file."""
    case = make_graph_case(seed)
    args = {k: v for k, v in case.args.items() if k not in ("telemetry_sample_interval_ms", "router_mode")}
    config = json.loads(json.dumps(case.config))
    if config["engine"]["timing_model"]["type"] == "external":
        config["engine"]["timing_model"] = {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 1.0}
    return dataclasses.replace(case, args=args, config=config, npz_arrays={})


def as_replay(seed: int, level: str) -> Case:
    case = quick(seed)
    return Case(load_engine_config(case.config), ReplayOptions(**case.args), case.rows, level, 1024)


@some
@given(seeds)
def test_the_product_is_the_slow_model(seed: int) -> None:
    case = quick(seed)
    with tempfile.TemporaryDirectory() as name:
        model, product = (runner(case, Path(name)) for runner in (run_model_case, run_product_case))
    assert compare.compare_records(model.records, product.records) == []
    told: dict[str, Any] = {**product.summary}
    told["agentic_graph"] = {k: v for k, v in told["agentic_graph"].items() if k != "graph_digest"}
    assert compare.compare_summary(model.summary, told) == []


@some
@given(seeds, paces, st.sampled_from(LEVELS))
def test_the_nominal_clock_gives_the_accelerated_run(seed: int, pace: Pace, level: str) -> None:
    case = as_replay(seed, level)
    with tempfile.TemporaryDirectory() as name:
        accelerated = run(case, Path(name))
        outputs = run(case, Path(name), NOMINAL, pace)
        assert outputs.bare() == accelerated.bare()
        assert rerun(Path(name) / "events.jsonl").difference is None
        assert audit(Path(name) / "events.jsonl", outputs.summary).findings == []
    keeps_its_rules(case, accelerated)


@some
@given(seeds, paces, measured)
def test_a_measured_run_keeps_the_rules_and_runs_again(seed: int, pace: Pace, realtime: RealtimeOptions) -> None:
    case = as_replay(seed, "passes")
    with tempfile.TemporaryDirectory() as name:
        outputs = run(case, Path(name), realtime, pace)
        assert rerun(Path(name) / "events.jsonl").difference is None
        assert audit(Path(name) / "events.jsonl", outputs.summary).findings == []
    keeps_its_rules(case, outputs)


def keeps_its_rules(case: Case, outputs: Outputs) -> None:
    """Whoever arrived waited for all it depends on; a play that failed starts nothing; nobody is lost."""
    header, *lines, footer = [orjson.loads(line) for line in outputs.log.splitlines()]
    conserves(footer, outputs)
    rows = {row["request_id"]: row for row in case.rows[1:]}
    assert header["trace"]["rows"] == len(rows)
    if footer["end"] == "complete":
        assert footer["arrived"] + footer["skipped"] == len(rows)
    arrived: dict[str, float] = {}
    completed: dict[str, float] = {}
    failed: set[str] = set()
    for event in lines:
        name = event.get("request")
        if event["event"] == "arrival":
            row = rows[name]
            assert row["play_id"] not in failed
            for edge in row.get("dependencies", ()):
                fired = (arrived if edge["trigger"] == "dispatch" else completed)[edge["request_id"]]
                assert event["t_ms"] >= fired + edge["delay_ms"] / case.options.arrival_speedup_ratio
            arrived[name] = event["t_ms"]
        elif event["event"] == "finish":
            completed[name] = event["t_ms"]
        elif event["event"] in ("rejection", "failure", "cancellation"):
            failed.add(rows[name]["play_id"])


@pytest.mark.parametrize("length", [3_000])
def test_a_long_chain_takes_no_recursion(length: int, tmp_path: Path) -> None:
    header, *_ = quick(1).rows
    rows = [
        {
            "request_id": f"{at:06d}", "play_id": "p", "session_id": "s", "model": "m", "input_length": 1,
            "output_length": 0, "hash_ids": [1], "not_before_ms": 0,
            "dependencies": [{"request_id": f"{at - 1:06d}", "trigger": "dispatch", "delay_ms": 0, "relation": "spawn"}]
            if at else [],
        }
        for at in range(length)
    ]  # fmt: skip
    config = load_engine_config({"engine": {"timing_model": {"type": "fixed", "prefill_ms": 1, "decode_ms": 1}}})
    options = ReplayOptions(trace_format="agentic_mooncake", execution_model="m")
    outputs = run(Case(config, options, [header, *rows], "requests", 1024), tmp_path)
    assert outputs.summary["completed_requests"] == length
    assert orjson.loads(outputs.log.splitlines()[-1])["arrived"] == length
