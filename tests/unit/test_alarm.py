"""The alarm on the controllable clock: who sleeps is woken by time or by a ring, once for each, and none is lost."""

from __future__ import annotations

import asyncio
import math

import pytest

from mocker_replay.shells.alarm import Alarm
from tests.support.scene import virtual
from tests.support.virtual_loop import VirtualClock


class Sleeper:
    """Sleeps on an alarm and notes when it woke."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.alarm = Alarm(clock, clock.now_ns())
        self.origin_ms = clock.now_ms()
        self.woken_ms: list[float] = []

    def sleep(self, at_ms: float) -> asyncio.Task[None]:
        return asyncio.create_task(self._sleep(at_ms), name="sleeper")

    async def _sleep(self, at_ms: float) -> None:
        await self.alarm.sleep_until(at_ms)
        self.woken_ms.append(self.clock.now_ms() - self.origin_ms)


@virtual
async def test_time_wakes_at_its_instant_and_not_before(clock: VirtualClock) -> None:
    sleeper = Sleeper(clock)
    for at_ms in (3.0, 7.5):
        task = sleeper.sleep(at_ms)
        await clock.advance_ms(at_ms - (clock.now_ms() - sleeper.origin_ms) - 0.000001)
        assert not task.done()
        await clock.advance_ns(1)
        assert task.done()
    assert sleeper.woken_ms == [3.0, 7.5]


@virtual
async def test_a_time_that_is_over_costs_a_turn(clock: VirtualClock) -> None:
    sleeper = Sleeper(clock)
    await clock.advance_ms(5.0)
    for at_ms in (5.0, 1.0, -20.0):
        task = sleeper.sleep(at_ms)
        assert not task.done()
        await clock.settle()
        assert task.done()
    assert sleeper.woken_ms == [5.0] * 3


@virtual
async def test_a_ring_wakes_and_takes_the_time_back(clock: VirtualClock) -> None:
    sleeper = Sleeper(clock)
    sleeper.sleep(10.0)
    await clock.advance_ms(4.0)
    sleeper.alarm.ring()
    sleeper.alarm.ring()
    await clock.settle()
    assert sleeper.woken_ms == [4.0]
    # Neither the second ring nor the forgotten time reaches the next sleep.
    task = sleeper.sleep(math.inf)
    await clock.advance_ms(100.0)
    assert not task.done()
    sleeper.alarm.ring()
    await clock.settle()
    assert sleeper.woken_ms == [4.0, 104.0]


@virtual
async def test_a_ring_before_the_sleep_is_heard(clock: VirtualClock) -> None:
    sleeper = Sleeper(clock)
    sleeper.alarm.ring()
    sleeper.alarm.ring()
    sleeper.sleep(math.inf)
    await clock.settle()
    assert sleeper.woken_ms == [0.0]
    task = sleeper.sleep(2.0)
    await clock.settle()
    assert not task.done()
    await clock.advance_ms(2.0)
    assert sleeper.woken_ms == [0.0, 2.0]


@virtual
async def test_a_cancelled_sleep_leaves_nothing(clock: VirtualClock) -> None:
    sleeper = Sleeper(clock)
    task = sleeper.sleep(5.0)
    await clock.settle()
    task.cancel()
    await clock.settle()
    assert clock.loop.next_deadline_ns() is None
    sleeper.sleep(6.0)
    await clock.advance_ms(10.0)
    assert sleeper.woken_ms == [6.0]


@virtual
async def test_a_closed_alarm_cannot_be_set(clock: VirtualClock) -> None:
    sleeper = Sleeper(clock)
    sleeper.alarm.close()
    sleeper.alarm.ring()
    await sleeper.alarm.sleep_until(1.0)  # the ring is heard, and no time is set
    with pytest.raises(RuntimeError, match="closed"):
        await sleeper.alarm.sleep_until(1.0)
