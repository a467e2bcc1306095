"""Gauges: what a rank publishes of itself against what the lines say of its requests.

Decides `running` and `waiting`. A pass is computed when it starts, so gauges in mid-pass leave out requests that end
with it, while the lines still have them; such gauges are compared at the end of the pass.
"""

from __future__ import annotations

from mocker_replay.events import EventLevel, LogEvent
from mocker_replay.log.audit.findings import Findings, Place
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup
from mocker_replay.log.audit.ledger import Group, Ledger, Pass, PendingGauges, Rank, Stage

Figures = dict[str, int]


class Gauges:
    """The rules `gauges`, `gauge-blocks` and `preemption-gauges`."""

    def __init__(self, setup: Setup, ledger: Ledger, findings: Findings) -> None:
        self._setup = setup
        self._ledger = ledger
        self._findings = findings
        self.before = {LogEvent.PREEMPTION.value: self._preemption}
        self.after = {LogEvent.COMMAND.value: self._command, LogEvent.PASS_START.value: self._pass_start}
        self._stores_hold = setup.tier is not None and setup.tier.is_shared
        self.closing = {LogEvent.PASS_END.value: self._pass_end}
        self.any = {LogEvent.PREEMPTION.value: self._around}

    # -- commands -----------------------------------------------------------------------------------

    def _command(self, event: Event) -> None:
        gauges = event.get("gauges")
        if gauges is None or not self._ledger.exists(event["worker"], event["rank"]):
            return
        worker = self._ledger.workers[event["worker"]]
        rank, flight = worker.ranks[event["rank"]], worker.in_flight
        self._check_blocks(event, gauges, rank)
        if flight is None:
            self._compare(gauges, rank.running, rank.waiting, f"rank {event['rank']}", self._findings.here)
            return
        flight.gauges.append(
            PendingGauges(self._findings.here, event["rank"], flight.commands, gauges, rank.running, rank.waiting)
        )

    def _check_blocks(self, event: Event, gauges: Figures, rank: Rank) -> None:
        """A submission and a cancellation that found nothing change no block; one that did frees some of them."""
        last, rank.gauges = rank.gauges, gauges
        if last is None:
            return
        was, now = last["active_blocks"], gauges["active_blocks"]
        cached_was, cached_now = last["inactive_blocks"], gauges["inactive_blocks"]
        if self._stores_hold and now <= was and now + cached_now == was + cached_was:
            return  # stores of a shared tier hold blocks until they end
        if event["result"] != "applied":
            if [now, cached_now] != [was, cached_was]:
                self._findings.add(
                    "gauge-blocks", "blocks of a command that moves none", [now, cached_now], [was, cached_was]
                )
        elif now > was or cached_now < cached_was or now + cached_now > was + cached_was:
            self._findings.add("gauge-blocks", "blocks after a cancellation", [now, cached_now], [was, cached_was])

    def _pass_start(self, event: Event) -> None:
        """Blocks move with the start of a pass; what was published before says nothing about them any more."""
        if self._ledger.exists(event["worker"]):
            for rank in self._ledger.workers[event["worker"]].ranks:
                rank.gauges = None

    # -- passes -------------------------------------------------------------------------------------

    def _pass_end(self, group: Group) -> None:
        worker = self._ledger.workers[group.worker]
        if group.flight is not None:
            for pending in group.flight.gauges:
                self._check_pending(pending, group.flight)
        for told in group.head["ranks"]:
            if told["rank"] < self._setup.dp_size:
                rank = worker.ranks[told["rank"]]
                rank.gauges = told["gauges"]
                self._compare(told["gauges"], rank.running, rank.waiting, f"rank {told['rank']}", group.place)

    def _check_pending(self, pending: PendingGauges, flight: Pass) -> None:
        later = [gone for gone in flight.gone if gone.request.rank == pending.rank and gone.command > pending.command]
        running = pending.running - sum(gone.stage is Stage.RUNNING for gone in later)
        waiting = pending.waiting - sum(gone.stage is Stage.WAITING for gone in later)
        self._compare(pending.stated, running, waiting, f"rank {pending.rank} in mid-pass", pending.place)

    def _compare(self, gauges: Figures, running: int, waiting: int, where: str, at: Place) -> None:
        for key, derived in (("running", running), ("waiting", waiting)):
            if gauges[key] != derived:
                self._findings.add("gauges", f"{key} requests of {where}", gauges[key], derived, at=at)

    # -- preemptions --------------------------------------------------------------------------------

    def _preemption(self, event: Event) -> None:
        """Queues just before it. The lines may still have requests that end with this pass, under bursts only."""
        request = self._ledger.live.get(event["request"])
        if request is None or request.stage is not Stage.RUNNING:
            return
        if self._setup.is_sglang and self._setup.level is EventLevel.REQUESTS:
            return  # no line tells that a prompt was cut, and waits again
        rank, before = self._ledger.rank_of(request), event["before"]
        running = before["running"] <= rank.running if self._setup.num_drafts else before["running"] == rank.running
        waiting = before["waiting"] <= rank.waiting if self._setup.num_drafts else before["waiting"] == rank.waiting
        if not running:
            self._findings.add("preemption-gauges", "running requests before", before["running"], rank.running)
        if not waiting:
            self._findings.add("preemption-gauges", "waiting requests before", before["waiting"], rank.waiting)

    def _around(self, event: Event) -> None:
        before, after, held = event["before"], event["after"], event["blocks_held"]
        told = [after["running"], after["waiting"]]
        if told != [before["running"] - 1, before["waiting"] + 1]:
            derived = [before["running"] - 1, before["waiting"] + 1]
            self._findings.add("preemption-gauges", "running and waiting requests after", told, derived)
        freed = before["active_blocks"] - after["active_blocks"]
        if not 0 <= freed <= held:
            self._findings.add("preemption-gauges", "blocks freed, by what it held", freed, held)
