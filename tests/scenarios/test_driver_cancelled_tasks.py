"""Tasks around a driver cancelled at every point where they can be: in each turn of the loop from first to last.

Enumerated, not sampled: a story is played once for each turn it has, and disturbed at the start of that turn. Source:
driver specification, sections 7.4, 8, 9 and 11.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from mocker_replay.shells.boundary import Boundary, BoundaryClosed
from tests.support.machines import submit
from tests.support.recording import first_difference, run_again
from tests.support.scene import COMMAND, PASS_START, Call, Scene, pass_times
from tests.support.virtual_loop import VirtualClock, run_virtual


class Stage:
    """The tasks of one performance by name, and the one that is to be cancelled in a certain turn."""

    def __init__(self, clock: VirtualClock, victim: str, num_turns: int) -> None:
        self.clock = clock
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.disturbed = False
        self._victim = victim
        self._last_turn = clock.loop.num_turns + num_turns + 1
        clock.loop.in_turn(self._last_turn, self._disturb)

    @property
    def over_before(self) -> bool:
        """The story was over before the disturbance was due."""
        return self.clock.loop.num_turns < self._last_turn

    def _disturb(self) -> None:
        task = self.tasks.get(self._victim)
        if task is not None and not task.done():
            self.disturbed = task.cancel()


Story = Callable[[Stage], Coroutine[Any, Any, None]]


def at_every_turn(story: Story, victim: str) -> int:
    """Play a story with its victim cancelled in turn 0, 1, 2, ... to its end; how often that met the victim alive."""
    num_disturbed = 0
    for num_turns in range(10_000):

        async def main(clock: VirtualClock, num_turns: int = num_turns) -> Stage:
            stage = Stage(clock, victim, num_turns)
            await story(stage)
            return stage

        try:
            stage = run_virtual(main, collect=False)
        except BaseException as error:
            error.add_note(f"disturbed in turn {num_turns}")
            raise
        if stage.over_before:
            return num_disturbed
        num_disturbed += stage.disturbed
    raise AssertionError("the story never ends")


def assert_nothing_is_left(scene: Scene, *, replay: bool = True) -> None:
    """The driver is gone: everybody was answered, nothing is set, nothing can be sent."""
    shell = scene.shell
    assert shell.stopped
    assert all(call.answer for call in scene.calls)
    assert scene.clock.loop.next_deadline_ns() is None, "a timer is set"
    for timer in (shell._pass_timer, shell._internal_timer):
        with pytest.raises(RuntimeError, match="closed"):
            timer.set(1e9)
    assert shell._replies == {}
    assert shell.token._callbacks == {}
    assert shell.cancels.closed
    assert shell.commands.closed
    assert shell.events.closed
    if replay:
        again = run_again(scene.fresh_machine(), scene.recorder.steps)
        assert first_difference(again.steps, scene.recorder.steps) is None


async def consume(scene: Scene, stage: Stage) -> None:
    """Reads everything, with a command through each of the first boundaries."""
    number = 0
    try:
        while (event := await scene.driver.events.receive()) is not None:
            if event.boundary is not None:
                number += 1
                await own(scene, stage, event.boundary, number)
            del event
    finally:
        scene.driver.events.close()


async def own(scene: Scene, stage: Stage, boundary: Boundary, number: int) -> None:
    """`apply` and `finish` are tasks of their own; whoever awaits them goes on if only they are cancelled."""
    try:
        if number < 6:  # each makes another pass, and passes may take no time
            command = submit(scene.handle.reserve_id(), 100 + number, 4, 1)
            await in_task(stage, f"apply {number}", boundary.apply(command))
        await in_task(stage, f"finish {number}", boundary.finish())
        if boundary._finalizer.alive:  # its task was cancelled before it began: nobody has asked
            await boundary.finish()
    except BoundaryClosed:
        return
    except asyncio.CancelledError:
        boundary.drop()
        raise


async def in_task(stage: Stage, name: str, request: Coroutine[Any, Any, object]) -> None:
    """Run a request as a task that may be cancelled by itself."""
    task = stage.tasks[name] = asyncio.create_task(request, name=name)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def whole_life(stage: Stage, pass_ms: float = 10.0) -> None:
    """Every phase and every wait of a driver: internal work, full lanes both ways, a deferred command, boundaries."""
    clock = stage.clock
    scene = Scene(clock, pass_ms, control_capacity=1, event_capacity=1, num_gpu_blocks=64, deadlines_ms=[2.0, 55.0])
    stage.tasks["actor"] = scene.actor
    stage.tasks["consumer"] = consumer = asyncio.create_task(consume(scene, stage), name="consumer")

    def call(made: Call) -> None:
        stage.tasks[f"caller {len(scene.calls) - 1}"] = made.task

    await clock.advance_ms(5)
    for request in range(4):
        call(scene.submit(request, 4, 2))
    await clock.advance_ms(3)
    for request in (0, 1, 77, 2):
        call(scene.cancel(request))
    await clock.advance_ms(60)
    call(scene.submit(10, 4, 30))
    await clock.advance_ms(4)
    for request in (11, 12):
        call(scene.submit(request))
    await clock.settle()
    scene.token.cancel()
    await clock.until_done(asyncio.wait([scene.actor, consumer, *(made.task for made in scene.calls)]))
    if consumer.cancelled():
        assert stage.disturbed
    else:
        consumer.result()
    if not scene.actor.cancelled() and (error := scene.actor.exception()) is not None:
        # A consumer that goes away leaves its boundary or its lane.
        assert stage.tasks["consumer"].cancelled(), error
    assert_nothing_is_left(scene)


def test_the_story_has_everything() -> None:
    seen: list[str] = []

    async def main(clock: VirtualClock) -> None:
        stage = Stage(clock, "nobody", 0)
        await whole_life(stage)
        seen.extend(stage.tasks)

    run_virtual(main)
    assert {"actor", "consumer", "apply 1", "finish 1", "caller 0", "caller 10"} <= set(seen)


@pytest.mark.parametrize("pass_ms", [10.0, 0.0])
def test_the_driver_s_task_cancelled_in_every_turn(pass_ms: float) -> None:
    assert at_every_turn(partial(whole_life, pass_ms=pass_ms), "actor") > 100


def test_the_consumer_s_task_cancelled_in_every_turn() -> None:
    assert at_every_turn(whole_life, "consumer") > 100


@pytest.mark.parametrize("victim", [f"caller {number}" for number in (0, 1, 3, 4, 7, 8, 10)])
def test_a_caller_cancelled_in_every_turn(victim: str) -> None:
    assert at_every_turn(whole_life, victim) >= 2


@pytest.mark.parametrize("victim", ["apply 1", "finish 1", "apply 2", "finish 2"])
def test_the_owner_of_a_boundary_cancelled_in_every_turn(victim: str) -> None:
    """A request that was made is served; the driver goes on."""
    assert at_every_turn(whole_life, victim) >= 2


def test_a_driver_cancelled_before_its_first_turn() -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        calls = scene.submit(0), scene.cancel(0)
        scene.actor.cancel()
        await clock.settle()
        assert scene.actor.cancelled()
        assert {call.answer for call in calls} <= {
            "CommandFailed: engine stopped before acknowledging", "ControlLaneClosed: control lane closed",
        }  # fmt: skip
        assert scene.token.cancelled
        assert await scene.driver.events.receive() is None
        assert_nothing_is_left(scene, replay=False)

    run_virtual(main)


def test_a_cancelled_driver_publishes_what_has_a_place_and_stops_orderly() -> None:
    """The token is delivered before the task ends: the machine comes to its own end, and the recording has it."""

    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        scene.submit(0, 4, 3)
        await clock.settle()
        scene.actor.cancel()
        await clock.settle()
        assert scene.actor.cancelled()
        assert scene.machine.phase_name == "stopped"
        assert scene.recorder.stimuli[-1] == "cancel"
        events = await scene.events()
        assert [event.kind for event in events] == [COMMAND, PASS_START]
        assert pass_times(events) == [(0.0, 10.0)]

    run_virtual(main)


def test_a_caller_cancelled_in_the_turn_of_its_answer() -> None:
    """Whichever comes first, the command was applied once and nobody is left waiting."""
    outcomes: set[str] = set()

    async def story(stage: Stage) -> None:
        scene = Scene(stage.clock)
        call = scene.submit(0, 4, 2)
        stage.tasks["caller"] = call.task
        await stage.clock.settle()
        outcomes.add(call.answer)
        applied = [event for event in await scene.events() if event.kind is COMMAND]
        assert len(applied) == (1 if scene.recorder.stimuli.count("command_item") else 0)
        await scene.stop()

    assert at_every_turn(story, "caller") >= 3
    assert outcomes == {"cancelled", "submitted"}
