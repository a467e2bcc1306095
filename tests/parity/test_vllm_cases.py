"""Every reference case of the vLLM-flavoured engine, through the product and through the slow model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.parity import compare
from tests.parity.cases import Case, load_cases
from tests.parity.deviations import STUCK_RUNS
from tests.parity.refusals import assert_refused
from tests.parity.runners import RUNNERS

CASES = load_cases("vllm")
RUNS = [c for c in CASES if not c.error]
REFUSED = [c for c in CASES if c.error and c.name not in STUCK_RUNS]
STUCK = [c for c in CASES if c.name in STUCK_RUNS]


def differences(case: Case, runner: str, folder: Path) -> list[str]:
    outcome = RUNNERS[runner](without(case, "telemetry_sample_interval_ms"), folder)
    expect = case.expect
    columns = expect["per_request"]
    found = compare.compare_columns(columns, outcome.columns())
    found += compare.compare_summary(expect["summary"], outcome.summary)
    found += compare.compare_approximate(expect.get("summary_approx", {}), outcome.summary)
    if "fpm" in expect:
        newest = outcome.newest_passes(expect["fpm"]["tick_ms"])
        found += compare.compare_passes(expect["fpm"]["snapshots"], newest)
    if "scheduler_metrics" in expect:
        # A run of its own: samples split the sum of worker seconds, and must change nothing else.
        sampled = RUNNERS[runner](case, folder)
        found += compare.compare_gauges(expect["scheduler_metrics"], sampled.telemetry)
        found += compare.compare_columns(columns, sampled.columns())
    return found


def without(case: Case, *names: str) -> Case:
    args = {key: value for key, value in case.args.items() if key not in names}
    return dataclasses.replace(case, args=args)


def test_nothing_is_left_out() -> None:
    assert len(CASES) == 100
    assert len(RUNS) + len(REFUSED) + len(STUCK) == len(CASES)


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
    assert tuple(outcome.failures.values()) == wanted.failure_reasons
    assert outcome.exit_code == 4
