"""Every reference case of the vLLM-flavoured engine, through the product and through the slow model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.parity import compare
from tests.parity.cases import Case, load_cases
from tests.parity.deviations import OTHER_ROUTER, STUCK_RUNS
from tests.parity.refusals import assert_refused
from tests.parity.runners import RUNNERS, run_product_case

CASES = load_cases("vllm")
RUNS = [c for c in CASES if not c.error]
REFUSED = [c for c in CASES if c.error and c.name not in STUCK_RUNS]
STUCK = [c for c in CASES if c.name in STUCK_RUNS]


def differences(case: Case, runner: str, folder: Path) -> list[str]:
    outcome = RUNNERS[runner](without(case, "router_mode", "telemetry_sample_interval_ms"), folder)
    expect = dict(case.expect)
    columns = dict(expect["per_request"])
    columns.pop("reported_overlap_tokens", None)  # a router's figure; see test_router_view
    found = compare.compare_columns(columns, outcome.columns())
    found += compare.compare_summary(expect["summary"], outcome.summary)
    found += compare.compare_approximate(expect.get("summary_approx", {}), outcome.summary)
    if "fpm" in expect:
        newest = outcome.newest_passes(expect["fpm"]["tick_ms"])
        found += compare.compare_passes(expect["fpm"]["snapshots"], newest)
    if "scheduler_metrics" in expect:
        # A run of its own: samples split the sum of worker seconds, and must change nothing else.
        sampled = RUNNERS[runner](without(case, "router_mode"), folder)
        found += compare.compare_gauges(expect["scheduler_metrics"], sampled.telemetry)
        found += compare.compare_columns(columns, sampled.columns())
    return found


def without(case: Case, *names: str) -> Case:
    args = {key: value for key, value in case.args.items() if key not in names}
    return dataclasses.replace(case, args=args)


def test_nothing_is_left_out() -> None:
    assert len(CASES) == 100
    assert len(RUNS) + len(REFUSED) + len(STUCK) == len(CASES)
    assert {c.name for c in CASES if c.args.get("router_mode")} == set(OTHER_ROUTER)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("case", RUNS, ids=lambda c: c.name)
def test_run_equals_the_reference(case: Case, runner: str, tmp_path: Path) -> None:
    assert differences(case, runner, tmp_path) == []


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c.name)
def test_refused_input_is_refused(case: Case, tmp_path: Path) -> None:
    assert_refused(case, tmp_path)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("case", STUCK, ids=lambda c: c.name)
def test_a_stuck_request_fails_alone(case: Case, runner: str, tmp_path: Path) -> None:
    """Deviation: the reference raises here."""
    assert case.error is not None
    assert "effect-free zero-duration pass" in case.error["message"]
    wanted = STUCK_RUNS[case.name]
    outcome = RUNNERS[runner](case, tmp_path)
    columns = outcome.columns()
    assert tuple(columns["terminal_status"]) == wanted.statuses
    assert tuple(columns["terminal_time_ms"]) == wanted.end_ms
    assert outcome.exit_code == 4


@pytest.mark.parametrize("case", [c for c in CASES if c.name in OTHER_ROUTER], ids=lambda c: c.name)
def test_a_router_that_is_not_built_is_refused(case: Case, tmp_path: Path) -> None:
    """Deviation: the reference runs these; delete the entry when the router is built."""
    from mocker_replay.errors import UsageError

    with pytest.raises(UsageError, match="kv_router"):
        run_product_case(case, tmp_path)


@pytest.mark.parametrize("case", [c for c in CASES if c.name in OTHER_ROUTER], ids=lambda c: c.name)
def test_router_view(case: Case, tmp_path: Path) -> None:
    """What a router would see of the model's caches at each arrival: blocks become visible at pass ends."""
    from tests.model.engine_model import run_model

    run = run_model(case.rows, case.config, trace_block_size=case.args["trace_block_size"])
    assert run.per_request()["reported_overlap_tokens"] == case.expect["per_request"]["reported_overlap_tokens"]
