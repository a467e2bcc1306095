"""Runs that never were: samples for the statistics of a comparison."""

from __future__ import annotations

import random
from typing import Final

import numpy as np

from mocker_replay.report.compare_metrics import METRICS, Kind, RunSample
from mocker_replay.report.metrics import nearest_rank

_SUMS: Final = (
    "gap_span_ms", "gaps", "span_ms", "span_s", "output_tokens", "input_tokens", "reused_tokens", "preemptions", "good",
    "arrived", "completed", "ended",
)  # fmt: skip


def random_sample(seed: int, num_rows: int, *, slower: float = 1.0, missing: float = 0.1) -> RunSample:
    """A run of independent requests; the same seed has the same requests, so that pairs are pairs."""
    rng = random.Random(seed)
    columns = {name: np.zeros(num_rows) for name in _SUMS}
    for name in ("ttft_ms", "tpot_ms", "e2e_latency_ms", "queue_ms"):
        columns[name] = np.full(num_rows, np.nan)
    arrival_ms = np.array([rng.uniform(0, 1000) for _ in range(num_rows)])
    for row in range(num_rows):
        columns["arrived"][row] = 1.0
        tokens = rng.randint(2, 50)
        latency = {"ttft_ms": rng.uniform(1, 9), "tpot_ms": rng.uniform(2, 3), "queue_ms": float(rng.randint(0, 3))}
        if rng.random() < missing:
            continue
        latency["e2e_latency_ms"] = latency["ttft_ms"] + latency["tpot_ms"] * (tokens - 1)
        for name, value in latency.items():
            columns[name][row] = value * slower
        columns["gap_span_ms"][row] = latency["tpot_ms"] * slower * (tokens - 1)
        columns["gaps"][row] = tokens - 1
        columns["completed"][row] = columns["ended"][row] = 1.0
        columns["output_tokens"][row], columns["input_tokens"][row] = tokens, 100
        columns["span_ms"][row] = rng.uniform(0, 2) * slower
        columns["span_s"][row] = columns["span_ms"][row] / 1000.0
        columns["reused_tokens"][row] = rng.randint(0, 50)
        columns["preemptions"][row] = rng.randint(0, 1)
        columns["good"][row] = rng.randint(0, 1)
    return with_values(arrival_ms, columns)


def with_values(arrival_ms: np.ndarray, columns: dict[str, np.ndarray]) -> RunSample:
    """A sample whose figures follow from its columns."""
    values: dict[str, float | None] = {}
    for metric in METRICS:
        if metric.kind is Kind.COUNT:
            code = {"completed_requests": 1, "rejected_requests": 2, "cancelled_requests": 3, "failed_requests": 4}
            values[metric.name] = int((columns["ended"] == code.get(metric.name, -1)).sum())
        elif metric.kind is Kind.POOLED:
            values[metric.name] = float(columns["gap_span_ms"].max())
        elif metric.kind is Kind.RATIO:
            lower = float(columns[metric.per].sum()) if metric.per else 1.0
            values[metric.name] = float(columns[metric.column].sum()) / lower if lower else None
        else:
            found = np.sort(columns[metric.column][~np.isnan(columns[metric.column])])
            if not len(found):
                values[metric.name] = None
            elif metric.kind is Kind.MEAN:
                values[metric.name] = float(found.mean())
            else:
                values[metric.name] = float(found[nearest_rank(len(found), metric.percent)])
    return RunSample(arrival_ms, columns, values)
