"""Every log that stands in this repository as the log of a run is clean, and so is its summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from mocker_replay.log.audit.run import audit, read_summary

GOLDEN = Path(__file__).parent
RUNS = sorted((GOLDEN / "runs").glob("*/events.jsonl"))
REALTIME = sorted((GOLDEN / "realtime").glob("*.jsonl"))


def test_there_are_goldens() -> None:
    assert RUNS
    assert REALTIME


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_a_golden_run_is_clean(path: Path) -> None:
    report = audit(path, read_summary(path.with_name("summary.json")))
    assert (report.findings, report.damage) == ([], None)
    wall = set(report.figures_not_compared)
    assert all(name.startswith(("wall_", "processed_", "virtual_")) for name in wall), (
        "all that is modelled is compared"
    )


@pytest.mark.parametrize("path", REALTIME, ids=lambda path: path.stem)
def test_a_golden_realtime_log_is_clean(path: Path) -> None:
    report = audit(path)
    assert (report.findings, report.damage) == ([], None)
