"""Per-request records with the reference's field names, one for each request that ended, in trace-row order.

Decides names and shapes of a record. Never computes a statistic and never writes a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from mocker_replay.identity import stable_request_uuid
from mocker_replay.report import metrics
from mocker_replay.report.facts import (
    CANCELLED,
    COMPLETED,
    REASON_NAMES,
    REASON_UNITS,
    STATUS_NAMES,
    Columns,
    RunFacts,
)

UUID_SEED: Final = 0
_CHUNK_ROWS: Final = 1024  # rows turned into Python values at a time, so that memory stays flat
_TIMES: Final = ("arrival_ms", "first_admit_ms", "terminal_ms", "first_token_ms", "last_token_ms")
_COUNTS: Final = (
    "input_tokens",
    "requested_output_tokens",
    "output_tokens",
    "reused_tokens_max",
    "reused_tokens_first",
    "num_admissions",
    "num_preemptions",
    "worker",
    "rank",
    "session",
    "turn",
    "status",
    "reason",
    "needed",
    "available",
)
# Fields of disaggregated serving and of graph traces: always null here, kept so that readers find every key.
_ABSENT: Final = (
    "prefill_admit_ms",
    "source_held_ms",
    "destination_reserved_ms",
    "destination_activated_ms",
    "decode_admit_ms",
    "source_released_ms",
    "decode_reused_input_tokens",
    "prefill_route_overlap_tokens",
    "decode_route_overlap_tokens",
)


def iter_records(columns: Columns, facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Records of all requests that completed, were rejected, were cancelled or failed, by row ordinal."""
    later = _Readmissions(columns)
    for start in range(0, len(columns["status"]), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        chunk = {name: columns[name][rows] for name in (*_TIMES, *_COUNTS, "second_token_ms")}
        values: dict[str, list[Any]] = {name: chunk[name].tolist() for name in _COUNTS}
        values |= {name: _nullable(chunk[name]) for name in _TIMES}
        values["ttft_ms"] = _nullable(metrics.ttft_ms(chunk))
        values["ttst_ms"] = _nullable(metrics.ttst_ms(chunk))
        values["e2e_latency_ms"] = _nullable(metrics.e2e_ms(chunk))
        values["itl_ms"] = _nullable(metrics.tpot_ms(chunk))
        for i, status in enumerate(values["status"]):
            if status >= COMPLETED:
                row = {name: column[i] for name, column in values.items()}
                yield _record(start + i, row, later.of(start + i), facts)


def _nullable(values: metrics.Float64s) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


class _Readmissions:
    """Admissions after the first, looked up by request."""

    def __init__(self, columns: Columns) -> None:
        requests = columns["readmission_request"]
        self._order = np.argsort(requests, kind="stable")  # in order of time within a request
        self._requests = requests[self._order]
        self._at_ms = columns["readmission_ms"]
        self._reused = columns["readmission_reused_tokens"]

    def of(self, row: int) -> list[tuple[float, int]]:
        """(time [ms], reused tokens) of each readmission of one request."""
        first, end = np.searchsorted(self._requests, [row, row + 1])
        found = self._order[first:end]
        return list(zip(self._at_ms[found].tolist(), self._reused[found].tolist(), strict=True))


def _record(row: int, value: dict[str, Any], later: list[tuple[float, int]], facts: RunFacts) -> dict[str, Any]:
    name = facts.request_name(row)
    scheduler = value["worker"] * facts.dp_size + value["rank"]
    record: dict[str, Any] = {
        "session_id": _session_name(value, facts),
        "turn_index": value["turn"] if facts.sessions_reported else None,
        "uuid": str(stable_request_uuid(UUID_SEED, name)),
        "arrival_time_ms": value["arrival_ms"],
        "dispatched_at_ms": None,
        "first_admit_ms": value["first_admit_ms"],
        "terminal_time_ms": value["terminal_ms"],
        "first_token_ms": value["first_token_ms"],
        "last_token_ms": value["last_token_ms"],
        "ttft_ms": value["ttft_ms"],
        "ttst_ms": value["ttst_ms"],
        "e2e_latency_ms": value["e2e_latency_ms"],
        "itl_ms": value["itl_ms"],
        "input_length": value["input_tokens"],
        "requested_output_length": value["requested_output_tokens"],
        "output_length": value["output_tokens"],
        "reused_input_tokens": value["reused_tokens_max"],
        "prefill_worker_idx": None,
        "decode_worker_idx": scheduler,
    }
    record |= dict.fromkeys(_ABSENT)
    record["routing_history"] = [_placement(value, scheduler)]
    record["admission_history"] = _admissions(value, later)
    record["admission_count"] = value["num_admissions"]
    record["readmission_count"] = max(0, value["num_admissions"] - 1)
    record["pressure_record_ordinals"] = []
    record["terminal_status"] = STATUS_NAMES[value["status"]]
    record |= {"row": row, "name": name, "preemption_count": value["num_preemptions"]}
    if value["status"] != COMPLETED:
        record |= _failure(value)
    return record


def _session_name(value: dict[str, Any], facts: RunFacts) -> str | None:
    if not facts.sessions_reported:
        return None
    assert facts.session_names is not None, "sessions are reported, so they have names"
    session: int = value["session"]
    return facts.session_names[session]


def _placement(value: dict[str, Any], scheduler: int) -> dict[str, Any]:
    """Round robin: placed at once, without looking at overlap."""
    return {
        "pool": "agg",
        "outcome": "immediate",
        "queue_entered_at_ms": None,
        "released_at_ms": None,
        "queue_wait_ms": 0.0,
        "logical_worker_id": value["worker"],
        "scheduler_id": scheduler,
        "dp_rank": value["rank"],
        "reported_overlap_tokens": 0,
        "selected_overlap_blocks": None,
        "best_available_overlap_blocks": None,
        "overlap_regret_blocks": None,
        "placement_replica_id": None,
    }


def _admissions(value: dict[str, Any], later: list[tuple[float, int]]) -> list[dict[str, Any]]:
    if value["num_admissions"] == 0:
        return []
    first = (value["first_admit_ms"], value["reused_tokens_first"])
    return [
        {
            "admission_ordinal": ordinal,
            "pool_admission_ordinal": ordinal,
            "pool": "agg",
            "at_ms": at_ms,
            "reused_input_tokens": reused,
            "is_readmission": ordinal > 0,
        }
        for ordinal, (at_ms, reused) in enumerate([first, *later])
    ]


def _failure(value: dict[str, Any]) -> dict[str, Any]:
    """Why a request did not complete, with the two figures that decided it."""
    reason = REASON_NAMES[value["reason"]]
    if value["status"] == CANCELLED:
        return {"failure_reason": reason}
    unit = REASON_UNITS.get(reason)
    if unit is None or value["needed"] < 0:
        return {"failure_reason": reason}
    return {
        "failure_reason": reason,
        f"failure_needed_{unit}": value["needed"],
        f"failure_available_{unit}": value["available"],
    }
