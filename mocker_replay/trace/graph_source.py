"""Traces that are graphs of requests: what a replay asks of them, and what they say about themselves.

Decides the facts of a graph and its digest, and how it looks to those who only know rows. Never reads a file; the
format's own reader makes the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, Self, runtime_checkable

import numpy as np
from blake3 import blake3

from mocker_replay.trace.base import GraphFacts, RowBatch, TraceFacts
from mocker_replay.trace.graph import TraceGraph


@runtime_checkable
class GraphSource(Protocol):
    """A trace whose facts say `graph`: it is replayed as the graph, not as rows."""

    def scan(self) -> TraceFacts:
        """Read everything and find all faults.

        Raises:
            TraceError: with every fault (the first 100 listed, the rest counted).
        """

    def graph(self) -> TraceGraph:
        """The graph, as it was scanned."""

    def close(self) -> None:
        """Give the file back."""


class GraphTrace:
    """A GraphSource that reads its graph once and keeps it; a format's reader says how, in `_read`."""

    def __init__(self) -> None:
        self._known: tuple[TraceGraph, TraceFacts] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back."""
        raise NotImplementedError

    def _read(self) -> tuple[TraceGraph, TraceFacts]:
        """Read the file once.

        Raises:
            TraceError: with every fault.
        """
        raise NotImplementedError

    def scan(self) -> TraceFacts:
        return self._once()[1]

    def graph(self) -> TraceGraph:
        return self._once()[0]

    def batches(self, max_rows: int = 1024) -> Iterator[RowBatch]:
        """The requests as rows in order of their ids, for those who look at lengths and prefixes only."""
        if max_rows < 1:
            raise ValueError(f"max_rows must be positive, got {max_rows}")
        graph = self.graph()
        for first in range(0, len(graph), max_rows):
            yield _rows(graph, first, min(first + max_rows, len(graph)))

    def _once(self) -> tuple[TraceGraph, TraceFacts]:
        if self._known is None:
            self._known = self._read()
        return self._known


def facts_of_graph(
    graph: TraceGraph, *, path: str, name: str, trace_format: str, digest: str, source: Mapping[str, str],
    warnings: Sequence[str] = (), nested_timestamp_basis: str | None = None,
) -> TraceFacts:  # fmt: skip
    """Facts of a trace that was lowered to a graph.

    Args:
        path, name: of the file, as given and for people.
        digest: BLAKE3 of the bytes read, hex.
        source: `format` and `digest` of what was recorded, for reports.
    """
    floors = graph.not_before_ms[np.isfinite(graph.not_before_ms)]
    return TraceFacts(
        path=path,
        name=name,
        format=trace_format,
        num_rows=len(graph),
        digest=digest,
        is_sorted=False,
        has_sessions=True,
        is_multi_turn=False,
        num_sessions=len(set(graph.session_names)),
        min_first_timestamp_ms=float(floors.min()) if len(floors) else None,
        max_first_timestamp_ms=float(floors.max()) if len(floors) else None,
        total_input_tokens=int(graph.input_tokens.sum()),
        total_output_tokens=int(graph.output_tokens.sum()),
        has_request_ids=True,
        timestamp_unit="ms",
        trace_block_size=graph.block_size,
        warnings=tuple(warnings),
        graph=GraphFacts(
            source=dict(source),
            digest=graph_digest(graph),
            num_plays=len(graph.play_ids),
            num_edges=len(graph.edge_source),
            models=tuple(sorted({model for model in graph.models if model is not None})),
            nested_timestamp_basis=nested_timestamp_basis,
        ),
    )


def graph_digest(graph: TraceGraph) -> str:
    """BLAKE3 of all that a replay of the graph depends on, and of the names in its reports."""
    hasher = blake3(b"mocker-replay.graph/1")
    columns = (
        graph.input_tokens, graph.output_tokens, graph.hash_offsets, graph.hash_ids, graph.not_before_ms, graph.play,
        graph.edge_offsets, graph.edge_source, graph.edge_trigger, graph.edge_relation, graph.edge_delay_ms,
        graph.priority, graph.strict_priority,
    )  # fmt: skip
    hasher.update(np.array([graph.block_size, len(graph), len(graph.play_ids)], "<i8").tobytes())
    for column in columns:
        wide = column.astype(column.dtype.newbyteorder("<"), copy=False)
        hasher.update(len(wide).to_bytes(8, "little") + wide.tobytes())
    for texts in (graph.request_ids, graph.session_names, [model or "" for model in graph.models], graph.play_ids):
        encoded = [text.encode() for text in texts]
        hasher.update(np.array([len(text) for text in encoded], "<i8").tobytes() + b"".join(encoded))
    return hasher.hexdigest()


def _rows(graph: TraceGraph, first: int, end: int) -> RowBatch:
    """Requests first..end as rows of one turn each, at the earliest time the graph allows."""
    offsets = graph.hash_offsets[first : end + 1]
    floors = graph.not_before_ms[first:end]
    return RowBatch(
        first_row=first,
        lines=graph.lines[first:end],
        timestamp_ms=np.where(np.isfinite(floors), floors, np.nan),
        input_tokens=graph.input_tokens[first:end],
        output_tokens=graph.output_tokens[first:end],
        hash_offsets=offsets - offsets[0],
        hash_ids=graph.hash_ids[int(offsets[0]) : int(offsets[-1])],
        session=np.arange(first, end, dtype=np.int64),
        turn=np.zeros(end - first, np.int32),
        delay_ms=np.zeros(end - first),
        session_names=list(graph.session_names[first:end]),
        request_ids=list(graph.request_ids[first:end]),
        priority=graph.priority[first:end],
        strict_priority=graph.strict_priority[first:end],
    )
