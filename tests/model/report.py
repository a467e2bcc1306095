"""Figures per request and the summary, straight from their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.model.engine_model import Figures, ModelRun
    from tests.model.graphs import GraphModel

PERCENTILES = (("median", 50.0), ("p75", 75.0), ("p90", 90.0), ("p95", 95.0), ("p99", 99.0))


def ttft_ms(f: Figures) -> float | None:
    return f.token_ms[0] - f.arrival_ms if f.token_ms and f.arrival_ms is not None else None


def ttst_ms(f: Figures) -> float | None:
    return f.token_ms[1] - f.token_ms[0] if len(f.token_ms) > 1 else None


def tpot_ms(f: Figures) -> float | None:
    return (f.token_ms[-1] - f.token_ms[0]) / (len(f.token_ms) - 1) if len(f.token_ms) > 1 else None


def e2e_ms(f: Figures) -> float | None:
    return f.token_ms[-1] - f.arrival_ms if f.token_ms and f.arrival_ms is not None else None


COLUMNS: dict[str, Callable[[Figures], Any]] = {
    "arrival_time_ms": lambda f: f.arrival_ms,
    "first_admit_ms": lambda f: f.admissions[0][0] if f.admissions else None,
    "first_token_ms": lambda f: f.first_ms,
    "last_token_ms": lambda f: f.last_ms,
    "terminal_time_ms": lambda f: f.terminal_ms,
    "ttft_ms": ttft_ms,
    "ttst_ms": ttst_ms,
    "itl_ms": tpot_ms,
    "e2e_latency_ms": e2e_ms,
    "input_length": lambda f: f.turn.input_tokens,
    "requested_output_length": lambda f: f.turn.output_tokens,
    "output_length": lambda f: len(f.token_ms),
    "reused_input_tokens": lambda f: max((reused for _, reused in f.admissions), default=0),
    "admission_count": lambda f: len(f.admissions),
    "readmission_count": lambda f: max(0, len(f.admissions) - 1),
    "terminal_status": lambda f: f.status,
    "admissions": lambda f: [list(admission) for admission in f.admissions],
    "worker": lambda f: f.worker,
    "dp_rank": lambda f: f.rank,
}


def per_request_columns(figures: Sequence[Figures]) -> dict[str, list[Any]]:
    return {name: [of(f) for f in figures] for name, of in COLUMNS.items()}


def statistics(name: str, values: Sequence[float]) -> dict[str, float]:
    """The nine figures of one quantity; nearest rank, population deviation, all 0 without samples."""
    keys = ["mean", "min", "max", *(key for key, _ in PERCENTILES), "std"]
    if not values:
        return {f"{key}_{name}": 0.0 for key in keys}
    ordered = sorted(values)
    mean = math.fsum(ordered) / len(ordered)
    found = {"mean": mean, "min": ordered[0], "max": ordered[-1]}
    for key, percent in PERCENTILES:
        found[key] = ordered[math.floor((len(ordered) - 1) * percent / 100.0 + 0.5)]
    found["std"] = math.sqrt(math.fsum((v - mean) ** 2 for v in ordered) / len(ordered))
    return {f"{key}_{name}": found[key] for key in keys}


def _present(values: Sequence[float | None]) -> list[float]:
    return [v for v in values if v is not None]


def _goodput(done: Sequence[Figures], sla: dict[str, float | None], seconds: float) -> dict[str, float]:
    bound_ttft, bound_itl, bound_e2e = (sla.get(key) for key in ("sla_ttft_ms", "sla_itl_ms", "sla_e2e_ms"))
    if bound_ttft is None and bound_itl is None and bound_e2e is None:
        return {}

    def good(f: Figures) -> bool:
        ttft, e2e = ttft_ms(f), e2e_ms(f)
        if ttft is None or e2e is None:
            assert f.terminal_ms is not None
            assert f.arrival_ms is not None
            return bound_e2e is not None and f.terminal_ms - f.arrival_ms <= bound_e2e
        itl = (e2e - ttft) / (len(f.token_ms) - 1) if len(f.token_ms) > 1 else None
        return (
            (bound_ttft is None or ttft <= bound_ttft)
            and (bound_e2e is None or e2e <= bound_e2e)
            and (bound_itl is None or itl is None or itl <= bound_itl)
        )

    kept = [f for f in done if good(f)]
    return {
        "goodput_completed_requests": len(kept),
        "goodput_request_throughput_rps": len(kept) / seconds,
        "goodput_output_throughput_tok_s": sum(len(f.token_ms) for f in kept) / seconds,
    }


def summary(run: ModelRun, **sla: float | None) -> dict[str, Any]:
    """Every deterministic field of the summary; wall-clock fields are left out."""
    done = [f for f in run.figures if f.status == "completed"]
    n_in = sum(f.turn.input_tokens for f in done)
    n_out = sum(len(f.token_ms) for f in done)
    duration_ms = max((f.terminal_ms for f in done if f.terminal_ms is not None), default=0.0)
    seconds = max(duration_ms / 1000.0, 1e-9)
    gaps = [b - a for f in done for a, b in zip(f.token_ms, f.token_ms[1:], strict=False)]
    gpus = run.config.tensor_parallel_size * run.config.dp_size
    figures = {
        "kv_eviction_policy": "lru",
        "committed_prefill_tokens": sum(record["sum_prefill_tokens"] for record in run.records),
        "num_requests": sum(f.arrival_ms is not None for f in run.figures),
        "completed_requests": len(done),
        "total_input_tokens": n_in,
        "total_output_tokens": n_out,
        "duration_ms": duration_ms,
        "request_throughput_rps": len(done) / seconds,
        "input_throughput_tok_s": n_in / seconds,
        "output_throughput_tok_s": n_out / seconds,
        "total_throughput_tok_s": (n_in + n_out) / seconds,
        "prefill_worker_seconds": 0.0,
        "decode_worker_seconds": run.worker_seconds,
        "prefill_gpus_per_worker": 0,
        "decode_gpus_per_worker": gpus,
        "gpu_hours": run.worker_seconds * gpus / 3600.0,
        "power_w": None,
        "power_coverage": None,
        "processed_tokens": n_in + n_out,
        "prefix_cache_reused_ratio": _ratio(sum(max((r for _, r in f.admissions), default=0) for f in done), n_in),
        "first_admission_prefix_cache_reused_ratio": _ratio(sum(f.admissions[0][1] for f in done), n_in),
        "num_ttft_samples": sum(bool(f.token_ms) for f in done),
        "num_tpot_samples": sum(len(f.token_ms) > 1 for f in done),
        "num_e2e_latency_samples": sum(bool(f.token_ms) for f in done),
    }
    if run.shared_tier is not None:
        figures["g2_domains"] = [run.shared_tier.figures()]
    for name, of in (("ttft_ms", ttft_ms), ("ttst_ms", ttst_ms), ("tpot_ms", tpot_ms), ("e2e_latency_ms", e2e_ms)):
        figures |= statistics(name, _present([of(f) for f in done]))
    figures |= statistics("itl_ms", gaps)
    figures |= statistics("output_token_throughput_per_user", [1000.0 / gap for gap in gaps if gap > 0.0])
    return figures | _goodput(done, sla, seconds)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def request_record(f: Figures, dp_size: int, block_size: int) -> dict[str, Any]:
    """One record under the reference's field names; session fields are added by `request_records`."""
    scheduler = None if f.worker is None or f.rank is None else f.worker * dp_size + f.rank
    record = {name: of(f) for name, of in COLUMNS.items()}
    for name in ("admissions", "worker", "dp_rank"):
        del record[name]
    record["decode_worker_idx"] = scheduler
    record["routing_history"] = [
        {
            "pool": "agg",
            "outcome": "immediate",
            "queue_entered_at_ms": None,
            "released_at_ms": None,
            "queue_wait_ms": 0.0,
            "logical_worker_id": f.worker,
            "scheduler_id": scheduler,
            "dp_rank": f.rank,
            "reported_overlap_tokens": (f.overlap_blocks or 0) * block_size,
            "selected_overlap_blocks": f.overlap_blocks,
            "best_available_overlap_blocks": f.overlap_blocks,
            "overlap_regret_blocks": None if f.overlap_blocks is None else 0,
            "placement_replica_id": None,
        }
    ]
    record["admission_history"] = [
        {
            "admission_ordinal": ordinal,
            "pool_admission_ordinal": ordinal,
            "pool": "agg",
            "at_ms": at_ms,
            "reused_input_tokens": reused,
            "is_readmission": ordinal > 0,
        }
        | ({} if split is None else {"g1_reused_input_tokens": split[0], "host_reused_input_tokens": split[1]})
        for ordinal, ((at_ms, reused), split) in enumerate(zip(f.admissions, f.splits, strict=True))
    ]
    if f.splits and f.splits[0] is not None:
        record["first_admission_g1_reused_input_tokens"] = f.splits[0][0]
        record["first_admission_host_reused_input_tokens"] = f.splits[0][1]
    return record


def request_records(run: ModelRun, graph: GraphModel | None = None) -> list[dict[str, Any]]:
    """Records of the terminal requests, in row order."""
    records = []
    for f in run.figures:
        if f.status is None:
            continue
        record = request_record(f, run.config.dp_size, run.config.block_size)
        if run.sessions_reported:
            record |= {"session_id": f.turn.session_name, "turn_index": f.turn.turn}
        if graph is not None:
            record |= graph.record(f)
        records.append(record)
    return records
