"""Whole replays of the TensorRT-LLM flavour: both clocks, reruns, audits and explanations of their logs."""

from __future__ import annotations

import tempfile
from collections import Counter
from fractions import Fraction
from pathlib import Path

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from mocker_replay.config import EngineConfig, RealtimeOptions
from mocker_replay.errors import ExitCode
from mocker_replay.log.audit.run import audit
from mocker_replay.log.diff import diff_logs
from mocker_replay.log.explain import explain
from mocker_replay.replay.rerun import rerun
from tests.property import test_disaggregated_replays
from tests.property.replays import NOMINAL, Case, cases, conserves, measured, paces, run
from tests.support.realtime_replay import Pace

several = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def of_trtllm(config: EngineConfig) -> EngineConfig:
    return structs.replace(config, backend="trtllm", prefill_schedule_interval=1)


@st.composite
def trtllm_cases(draw: st.DrawFn) -> Case:
    """With workers of one kind and of two."""
    case = draw(st.one_of(cases(), cases(), test_disaggregated_replays.cases()))
    case.config = of_trtllm(case.config)
    if case.prefill is not None:
        case.prefill = of_trtllm(case.prefill)
    case.options = structs.replace(case.options, policy="fcfs")
    named = Counter(row["request_id"] for row in case.rows if "request_id" in row)
    case.rows = [row if named[row.get("request_id")] < 2 else _nameless(row) for row in case.rows]
    return case


def _nameless(row: dict[str, object]) -> dict[str, object]:
    """Lines of a name that several rows have do not say which they mean."""
    return {key: value for key, value in row.items() if key != "request_id"}


def is_clean(log: Path, summary: dict[str, object]) -> None:
    report = audit(log, summary)
    assert report.exit_code == ExitCode.OK, [finding.to_mapping() for finding in report.findings[:3]]


@given(trtllm_cases(), paces)
@several
def test_the_nominal_clock_gives_the_accelerated_run(case: Case, pace: Pace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        accelerated = run(case, folder)
        is_clean(folder / "events.jsonl", accelerated.summary)
        for lateness in (None, pace):
            outputs = run(case, folder, NOMINAL, lateness)
            assert outputs.bare() == accelerated.bare()
            again = rerun(folder / "events.jsonl")
            assert again.difference is None, again.difference


@given(trtllm_cases(), paces, measured)
@several
def test_a_measured_run_runs_again(case: Case, pace: Pace, realtime: RealtimeOptions) -> None:
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "events.jsonl"
        outputs = run(case, Path(name), realtime, pace)
        again = rerun(log)
        assert again.difference is None, again.difference
        conserves(orjson.loads(outputs.log.splitlines()[-1]), outputs)
        is_clean(log, outputs.summary)


@given(trtllm_cases())
@several
def test_a_log_is_explained_and_like_itself(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, copy = Path(folder) / "events.jsonl", Path(folder) / "copy.jsonl"
        outputs = run(case, Path(folder))
        copy.write_bytes(outputs.log)
        assert diff_logs(log, copy, verify=True).same
        for line in outputs.log.splitlines()[1:-1]:
            event = orjson.loads(line)
            if event["event"] == "arrival":
                told = explain(log, event["request"])
                parts = sum((ms for _, ms, _ in told.parts()), Fraction(0))
                assert parts == Fraction(told.end_ms) - Fraction(told.arrival_ms)
                assert told.preemptions == 0
