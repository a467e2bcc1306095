"""The summary of a run derived again from a full log, and a stored one held against it, figure by figure.

Decides the formulas, after the words of docs/metrics.md, and which figures are compared how: all exactly, but for a few
sums of many roundings. Never reads what the engine or the report computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mocker_replay.events import LogEvent, RunEnd
from mocker_replay.log.audit import statistics
from mocker_replay.log.audit.figures import Done, Figures
from mocker_replay.log.audit.findings import Findings, Place
from mocker_replay.log.audit.header import Setup

_REL: Final = 1e-9
_WALL_CLOCK: Final = (
    "wall_time_ms", "processed_tokens_per_s", "processed_output_tokens_per_s", "virtual_to_wall_ratio",
)  # fmt: skip
# Sums of many roundings, compared within _REL; everything else must be equal.
_ROUNDED: Final = frozenset(
    {"decode_worker_seconds", "gpu_hours"}
    | {f"{of}_{pool}" for of in ("mean", "std") for pool in ("itl_ms", "output_token_throughput_per_user")}
)
_MIN_SPAN_S: Final = 1e-9
Summary = dict[str, Any]


class Untold(str):
    """Why a log cannot say a figure."""


def derive(figures: Figures, setup: Setup, end: str) -> Summary:
    """Every figure of a summary that follows from the lines, or an `Untold` in its place.

    Args:
        end: the word in the footer.
    """
    done = sorted(figures.done, key=lambda request: request.row)
    summary = _counts(figures, done)
    summary |= _rates(done, summary)
    summary |= _latencies(figures, done)
    if any(bound is not None for bound in (setup.sla_ttft_ms, setup.sla_itl_ms, setup.sla_e2e_ms)):
        summary |= _goodput(done, setup, summary["duration_ms"])
    summary |= _run(figures, setup, end)
    if setup.policy != "fcfs":
        kinds = ("order", "victim", "veto", "budget", "placement")
        summary |= {"policy": setup.policy, "policy_decisions": {kind: figures.decisions[kind] for kind in kinds}}
    summary |= {name: Untold("depends on the host") for name in _WALL_CLOCK}
    return summary | {"wall_clock_fields": list(_WALL_CLOCK)}


def _counts(figures: Figures, done: Sequence[Done]) -> Summary:
    inputs = sum(request.input_tokens for request in done)
    outputs = sum(request.output_tokens for request in done)
    return {
        "num_requests": figures.num_arrived,
        "completed_requests": len(done),
        "rejected_requests": figures.ends[LogEvent.REJECTION],
        "failed_requests": figures.ends[LogEvent.FAILURE],
        "cancelled_requests": figures.ends[LogEvent.CANCELLATION],
        "cut_requests": figures.ends[LogEvent.CUT],
        "failure_reasons": dict(figures.reasons),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "processed_tokens": inputs + outputs,
        "duration_ms": max((request.end_ms for request in done), default=0.0),
        "committed_prefill_tokens": figures.prefill_tokens,
        "preemptions": figures.num_preemptions,
        "passes": figures.num_passes,
        "rank_passes": figures.num_rank_passes,
    }


def _rates(done: Sequence[Done], counts: Summary) -> Summary:
    span_s = _span_s(counts["duration_ms"])
    inputs, outputs = counts["total_input_tokens"], counts["total_output_tokens"]
    return {
        "request_throughput_rps": len(done) / span_s,
        "input_throughput_tok_s": inputs / span_s,
        "output_throughput_tok_s": outputs / span_s,
        "total_throughput_tok_s": (inputs + outputs) / span_s,
        "prefix_cache_reused_ratio": sum(r.reused_most for r in done) / inputs if inputs else 0.0,
        "first_admission_prefix_cache_reused_ratio": sum(r.reused_first for r in done) / inputs if inputs else 0.0,
    }


def _span_s(duration_ms: float) -> float:
    return max(duration_ms / 1000.0, _MIN_SPAN_S)


def _since(later_ms: float | None, earlier_ms: float | None) -> float:
    """Distance of two times, never below 0; both are there where it is asked for."""
    assert later_ms is not None
    assert earlier_ms is not None
    return max(later_ms - earlier_ms, 0.0)


def _latencies(figures: Figures, done: Sequence[Done]) -> Summary:
    one = [request for request in done if request.output_tokens >= 1]
    two = [request for request in done if request.output_tokens >= 2]
    per_user: dict[float, int] = {}
    for gap, count in figures.gaps.items():
        if gap > 0.0:
            per_user[1000.0 / gap] = per_user.get(1000.0 / gap, 0) + count
    described = {
        "ttft_ms": statistics.of_requests([_since(r.first_ms, r.arrival_ms) for r in one]),
        "ttst_ms": statistics.of_requests([_since(r.second_ms, r.first_ms) for r in two]),
        "tpot_ms": statistics.of_requests([_since(r.last_ms, r.first_ms) / (r.output_tokens - 1) for r in two]),
        "e2e_latency_ms": statistics.of_requests([_since(r.last_ms, r.arrival_ms) for r in one]),
        "itl_ms": statistics.of_pool(figures.gaps),
        "output_token_throughput_per_user": statistics.of_pool(per_user),
    }
    samples = {
        "num_ttft_samples": len(one),
        "num_tpot_samples": len(two),
        "num_e2e_latency_samples": len(one),
    }
    return samples | {f"{name}_{of}": value for of, told in described.items() for name, value in told.items()}


def _goodput(done: Sequence[Done], setup: Setup, duration_ms: float) -> Summary:
    good = [request for request in done if _is_good(request, setup)]
    span_s = _span_s(duration_ms)
    return {
        "goodput_completed_requests": len(good),
        "goodput_request_throughput_rps": len(good) / span_s,
        "goodput_output_throughput_tok_s": sum(request.output_tokens for request in good) / span_s,
    }


def _is_good(request: Done, setup: Setup) -> bool:
    if setup.sla_e2e_ms is not None:
        last_ms = request.last_ms if request.output_tokens else request.end_ms
        return _since(last_ms, request.arrival_ms) <= setup.sla_e2e_ms
    if not request.output_tokens:
        return False
    ttft_ms, e2e_ms = _since(request.first_ms, request.arrival_ms), _since(request.last_ms, request.arrival_ms)
    good = setup.sla_ttft_ms is None or ttft_ms <= setup.sla_ttft_ms
    if setup.sla_itl_ms is not None and request.output_tokens > 1:
        good &= (e2e_ms - ttft_ms) / (request.output_tokens - 1) <= setup.sla_itl_ms
    return good


def _run(figures: Figures, setup: Setup, end: str) -> Summary:
    end_ms = _end_ms(figures, setup)
    gpus = setup.tensor_parallel_size * setup.dp_size
    seconds: float | Untold = end_ms if isinstance(end_ms, Untold) else end_ms / 1000.0 * setup.num_workers
    accepted: float | Untold | None = figures.forward_tokens / figures.forwards if figures.forwards else None
    if setup.num_drafts and figures.forwards:
        accepted = Untold("drafts accepted beyond the length of a request are in no line")
    return {
        "end_ms": end_ms,
        "prefill_worker_seconds": 0.0,
        "decode_worker_seconds": seconds,
        "prefill_gpus_per_worker": 0,
        "decode_gpus_per_worker": gpus,
        "gpu_hours": seconds if isinstance(seconds, Untold) else seconds * gpus / 3600.0,
        "avg_accept_length": accepted,
        "kv_eviction_policy": "lru",
        "power_w": None,
        "power_coverage": None,
        "cut": end != RunEnd.COMPLETE,
        "interrupted": Untold("the run stopped") if end == RunEnd.STOPPED else end == RunEnd.INTERRUPTED,
    }


def _end_ms(figures: Figures, setup: Setup) -> float | Untold:
    """The last processed event: the cuts say it; without any it is the last line, unless a client left in mid-pass."""
    if setup.measured:
        return Untold("a measured clock runs on behind the last line")
    if figures.cut_ms is not None:
        return figures.cut_ms
    if figures.pass_in_flight:
        return Untold("the run ended in mid-pass, with nobody to cut")
    return figures.last_ms


# -- comparison -----------------------------------------------------------------------------------------


def compare(stored: Mapping[str, Any], derived: Summary, findings: Findings, at: Place) -> dict[str, str]:
    """Hold a stored summary against the derived one.

    Returns:
        Figures that were not compared, and why.
    """
    untold = {name: str(value) for name, value in derived.items() if isinstance(value, Untold)}
    for name, value in derived.items():
        if name in untold:
            continue
        if name not in stored:
            findings.add("summary", f"{name} is missing", None, value, at=at)
        elif not _equal(name)(stored[name], value):
            findings.add("summary", name, stored[name], value, at=at)
    return untold | {name: "no figure of the modelled run" for name in stored if name not in derived}


def _equal(name: str) -> Callable[[Any, Any], bool]:
    return _close if name in _ROUNDED else _same


def _same(stored: Any, derived: Any) -> bool:
    return bool(stored == derived) and isinstance(stored, bool) == isinstance(derived, bool)


def _close(stored: Any, derived: Any) -> bool:
    if derived is None or not isinstance(stored, int | float) or isinstance(stored, bool):
        return stored is derived
    return math.isclose(stored, derived, rel_tol=_REL, abs_tol=1e-12)
