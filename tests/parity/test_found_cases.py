"""Cases on which the fuzzer once found a difference, shrunk: what the reference says of them, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz.routed import following
from tests.fuzz.verdict import TICK_MS, busy
from tests.parity import compare
from tests.parity.cases import CASES, read_replay_case
from tests.parity.runners import run_product_case

FOUND = sorted((CASES / "found").glob("*.json"))


def test_nothing_is_left_out() -> None:
    assert len(FOUND) == 87


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_run_equals_the_reference(path: Path, tmp_path: Path) -> None:
    case = read_replay_case(json.loads(path.read_text()))
    expect = case.expect
    with following(case, expect["per_request"]) as draws:
        ours = run_product_case(case, tmp_path)
    assert not draws.unknown
    found = compare.compare_records(expect["per_request"], ours.records)
    found += compare.compare_summary(expect["summary"], ours.summary)
    if "telemetry" in expect:
        assert ours.telemetry is not None
        found += compare.compare_telemetry(expect["telemetry"], ours.telemetry)
    if "passes" in expect:
        newest = ours.newest_passes(TICK_MS, case.args.get("max_sim_time_ms"))
        found += compare.compare_passes(expect["passes"], busy(newest))
    assert found == []
