"""Driver scenarios about lanes: order, back-pressure on both sides, closed lanes, and who is told what at the end.

Over the real shell on the controllable clock. Source: driver specification, sections 4, 7, 9, 12 and 13.
"""

from __future__ import annotations

import asyncio

import pytest

from mocker_replay.errors import ConfigError
from mocker_replay.events import EventKind
from mocker_replay.shells.handle import spawn
from mocker_replay.shells.published import Published
from tests.support.machines import cancel, make_machine, submit
from tests.support.scene import APPLIED, COMMAND, NOOP, PASS_END, PASS_START, SUBMITTED, Call, Scene, virtual
from tests.support.virtual_loop import VirtualClock

STOPPED = "CommandFailed: engine stopped before acknowledging"


def commands_in(events: list[Published]) -> list[int]:
    """Ids of the commands applied, in order."""
    return [event.command_id for event in events if event.kind is COMMAND]


async def in_pass(clock: VirtualClock, **settings) -> Scene:
    """A pass from 0 to 10 ms is under way; request 0 has two more to go."""
    scene = Scene(clock, **settings)
    scene.submit(0, 4, 3)
    await scene.events()
    assert scene.phase == "in_pass"
    return scene


# -- the event lane -----------------------------------------------------------------------------------


@virtual
async def test_driver_09_cancel_while_blocked_publishing(clock: VirtualClock) -> None:
    scene = Scene(clock, 100.0, event_capacity=1)
    call = scene.submit(0)
    await clock.settle()
    assert call.answer == SUBMITTED
    assert not scene.actor.done(), "blocked on the start of the pass"
    scene.token.cancel()
    await scene.ended()
    assert (await scene.receive()).kind is COMMAND
    assert await scene.driver.events.receive() is None


@virtual
async def test_driver_10_closed_event_lane(clock: VirtualClock) -> None:
    scene = Scene(clock)
    scene.driver.events.close()
    call = scene.submit(0)
    assert await scene.failed() == "DriverError: the event lane has no reader"
    assert call.answer == "CommandFailed: stopped while publishing"


@virtual
async def test_driver_10_a_receiver_that_goes_away_closes_its_lane(clock: VirtualClock) -> None:
    scene = Scene(clock, event_capacity=1)
    scene.submit(0)
    await clock.settle()
    assert not scene.actor.done()
    scene.driver = scene.driver._replace(events=None)  # type: ignore[arg-type]
    assert await scene.failed() == "DriverError: the event lane has no reader"


@pytest.mark.parametrize("token_first", [True, False])
@virtual
async def test_driver_10_closed_event_lane_and_token_are_orderly(clock: VirtualClock, token_first: bool) -> None:
    """Both at one instant, in mid-publication: the driver was to stop, so nobody has to read what it says."""
    scene = Scene(clock, event_capacity=1)
    scene.submit(0)
    await clock.settle()
    for act in (scene.token.cancel, scene.driver.events.close)[:: 1 if token_first else -1]:
        act()
    await scene.ended()


@virtual
async def test_driver_39_space_and_cancel_at_the_same_instant(clock: VirtualClock) -> None:
    scene = Scene(clock, event_capacity=1)
    scene.submit(0)
    await clock.settle()
    assert scene.driver.events.receive_nowait().kind is COMMAND  # a place appears ...
    scene.token.cancel()  # ... and nothing ran in between
    await scene.ended()
    assert scene.recorder.stimuli[-2:] == ["published", "cancel"]
    assert [event.kind for event in await scene.events()] == [PASS_START]


@virtual
async def test_acknowledged_means_on_the_event_lane(clock: VirtualClock) -> None:
    """The second command is applied as soon as the first is published, and acknowledged only with a place."""
    scene = Scene(clock, event_capacity=1)
    first, second = scene.submit(0), scene.submit(1)
    await clock.settle()
    assert (first.answer, second.waits) == (SUBMITTED, True)
    assert (await scene.receive()).command_id == first.command_id
    assert second.answer == SUBMITTED
    await scene.stop()


# -- the control lanes --------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["control_capacity", "event_capacity"])
@virtual
async def test_driver_23_capacity_zero(clock: VirtualClock, field: str) -> None:
    num_tasks = len(asyncio.all_tasks())
    with pytest.raises(ConfigError, match=f"^{field}: must be at least 1 \\(got 0\\)$"):
        spawn(make_machine(), clock=clock, **{field: 0})
    assert len(asyncio.all_tasks()) == num_tasks


@virtual
async def test_driver_26_one_command_is_deferred_a_pass_and_the_lane_is_read_no_further(clock: VirtualClock) -> None:
    scene = await in_pass(clock)
    calls = [scene.submit(request) for request in (1, 2)]
    await clock.settle()
    assert len(scene.shell.commands) == 1, "the first is deferred, the second stays on the lane"
    assert [call.waits for call in calls] == [True, True]
    await clock.advance_ms(10)
    ended = await scene.receive()
    assert ended.boundary is not None
    assert [call.waits for call in calls] == [True, True]
    await scene.finish(ended.boundary)
    assert commands_in(await scene.events()) == [call.command_id for call in calls]
    assert [call.answer for call in calls] == [SUBMITTED, SUBMITTED]
    again = [scene.submit(request) for request in (3, 4)]
    await clock.settle()
    assert len(scene.shell.commands) == 1, "each pass may defer one"
    await scene.stop()
    assert [call.answer for call in again] == ["CommandFailed: stopped before acknowledging", STOPPED]


@virtual
async def test_driver_27_post_pass_order(clock: VirtualClock) -> None:
    scene = await in_pass(clock)
    deferred = scene.submit(1)
    await clock.advance_ms(10)
    boundary = await scene.completed()
    queued, cancellation = scene.submit(2), scene.cancel(0)
    await scene.finish(boundary)
    assert commands_in(await scene.events()) == [cancellation.command_id, deferred.command_id, queued.command_id]
    await scene.stop()


@virtual
async def test_driver_28_cancellation_during_post_pass_is_not_lost(clock: VirtualClock) -> None:
    """It comes while the group of the samples is blocked on the event lane, and waits for the next snapshot."""
    scene = await in_pass(clock, event_capacity=1)
    deferred, *queued = [scene.submit(request) for request in (1, 2, 3)]
    await clock.advance_ms(10)
    boundary = await scene.completed()
    await scene.finish(boundary)
    assert (scene.phase, len(scene.shell.commands)) == ("post_commands", 1), "one applied, the next one to come"
    late = scene.cancel(0)
    await clock.settle()
    events = await scene.events()
    assert commands_in(events) == [call.command_id for call in (deferred, *queued, late)]
    assert late.answer == APPLIED
    stimuli = scene.recorder.stimuli
    assert stimuli[stimuli.index("cancel_item") - 1] == "lane_counts", "taken by a snapshot of its own"
    await scene.stop()


@virtual
async def test_what_arrives_while_a_group_is_applied_waits_for_the_next_snapshot(clock: VirtualClock) -> None:
    """A caller that sends again from within each acknowledgement must not keep a pass from starting."""
    scene = Scene(clock, event_capacity=1_000, max_num_seqs=256)
    answered = 0

    def send_again(ok: bool = True, text: str = "") -> None:
        nonlocal answered
        answered += 1
        if answered < 200 and not scene.shell.stopped:
            scene.handle.put(submit(scene.handle.reserve_id(), answered, 4, 3), send_again)

    send_again()
    kinds = [event.kind for event in await scene.events()]
    assert PASS_START in kinds
    assert kinds.index(PASS_START) < 5
    await scene.stop()


@virtual
async def test_driver_33_caller_that_leaves_after_enqueue(clock: VirtualClock) -> None:
    scene = await in_pass(clock)
    call = scene.submit(1)
    await clock.settle()
    call.task.cancel()
    await clock.advance_ms(10)
    await scene.finish(await scene.completed())
    assert call.answer == "cancelled"
    assert commands_in(await scene.events()) == [call.command_id], "applied and published all the same"
    await scene.stop()


@virtual
async def test_driver_33_caller_that_leaves_while_it_waits_for_a_place(clock: VirtualClock) -> None:
    scene = await in_pass(clock, control_capacity=1)
    deferred = scene.submit(1)
    await clock.settle()
    queued, waiting, behind = scene.submit(2), scene.submit(3), scene.submit(4)
    await clock.settle()
    waiting.task.cancel()
    await clock.advance_ms(10)
    await scene.finish(await scene.completed())
    applied = commands_in(await scene.events())
    assert applied == [call.command_id for call in (deferred, queued, behind)], "never applied; its id is skipped"
    assert waiting.answer == "cancelled"
    await scene.stop()


@virtual
async def test_driver_34_stop_answers_every_caller(clock: VirtualClock) -> None:
    scene = await in_pass(clock, control_capacity=1, event_capacity=1)
    deferred = scene.submit(1)
    await clock.settle()
    queued, waiting = scene.submit(2), scene.submit(3)
    await clock.settle()
    published, half_published = scene.cancel(77), scene.cancel(78)
    await clock.settle()
    behind = scene.cancel(79)
    await clock.settle()
    assert published.answer == NOOP
    assert [call.waits for call in (deferred, queued, waiting, half_published, behind)] == [True] * 5
    scene.token.cancel()
    await scene.ended()
    assert half_published.answer == "CommandFailed: stopped while publishing"
    assert deferred.answer == "CommandFailed: stopped before acknowledging"
    assert (queued.answer, behind.answer) == (STOPPED, STOPPED)
    assert waiting.answer == "ControlLaneClosed: control lane closed"


@virtual
async def test_commands_after_the_end_are_refused_once(clock: VirtualClock) -> None:
    scene = Scene(clock)
    await scene.stop()
    calls = scene.submit(0), scene.cancel(0)
    await clock.settle()
    assert [call.answer for call in calls] == ["ControlLaneClosed: control lane closed"] * 2
    heard: list[tuple[bool, str]] = []
    scene.handle.put(submit(scene.handle.reserve_id(), 1), lambda ok, text: heard.append((ok, text)))
    assert heard == [(False, "control lane closed")]


@virtual
async def test_callbacks_that_fail_leave_nobody_without_an_answer(clock: VirtualClock) -> None:
    scene = await in_pass(clock, control_capacity=2)
    failed: list[str] = []
    heard: list[str] = []

    def fail(ok: bool, text: str) -> None:
        raise LookupError(text)

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(str(context["exception"])))
    for number in range(4):
        for on_reply in (fail, lambda ok, text: heard.append(text)):
            scene.handle.put(submit(scene.handle.reserve_id(), 10 + number), on_reply)
    scene.handle.put(cancel(scene.handle.reserve_id(), 0), fail)
    await clock.settle()
    assert failed == [APPLIED]
    await scene.stop()
    assert len(failed) == 5
    assert len(heard) == 4
    scene.handle.put(submit(scene.handle.reserve_id(), 99), fail)
    assert failed[-1] == "control lane closed"


@pytest.mark.parametrize("lane", ["cancels", "commands"])
@pytest.mark.parametrize("mid_pass", [False, True])
@virtual
async def test_closed_control_lane_stops_orderly(clock: VirtualClock, lane: str, mid_pass: bool) -> None:
    scene = await in_pass(clock) if mid_pass else Scene(clock)
    await scene.events()
    getattr(scene.shell, lane).close()
    await scene.ended()


@virtual
async def test_closed_command_lane_is_found_when_it_is_read_again(clock: VirtualClock) -> None:
    """With a command deferred the lane is not read for the rest of the pass; what stands on it is applied first."""
    scene = await in_pass(clock)
    deferred, queued = scene.submit(1), scene.submit(2)
    await clock.settle()
    scene.shell.commands.close()
    await clock.settle()
    assert not scene.actor.done()
    await clock.advance_ms(10)
    await scene.finish(await scene.completed())
    assert (deferred.answer, queued.answer) == (SUBMITTED, SUBMITTED)
    await scene.ended()
    assert [event.kind for event in await scene.events()] == [COMMAND, COMMAND, PASS_START]


@virtual
async def test_full_command_lane_holds_its_callers_back_in_order(clock: VirtualClock) -> None:
    scene = await in_pass(clock, control_capacity=2, max_num_seqs=64)
    calls = [scene.submit(request) for request in range(1, 8)]
    await clock.settle()
    assert len(scene.shell.commands) == 2
    await clock.advance_ms(10)
    await scene.finish(await scene.completed())
    applied = commands_in(await scene.events())
    # The deferred one, and the two that stood on the lane when it was sampled; then its places were free again.
    assert applied[:3] == [call.command_id for call in calls[:3]]
    for _ in range(5):
        await clock.advance_ms(100)
        for event in await scene.events():
            applied += commands_in([event])
            if event.boundary is not None:
                await scene.finish(event.boundary)
    assert applied == [call.command_id for call in calls]
    assert {call.answer for call in calls} == {SUBMITTED}
    await scene.stop()


@virtual
async def test_full_cancellation_lane_is_independent_of_the_command_lane(clock: VirtualClock) -> None:
    scene = await in_pass(clock, control_capacity=1, event_capacity=1)
    scene.cancel(70)
    await clock.settle()
    half_published = scene.cancel(71)
    await clock.settle()
    queued = scene.cancel(72)
    await clock.settle()
    waiting = scene.cancel(73)
    await clock.settle()
    command = scene.submit(1)
    await clock.settle()
    assert [call.waits for call in (half_published, queued, waiting, command)] == [True] * 4
    assert (len(scene.shell.cancels), len(scene.shell.commands)) == (1, 1)
    assert commands_in(await scene.events()) == [
        call for call in range(1, 5)
    ], "one event a place; each frees the next cancellation"  # fmt: skip
    assert {call.answer for call in (half_published, queued, waiting)} == {NOOP}
    assert command.waits, "deferred"
    await scene.stop()


# -- ids, clones, lifetime ----------------------------------------------------------------------------


@virtual
async def test_driver_24_id_counter_at_its_end(clock: VirtualClock) -> None:
    scene = Scene(clock)
    scene.handle._share.next_id = 2**64 - 3
    clone = scene.handle.clone()
    first, second = scene.handle.reserve_id(), clone.reserve_id()
    assert (first, second) == (2**64 - 3, 2**64 - 2)
    for handle in (scene.handle, clone):
        with pytest.raises(OverflowError, match=r"18446744073709551615"):
            handle.reserve_id()
    call = scene.send(submit(second, 0, 4, 2))
    event = await scene.receive()
    assert (event.command_id, call.answer) == (second, SUBMITTED)
    deferred = scene.send(submit(first, 1, 4, 2))
    await clock.settle()
    await scene.stop()
    assert deferred.answer == "CommandFailed: stopped before acknowledging"
    clone.close()


@virtual
async def test_ids_are_shared_by_clones_and_skipped_if_unused(clock: VirtualClock) -> None:
    scene = Scene(clock)
    clone = scene.handle.clone()
    assert [scene.handle.reserve_id(), clone.reserve_id(), scene.handle.reserve_id()] == [0, 1, 2]
    call = scene.submit(0)
    assert (await scene.receive()).command_id == call.command_id == 3
    clone.close()
    await scene.stop()


@virtual
async def test_commands_no_machine_can_hold_fail_at_their_caller(clock: VirtualClock) -> None:
    scene = Scene(clock)
    good = submit(scene.handle.reserve_id(), 0)
    bad = [good._replace(kind="abort"), good._replace(hash_ids=(2**64,)), good._replace(request=2**31)]
    for command, error in zip(bad, (ValueError, OverflowError, OverflowError), strict=True):
        with pytest.raises(error):
            await scene.handle.send(command)
    boundary = await scene.first_boundary(2)
    for command, error in zip(bad, (ValueError, OverflowError, OverflowError), strict=True):
        with pytest.raises(error):
            await boundary.apply(command)
    await scene.finish(boundary)
    await scene.stop()


@virtual
async def test_driver_43_last_handle_cancels_the_owners_token(clock: VirtualClock) -> None:
    scene = Scene(clock)
    clone = scene.handle.clone()
    scene.handle.close()
    scene.handle.close()
    await clock.settle()
    assert not scene.token.cancelled, "a clone is left, and closing twice counts once"
    clone.close()
    assert scene.token.cancelled
    await scene.ended()


@virtual
async def test_driver_43_handles_that_are_collected_count_too(clock: VirtualClock) -> None:
    scene = Scene(clock)
    clone = scene.handle.clone()
    scene.driver = scene.driver._replace(handle=None)  # type: ignore[arg-type]
    scene.handle = clone
    await clock.settle()
    assert not scene.token.cancelled
    scene.handle = None  # type: ignore[assignment]
    del clone
    await scene.ended()
    assert scene.token.cancelled


@virtual
async def test_a_driver_that_has_ended_is_forgotten_by_a_token_it_shared(clock: VirtualClock) -> None:
    scene = Scene(clock)
    scene.shell.commands.close()
    await scene.ended()
    assert not scene.token.cancelled
    assert scene.token._callbacks == {}


@virtual
async def test_lanes_are_first_in_first_out_whatever_the_waits(clock: VirtualClock) -> None:
    """Callers come in waves, some leave; those who stay are served in the order they came."""
    scene = await in_pass(clock, control_capacity=2, max_num_seqs=64, num_gpu_blocks=512)
    calls: list[Call] = []
    for wave in range(4):
        calls += [scene.submit(10 * wave + number) for number in range(1, 6)]
        await clock.settle()
    for leaver in (calls[5], calls[11], calls[19]):
        leaver.task.cancel()
    applied: list[int] = []
    for _ in range(40):
        await clock.advance_ms(50)
        for event in await scene.events():
            applied += commands_in([event])
            if event.boundary is not None:
                await scene.finish(event.boundary)
    stayed = [call for number, call in enumerate(calls) if number not in (5, 11, 19)]
    assert applied == [call.command_id for call in stayed]
    assert {call.answer for call in stayed} == {SUBMITTED}
    await scene.stop()


@virtual
async def test_cancellation_of_a_caller_in_wait_of_a_cancellation_place(clock: VirtualClock) -> None:
    scene = await in_pass(clock, control_capacity=1, event_capacity=1)
    scene.send(cancel(scene.handle.reserve_id(), 70))
    await clock.settle()
    scene.cancel(71)
    await clock.settle()
    scene.cancel(72)
    await clock.settle()
    leaver = scene.cancel(0)
    await clock.settle()
    leaver.task.cancel()
    events = await scene.events()
    assert leaver.command_id not in commands_in(events)
    await clock.advance_ms(10)
    (ended,) = await scene.events()
    assert ended.kind is PASS_END
    assert [record.request for record in ended.of(EventKind.FIRST_TOKEN)] == [0], "nobody cancelled it"
    await scene.stop()
