"""Every reference case of the SGLang-flavoured engine, through the product and through the slow model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mocker_replay.errors import ConfigError, InvariantError
from tests.parity import compare
from tests.parity.cases import Case, load_cases
from tests.parity.runners import RUNNERS, run_product_case

CASES = load_cases("sglang")
REFUSED = {"s28_error_chunk_not_page_multiple": "engine.sglang.chunked_prefill_size: must be divisible by block_size"}
STUCK = ("s27_error_input_budget",)
RUNS = [case for case in CASES if not case.error]
# What is known of outputs beforehand is no matter of the model.
MODELLED = [case for case in RUNS if "trace_format" not in case.args]
OF_THE_RUN = ("summary", "telemetry", "telemetry_columns", "telemetry_interval_ms")


def differences(case: Case, runner: str, folder: Path) -> list[str]:
    outcome = RUNNERS[runner](case, folder)
    columns = {name: values for name, values in case.expect.items() if name not in OF_THE_RUN}
    found = compare.compare_columns(columns, outcome.columns())
    if "summary" in case.expect:
        found += compare.compare_summary(case.expect["summary"], outcome.summary)
    if "telemetry" in case.expect:
        assert outcome.telemetry is not None
        rows = [_row(sample, case.expect["telemetry_columns"]) for sample in outcome.telemetry["samples"]]
        if rows != case.expect["telemetry"]:
            found.append(f"telemetry: expected {case.expect['telemetry']}, got {rows}")
    return found


def _row(sample: dict[str, Any], columns: list[str]) -> list[Any]:
    (gauges,) = sample["decode_scheduler_metrics"]
    told = {**sample, **gauges, **sample["decode_interval_metrics"]}
    return [told[name] for name in columns]


def test_nothing_is_left_out() -> None:
    assert len(CASES) == 35
    assert len(RUNS) + len(REFUSED) + len(STUCK) == len(CASES)
    assert len(MODELLED) == len(RUNS) - 1


@pytest.mark.parametrize("case", RUNS, ids=lambda case: case.name)
def test_run_equals_the_reference(case: Case, tmp_path: Path) -> None:
    assert differences(case, "product", tmp_path) == []


@pytest.mark.parametrize("case", MODELLED, ids=lambda case: case.name)
def test_the_model_equals_the_reference(case: Case, tmp_path: Path) -> None:
    assert differences(case, "model", tmp_path) == []


@pytest.mark.parametrize("case", [case for case in CASES if case.name in REFUSED], ids=lambda case: case.name)
def test_what_cannot_run_is_refused_by_name(case: Case, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run_product_case(case, tmp_path)
    assert REFUSED[case.name] in str(caught.value)
    assert not (tmp_path / "events.jsonl").exists()


@pytest.mark.parametrize("case", [case for case in CASES if case.name in STUCK], ids=lambda case: case.name)
def test_a_head_that_can_never_be_admitted_ends_the_run(case: Case, tmp_path: Path) -> None:
    with pytest.raises(InvariantError) as caught:
        run_product_case(case, tmp_path)
    assert "passes without effect" in str(caught.value)
    assert "row 0 waiting" in str(caught.value)
