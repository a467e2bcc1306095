"""Driver scenarios about engines that misbehave: no effect for ever, nothing executed, failures of every kind.

Over the real shell on the controllable clock. Source: driver specification, section 13.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mocker_replay._core.timing import TimingModel
from tests.support.scene import COMMAND, PASS_START, SUBMITTED, Scene, pass_times, virtual
from tests.support.virtual_loop import VirtualClock


async def finish_all(scene: Scene) -> int:
    """A consumer that is always there; the passes it saw completed."""
    passes = 0
    while (event := await scene.driver.events.receive()) is not None:
        if event.boundary is not None:
            passes += 1
            await event.boundary.finish()
    return passes


@virtual
async def test_driver_46_passes_without_effect_for_ever(clock: VirtualClock) -> None:
    scene = Scene(clock, 0.0, num_gpu_blocks=2_000)
    scene.engine.deny_effects = True
    consumer = asyncio.create_task(finish_all(scene))
    scene.submit(0, 4, 5_000)
    error = await scene.failed()
    assert error.startswith("DriverError: LivelockError: worker 0: 1024 passes without effect at 0.0 ms")
    assert await consumer == 1024


@virtual
async def test_driver_46_passes_of_no_length_with_effects_are_no_livelock(clock: VirtualClock) -> None:
    scene = Scene(clock, 0.0, num_gpu_blocks=2_000)
    consumer = asyncio.create_task(finish_all(scene))
    scene.submit(0, 4, 2_000)
    await clock.settle()
    assert scene.phase == "idle"
    await scene.stop()
    assert await consumer == 2_000


@virtual
async def test_driver_47_ready_but_nothing_executed_yields(clock: VirtualClock) -> None:
    scene = Scene(clock)
    scene.engine.refuse_passes = 2_000
    turns = 0

    async def stand_by() -> None:
        nonlocal turns
        while scene.engine.refuse_passes:
            turns += 1
            await asyncio.sleep(0)

    bystander = asyncio.create_task(stand_by())
    call = scene.submit(0)
    assert pass_times(await scene.events()) == [(0.0, 10.0)]
    await bystander
    assert call.answer == SUBMITTED
    assert scene.recorder.stimuli.count("yielded") == 2_000
    assert turns >= 2_000
    await scene.stop()


@virtual
async def test_driver_47_an_engine_that_never_executes_can_be_stopped(clock: VirtualClock) -> None:
    scene = Scene(clock)
    scene.engine.refuse_passes = 2**31 - 1
    scene.submit(0)
    await clock.turns(100)
    assert not scene.actor.done()
    await scene.stop()


class Fails:
    """A timing model of a user's that raises at its n-th question."""

    def __init__(self, num_good: int) -> None:
        self.left = num_good

    def prefill(self, *args: int) -> float:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("on order")
        return 10.0

    decode = prefill


async def failing(clock: VirtualClock, num_good: int, **settings: Any) -> Scene:
    scene = Scene(clock, timing=TimingModel("callback", callback=Fails(num_good)), **settings)
    scene.submit(0, 4, 5)
    await clock.settle()
    return scene


@virtual
async def test_driver_48_failing_pass_is_named(clock: VirtualClock) -> None:
    scene = await failing(clock, 0)
    assert await scene.failed() == "DriverError: RuntimeError: on order"
    assert [event.kind for event in await scene.events()] == [COMMAND], "what was published before can be read"
    assert scene.engine.poisoned


@virtual
async def test_driver_48_failing_pass_after_a_good_one(clock: VirtualClock) -> None:
    scene = await failing(clock, 1)
    queued = scene.submit(1)
    await clock.advance_ms(10)
    await scene.finish(await scene.completed())
    assert await scene.failed() == "DriverError: RuntimeError: on order"
    assert queued.answer == SUBMITTED, "it was applied before the pass that failed"


@virtual
async def test_driver_48_failing_completion_is_named(clock: VirtualClock) -> None:
    scene = Scene(clock)
    scene.submit(0, 4, 3)
    await scene.events()
    deferred = scene.submit(1)
    await clock.settle()
    scene.engine.fail_completion = True
    await clock.advance_ms(10)
    assert await scene.failed() == "DriverError: EngineError: completion failed on order"
    assert deferred.answer == "CommandFailed: stopped before acknowledging"
    assert await scene.events() == []


class Broken(Exception):
    """What an observer may raise."""


@pytest.mark.parametrize("num_steps", [0, 1, 4, 7])
@virtual
async def test_an_observer_that_fails_leaves_nobody_waiting(clock: VirtualClock, num_steps: int) -> None:
    scene = Scene(clock)
    stepped = scene.recorder.stepped

    def broken(*args: Any) -> None:
        if len(scene.recorder.steps) == num_steps:
            raise Broken
        stepped(*args)

    scene.recorder.stepped = broken  # type: ignore[method-assign]
    call = scene.submit(0, 4, 3)
    await clock.advance_ms(10)
    assert await scene.failed() == "Broken: "
    assert not call.waits
    kinds = [event.kind for event in await scene.events()]
    assert kinds == [COMMAND, PASS_START][: len(kinds)]
