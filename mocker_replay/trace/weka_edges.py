"""Streams of one play to edges: what each request waits for.

Decides the source, trigger, relation and delay of every edge, in seconds of the recording. Sees no hash ids and makes
no identities.

Source: replay specification, section 1.6, rules 2 and 3.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct, field

from mocker_replay.trace.base import MAX_EDGES
from mocker_replay.trace.graph import Relation, Trigger
from mocker_replay.trace.weka_streams import EPSILON_S, NO_REQUEST, Stream


class SubAgent(Struct, frozen=True):
    """One sub-agent of a play, after its requests were split into streams."""

    parent: int  # the request that spawned it
    streams: list[Stream]
    is_awaited: bool
    end_s: float  # when it was done
    first_listed: int  # number of the first request of the play that is listed after it


class PlayRequests(Struct, frozen=True):
    """Requests of a play in the order in which they are listed, those of sub-agents included."""

    start_s: Sequence[float]
    end_s: Sequence[float]
    names: Sequence[str]  # tells requests of the same times apart: the last by name counts as the latest


class TooManyEdges(Exception):
    """A play needs more than a trace may have."""


class Edges(Struct):
    """Edges of a play as columns; of several with the same ends, trigger and relation only the first is kept."""

    source: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    trigger: list[Trigger] = field(default_factory=list)
    relation: list[Relation] = field(default_factory=list)
    delay_s: list[float] = field(default_factory=list)
    _known: set[tuple[int, int, Trigger, Relation]] = field(default_factory=set)

    def add(self, source: int, target: int, trigger: Trigger, relation: Relation, delay_s: float) -> None:
        key = (source, target, trigger, relation)
        if key not in self._known:
            if len(self._known) == MAX_EDGES:
                raise TooManyEdges
            self._known.add(key)
            self.source.append(source)
            self.target.append(target)
            self.trigger.append(trigger)
            self.relation.append(relation)
            self.delay_s.append(delay_s)

    def targets(self) -> set[int]:
        """Requests that wait for something."""
        return set(self.target)


def edges_of_play(requests: PlayRequests, root: list[Stream], sub_agents: Sequence[SubAgent]) -> Edges:
    """All edges of a play.

    Args:
        root: streams of the play's own requests, the main one first.
    """
    edges = Edges()
    for stream in root:
        _add_sequence(edges, requests, stream)
        if stream.fork != NO_REQUEST:
            _add_spawn(edges, requests, stream.fork, stream.requests[0])
    for agent in sub_agents:
        for number, stream in enumerate(agent.streams):
            _add_sequence(edges, requests, stream)
            if number == 0:
                _add_spawn(edges, requests, agent.parent, stream.requests[0])
            elif stream.fork != NO_REQUEST:
                _add_spawn(edges, requests, stream.fork, stream.requests[0])
    for scope in (root, *(agent.streams for agent in sub_agents)):
        _add_barriers(edges, requests, scope)
    stream_of = {request: stream for stream in root for request in stream.requests}
    for agent in sub_agents:
        if agent.is_awaited:
            _add_join(edges, requests, agent, stream_of[agent.parent])
    _anchor(edges, requests, root, sub_agents)
    return edges


def _add_sequence(edges: Edges, requests: PlayRequests, stream: Stream) -> None:
    for source, target in zip(stream.requests, stream.requests[1:], strict=False):
        delay_s = max(0.0, requests.start_s[target] - requests.end_s[source])
        edges.add(source, target, Trigger.COMPLETION, Relation.SEQUENCE, delay_s)


def _add_spawn(edges: Edges, requests: PlayRequests, source: int, target: int) -> None:
    start_s, end_s = requests.start_s[target], requests.end_s[source]
    if start_s < end_s:
        edges.add(source, target, Trigger.DISPATCH, Relation.SPAWN, max(0.0, start_s - requests.start_s[source]))
    else:
        edges.add(source, target, Trigger.COMPLETION, Relation.SPAWN, start_s - end_s)


def _add_join(edges: Edges, requests: PlayRequests, agent: SubAgent, parent: Stream) -> None:
    for target in sorted(parent.requests):
        if target >= agent.first_listed and requests.start_s[target] + EPSILON_S >= agent.end_s:
            break
    else:
        return
    for stream in agent.streams:
        source = stream.requests[-1]
        delay_s = max(0.0, requests.start_s[target] - requests.end_s[source])
        edges.add(source, target, Trigger.COMPLETION, Relation.JOIN, delay_s)


def _anchor(edges: Edges, requests: PlayRequests, root: list[Stream], sub_agents: Sequence[SubAgent]) -> None:
    """Streams that nothing leads to start with the first request of the main one."""
    first = root[0].requests[0]
    reached = edges.targets()
    for stream in (*root[1:], *(stream for agent in sub_agents for stream in agent.streams)):
        target = stream.requests[0]
        if target not in reached:
            delay_s = max(0.0, requests.start_s[target] - requests.start_s[first])
            edges.add(first, target, Trigger.DISPATCH, Relation.SPAWN, delay_s)


def _add_barriers(edges: Edges, requests: PlayRequests, streams: list[Stream]) -> None:
    """Each request waits for what the other streams had finished, as far as nothing it waits for implies that."""
    if len(streams) < 2:
        return
    stream_of = {request: number for number, stream in enumerate(streams) for request in stream.requests}
    order = sorted(stream_of, key=lambda request: (requests.start_s[request], request))
    ended = _LatestEnded(len(streams), requests)
    for now_s, group in groupby(order, key=requests.start_s.__getitem__):
        together = list(group)
        ended.note(now_s)
        for target in together:
            for source in ended.not_implied(stream_of[target]):
                edges.add(source, target, Trigger.COMPLETION, Relation.REPLAY_BARRIER, 0.0)
        for target in together:
            ended.start(target, stream_of[target])


class _LatestEnded:
    """Of each stream the request that ended last."""

    def __init__(self, num_streams: int, requests: PlayRequests) -> None:
        self._requests = requests
        self._latest = [NO_REQUEST] * num_streams
        self._running: list[tuple[float, int, int]] = []  # (end, request, stream), earliest end first
        self._ends: list[tuple[float, int]] = []  # (end, stream) of all latest ones, ordered
        self._starts: list[tuple[float, int]] = []  # (start, stream) of all latest ones, ordered

    def start(self, request: int, stream: int) -> None:
        heapq.heappush(self._running, (self._requests.end_s[request], request, stream))

    def note(self, now_s: float) -> None:
        while self._running and self._running[0][0] <= now_s + EPSILON_S:
            _, request, stream = heapq.heappop(self._running)
            before = self._latest[stream]
            if before != NO_REQUEST and self._order(before) > self._order(request):
                continue  # the same instant, within the precision of the times
            if before != NO_REQUEST:
                del self._ends[bisect_left(self._ends, (self._requests.end_s[before], stream))]
                del self._starts[bisect_left(self._starts, (self._requests.start_s[before], stream))]
            self._latest[stream] = request
            insort(self._ends, (self._requests.end_s[request], stream))
            insort(self._starts, (self._requests.start_s[request], stream))

    def _order(self, request: int) -> tuple[float, float, str]:
        times = self._requests.end_s[request], self._requests.start_s[request]
        return *times, self._requests.names[request]

    def not_implied(self, stream: int) -> list[int]:
        """Those of other streams that had not ended when another of them started."""
        found = []
        latest_start_s = next((start_s for start_s, other in reversed(self._starts) if other != stream), 0.0)
        for end_s, other in reversed(self._ends):
            if end_s < latest_start_s:
                break  # this one and all that ended earlier
            request = self._latest[other]
            is_implied = end_s <= latest_start_s + EPSILON_S and self._requests.start_s[request] < latest_start_s
            if other != stream and not is_implied:
                found.append(request)
        return found
