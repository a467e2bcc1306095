"""Columns out of the per-request listing of a case file, as a Collector would have filled them.

A listing holds the first, second and last token time of a request. So the pooled gaps are known in full only where no
completed request has more than three tokens; elsewhere only their sum and number are right, which fixes the mean.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from mocker_replay._core.collector import COLUMN_TYPES
from mocker_replay.report.facts import STATUS_NAMES, Columns, RunFacts

# Column -> field of the listing.
TIMES = {
    "arrival_ms": "arrival_time_ms",
    "first_admit_ms": "first_admit_ms",
    "first_token_ms": "first_token_ms",
    "last_token_ms": "last_token_ms",
    "terminal_ms": "terminal_time_ms",
}
COUNTS = {
    "input_tokens": "input_length",
    "requested_output_tokens": "requested_output_length",
    "output_tokens": "output_length",
    "reused_tokens_max": "reused_input_tokens",
    "num_admissions": "admission_count",
}

CASES = Path(__file__).parent.parent / "parity" / "cases"
# Cases whose listings hold every gap, or whose means are told: the summary must follow from the records.
RECOMPUTED = (
    "d01_dp2",
    "d09_capacity_bound",
    "goodput-e2e",
    "goodput-itl",
    "goodput-ttft",
    "i16_zero_output",
    "itl-sketch-two-token-outputs",
    "l02_reject_pool",
    "m01_mtp_default",
    "mooncake-max-sim-time-100_0",
    "mooncake-max-sim-time-14_0",
    "mooncake-two-rows-prefix-reuse",
    "percentile-rank-1-samples",
    "percentile-rank-11-samples",
    "percentile-rank-8-samples",
    "r23_seed5406",
    "round-robin-2-workers-dp2-tp4-gpus",
    "round-robin-rejected-consumes-turn",
    "round-robin-sessions-not-sticky",
    "t10_mean_rounding",
    "x04_poly_lifo",
)


def case_path(name: str) -> Path:
    """File of a reference case by its name."""
    return next(CASES.glob(f"*/{name}.json"))


def listing(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Per-request dictionaries of a case file, whichever of the two layouts it has."""
    told = case["expect"]["per_request"]
    if isinstance(told, dict):
        names = list(told)
        rows = [dict(zip(names, values, strict=True)) for values in zip(*told.values(), strict=True)]
        return [{**row, "first_reuse": row["admissions"][0][1] if row["admissions"] else 0} for row in rows]
    for row in told:
        history = row.get("admission_history", [])
        row["first_reuse"] = history[0]["reused_input_tokens"] if history else 0
        row["admissions"] = [[entry["at_ms"], entry["reused_input_tokens"]] for entry in history]
        row["dp_rank"] = row["routing_history"][0]["dp_rank"]
        row["worker"] = row["routing_history"][0]["logical_worker_id"]
    return list(told)


def columns_of(case: dict[str, Any]) -> Columns:
    """Columns of all listed requests, then of those that only `num_requests` tells of (cut by a time limit)."""
    rows = listing(case)
    num_rows = max(case["expect"]["summary"]["num_requests"], len(rows))
    columns = {name: np.full(num_rows, fill, dtype) for name, (dtype, fill) in COLUMN_TYPES.items()}
    later = [(i, at_ms, reused) for i, row in enumerate(rows) for at_ms, reused in row["admissions"][1:]]
    columns["readmission_request"] = np.array([i for i, _, _ in later], np.int64)
    columns["readmission_ms"] = np.array([at_ms for _, at_ms, _ in later], np.float64)
    columns["readmission_reused_tokens"] = np.array([reused for _, _, reused in later], np.int64)
    columns["status"][len(rows) :] = -2
    columns["worker"][len(rows) :] = 0
    for i, row in enumerate(rows):
        for column, field in TIMES.items():
            value = row.get(field)
            columns[column][i] = math.nan if value is None else value
        for column, field in COUNTS.items():
            columns[column][i] = row[field]
        if row.get("ttst_ms") is not None:
            columns["second_token_ms"][i] = row["first_token_ms"] + row["ttst_ms"]
        columns["reused_tokens_first"][i] = row["first_reuse"]
        columns["worker"][i], columns["rank"][i] = row["worker"], row["dp_rank"]
        columns["status"][i] = STATUS_NAMES.index(row["terminal_status"])
        if row["terminal_status"] == "completed":
            columns["reason"][i] = 0
        elif row["terminal_status"] == "rejected":
            columns["reason"][i] = 3
    return columns


def gaps_of(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, bool]:
    """Pooled gaps of completed requests, and whether they are exact one by one or only in the sum."""
    gaps: list[float] = []
    exact = True
    for row in listing(case):
        tokens = row["output_length"]
        if row["terminal_status"] != "completed" or tokens < 2:
            continue
        span_ms = row["last_token_ms"] - row["first_token_ms"]
        gaps.append(row["ttst_ms"])
        gaps.extend([(span_ms - row["ttst_ms"]) / max(tokens - 2, 1)] * (tokens - 2))
        exact &= tokens <= 3
    values, weights = np.unique(np.array(gaps, np.float64), return_counts=True)
    return values, weights.astype(np.int64), exact


def facts_of(case: dict[str, Any]) -> RunFacts:
    """Facts of the run; worker seconds belong to the driver and are taken from the case."""
    config = case["config"]
    args = case.get("args", {}) | case.get("run", {})
    summary = case["expect"]["summary"]
    return RunFacts(
        config=config,
        options=args,
        trace_name="trace.jsonl",
        trace_format=case.get("format", "mooncake"),
        trace_rows=summary["num_requests"],
        trace_digest="0" * 64,
        timestamp_unit="ms",
        trace_block_size=args.get("trace_block_size", case.get("trace_block_size", 512)),
        trace_span_ms=0.0,
        num_workers=args.get("num_workers", 1),
        dp_size=config.get("dp_size", 1),
        tensor_parallel_size=config.get("tensor_parallel_size", 1),
        wall_time_ms=2.0,
        worker_seconds=summary["decode_worker_seconds"],
        end_ms=summary["decode_worker_seconds"] * 1000.0,
        sla_ttft_ms=args.get("sla_ttft_ms"),
        sla_itl_ms=args.get("sla_itl_ms"),
        sla_e2e_ms=args.get("sla_e2e_ms"),
    )
