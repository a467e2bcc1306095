"""Requests of agents in a Dynamo trace to edges and plays.

Decides what each request waits for, from sessions, their parents, tool calls and the edges the trace names itself, and
which requests form one play. Times are whole milliseconds of the recording.

Source: replay specification, section 1.8.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from mocker_replay.trace.dynamo_event import DynamoDependency, DynamoRequest, ToolCall
from mocker_replay.trace.faults import FaultList
from mocker_replay.trace.graph import Relation, Trigger
from mocker_replay.trace.graph_parts import GraphEdge

_PARENT: Final = "agent_context.parent_session_id"


def edges_of_requests(
    requests: Sequence[DynamoRequest], tool_calls: Sequence[ToolCall], faults: FaultList
) -> list[GraphEdge]:
    """All edges, as positions; contradictions go to the list of faults.

    Args:
        requests: in their order; each has a session.
    """
    maker = _EdgeMaker(requests, faults)
    maker.add_sequences()
    calls = maker.calls_of_children(tool_calls)
    maker.add_children(calls)
    for target, request in enumerate(requests):
        for dependency in request.dependencies:
            maker.add_named(target, dependency)
    return maker.edges


def plays_of(num_requests: int, edges: Sequence[GraphEdge]) -> list[list[int]]:
    """Requests that edges connect, each play in order and the plays in order of their first requests."""
    leader = list(range(num_requests))

    def leader_of(request: int) -> int:
        while leader[request] != request:
            leader[request] = leader[leader[request]]
            request = leader[request]
        return request

    for edge in edges:
        one, other = leader_of(edge.source), leader_of(edge.target)
        leader[max(one, other)] = min(one, other)
    plays: dict[int, list[int]] = {}
    for request in range(num_requests):
        plays.setdefault(leader_of(request), []).append(request)
    return list(plays.values())


class _EdgeMaker:
    """Edges as they are found; of several with the same ends and trigger only the first is kept."""

    def __init__(self, requests: Sequence[DynamoRequest], faults: FaultList) -> None:
        self.edges: list[GraphEdge] = []
        self._known: set[tuple[int, int, Trigger]] = set()
        self._requests = requests
        self._faults = faults
        self._number = {request.request_id: number for number, request in enumerate(requests)}
        self._members: dict[str, list[int]] = {}  # requests of each session, in order
        self._parents: dict[str, str] = {}
        for number, request in enumerate(requests):
            assert request.session is not None, "requests without a session are no graph"
            self._members.setdefault(request.session, []).append(number)
            self._note_parent(request, request.session)

    def add_sequences(self) -> None:
        """Each request of a session waits for the one before."""
        for members in self._members.values():
            for source, target in pairwise(members):
                delay_ms = self._requests[target].start_ms - self._requests[source].end_ms
                if delay_ms < 0:
                    before = self._requests[source]
                    rule = (
                        f"must not start before {before.request_id!r}, the request before it in session "
                        f"{before.session!r}, had ended: it is {-delay_ms} ms too early"
                    )
                    self._refuse(self._requests[target], "request_received_ms", rule, self._requests[target].start_ms)
                self._add(source, target, Trigger.COMPLETION, Relation.SEQUENCE, delay_ms)

    def calls_of_children(self, tool_calls: Sequence[ToolCall]) -> dict[str, ToolCall]:
        """The tool call that each child session was, as far as one says so."""
        found: dict[str, ToolCall] = {}
        for call in tool_calls:
            for field, name in (("source_request_id", call.source), ("consumer_request_id", call.consumer)):
                number = None if name is None else self._number.get(name)
                if name is not None and number is None:
                    self._faults.add(call.line, call.place + field, "must be a request of the trace", name)
                elif number is not None and self._requests[number].session != call.session:
                    rule = f"must be a request of session {call.session!r}, which made the call"
                    self._faults.add(call.line, call.place + field, rule, name)
            if call.child_session is None:
                continue
            first = found.setdefault(call.child_session, call)
            parent = self._parents.get(call.child_session)
            if first is not call:
                rule = f"must not be the session of another tool call, but is that of line {first.line}, too"
                self._faults.add(call.line, f"{call.place}child_session_id", rule, call.child_session)
            elif parent is not None and parent != call.session:
                rule = f"must have {call.session!r} for its parent session, not {parent!r}"
                self._faults.add(call.line, f"{call.place}child_session_id", rule, call.child_session)
        return found

    def add_children(self, calls: dict[str, ToolCall]) -> None:
        """Sessions that have a parent start with one of its requests, and another one waits for them."""
        linked = self._linked_sessions()
        for child, parent in self._parents.items():
            members = self._members[child]
            if parent not in self._members or parent == child:
                rule = "must be another session of the trace"
                self._refuse(self._requests[members[0]], _PARENT, rule, parent)
                continue
            call = calls.get(child)
            if call is None and frozenset((child, parent)) in linked:
                continue  # what stands between the two is said
            if call is None:
                source, target = self._guessed(members, self._members[parent])
            else:
                source = self._number.get(call.source)
                target = None if call.consumer is None else self._number.get(call.consumer)
            self._add_spawn(source, members[0])
            self._add_join(members, target)

    def add_named(self, target: int, dependency: DynamoDependency) -> None:
        """An edge that the request itself names."""
        request = self._requests[target]
        source = self._number.get(dependency.source)
        place = f"{dependency.place}.request_id"
        if source is None:
            self._refuse(request, place, "must be a request of the trace", dependency.source)
        elif source == target:
            self._refuse(request, place, "must not be the request itself", dependency.source)
        elif self._requests[source].start_ms > request.start_ms:
            self._refuse(request, place, "must not be a request that started later", dependency.source)
        elif dependency.trigger is Trigger.DISPATCH and dependency.relation is not Relation.SPAWN:
            given = dependency.relation.name.lower()
            self._refuse(request, f"{dependency.place}.relation", "must be spawn with trigger dispatch", given)
        else:
            fired_ms = self._fired_ms(source, dependency.trigger)
            self._add(source, target, dependency.trigger, dependency.relation, max(0, request.start_ms - fired_ms))

    def _linked_sessions(self) -> set[frozenset[str | None]]:
        """Pairs of sessions between which the trace names an edge itself."""
        found = set()
        for request in self._requests:
            for dependency in request.dependencies:
                source = self._number.get(dependency.source)
                if source is not None:
                    found.add(frozenset((self._requests[source].session, request.session)))
        return found

    def _guessed(self, child: Sequence[int], parent: Sequence[int]) -> tuple[int | None, int | None]:
        """The latest request of the parent before a child, and the first one after it."""
        start_ms = self._requests[child[0]].start_ms
        end_ms = self._requests[child[-1]].end_ms
        starts = [self._requests[number].start_ms for number in parent]
        before = bisect_right(starts, start_ms)
        source = parent[before - 1] if before else None
        after = next((number for number in parent if self._requests[number].start_ms >= end_ms), None)
        return source, after

    def _add_spawn(self, source: int | None, target: int) -> None:
        if source is None:
            return
        delay_ms = self._requests[target].start_ms - self._requests[source].start_ms
        if delay_ms < 0:
            name = self._requests[source].request_id
            rule = f"must not start before {name!r}, which is said to have started its session"
            self._refuse(self._requests[target], "request_received_ms", rule, self._requests[target].start_ms)
        self._add(source, target, Trigger.DISPATCH, Relation.SPAWN, delay_ms)

    def _add_join(self, child: Sequence[int], target: int | None) -> None:
        """A request waits for what a child session had finished when it started."""
        if target is None:
            return
        start_ms = self._requests[target].start_ms
        source = next((number for number in reversed(child) if self._requests[number].end_ms <= start_ms), None)
        if source is not None:
            delay_ms = start_ms - self._requests[source].end_ms
            self._add(source, target, Trigger.COMPLETION, Relation.JOIN, delay_ms)

    def _add(self, source: int, target: int, trigger: Trigger, relation: Relation, delay_ms: int) -> None:
        if (source, target, trigger) in self._known:
            return
        self._known.add((source, target, trigger))
        self.edges.append(GraphEdge(source, target, trigger, relation, float(delay_ms)))

    def _fired_ms(self, source: int, trigger: Trigger) -> int:
        request = self._requests[source]
        return request.start_ms if trigger is Trigger.DISPATCH else request.end_ms

    def _note_parent(self, request: DynamoRequest, session: str) -> None:
        if request.parent_session is None:
            return
        first = self._parents.setdefault(session, request.parent_session)
        if first != request.parent_session:
            rule = f"must be {first!r}, as in the requests of session {session!r} before"
            self._refuse(request, _PARENT, rule, request.parent_session)

    def _refuse(self, request: DynamoRequest, field: str, rule: str, value: object) -> None:
        self._faults.add(request.line, field, rule, value)
