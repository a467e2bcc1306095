"""The benchmark of realtime fidelity, in small: it runs, its figures are those of the run, and a slope is a slope."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def drift() -> Iterator[ModuleType]:
    yield from imported("realtime_drift")


@pytest.fixture
def fidelity() -> Iterator[ModuleType]:
    yield from imported("realtime_fidelity")


def imported(name: str) -> Iterator[ModuleType]:
    """A script of the folder, which is no package; the process it starts finds it in the same way."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield __import__(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.benchmark(group="realtime")
def test_fidelity(
    benchmark: Any,
    fidelity: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 1000 * row, "input_length": 900, "output_length": 5, "hash_ids": [row, row + 9]}
        for row in range(4)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [str(trace), "--alone", "--seconds", "2.5", "--arrival-speedup-ratio", "20", "--speedup-ratio", "20"]
    monkeypatch.setattr(sys, "argv", ["realtime_fidelity.py", *arguments])
    assert benchmark.pedantic(fidelity.main, rounds=1) == 0
    text = capsys.readouterr().out
    for view in ("accelerated, the truth", fidelity.OURS, fidelity.FROM_PLAN, fidelity.FROM_HAND_OVER):
        assert f"| {view} |" in text
    assert "3 rows of the first 2.5 s of trace.jsonl" in text
    assert fidelity.THEIRS not in text
    assert "nan" not in text


def test_clients_are_counted_as_the_summary_counts(fidelity: ModuleType) -> None:
    clients = fidelity.Clients()
    clients.read_ms = {0: [11.0, 13.0, 14.0], 1: [30.0], 2: [5.0, 6.0]}
    columns = {"status": np.array([fidelity.COMPLETED, fidelity.COMPLETED, fidelity.COMPLETED + 1])}
    figures = clients.figures(columns, np.array([1.0, 10.0, 0.0]))
    assert figures == fidelity.Figures(mean_ttft_ms=15.0, p99_ttft_ms=20.0, mean_itl_ms=1.5, p99_itl_ms=2.0)


def test_a_slice_keeps_its_rows_as_they_are(fidelity: ModuleType, tmp_path: Path) -> None:
    lines = [b'{"timestamp": %d, "x":  1}' % ms for ms in (5000, 6999, 7000, 5001)]
    trace, target = tmp_path / "trace.jsonl", tmp_path / "slice.jsonl"
    trace.write_bytes(b"\n".join(lines) + b"\n\n")
    assert fidelity.cut_slice(trace, 2.0, target) == 3
    assert target.read_bytes().splitlines() == [lines[0], lines[1], lines[3]]


def test_a_slope_and_its_error(drift: ModuleType) -> None:
    draw = np.random.default_rng(1)
    at_ms = np.sort(draw.uniform(0.0, 600_500.0, 60_000))
    noise_ms = draw.normal(0.2, 0.05, len(at_ms))
    still = drift.slope_of(at_ms, noise_ms)
    assert still.is_none
    assert still.error_us_per_s < 0.1
    moving = drift.slope_of(at_ms, noise_ms + 2e-6 * at_ms)  # 2 us/s, far beyond its error
    assert moving.us_per_s == pytest.approx(2.0 + still.us_per_s, abs=1e-6)
    assert not moving.is_none


def test_a_machine_that_wanders_over_minutes_is_no_drift(drift: ModuleType) -> None:
    """Levels that change between minutes would tilt one line through everything."""
    draw = np.random.default_rng(2)
    at_ms = np.arange(0.0, 600_500.0, 10.0)
    late_ms = 0.2 + draw.normal(0.0, 0.05, len(at_ms)) + 0.02 * np.floor(at_ms / 60_000.0)
    assert drift.slope_of(at_ms, late_ms).is_none
    assert not drift.slope_of(at_ms, late_ms + 0.5e-6 * at_ms).is_none


def test_too_short_a_run_has_no_slope(drift: ModuleType) -> None:
    at_ms = np.arange(0.0, 150_000.0, 10.0)
    assert not drift.slope_of(at_ms, at_ms).is_none
    assert not drift.slope_of(at_ms[:0], at_ms[:0]).is_none


def test_lateness_is_read_from_the_lines_of_a_log(drift: ModuleType) -> None:
    lines = [
        b'{"event":"header","wall":{"mode":"realtime"}}',
        b'{"event":"arrival","t_ms":7.25,"wall":{"ms":7.5,"planned_ms":7.0}}',
        b'{"event":"pass_end","t_ms":10.0,"wall":{"ms":10.125}}',
        b'{"event":"pass_start","t_ms":10.0}',
    ]
    found = drift.read_lateness(lines)
    assert [values.tolist() for values in found["arrivals"]] == [[7.5], [0.5]]
    assert [values.tolist() for values in found["pass ends"]] == [[10.125], [0.125]]


def test_a_trace_whose_times_depend_on_the_run_is_refused(fidelity: ModuleType, tmp_path: Path) -> None:
    trace = tmp_path / "turns.jsonl"
    trace.write_text('{"timestamp": 0, "session_id": "a"}\n{"session_id": "a", "delay": 5}\n')
    with pytest.raises(SystemExit) as refused:
        fidelity.cut_slice(trace, 60.0, tmp_path / "slice.jsonl")
    assert refused.value.code == 2
