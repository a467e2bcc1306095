"""The metrics of a comparison: one table of names, units and directions, and what a run gives for each.

Decides which figures are compared, which direction is better, and of which per-request columns a figure is made, so
that it can be taken again of other rows. Names and definitions are those of docs/metrics.md. Never compares.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from mocker_replay.report import metrics
from mocker_replay.report.facts import CANCELLED, COMPLETED, FAILED, REJECTED, Columns, RunFacts
from mocker_replay.report.summary import meets_sla

Float64s = npt.NDArray[np.float64]


class Kind(enum.Enum):
    """How a figure follows from the requests, which decides how sure it can be."""

    MEAN = "mean of one sample a request"
    QUANTILE = "percentile of one sample a request"
    RATIO = "sum over sum"
    POOLED = "percentile over all gaps: no figure of single requests"
    COUNT = "requests that ended in one way: compared exactly"


class Metric(Struct, frozen=True):
    """One row of the table."""

    name: str
    unit: str
    higher_is_better: bool
    kind: Kind
    column: str = ""  # the samples, or the upper sum
    per: str = ""  # the lower sum; "": there is none
    percent: float = 0.0  # of a percentile
    needs_goals: bool = False

    @property
    def is_waiting(self) -> bool:
        """It is the mean of a latency that holds the time in the queue."""
        return self.kind is Kind.MEAN and self.column != "tpot_ms"

    @property
    def is_of_span(self) -> bool:
        """It is made of the duration of the run, which is no sum over independent stretches: queues carry over."""
        return self.column == "span_ms" or self.per == "span_s"


def _latency(name: str) -> tuple[Metric, ...]:
    mean = Metric(f"mean_{name}", "ms", False, Kind.MEAN, name)
    percentiles = (("median", 50.0), ("p90", 90.0), ("p99", 99.0))
    return mean, *(Metric(f"{word}_{name}", "ms", False, Kind.QUANTILE, name, percent=p) for word, p in percentiles)


def _count(name: str, *, higher_is_better: bool = False) -> Metric:
    return Metric(name, "requests", higher_is_better, Kind.COUNT, name)


# In the order in which they are shown. The direction that is better stands here and nowhere else.
METRICS: Final[tuple[Metric, ...]] = (
    *_latency("ttft_ms"),
    *_latency("tpot_ms"),
    Metric("mean_itl_ms", "ms", False, Kind.RATIO, "gap_span_ms", "gaps"),
    *(Metric(f"{word}_itl_ms", "ms", False, Kind.POOLED) for word in ("median", "p90", "p99")),
    *_latency("e2e_latency_ms"),
    *_latency("queue_ms"),
    Metric("output_throughput_tok_s", "tokens/s", True, Kind.RATIO, "output_tokens", "span_s"),
    Metric("request_throughput_rps", "1/s", True, Kind.RATIO, "completed", "span_s"),
    Metric("duration_ms", "ms", False, Kind.RATIO, "span_ms"),
    Metric("preemptions", "", False, Kind.RATIO, "preemptions"),
    Metric("prefix_cache_reused_ratio", "0-1", True, Kind.RATIO, "reused_tokens", "input_tokens"),
    Metric("goodput_ratio", "0-1", True, Kind.RATIO, "good", "arrived", needs_goals=True),
    Metric("goodput_request_throughput_rps", "1/s", True, Kind.RATIO, "good", "span_s", needs_goals=True),
    _count("completed_requests", higher_is_better=True),
    _count("rejected_requests"),
    _count("failed_requests"),
    _count("cancelled_requests"),
    _count("cut_requests"),
)
LATENCIES: Final = ("ttft_ms", "tpot_ms", "e2e_latency_ms", "queue_ms")
METRIC_NAMES: Final = tuple(metric.name for metric in METRICS)


def metrics_with(*, goals: bool) -> tuple[Metric, ...]:
    """The metrics that runs with or without goals have."""
    return tuple(metric for metric in METRICS if goals or not metric.needs_goals)


class RunSample(Struct, frozen=True):
    """One run, as a comparison needs it.

    Attributes:
        arrival_ms: (n,) by row; NaN where the row did not arrive.
        columns: name -> (n,) float64 by row. Latencies are NaN where a request has none; what is summed is 0 there.
        values: metric -> figure; None where there is no sample.
    """

    arrival_ms: Float64s
    columns: Mapping[str, Float64s]
    values: Mapping[str, float | None]

    def __len__(self) -> int:
        return len(self.arrival_ms)


def run_sample(columns: Columns, summary: Mapping[str, Any], facts: RunFacts) -> RunSample:
    """What a replay gave, for comparison."""
    done = metrics.is_completed(columns)
    good = done & meets_sla(columns, facts) if facts.has_sla else np.zeros_like(done)
    per_row = _latency_columns(columns, done) | _summed_columns(columns, done, good)
    padding = facts.trace_rows - len(done)  # rows that a cut run never saw
    samples = {
        name: np.concatenate([column, np.full(padding, np.nan if name in LATENCIES else 0.0)])
        for name, column in per_row.items()
    }
    arrival_ms = np.concatenate([columns["arrival_ms"], np.full(padding, np.nan)])
    return RunSample(arrival_ms, samples, _values(samples, summary, goals=facts.has_sla))


def _latency_columns(columns: Columns, done: metrics.Bools) -> dict[str, Float64s]:
    """Each latency, NaN outside of its population."""
    tokens = columns["output_tokens"]
    one, two = done & (tokens >= 1), done & (tokens >= 2)
    return {
        "ttft_ms": np.where(one, metrics.ttft_ms(columns), np.nan),
        "tpot_ms": np.where(two, metrics.tpot_ms(columns), np.nan),
        "e2e_latency_ms": np.where(one, metrics.e2e_ms(columns), np.nan),
        "queue_ms": np.where(done, metrics.queue_ms(columns), np.nan),
    }


def _summed_columns(columns: Columns, done: metrics.Bools, good: metrics.Bools) -> dict[str, Float64s]:
    """What each row adds to the sums of which rates and ratios are made."""
    tokens = columns["output_tokens"]
    two = done & (tokens >= 2)
    span_ms = _spans_ms(columns, done)
    status = columns["status"]
    return {
        "gap_span_ms": np.where(two, metrics.tpot_ms(columns) * (tokens - 1), 0.0),
        "gaps": np.where(two, tokens - 1, 0).astype(np.float64),
        "span_ms": span_ms,
        "span_s": span_ms / 1000.0,
        "output_tokens": np.where(done, tokens, 0).astype(np.float64),
        "input_tokens": np.where(done, columns["input_tokens"], 0).astype(np.float64),
        "reused_tokens": np.where(done, columns["reused_tokens_max"], 0).astype(np.float64),
        "preemptions": columns["num_preemptions"].astype(np.float64),
        "good": good.astype(np.float64),
        "arrived": (columns["worker"] >= 0).astype(np.float64),
        "completed": done.astype(np.float64),
        "ended": np.select(
            [status == code for code in (COMPLETED, REJECTED, CANCELLED, FAILED)], [1.0, 2.0, 3.0, 4.0], 0.0
        ),
    }


def _spans_ms(columns: Columns, done: metrics.Bools) -> Float64s:
    """By how much each completed request, in order of arrival, moved the end of the run; together its duration."""
    order = np.argsort(columns["arrival_ms"], kind="stable")
    end_ms = np.where(done, columns["terminal_ms"], 0.0)[order]
    spans_ms = np.empty(len(order), np.float64)
    spans_ms[order] = np.diff(np.maximum.accumulate(end_ms), prepend=0.0)
    return spans_ms


def _values(samples: Mapping[str, Float64s], summary: Mapping[str, Any], *, goals: bool) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    queue_ms = samples["queue_ms"]
    described = metrics.describe(queue_ms[~np.isnan(queue_ms)])
    for metric in metrics_with(goals=goals):
        name = metric.name
        if metric.kind in (Kind.MEAN, Kind.QUANTILE) and np.isnan(samples[metric.column]).all():
            values[name] = None
        elif metric.column == "queue_ms":
            values[name] = described[name.removesuffix("_queue_ms")]
        elif name == "goodput_ratio":
            arrived = int(samples["arrived"].sum())
            values[name] = int(samples["good"].sum()) / arrived if arrived else None
        elif name.endswith("_itl_ms") and not samples["gaps"].any():
            values[name] = None
        else:
            values[name] = summary[name]
    return values
