"""Figures of a run out of the lines of a full log (level `tokens` or `kv`).

Decides what is remembered: a few numbers for each completed request, each distinct gap between tokens with its count,
counters. Never decides a formula; `summary` does. Reads lines on its own: a line that other rules find wrong counts
here as it stands.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import NamedTuple

from msgspec import Struct, field

from mocker_replay.events import LogEvent
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.life import row_of


class Done(NamedTuple):
    """A completed request."""

    row: int
    input_tokens: int
    output_tokens: int
    arrival_ms: float
    first_ms: float | None
    second_ms: float | None
    last_ms: float | None
    end_ms: float
    reused_first: int
    reused_most: int


class _Live(Struct):
    row: int
    input_tokens: int
    arrival_ms: float
    first_ms: float | None = None
    second_ms: float | None = None
    last_ms: float | None = None
    total: int = 0
    admissions: int = 0
    reused_first: int = 0
    reused_most: int = 0
    gaps: array[float] = field(default_factory=lambda: array("d"))


class Figures:
    """Takes every line of a log."""

    def __init__(self) -> None:
        self.done: list[Done] = []
        self.gaps: Counter[float] = Counter()  # gaps of completed requests [ms] -> how often
        self.ends: Counter[str] = Counter()  # event -> lines
        self.reasons: Counter[str] = Counter()  # of those rejected or failed
        self.num_arrived = 0
        self.num_preemptions = 0
        self.decisions: Counter[str] = Counter()  # of a policy, by kind
        self.num_passes = 0
        self.num_rank_passes = 0
        self.prefill_tokens = 0
        self.forwards = 0  # (request, pass) pairs that emit without prompt work in the pass
        self.forward_tokens = 0
        self.last_ms = 0.0
        self.cut_ms: float | None = None
        self._live: dict[str, _Live] = {}
        self._prompts: dict[int, set[str]] = {}  # worker -> requests with prompt work in its pass
        self._of_pass: set[str] = set()  # those of the pass that ends
        self.any = {
            LogEvent.ARRIVAL.value: self._arrive,
            LogEvent.ADMISSION.value: self._admit,
            LogEvent.PREEMPTION.value: self._preempt,
            LogEvent.DECISION.value: self._decide,
            LogEvent.PASS_START.value: self._start,
            LogEvent.PASS_END.value: self._end_pass,
            LogEvent.TOKENS.value: self._emit,
            LogEvent.FINISH.value: self._finish,
            LogEvent.REJECTION.value: self._refuse,
            LogEvent.FAILURE.value: self._refuse,
            LogEvent.CANCELLATION.value: self._leave,
            LogEvent.CUT.value: self._cut,
        }

    def note_time(self, event: Event) -> None:
        """The latest time of any line."""
        self.last_ms = max(self.last_ms, event["t_ms"])

    @property
    def pass_in_flight(self) -> bool:
        """Whether the log ends in mid-pass."""
        return bool(self._prompts)

    def _arrive(self, event: Event) -> None:
        row = row_of(event)
        self._live[event["request"]] = _Live(-1 if row is None else row, event["input_tokens"], event["t_ms"])
        self.num_arrived += 1

    def _admit(self, event: Event) -> None:
        live = self._live.get(event["request"])
        if live is not None:
            if not live.admissions:
                live.reused_first = event["reused_tokens"]
            live.admissions += 1
            live.reused_most = max(live.reused_most, event["reused_tokens"])

    def _preempt(self, event: Event) -> None:
        self.num_preemptions += 1

    def _decide(self, event: Event) -> None:
        self.decisions[event["kind"]] += 1

    def _start(self, event: Event) -> None:
        self.decisions["budget"] += sum("budget" in rank for rank in event["ranks"])
        self._prompts[event["worker"]] = {name for rank in event["ranks"] for name, _ in rank.get("prefill", ())}

    def _end_pass(self, event: Event) -> None:
        self._of_pass = self._prompts.pop(event["worker"], set())
        self.num_passes += 1
        self.num_rank_passes += len(event["ranks"])
        self.prefill_tokens += sum(rank["fpm"]["sum_prefill_tokens"] for rank in event["ranks"])

    def _emit(self, event: Event) -> None:
        name, t_ms, tokens = event["request"], event["t_ms"], event["tokens"]
        live = self._live.get(name)
        if live is None:
            return
        if name not in self._of_pass:
            self.forwards += 1
            self.forward_tokens += tokens
        if live.last_ms is None:
            live.first_ms = t_ms
        else:
            live.gaps.append(max(t_ms - live.last_ms, 0.0))
        live.gaps.extend([0.0] * (tokens - 1))
        if live.total < 2 <= live.total + tokens:
            live.second_ms = t_ms
        live.total += tokens
        live.last_ms = t_ms

    def _finish(self, event: Event) -> None:
        live = self._live.pop(event["request"], None)
        self.ends[event["event"]] += 1
        if live is None or not live.admissions:
            return
        self.gaps.update(live.gaps)
        self.done.append(
            Done(
                live.row, live.input_tokens, live.total, live.arrival_ms, live.first_ms, live.second_ms, live.last_ms,
                event["t_ms"], live.reused_first, live.reused_most,
            )
        )  # fmt: skip

    def _refuse(self, event: Event) -> None:
        self.reasons[event["reason"]] += 1
        self._leave(event)

    def _leave(self, event: Event) -> None:
        self._live.pop(event["request"], None)
        self.ends[event["event"]] += 1

    def _cut(self, event: Event) -> None:
        self._live.pop(event["request"], None)
        self.ends[event["event"]] += 1
        self.cut_ms = event["t_ms"]
