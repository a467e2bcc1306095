"""Plays of a graph: how each ended, how long it took, and what a request's record says of its place in the graph.

Decides when a play counts as completed, failed or incomplete. Everything follows from the requests' own figures; every
field is defined in docs/metrics.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mocker_replay.identity import uuid_text_of_number
from mocker_replay.report import metrics
from mocker_replay.report.facts import COMPLETED, NOT_ARRIVED, STATUS_NAMES, Columns, RunFacts, RunGraph
from mocker_replay.report.metrics import Bools, Float64s, Int64s


def plays_summary(columns: Columns, facts: RunFacts) -> dict[str, Any]:
    """Fields of the summary that only graphs have; nothing for other traces."""
    graph = facts.graph
    if graph is None:
        return {}
    status = _padded(columns["status"], len(graph), NOT_ARRIVED)
    terminal_ms = _padded(columns["terminal_ms"], len(graph), np.nan)
    e2e_ms = _trajectories_ms(columns, graph)
    described = metrics.describe(e2e_ms)
    num_plays = len(graph.play_ids)
    basis = graph.nested_timestamp_basis
    return {
        "skipped_requests": facts.num_skipped,
        "total_trajectories": num_plays,
        "completed_trajectories": len(e2e_ms),
        "incomplete_trajectories": num_plays - len(e2e_ms),
        **{f"{statistic}_trajectory_e2e_latency_ms": value for statistic, value in described.items()},
        "p50_trajectory_e2e_latency_ms": described["median"],
        "agentic_graph": {
            "source": dict(graph.source),
            "graph_digest": graph.digest,
            "block_size": facts.trace_block_size,
            "node_count": len(graph),
            "play_count": num_plays,
            "source_models": list(graph.models),
        },
        "agentic_play_outcomes": _outcomes(status, terminal_ms, graph, facts),
        **({} if basis is None else {"weka_nested_timestamp_basis": basis}),
    }


def place_in_graph(row: int, arrival_ms: float, facts: RunFacts) -> dict[str, Any]:
    """What a record of a graph says besides, or otherwise than, one of another trace; nothing without a graph."""
    graph = facts.graph
    if graph is None:
        return {}
    name, play = facts.request_name(row), int(graph.play[row])
    agentic: dict[str, Any] = {
        "request_id": name,
        "play_id": graph.play_ids[play],
        "conversation_id": graph.session_names[row],
    }
    if graph.lane[play] >= 0:
        agentic["lane_id"] = f"lane:{graph.lane[play]}"
    root, parent = int(graph.only_root[play]), int(graph.parent[row])
    if root >= 0:
        agentic["root_id"] = facts.request_name(root)
    if parent >= 0:
        agentic["parent_id"] = facts.request_name(parent)
    return {
        "request_id": name,
        "play_id": agentic["play_id"],
        "agentic": agentic,
        "session_id": agentic["conversation_id"],
        "uuid": uuid_text_of_number(row + 1),
        "dispatched_at_ms": arrival_ms,
    }


def _padded(column: Any, length: int, absent: float) -> Any:
    """A column up to the last request of the graph: the last ones may never have arrived."""
    missing = length - len(column)
    return np.concatenate([column, np.full(missing, absent, column.dtype)]) if missing else column


def _trajectories_ms(columns: Columns, graph: RunGraph) -> Float64s:
    """Of each play whose requests all completed, in play order: its last completion, counted from its first root."""
    done: Bools = _padded(metrics.is_completed(columns), len(graph), False)
    terminal_ms = _padded(columns["terminal_ms"], len(graph), np.nan)[done]
    is_root = done & graph.is_root
    arrival_ms = _padded(columns["arrival_ms"], len(graph), np.nan)[is_root]
    num_plays = len(graph.play_ids)
    last_ms, first_ms = np.full(num_plays, -np.inf), np.full(num_plays, np.inf)
    np.maximum.at(last_ms, graph.play[done], terminal_ms)
    np.minimum.at(first_ms, graph.play[is_root], arrival_ms)
    is_whole = np.ones(num_plays, bool)
    is_whole[graph.play[~done]] = False
    took_ms: Float64s = last_ms[is_whole] - first_ms[is_whole]
    return np.maximum(took_ms, 0.0, out=took_ms)


def _outcomes(status: Int64s, terminal_ms: Float64s, graph: RunGraph, facts: RunFacts) -> list[dict[str, Any]]:
    order = np.argsort(graph.play, kind="stable")
    bounds = np.searchsorted(graph.play[order], np.arange(len(graph.play_ids) + 1))
    return [
        _outcome(play_id, order[first:end], status, terminal_ms, facts)
        for play_id, first, end in zip(graph.play_ids, bounds[:-1], bounds[1:], strict=True)
    ]


def _outcome(play_id: str, rows: Int64s, status: Int64s, terminal_ms: Float64s, facts: RunFacts) -> dict[str, Any]:
    """Of one play: `rows` are its requests in order."""
    of_row, end_ms = status[rows], terminal_ms[rows]
    has_ended = of_row >= COMPLETED
    failed = np.flatnonzero(of_row > COMPLETED)
    is_settled = bool((has_ended | (of_row == NOT_ARRIVED)).all()) if len(failed) else bool(has_ended.all())
    outcome: dict[str, Any] = {"play_id": play_id, "status": "incomplete"}
    if is_settled:
        outcome["status"] = "failed" if len(failed) else "completed"
    if len(failed):
        first = failed[np.argmin(end_ms[failed])]  # of those at one instant the first in order
        outcome["causal_terminal_ms"] = float(end_ms[first])
    elif has_ended.any():
        outcome["causal_terminal_ms"] = float(end_ms[has_ended].max())
    if is_settled:
        outcome["settled_at_ms"] = float(end_ms[has_ended].max())
    if len(failed):
        outcome["failure_request_id"] = facts.request_name(int(rows[first]))
        outcome["failure_status"] = STATUS_NAMES[of_row[first]]
    return outcome
