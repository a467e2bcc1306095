"""Whole replays with prefill and decode workers: both clocks against the accelerated run, reruns, audits."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from pathlib import Path

import orjson
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mocker_replay.config import EngineConfig, RealtimeOptions, ReplayOptions
from mocker_replay.errors import ExitCode, InvariantError
from mocker_replay.log.audit.run import audit
from mocker_replay.log.wall import bare_lines, read_wall
from mocker_replay.replay.rerun import rerun
from tests.property.replays import (
    NOMINAL,
    TRACE_BLOCK_SIZE,
    Case,
    configs,
    conserves,
    documents,
    measured,
    paces,
    run,
    tiered,
    traces,
)
from tests.support.realtime_replay import Pace

many = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def without_storms(config: EngineConfig) -> EngineConfig:
    """Bursts that preempt each other take thousands of passes of no length at one instant, where they are free."""
    return dataclasses.replace(config, aic_nextn=None, aic_nextn_accept_rates=())


@st.composite
def cases(draw: st.DrawFn) -> Case:
    decode = without_storms(dataclasses.replace(draw(configs()), worker_type="decode"))
    prefill = dataclasses.replace(
        without_storms(draw(configs())),
        worker_type="prefill",
        block_size=decode.block_size,
        kv_transfer_bandwidth=draw(st.sampled_from([None, 0.0, 1.0, 4.0])),
        kv_transfer_bytes_per_token=draw(st.sampled_from([None, 500_000, 1_000_000])),
        kv_transfer_timing_mode=draw(st.sampled_from(["full_prompt", "destination_missing"])),
    )
    options = ReplayOptions(
        num_prefill_workers=draw(st.integers(1, 2)),
        num_decode_workers=draw(st.integers(1, 2)),
        replay_concurrency=draw(st.sampled_from([None, None, None, 1, 3])),
        arrival_speedup_ratio=draw(st.sampled_from([1.0, 1.0, 0.3])),
        trace_block_size=TRACE_BLOCK_SIZE,
        max_sim_time_ms=draw(st.sampled_from([None, None, None, 0.0, 11.0, 40.25])),
        policy=draw(st.sampled_from(["fcfs", "fcfs", "sjf", "lpm", "priority", "edf"])),
    )
    level, batch_rows = draw(st.sampled_from(["requests", "passes", "tokens", "kv"])), draw(st.sampled_from([1, 1024]))
    return Case(decode, options, draw(traces()), level, batch_rows, prefill)


@st.composite
def tier_cases(draw: st.DrawFn) -> Case:
    """The same with host memory at either end or both. Decode workers store what arrived, and load it for those that
    were preempted: outputs go over a block there, and half of the pools hold two prompts."""
    case = draw(cases())
    assert case.prefill is not None
    num_blocks = draw(st.integers(4, 6))
    at_prefill, at_decode = draw(st.sampled_from([(True, True), (True, False), (False, True), (False, True)]))
    if at_prefill:
        case.prefill = draw(tiered(case.prefill, num_blocks))
    if at_decode:
        case.config = draw(tiered(case.config, draw(st.integers(num_blocks, 2 * num_blocks + 1))))
    case.options = dataclasses.replace(case.options, max_sim_time_ms=None)
    case.rows = draw(documents((num_blocks - 1) * case.config.block_size))
    for row in case.rows:
        row["output_length"] += draw(st.sampled_from([0, 0, 2, 6]))
    return case


def is_clean(log: Path) -> None:
    report = audit(log)
    assert report.exit_code == ExitCode.OK, [finding.to_mapping() for finding in report.findings[:3]]


def may_get_stuck(case: Case) -> bool:
    """Whether activated requests can stand in each other's way for ever, which ends a run (docs/handoff.md)."""
    with tempfile.TemporaryDirectory() as name:
        try:
            run(case, Path(name))
        except InvariantError:
            return True
    return False


@given(cases(), paces)
@many
def test_the_nominal_clock_gives_the_accelerated_run(case: Case, pace: Pace) -> None:
    is_the_accelerated_run(case, pace)


@given(tier_cases(), paces)
@many
def test_the_nominal_clock_gives_the_accelerated_run_with_host_tiers(case: Case, pace: Pace) -> None:
    is_the_accelerated_run(case, pace)


def is_the_accelerated_run(case: Case, pace: Pace) -> None:
    assume(not may_get_stuck(case))
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "events.jsonl"
        accelerated = run(case, Path(name)).bare()
        is_clean(log)
        for lateness in (None, pace):
            assert run(case, Path(name), NOMINAL, lateness).bare() == accelerated
            again = rerun(log)
            assert again.difference is None, again.difference


@given(cases(), paces, measured)
@many
def test_a_measured_run_runs_again_and_loses_nobody(case: Case, pace: Pace, realtime: RealtimeOptions) -> None:
    runs_again_and_loses_nobody(case, pace, realtime)


@given(tier_cases(), paces, measured)
@many
def test_a_measured_run_with_host_tiers_runs_again_and_loses_nobody(
    case: Case, pace: Pace, realtime: RealtimeOptions
) -> None:
    runs_again_and_loses_nobody(case, pace, realtime)


def runs_again_and_loses_nobody(case: Case, pace: Pace, realtime: RealtimeOptions) -> None:
    assume(not may_get_stuck(case))
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "events.jsonl"
        try:
            outputs = run(case, Path(name), realtime, pace)
        except InvariantError:  # stuck at other times than an accelerated run
            assume(False)
        again = rerun(log)
        assert again.difference is None, again.difference
        is_clean(log)
    footer = orjson.loads(read_wall(outputs.log.splitlines()[-1])[0])
    conserves(footer, outputs)
    if case.options.max_sim_time_ms is None:
        assert footer["arrived"] == len(case.rows)
    assert math.isfinite(outputs.result.facts.end_ms)


@given(cases(), paces, measured | st.just(NOMINAL), st.integers(1, 10) | st.integers(10, 60) | st.integers(30, 250))
@many
def test_an_interrupted_run_keeps_what_was_true(case: Case, pace: Pace, realtime: RealtimeOptions, turn: int) -> None:
    assume(not may_get_stuck(case))
    pace.interrupt_turn = turn
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "events.jsonl"
        try:
            outputs = run(case, Path(name), realtime, pace)
        except InvariantError:
            assume(False)
        again = rerun(log)
        assert again.difference is None, again.difference
        is_clean(log)
        whole = run(case, Path(name)).log.splitlines() if realtime is NOMINAL else None
    lines = bare_lines(outputs.log).splitlines()
    conserves(orjson.loads(lines[-1]), outputs)
    if whole is not None:
        told = [line for line in lines[:-1] if b'"event":"cut"' not in line]
        assert told == whole[: len(told)]
