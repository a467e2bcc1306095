"""Per-request records with the reference's field names, one for each request that ended, in trace-row order.

Decides names and shapes of a record. Never computes a statistic and never writes a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from mocker_replay.identity import stable_request_uuid_text
from mocker_replay.report import metrics
from mocker_replay.report.facts import (
    CANCELLED,
    COMPLETED,
    REASON_NAMES,
    REASON_UNITS,
    STATUS_NAMES,
    Columns,
    Placement,
    RunFacts,
)

UUID_SEED: Final = 0
_CHUNK_ROWS: Final = 1024  # rows turned into Python values at a time, so that memory stays flat


class _Row(NamedTuple):
    """One request's figures as Python values; None where a time is absent."""

    arrival_ms: float
    first_admit_ms: float | None
    terminal_ms: float
    first_token_ms: float | None
    last_token_ms: float | None
    ttft_ms: float | None
    ttst_ms: float | None
    e2e_ms: float | None
    tpot_ms: float | None
    input_tokens: int
    requested_output_tokens: int
    output_tokens: int
    reused_tokens_max: int
    reused_tokens_first: int
    host_tokens_first: int
    num_admissions: int
    num_preemptions: int
    worker: int
    rank: int
    session: int
    turn: int
    status: int
    reason: int
    needed: int
    available: int


_LATENCIES: Final = {
    "ttft_ms": metrics.ttft_ms,
    "ttst_ms": metrics.ttst_ms,
    "e2e_ms": metrics.e2e_ms,
    "tpot_ms": metrics.tpot_ms,
}
_NUM_TIMES: Final = _Row._fields.index("input_tokens")  # the fields before are times or latencies


def iter_records(columns: Columns, facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Records of all requests that completed, were rejected, were cancelled or failed, by row ordinal."""
    readmissions = _readmissions(columns)
    row = 0
    for start in range(0, len(columns["status"]), _CHUNK_ROWS):
        chunk = {name: column[start : start + _CHUNK_ROWS] for name, column in columns.items()}
        chunk |= {name: latency(chunk) for name, latency in _LATENCIES.items()}
        values = [_nullable(chunk[name]) for name in _Row._fields[:_NUM_TIMES]]
        values += [chunk[name].tolist() for name in _Row._fields[_NUM_TIMES:]]
        for figures in map(_Row._make, zip(*values, strict=True)):
            if figures.status >= COMPLETED:
                yield _record(row, figures, readmissions.get(row, ()), facts)
            row += 1


def _nullable(values: metrics.Float64s) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


def _readmissions(columns: Columns) -> dict[int, list[tuple[float, int]]]:
    """(time [ms], reused tokens) of the admissions after the first, in order, by row."""
    found: dict[int, list[tuple[float, int]]] = {}
    names = ("readmission_request", "readmission_ms", "readmission_reused_tokens")
    for row, at_ms, reused in zip(*(columns[name].tolist() for name in names), strict=True):
        found.setdefault(row, []).append((at_ms, reused))
    return found


def _record(row: int, figures: _Row, later: Sequence[tuple[float, int]], facts: RunFacts) -> dict[str, Any]:
    name = facts.request_name(row)
    scheduler = figures.worker * facts.dp_size + figures.rank
    record = {
        "session_id": _session_name(figures, facts),
        "turn_index": figures.turn if facts.sessions_reported else None,
        "uuid": stable_request_uuid_text(UUID_SEED, name),
        "arrival_time_ms": figures.arrival_ms,
        "dispatched_at_ms": None,  # graphs only
        "first_admit_ms": figures.first_admit_ms,
        "terminal_time_ms": figures.terminal_ms,
        "first_token_ms": figures.first_token_ms,
        "last_token_ms": figures.last_token_ms,
        "ttft_ms": figures.ttft_ms,
        "ttst_ms": figures.ttst_ms,
        "e2e_latency_ms": figures.e2e_ms,
        "itl_ms": figures.tpot_ms,
        "input_length": figures.input_tokens,
        "requested_output_length": figures.requested_output_tokens,
        "output_length": figures.output_tokens,
        "reused_input_tokens": figures.reused_tokens_max,
        "prefill_worker_idx": None,
        "decode_worker_idx": scheduler,
        # Stages of disaggregated serving: always null here, kept so that readers find every key.
        "prefill_admit_ms": None,
        "source_held_ms": None,
        "destination_reserved_ms": None,
        "destination_activated_ms": None,
        "decode_admit_ms": None,
        "source_released_ms": None,
        "decode_reused_input_tokens": None,
        "prefill_route_overlap_tokens": None,
        "decode_route_overlap_tokens": None,
        "routing_history": [
            _routing(figures, scheduler, facts.placements[row] if facts.placements is not None else None)
        ],
        "admission_history": _admissions(figures, later),
        "admission_count": figures.num_admissions,
        "readmission_count": max(0, figures.num_admissions - 1),
        "pressure_record_ordinals": [],
        "terminal_status": STATUS_NAMES[figures.status],
        "row": row,
        "name": name,
        "preemption_count": figures.num_preemptions,
    }
    if figures.host_tokens_first >= 0:
        record |= {
            "first_admission_g1_reused_input_tokens": figures.reused_tokens_first - figures.host_tokens_first,
            "first_admission_host_reused_input_tokens": figures.host_tokens_first,
        }
    if figures.status != COMPLETED:
        record |= _failure(figures)
    return record


def _session_name(figures: _Row, facts: RunFacts) -> str | None:
    if not facts.sessions_reported:
        return None
    assert facts.session_names is not None, "sessions are reported, so they have names"
    assert figures.session >= 0, "sessions are reported, so every row belongs to one"
    return facts.session_names[figures.session]


def _routing(figures: _Row, scheduler: int, placement: Placement | None) -> dict[str, Any]:
    """Placed at once; round robin (no placement) does not look at overlap."""
    return {
        "pool": "agg",
        "outcome": "immediate",
        "queue_entered_at_ms": None,
        "released_at_ms": None,
        "queue_wait_ms": 0.0,
        "logical_worker_id": figures.worker,
        "scheduler_id": scheduler,
        "dp_rank": figures.rank,
        "reported_overlap_tokens": placement.overlap_tokens if placement else 0,
        "selected_overlap_blocks": placement.overlap_blocks if placement else None,
        "best_available_overlap_blocks": placement.best_overlap_blocks if placement else None,
        "overlap_regret_blocks": placement.best_overlap_blocks - placement.overlap_blocks if placement else None,
        "placement_replica_id": None,
    }


def _admissions(figures: _Row, later: Sequence[tuple[float, int]]) -> list[dict[str, Any]]:
    if figures.num_admissions == 0:
        return []
    first = (figures.first_admit_ms, figures.reused_tokens_first)
    return [
        {
            "admission_ordinal": ordinal,
            "pool_admission_ordinal": ordinal,
            "pool": "agg",
            "at_ms": at_ms,
            "reused_input_tokens": reused,
            **(_split(figures) if ordinal == 0 else {}),
            "is_readmission": ordinal > 0,
        }
        for ordinal, (at_ms, reused) in enumerate([first, *later])
    ]


def _split(figures: _Row) -> dict[str, int]:
    """Where the reused tokens of a first admission came from; nothing without a host tier."""
    if figures.host_tokens_first < 0:
        return {}
    host = figures.host_tokens_first
    return {"g1_reused_input_tokens": figures.reused_tokens_first - host, "host_reused_input_tokens": host}


def _failure(figures: _Row) -> dict[str, Any]:
    """Why a request did not complete, with the two figures that decided it."""
    reason = REASON_NAMES[figures.reason]
    if figures.status == CANCELLED:
        return {"failure_reason": reason}
    unit = REASON_UNITS.get(reason)
    if unit is None or figures.needed < 0:
        return {"failure_reason": reason}
    return {
        "failure_reason": reason,
        f"failure_needed_{unit}": figures.needed,
        f"failure_available_{unit}": figures.available,
    }
