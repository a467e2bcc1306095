"""Milliseconds to nanoseconds and back: up, never down, and no further than needed."""

from __future__ import annotations

import asyncio
import math
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mocker_replay.shells.clock import Clock, MonotonicClock, elapsed_ms, monotonic_ns, ms_from_ns, ns_from_ms


@given(st.floats(0, 4e9))
@example(0.1)
@example(1.1)
@example(5e-324)
@example(2.675)
def test_the_first_nanosecond_that_reads_as_late_as_asked(duration_ms: float) -> None:
    duration_ns = ns_from_ms(duration_ms)
    assert ms_from_ns(duration_ns) >= duration_ms
    assert ms_from_ns(duration_ns - 1) < duration_ms


@given(st.integers(0, 2**52))
def test_whole_nanoseconds_survive(duration_ns: int) -> None:
    assert ns_from_ms(ms_from_ns(duration_ns)) == duration_ns


@given(st.floats(4e9, 1e300))
def test_never_early_however_long(duration_ms: float) -> None:
    assert ms_from_ns(ns_from_ms(duration_ms)) >= duration_ms


@pytest.mark.parametrize("duration_ms", [math.inf, math.nan])
def test_what_is_no_duration_is_refused(duration_ms: float) -> None:
    with pytest.raises((OverflowError, ValueError)):
        ns_from_ms(duration_ms)


def test_the_monotonic_clock_is_the_system_s() -> None:
    clock: Clock = MonotonicClock()
    before_ns = time.monotonic_ns()
    assert before_ns <= clock.now_ns() <= time.monotonic_ns()
    assert before_ns <= monotonic_ns()
    assert elapsed_ms(before_ns) >= 0.0


def test_the_timers_of_the_monotonic_clock_are_never_early() -> None:
    async def main() -> None:
        clock: Clock = MonotonicClock()
        fired: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        timer = clock.timer(lambda: fired.set_result(clock.now_ns()))
        deadline_ns = clock.now_ns() + 3_300_000
        timer.arm(deadline_ns)
        assert await fired >= deadline_ns
        timer.close()

    asyncio.run(main())
