"""Which requests of a graph arrive when: triggers, joins, floors, lanes, plays that fail. Sans I/O.

Decides when a request is ready and which are skipped. Requests of one instant arrive in byte order of their ids, those
that an arrival makes ready at once included; so it is told of every arrival. Never places a request and never sees an
engine. Linear in requests and edges. Source: replay specification, sections 1.5, 3.2, 3.4 and 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mocker_replay._core.fleet import Fleet
from mocker_replay.errors import UsageError
from mocker_replay.replay.workload import Float64s, Uint64s, dense_ids
from mocker_replay.trace.graph import TraceGraph, Trigger

# How far a request has come.
_WAITING, _HANDED_OVER, _ARRIVED, _ENDED = range(4)


class GraphWorkload:
    """Arrivals of a graph; a row is the ordinal of a request.

    Args:
        base_ms: the trace's own time that is 0 of the run. ratio: divides all times of the trace.
        num_lanes: plays at a time; None: every play on the common clock.
        renumber: replace hash ids by dense ones, the token values of cache events.

    Raises:
        UsageError: times that add up to more than a float64 holds.
    """

    wakes = True
    hears_arrivals = True

    def __init__(
        self, graph: TraceGraph, base_ms: float, ratio: float, *, num_lanes: int | None, renumber: bool
    ) -> None:
        self.rows_read = len(graph)
        self.num_skipped = 0
        self._graph = graph
        self._named = False
        self._by_lane = num_lanes is not None
        self._hash_ids: Uint64s = dense_ids(graph.hash_ids, {}) if renumber else graph.hash_ids
        self._order: list[int] = np.argsort(graph.play, kind="stable").tolist()  # requests, play after play
        self._first_of_play = np.searchsorted(graph.play[self._order], np.arange(len(graph.play_ids) + 1)).tolist()
        self._play: list[int] = graph.play.tolist()
        self._floor_ms: list[float] = _floors(graph, base_ms, ratio, by_lane=num_lanes is not None).tolist()
        delays_ms = graph.edge_delay_ms / ratio
        _require_finite(self._floor_ms, delays_ms)
        self._on_arrival = _Followers(graph, Trigger.DISPATCH, delays_ms)
        self._on_completion = _Followers(graph, Trigger.COMPLETION, delays_ms)
        # By request.
        self._unfired: list[int] = np.diff(graph.edge_offsets).tolist()
        self._ready_ms = [-math.inf] * len(graph)  # by the edges that have fired
        self._state = bytearray(len(graph))
        # By play.
        num_plays = len(graph.play_ids)
        self._num_left: list[int] = np.bincount(graph.play, minlength=num_plays).tolist()  # have not arrived
        self._num_running = [0] * num_plays
        self._failed = bytearray(num_plays)
        self._started_ms = [0.0] * num_plays
        self.lane: list[int] = [-1] * num_plays  # where a play runs or ran; -1: nowhere yet, or there are no lanes
        self._num_started = 0
        self._num_at_once = num_plays if num_lanes is None else min(num_lanes, num_plays)

    # -- what a replay asks -------------------------------------------------------------------------

    def start(self, fleet: Fleet) -> None:
        ready: list[int] = []
        for lane in range(self._num_at_once):
            self._start_next_play(lane, 0.0, ready)
        self._hand_over(fleet, ready)
        fleet.set_horizon(math.inf)

    def more(self, fleet: Fleet) -> None:
        raise AssertionError("every request is handed over when it is ready")

    def take_new_names(self) -> list[tuple[int, Sequence[str | None]]]:
        if self._named:
            return []
        self._named = True
        return [(0, self._graph.request_ids)]

    def arrived(self, fleet: Fleet, request: int, at_ms: float) -> None:
        """A request reached its engine: it is dispatched."""
        play = self._play[request]
        self._state[request] = _ARRIVED
        self._num_left[play] -= 1
        self._num_running[play] += 1
        ready: list[int] = []
        self._fire(self._on_arrival, request, at_ms, ready)
        self._hand_over(fleet, ready)

    def ended(self, fleet: Fleet, ends: Sequence[tuple[int, int]]) -> None:
        ready: list[int] = []
        for request, num_tokens in sorted(ends):  # two lanes that become free at once go on in order of the requests
            play = self._play[request]
            self._state[request] = _ENDED
            self._num_running[play] -= 1
            if num_tokens < 0:
                self._fail(fleet, play)
            elif not self._failed[play]:
                self._fire(self._on_completion, request, fleet.now_ms, ready)
            if self._by_lane and not self._num_left[play] and not self._num_running[play]:
                self._start_next_play(self.lane[play], fleet.now_ms, ready)
        self._hand_over(fleet, [request for request in ready if not self._failed[self._play[request]]])

    # -- how it decides -----------------------------------------------------------------------------

    def _requests_of(self, play: int) -> list[int]:
        return self._order[self._first_of_play[play] : self._first_of_play[play + 1]]

    def _start_next_play(self, lane: int, now_ms: float, ready: list[int]) -> None:
        """A lane that is free takes the next play in order, whoever had it before."""
        play = self._num_started
        if play == len(self._num_left):
            return
        self._num_started += 1
        self._started_ms[play] = now_ms
        if self._by_lane:
            self.lane[play] = lane
        ready += [request for request in self._requests_of(play) if not self._unfired[request]]

    def _fire(self, followers: _Followers, request: int, at_ms: float, ready: list[int]) -> None:
        """The edges out of a request fire; who has no other left is ready."""
        for target, delay_ms in followers.of(request):
            self._ready_ms[target] = max(self._ready_ms[target], at_ms + delay_ms)
            self._unfired[target] -= 1
            if not self._unfired[target]:
                ready.append(target)

    def _fail(self, fleet: Fleet, play: int) -> None:
        """What has not arrived of a play that fails never will; what runs goes on."""
        if self._failed[play]:
            return
        self._failed[play] = True
        self.num_skipped += self._num_left[play]
        self._num_left[play] = 0
        for request in self._requests_of(play):
            if self._state[request] == _HANDED_OVER:
                fleet.withdraw(request)

    def _hand_over(self, fleet: Fleet, ready: list[int]) -> None:
        if not ready:
            return
        graph = self._graph
        due_ms = np.array([self._due_ms(request) for request in ready])
        for request in ready:
            self._state[request] = _HANDED_OVER
        rows = np.array(ready, np.int64)
        starts, ends = graph.hash_offsets[rows], graph.hash_offsets[rows + 1]
        parts = [self._hash_ids[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        fleet.push_rows(
            due_ms,
            rows.astype(np.int32),
            rows,
            np.zeros(len(rows), np.int64),
            np.full(len(rows), -1, np.int64),
            graph.input_tokens[rows],
            graph.output_tokens[rows],
            np.concatenate(([0], np.cumsum(ends - starts))),
            np.concatenate(parts),
            None,
            graph.priority[rows].astype(np.int64),
            None,
            graph.play[rows],
        )

    def _due_ms(self, request: int) -> float:
        floor_ms = self._floor_ms[request] + self._started_ms[self._play[request]]
        return max(floor_ms, self._ready_ms[request])


class _Followers:
    """The edges of one trigger, by the request that fires them."""

    def __init__(self, graph: TraceGraph, trigger: Trigger, delays_ms: Float64s) -> None:
        chosen = np.flatnonzero(graph.edge_trigger == trigger)
        chosen = chosen[np.argsort(graph.edge_source[chosen], kind="stable")]
        target_of = np.repeat(np.arange(len(graph)), np.diff(graph.edge_offsets))
        self._targets: list[int] = target_of[chosen].tolist()
        self._delays_ms: list[float] = delays_ms[chosen].tolist()
        self._first: list[int] = np.searchsorted(graph.edge_source[chosen], np.arange(len(graph) + 1)).tolist()

    def of(self, request: int) -> list[tuple[int, float]]:
        """(target, delay [ms]) of each edge out of a request."""
        edges = slice(self._first[request], self._first[request + 1])
        return list(zip(self._targets[edges], self._delays_ms[edges], strict=True))


def _floors(graph: TraceGraph, base_ms: float, ratio: float, *, by_lane: bool) -> Float64s:
    """The earliest start of each request: on the clock of the run, or in lanes after the start of its play."""
    floors_ms: Float64s = np.maximum((graph.not_before_ms - base_ms) / ratio, 0.0)
    if not by_lane:
        return floors_ms
    is_root = np.diff(graph.edge_offsets) == 0
    first_ms = np.full(len(graph.play_ids), np.inf)
    np.minimum.at(first_ms, graph.play[is_root], floors_ms[is_root])
    floors_ms -= first_ms[graph.play]
    return np.maximum(floors_ms, 0.0, out=floors_ms)


def _require_finite(floors_ms: list[float], delays_ms: Float64s) -> None:
    with np.errstate(over="ignore"):
        latest_ms = max(floors_ms) + float(delays_ms.sum())
    if not math.isfinite(latest_ms):
        raise UsageError(
            "the times of this graph, divided by arrival_speedup_ratio, add up to more than a float64 holds"
        )
