"""Every reference case of the replay around the engine that this product has a counterpart for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity import compare
from tests.parity.cases import Case, load_cases
from tests.parity.deviations import NO_SUCH_ARGUMENT, SESSION_NAMES_LEFT_OUT
from tests.parity.refusals import assert_refused
from tests.parity.runners import RUNNERS

CASES = load_cases("replay")
TWO_FILES = "mooncake-error-two-files"
RUNS = [c for c in CASES if not c.error]
# The slow model knows no histories, and replays rows and graphs: what is lowered to them has slow models of its own.
NOT_MODELLED = ("mooncake-delta", "weka", "dynamo", "applied_compute_agentic")
# Pools of workers have a slow model of who owns what (tests/model/handoff.py), not of a whole run.
MODELLED = [c for c in RUNS if c.format not in NOT_MODELLED and "prefill_engine_args" not in c.config]
RUNS_OF = {name: RUNS if name == "product" else MODELLED for name in RUNNERS}
REFUSED = [c for c in CASES if c.error and c.name not in NO_SUCH_ARGUMENT and c.name != TWO_FILES]


def differences(case: Case, runner: str, folder: Path) -> list[str]:
    outcome = RUNNERS[runner](case, folder)
    expected = case.expect["per_request"]
    if case.name in SESSION_NAMES_LEFT_OUT:
        assert all(r.get("session_id") is None for r in outcome.records), "no longer a deviation"
        expected = [{k: v for k, v in r.items() if k not in ("session_id", "turn_index")} for r in expected]
    found = compare.compare_records(expected, outcome.records)
    found += compare.compare_summary(case.expect["summary"], outcome.summary)
    if "telemetry" in case.expect:
        found += compare.compare_telemetry(case.expect["telemetry"], outcome.telemetry)
    return found


def test_nothing_is_left_out() -> None:
    assert len(CASES) >= 206
    assert NO_SUCH_ARGUMENT.keys() | SESSION_NAMES_LEFT_OUT <= {c.name for c in CASES}


@pytest.mark.parametrize(
    ("runner", "case"), [pytest.param(r, c, id=f"{c.name}-{r}") for r, cases in RUNS_OF.items() for c in cases]
)
def test_run_equals_the_reference(runner: str, case: Case, tmp_path: Path) -> None:
    assert differences(case, runner, tmp_path) == []


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c.name)
def test_refused_input_is_refused(case: Case, tmp_path: Path) -> None:
    assert_refused(case, tmp_path)


@pytest.mark.parametrize(("name", "argument"), NO_SUCH_ARGUMENT.items())
def test_an_argument_we_lack_is_still_lacking(name: str, argument: str) -> None:
    """Deviation: the reference checks these arguments; delete the entry when the argument exists."""
    from mocker_replay.config import ReplayOptions

    assert argument not in ReplayOptions.__struct_fields__


def test_a_second_trace_is_refused(tmp_path: Path) -> None:
    from mocker_replay.cli.app import run_main

    case = next(c for c in CASES if c.name == TWO_FILES)
    assert case.num_files == 2
    trace = str(case.write_trace(tmp_path))
    assert run_main(["run", trace, trace]) == 2
