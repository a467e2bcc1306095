"""Student's t: against published quantiles and against the density itself."""

from __future__ import annotations

import math

import pytest

from mocker_replay.report.compare_student import critical_t, within


@pytest.mark.parametrize(
    ("alpha", "df", "t"),
    [
        (0.05, 1, 12.706), (0.05, 2, 4.303), (0.05, 7, 2.365), (0.05, 30, 2.042), (0.01, 10, 3.169),
        (0.001, 7, 5.408), (0.001, 8, 5.041), (0.001, 60, 3.460), (0.001, 10_000, 3.291),
    ],
)  # fmt: skip
def test_published_quantiles(alpha: float, df: int, t: float) -> None:
    assert critical_t(alpha, df) == pytest.approx(t, abs=1e-3)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 9, 16, 63])
def test_the_probability_is_the_integral_of_the_density(df: int) -> None:
    scale = math.gamma((df + 1) / 2) / (math.sqrt(df * math.pi) * math.gamma(df / 2))
    steps, t = 20_000, 3.7
    inner = sum((1 + ((i + 0.5) * t / steps) ** 2 / df) ** (-(df + 1) / 2) for i in range(steps)) * t / steps
    assert within(t, df) == pytest.approx(2 * scale * inner, abs=1e-9)


@pytest.mark.parametrize(("alpha", "df"), [(0.0, 5), (1.0, 5), (0.05, 0)])
def test_what_has_no_quantile(alpha: float, df: int) -> None:
    with pytest.raises(ValueError, match="alpha must lie"):
        critical_t(alpha, df)
