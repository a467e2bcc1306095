"""The only reader of time, the contract of a clock, and the only conversion between milliseconds and nanoseconds.

Modelled time is a double of milliseconds, wall time an integer of nanoseconds. A deadline is rounded up to a whole
nanosecond, never down, so that no wait ends before the modelled instant it stands for. Never decides what to wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

NS_PER_MS = 1_000_000


class Timer(Protocol):
    """One setting at a time of one alarm. Not for several threads."""

    def arm(self, deadline_ns: int) -> None:
        """Set to an absolute time of its clock [ns]; an earlier setting and an expiry not yet told are discarded.

        The callback comes from the loop, once, and never from within this call; for a deadline that is reached already
        it comes in the next turn, and no descriptor is created for it.
        """

    def disarm(self) -> None:
        """Forget the setting, and an expiry not yet told."""

    def close(self) -> None:
        """Disarm and release what the timer holds. It cannot be armed again."""


class Clock(Protocol):
    """A monotonic clock and its timers."""

    def now_ns(self) -> int:
        """Nanoseconds since some fixed instant. Never goes back."""

    def timer(self, on_expiry: Callable[[], None]) -> Timer:
        """A new timer, not armed. The loop calls `on_expiry` when its deadline is reached, never earlier."""


class MonotonicClock:
    """The real clock: the system's monotonic one, with precise timers on the running loop.

    Args:
        make_timer: gives a timer for a callback; a `PreciseTimer` if left out.
    """

    def __init__(self, make_timer: Callable[[Callable[[], None]], Timer] | None = None) -> None:
        self._make_timer = make_timer

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def timer(self, on_expiry: Callable[[], None]) -> Timer:
        if self._make_timer is not None:
            return self._make_timer(on_expiry)
        # That module reads its clock here.
        from mocker_replay.shells.sleeper import PreciseTimer

        return PreciseTimer(on_expiry)


def monotonic_ns() -> int:
    """Nanoseconds of the monotonic clock; only differences mean anything."""
    return time.monotonic_ns()


def elapsed_ms(since_ns: int) -> float:
    """Milliseconds of wall time since a reading of `monotonic_ns`."""
    return ms_from_ns(time.monotonic_ns() - since_ns)


def ms_from_ns(duration_ns: int) -> float:
    """The double nearest to so many nanoseconds, in milliseconds."""
    return duration_ns / NS_PER_MS


def ns_from_ms(duration_ms: float) -> int:
    """The first whole nanosecond that `ms_from_ns` reads as `duration_ms` or later (beyond 100 days: one of the first).

    Raises:
        OverflowError, ValueError: the duration is infinite, or not a number.
    """
    numerator, denominator = duration_ms.as_integer_ratio()
    duration_ns = -(-numerator * NS_PER_MS // denominator)
    # 1.1 ms is a little more than 1 100 000 ns as a double, and yet what these read as.
    return duration_ns - 1 if ms_from_ns(duration_ns - 1) >= duration_ms else duration_ns
