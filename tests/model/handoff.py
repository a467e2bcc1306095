"""The coordinator of one handoff, as the table of the handoff specification (section 4) says it, row by row.

Slow and plain on purpose: what was told is kept as it was told, and everything else is derived from it anew each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

EXPECTED = {
    "submit_prefill": {"submitted"},
    "reserve_destination": {"accepted"},
    "start_transfer": {"scheduled"},
    "activate_destination": {"applied"},
    "release_source": {"applied", "noop"},
    "cancel_source": {"applied", "noop"},
    "cancel_destination": {"applied", "noop"},
}
CLEANUP = ("cancel_source", "cancel_destination")
# A fact, and what must have been acknowledged before it.
NEEDS = {"held": "submit_prefill", "reserved": "reserve_destination", "transferred": "start_transfer"}
GIVING_UP = ("failed", "timed_out", "cancelled")


class Refused(Exception):
    """The input breaks the protocol."""


@dataclass(frozen=True)
class TimingModel:
    """What a source tells of a transfer."""

    mode: str
    prompt_tokens: int
    bytes_per_token: int | None
    bandwidth_gbps: float | None


def delay_of(timing: TimingModel, missing_tokens: int, fallback_ms: float) -> float:
    """Section 3; ValueError for what is no delay."""
    if timing.mode not in ("full_prompt", "destination_missing"):
        raise Refused
    tokens = {"full_prompt": timing.prompt_tokens, "destination_missing": missing_tokens}[timing.mode]
    bandwidth = timing.bandwidth_gbps
    numbers = [tokens, timing.prompt_tokens, timing.bytes_per_token or 0, 0.0 if bandwidth is None else bandwidth]
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise Refused
    if not bandwidth or not timing.bytes_per_token:
        return fallback_ms
    delay_ms = (float(tokens) * float(timing.bytes_per_token)) / (bandwidth * 1e9) * 1000.0
    if not math.isfinite(delay_ms):
        raise Refused
    return delay_ms


@dataclass
class HandoffModel:
    """One handoff; `apply` returns the actions of an input as (id, kind, delay)."""

    handoff: int
    order: str
    fallback_ms: float = 0.0
    started: bool = False
    actions: list[str] = field(default_factory=list)  # kinds, by id
    outcomes: dict[int, tuple[str, str]] = field(default_factory=dict)  # by id: outcome and text
    facts: dict[str, object] = field(default_factory=dict)
    cause: str | None = None

    # -- what follows from it -----------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return "complete" in self.actions

    @property
    def phase(self) -> str:
        if self.is_over:
            return "succeeded" if self.cause is None else "cancelled"
        if self.cause is not None:
            return "cleanup"
        return "active" if self.started else "new"

    @property
    def delay_ms(self) -> float | None:
        """None while it is not known."""
        timing = self.facts.get("held")
        if not isinstance(timing, TimingModel):
            return None
        missing = self.facts.get("reserved")
        if timing.mode == "destination_missing" and missing is None:
            return None
        return delay_of(timing, missing if isinstance(missing, int) else 0, self.fallback_ms)

    def outcome_of(self, kind: str) -> str | None:
        return self.outcomes[self.actions.index(kind)][0] if kind in self.outcomes_by_kind() else None

    def outcomes_by_kind(self) -> list[str]:
        return [self.actions[number] for number in self.outcomes]

    def table(self) -> list[tuple[bool, str]]:
        """Condition and action, in the order of the specification."""
        issued, facts = self.actions, self.facts
        if self.cause is not None:
            cleanup = [
                ("submit_prefill" in issued, "cancel_source"),
                ("reserve_destination" in issued, "cancel_destination"),
            ]
            open_ones = [kind for needed, kind in cleanup if needed and self.outcome_of(kind) is None]
            return [*cleanup, (not open_ones, "complete")]
        source_first = self.order == "source_first"
        return [
            (self.started and source_first, "submit_prefill"),
            (self.started and not source_first, "reserve_destination"),
            (source_first and "held" in facts, "reserve_destination"),
            (not source_first and "reserved" in facts, "submit_prefill"),
            ("held" in facts and "reserved" in facts, "start_transfer"),
            ("transferred" in facts, "activate_destination"),
            (self.outcome_of("activate_destination") == "applied", "release_source"),
            (self.outcome_of("release_source") is not None, "complete"),
        ]

    # -- inputs -------------------------------------------------------------------------------------

    def apply(self, name: str, *arguments: object) -> list[tuple[int, str, float]]:
        """Raises Refused; nothing changed then."""
        if self.is_over:
            return []
        take: Callable[..., None] = {"start": self._start, "outcome": self._outcome}.get(name, self._fact)
        take(*((name, *arguments) if take == self._fact else arguments))
        issued: list[tuple[int, str, float]] = []
        for holds, kind in self.table():
            if holds and kind not in self.actions:
                issued.append((len(self.actions), kind, (self.delay_ms or 0.0) if kind == "start_transfer" else 0.0))
                self.actions.append(kind)
        return issued

    def _start(self) -> None:
        if self.cause is None:
            self.started = True

    def _fact(self, name: str, handoff: int, payload: object = True) -> None:
        if handoff != self.handoff:
            raise Refused
        if self.cause is not None or name in self.facts:
            return
        if name in GIVING_UP:
            self.cause = name
            return
        if self.outcome_of(NEEDS[name]) is None:
            raise Refused
        if isinstance(payload, TimingModel):
            delay_of(payload, 0, 0.0)
        if isinstance(payload, int) and payload < 0:
            raise Refused
        self.facts[name] = payload
        try:
            assert self.delay_ms is None or self.delay_ms >= 0.0
        except Refused:
            del self.facts[name]
            raise

    def _outcome(self, number: int, outcome: str, text: str) -> None:
        if not 0 <= number < len(self.actions):
            raise Refused
        kind = self.actions[number]
        if number in self.outcomes:
            if self.outcomes[number] != (outcome, text):
                raise Refused
            return
        expected = EXPECTED[kind] | {"failed"}
        if kind == "activate_destination" and self.cause is not None:
            expected = expected | {"noop"}
        if outcome not in expected or (outcome == "failed" and kind in CLEANUP):
            raise Refused
        self.outcomes[number] = (outcome, text)
        if outcome == "failed" and self.cause is None:
            self.cause = "action_failed"
