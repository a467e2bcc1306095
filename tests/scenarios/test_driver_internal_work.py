"""Driver scenarios about internal work: its time, its order among commands, and what waits for it.

Today's engines have none; a scripted one stands in. Over the real shell on the controllable clock. Source: driver
specification, sections 6.3, 6.6, 7.1 and 13.
"""

from __future__ import annotations

import pytest

from mocker_replay.events import EventKind
from tests.support.scene import COMMAND, PASS_END, PASS_START, SUBMITTED, WORK, Scene, of, virtual
from tests.support.virtual_loop import VirtualClock


async def idle(clock: VirtualClock, *deadlines_ms: float) -> Scene:
    """An idle driver whose engine has work due at these times."""
    scene = Scene(clock)
    scene.engine.deadlines[:] = deadlines_ms
    await clock.settle()
    assert scene.phase == "idle"
    return scene


@virtual
async def test_idle_deadlines_fire_at_their_times(clock: VirtualClock) -> None:
    scene = await idle(clock, 5.0, 8.0, 8.0)
    await clock.advance_ms(4.999_999)
    assert await scene.story() == []
    await clock.advance_ms(20)
    events = await scene.events()
    assert [(event.kind, event.head.t_ms, event.head.a) for event in events] == [(WORK, 5.0, 1), (WORK, 8.0, 2)]
    await scene.stop()


@virtual
async def test_idle_deadlines_that_came_during_a_stall_are_done_at_once(clock: VirtualClock) -> None:
    scene = await idle(clock, 5.0, 8.0, 40.0)
    clock.stall_ms(30)
    assert await scene.story() == [(WORK, 30.0)]
    await clock.advance_ms(10)
    assert await scene.story() == [(WORK, 40.0)]
    await scene.stop()


@virtual
async def test_driver_29_internal_work_between_idle_commands(clock: VirtualClock) -> None:
    """Two commands are there when the work is due: it comes before the first one and is not done twice."""
    scene = await idle(clock, 5.0)
    clock.stall_ms(10)
    calls = scene.submit(0), scene.submit(1)
    assert (await scene.story())[:3] == [(WORK, 10.0), (COMMAND, 10.0), (COMMAND, 10.0)]
    assert [call.answer for call in calls] == [SUBMITTED, SUBMITTED]
    await scene.stop()


@virtual
async def test_driver_30_idle_command_beats_an_expired_deadline_and_forces_it(clock: VirtualClock) -> None:
    scene = await idle(clock, 5.0, 7.0)
    taken = len(scene.recorder.steps)
    clock.stall_ms(10)
    scene.submit(0)
    events = await scene.events()
    assert scene.recorder.stimuli[taken] == "command_item"
    assert "internal_timer" not in scene.recorder.stimuli
    assert [(event.kind, event.head.t_ms) for event in events] == [(WORK, 10.0), (COMMAND, 10.0), (PASS_START, 10.0)]
    assert events[0].head.a == 2, "both deadlines in one round"
    await scene.stop()


@virtual
async def test_driver_31_rejected_idle_command_with_internal_work_due(clock: VirtualClock) -> None:
    scene = await idle(clock, 5.0)
    clock.stall_ms(10)
    call = scene.submit(0, rank=7)
    assert await scene.story() == [(WORK, 10.0)]
    assert call.answer == "CommandFailed: attention-DP rank is out of range"
    good = scene.submit(0)
    assert await scene.story() == [(COMMAND, 10.0), (PASS_START, 10.0)]
    assert good.answer == SUBMITTED
    await scene.stop()


@virtual
async def test_driver_31_the_error_waits_for_the_event_too(clock: VirtualClock) -> None:
    scene = Scene(clock, event_capacity=1)
    scene.engine.deadlines[:] = [1.0, 5.0]
    await clock.advance_ms(1)
    clock.stall_ms(9)
    call = scene.submit(0, rank=7)
    await clock.settle()
    assert call.waits, "the event of the forced work has no place yet"
    assert await scene.story() == [(WORK, 1.0), (WORK, 10.0)]
    assert not call.waits
    await scene.stop()


@pytest.mark.parametrize("deferred", [False, True])
@virtual
async def test_internal_work_that_fails_before_a_command(clock: VirtualClock, deferred: bool) -> None:
    """The driver stops with that error, and the caller whose command forced the work hears of it."""
    scene = Scene(clock)
    await clock.settle()
    scene.engine.deadlines[:] = [5.0]
    scene.engine.fail_internal = True
    if deferred:
        scene.submit(0, 4, 3)
        await clock.settle()
        call = scene.submit(1)
        await clock.advance_ms(10)
        boundary = await scene.completed()
        finishing = scene.finish(boundary)
        await finishing
    else:
        clock.stall_ms(10)
        call = scene.submit(1)
    assert await scene.failed() == "DriverError: EngineError: internal work failed on order"
    assert call.answer == "CommandFailed: stopped before acknowledging"


@virtual
async def test_internal_work_that_fails_by_itself(clock: VirtualClock) -> None:
    scene = await idle(clock, 5.0)
    scene.engine.fail_internal = True
    await clock.advance_ms(5)
    assert await scene.failed() == "DriverError: EngineError: internal work failed on order"


@virtual
async def test_internal_work_is_hidden_in_mid_pass_and_appears_right_after(clock: VirtualClock) -> None:
    scene = Scene(clock)
    scene.submit(0, 4, 3)
    await scene.events()
    scene.engine.deadlines[:] = [3.0]
    await clock.advance_ms(9)
    assert await scene.story() == []
    await clock.advance_ms(1)
    await scene.finish(await scene.completed())
    # Engine time stands at the end of the pass, beyond the deadline.
    assert await scene.story() == [(WORK, 10.0), (PASS_START, 10.0)]
    await scene.stop()


@virtual
async def test_internal_work_of_an_active_sequence_keeps_the_modelled_time(clock: VirtualClock) -> None:
    """Late by 4 ms the work is done at its deadline; the carried deadline is not lost over it."""
    scene = Scene(clock)
    boundary = await scene.first_boundary(3)
    scene.engine.deadlines[:] = [12.0]
    await clock.advance_ms(4)
    await scene.finish(boundary)
    assert await scene.story() == [(WORK, 12.0), (PASS_START, 12.0)]
    await scene.stop()


@virtual
async def test_event_order_of_one_life(clock: VirtualClock) -> None:
    """Everything a consumer can see is in the order of section 5, and each acknowledgement comes after its event."""
    scene = Scene(clock)
    scene.engine.deadlines[:] = [2.0]
    await clock.advance_ms(2)
    first = scene.submit(0, 4, 2)
    await clock.settle()
    deferred = scene.submit(1, 4, 1)
    await clock.advance_ms(5)
    cancellation = scene.cancel(0)
    await clock.advance_ms(5)
    events = await scene.events()
    assert [(event.kind, event.head.t_ms) for event in events] == [
        (WORK, 2.0), (COMMAND, 2.0), (PASS_START, 2.0), (COMMAND, 2.0), (PASS_END, 12.0),
    ]  # fmt: skip
    assert [event.command_id for event in events if event.kind is COMMAND] == [
        first.command_id, cancellation.command_id,
    ]  # fmt: skip
    assert events[-1].boundary is not None
    await scene.finish(events[-1].boundary)
    events = await scene.events()
    assert [(event.kind, event.head.t_ms) for event in events] == [(COMMAND, 12.0), (PASS_START, 12.0)]
    assert deferred.answer == SUBMITTED
    assert [record.request for record in of(events, EventKind.ADMISSION)] == [1]
    await scene.stop()
