"""Plays, one after another, to one graph.

Decides the order of the requests (bytes of their ids) and of the edges into one. Whoever adds a play has checked it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from mocker_replay.trace.base import Uint64s
from mocker_replay.trace.graph import Relation, TraceGraph, Trigger


class GraphRow(Struct, frozen=True):
    """One request of a play."""

    request_id: str
    line: int
    input_tokens: int
    output_tokens: int
    hash_ids: Uint64s
    not_before_ms: float
    session_name: str
    model: str | None


class GraphEdge(Struct, frozen=True):
    """One edge; its ends are positions in the rows of its play."""

    source: int
    target: int
    trigger: Trigger
    relation: Relation
    delay_ms: float


class GraphParts:
    """Collects plays in play order."""

    def __init__(self) -> None:
        self._rows: list[GraphRow] = []
        self._play_of = array("q")
        self._play_ids: list[str] = []
        self._source, self._target = array("q"), array("q")
        self._trigger, self._relation = array("i"), array("i")
        self._delay_ms = array("d")

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, play_id: str, rows: Sequence[GraphRow], edges: Iterable[GraphEdge]) -> None:
        """The next play."""
        base = len(self._rows)
        self._rows += rows
        self._play_of.extend([len(self._play_ids)] * len(rows))
        self._play_ids.append(play_id)
        for edge in edges:
            self._source.append(base + edge.source)
            self._target.append(base + edge.target)
            self._trigger.append(edge.trigger)
            self._relation.append(edge.relation)
            self._delay_ms.append(edge.delay_ms)

    def graph(self, block_size: int) -> TraceGraph:
        """All plays as one graph."""
        order = np.array(sorted(range(len(self._rows)), key=lambda at: self._rows[at].request_id), np.int64)
        rows = [self._rows[at] for at in order]
        place = np.empty(len(rows), np.int64)
        place[order] = np.arange(len(rows))
        source, target = place[np.array(self._source, np.int64)], place[np.array(self._target, np.int64)]
        by_target = np.argsort(target, kind="stable")  # edges into one request stay in the order they were made
        return TraceGraph(
            block_size=block_size,
            request_ids=[row.request_id for row in rows],
            lines=np.array([row.line for row in rows], np.int64),
            input_tokens=np.array([row.input_tokens for row in rows], np.int64),
            output_tokens=np.array([row.output_tokens for row in rows], np.int64),
            hash_offsets=_offsets(np.array([len(row.hash_ids) for row in rows], np.int64)),
            hash_ids=np.concatenate([np.empty(0, np.uint64), *(row.hash_ids for row in rows)]),
            not_before_ms=np.array([row.not_before_ms for row in rows], np.float64),
            session_names=[row.session_name for row in rows],
            models=[row.model for row in rows],
            play=np.array(self._play_of, np.int64)[order],
            play_ids=list(self._play_ids),
            edge_offsets=_offsets(np.bincount(target, minlength=len(rows))),
            edge_source=source[by_target],
            edge_trigger=np.array(self._trigger, np.int32)[by_target],
            edge_relation=np.array(self._relation, np.int32)[by_target],
            edge_delay_ms=np.array(self._delay_ms, np.float64)[by_target],
            priority=np.zeros(len(rows), np.int32),
            strict_priority=np.zeros(len(rows), np.int64),
        )


def _offsets(counts: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
