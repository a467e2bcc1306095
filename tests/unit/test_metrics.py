"""Statistics: nearest rank, exact weighted sums, population deviation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_replay.report import metrics

SAMPLES = st.lists(st.floats(0.0, 1e6, allow_subnormal=False), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("n", "percent", "index"),
    [(1, 50, 0), (1, 99, 0), (2, 50, 1), (4, 50, 2), (4, 75, 2), (4, 90, 3), (11, 50, 5), (11, 75, 8), (11, 95, 10)],
)
def test_nearest_rank_rounds_half_up(n: int, percent: float, index: int) -> None:
    assert metrics.nearest_rank(n, percent) == index


def test_describe_by_hand() -> None:
    described = metrics.describe(np.array([4.0, 1.0, 3.0, 2.0]))
    assert described == {
        "mean": 2.5,
        "min": 1.0,
        "max": 4.0,
        "median": 3.0,
        "p75": 3.0,
        "p90": 4.0,
        "p95": 4.0,
        "p99": 4.0,
        "std": math.sqrt(1.25),
    }
    assert tuple(described) == metrics.STATISTICS


def test_weighted_by_hand() -> None:
    described = metrics.describe_weighted(np.array([1.0, 11.0]), np.array([9, 1]))
    assert described["mean"] == 2.0
    assert described["std"] == 3.0
    assert (described["median"], described["p90"], described["p95"], described["p99"]) == (1.0, 1.0, 11.0, 11.0)


def test_no_samples_give_zeros() -> None:
    empty = np.empty(0)
    assert metrics.describe(empty) == dict.fromkeys(metrics.STATISTICS, 0.0)
    assert metrics.describe_weighted(empty, np.empty(0, np.int64)) == dict.fromkeys(metrics.STATISTICS, 0.0)


@given(SAMPLES)
def test_weights_stand_for_repeated_samples(samples: list[float]) -> None:
    listed = metrics.describe(np.array(samples))
    values, weights = np.unique(np.array(samples), return_counts=True)
    weighted = metrics.describe_weighted(values, weights.astype(np.int64))
    for name in metrics.STATISTICS:
        assert weighted[name] == pytest.approx(listed[name], rel=1e-9, abs=1e-7 if name == "std" else 0.0)
    for name, percent in metrics.PERCENTILES.items():
        assert weighted[name] == sorted(samples)[metrics.nearest_rank(len(samples), percent)]


def test_throughput_per_user_leaves_out_bursts() -> None:
    values, weights = metrics.per_user_throughput(np.array([0.0, 2.0, 10.0]), np.array([7, 3, 1]))
    assert values.tolist() == [100.0, 500.0]
    assert weights.tolist() == [1, 3]


def test_latencies_are_clamped_and_absent_where_undefined() -> None:
    columns = {
        "arrival_ms": np.array([5.0, 20.0, 0.0]),
        "first_token_ms": np.array([15.0, 10.0, math.nan]),
        "second_token_ms": np.array([18.0, math.nan, math.nan]),
        "last_token_ms": np.array([21.0, 10.0, math.nan]),
        "output_tokens": np.array([3, 1, 0]),
    }
    np.testing.assert_array_equal(metrics.ttft_ms(columns), [10.0, 0.0, math.nan])
    np.testing.assert_array_equal(metrics.ttst_ms(columns), [3.0, math.nan, math.nan])
    np.testing.assert_array_equal(metrics.tpot_ms(columns), [3.0, math.nan, math.nan])
    np.testing.assert_array_equal(metrics.e2e_ms(columns), [16.0, 0.0, math.nan])
