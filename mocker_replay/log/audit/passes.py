"""Passes: start and end in pairs, numbers, times, which ranks take part, what the lists of a start repeat.

Decides whether the lines of passes fit each other. Never looks at the work in them.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from mocker_replay.events import LogEvent, RunEnd
from mocker_replay.log.audit.findings import Findings
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup
from mocker_replay.log.audit.ledger import Group, Ledger
from mocker_replay.log.audit.shapes import FPM_KEYS

_IDLE: Final = dict.fromkeys(FPM_KEYS[1:], 0)


class _Wave(Struct):
    """How far a worker's count of passes may have come."""

    last: int | None = None
    drained: bool = False  # empty at a pass end since; a submission on its way may have kept the count
    drained_for_good: bool = False  # empty after a command between passes since: counted anew for sure


class Passes:
    """The rules whose names begin with `pass-`, `wave`, `wall-time` and `idle-rank`."""

    def __init__(self, setup: Setup, ledger: Ledger, findings: Findings) -> None:
        self._setup = setup
        self._ledger = ledger
        self._findings = findings
        self._waves = [_Wave() for _ in range(setup.num_workers)]
        self.before = {
            LogEvent.PASS_START.value: self._pass_start,
            LogEvent.PASS_END.value: self._pass_end,
        }
        # These need names of requests, the others do not.
        self.before_by_name = {LogEvent.PASS_START.value: self._ranks_with_requests}
        self.after_by_name = {LogEvent.COMMAND.value: self._command}
        self.closing_by_name = {
            LogEvent.PASS_START.value: self._start_closed,
            LogEvent.PASS_END.value: self._end_closed,
        }

    # -- single lines -------------------------------------------------------------------------------

    def _pass_start(self, event: Event) -> None:
        if not self._ledger.exists(event["worker"]):
            self._findings.add("pass-ranks", "no such worker", event["worker"], self._setup.num_workers)
            return
        worker = self._ledger.workers[event["worker"]]
        if worker.in_flight is not None:
            self._findings.add("pass-pair", f"pass {worker.in_flight.number} has not ended")
        if event["pass"] != worker.next_pass:
            self._findings.add("pass-number", "pass", event["pass"], worker.next_pass)
        if event["end_ms"] < event["t_ms"]:
            self._findings.add("pass-time", "a pass ends before it starts", event["end_ms"], event["t_ms"])
        if self._setup.dp_size > 1:
            self._check_rank_ends(event)

    def _check_rank_ends(self, event: Event) -> None:
        ends = [rank["end_ms"] for rank in event["ranks"]]
        if any(end_ms < event["t_ms"] for end_ms in ends):
            self._findings.add("pass-time", "a rank ends before its pass starts", min(ends), event["t_ms"])
        if ends and max(ends) != event["end_ms"]:
            self._findings.add("pass-time", "end of a pass, by its latest rank", event["end_ms"], max(ends))

    def _pass_end(self, event: Event) -> None:
        if not self._ledger.exists(event["worker"]):
            self._findings.add("pass-ranks", "no such worker", event["worker"], self._setup.num_workers)
            return
        told, all_ranks = [rank["rank"] for rank in event["ranks"]], list(range(self._setup.dp_size))
        if told != all_ranks:
            self._findings.add("pass-ranks", "ranks of a pass end", told, all_ranks)
        flight = self._ledger.workers[event["worker"]].in_flight
        if flight is None:
            self._findings.add("pass-pair", "no pass is in flight")
            return
        if event["pass"] != flight.number:
            self._findings.add("pass-pair", "number of the pass in flight", event["pass"], flight.number)
        if event["t_ms"] != flight.end_ms:
            self._findings.add(
                "pass-time", f"end of the pass, by its start in line {flight.place.line}", event["t_ms"], flight.end_ms
            )
        length_s = (event["t_ms"] - flight.start_ms) / 1000.0
        for rank in event["ranks"]:
            if rank["fpm"]["wall_time"] != length_s:
                self._findings.add(
                    "wall-time", f"length of the pass, rank {rank['rank']}", rank["fpm"]["wall_time"], length_s
                )
            if rank["rank"] not in flight.ranks:
                self._check_idle(rank)

    def _check_idle(self, rank: dict[str, Any]) -> None:
        figures = {key: value for key, value in rank["fpm"].items() if key != "wall_time"}
        if rank["tokens"] or figures != _IDLE:
            self._findings.add("idle-rank", f"rank {rank['rank']} did not execute")

    # -- with requests ------------------------------------------------------------------------------

    def _ranks_with_requests(self, event: Event) -> None:
        """Just before the pass starts nothing is in flight, so the lines say who is in which queue."""
        if not self._ledger.exists(event["worker"]):
            return
        worker = self._ledger.workers[event["worker"]]
        told = [rank["rank"] for rank in event["ranks"]]
        holding = [number for number, rank in enumerate(worker.ranks) if rank.running + rank.waiting]
        # With host memory a rank whose requests all wait for copies stands by.
        if told != holding and not (self._setup.has_tier and told and set(told) <= set(holding)):
            self._findings.add("pass-ranks", "ranks that execute, by who has requests", told, holding)
        if self._setup.dp_size > 1:
            self._check_wave(event)

    def _check_wave(self, event: Event) -> None:
        wave = self._waves[event["worker"]]
        counted = 0 if wave.last is None else wave.last + 1
        allowed = {counted}
        if wave.drained_for_good:
            allowed = {0}
        elif wave.drained:
            allowed.add(0)
        if event["wave"] not in allowed:
            self._findings.add("wave", "passes since the worker was empty", event["wave"], min(allowed))
        wave.last, wave.drained, wave.drained_for_good = event["wave"], False, False

    def _command(self, event: Event) -> None:
        if not self._ledger.exists(event["worker"]):
            return
        worker = self._ledger.workers[event["worker"]]
        if event["kind"] == "cancel" and worker.in_flight is None and not worker.requests:
            self._waves[event["worker"]].drained_for_good = True

    def _start_closed(self, group: Group) -> None:
        for rank in group.head["ranks"]:
            number = rank["rank"]
            for key, lines in (("admitted", group.admitted), ("preempted", group.preempted)):
                told, shown = rank.get(key, []), lines.get(number, [])
                if told != shown:
                    self._findings.add(
                        "pass-lists", f"{key} of rank {number}, by the lines", told, shown, at=group.place
                    )
        strangers = (group.admitted.keys() | group.preempted.keys()) - {rank["rank"] for rank in group.head["ranks"]}
        if strangers:
            self._findings.add("pass-lists", f"lines of rank {min(strangers)}, which does not execute", at=group.place)

    def _end_closed(self, group: Group) -> None:
        if not self._ledger.workers[group.worker].requests:
            self._waves[group.worker].drained = True

    def finish(self, end: str) -> None:
        """The log is over."""
        for number, worker in enumerate(self._ledger.workers):
            if worker.in_flight is not None and end == RunEnd.COMPLETE:
                self._findings.add(
                    "pass-pair",
                    f"pass {worker.in_flight.number} of worker {number} never ended",
                    at=worker.in_flight.place,
                )
