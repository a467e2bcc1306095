"""Driver scenarios on the real clock: one timer descriptor a driver (14), the nominal clock under load (41).

Nothing here is decided by how fast the machine is, only by what came early or came out. Source: driver specification,
sections 10 to 13.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from random import Random

import numpy as np
import pytest

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.timerfd import available
from mocker_replay.events import EventKind
from mocker_replay.shells.clock import Clock, MonotonicClock
from mocker_replay.shells.handle import DriverHandle, spawn
from mocker_replay.shells.published import Published
from mocker_replay.shells.readings import Measured, Nominal, Readings
from mocker_replay.shells.realtime import RealtimeShell
from mocker_replay.shells.sleeper import PreciseTimer
from tests.support.busy import busy_processes, busy_thread
from tests.support.descriptors import Creator
from tests.support.machines import cancel, fixed, make_machine, submit
from tests.support.recording import Recorder, Taken, first_difference
from tests.support.scene import COMMAND, PASS_END, PASS_START
from tests.support.virtual_loop import VirtualClock, run_virtual


class Lateness:
    """Keeps the measured time of each pass end beside its deadline."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []

    def stepped(self, given, deadline_ms, wall_ms, events) -> None:
        if given.stimulus == "pass_timer":
            self.ends.append((deadline_ms, wall_ms))


@pytest.mark.skipif(not available, reason="no timerfd on this system")
@pytest.mark.parametrize("num_passes", [1, 20])
def test_driver_14_pass_wait_uses_one_timer_descriptor(num_passes: int) -> None:
    creator = Creator()
    seen = Lateness()

    async def main() -> None:
        clock = MonotonicClock(lambda on_expiry: PreciseTimer(on_expiry, creator.timer_fd))
        driver = spawn(make_machine(timing=fixed(5.0, 5.0)), clock=clock, observer=seen)
        call = asyncio.create_task(driver.handle.send(submit(driver.handle.reserve_id(), 0, 4, num_passes)))
        passes = 0
        while passes < num_passes:
            event = await driver.events.receive()
            assert event is not None
            if event.boundary is not None:
                passes += 1
                await event.boundary.finish()
        assert await call == "submitted"
        driver.handle.close()
        await driver.actor

    asyncio.run(main())
    assert creator.num_attempts == 1, "one of the two timers was needed, and that one was armed again and again"
    assert len(seen.ends) == num_passes
    assert all(wall_ms >= deadline_ms for deadline_ms, wall_ms in seen.ends)


# -- the nominal clock ----------------------------------------------------------------------------------


class Trader:
    """Consumer and caller in one: what it does follows from the events it sees, so that no lateness can change it.

    Args:
        by_the_clock: cancellations are sent when their time has come; otherwise as soon as the pass has started, with
            the time they are meant for.
    """

    def __init__(self, seed: int, shell: RealtimeShell, handle: DriverHandle, *, by_the_clock: bool) -> None:
        self._random = Random(seed)
        self._shell = shell
        self._handle = handle
        self._by_the_clock = by_the_clock
        self._left = 40  # requests still to submit
        self._next_request = 0
        self._live: list[int] = []
        self._tasks: list[asyncio.Task[str]] = []

    async def react(self, event: Published) -> bool:
        """False when all is done."""
        for record in event.of(EventKind.TERMINAL):
            self._live.remove(record.request)
        if event.kind is PASS_START:
            length_ms = event.head.x - event.head.t_ms
            parts = sorted(self._random.choices([0.25, 0.5, 0.75], k=self._random.choice([0, 0, 1, 2])))
            for part in parts:
                self._cancel(event.head.t_ms + length_ms * part)
        elif event.boundary is not None:
            # Those that end with this very pass have gone from the list by now.
            for _ in range(self._random.choice([0, 0, 1, 3])):
                self._submit(event.head.t_ms)
            at_rest = not self._live
            await event.boundary.finish()
            if at_rest:
                return await self._submit_later(event.head.t_ms)
        return True

    async def _submit_later(self, now_ms: float) -> bool:
        if self._left == 0:
            return False
        at_ms = now_ms + self._random.randint(1, 12) * 1.25
        await self._until(at_ms)
        self._submit(at_ms)
        return True

    def _submit(self, at_ms: float) -> None:
        if self._left == 0:
            return
        self._left -= 1
        request, self._next_request = self._next_request, self._next_request + 1
        self._live.append(request)
        n_in, n_out = self._random.randint(1, 24), self._random.randint(1, 9)
        command = submit(self._handle.reserve_id(), request, n_in, n_out, rank=request % 2)
        self._handle.put(command, self._took, stamp_ms=at_ms)

    def _cancel(self, at_ms: float) -> None:
        if not self._live:
            return
        request = self._random.choice(self._live)
        command = cancel(self._handle.reserve_id(), request, rank=request % 2, discard=self._random.random() < 0.5)
        if self._by_the_clock:
            self._tasks.append(asyncio.create_task(self._send_at(command, at_ms)))
        else:
            self._handle.put(command, self._took, stamp_ms=at_ms)

    async def _send_at(self, command, at_ms: float) -> str:
        await self._until(at_ms)
        return await self._handle.send(command)

    async def _until(self, at_ms: float) -> None:
        if (ahead_ms := at_ms - self._shell.wall_ms()) > 0:
            await asyncio.sleep(ahead_ms / 1000.0)

    @staticmethod
    def _took(ok: bool, text: str) -> None:
        assert ok, text

    async def gone(self) -> None:
        await asyncio.gather(*self._tasks)


async def trade(seed: int, clock: Clock, readings: Readings, *, by_the_clock: bool = False) -> list[Taken]:
    """One life on a clock; what the machine put out."""
    recorder = Recorder()
    machine = make_machine(
        dp_size=2, timing=fixed(5.0, 2.5), num_gpu_blocks=12, max_num_seqs=3, max_num_batched_tokens=20, want=7
    )
    driver = spawn(machine, clock=clock, readings=readings, observer=recorder)
    trader = Trader(seed, driver.shell, driver.handle, by_the_clock=by_the_clock)
    trader._submit(0.0)
    while await trader.react(await driver.events.receive()):  # type: ignore[arg-type]
        pass
    await trader.gone()
    driver.handle.close()
    await driver.actor
    return [step for step in recorder.steps if step.records]


def virtual_trade(seed: int, readings: Readings, *, by_the_clock: bool = False) -> list[Taken]:
    async def main(clock: VirtualClock) -> list[Taken]:
        return await clock.until_done(trade(seed, clock, readings, by_the_clock=by_the_clock))

    return run_virtual(main)


def outputs(steps: list[Taken]) -> list[tuple[bytes, bytes]]:
    return [(step.records, step.words) for step in steps]


@pytest.mark.parametrize("seed", range(4))
def test_driver_41_nominal_on_the_virtual_clock_is_the_measured_one(seed: int) -> None:
    """Where nobody is late there is nothing between the two; commands go out at their time, or early with a stamp."""
    nominal = virtual_trade(seed, Nominal())
    assert len(nominal) > 50
    assert outputs(virtual_trade(seed, Measured(), by_the_clock=True)) == outputs(nominal)
    assert outputs(virtual_trade(seed, Nominal(), by_the_clock=True)) == outputs(nominal)


@pytest.mark.parametrize("beside", [nullcontext, busy_thread, busy_processes], ids=["alone", "thread", "processes"])
@pytest.mark.parametrize("seed", range(2))
def test_driver_41_nominal_under_load(seed: int, beside: Callable[[], AbstractContextManager[None]]) -> None:
    with beside():
        real = asyncio.run(trade(seed, MonotonicClock(), Nominal()))
    virtual = virtual_trade(seed, Nominal())
    assert first_difference(real, virtual) is None
    dtype = EventBuffer().records_array().dtype
    kinds = np.frombuffer(b"".join(step.records for step in real), dtype)["kind"]
    assert set(kinds.tolist()) >= {COMMAND, PASS_START, PASS_END, EventKind.TERMINAL, EventKind.PREEMPTION}


def test_driver_41_the_measured_clock_shows_what_the_nominal_one_hides() -> None:
    """A stall of the loop under either: where it does not show, the comparison would prove little."""

    async def stalled(clock: VirtualClock, readings: Readings) -> list[float]:
        driver = spawn(make_machine(timing=fixed(5.0, 5.0)), clock=clock, readings=readings)
        driver.handle.put(submit(driver.handle.reserve_id(), 0, 4, 4), lambda ok, text: None, stamp_ms=0.0)
        starts: list[float] = []
        while len(starts) < 4:
            await clock.settle()
            while len(driver.events):
                event = driver.events.receive_nowait()
                driver.events.done()
                if event.kind is PASS_START:
                    starts.append(event.head.t_ms)
                if event.boundary is not None:
                    await event.boundary.finish()
                await clock.settle()
            clock.stall_ms(23)
        driver.handle.close()
        await driver.actor
        return starts

    assert run_virtual(lambda clock: stalled(clock, Nominal())) == [0.0, 5.0, 10.0, 15.0]
    assert run_virtual(lambda clock: stalled(clock, Measured())) == [0.0, 18.0, 23.0, 41.0]
