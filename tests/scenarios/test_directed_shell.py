"""A shell whose instants are told from outside: it runs as far as it can at one, and waits for nobody but its consumer.

Source: replay through the driver; the nominal clock of a replay in real time.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

import pytest

from mocker_replay.shells.boundary import BoundaryClosed
from mocker_replay.shells.readings import Directed
from tests.scenarios.test_driver_cancelled_tasks import Stage, assert_nothing_is_left, at_every_turn
from tests.support.machines import submit
from tests.support.scene import COMMAND, PASS_END, PASS_START, Scene, virtual
from tests.support.virtual_loop import VirtualClock, run_virtual


async def consume(scene: Scene, seen: list[tuple[object, float]]) -> None:
    """Deals with each event in some turns of its own, and finishes every boundary."""
    while (event := await scene.driver.events.receive()) is not None:
        await scene.clock.turns(3)
        seen.append((event.kind, event.head.t_ms))
        if event.boundary is not None:
            with contextlib.suppress(BoundaryClosed):  # it is being stopped
                await event.boundary.finish()


def directed(
    clock: VirtualClock, pass_ms: float = 10.0
) -> tuple[Scene, asyncio.Task[None], list[tuple[object, float]]]:
    scene = Scene(clock, pass_ms, readings=Directed())
    seen: list[tuple[object, float]] = []
    return scene, asyncio.create_task(consume(scene, seen), name="consumer"), seen


@virtual
async def test_nothing_happens_unless_it_is_moved(clock: VirtualClock) -> None:
    scene, consumer, seen = directed(clock)
    scene.submit(0, 4, 2)
    await clock.advance_ms(100)
    assert scene.recorder.steps == []
    await scene.shell.move(3.0, hold_boundary=False)
    assert seen == [(COMMAND, 3.0), (PASS_START, 3.0)]
    await clock.advance_ms(100)
    await scene.shell.move(12.0, hold_boundary=False)
    assert len(seen) == 2, "the pass ends at 13"
    await scene.shell.move(13.0, hold_boundary=False)
    assert seen[2:] == [(PASS_END, 13.0), (PASS_START, 13.0)]
    await scene.stop()
    await consumer


@virtual
async def test_a_held_start_has_commands_applied_one_by_one(clock: VirtualClock) -> None:
    scene, consumer, seen = directed(clock)
    for request in (0, 1):
        scene.submit(request, 4, 1)
        await clock.settle()
        await scene.shell.move(3.0, hold_boundary=False, hold_start=True)
        assert scene.phase == "snapshot"
    assert seen == [(COMMAND, 3.0), (COMMAND, 3.0)]
    await scene.shell.move(3.0, hold_boundary=False)
    assert seen[2:] == [(PASS_START, 3.0)]
    await scene.shell.move(13.0, hold_boundary=True, hold_start=True)
    assert (seen[-1], scene.phase) == ((PASS_END, 13.0), "at_boundary")
    scene.submit(2, 4, 1)
    await clock.settle()
    await scene.shell.move(13.0, hold_boundary=False, hold_start=True)
    assert (seen[-1], scene.phase) == ((COMMAND, 13.0), "snapshot"), "the boundary is finished, no pass started"
    await scene.stop()
    await consumer


@virtual
async def test_a_held_boundary_stays_open_until_it_is_let_go(clock: VirtualClock) -> None:
    scene, consumer, seen = directed(clock)
    scene.submit(0, 4, 2)
    await clock.settle()
    await scene.shell.move(0.0, hold_boundary=True)
    await scene.shell.move(10.0, hold_boundary=True)
    assert seen[-1] == (PASS_END, 10.0)
    assert scene.phase == "at_boundary"
    scene.submit(1, 4, 1)
    await clock.settle()
    await scene.shell.move(10.0, hold_boundary=False)
    assert seen[3:] == [(COMMAND, 10.0), (PASS_START, 10.0)]
    await scene.stop()
    await consumer


@virtual
async def test_move_returns_when_the_consumer_has_dealt_with_everything(clock: VirtualClock) -> None:
    scene = Scene(clock, readings=Directed())
    scene.submit(0, 4, 1)
    await clock.settle()
    moving = asyncio.create_task(scene.shell.move(0.0, hold_boundary=False))
    await clock.settle()
    assert not moving.done()
    events = scene.driver.events
    assert (await events.receive()) is not None
    await clock.settle()
    assert not moving.done(), "taken is not dealt with"
    assert (await events.receive()) is not None
    events.done()
    await moving
    await scene.stop()


@virtual
async def test_moving_before_the_first_turn_of_the_driver_s_task(clock: VirtualClock) -> None:
    """Two tasks must not drive one machine."""
    scene, consumer, seen = directed(clock)
    replies: list[str] = []
    scene.handle.put(submit(scene.handle.reserve_id(), 0, 4, 3), lambda ok, text: replies.append(text))
    for now_ms in (0.0, 10.0, 20.0, 30.0):
        await scene.shell.move(now_ms, hold_boundary=False)
        assert clock.loop.next_deadline_ns() is None, "it waits for nobody's clock"
    assert replies == ["submitted"]
    assert [kind for kind, _ in seen].count(PASS_END) == 3
    await clock.advance_ms(1_000)
    await scene.stop()
    await consumer


async def moved_life(stage: Stage, pass_ms: float) -> None:
    """Moves from instant to instant until the token fires in the middle of one."""
    clock = stage.clock
    scene, consumer, _ = directed(clock, pass_ms)
    stage.tasks["actor"] = scene.actor
    stage.tasks["owner"] = asyncio.create_task(cancel_later(scene), name="owner")

    async def move_all() -> None:
        for instant in range(8):
            if instant == 2:
                for request in range(3):
                    scene.submit(request, 4, 40)
                await clock.turns(2)
            await scene.shell.move(5.0 * instant, hold_boundary=instant % 3 == 0)

    stage.tasks["mover"] = mover = asyncio.create_task(move_all(), name="mover")
    tasks = [scene.actor, consumer, mover, stage.tasks["owner"]]
    await asyncio.wait([mover])
    scene.token.cancel()
    await asyncio.wait([*tasks, *(call.task for call in scene.calls)])
    consumer.result()
    if not mover.cancelled():
        mover.result()
    if not scene.actor.cancelled():
        scene.actor.result()
    assert_nothing_is_left(scene)


async def cancel_later(scene: Scene) -> None:
    await scene.clock.turns(160)
    scene.token.cancel()


@pytest.mark.parametrize("pass_ms", [5.0, 0.0])
@pytest.mark.parametrize("victim", ["actor", "mover"])
def test_tasks_cancelled_in_every_turn(victim: str, pass_ms: float) -> None:
    async def story(stage: Stage) -> None:
        await moved_life(stage, pass_ms)

    assert at_every_turn(story, victim) > 20


def test_the_token_fires_in_every_turn_of_a_move() -> None:
    """Passes of no length: the driver's own task and the mover take turns, and the end is found all the same."""

    async def story(clock: VirtualClock, num_turns: int) -> None:
        scene, consumer, _ = directed(clock, 0.0)
        scene.submit(0, 4, 12)
        await clock.turns(1)
        clock.loop.in_turn(clock.loop.num_turns + num_turns + 1, scene.token.cancel)
        await scene.shell.move(0.0, hold_boundary=False)
        scene.token.cancel()
        await scene.ended()
        await consumer

    for num_turns in range(150):
        run_virtual(partial(story, num_turns=num_turns), collect=False)
