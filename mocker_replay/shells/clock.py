"""The only reader of time."""

from __future__ import annotations

import time


def monotonic_ns() -> int:
    """Nanoseconds of the monotonic clock; only differences mean anything."""
    return time.monotonic_ns()


def elapsed_ms(since_ns: int) -> float:
    """Milliseconds of wall time since a reading of `monotonic_ns`."""
    return (time.monotonic_ns() - since_ns) / 1e6
