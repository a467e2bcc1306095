"""Why one request took its time: its parts, and what a log does not tell.

Decides how parts are added: exactly, as fractions of the doubles in the log. Never decides what a stretch of time was
spent on; `explain` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final

from msgspec import Struct, field

# What time may be spent on, in the order of a request's life, with words for people.
PARTS: Final[dict[str, str]] = {
    "submission": "on its way to the engine, which takes requests between passes",
    "waiting": "in the queue",
    "loading": "its blocks were on their way from host memory, or there and not seen yet",
    "prefill": "passes that computed its prompt",
    "destination": "its prompt was computed and held, until a decode worker had room for it",
    "transfer": "its blocks were on their way to the decode worker",
    "activation": "its blocks were there, and the decode worker was in a pass",
    "decode": "passes that gave it tokens",
    "stalled": "passes in which it ran without getting anything",
    "slower_rank": "its rank was through and waited for a slower one",
    "between_passes": "running, with no pass in flight",
    "preempted": "preempted, in the queue again",
    "recompute": "passes that computed again what a preemption had lost",
    "cut_pass": "in a pass that the end of the run cut off",
    "clock": "modelled time stood behind the measured clock; counts against the other parts",
}


class Stretch(Struct, frozen=True):
    """An uninterrupted piece of a request's time."""

    part: str  # one of PARTS
    start_ms: float
    end_ms: float
    pass_number: int | None = None
    own_tokens: int | None = None  # prompt tokens computed for it in this pass
    shared_with: tuple[tuple[str, int], ...] = ()  # other requests with prompt tokens in it, and how many
    num_scheduled: int | None = None  # requests in the batch of its rank, itself included
    passes_meanwhile: int | None = None  # of its rank, while it waited

    @property
    def exact_ms(self) -> Fraction:
        return Fraction(self.end_ms) - Fraction(self.start_ms)

    def to_mapping(self) -> dict[str, Any]:
        told: dict[str, Any] = {"part": self.part, "start_ms": self.start_ms, "end_ms": self.end_ms}
        if self.pass_number is not None:
            told |= {"pass": self.pass_number, "scheduled_requests": self.num_scheduled}
        if self.passes_meanwhile is not None:
            told["passes_meanwhile"] = self.passes_meanwhile
        if self.own_tokens is not None:
            told |= {"own_tokens": self.own_tokens, "shared_with": [list(pair) for pair in self.shared_with]}
        return told


class Explanation(Struct, kw_only=True):
    """One request from arrival to end."""

    log: str
    level: str
    request: str
    worker: int
    rank: int
    input_tokens: int
    asked_tokens: int
    arrival_ms: float
    end_ms: float = 0.0
    end: str = ""  # event of the end
    reason: str | None = None
    output_tokens: int = 0
    preemptions: int = 0
    stretches: list[Stretch] = field(default_factory=list)
    decisions: dict[str, int] = field(default_factory=dict)  # of a policy about it, in words -> how often
    untold: list[str] = field(default_factory=list)  # what a log of this level cannot say

    @property
    def exact_ms(self) -> Fraction:
        """End - arrival."""
        return Fraction(self.end_ms) - Fraction(self.arrival_ms)

    def parts(self) -> Iterator[tuple[str, Fraction, int]]:
        """(part, its time [ms], its stretches) of each part there is; the times add up to `exact_ms`."""
        for part in PARTS:
            of_part = [stretch.exact_ms for stretch in self.stretches if stretch.part == part]
            if of_part:
                yield part, sum(of_part, Fraction(0)), len(of_part)

    def to_mapping(self) -> dict[str, Any]:
        """The explanation as JSON values; exact times are fractions in lowest terms."""
        return {
            "log": self.log.encode(errors="backslashreplace").decode(),
            "level": self.level,
            "request": self.request,
            "worker": self.worker,
            "rank": self.rank,
            "input_tokens": self.input_tokens,
            "requested_output_tokens": self.asked_tokens,
            "output_tokens": self.output_tokens,
            "preemptions": self.preemptions,
            "end": self.end,
            "reason": self.reason,
            "arrival_ms": self.arrival_ms,
            "end_ms": self.end_ms,
            "latency_ms": float(self.exact_ms),
            "latency_exact_ms": str(self.exact_ms),
            "parts": [
                {"part": part, "ms": float(exact_ms), "exact_ms": str(exact_ms), "stretches": count}
                for part, exact_ms, count in self.parts()
            ],
            "stretches": [stretch.to_mapping() for stretch in self.stretches],
            "decisions": self.decisions,
            "untold": self.untold,
        }
