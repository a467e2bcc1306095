"""The life of each handoff: stages in order, at the workers of their roles, with their tokens and times.

Decides what a log with prefill and decode workers says of the way of its requests. Never looks at passes or blocks.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from mocker_replay.events import LogEvent, RunEnd
from mocker_replay.log.audit.findings import Findings, Place
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup

# The stages that must stand before each; the last two may come whatever happened to the other end.
_BEFORE: Final = {
    "source_held": (),
    "destination_accepted": ("source_held",),
    "destination_reserved": ("destination_accepted",),
    "transfer_started": ("source_held", "destination_reserved"),
    "transfer_ended": ("transfer_started",),
    "destination_activated": ("transfer_ended",),
    "source_released": ("destination_activated",),
    "source_cancelled": (),
    "destination_cancelled": ("destination_accepted",),
}
# The same where a request has its place at the destination first.
_BEFORE_THERE: Final = _BEFORE | {"source_held": ("destination_reserved",), "destination_accepted": ()}
_AT_SOURCE: Final = ("source_held", "source_released", "source_cancelled")
_PROMPT: Final = ("source_held", "destination_accepted", "destination_activated", "source_released", "source_cancelled")
_AFTER_END: Final = ("source_released", "source_cancelled", "destination_cancelled")
# What was asked for before the client left may still come true, until the cancellation is applied.
_AFTER_LEAVING: Final = (*_AFTER_END, "source_held", "destination_accepted", "destination_reserved")
_ENDS: Final = (LogEvent.FINISH, LogEvent.REJECTION, LogEvent.FAILURE, LogEvent.CANCELLATION)


class _Travel(Struct):
    """One request on its way."""

    source: tuple[int, int] | None  # None: not known yet
    input_tokens: int
    asked_source: bool  # its prompt was to be computed, as far as the lines tell
    destination: tuple[int, int] | None = None
    stages: set[str] = field(default_factory=set)
    missing_tokens: int = 0
    transfer_end_ms: float = 0.0
    ended: str | None = None  # the event that ended it
    left_early: bool = False  # its client left before it was active at the destination

    @property
    def left(self) -> bool:
        """Its client has."""
        return self.ended == LogEvent.CANCELLATION

    @property
    def is_settled(self) -> bool:
        """Nobody holds anything of it."""
        # Whose client left while the prompt was computed is cancelled there; who was rejected there owns nothing.
        has_source = "source_held" in self.stages or (self.left and self.asked_source)
        source = not has_source or bool(self.stages & {"source_released", "source_cancelled"})
        given_back = (
            {"destination_cancelled"} if self.left_early else {"destination_cancelled", "destination_activated"}
        )
        destination = "destination_accepted" not in self.stages or bool(self.stages & given_back)
        return self.ended is not None and source and destination


class Handoffs:
    """One handler an event."""

    def __init__(self, setup: Setup, findings: Findings) -> None:
        self._setup = setup
        self._findings = findings
        self._travels: dict[str, _Travel] = {}
        self.before = {
            LogEvent.ARRIVAL.value: self._arrival,
            LogEvent.COMMAND.value: self._command,
            LogEvent.HANDOFF.value: self._stage,
            LogEvent.ADMISSION.value: self._at_work,
            LogEvent.FIRST_TOKEN.value: self._decodes,
            **{event.value: self._end for event in _ENDS},
        }

    def finish(self, end: str, at: Place) -> None:
        """The log is over: nobody may hold anything of a request in a run that completed."""
        if end != RunEnd.COMPLETE:
            return
        for name, travel in self._travels.items():
            if not travel.is_settled:
                rule = "nobody released what is held of it, or it never ended"
                self._findings.add("handoff-end", f"{name}: {rule}", sorted(travel.stages), None, at=at)

    def repeats_a_name(self, event: Event) -> bool:
        """Whether an arrival makes two requests of one name, given by the trace, of which somebody owns something."""
        return event["request"] in self._travels and "row" in event

    def _travel(self, event: Event) -> _Travel | None:
        travel = self._travels.get(event["request"])
        if travel is None:
            self._findings.add("handoff", f"{event['request']} has not arrived")
        return travel

    def _is_prefill(self, event: Event) -> bool:
        worker: int = event["worker"]
        return worker < self._setup.num_prefill_workers

    def _arrival(self, event: Event) -> None:
        begins_there = self._setup.is_sglang
        if self._is_prefill(event) == begins_there:
            role = "decode" if begins_there else "prefill"
            self._findings.add("handoff", f"a request arrives at a {role} worker", event["worker"])
        place = event["worker"], event["rank"]
        ends = (None, place) if begins_there else (place, None)
        self._travels[event["request"]] = _Travel(ends[0], event["input_tokens"], not begins_there, ends[1])

    def _command(self, event: Event) -> None:
        travel = self._travels.get(event["request"])
        if travel is not None and event["kind"] == "submit_prefill":
            travel.asked_source = True

    def _stage(self, event: Event) -> None:
        travel, stage = self._travel(event), event["kind"]
        if travel is None:
            return
        before = (_BEFORE_THERE if self._setup.is_sglang else _BEFORE)[stage]
        missing = [name for name in before if name not in travel.stages]
        if stage in travel.stages or missing:
            self._findings.add("handoff", f"{stage} comes once, and behind {', '.join(before)}", missing)
        told_late = stage == "destination_activated" and self._setup.measured  # it was on its way when the client left
        allowed = _AFTER_LEAVING if travel.left else _AFTER_END
        if travel.ended is not None and stage not in allowed and not (travel.left and told_late):
            self._findings.add("handoff-end", f"{stage} of a request that has ended")
        self._place(event, travel, stage)
        self._tokens(event, travel, stage)
        self._times(event, travel, stage)
        travel.stages.add(stage)
        self._forget_if_over(event, travel)

    def _forget_if_over(self, event: Event, travel: _Travel) -> None:
        # What was under way to the other end when a client left may yet be told.
        if travel.is_settled and not travel.left_early:
            del self._travels[event["request"]]

    def _place(self, event: Event, travel: _Travel, stage: str) -> None:
        place = event["worker"], event["rank"]
        if stage == "destination_accepted":
            if travel.destination is None:
                travel.destination = place
            if self._is_prefill(event):
                self._findings.add("handoff", "a destination is a decode worker", event["worker"])
        if stage in _AT_SOURCE:
            travel.asked_source = True
            travel.source = travel.source or place
        wanted = travel.source if stage in _AT_SOURCE else travel.destination
        if wanted is not None and place != wanted:
            self._findings.add("handoff", f"worker and rank of {stage}", list(place), list(wanted))

    def _tokens(self, event: Event, travel: _Travel, stage: str) -> None:
        wanted = event["tokens"]
        if stage in _PROMPT:
            wanted = travel.input_tokens
        elif stage == "destination_reserved":
            travel.missing_tokens = wanted
            blocks = self._setup.blocks_of(travel.input_tokens)
            if wanted % self._setup.block_size or wanted > blocks * self._setup.block_size:
                self._findings.add("handoff-tokens", "whole blocks of the prompt", wanted)
        elif stage == "transfer_started":
            full = self._setup.transfer.mode == "full_prompt"
            wanted = travel.input_tokens if full else travel.missing_tokens
        if event["tokens"] != wanted:
            self._findings.add("handoff-tokens", f"tokens of {stage}", event["tokens"], wanted)

    def _times(self, event: Event, travel: _Travel, stage: str) -> None:
        if stage == "transfer_started":
            travel.transfer_end_ms = event["t_ms"] + self._setup.transfer.delay_ms(event["tokens"])
            if event["end_ms"] != travel.transfer_end_ms:
                self._findings.add("handoff-time", "end of the transfer", event["end_ms"], travel.transfer_end_ms)
        elif stage == "transfer_ended" and event["t_ms"] != travel.transfer_end_ms:
            self._findings.add("handoff-time", "the transfer ends then", event["t_ms"], travel.transfer_end_ms)

    def _at_work(self, event: Event) -> None:
        travel = self._travel(event)
        if travel is not None and not self._is_prefill(event) and "destination_activated" not in travel.stages:
            self._findings.add("handoff-end", "a decode worker admits what was activated there")
        if travel is not None and self._is_prefill(event):
            travel.asked_source = True

    def _decodes(self, event: Event) -> None:
        if self._is_prefill(event):
            self._findings.add("handoff-end", "tokens come from decode workers", event["worker"])

    def _end(self, event: Event) -> None:
        travel = self._travel(event)
        if travel is None:
            return
        if travel.ended is not None:
            self._findings.add("handoff-end", f"the request ended before, by {travel.ended}")
        if event["event"] == LogEvent.FINISH and "destination_activated" not in travel.stages:
            self._findings.add("handoff-end", "who finishes was activated")
        travel.ended = event["event"]
        travel.left_early = travel.left and "destination_activated" not in travel.stages
        self._forget_if_over(event, travel)
