"""Every reference case of the TensorRT-LLM-flavoured engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.parity import compare
from tests.parity.cases import Case, load_cases
from tests.parity.runners import RUNNERS

CASES = load_cases("trtllm")
TELEMETRY = ("telemetry", "telemetry_columns", "telemetry_interval_ms", "summary")


def told(record: dict[str, Any]) -> dict[str, Any]:
    admissions = [[a["at_ms"], a["reused_input_tokens"]] for a in record["admission_history"]]
    return record | {"admissions": admissions}


def gauges(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples of one rank, flat."""
    return [
        sample | sample["decode_scheduler_metrics"][0] | sample["decode_interval_metrics"]
        | {"sample_ordinal": ordinal}
        for ordinal, sample in enumerate(samples)
    ]  # fmt: skip


def differences(case: Case, runner: str, folder: Path) -> list[str]:
    outcome = RUNNERS[runner](case, folder)
    records = [told(record) for record in outcome.records]
    columns = {name: values for name, values in case.expect.items() if name not in TELEMETRY}
    found = compare.compare_columns(columns, {name: [r.get(name) for r in records] for name in columns})
    found += compare.compare_summary(case.expect.get("summary", {}), outcome.summary)
    if "telemetry" in case.expect:
        assert outcome.telemetry is not None
        wanted = [
            dict(zip(case.expect["telemetry_columns"], row, strict=True)) | {"sample_ordinal": ordinal}
            for ordinal, row in enumerate(case.expect["telemetry"])
        ]
        found += compare.compare_telemetry({"samples": wanted}, {"samples": gauges(outcome.telemetry["samples"])})
    return found


def test_nothing_is_left_out() -> None:
    assert len(CASES) == 25
    assert not any("error" in case.expect for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_run_equals_the_reference(case: Case, tmp_path: Path) -> None:
    assert differences(case, "product", tmp_path) == []


@pytest.mark.parametrize("case", [c for c in CASES if c.format == "mooncake"], ids=lambda c: c.name)
def test_the_model_equals_the_reference(case: Case, tmp_path: Path) -> None:
    assert differences(case, "model", tmp_path) == []
