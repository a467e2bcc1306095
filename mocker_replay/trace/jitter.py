"""A trace held in memory, and the same trace with jittered arrivals.

Decides how arrivals are jittered: every gap between two arrivals of sessions, and every think time, is multiplied by a
factor of its own, uniform between 1 - jitter and 1 + jitter; then all gaps are scaled together, so that the last
session arrives when it did. Of a graph the same holds for the earliest starts of its requests and the delays of its
edges. Rows, their order of arrival, requests at the same instant and the mean rate stay. Never
changes what a request is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import structs

from mocker_replay._core.chacha import ChaCha12Rng
from mocker_replay.trace.base import Float64s, RowBatch, TraceFacts, TraceSource
from mocker_replay.trace.graph import TraceGraph
from mocker_replay.trace.graph_source import GraphSource

HELD_ROWS: Final = 1024  # rows of a batch, as a replay asks for them
_SEED_END: Final = 2**64
_NEXT_STREAM: Final = 0x9E3779B97F4A7C15  # odd: replicates of one seed never share a stream


class HeldTrace:
    """A trace that was read once and can be replayed any number of times; see TraceSource and GraphSource.

    Args:
        graph: the graph, of a trace that is one.
    """

    def __init__(self, facts: TraceFacts, batches: Sequence[RowBatch], graph: TraceGraph | None = None) -> None:
        self._facts = facts
        self._batches = batches
        self._graph = graph

    def scan(self) -> TraceFacts:
        """The facts, as they were read."""
        return self._facts

    def batches(self, max_rows: int = HELD_ROWS) -> Iterator[RowBatch]:
        """The rows, in the batches in which they were read."""
        if max_rows < HELD_ROWS:
            raise ValueError(f"max_rows must be at least {HELD_ROWS}, got {max_rows}")
        yield from self._batches

    def graph(self) -> TraceGraph:
        """The graph, as it was read."""
        assert self._graph is not None, "only a trace that is a graph is asked for it"
        return self._graph

    def close(self) -> None:
        """Nothing is open."""

    def jittered(self, jitter: float, seed: int, replicate: int) -> HeldTrace:
        """The same rows at other times.

        Args:
            jitter: largest share by which a gap becomes shorter or longer, above 0 and at most 1.
            seed, replicate: the same pair gives the same arrivals.
        """
        rng = ChaCha12Rng((seed + (replicate + 1) * _NEXT_STREAM) % _SEED_END)
        if self._graph is not None:
            return HeldTrace(self._facts, self._batches, _jittered_graph(self._graph, jitter, rng))
        is_first = np.concatenate([batch.turn == 0 for batch in self._batches])
        timestamp_ms = np.concatenate([batch.timestamp_ms for batch in self._batches])
        delay_ms = np.concatenate([batch.delay_ms for batch in self._batches])
        arrives = is_first & ~np.isnan(timestamp_ms)
        timestamp_ms[arrives] = _jittered_arrivals(timestamp_ms[arrives], jitter, rng)
        thinks = ~is_first & (delay_ms > 0.0)
        delay_ms[thinks] *= _factors(int(thinks.sum()), jitter, rng)
        batches = []
        for batch in self._batches:
            rows = slice(batch.first_row, batch.first_row + len(batch))
            batches.append(structs.replace(batch, timestamp_ms=timestamp_ms[rows], delay_ms=delay_ms[rows]))
        return HeldTrace(self._facts, batches)

    def can_jitter(self, *, closed_loop: bool) -> bool:
        """Whether there is any gap or think time that could change: a closed loop ignores arrivals."""
        if self._graph is not None:
            return bool((self._graph.edge_delay_ms > 0.0).any()) or (self._facts.span_ms > 0.0 and len(self._graph) > 2)
        if any(bool(((batch.delay_ms > 0.0) & (batch.turn > 0)).any()) for batch in self._batches):
            return True
        return not closed_loop and self._facts.span_ms > 0.0 and self._facts.num_sessions > 2


def hold(source: TraceSource) -> HeldTrace:
    """Read a trace once; the source may be closed then.

    Raises:
        TraceError: as the source.
    """
    facts = source.scan()
    if facts.graph is not None:
        assert isinstance(source, GraphSource), "a trace whose facts say so has a graph"
        return HeldTrace(facts, [], source.graph())
    return HeldTrace(facts, list(source.batches(HELD_ROWS)))


def _jittered_arrivals(timestamp_ms: Float64s, jitter: float, rng: ChaCha12Rng) -> Float64s:
    """Other times of the same arrivals, in any order; the first and the last stay."""
    order = np.argsort(timestamp_ms, kind="stable")
    ascending = timestamp_ms[order]
    if len(ascending) < 3:
        return timestamp_ms
    gaps_ms = np.diff(ascending)
    since_ms = np.cumsum(gaps_ms * _factors(len(gaps_ms), jitter, rng))
    if since_ms[-1] > 0.0:
        last_ms = ascending[-1]
        scaled_ms = ascending[0] + since_ms * ((last_ms - ascending[0]) / since_ms[-1])
        ascending[1:] = np.where(since_ms == since_ms[-1], last_ms, np.minimum(scaled_ms, last_ms))
    moved = np.empty_like(timestamp_ms)
    moved[order] = ascending
    return moved


def _jittered_graph(graph: TraceGraph, jitter: float, rng: ChaCha12Rng) -> TraceGraph:
    """The gaps between the earliest starts of requests, and the delays of all edges."""
    not_before_ms, delay_ms = graph.not_before_ms.copy(), graph.edge_delay_ms.copy()
    has_floor = np.isfinite(not_before_ms)
    not_before_ms[has_floor] = _jittered_arrivals(not_before_ms[has_floor], jitter, rng)
    waits = delay_ms > 0.0
    delay_ms[waits] *= _factors(int(waits.sum()), jitter, rng)
    return structs.replace(graph, not_before_ms=not_before_ms, edge_delay_ms=delay_ms)


def _factors(count: int, jitter: float, rng: ChaCha12Rng) -> Float64s:
    uniform = np.array([rng.uniform() for _ in range(count)], np.float64)
    return 1.0 + jitter * (2.0 * uniform - 1.0)
