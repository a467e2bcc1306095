"""The stages of disaggregated serving in a request's record: where it was prefilled and decoded, and when it moved.

Decides names and shapes of these parts of a record. Never computes a statistic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mocker_replay.report.facts import Columns, Placement, RunFacts


class StageRow(NamedTuple):
    """One request's stages as Python values; a time that never came is None."""

    source_held_ms: float | None
    destination_reserved_ms: float | None
    destination_activated_ms: float | None
    decode_admit_ms: float | None
    source_released_ms: float | None
    decode_reused_tokens_max: int
    decode_worker: int
    decode_rank: int
    decode_refused: int


def stage_rows(columns: Columns) -> Iterator[StageRow]:
    """The stages of all requests, by row."""
    values = []
    for name in StageRow._fields:
        column = columns[name].tolist()
        values.append([None if value != value else value for value in column] if name.endswith("_ms") else column)
    return map(StageRow._make, zip(*values, strict=True))


def stages_of(
    row: int,
    prefill_admit_ms: float | None,
    worker: int,
    rank: int,
    stage: StageRow,
    record: dict[str, Any],
    facts: RunFacts,
) -> dict[str, Any]:
    """What a record says of the stages; `worker` and `rank` computed the prompt. Schedulers are numbered by pool.

    Where the destination goes first, the prompt may never have come to a prefill worker: `worker` is none of them.
    """
    assert facts.prefill is not None, "workers have roles"
    prefill_scheduler = scheduler = None
    routes: list[dict[str, Any]] = []
    found = None if facts.prefill.placements is None else facts.prefill.placements.get(row)
    decode_found = None if facts.placements is None else facts.placements.get(row)
    if worker < facts.prefill.num_workers:
        prefill_scheduler = worker * facts.prefill.dp_size + rank
        routes.append(routing("prefill", worker, rank, prefill_scheduler, found))
    if stage.decode_worker >= 0:
        decode_worker = stage.decode_worker - facts.prefill.num_workers
        scheduler = decode_worker * facts.dp_size + stage.decode_rank
        at = 0 if facts.prefill.comes_second else len(routes)
        routes.insert(at, routing("decode", decode_worker, stage.decode_rank, scheduler, decode_found))
    reused = stage.decode_reused_tokens_max
    return {
        "prefill_worker_idx": prefill_scheduler,
        "decode_worker_idx": None if stage.decode_refused else scheduler,
        "prefill_admit_ms": prefill_admit_ms,
        "source_held_ms": stage.source_held_ms,
        "destination_reserved_ms": stage.destination_reserved_ms,
        "destination_activated_ms": stage.destination_activated_ms,
        "decode_admit_ms": stage.decode_admit_ms,
        "source_released_ms": stage.source_released_ms,
        "decode_reused_input_tokens": reused if reused >= 0 else None,
        "prefill_route_overlap_tokens": _overlap(prefill_scheduler, found),
        "decode_route_overlap_tokens": _overlap(scheduler, decode_found),
        "routing_history": routes,
        "readmission_count": sum(admission["is_readmission"] for admission in record["admission_history"]),
    }


def _overlap(scheduler: int | None, placement: Placement | None) -> int | None:
    """Tokens of the prompt that were cached where a request was placed; None where it never was."""
    if scheduler is None:
        return None
    return 0 if placement is None else placement.overlap_tokens


def routing(pool: str, worker: int, rank: int, scheduler: int, placement: Placement | None) -> dict[str, Any]:
    """Placed at once; round robin (no placement) does not look at overlap."""
    return {
        "pool": pool,
        "outcome": "immediate",
        "queue_entered_at_ms": None,
        "released_at_ms": None,
        "queue_wait_ms": 0.0,
        "logical_worker_id": worker,
        "scheduler_id": scheduler,
        "dp_rank": rank,
        "reported_overlap_tokens": placement.overlap_tokens if placement else 0,
        "selected_overlap_blocks": placement.overlap_blocks if placement else None,
        "best_available_overlap_blocks": placement.best_overlap_blocks if placement else None,
        "overlap_regret_blocks": placement.best_overlap_blocks - placement.overlap_blocks if placement else None,
        "placement_replica_id": None,
    }
