"""How punctual a realtime run was: lateness, rates, requests in flight over wall time.

Decides the figures, never when they are taken. All of them depend on the host; definitions stand in docs/metrics.md.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from msgspec import Struct, field

# Upper edges of the lateness histogram [ms]; what is later stands in one more bar.
LATENESS_EDGES_MS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0, 100.0, 1000.0)
_MAX_BUCKETS: Final = 120


class Lateness:
    """Actual minus planned time of events of one kind [ms]."""

    def __init__(self) -> None:
        self._values_ms = array("d")
        self.max_ms = 0.0
        self.recent_ms = 0.0  # the most since somebody asked last

    def add(self, late_ms: float) -> None:
        self._values_ms.append(late_ms)
        self.max_ms = max(self.max_ms, late_ms)
        self.recent_ms = max(self.recent_ms, late_ms)

    def __len__(self) -> int:
        return len(self._values_ms)

    def summary(self) -> dict[str, Any] | None:
        """Percentiles by nearest rank, as those of latencies, and a histogram; None without any event."""
        import numpy as np

        from mocker_replay.report.metrics import nearest_rank

        if not self._values_ms:
            return None
        values = np.frombuffer(self._values_ms, np.float64)
        ordered = np.sort(values)
        below = np.searchsorted(ordered, LATENESS_EDGES_MS, side="right").tolist()
        counts = [upper - lower for lower, upper in zip([0, *below], [*below, len(ordered)], strict=True)]
        labels = [*LATENESS_EDGES_MS, None]
        return {
            "count": len(values),
            "mean_ms": float(values.mean()),
            "p50_ms": float(ordered[nearest_rank(len(ordered), 50)]),
            "p99_ms": float(ordered[nearest_rank(len(ordered), 99)]),
            "max_ms": float(ordered[-1]),
            "histogram": [{"le_ms": le, "count": n} for le, n in zip(labels, counts, strict=True)],
        }


class InFlight:
    """Requests that arrived and have not ended, as the most in each of at most 120 buckets of wall time."""

    def __init__(self) -> None:
        self.now = 0
        self.max = 0
        self._width_ms = 100.0
        self._most: list[int] = []

    def change(self, by: int, wall_ms: float) -> None:
        """So many more (or fewer) from `wall_ms` on."""
        while wall_ms >= self._width_ms * _MAX_BUCKETS:
            pairs = range(0, len(self._most), 2)
            self._most = [max(self._most[at : at + 2]) for at in pairs]
            self._width_ms *= 2
        bucket = int(wall_ms / self._width_ms)
        # A bucket without a change holds what was there before.
        while len(self._most) <= bucket:
            self._most.append(self.now)
        self.now += by
        self.max = max(self.max, self.now)
        self._most[bucket] = max(self._most[bucket], self.now)

    def summary(self) -> dict[str, Any]:
        return {"max": self.max, "bucket_ms": self._width_ms, "max_per_bucket": list(self._most)}


class Punctuality(Struct):
    """Everything a realtime run tells about itself, as it goes."""

    arrivals: Lateness = field(default_factory=Lateness)
    pass_ends: Lateness = field(default_factory=Lateness)
    in_flight: InFlight = field(default_factory=InFlight)
    num_arrived: int = 0
    first_planned_ms: float = 0.0
    last_planned_ms: float = 0.0
    first_actual_ms: float = 0.0
    last_actual_ms: float = 0.0

    def arrived(self, planned_ms: float, wall_ms: float) -> None:
        """A row planned for `planned_ms` was handed over at `wall_ms`."""
        self.arrivals.add(wall_ms - planned_ms)
        if self.num_arrived == 0:
            self.first_planned_ms, self.first_actual_ms = planned_ms, wall_ms
        self.num_arrived += 1
        self.last_planned_ms, self.last_actual_ms = planned_ms, wall_ms
        self.in_flight.change(1, wall_ms)

    @property
    def max_lateness_ms(self) -> float:
        """The most of anything."""
        return max(self.arrivals.max_ms, self.pass_ends.max_ms)

    def take_recent_ms(self) -> float:
        """The most of anything since the last call."""
        recent_ms = max(self.arrivals.recent_ms, self.pass_ends.recent_ms)
        self.arrivals.recent_ms = self.pass_ends.recent_ms = 0.0
        return recent_ms

    def summary(self, clock: str, limit_ms: float | None, wall_duration_ms: float) -> dict[str, Any]:
        """The object `realtime` of a summary."""
        late = limit_ms is not None and self.max_lateness_ms > limit_ms
        return {
            "clock": clock,
            "wall_duration_ms": wall_duration_ms,
            "planned_request_rate_rps": _rate(self.num_arrived, self.last_planned_ms - self.first_planned_ms),
            "achieved_request_rate_rps": _rate(self.num_arrived, self.last_actual_ms - self.first_actual_ms),
            "arrival_lateness": self.arrivals.summary(),
            "pass_end_lateness": self.pass_ends.summary(),
            "max_lateness_ms": self.max_lateness_ms,
            "max_lateness_limit_ms": limit_ms,
            "late": late,
            "in_flight": self.in_flight.summary(),
        }


def _rate(count: int, span_ms: float) -> float | None:
    """Arrivals a second between the first and the last one; None where they span no time."""
    return None if count < 2 or span_ms <= 0.0 else (count - 1) * 1000.0 / span_ms
