"""Workers of two roles: their times and passes, and that blocks and places in queues belong to somebody.

Decides what of a pass and of its gauges can be held in a log with prefill and decode workers, where requests change the
worker. Never looks at the way of a handoff (handoffs) nor at the work of a pass.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct, field

from mocker_replay.events import LogEvent, RunEnd
from mocker_replay.log.audit.findings import Findings, Place
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup
from mocker_replay.log.audit.shapes import FPM_KEYS

_IDLE: Final = dict.fromkeys(FPM_KEYS[1:], 0)
# Lines at the time of their worker. Others carry that of a transfer, of an arrival, or in mid-pass that of its start.
_IN_TIME: Final = (
    LogEvent.PASS_START,
    LogEvent.PASS_END,
    LogEvent.ADMISSION,
    LogEvent.PREEMPTION,
    LogEvent.FIRST_TOKEN,
)
_STAGES_IN_TIME: Final = ("source_held", "destination_reserved", "destination_activated", "source_released")
_ENDS: Final = (LogEvent.FINISH, LogEvent.REJECTION, LogEvent.FAILURE)


class _Flight(Struct):
    """A pass in flight."""

    number: int
    start_ms: float
    end_ms: float
    ranks: list[int]
    place: Place


class _Rank(Struct):
    """Who is at one rank."""

    present: set[str] = field(default_factory=set)  # in its queues, or in line
    blocks: dict[str, int] = field(default_factory=dict)  # by request that may hold some: no more than these
    stored: int = 0  # blocks that stores to shared memory hold
    stored_then: int = 0  # and held when the last pass ended


class _Worker(Struct):
    ranks: list[_Rank]
    clock_ms: float = 0.0
    next_pass: int = 0
    flight: _Flight | None = None
    told: list[dict[str, Any]] | None = None  # gauges of the pass that ended last, whose lines are not over yet
    told_at: Place | None = None


class Pools:
    """`time`, the rules of passes that need no queues, `pool` and `handoff-blocks`."""

    def __init__(self, setup: Setup, findings: Findings) -> None:
        self._setup = setup
        self._findings = findings
        self._workers = [
            _Worker([_Rank() for _ in range(setup.dp_size_of(number))]) for number in range(setup.num_workers)
        ]
        self._tokens: dict[str, tuple[int, int]] = {}  # prompt and output of those who arrived
        self._client_left = False
        self._with_names = True

    def stop_following(self) -> None:
        """Requests cannot be told apart from here on."""
        self._with_names = False

    def before(self, event: Event) -> None:
        """One line, before anything else is made of it."""
        worker = self._worker_of(event)
        if worker is None:
            return
        kind = event["event"]
        if kind in (LogEvent.ARRIVAL, LogEvent.COMMAND, LogEvent.PASS_START):
            self._close(worker)
        if kind in _IN_TIME or (kind == LogEvent.HANDOFF and event["kind"] in _STAGES_IN_TIME):
            if event["t_ms"] < worker.clock_ms:
                self._findings.add("time", "time of this worker falls", event["t_ms"], worker.clock_ms)
            worker.clock_ms = max(worker.clock_ms, event["t_ms"])
        if kind == LogEvent.PASS_START:
            self._pass_start(event, worker)
        elif kind == LogEvent.PASS_END:
            self._pass_end(event, worker)
        elif self._with_names and "request" in event and 0 <= event.get("rank", -1) < len(worker.ranks):
            self._request(event, worker.ranks[event["rank"]])

    def finish(self, end: str) -> None:
        """The log is over."""
        for number, worker in enumerate(self._workers):
            self._close(worker)
            if worker.flight is not None and end == RunEnd.COMPLETE:
                rule = f"pass {worker.flight.number} of worker {number} never ended"
                self._findings.add("pass-pair", rule, at=worker.flight.place)

    def _worker_of(self, event: Event) -> _Worker | None:
        number = event.get("worker", -1)
        return self._workers[number] if 0 <= number < len(self._workers) else None

    # -- passes -------------------------------------------------------------------------------------

    def _pass_start(self, event: Event, worker: _Worker) -> None:
        if worker.flight is not None:
            self._findings.add("pass-pair", f"pass {worker.flight.number} has not ended")
        if event["pass"] != worker.next_pass:
            self._findings.add("pass-number", "pass", event["pass"], worker.next_pass)
        ends = [rank["end_ms"] for rank in event["ranks"] if "end_ms" in rank] or [event["end_ms"]]
        if min(ends) < event["t_ms"] or max(ends) != event["end_ms"]:
            rule = "a pass ends with the latest of its ranks, and none before it starts"
            self._findings.add("pass-time", rule, event["end_ms"], max(*ends, event["t_ms"]))
        worker.next_pass = event["pass"] + 1
        ranks = [rank["rank"] for rank in event["ranks"]]
        worker.flight = _Flight(event["pass"], event["t_ms"], event["end_ms"], ranks, self._findings.here)

    def _pass_end(self, event: Event, worker: _Worker) -> None:
        flight, worker.flight = worker.flight, None
        worker.told, worker.told_at = event["ranks"], self._findings.here
        for at in worker.ranks:
            at.stored_then = at.stored
        if flight is None:
            self._findings.add("pass-pair", "no pass is in flight")
            return
        if event["pass"] != flight.number:
            self._findings.add("pass-pair", "number of the pass in flight", event["pass"], flight.number)
        if event["t_ms"] != flight.end_ms:
            rule = f"end of the pass, by its start in line {flight.place.line}"
            self._findings.add("pass-time", rule, event["t_ms"], flight.end_ms)
        length_s = (event["t_ms"] - flight.start_ms) / 1000.0
        for rank in event["ranks"]:
            if rank["fpm"]["wall_time"] != length_s:
                rule = f"length of the pass, rank {rank['rank']}"
                self._findings.add("wall-time", rule, rank["fpm"]["wall_time"], length_s)
            figures = {key: value for key, value in rank["fpm"].items() if key != "wall_time"}
            if rank["rank"] not in flight.ranks and (rank["tokens"] or figures != _IDLE):
                self._findings.add("idle-rank", f"rank {rank['rank']} did not execute")

    # -- who is where -------------------------------------------------------------------------------

    def _request(self, event: Event, rank: _Rank) -> None:
        name, kind = event["request"], event["event"]
        if kind == LogEvent.ARRIVAL:
            self._tokens[name] = event["input_tokens"], event["output_tokens"]
            rank.present.add(name)
        elif kind == LogEvent.HANDOFF:
            self._stage(event, rank)
        elif kind in (LogEvent.ADMISSION, LogEvent.LOAD_SCHEDULED) and name in self._tokens:
            rank.blocks.setdefault(name, self._most_blocks(name, event["worker"]))
        elif kind == LogEvent.STORE_PREPARED and self._setup.stores_hold(event["worker"]):
            rank.stored += event["blocks"]
        elif kind == LogEvent.STORE_COMPLETED and self._setup.stores_hold(event["worker"]):
            rank.stored -= event["blocks"]
        elif kind == LogEvent.CANCELLATION:
            self._client_left = True  # what it had is there until a command takes it back
        elif kind == LogEvent.COMMAND:
            if event["kind"] == "submit_prefill" and event["result"] == "submitted":
                rank.present.add(name)  # where the destination goes first, arrivals name that one
            elif event["kind"].startswith("cancel") and event["result"] == "applied":
                rank.present.discard(name)
                rank.blocks.pop(name, None)
        elif kind in _ENDS:
            # Its source may be held for a while, and is given back by a stage of its own.
            rank.present.discard(name)
            if event["worker"] >= self._setup.num_prefill_workers or kind == LogEvent.REJECTION:
                rank.blocks.pop(name, None)

    def _stage(self, event: Event, rank: _Rank) -> None:
        name, stage = event["request"], event["kind"]
        if stage.startswith("source") != (event["worker"] < self._setup.num_prefill_workers):
            self.stop_following()  # at a worker of the other role, which is told of elsewhere
        elif stage == "destination_accepted":
            rank.present.add(name)
        elif stage == "destination_reserved" and name in self._tokens:
            rank.blocks[name] = self._most_blocks(name, event["worker"])
        elif stage == "source_held":
            rank.present.discard(name)
        elif stage in ("source_released", "source_cancelled", "destination_cancelled"):
            rank.present.discard(name)
            rank.blocks.pop(name, None)

    def _most_blocks(self, name: str, worker: int) -> int:
        """A source computes its prompt and one token; a destination also all that it generates."""
        prompt, output = self._tokens[name]
        return self._setup.blocks_of(prompt + (1 if worker < self._setup.num_prefill_workers else output))

    def _close(self, worker: _Worker) -> None:
        """The lines of the pass that ended are over: hold its gauges against who is there."""
        if worker.told is None:
            return
        number = self._workers.index(worker)
        for told in worker.told:
            if not 0 <= told["rank"] < len(worker.ranks):
                continue
            gauges, rank = told["gauges"], worker.ranks[told["rank"]]
            active, where = gauges["active_blocks"], f"rank {told['rank']} of worker {number}"
            blocks = active + gauges["inactive_blocks"]
            if blocks > self._setup.num_blocks_of(number):
                rule = f"blocks of {where}"
                self._findings.add("pool", rule, blocks, self._setup.num_blocks_of(number), at=worker.told_at)
            if not self._with_names:
                continue
            most = sum(rank.blocks.values()) + rank.stored_then
            if active > most and not self._setup.is_sglang:  # there what is cached counts as active
                self._findings.add(
                    "handoff-blocks", f"most that owners at {where} hold", active, most, at=worker.told_at
                )
            waits = gauges["running"] + gauges["waiting"]
            exact = not (self._client_left or self._setup.measured or self._setup.is_sglang)
            if waits > len(rank.present) or (exact and waits < len(rank.present)):
                rule = f"running and waiting requests of {where}"
                self._findings.add("handoff-blocks", rule, waits, len(rank.present), at=worker.told_at)
        worker.told = None
