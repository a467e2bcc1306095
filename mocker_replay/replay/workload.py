"""Which rows arrive when: open loop, sessions with think times, closed loop. Sans I/O.

Decides the arrival time of every row and the total order at one instant: (time, session order, turn). Never places
a request and never sees an engine; it is told who ended and answers with what becomes due. Graphs of requests are
graph_workload.py.

Source: replay specification, sections 1.3 (sessions), 3.2 and 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec import structs

from mocker_replay._core.fleet import Fleet
from mocker_replay.replay.history import Histories
from mocker_replay.trace import RowBatch, TraceFacts, TraceSource, concatenate

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
Recall = Callable[[RowBatch], Histories]


class Workload(Protocol):
    """What a replay asks of its arrivals."""

    wakes: bool  # it must be told of ends
    hears_arrivals: bool  # and of arrivals
    rows_read: int
    num_skipped: int  # rows that will never arrive, by rules of the trace
    lane: list[int]  # by play of a graph, -1: none

    def start(self, fleet: Fleet) -> None:
        """Hand over what is known before time 0."""

    def more(self, fleet: Fleet) -> None:
        """Hand over the next rows of a streaming trace."""

    def arrived(self, fleet: Fleet, request: int, at_ms: float) -> None:
        """This request arrived; hand over what that makes due."""

    def ended(self, fleet: Fleet, ends: Sequence[tuple[int, int]]) -> None:
        """These requests ended now, with so many tokens or, where they did not complete, -1; hand over what that makes
        due."""

    def take_new_names(self) -> list[tuple[int, Sequence[str | None]]]:
        """Names of rows read since the last call, as (first row, names)."""


def open_workload(
    source: TraceSource, facts: TraceFacts, *, arrival_speedup_ratio: float, replay_concurrency: int | None,
    renumber: bool, recall: Recall | None = None,
) -> Workload:  # fmt: skip
    """The workload for a scanned trace that is no graph.

    Args:
        replay_concurrency: sessions at a time; None is the open loop.
        recall: makes the histories of sessions whose rows carry only what is new; None: rows carry whole prompts.
        renumber: replace hash ids by dense ones in order of first appearance, the token values of cache events.
    """
    batches = _renumbered(source.batches()) if renumber or recall is not None else source.batches()
    base_ms = facts.min_first_timestamp_ms or 0.0
    if replay_concurrency is not None:
        return ClosedLoop(batches, replay_concurrency, recall)
    if facts.is_sorted and not facts.is_multi_turn and recall is None:
        return Stream(batches, base_ms, arrival_speedup_ratio)
    return OpenLoop(batches, base_ms, arrival_speedup_ratio, recall)


def _renumbered(batches: Iterator[RowBatch]) -> Iterator[RowBatch]:

    dense: dict[int, int] = {}
    for batch in batches:
        # Ids beyond a prompt are never used, but they take their number like all others.
        for key in [] if batch.surplus_included is None else batch.surplus_included.tolist():
            dense.setdefault(key, len(dense))
        yield structs.replace(batch, hash_ids=dense_ids(batch.hash_ids, dense), surplus_included=None)


def dense_ids(hash_ids: Uint64s, dense: dict[int, int]) -> Uint64s:
    """Each id by the number it has in `dense`, where new ones are added in order."""
    return np.fromiter((dense.setdefault(key, len(dense)) for key in hash_ids.tolist()), np.uint64, len(hash_ids))


def _push(
    fleet: Fleet, rows: RowBatch, chosen: Int64s, due_ms: Float64s, session: Int64s, histories: Histories | None = None
) -> None:
    """Hand over `chosen` rows of a batch, due at `due_ms`; with histories each with all that was said before."""
    input_tokens = rows.input_tokens[chosen]
    if histories is not None:
        begun = [histories.begin(row) for row in chosen.tolist()]
        input_tokens = np.array([num_input for num_input, _ in begun], np.int64)
        offsets = np.concatenate(([0], np.cumsum([len(ids) for _, ids in begun])))
        hash_ids = np.concatenate([np.array(ids, np.uint64) for _, ids in begun])
        _push_rows(fleet, rows, chosen, due_ms, session, input_tokens, offsets, hash_ids)
        return
    starts, ends = rows.hash_offsets[chosen], rows.hash_offsets[chosen + 1]
    lengths = ends - starts
    offsets = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if len(chosen) == len(rows):
        hash_ids = rows.hash_ids
    else:
        hash_ids = np.concatenate(
            [rows.hash_ids[a:b] for a, b in zip(starts, ends, strict=True)] or [np.empty(0, np.uint64)]
        )
    _push_rows(fleet, rows, chosen, due_ms, session, input_tokens, offsets, hash_ids)


def _push_rows(
    fleet: Fleet, rows: RowBatch, chosen: Int64s, due_ms: Float64s, session: Int64s, input_tokens: Int64s,
    offsets: Int64s, hash_ids: Uint64s,
) -> None:  # fmt: skip
    fleet.push_rows(
        due_ms,
        (chosen + rows.first_row).astype(np.int32),
        rows.session[chosen],
        rows.turn[chosen].astype(np.int64),
        session,
        input_tokens,
        rows.output_tokens[chosen],
        offsets,
        hash_ids,
        None if rows.cancel_after_ms is None else rows.cancel_after_ms[chosen],
        rows.priority[chosen].astype(np.int64),
        None if rows.deadline_ms is None else rows.deadline_ms[chosen],
    )


class _Independent:
    """Rows that all arrive, whatever the others do before."""

    hears_arrivals = False
    num_skipped = 0

    def __init__(self) -> None:
        self.lane: list[int] = []

    def arrived(self, fleet: Fleet, request: int, at_ms: float) -> None:
        raise AssertionError("arrivals make nothing due here")


class Stream(_Independent):
    """Open loop of a trace sorted by time with one turn a session: rows are read as they are needed."""

    wakes = False

    def __init__(self, batches: Iterator[RowBatch], base_ms: float, ratio: float) -> None:
        super().__init__()
        self.rows_read = 0
        self._batches = batches
        self._base_ms = base_ms
        self._ratio = ratio
        self._names: list[tuple[int, Sequence[str | None]]] = []

    def start(self, fleet: Fleet) -> None:
        self.more(fleet)

    def more(self, fleet: Fleet) -> None:
        rows = next(self._batches, None)
        if rows is None:
            fleet.set_horizon(math.inf)
            return
        due_ms = (rows.timestamp_ms - self._base_ms) / self._ratio
        _push(fleet, rows, np.arange(len(rows)), due_ms, np.full(len(rows), -1, np.int64))
        self.rows_read += len(rows)
        if rows.request_ids is not None:
            self._names.append((rows.first_row, rows.request_ids))
        fleet.set_horizon(float(due_ms[-1]))

    def ended(self, fleet: Fleet, ends: Sequence[tuple[int, int]]) -> None:
        raise AssertionError("a streaming trace has no follow-ups")

    def take_new_names(self) -> list[tuple[int, Sequence[str | None]]]:
        names, self._names = self._names, []
        return names


class _Loaded(_Independent):
    """All rows in memory, with the next turn of each."""

    wakes = True

    def __init__(self, batches: Iterator[RowBatch], recall: Recall | None) -> None:
        super().__init__()
        self.rows = concatenate(list(batches))
        self._histories = None if recall is None else recall(self.rows)
        self.rows_read = len(self.rows)
        self._named = False
        # Row of the next turn of the same session, -1 at its last.
        order = np.lexsort((self.rows.turn, self.rows.session))
        self._next = np.full(len(self.rows), -1, np.int64)
        same = self.rows.session[order[1:]] == self.rows.session[order[:-1]]
        self._next[order[:-1][same]] = order[1:][same]
        self.first_turns = order[np.concatenate(([True], ~same))]  # in session order
        self.multi_turn = bool(same.any())

    def more(self, fleet: Fleet) -> None:
        raise AssertionError("all rows were handed over at the start")

    def take_new_names(self) -> list[tuple[int, Sequence[str | None]]]:
        if self._named or self.rows.request_ids is None:
            return []
        self._named = True
        return [(self.rows.first_row, self.rows.request_ids)]

    def _push_now(self, fleet: Fleet, due: list[tuple[int, float]]) -> None:
        if not due:
            return
        chosen = np.array([row for row, _ in due], np.int64)
        due_ms = np.array([at_ms for _, at_ms in due], np.float64)
        _push(fleet, self.rows, chosen, due_ms, self.rows.session[chosen], self._histories)

    def _remember(self, ends: Sequence[tuple[int, int]]) -> None:
        """What was answered is part of the next prompt."""
        if self._histories is not None:
            for row, num_tokens in ends:
                self._histories.end(row, max(num_tokens, 0), is_last=self._next[row] < 0)


class OpenLoop(_Loaded):
    """First turns at their own time, in any file order; later turns follow the end of the one before."""

    def __init__(self, batches: Iterator[RowBatch], base_ms: float, ratio: float, recall: Recall | None) -> None:
        super().__init__(batches, recall)
        self.wakes = self.multi_turn
        self._base_ms = base_ms
        self._ratio = ratio

    def start(self, fleet: Fleet) -> None:
        first = self.first_turns
        due_ms = (self.rows.timestamp_ms[first] - self._base_ms) / self._ratio
        reported = self.rows.session[first] if self.multi_turn else np.full(len(first), -1, np.int64)
        _push(fleet, self.rows, first, due_ms, reported, self._histories)
        fleet.set_horizon(math.inf)

    def ended(self, fleet: Fleet, ends: Sequence[tuple[int, int]]) -> None:
        self._remember(ends)
        follow_ups = [int(row) for row in self._next[[request for request, _ in ends]] if row >= 0]
        delays_ms = self.rows.delay_ms[follow_ups] / self._ratio
        self._push_now(fleet, [(row, fleet.now_ms + float(d)) for row, d in zip(follow_ups, delays_ms, strict=True)])


class ClosedLoop(_Loaded):
    """A fixed number of sessions at a time; a session that ends makes room for the next one at that instant."""

    def __init__(self, batches: Iterator[RowBatch], concurrency: int, recall: Recall | None) -> None:
        super().__init__(batches, recall)
        self._concurrency = concurrency
        self._started = 0

    def start(self, fleet: Fleet) -> None:
        self._push_now(fleet, self._next_sessions(self._concurrency, 0.0))
        fleet.set_horizon(math.inf)

    def ended(self, fleet: Fleet, ends: Sequence[tuple[int, int]]) -> None:
        self._remember(ends)
        due: list[tuple[int, float]] = []
        for request, _ in ends:
            row = int(self._next[request])
            if row >= 0:
                due.append((row, fleet.now_ms + float(self.rows.delay_ms[row])))
            else:
                due += self._next_sessions(1, fleet.now_ms)
        self._push_now(fleet, due)

    def _next_sessions(self, n: int, at_ms: float) -> list[tuple[int, float]]:
        chosen = self.first_turns[self._started : self._started + n]
        self._started += len(chosen)
        return [(int(row), at_ms) for row in chosen]


def session_names(rows: RowBatch) -> list[str]:
    """Name of each session ordinal; a row that names none is the session `request_<line>`."""
    names: dict[int, str] = {}
    for session, line, name in zip(rows.session.tolist(), rows.lines.tolist(), rows.session_names, strict=True):
        names.setdefault(session, f"request_{line}" if name is None else name)
    return [names[session] for session in range(len(names))]
