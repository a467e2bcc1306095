"""Per-request records with the reference's field names, one for each request that ended, in trace-row order.

Decides names and shapes of a record. Never computes a statistic and never writes a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from mocker_replay._core.record_lines import RecordLines
from mocker_replay.identity import stable_request_uuid_text
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
from mocker_replay.report.plays import place_in_graph
from mocker_replay.report.stages import StageRow, routing, stage_rows, stages_of

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
    for first_row, chunk in _chunks(columns):
        stages = iter(stage_rows(chunk)) if facts.prefill is not None else None
        for row, figures in enumerate(_rows_of(chunk), first_row):
            stage = None if stages is None else next(stages)
            if figures.status >= COMPLETED:
                yield _record(row, figures, readmissions.get(row, ()), facts, stage)


def record_lines(columns: Columns, facts: RunFacts) -> Iterator[bytes]:
    """The same records as JSON lines, some at a time. The core writes ordinary ones, which are nearly all of them."""
    tiers = bool((columns["host_tokens_first"] >= 0).any())
    if facts.placements is not None or facts.graph is not None or facts.prefill is not None or tiers:
        yield from (orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in iter_records(columns, facts))
        return
    readmissions = _readmissions(columns)
    sessions = None
    if facts.sessions_reported:
        assert facts.session_names is not None, "sessions are reported, so they have names"
        sessions = [orjson.dumps(name) for name in facts.session_names]
    for first_row, chunk in _chunks(columns):
        num_rows = len(chunk["status"])
        names = [facts.request_name(row) for row in range(first_row, first_row + num_rows)]
        uuids = [b'"%b"' % stable_request_uuid_text(UUID_SEED, name).encode() for name in names]
        lines = RecordLines(chunk, first_row, facts.dp_size, [*map(orjson.dumps, names)], uuids, sessions)
        at = 0
        while at < num_rows:
            begin = at
            written, at = lines.write(begin)
            if at > begin:
                yield written
                continue
            figures = next(_rows_of({name: column[at : at + 1] for name, column in chunk.items()}))
            if figures.status >= COMPLETED:
                record = _record(first_row + at, figures, readmissions.get(first_row + at, ()), facts, None)
                yield orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
            at += 1


def _chunks(columns: Columns) -> Iterator[tuple[int, dict[str, Any]]]:
    """(first row, columns and latencies) of some rows at a time."""
    names = [name for name in columns if not name.startswith("readmission_")]
    for start in range(0, len(columns["status"]), _CHUNK_ROWS):
        chunk = {name: np.ascontiguousarray(columns[name][start : start + _CHUNK_ROWS]) for name in names}
        yield start, chunk | {name: latency(chunk) for name, latency in _LATENCIES.items()}


def _rows_of(chunk: Columns) -> Iterator[_Row]:
    values = [_nullable(chunk[name]) for name in _Row._fields[:_NUM_TIMES]]
    values += [chunk[name].tolist() for name in _Row._fields[_NUM_TIMES:]]
    return map(_Row._make, zip(*values, strict=True))


def _nullable(values: metrics.Float64s) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


def _readmissions(columns: Columns) -> dict[int, list[tuple[float, int, bool]]]:
    """(time [ms], reused tokens, whether on a worker that only decodes) of admissions after the first, by row."""
    found: dict[int, list[tuple[float, int, bool]]] = {}
    names = ["readmission_request", "readmission_ms", "readmission_reused_tokens"]
    lists = [columns[name].tolist() for name in names]
    decode = columns["readmission_decode"].tolist() if "readmission_decode" in columns else [0] * len(lists[0])
    for row, at_ms, reused, on_decode in zip(*lists, decode, strict=True):
        found.setdefault(row, []).append((at_ms, reused, bool(on_decode)))
    return found


def _record(
    row: int, figures: _Row, later: Sequence[tuple[float, int, bool]], facts: RunFacts, stage: StageRow | None
) -> dict[str, Any]:
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
        # Stages of disaggregated serving: null where workers have no roles, kept so that readers find every key.
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
            routing(
                "agg",
                figures.worker,
                figures.rank,
                scheduler,
                facts.placements.get(row) if facts.placements is not None else None,
            )
        ],
        "admission_history": _admissions(figures, later, facts),
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
    if stage is not None:
        record |= stages_of(row, figures.first_admit_ms, figures.worker, figures.rank, stage, record, facts)
    if figures.status != COMPLETED:
        record |= _failure(figures)
    return record | place_in_graph(row, figures.arrival_ms, facts)


def _session_name(figures: _Row, facts: RunFacts) -> str | None:
    if not facts.sessions_reported:
        return None
    assert facts.session_names is not None, "sessions are reported, so they have names"
    assert figures.session >= 0, "sessions are reported, so every row belongs to one"
    return facts.session_names[figures.session]


def _admissions(figures: _Row, later: Sequence[tuple[float, int, bool]], facts: RunFacts) -> list[dict[str, Any]]:
    if figures.num_admissions == 0:
        return []
    first = (figures.first_admit_ms, figures.reused_tokens_first, False)
    history: list[dict[str, Any]] = []
    in_pool = {"agg": 0, "prefill": 0, "decode": 0}
    for ordinal, (at_ms, reused, on_decode) in enumerate([first, *later]):
        pool = ("decode" if on_decode else "prefill") if facts.prefill is not None else "agg"
        history.append(
            {
                "admission_ordinal": ordinal,
                "pool_admission_ordinal": in_pool[pool],
                "pool": pool,
                "at_ms": at_ms,
                "reused_input_tokens": reused,
                **(_split(figures, on_decode, facts) if in_pool[pool] == 0 else {}),
                "is_readmission": in_pool[pool] > 0,
            }
        )
        in_pool[pool] += 1
    return history


def _split(figures: _Row, on_decode: bool, facts: RunFacts) -> dict[str, int]:
    """Where the reused tokens of a first admission came from; nothing without a host tier."""
    if on_decode:
        # Its prompt has arrived, so it reuses nothing.
        assert facts.prefill is not None
        return {"g1_reused_input_tokens": 0, "host_reused_input_tokens": 0} if facts.prefill.decode_has_tier else {}
    host = figures.host_tokens_first
    if host < 0:
        return {}
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
