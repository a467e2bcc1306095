"""Blocks: how many there are, what makes an error larger, and where there is none."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from mocker_replay.report.compare_blocks import (
    DF_MIN,
    NUM_BLOCKS,
    BlockError,
    PairedRuns,
    degrees_of_freedom,
    influence,
)
from mocker_replay.report.compare_metrics import METRICS, Metric, RunSample
from tests.support.compare_samples import random_sample, with_values

BY_NAME = {metric.name: metric for metric in METRICS}
ROWS = 960


def with_column(sample: RunSample, name: str, added: np.ndarray) -> RunSample:
    """The sample with something added to a latency, in order of arrival."""
    column = sample.columns[name].copy()
    column[np.argsort(sample.arrival_ms)] += added
    return with_values(sample.arrival_ms, dict(sample.columns) | {name: column})


def error_of(name: str, baseline: RunSample, variant: RunSample, **given: bool) -> BlockError:
    return PairedRuns([baseline], [variant]).error(BY_NAME[name], 1.0, **given)


def noise(seed: int, scale: float = 1.0) -> np.ndarray:
    rng = random.Random(seed)
    return np.array([rng.gauss(0.0, scale) for _ in range(ROWS)])


SAMPLE = random_sample(1, ROWS, missing=0.0)


def test_independent_requests_have_the_error_of_independent_requests() -> None:
    ratios = []
    for seed in range(12):
        found = error_of("mean_tpot_ms", SAMPLE, with_column(SAMPLE, "tpot_ms", noise(seed)))
        assert found.error is not None
        ratios.append(found.error / (1.0 / math.sqrt(ROWS)))
    assert 0.9 < np.median(ratios) < 1.6
    assert min(ratios) > 0.7


def test_requests_that_go_together_have_a_larger_error() -> None:
    """Runs of 20 alike: a twentieth of the information."""
    rng = random.Random(3)
    alike = np.repeat([rng.gauss(0.0, 1.0) for _ in range(ROWS // 20)], 20)
    found = error_of("mean_tpot_ms", SAMPLE, with_column(SAMPLE, "tpot_ms", alike))
    assert found.error is not None
    assert found.num_blocks is not None
    assert found.num_blocks <= ROWS // 20
    assert found.error > 0.7 * math.sqrt(20 / ROWS)


def test_few_blocks_that_make_the_difference_know_less() -> None:
    assert degrees_of_freedom(np.array([1.0, -1.0] * 8)) == 15
    assert degrees_of_freedom(np.zeros(16)) == 15
    assert degrees_of_freedom(np.array([*[0.0] * 15, 7.0])) < DF_MIN
    burst = np.zeros(ROWS)
    burst[300:310] = 500.0
    found = error_of("mean_tpot_ms", SAMPLE, with_column(SAMPLE, "tpot_ms", burst))
    assert found.error is None
    assert found.reason == "too few independent stretches of the trace"


def test_waiting_that_drifts_in_both_runs_has_no_error() -> None:
    drift = np.linspace(0.0, 400.0, ROWS)
    for name, is_known in (("ttft_ms", False), ("tpot_ms", True)):
        baseline = with_column(SAMPLE, name, drift)
        variant = with_column(baseline, name, noise(5))
        assert (error_of(f"mean_{name}", baseline, variant).error is not None) is is_known


def test_blocks_that_are_alike_have_a_large_error_or_none() -> None:
    rng = random.Random(11)
    wave = np.repeat([1.0, 0.5, 1.0, 0.4, -0.6, -1.0, -0.3, -1.0], ROWS // 8) + noise(2, 0.01)
    slow = with_column(SAMPLE, "tpot_ms", wave)
    assert error_of("mean_tpot_ms", SAMPLE, slow, strict=True).error is None
    fast = with_column(SAMPLE, "tpot_ms", np.array([rng.choice([-0.8, 0.8]) for _ in range(ROWS)]))
    lenient, usual = error_of("mean_tpot_ms", SAMPLE, slow), error_of("mean_tpot_ms", SAMPLE, fast)
    assert usual.error is not None
    assert lenient.error is None or (lenient.num_blocks == NUM_BLOCKS[-1] and lenient.error > 5 * usual.error)


@pytest.mark.parametrize("metric", [m for m in METRICS if m.column and m.name in SAMPLE.values], ids=lambda m: m.name)
def test_influences_add_up_to_nothing(metric: Metric) -> None:
    if metric.column in SAMPLE.columns:
        rows = influence(metric, SAMPLE)
        assert rows.shape == (ROWS,)
        assert abs(rows.sum()) <= 1e-9 * max(np.abs(rows).sum(), 1.0)


def test_an_influence_is_what_a_row_moves() -> None:
    """Weighing a row a little more moves the figure by its influence, to first order."""
    metric, step, row = BY_NAME["mean_itl_ms"], 1e-6, 17
    upper, lower = SAMPLE.columns[metric.column], SAMPLE.columns[metric.per]
    moved = (upper.sum() + step * upper[row]) / (lower.sum() + step * lower[row])
    assert (moved - upper.sum() / lower.sum()) / step == pytest.approx(influence(metric, SAMPLE)[row], rel=1e-3)
