"""Statistics over samples and over weighted samples, and the latencies they are taken of.

Decides how a sum is rounded and which sample a percentile is (the nearest rank, no interpolation). Never decides which
requests count; docs/metrics.md does.

Sums over requests are taken from left to right: in trace-row order for a mean, in ascending order for a deviation. The
reference does the latter too, and adds the former in an order that changes from run to run, so a bit-equal deviation
and a mean within its own wobble are what can be had. Pooled gaps are added exactly (`_core.sums`), in any order.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mocker_replay._core.sums import exact_weighted_square_sum, exact_weighted_sum, running_square_sum, running_sum
from mocker_replay.report.facts import COMPLETED, Columns

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STATISTICS: Final = ("mean", "min", "max", "median", "p75", "p90", "p95", "p99", "std")
PERCENTILES: Final = {"median": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99}


def nearest_rank(n: int, percent: float) -> int:
    """Index (from 0) of a percentile among `n` ascending samples: floor((n - 1) * percent / 100 + 0.5)."""
    return math.floor((n - 1) * percent / 100 + 0.5)


def describe(values: Float64s) -> dict[str, float]:
    """The nine statistics of one sample per request.

    Args:
        values: (n,) float64 in trace-row order.

    Returns:
        STATISTICS -> value; all 0.0 without samples. `std` is that of the population.
    """
    n = len(values)
    if n == 0:
        return dict.fromkeys(STATISTICS, 0.0)
    ascending = np.sort(values)
    described = {
        "mean": running_sum(values) / n,
        "min": float(ascending[0]),
        "max": float(ascending[-1]),
        "std": math.sqrt(running_square_sum(ascending, running_sum(ascending) / n) / n),
    }
    for name, percent in PERCENTILES.items():
        described[name] = float(ascending[nearest_rank(n, percent)])
    return {name: described[name] for name in STATISTICS}


def describe_weighted(values: Float64s, weights: Int64s) -> dict[str, float]:
    """The nine statistics of samples that occur several times.

    Args:
        values: (n,) float64, ascending.
        weights: (n,) int64, how often each occurs, at least once.

    Returns:
        STATISTICS -> value, as if each sample were listed `weight` times; all 0.0 without samples.
    """
    if len(values) == 0:
        return dict.fromkeys(STATISTICS, 0.0)
    positions = np.cumsum(weights)
    n = int(positions[-1])
    mean = exact_weighted_sum(values, weights) / n
    described = {
        "mean": mean,
        "min": float(values[0]),
        "max": float(values[-1]),
        "std": math.sqrt(exact_weighted_square_sum(values, mean, weights) / n),
    }
    for name, percent in PERCENTILES.items():
        rank = nearest_rank(n, percent)
        described[name] = float(values[np.searchsorted(positions, rank, side="right")])
    return {name: described[name] for name in STATISTICS}


def per_user_throughput(values: Float64s, weights: Int64s) -> tuple[Float64s, Int64s]:
    """Tokens per second one user sees at each gap > 0: 1000 / gap, ascending, with the gaps' weights."""
    positive = values > 0.0
    return 1000.0 / values[positive][::-1], weights[positive][::-1]


def is_completed(columns: Columns) -> Bools:
    """Which requests count as completed: status completed, admitted at least once."""
    return np.asarray((columns["status"] == COMPLETED) & (columns["num_admissions"] > 0))


def _since(later_ms: npt.NDArray[Any], earlier_ms: npt.NDArray[Any]) -> Float64s:
    """Distance of two times [ms], never below 0; NaN where one is absent."""
    return np.asarray(np.maximum(later_ms - earlier_ms, 0.0))


def ttft_ms(columns: Columns) -> Float64s:
    """Time to first token: first token - arrival; NaN without tokens."""
    return _since(columns["first_token_ms"], columns["arrival_ms"])


def ttst_ms(columns: Columns) -> Float64s:
    """Time to second token: second token - first token; NaN below two tokens."""
    return _since(columns["second_token_ms"], columns["first_token_ms"])


def tpot_ms(columns: Columns) -> Float64s:
    """Time per output token, the mean gap of a request: (last - first) / (tokens - 1); NaN below two tokens."""
    gaps = columns["output_tokens"] - 1
    span_ms = _since(columns["last_token_ms"], columns["first_token_ms"])
    return np.where(gaps > 0, span_ms / np.maximum(gaps, 1), np.nan)


def e2e_ms(columns: Columns) -> Float64s:
    """End to end latency: last token - arrival; NaN without tokens."""
    return _since(columns["last_token_ms"], columns["arrival_ms"])


def queue_ms(columns: Columns) -> Float64s:
    """Time in the queue: first admission - arrival; NaN if never admitted."""
    return _since(columns["first_admit_ms"], columns["arrival_ms"])
