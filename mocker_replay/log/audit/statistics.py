"""The nine statistics of docs/metrics.md, computed from its words alone.

Decides how sums are taken and rounded, and which sample a percentile is. Never decides what a sample is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

STATISTICS: Final = ("mean", "min", "max", "median", "p75", "p90", "p95", "p99", "std")
_PERCENTS: Final = {"median": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99}


def added(values: Iterable[float]) -> float:
    """Sum from left to right, rounded at each step (`sum` may do better, which is not what is defined)."""
    total = 0.0
    for value in values:
        total += value
    return total


def of_requests(in_row_order: Sequence[float]) -> dict[str, float]:
    """One sample a request: means are added in order of rows, deviations in ascending order."""
    n = len(in_row_order)
    if n == 0:
        return dict.fromkeys(STATISTICS, 0.0)
    ascending = sorted(in_row_order)
    centre = added(ascending) / n
    told = {
        "mean": added(in_row_order) / n,
        "min": ascending[0],
        "max": ascending[-1],
        "std": math.sqrt(added((value - centre) * (value - centre) for value in ascending) / n),
    }
    return told | {name: ascending[_nearest_rank(n, percent)] for name, percent in _PERCENTS.items()}


def of_pool(samples: Mapping[float, int]) -> dict[str, float]:
    """Samples with their counts: sums are exact, but for one rounding a distinct sample."""
    n = sum(samples.values())
    if n == 0:
        return dict.fromkeys(STATISTICS, 0.0)
    ascending = sorted(samples)
    reached = list(itertools.accumulate(samples[value] for value in ascending))
    mean = math.fsum(value * samples[value] for value in ascending) / n
    squares = math.fsum((value - mean) ** 2 * samples[value] for value in ascending)
    told = {"mean": mean, "min": ascending[0], "max": ascending[-1], "std": math.sqrt(squares / n)}
    for name, percent in _PERCENTS.items():
        told[name] = ascending[_first_over(reached, _nearest_rank(n, percent))]
    return told


def _nearest_rank(n: int, percent: int) -> int:
    return math.floor((n - 1) * percent / 100 + 0.5)


def _first_over(reached: Sequence[int], rank: int) -> int:
    """Index of the value that sample number `rank` has."""
    low, high = 0, len(reached) - 1
    while low < high:
        middle = (low + high) // 2
        if reached[middle] > rank:
            high = middle
        else:
            low = middle + 1
    return low
