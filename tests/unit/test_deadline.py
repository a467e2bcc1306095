"""The timer of a shell: armed only when its deadline changes, never early, and silent once it is closed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_replay.shells.deadline import DeadlineTimer
from tests.support.virtual_loop import START_NS, VirtualClock, VirtualTimer, run_virtual


class CountingClock:
    """Counts how often its timers are armed."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.num_armed = 0

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def timer(self, on_expiry: Callable[[], None]) -> VirtualTimer:
        timer = self._clock.timer(on_expiry)
        arm = timer.arm

        def counted(deadline_ns: int) -> None:
            self.num_armed += 1
            arm(deadline_ns)

        timer.arm = counted  # type: ignore[method-assign]
        return timer


def test_the_setting_that_stands_is_not_armed_again() -> None:
    async def main(clock: VirtualClock) -> None:
        counting, rung = CountingClock(clock), []
        timer = DeadlineTimer(counting, START_NS, lambda: rung.append(clock.now_ms()))
        for _ in range(5):
            timer.set(10.0)
            await clock.advance_ms(1)
        assert counting.num_armed == 1
        timer.set(20.0)
        timer.set(None)
        timer.set(None)
        timer.set(8.0)
        assert counting.num_armed == 3
        await clock.advance_ms(50)
        assert rung == [8.0]
        timer.set(8.0)  # it has rung: whoever sets it again still waits
        await clock.settle()
        assert rung == [8.0, 55.0]
        assert counting.num_armed == 4

    run_virtual(main)


def test_deadlines_before_the_origin_are_at_the_origin() -> None:
    async def main(clock: VirtualClock) -> None:
        rung: list[float] = []
        timer = DeadlineTimer(clock, START_NS + 5_000_000, lambda: rung.append(clock.now_ms()))
        timer.set(-3.0)
        await clock.advance_ms(10)
        assert rung == [5.0]

    run_virtual(main)


def test_a_closed_timer_is_silent() -> None:
    async def main(clock: VirtualClock) -> None:
        rung: list[float] = []
        timer = DeadlineTimer(clock, START_NS, lambda: rung.append(clock.now_ms()))
        timer.set(1.0)
        timer.close()
        await clock.advance_ms(2)
        assert rung == []
        with pytest.raises(RuntimeError, match="closed"):
            timer.set(3.0)

    run_virtual(main)


@given(st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 12)), st.integers(0, 4)), max_size=20))
def test_it_rings_for_the_last_setting_alone(script: list[tuple[int | None, int]]) -> None:
    """Against the plain rule: one setting at a time, told once, at its deadline or when it was set too late."""

    async def main(clock: VirtualClock) -> None:
        rung: list[float] = []
        timer = DeadlineTimer(clock, START_NS, lambda: rung.append(clock.now_ms()))
        expected: list[float] = []
        now_ms, setting = 0, None
        for deadline_ms, duration_ms in script:
            timer.set(deadline_ms)
            setting = deadline_ms
            await clock.advance_ms(duration_ms)
            if setting is not None and setting <= now_ms + duration_ms:
                expected.append(max(setting, now_ms))
                setting = None
            now_ms += duration_ms
        assert rung == expected

    run_virtual(main, collect=False)
