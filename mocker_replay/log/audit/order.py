"""Order of lines: dense numbers, monotone time, and groups that stay together.

Decides which group a line belongs to, where groups exist (level `passes` and above). Never looks into a request.
"""

from __future__ import annotations

from typing import Final

from mocker_replay.events import HOST_EVENTS, EventLevel, LogEvent
from mocker_replay.log.audit.findings import Findings
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup
from mocker_replay.log.audit.ledger import Group, Ledger, Pass

_STARTS: Final = frozenset({LogEvent.ADMISSION, LogEvent.PREEMPTION, LogEvent.DECISION})
_OF_END: Final = frozenset(
    {
        LogEvent.KV_REMOVED, LogEvent.KV_STORED, LogEvent.FIRST_TOKEN, LogEvent.TOKENS,
        LogEvent.FINISH, LogEvent.REJECTION, LogEvent.FAILURE,
    }
)  # fmt: skip
_MEMBERS: Final = {
    LogEvent.PASS_START.value: _STARTS,
    LogEvent.PASS_END.value: _OF_END,
    LogEvent.COMMAND.value: frozenset({LogEvent.CANCELLATION}),
}
_MEMBERS_OF_ANY: Final = _STARTS | _OF_END | {LogEvent.CANCELLATION}
_PHASES: Final = {LogEvent.KV_REMOVED.value: 0, LogEvent.KV_STORED.value: 0, LogEvent.REJECTION.value: 3}
_FIRST_MS: Final = 0.0
_OF_HOST: Final = frozenset(HOST_EVENTS.values())


class Order:
    """The rules `seq`, `time` and `grouping`; keeps `ledger.group` and the clocks of workers."""

    def __init__(self, setup: Setup, ledger: Ledger, findings: Findings) -> None:
        self._setup = setup
        self._ledger = ledger
        self._findings = findings
        self._grouped = setup.level is not EventLevel.REQUESTS
        self._next_seq = 0
        self._arrived_ms = _FIRST_MS
        self._rank = 0  # in the open group: the rank the last line was of
        self._phase = 0  # and what kind of line it was

    def count(self, event: Event) -> None:
        """`seq` of this line."""
        if event["seq"] != self._next_seq:
            self._findings.add("seq", "the number of this line", event["seq"], self._next_seq)
        self._next_seq = event["seq"] + 1

    def skip(self) -> None:
        """A line that could not be read takes a number."""
        self._next_seq += 1

    # -- groups -------------------------------------------------------------------------------------

    def leaves(self, event: Event) -> Group | None:
        """The open group, if this line is not of it any more; it is closed then."""
        group = self._ledger.group
        if group is None or (event["event"] in _MEMBERS[group.kind] and not _is_placement(event)):
            return None
        if self._stands_between(event):
            return None
        self._ledger.group = None
        return group

    def _stands_between(self, event: Event) -> bool:
        """Lines of a host tier, and of blocks that it brought, stand in a group or in none."""
        return self._setup.has_tier and (event["event"] in _OF_HOST or event["event"] == LogEvent.KV_STORED)

    def enter(self, event: Event) -> None:
        """Hold a line against the group it stands in; open a group with its first line."""
        kind = event["event"]
        if not self._grouped:
            self._check_time(event)
            return
        if self._stands_between(event):
            self._check_time(event)
            return
        if kind in _MEMBERS_OF_ANY and not _is_placement(event):
            self._check_member(event)
            return
        self._check_time(event)
        if kind not in _MEMBERS or not self._ledger.exists(event["worker"]):
            return
        flight = self._ledger.workers[event["worker"]].in_flight
        if kind == LogEvent.COMMAND and (
            event["kind"] == "submit" or not (event["result"] == "applied" or event.get("suppressed"))
        ):
            return
        self._rank = self._phase = 0
        self._ledger.group = Group(kind, self._findings.here, event, event["worker"], event["t_ms"], flight)

    def _check_member(self, event: Event) -> None:
        group = self._ledger.group
        kind = event["event"]
        if group is None:
            self._findings.add("grouping", f"{kind} must stand right behind what it belongs to")
            return
        if event["t_ms"] != group.t_ms:
            self._findings.add("grouping", f"t_ms of the {group.kind} it belongs to", event["t_ms"], group.t_ms)
        if event.get("worker", group.worker) != group.worker:
            self._findings.add("grouping", f"worker of the {group.kind} it belongs to", event["worker"], group.worker)
        if group.kind == LogEvent.COMMAND:
            self._check_cancelled(event, group)
        else:
            self._check_place(event)

    def _check_cancelled(self, event: Event, group: Group) -> None:
        if event["request"] != group.head["request"]:
            self._findings.add(
                "grouping", "the request whose cancellation stands before it", event["request"], group.head["request"]
            )

    def _check_place(self, event: Event) -> None:
        """Lines of a group come rank by rank, and of a pass end in a fixed order within a rank."""
        rank = event.get("rank")
        if rank is None:  # tokens: their rank is that of their request
            request = self._ledger.live.get(event["request"]) if self._ledger.follows_requests else None
            if request is None:
                return
            rank = request.rank
        phase = _phase(event)
        if rank < self._rank:
            self._findings.add("grouping", "lines of a pass come rank by rank: rank", rank, self._rank)
        elif rank == self._rank and phase < self._phase:
            self._findings.add(
                "grouping", "at a pass end come blocks, ends without output, tokens with their ends, then refusals"
            )
        if rank != self._rank:
            self._phase = 0
        self._rank, self._phase = rank, phase

    # -- time ---------------------------------------------------------------------------------------

    def _check_time(self, event: Event) -> None:
        kind, t_ms = event["event"], event["t_ms"]
        if t_ms < _FIRST_MS:
            self._findings.add("time", "time begins at 0", t_ms, _FIRST_MS)
        if _is_placement(event):
            return  # at the time of its arrival, which the rule `decision` holds it to
        if kind == LogEvent.ARRIVAL:
            if t_ms < self._arrived_ms:
                self._findings.add("time", "an arrival comes before the one above it", t_ms, self._arrived_ms)
            self._arrived_ms = max(self._arrived_ms, t_ms)
        if not self._ledger.exists(event.get("worker", 0)):
            return
        worker = self._ledger.workers[event.get("worker", 0)]
        if kind in (LogEvent.ARRIVAL, LogEvent.CUT) and self._setup.measured:
            return  # the clock of the run may be ahead of, or behind, the modelled time of a worker
        if kind == LogEvent.COMMAND and worker.in_flight is not None:
            self._check_mid_pass(t_ms, worker.in_flight)
        elif kind == LogEvent.CANCELLATION:
            self._check_cancellation(event)
        else:
            if t_ms < worker.clock_ms:
                self._findings.add("time", "time of this worker falls", t_ms, worker.clock_ms)
            worker.clock_ms = max(worker.clock_ms, t_ms)

    def _check_mid_pass(self, t_ms: float, flight: Pass) -> None:
        if t_ms != flight.start_ms:
            self._findings.add("time", "a command in mid-pass carries the start of the pass", t_ms, flight.start_ms)

    def _check_cancellation(self, event: Event) -> None:
        """Level `requests`: it may be of mid-pass, but not before its arrival."""
        request = self._ledger.live.get(event["request"])
        if request is not None and not self._setup.measured and event["t_ms"] < request.arrived_ms:
            self._findings.add("time", "a cancellation before its arrival", event["t_ms"], request.arrived_ms)


def _is_placement(event: Event) -> bool:
    """A decision that belongs to an arrival, not to a pass."""
    return bool(event["event"] == LogEvent.DECISION and event["kind"] == "placement")


def _phase(event: Event) -> int:
    """Where a line of a pass end stands within its rank: blocks, ends without output, tokens, refusals."""
    kind = event["event"]
    if kind == "finish":
        return 2 if event["output_tokens"] else 1
    if kind == "failure":
        return 1 if event["reason"] == "burst_over_pool" else 3
    return _PHASES.get(kind, 2)
