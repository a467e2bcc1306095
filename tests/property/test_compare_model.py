"""The bootstrap over blocks against a slow model that writes every draw out, and what must not matter: row numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_replay.report import compare_blocks
from mocker_replay.report.compare_blocks import PairedRuns, drawn_blocks, neighbour_correlation, rank_grid
from mocker_replay.report.compare_metrics import METRICS, Kind, Metric, RunSample
from mocker_replay.report.compare_verdict import Rules, compare_runs
from mocker_replay.report.metrics import nearest_rank
from tests.support.compare_samples import random_sample

BLOCK_METRICS = [metric for metric in METRICS if metric.kind in (Kind.MEAN, Kind.QUANTILE, Kind.RATIO)]


def drawn_rows(runs: PairedRuns, num_blocks: int, draw: int) -> Iterator[int]:
    """The rows of one draw, each as often as its block was drawn."""
    times = drawn_blocks(num_blocks)[draw]
    for row, block in enumerate(runs.block_of(num_blocks).tolist()):
        for _ in range(int(times[block])):
            yield row


def slow_figure(metric: Metric, sample: RunSample, rows: list[int]) -> float:
    """The figure of these rows, by the book."""
    upper = [float(sample.columns[metric.column][row]) for row in rows]
    if metric.kind is Kind.RATIO:
        if not metric.per:
            return math.fsum(upper)
        lower = math.fsum(float(sample.columns[metric.per][row]) for row in rows)
        return math.fsum(upper) / lower if lower else math.nan
    values = sorted(value for value in upper if value == value)
    if not values:
        return math.nan
    if metric.kind is Kind.MEAN:
        return math.fsum(values) / len(values)
    return values[nearest_rank(len(values), metric.percent)]


@pytest.mark.parametrize("metric", BLOCK_METRICS, ids=lambda metric: metric.name)
@given(seed=st.integers(0, 10_000), num_blocks=st.sampled_from([8, 12, 24]))
@settings(max_examples=8)
def test_draws_are_those_of_the_model(metric: Metric, seed: int, num_blocks: int) -> None:
    sample = random_sample(seed, 60)
    runs = PairedRuns([sample], [sample])
    found = compare_blocks._resampled(metric, sample, runs.block_of(num_blocks), num_blocks)
    for draw in range(0, compare_blocks.RESAMPLES, 41):
        expected = slow_figure(metric, sample, list(drawn_rows(runs, num_blocks, draw)))
        if math.isnan(expected):
            assert not math.isfinite(found[draw])
        else:
            assert found[draw] == pytest.approx(expected, rel=1e-12)


@given(seed=st.integers(0, 10_000), num_rows=st.integers(1, 300))
def test_blocks_hold_consecutive_arrivals_and_all_rows(seed: int, num_rows: int) -> None:
    sample = random_sample(seed, num_rows)
    runs = PairedRuns([sample], [sample])
    for num_blocks in compare_blocks.NUM_BLOCKS:
        blocks = runs.block_of(num_blocks)[np.argsort(sample.arrival_ms, kind="stable")]
        assert (np.diff(blocks) >= 0).all()
        sizes = np.bincount(blocks, minlength=num_blocks)
        assert len(sizes) == num_blocks
        assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("num_replicates", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_number_of_a_row_does_not_matter(seed: int, num_replicates: int) -> None:
    baseline = [random_sample(seed + 10 * i, 400) for i in range(num_replicates)]
    variant = [random_sample(seed + 10 * i, 400, slower=1.2) for i in range(num_replicates)]
    order = list(range(400))
    random.Random(seed).shuffle(order)

    def renumbered(sample: RunSample) -> RunSample:
        columns = {name: column[order] for name, column in sample.columns.items()}
        return RunSample(sample.arrival_ms[order], columns, sample.values)

    plain = compare_runs("b", baseline, variant, Rules(), goals=True)
    other = compare_runs("b", [renumbered(s) for s in baseline], [renumbered(s) for s in variant], Rules(), goals=True)
    for a, b in zip(plain.metrics, other.metrics, strict=True):
        assert (a.verdict, a.basis, a.num_blocks) == (b.verdict, b.basis, b.num_blocks)
        assert (a.interval is None) == (b.interval is None)
        if a.interval is not None and b.interval is not None:
            assert a.interval == pytest.approx(b.interval, rel=1e-4)


@given(st.integers(1, 3_000_000), st.sampled_from([50.0, 90.0, 99.0]))
def test_the_grid_of_ranks(num_samples: int, percent: float) -> None:
    grid = rank_grid(num_samples, percent)
    assert (np.diff(grid) > 0).all()
    assert grid[-1] == num_samples - 1
    assert 0 <= grid[0] <= nearest_rank(num_samples, percent)
    assert len(grid) <= compare_blocks._GRID + 1


def test_correlation_of_neighbours() -> None:
    assert neighbour_correlation(np.arange(64.0)) > 0.9
    assert neighbour_correlation(np.array([1.0, -1.0] * 32)) < -0.9
    assert neighbour_correlation(np.ones(16)) == 0.0
