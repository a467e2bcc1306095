"""The summary of a run: one flat mapping with the reference's field names, then ours.

Decides which requests enter which field. Never formats for people and never leaves a figure to the order of a sum.
Every field is defined in docs/metrics.md. Fields named in WALL_CLOCK_FIELDS depend on the host and differ from run to
run; everything else is the same to the byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from mocker_replay._core.collector import Collector
from mocker_replay.events import HostStep
from mocker_replay.report import metrics
from mocker_replay.report.facts import (
    CANCELLED,
    FAILED,
    NOT_TERMINAL,
    REASON_NAMES,
    REJECTED,
    Columns,
    RunFacts,
)
from mocker_replay.report.metrics import Bools, Float64s, Int64s
from mocker_replay.report.plays import plays_summary

WALL_CLOCK_FIELDS: Final = (
    "wall_time_ms",
    "processed_tokens_per_s",
    "processed_output_tokens_per_s",
    "virtual_to_wall_ratio",
)
_MIN_SPAN_S: Final = 1e-9  # rates of a run without duration are taken over this


def summarize(collector: Collector, facts: RunFacts) -> dict[str, Any]:
    """Summary of everything `collector` has consumed."""
    return summary_of(collector.columns(), *collector.gaps(), collector.totals(), facts)


def summary_of(
    columns: Columns, gap_values_ms: Float64s, gap_weights: Int64s, totals: dict[str, int], facts: RunFacts
) -> dict[str, Any]:
    """Summary of columns, pooled gaps and totals as a Collector gives them."""
    done = metrics.is_completed(columns)
    summary: dict[str, Any] = {
        "kv_eviction_policy": facts.kv_eviction_policy,
        "committed_prefill_tokens": totals["prefill_tokens"],
    }
    summary |= _counts_and_rates(columns, done, facts)
    summary |= _resources(facts)
    if facts.has_sla:
        summary |= _goodput(columns, done, facts, summary["duration_ms"])
    summary |= {"power_w": None, "power_coverage": None}
    summary |= _processing(summary, facts)
    summary |= _reuse(columns, done, summary["total_input_tokens"])
    summary |= _latencies(columns, done, gap_values_ms, gap_weights)
    summary |= _endings(columns)
    summary |= plays_summary(columns, facts)
    summary |= _replay(totals, facts)
    if facts.trace_assumed is not None:
        summary["trace_assumed"] = dict(facts.trace_assumed)
    return summary


def without_wall_clock(summary: dict[str, Any]) -> dict[str, Any]:
    """The part of a summary that two runs of the same input share to the byte, whoever kept the time."""
    return {name: value for name, value in summary.items() if name not in (*WALL_CLOCK_FIELDS, "realtime")}


def _span_s(duration_ms: float) -> float:
    return max(duration_ms / 1000.0, _MIN_SPAN_S)


def _counts_and_rates(columns: Columns, done: Bools, facts: RunFacts) -> dict[str, Any]:
    completed = int(done.sum())
    input_tokens = int(columns["input_tokens"][done].sum())
    output_tokens = int(columns["output_tokens"][done].sum())
    duration_ms = float(columns["terminal_ms"][done].max(initial=0.0))
    span_s = _span_s(duration_ms)
    return {
        "num_requests": int((columns["worker"] >= 0).sum()),
        "completed_requests": completed,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "duration_ms": duration_ms,
        "wall_time_ms": facts.wall_time_ms,
        "request_throughput_rps": completed / span_s,
        "input_throughput_tok_s": input_tokens / span_s,
        "output_throughput_tok_s": output_tokens / span_s,
        "total_throughput_tok_s": (input_tokens + output_tokens) / span_s,
    }


def _resources(facts: RunFacts) -> dict[str, Any]:
    gpus_per_worker = facts.tensor_parallel_size * facts.dp_size
    prefill_seconds = 0.0 if facts.prefill is None else facts.prefill.worker_seconds
    prefill_gpus = 0 if facts.prefill is None else facts.prefill.gpus_per_worker
    return {
        "prefill_worker_seconds": prefill_seconds,
        "decode_worker_seconds": facts.worker_seconds,
        "prefill_gpus_per_worker": prefill_gpus,
        "decode_gpus_per_worker": gpus_per_worker,
        "gpu_hours": (prefill_seconds * prefill_gpus + facts.worker_seconds * gpus_per_worker) / 3600.0,
    }


def _goodput(columns: Columns, done: Bools, facts: RunFacts, duration_ms: float) -> dict[str, Any]:
    good = done & meets_sla(columns, facts)
    requests = int(good.sum())
    span_s = _span_s(duration_ms)
    return {
        "goodput_completed_requests": requests,
        "goodput_request_throughput_rps": requests / span_s,
        "goodput_output_throughput_tok_s": int(columns["output_tokens"][good].sum()) / span_s,
    }


def meets_sla(columns: Columns, facts: RunFacts) -> Bools:
    """Which requests keep every bound that is set; a bound is kept when it is just reached."""
    tokens = columns["output_tokens"]
    ttft_ms, e2e_ms = metrics.ttft_ms(columns), metrics.e2e_ms(columns)
    if facts.sla_e2e_ms is not None:  # excludes the other two
        # A request that asks for no output has an end, but neither a first token nor gaps.
        served_ms = np.where(tokens > 0, e2e_ms, np.maximum(columns["terminal_ms"] - columns["arrival_ms"], 0.0))
        return np.asarray(served_ms <= facts.sla_e2e_ms)
    good = tokens > 0
    if facts.sla_ttft_ms is not None:
        good &= ttft_ms <= facts.sla_ttft_ms
    if facts.sla_itl_ms is not None:
        mean_gap_ms = (e2e_ms - ttft_ms) / np.maximum(tokens - 1, 1)
        good &= (tokens < 2) | (mean_gap_ms <= facts.sla_itl_ms)
    return np.asarray(good)


def _processing(summary: dict[str, Any], facts: RunFacts) -> dict[str, Any]:
    processed = summary["total_input_tokens"] + summary["total_output_tokens"]
    wall_ms = facts.wall_time_ms
    return {
        "processed_tokens": processed,
        "processed_tokens_per_s": processed / wall_ms * 1000.0 if wall_ms > 0 else 0.0,
        "processed_output_tokens_per_s": summary["total_output_tokens"] / wall_ms * 1000.0 if wall_ms > 0 else 0.0,
    }


def _reuse(columns: Columns, done: Bools, input_tokens: int) -> dict[str, Any]:
    most = columns["reused_tokens_max"]
    if "decode_reused_tokens_max" in columns:  # of any admission, on whichever worker
        most = np.maximum(most, columns["decode_reused_tokens_max"])
    return {
        name: int(tokens[done].sum()) / input_tokens if input_tokens else 0.0
        for name, tokens in (
            ("prefix_cache_reused_ratio", most),
            ("first_admission_prefix_cache_reused_ratio", columns["reused_tokens_first"]),
        )
    }


def tier_fields(columns: Columns, host_steps: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """What host tiers brought and did; `host_steps` as a Collector gives them."""
    done = metrics.is_completed(columns) & (columns["host_tokens_first"] >= 0)
    host = int(columns["host_tokens_first"][done].sum())
    fields: dict[str, Any] = {
        "first_admission_g1_reused_input_tokens": int(columns["reused_tokens_first"][done].sum()) - host,
        "first_admission_host_reused_input_tokens": host,
    }
    for name, step in (
        ("stored", HostStep.STORE_COMPLETED),
        ("loaded", HostStep.LOAD_COMPLETED),
        ("evicted", HostStep.EVICTED),
    ):
        fields[f"host_{name}_blocks"] = host_steps[step][1]
    fields["host_cancelled_loads"] = host_steps[HostStep.LOAD_CANCELLED][0]
    return fields | {"host_fenced_passes": host_steps[HostStep.FENCE][0]}


def _latencies(columns: Columns, done: Bools, gap_values_ms: Float64s, gap_weights: Int64s) -> dict[str, Any]:
    one = done & (columns["output_tokens"] >= 1)
    two = done & (columns["output_tokens"] >= 2)
    described = {
        "ttft_ms": _described(metrics.ttft_ms(columns), one),
        "ttst_ms": _described(metrics.ttst_ms(columns), two),
        "tpot_ms": _described(metrics.tpot_ms(columns), two),
        "itl_ms": metrics.describe_weighted(gap_values_ms, gap_weights),
        "e2e_latency_ms": _described(metrics.e2e_ms(columns), one),
        "output_token_throughput_per_user": metrics.describe_weighted(
            *metrics.per_user_throughput(gap_values_ms, gap_weights)
        ),
    }
    samples = {
        "num_ttft_samples": int(one.sum()),
        "num_tpot_samples": int(two.sum()),
        "num_e2e_latency_samples": int(one.sum()),
    }
    return samples | {
        f"{statistic}_{name}": value for name, values in described.items() for statistic, value in values.items()
    }


def _described(values: Float64s, chosen: Bools) -> dict[str, float]:
    """Statistics of the chosen samples; `values` is nobody's afterwards."""
    return metrics.describe(values if chosen.all() else values[chosen], is_scratch=True)


def _endings(columns: Columns) -> dict[str, Any]:
    """How the requests ended that did not complete, and why."""
    status = columns["status"]
    refused = (status == REJECTED) | (status == FAILED)
    reasons = Counter(columns["reason"][refused].tolist())
    return {
        "rejected_requests": int((status == REJECTED).sum()),
        "failed_requests": int((status == FAILED).sum()),
        "cancelled_requests": int((status == CANCELLED).sum()),
        "cut_requests": int((status == NOT_TERMINAL).sum()),
        "failure_reasons": {REASON_NAMES[reason]: reasons[reason] for reason in sorted(reasons)},
    }


def _replay(totals: dict[str, int], facts: RunFacts) -> dict[str, Any]:
    forwards = totals["decode_forwards"]
    return {
        "preemptions": totals["preemptions"],
        "passes": totals["passes"],
        "rank_passes": totals["rank_passes"],
        "avg_accept_length": totals["decode_tokens"] / forwards if forwards else None,
        "end_ms": facts.end_ms,
        "cut": facts.cut,
        "interrupted": facts.interrupted,
        "virtual_to_wall_ratio": facts.end_ms / facts.wall_time_ms if facts.wall_time_ms > 0 else 0.0,
        "wall_clock_fields": list(WALL_CLOCK_FIELDS),
    }
