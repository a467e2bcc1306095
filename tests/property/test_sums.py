"""Sums of the core against `math.fsum` and against adding from the left."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mocker_replay._core import sums

FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)
# Values whose sum lies between two doubles, far apart ones, equal ones that cancel.
HARD = st.sampled_from([1e16, -1e16, 1.0, -1.0, 0.1, 2.0**-53, 2.0**-54, 2.0**53, 5e-324, -5e-324, 1e300, -1e300])
VALUES = arrays.arrays(np.float64, st.integers(0, 40), elements=st.one_of(FINITE, HARD))


@given(VALUES)
def test_exact_sum_is_rounded_once(values) -> None:
    ones = np.ones(len(values), np.int64)
    assert sums.exact_weighted_sum(values, ones) == math.fsum(values.tolist())
    assert sums.exact_weighted_sum(values[::-1], ones) == math.fsum(values.tolist())


@given(VALUES, st.floats(-1e6, 1e6), st.data())
def test_weighted_sums_add_rounded_products(values, centre, data) -> None:
    values = np.clip(values, -1e100, 1e100)
    weights = data.draw(arrays.arrays(np.int64, len(values), elements=st.integers(1, 2**53)))
    assert sums.exact_weighted_sum(values, weights) == math.fsum((values * weights).tolist())
    squares = ((values - centre) ** 2 * weights).tolist()
    assert sums.exact_weighted_square_sum(values, centre, weights) == math.fsum(squares)


@given(VALUES, st.floats(-1e6, 1e6))
def test_running_sums_add_from_the_left(values, centre) -> None:
    values = np.clip(values, -1e100, 1e100)
    total = squares = 0.0
    for value in values.tolist():
        total += value
        squares += (value - centre) * (value - centre)
    assert sums.running_sum(values) == total
    assert sums.running_square_sum(values, centre) == squares


@pytest.mark.parametrize("values", [[math.inf], [math.nan, 1.0], [1e308, 1e308]])
def test_what_is_not_finite_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="not finite"):
        sums.exact_weighted_sum(np.array(values), np.ones(len(values), np.int64))


def test_exact_sums_do_not_lose_small_values() -> None:
    assert sums.exact_weighted_sum(np.array([1e16, 1.0, -1e16, 1.0]), np.ones(4, np.int64)) == 2.0
    assert sums.exact_weighted_sum(np.full(200_000, 0.1), np.ones(200_000, np.int64)) == math.fsum([0.1] * 200_000)


def test_weights_of_another_number_are_refused() -> None:
    with pytest.raises(ValueError, match="2 values have 1 weights"):
        sums.exact_weighted_sum(np.ones(2), np.ones(1, np.int64))
