"""Figures of two logs side by side.

Decides: which figures a level can give; names and definitions are those of docs/metrics.md. Never decides whether a
change is good.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from mocker_replay._core.log_figures import LogFigures
from mocker_replay.events import EventLevel

_MIN_SPAN_S = 1e-9  # rates of a run without duration are taken over this
_ENDINGS = {
    "finished": "finish",
    "failed": "failure",
    "rejected": "rejection",
    "cancelled": "cancellation",
    "cut": "cut",
}


class Metric(Struct, frozen=True):
    """One figure of both logs; None where there is no sample."""

    name: str
    a: float | None
    b: float | None
    is_exact: bool = True  # else a percentile of very many samples, up to 0.05 % off

    @property
    def change(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def relative(self) -> float | None:
        """The change as a share of `a`."""
        return None if self.change is None or not self.a else self.change / self.a

    def to_mapping(self) -> dict[str, object]:
        return {
            "name": self.name,
            "a": self.a,
            "b": self.b,
            "change": self.change,
            "relative": self.relative,
            "exact": self.is_exact,
        }


def metrics_of(a: LogFigures, b: LogFigures, level: str) -> tuple[Metric, ...]:
    """All figures that logs of this level can give."""
    first, second = (dict(_figures(side, level)) for side in (a, b))
    return tuple(
        Metric(name, value, second[name][0], is_exact and second[name][1]) for name, (value, is_exact) in first.items()
    )


def _figures(figures: LogFigures, level: str) -> Iterator[tuple[str, tuple[float | None, bool]]]:
    counts = figures.line_counts()
    yield "arrived", (counts["arrival"], True)
    for name, kind in _ENDINGS.items():
        yield name, (counts[kind], True)
    yield "preemptions", (counts["preemption"], True)
    if level != EventLevel.REQUESTS:
        yield "passes", (counts["pass_start"], True)
    for name, (_, mean, median, p99, is_exact) in figures.describe().items():
        if name == "itl_ms" and level in (EventLevel.REQUESTS, EventLevel.PASSES):
            continue
        yield f"mean_{name}", (mean, True)
        yield f"median_{name}", (median, is_exact)
        yield f"p99_{name}", (p99, is_exact)
    output_tokens, duration_ms = figures.totals()
    span_s = max(duration_ms / 1000.0, _MIN_SPAN_S)
    yield "duration_ms", (duration_ms, True)
    yield "total_output_tokens", (output_tokens, True)
    yield "request_throughput_rps", (counts["finish"] / span_s, True)
    yield "output_throughput_tok_s", (output_tokens / span_s, True)
