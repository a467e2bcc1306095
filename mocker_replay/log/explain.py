"""One request of a log: what each stretch of its time was spent on.

Decides where stretches begin and end: always at times that stand in the log, each where the one before ended, so that
they add up to the latency by themselves. Reads lines of the request and passes of its worker, and keeps nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import orjson
from msgspec import Struct

from mocker_replay.events import EventLevel, LogEvent
from mocker_replay.log.audit.header import read_setup
from mocker_replay.log.explanation import Explanation, Stretch
from mocker_replay.log.reader import BROKEN_LINE, EventLogReader, LogError, broken_line

Event = dict[str, Any]

_ENDS: Final = frozenset(
    {LogEvent.FINISH, LogEvent.REJECTION, LogEvent.CANCELLATION, LogEvent.FAILURE, LogEvent.CUT}
)  # fmt: skip
# Kind -> what it means for the request that was chosen, and for the one it was chosen instead of.
_DECISIONS: Final = {
    "order": ("tried before one that came first", "another one was tried before it"),
    "veto": ("held back in a pass that had room", ""),
    "victim": ("preempted instead of another one", "another one was preempted instead of it"),
    "placement": ("placed elsewhere than in turn", ""),
}
# Stage of a handoff -> what time before it counts as, and what time after it.
_STAGES: Final = {
    "destination_reserved": ("destination", "transfer"),
    "transfer_started": ("transfer", "transfer"),
    "transfer_ended": ("transfer", "activation"),
    "destination_activated": ("activation", "waiting"),
}
# Of a source that has done its part: the request is elsewhere.
_LEFT_BEHIND: Final = frozenset({"release_source", "cancel_source", "source_released", "source_cancelled"})
_SUBMISSIONS: Final = ("submit", "submit_prefill")
_UNTOLD: Final = {
    EventLevel.REQUESTS: (
        "when it was submitted: that time counts as waiting",
        "passes: prefill lasts to the first token, decode from there on, computing again included",
    ),
    EventLevel.PASSES: (
        "which passes without prompt work gave it a token: all count as decode once its prompt is there (again)",
    ),
}


def explain(log: str | os.PathLike[str], request: str) -> Explanation:
    """Explain one request.

    Raises:
        LogError: no whole event log; no such request, or several of that name.
    """
    with EventLogReader(log) as reader:
        level = read_setup(reader.header, reader.name).level
        story: _Story | None = None
        number = 1
        try:
            for number, event in _lines_about(reader, request):  # noqa: B007 - the error says it
                if event["event"] == LogEvent.ARRIVAL:
                    if story is not None:
                        raise LogError(f"{reader.name}: several requests are called {request}; only one can be meant")
                    story = (_Story if level is not EventLevel.REQUESTS else _Outline)(reader.name, level, event)
                elif story is not None and not story.told.end:
                    story.take(event)
        except BROKEN_LINE as exc:
            raise broken_line(reader, number) from exc
    if story is None:
        raise LogError(f"{reader.name}: no request is called {request}")
    if not story.told.end:
        raise LogError(f"{reader.name}: {request} has no end; mocker-replay audit says more")
    return story.told


def _lines_about(reader: EventLogReader, request: str) -> Iterator[tuple[int, Event]]:
    """Lines that name the request, and from its arrival on the passes of its worker; few others are parsed.

    Yields: (number of the line, event).
    """
    is_plain = request.isascii() and request.isprintable() and not {'"', "\\"} & set(request)
    quoted = b'"' + request.encode(errors="replace") + b'"'
    needle = b'"request":' + quoted if is_plain else b'"request":'
    passed_over = b'"instead_of":' + quoted if is_plain else b'"instead_of":"'
    worker: int | None = None
    for number, line in enumerate(reader.lines(), 2):
        if needle in line or passed_over in line or (worker is not None and b'"event":"pass_' in line):
            try:
                event = orjson.loads(line)
                is_meant = request in (event.get("request"), event.get("instead_of"))
                is_pass = "pass" in event and event["worker"] == worker
            except BROKEN_LINE as exc:
                raise broken_line(reader, number) from exc
            if is_meant and event.get("kind") not in _LEFT_BEHIND:
                worker = event.get("worker", worker)
            if is_meant or is_pass:
                yield number, event


class _Flight(Struct):
    """A pass in flight on the worker."""

    number: int
    start_ms: float
    rank_end_ms: float
    own_tokens: int | None
    shared_with: tuple[tuple[str, int], ...]
    num_scheduled: int


class _Story:
    """Follows a request through a log of level `passes` or above."""

    def __init__(self, log: str, level: EventLevel, arrival: Event) -> None:
        self.told = Explanation(
            log=log,
            level=str(level),
            request=arrival["request"],
            worker=arrival["worker"],
            rank=arrival["rank"],
            input_tokens=arrival["input_tokens"],
            asked_tokens=arrival["output_tokens"],
            arrival_ms=arrival["t_ms"],
            untold=list(_UNTOLD.get(level, ())),
        )
        self._shows_tokens = level in (EventLevel.TOKENS, EventLevel.KV)
        self._mark_ms: float = arrival["t_ms"]  # all time before is told
        self._waits_as = "submission"  # what time outside of the running set counts as
        self._loads_as = "waiting"  # the same, before a load began
        self._running = False
        self._comes_whole = False  # to a decode worker: nothing of its prompt is computed there
        self._has_output = False
        self._is_lost = False  # preempted since its last token: computed tokens are to be computed again
        self._prompt_done = 0
        self._flight: _Flight | None = None
        self._passes_meanwhile = 0  # of its rank since the mark, without it
        self._ended: tuple[_Flight, float] | None = None  # a pass that has ended, told when its tokens are known
        self._emitted = False  # in that pass

    def take(self, event: Event) -> None:
        """One line."""
        kind = event["event"]
        if kind == LogEvent.DECISION:
            self._decided(event)
        elif kind == LogEvent.PASS_START:
            self._tell_pass()
            self._start_pass(event)
        elif kind == LogEvent.PASS_END:
            self._end_pass(event)
        elif kind in (LogEvent.FIRST_TOKEN, LogEvent.TOKENS):
            self._emitted = True
        elif kind == LogEvent.HANDOFF:
            self._stage(event)
        elif kind == LogEvent.LOAD_SCHEDULED:
            self._tell(self._waits_as, event["t_ms"])
            self._loads_as, self._waits_as = self._waits_as, "loading"
        elif kind == LogEvent.LOAD_COMPLETED:
            self._tell("loading", event["t_ms"])
            self._waits_as = self._loads_as
        elif kind == LogEvent.COMMAND and event["kind"] in _SUBMISSIONS:
            # A prefill is taken in mid-pass, too, at the time at which that pass started.
            self._tell("submission", max(event["t_ms"], self._mark_ms) if event["in_pass"] else event["t_ms"])
            self._waits_as = "waiting"
        elif kind in _ENDS:
            self._end(event)

    def _decided(self, event: Event) -> None:
        chosen, passed_over = _DECISIONS[event["kind"]]
        words = chosen if event["request"] == self.told.request else passed_over
        text = f"{words} ({event['reason']})"
        self.told.decisions[text] = self.told.decisions.get(text, 0) + 1

    def _stage(self, event: Event) -> None:
        """One step on the way from a prefill to a decode worker."""
        stage = event["kind"]
        if stage == "source_held":
            self._hold(event["t_ms"])
        elif stage == "destination_accepted":
            self.told.worker, self.told.rank = event["worker"], event["rank"]
        elif stage in _STAGES:
            before, self._waits_as = _STAGES[stage]
            self._tell(before, event["t_ms"])
            self._comes_whole = stage == "destination_activated"

    def _hold(self, t_ms: float) -> None:
        self._tell_pass()
        self._running, self._waits_as, self._flight = False, "destination", None

    def _tell(self, part: str, end_ms: float, flight: _Flight | None = None) -> None:
        """Time from the mark up to `end_ms` was spent on this; a pass of no length is told all the same."""
        if end_ms == self._mark_ms and (flight is None or part in ("slower_rank", "cut_pass")):
            return
        told = Stretch("clock" if end_ms < self._mark_ms else part, self._mark_ms, end_ms)
        if flight is not None:
            own = flight.own_tokens if part in ("prefill", "recompute") else None
            told = Stretch(
                told.part, self._mark_ms, end_ms, flight.number, own, flight.shared_with if own is not None else (),
                flight.num_scheduled,
            )  # fmt: skip
        elif self._passes_meanwhile:
            told = Stretch(told.part, self._mark_ms, end_ms, passes_meanwhile=self._passes_meanwhile)
        self.told.stretches.append(told)
        self._mark_ms = end_ms
        self._passes_meanwhile = 0

    # -- passes -------------------------------------------------------------------------------------

    def _start_pass(self, event: Event) -> None:
        name, own = self.told.request, None
        rank = next((rank for rank in event["ranks"] if rank["rank"] == self.told.rank), None)
        if rank is None:
            return
        prefill = rank.get("prefill", ())
        for request, tokens in prefill:
            own = tokens if request == name else own
        shared = tuple((request, tokens) for request, tokens in prefill if request != name)
        self._flight = _Flight(
            event["pass"], event["t_ms"], rank.get("end_ms", event["end_ms"]), own, shared, rank["scheduled_requests"]
        )
        for request, reused in rank.get("admitted", ()):
            if request == name:
                self._tell(self._waits_as, event["t_ms"])
                self._running = True
                known = self.told.input_tokens if self._comes_whole else reused
                self._prompt_done, self._comes_whole = min(known, self.told.input_tokens), False
        if self._running:
            self._tell("between_passes", event["t_ms"])
        else:
            self._passes_meanwhile += 1
        if name in rank.get("preempted", ()):
            self.told.preemptions += 1
            self._running, self._waits_as, self._is_lost = False, "preempted", True

    def _end_pass(self, event: Event) -> None:
        """What the pass gave to the request stands in the lines that follow."""
        if self._flight is not None:
            self._ended, self._emitted = (self._flight, event["t_ms"]), False
            self._flight = None

    def _tell_pass(self) -> None:
        """The lines of the last pass end are through."""
        if self._ended is None:
            return
        (flight, end_ms), self._ended = self._ended, None
        if not self._running:
            return
        self._prompt_done += flight.own_tokens or 0
        self._tell(self._part_of(flight), min(flight.rank_end_ms, end_ms), flight)
        self._tell("slower_rank", end_ms, flight)
        self._has_output |= self._emitted
        if self._emitted or (not self._shows_tokens and self._prompt_done == self.told.input_tokens):
            self._is_lost = False

    def _part_of(self, flight: _Flight) -> str:
        if self._is_lost and self._has_output:
            return "recompute"
        if flight.own_tokens is not None:
            return "prefill"
        if self._shows_tokens:
            return "decode" if self._emitted else self._without_token()
        return "decode" if self._prompt_done == self.told.input_tokens else "stalled"

    def _without_token(self) -> str:
        """A pass without prompt work and without a token: all the same it may have been the last thing to wait for."""
        return "prefill" if self.told.asked_tokens == 0 else "stalled"

    # -- the end ------------------------------------------------------------------------------------

    def _end(self, event: Event) -> None:
        told, t_ms = self.told, event["t_ms"]
        told.end, told.reason, told.end_ms = event["event"], event.get("reason"), t_ms
        told.output_tokens = event["output_tokens"]
        self._tell_pass()
        if not self._running:
            self._tell(self._waits_as, t_ms)
        elif self._flight is not None and event["event"] == LogEvent.CUT:
            self._tell("cut_pass", t_ms, self._flight)
        else:
            self._tell("between_passes", t_ms)


class _Outline(_Story):
    """Follows a request through a log of level `requests`, which has no passes."""

    def take(self, event: Event) -> None:
        kind = event["event"]
        if kind == LogEvent.DECISION:
            self._decided(event)
        elif kind == LogEvent.HANDOFF:
            self._stage(event)
        elif kind in _ENDS:
            self._tell(self._doing(), event["t_ms"])
            self._end(event)
        elif kind in (LogEvent.ADMISSION, LogEvent.PREEMPTION, LogEvent.FIRST_TOKEN):
            self._tell(self._doing(), event["t_ms"])
            self._running = kind != LogEvent.PREEMPTION
            self._has_output |= kind == LogEvent.FIRST_TOKEN
            if kind == LogEvent.PREEMPTION:
                self.told.preemptions += 1
                self._waits_as = "preempted"

    def _hold(self, t_ms: float) -> None:
        self._tell(self._doing(), t_ms)
        self._running, self._waits_as = False, "destination"

    def _doing(self) -> str:
        if not self._running:
            return "waiting" if self._waits_as == "submission" else self._waits_as
        return "decode" if self._has_output or self._comes_whole else "prefill"
