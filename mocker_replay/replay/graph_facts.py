"""What the report of a run needs to know of the graph that was replayed, and which settings a graph must have.

Decides who counts as root and as parent of a request. Never decides when anything arrives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mocker_replay.config import ReplayOptions
from mocker_replay.config.options import EXECUTION_MODEL_IS, NEEDS_CLOSED_LOOP, NO_CLOSED_LOOP
from mocker_replay.errors import UsageError
from mocker_replay.report.facts import RunGraph
from mocker_replay.trace import GraphSource, TraceFacts, TraceGraph, TraceSource
from mocker_replay.trace.base import Int64s
from mocker_replay.trace.graph import Relation


def graph_of(source: TraceSource, facts: TraceFacts) -> TraceGraph | None:
    """The graph of a trace that is one."""
    if facts.graph is None:
        return None
    assert isinstance(source, GraphSource), "a trace whose facts say so has a graph"
    return source.graph()


def require_settings(options: ReplayOptions, facts: TraceFacts) -> None:
    """Of some formats only the trace itself says whether it is a graph: look at the settings once more.

    Raises:
        UsageError: a setting that a graph needs or cannot have, or one that only graphs have.
    """
    if facts.graph is None:
        if facts.format == "applied_compute_agentic" and options.replay_concurrency is None:
            raise UsageError(f"replay_concurrency is required for {facts.name}{NEEDS_CLOSED_LOOP}")
        if options.agentic_lanes is not None:
            raise UsageError(f"agentic_lanes is only of use with a graph of requests, and {facts.name} is none")
    elif options.execution_model is None:
        raise UsageError(f"execution_model is required with a graph of requests{EXECUTION_MODEL_IS}")
    elif options.replay_concurrency is not None:
        raise UsageError(f"replay_concurrency cannot be used with a graph of requests{NO_CLOSED_LOOP}")


def run_graph(graph: TraceGraph, facts: TraceFacts, lane: Sequence[int]) -> RunGraph:
    """The graph as a report needs it.

    Args:
        lane: of each play, -1: none.
    """
    assert facts.graph is not None, "a graph has its facts"
    is_root = np.diff(graph.edge_offsets) == 0
    roots = np.flatnonzero(is_root)
    only_root = np.full(len(graph.play_ids), -1, np.int64)
    only_root[graph.play[roots]] = roots
    only_root[np.bincount(graph.play[roots], minlength=len(only_root)) != 1] = -1
    return RunGraph(
        source=facts.graph.source,
        digest=facts.graph.digest,
        models=facts.graph.models,
        play=graph.play,
        play_ids=graph.play_ids,
        session_names=graph.session_names,
        is_root=is_root,
        only_root=only_root,
        parent=_spawners(graph),
        lane=lane,
        nested_timestamp_basis=facts.graph.nested_timestamp_basis,
    )


def _spawners(graph: TraceGraph) -> Int64s:
    """(n,) the request that spawned each one, the first in byte order where several did; -1: none."""
    target_of = np.repeat(np.arange(len(graph)), np.diff(graph.edge_offsets))
    is_spawn = graph.edge_relation == Relation.SPAWN
    found = np.full(len(graph), len(graph), np.int64)
    np.minimum.at(found, target_of[is_spawn], graph.edge_source[is_spawn])
    return np.where(found == len(graph), -1, found)
