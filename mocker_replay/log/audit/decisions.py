"""Decisions of a policy: whether what they name could be chosen, and whether it came so.

Decides by the lines alone; whether a policy decided well, or as its name says, is no matter of an audit.
"""

from __future__ import annotations

from mocker_replay.events import EventLevel, LogEvent
from mocker_replay.log.audit.findings import Findings
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup
from mocker_replay.log.audit.ledger import Group, Ledger, Request, Stage

_FCFS = "fcfs"


class Decisions:
    """The rule `decision`, and the part of `budget` that is a policy's."""

    def __init__(self, setup: Setup, ledger: Ledger, findings: Findings) -> None:
        self._setup = setup
        self._ledger = ledger
        self._findings = findings
        self._victim: Event | None = None  # named, not preempted yet
        self.before = {
            LogEvent.DECISION.value: self._decision,
            LogEvent.PREEMPTION.value: self._preemption,
            LogEvent.PASS_START.value: self._pass_start,
        }
        self.closing = {LogEvent.PASS_START.value: self._closed}

    def _decision(self, event: Event) -> None:
        if self._setup.policy == _FCFS:
            self._findings.add("decision", "a run without a policy decides nothing")
        request = self._ledger.live.get(event["request"])
        if request is None:
            self._findings.add("decision", "a request that has not arrived, or has ended")
            return
        kind, other = event["kind"], event.get("instead_of")
        if (kind == "veto") != (other is None) or (kind == "placement") != isinstance(other, list):
            self._findings.add("decision", f"`instead_of` of kind {kind}", other)
            return
        if (event["worker"], event["rank"]) != (request.worker, request.rank):
            self._findings.add(
                "decision", "place of the request", [event["worker"], event["rank"]], [request.worker, request.rank]
            )
        if kind == "placement":
            self._placement(event, request)
        elif kind == "victim":
            self._both(event, request, Stage.RUNNING)
            self._victim = event
        else:
            self._both(event, request, Stage.WAITING)

    def _placement(self, event: Event, request: Request) -> None:
        if request.stage is Stage.RUNNING or event["t_ms"] != request.arrived_ms:
            self._findings.add("decision", "a placement stands at the arrival", event["t_ms"], request.arrived_ms)
        if event["instead_of"] == [request.worker, request.rank]:
            self._findings.add("decision", "a placement that is that of round robin")

    def _both(self, event: Event, request: Request, stage: Stage) -> None:
        """Who is named, and who stood first, are two requests of one rank in one queue."""
        named = [request]
        if "instead_of" in event:
            other = self._ledger.live.get(event["instead_of"])
            if other is None or other is request or (other.worker, other.rank) != (request.worker, request.rank):
                self._findings.add("decision", f"another request of this rank: {event['instead_of']}")
                return
            named.append(other)
        for one in named:
            if one.stage is not stage and not (stage is Stage.WAITING and one.stage is Stage.LANE):
                self._findings.add("decision", f"stage of {one.name}", one.stage.name.lower(), stage.name.lower())

    def _preemption(self, event: Event) -> None:
        victim, self._victim = self._victim, None
        if victim is not None and victim["request"] != event["request"]:
            self._findings.add("decision", "the victim that was named", event["request"], victim["request"])

    def _pass_start(self, event: Event) -> None:
        limit = self._setup.max_num_batched_tokens
        for rank in event["ranks"]:
            if "budget" not in rank:
                continue
            budget, scheduled = rank["budget"][0], rank["scheduled_tokens"]
            if self._setup.policy == _FCFS:
                self._findings.add("decision", "a run without a policy decides nothing")
            if limit is not None and not 1 <= budget < limit:
                self._findings.add("decision", f"budget of rank {rank['rank']}", budget, limit)
            if scheduled > budget:
                self._findings.add("budget", f"scheduled_tokens of rank {rank['rank']}", scheduled, budget)

    def _closed(self, group: Group) -> None:
        victim, self._victim = self._victim, None
        if victim is not None and self._setup.level is not EventLevel.REQUESTS:
            self._findings.add("decision", f"no preemption of {victim['request']} follows", at=group.place)
