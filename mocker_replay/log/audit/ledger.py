"""Requests, ranks and workers as the lines of a log tell them.

Decides: what each line changes. Never decides whether it was allowed to: rules look at the ledger before and after a
line, and a line that broke one still moves its request to where it says, so that one fault makes few findings.

Memory follows the requests that live. A request is forgotten with its end.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from msgspec import Struct, field

from mocker_replay.events import EventLevel, LogEvent
from mocker_replay.log.audit.findings import Place
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup


class Stage(enum.IntEnum):
    """Where a request is."""

    LANE = 0  # arrived, not submitted to the engine yet
    WAITING = 1
    RUNNING = 2
    LEAVING = 3  # a cancellation found it; its end is the next line


class Request(Struct):
    """A request that has arrived and not ended."""

    name: str
    worker: int
    rank: int
    input_tokens: int
    output_tokens: int  # asked for
    arrived_ms: float
    own_name: bool  # one that the trace gave; another row may have it, too
    stage: Stage = Stage.LANE
    admissions: int = 0
    preemptions: int = 0
    queued_again: bool = False  # it waits among those that were preempted
    generated: int = 0  # output known so far: each token at level `tokens`, else as the last preemption told
    first_token_ms: float | None = None
    last_token_ms: float | None = None  # level `tokens`
    prompt_done: int = 0  # prompt tokens reused or computed since the last admission
    prompt_before: int = 0  # the same before the last preemption

    @property
    def known_tokens(self) -> int:
        return self.input_tokens + self.generated


class Rank(Struct):
    """The queues of one rank, counted."""

    running: int = 0
    running_tokens: int = 0  # known tokens of those that run
    running_again: int = 0  # of those that run, how many were preempted before
    new: int = 0  # waiting, never admitted
    new_tokens: int = 0  # their prompts
    new_squares: int = 0
    preempted: int = 0  # waiting after a preemption
    preempted_tokens: int = 0  # their known tokens
    preempted_squares: int = 0
    gauges: dict[str, int] | None = None  # as last published

    @property
    def waiting(self) -> int:
        return self.new + self.preempted

    def count(self, request: Request, sign: int) -> None:
        """Put a request into the queue of its stage, or (sign -1) take it out."""
        tokens = request.known_tokens
        if request.stage is Stage.RUNNING:
            self.running += sign
            self.running_tokens += sign * tokens
            self.running_again += sign * (request.preemptions > 0)
        elif request.stage is Stage.WAITING and request.queued_again:
            self.preempted += sign
            self.preempted_tokens += sign * tokens
            self.preempted_squares += sign * tokens * tokens
        elif request.stage is Stage.WAITING:
            self.new += sign
            self.new_tokens += sign * request.input_tokens
            self.new_squares += sign * request.input_tokens * request.input_tokens


class Gone(Struct):
    """A request that left the queues with a pass: it ended with it, or a cancellation took that end away."""

    request: Request
    stage: Stage  # the queue it left
    event: str  # the end; `cancellation` for the latter
    output_tokens: int | None  # None: not shown
    command: int  # number of the command in this pass that took it away; beyond all for an end of its own


class PendingGauges(NamedTuple):
    """What a command in mid-pass published, and what the lines had told by then."""

    place: Place
    rank: int
    command: int  # its number in the pass
    stated: dict[str, int]
    running: int
    waiting: int


class QueueCounts(NamedTuple):
    """Requests that wait: never run yet, and preempted."""

    new: int
    new_tokens: int
    new_squares: int
    preempted: int
    preempted_tokens: int
    preempted_squares: int


class RankWork(Struct):
    """What a rank schedules in a pass, as far as its start tells."""

    requests: int
    tokens: int
    prompts: set[str] = field(default_factory=set)  # requests with prompt tokens that were not preempted again
    prompt_tokens: int = 0
    prefix_tokens: int = 0  # prompt tokens that were there before
    lengths: list[int] = field(default_factory=list)  # prompts of these requests
    undone: int = 0  # prefill entries of requests preempted in this pass
    num_preempted: int = 0
    again: int = 0  # running requests that were preempted in this pass or before
    cached: int = 0  # requests that decode and compute nothing: all of their prompt was found as they were admitted
    decode_tokens: int | None = None  # known tokens of those scheduled without prompt work, where all are scheduled


class Pass(Struct):
    """A pass in flight."""

    place: Place
    worker: int
    number: int
    start_ms: float
    end_ms: float
    ranks: dict[int, dict[str, Any]]
    commands: int = 0  # in mid-pass, so far
    gone: list[Gone] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)  # requests that a cancellation in mid-pass ended
    found_nothing: list[tuple[Request, Place]] = field(default_factory=list)  # by a cancellation: they end with it
    gauges: list[PendingGauges] = field(default_factory=list)  # of commands; who ends with the pass is not known yet
    queues: dict[int, QueueCounts] = field(default_factory=dict)  # by rank, when the pass had started
    work: dict[int, RankWork] = field(default_factory=dict)  # by rank that executes


class Worker(Struct):
    """One worker: its pass in flight, and what is known between passes."""

    ranks: list[Rank]
    clock_ms: float = 0.0
    in_flight: Pass | None = None
    next_pass: int = 0

    @property
    def requests(self) -> int:
        """Requests in its queues."""
        return sum(rank.running + rank.waiting for rank in self.ranks)


class Group(Struct):
    """Lines that belong together: a pass start, a pass end, a cancellation."""

    kind: str  # the event of the first line
    place: Place
    head: Event
    worker: int
    t_ms: float
    flight: Pass | None  # the pass that starts or ends
    admitted: dict[int, list[list[Any]]] = field(default_factory=dict)  # rank -> [request, reused tokens]
    preempted: dict[int, list[str]] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    emitters: dict[int, set[str]] = field(default_factory=dict)  # requests that were shown a token
    first_tokens: dict[int, set[str]] = field(default_factory=dict)


NEVER = 1 << 62  # beyond all commands of a pass


class Ledger:
    """State of the run so far."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.live: dict[str, Request] = {}
        self.workers = [Worker([Rank() for _ in range(setup.dp_size)]) for _ in range(setup.num_workers)]
        self.group: Group | None = None
        self.here = Place(1, None)  # the line that is applied
        self.follows_requests = True  # until two live requests have one name
        self._submits = setup.level is not EventLevel.REQUESTS
        self._shows_tokens = setup.level in (EventLevel.TOKENS, EventLevel.KV)
        self._appliers = {
            LogEvent.ARRIVAL.value: self._arrive,
            LogEvent.COMMAND.value: self._command,
            LogEvent.ADMISSION.value: self._admit,
            LogEvent.PREEMPTION.value: self._preempt,
            LogEvent.FIRST_TOKEN.value: self._begin_output,
            LogEvent.TOKENS.value: self._emit,
            LogEvent.CUT.value: self._cut,
            LogEvent.PASS_START.value: self._start_pass,
            LogEvent.PASS_END.value: self._end_pass,
        } | {
            event.value: self._end
            for event in (LogEvent.FINISH, LogEvent.REJECTION, LogEvent.FAILURE, LogEvent.CANCELLATION)
        }

    def exists(self, worker: int, rank: int = 0) -> bool:
        return worker < self.setup.num_workers and rank < self.setup.dp_size

    def rank_of(self, request: Request) -> Rank:
        return self.workers[request.worker].ranks[request.rank]

    def apply(self, event: Event) -> None:
        """Let a line take effect."""
        applier = self._appliers.get(event["event"])
        if applier is not None:
            applier(event)

    def move(self, request: Request, stage: Stage) -> None:
        """Take a request from the queue of its stage to another one."""
        rank = self.rank_of(request)
        rank.count(request, -1)
        request.stage = stage
        rank.count(request, 1)

    def _arrive(self, event: Event) -> None:
        if event["request"] in self.live or not self.exists(event["worker"], event["rank"]):
            return
        request = Request(
            event["request"], event["worker"], event["rank"], event["input_tokens"], event["output_tokens"],
            event["t_ms"], "row" in event,
        )  # fmt: skip
        self.live[request.name] = request
        if not self._submits:
            self.move(request, Stage.WAITING)

    def _command(self, event: Event) -> None:
        request = self.live.get(event["request"])
        flight = self.workers[event["worker"]].in_flight if self.exists(event["worker"]) else None
        if flight is not None:
            flight.commands += 1
        if request is None:
            return
        if event["kind"] == "submit":
            if event["result"] == "submitted":
                self.move(request, Stage.WAITING)
        elif event["result"] == "applied" or event.get("suppressed"):
            if flight is not None:
                flight.cancelled.add(request.name)
            if flight is not None and event["result"] == "noop":
                flight.gone.append(Gone(request, request.stage, LogEvent.CANCELLATION, None, flight.commands))
            self.move(request, Stage.LEAVING)
        elif flight is not None and request.stage is not Stage.LANE and not request.own_name:
            flight.found_nothing.append((request, self.here))

    def _admit(self, event: Event) -> None:
        if self.group is not None:
            self.group.admitted.setdefault(event["rank"], []).append([event["request"], event["reused_tokens"]])
        request = self.live.get(event["request"])
        if request is not None:
            request.admissions += 1
            most = request.known_tokens if self.setup.is_sglang else request.input_tokens
            request.prompt_done = min(event["reused_tokens"], most)
            self.move(request, Stage.RUNNING)

    def _preempt(self, event: Event) -> None:
        if self.group is not None:
            self.group.preempted.setdefault(event["rank"], []).append(event["request"])
        request = self.live.get(event["request"])
        if request is not None:
            rank = self.rank_of(request)
            rank.count(request, -1)
            request.stage = Stage.WAITING
            request.preemptions += 1
            request.queued_again = event["generated_tokens"] > 0 or not self.setup.is_sglang
            if not self._shows_tokens:
                request.generated = event["generated_tokens"]
            request.prompt_before, request.prompt_done = request.prompt_done, 0
            rank.count(request, 1)

    def _begin_output(self, event: Event) -> None:
        if self.group is not None:
            self.group.first_tokens.setdefault(event["rank"], set()).add(event["request"])
        request = self.live.get(event["request"])
        if request is not None:
            request.first_token_ms = event["t_ms"]

    def _emit(self, event: Event) -> None:
        request = self.live.get(event["request"])
        if request is None:
            return
        if self.group is not None:
            tokens = self.group.tokens
            tokens[request.rank] = tokens.get(request.rank, 0) + event["tokens"]
            self.group.emitters.setdefault(request.rank, set()).add(request.name)
        if request.stage is Stage.RUNNING:
            self.rank_of(request).running_tokens += event["tokens"]
        else:
            self.rank_of(request).count(request, -1)
        request.generated += event["tokens"]
        request.last_token_ms = event["t_ms"]
        if request.stage is not Stage.RUNNING:
            self.rank_of(request).count(request, 1)

    def _end(self, event: Event) -> None:
        request = self.live.pop(event["request"], None)
        if request is None:
            return
        self.rank_of(request).count(request, -1)
        if self.group is not None and self.group.flight is not None and event["event"] != LogEvent.CANCELLATION:
            self.group.flight.gone.append(Gone(request, request.stage, event["event"], event["output_tokens"], NEVER))

    def _start_pass(self, event: Event) -> None:
        if not self.exists(event["worker"]):
            return
        worker = self.workers[event["worker"]]
        ranks = {rank["rank"]: rank for rank in event["ranks"]}
        worker.in_flight = Pass(self.here, event["worker"], event["pass"], event["t_ms"], event["end_ms"], ranks)
        worker.next_pass = event["pass"] + 1
        if self.group is not None:
            self.group.flight = worker.in_flight

    def _end_pass(self, event: Event) -> None:
        """The group that opens here keeps the pass until it closes."""
        if self.exists(event["worker"]):
            self.workers[event["worker"]].in_flight = None

    def _cut(self, event: Event) -> None:
        request = self.live.pop(event["request"], None)
        if request is not None:
            self.rank_of(request).count(request, -1)
