"""Driver scenarios about the boundary object: who may ask what, who lets go, and what is left when the driver stops.

Over the real shell on the controllable clock. Source: driver specification, sections 7.3, 8 and 13.
"""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from mocker_replay.events import EventKind
from mocker_replay.shells.boundary import Boundary, BoundaryClosed
from mocker_replay.shells.readings import Nominal
from tests.support.machines import cancel, submit
from tests.support.scene import APPLIED, COMMAND, PASS_START, SUBMITTED, WORK, Scene, pass_times, virtual
from tests.support.virtual_loop import VirtualClock, run_virtual

DROPPED = "DriverError: the consumer dropped a pass boundary without finishing it"


@virtual
async def test_driver_25_boundary_dropped(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary()
    boundary.drop()
    boundary.drop()
    assert await scene.failed() == DROPPED


@virtual
async def test_driver_25_boundary_that_is_collected(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary()
    await clock.settle()
    assert not scene.actor.done()
    del boundary
    gc.collect()
    assert await scene.failed() == DROPPED


@virtual
async def test_driver_25_boundary_dropped_after_the_token_is_orderly(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary()
    scene.token.cancel()
    boundary.drop()
    await scene.ended()


@virtual
async def test_boundary_of_an_event_nobody_took(clock: VirtualClock) -> None:
    """With its receiver the event is dropped, and with the event its boundary."""
    scene = Scene(clock)
    scene.submit(0, 4, 3)
    await clock.advance_ms(10)
    assert scene.phase == "at_boundary"
    scene.driver.events.close()
    assert await scene.failed() == DROPPED


@virtual
async def test_boundary_in_a_block_finishes(clock: VirtualClock) -> None:
    scene = Scene(clock)
    async with await scene.first_boundary() as boundary:
        outcome = await boundary.apply(submit(scene.handle.reserve_id(), 1, 4, 1))
        assert outcome.text == SUBMITTED
    assert pass_times(await scene.events()) == [(10.0, 30.0)]
    await scene.stop()


@virtual
async def test_boundary_finished_within_its_block(clock: VirtualClock) -> None:
    scene = Scene(clock)
    async with await scene.first_boundary() as boundary:
        await boundary.finish()
    assert pass_times(await scene.events()) == [(10.0, 20.0)]
    await scene.stop()


@virtual
async def test_exception_in_a_block_drops_and_goes_on(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary()
    with pytest.raises(LookupError, match="mine"):
        async with boundary:
            raise LookupError("mine")
    assert await scene.failed() == DROPPED


@virtual
async def test_cancelled_task_in_a_block_drops(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary()

    async def own() -> None:
        async with boundary:
            await asyncio.Event().wait()

    owner = asyncio.create_task(own())
    await clock.settle()
    owner.cancel()
    assert await scene.failed() == DROPPED
    assert owner.cancelled()


@virtual
async def test_commands_in_a_row_and_their_effects(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary()
    ids = scene.handle
    first = await boundary.apply(submit(ids.reserve_id(), 1, 4, 1))
    refused = await boundary.apply(submit(ids.reserve_id(), 1, 4, 1))
    second = await boundary.apply(cancel(ids.reserve_id(), 0))
    assert [outcome.text for outcome in (first, refused, second)] == [
        SUBMITTED, "request is already active", APPLIED,
    ]  # fmt: skip
    assert [record.kind for record in second.records] == [COMMAND, EventKind.GAUGES, EventKind.TERMINAL]
    assert (refused.ok, refused.records) == (False, [])
    await scene.finish(boundary)
    assert [event.kind for event in await scene.events()] == [PASS_START], "nothing of this is published again"
    await scene.stop()


@virtual
async def test_apply_with_a_full_event_lane(clock: VirtualClock) -> None:
    """What a boundary command does goes to its owner, who could not make room while it waits."""
    scene = Scene(clock, event_capacity=1)
    boundary = await scene.first_boundary()
    scene.submit(1)
    scene.submit(2)
    outcome = await boundary.apply(submit(scene.handle.reserve_id(), 3, 4, 1))
    assert outcome.text == SUBMITTED
    await scene.stop()


@virtual
async def test_apply_returns_the_internal_work_it_forced(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary()
    scene.engine.deadlines[:] = [8.0, 9.0, 11.0]
    outcome = await boundary.apply(submit(scene.handle.reserve_id(), 1, 4, 1))
    assert [(record.kind, record.t_ms) for record in outcome.records] == [
        (WORK, 10.0), (COMMAND, 10.0), (EventKind.GAUGES, 10.0),
    ]  # fmt: skip
    assert outcome.records[0].a == 2
    await scene.stop()


@virtual
async def test_driver_32_internal_work_fails_inside_a_boundary_apply(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary()
    scene.engine.deadlines[:] = [5.0]
    scene.engine.fail_internal = True
    with pytest.raises(BoundaryClosed, match=r"^stopped while applying$"):
        await boundary.apply(submit(scene.handle.reserve_id(), 1, 4, 1))
    assert await scene.failed() == "DriverError: EngineError: internal work failed on order"


@virtual
async def test_boundary_after_the_driver_stopped(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary()
    await scene.stop()
    with pytest.raises(BoundaryClosed, match=r"^boundary closed$"):
        await boundary.apply(submit(scene.handle.reserve_id(), 1))
    with pytest.raises(BoundaryClosed, match=r"^boundary closed$"):
        await boundary.finish()
    boundary.drop()


@pytest.mark.parametrize("asked", ["apply", "finish"])
@virtual
async def test_request_that_was_taken_and_never_answered(clock: VirtualClock, asked: str) -> None:
    """The token beats a boundary request, so that one which stands there is not answered any more."""
    scene = Scene(clock)
    boundary = await scene.first_boundary()
    request = boundary.finish() if asked == "finish" else boundary.apply(submit(scene.handle.reserve_id(), 1))
    asking = asyncio.create_task(request)
    await asyncio.sleep(0)
    scene.token.cancel()
    await scene.ended()
    assert str(asking.exception()) == "engine stopped before acknowledging"
    assert scene.recorder.stimuli[-1] == "cancel"


@virtual
async def test_finishing_twice_fails(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary()
    await scene.finish(boundary)
    with pytest.raises(BoundaryClosed, match=r"^boundary closed$"):
        await boundary.finish()
    await scene.stop()


@virtual
async def test_owner_that_left_a_request_may_ask_another(clock: VirtualClock) -> None:
    """Requests of one boundary are served in the order they were made."""
    scene = Scene(clock)
    boundary = await scene.first_boundary()
    left = asyncio.create_task(boundary.apply(submit(scene.handle.reserve_id(), 1, 4, 1)))
    finishing = asyncio.create_task(boundary.finish())
    behind = asyncio.create_task(boundary.apply(submit(scene.handle.reserve_id(), 2, 4, 1)))
    await asyncio.sleep(0)
    left.cancel()
    await finishing
    assert left.cancelled()
    with pytest.raises(BoundaryClosed, match=r"^boundary closed$"):
        await behind
    (started,) = await scene.events()
    assert [record.request for record in started.of(EventKind.ADMISSION)] == [1], "the first was applied all the same"
    await scene.stop()


@virtual
async def test_owner_that_leaves_a_finish_has_finished(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary()
    finishing = asyncio.create_task(boundary.finish())
    await asyncio.sleep(0)
    finishing.cancel()
    del boundary
    gc.collect()
    assert pass_times(await scene.events()) == [(10.0, 20.0)]
    assert finishing.cancelled()
    await scene.stop()


def test_boundary_collected_in_another_thread() -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        held = [await scene.first_boundary()]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert await scene.failed() == DROPPED

    run_virtual(main, outside_s=60.0)


def test_boundary_and_handle_collected_after_the_loop_was_closed() -> None:
    kept: list[object] = []

    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        kept.extend([await scene.first_boundary(), scene.handle.clone(), scene.driver.events])
        scene.shell.commands.close()
        scene.actor.cancel()
        await clock.settle()
        assert scene.actor.cancelled()

    run_virtual(main)
    kept.clear()
    gc.collect()


@virtual
async def test_nominal_clock_waits_for_the_consumer_but_not_at_its_boundary(clock: VirtualClock) -> None:
    """Nothing is taken before its consumer has dealt with what was published; asking is a way of saying so."""
    scene = Scene(clock, readings=Nominal())
    scene.submit(0, 4, 3)
    seen: list[EventKind] = []
    boundaries: list[Boundary] = []

    async def consume() -> None:
        while (event := await scene.driver.events.receive()) is not None:
            seen.append(event.kind)
            if event.boundary is not None:
                boundaries.append(event.boundary)
                outcome = await event.boundary.apply(cancel(scene.handle.reserve_id(), 77))
                assert outcome.ok
                await event.boundary.finish()

    consumer = asyncio.create_task(consume())
    await clock.advance_ms(30)
    assert len(boundaries) == 3
    await scene.stop()
    await consumer


@virtual
async def test_nominal_clock_hears_of_a_dropped_boundary(clock: VirtualClock) -> None:
    scene = Scene(clock, readings=Nominal())

    async def consume() -> None:
        while (event := await scene.driver.events.receive()) is not None:
            if event.boundary is not None:
                event.boundary.drop()
                return

    consumer = asyncio.create_task(consume())
    scene.submit(0, 4, 3)
    await clock.advance_ms(10)
    assert consumer.done()
    assert await scene.failed() == DROPPED
