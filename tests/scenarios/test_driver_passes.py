"""Driver scenarios about passes: when they start and end, and what a late consumer or clock does to them.

Over the real shell on the controllable clock. Source: driver specification, sections 6, 12 and 13.
"""

from __future__ import annotations

import asyncio
import struct

import pytest

from mocker_replay._core.timing import TimingModel
from mocker_replay.events import EventKind
from tests.support.machines import cancel, submit
from tests.support.player import JumpingBack
from tests.support.scene import APPLIED, COMMAND, PASS_END, PASS_START, SUBMITTED, WORK, Scene, of, pass_times, virtual
from tests.support.virtual_loop import VirtualClock


@virtual
async def test_driver_03_finish_delay_is_absorbed(clock: VirtualClock) -> None:
    scene = Scene(clock)
    call = scene.submit(0, n_out=3)
    command, started = await scene.events()
    assert (command.kind, command.in_pass, call.answer) == (COMMAND, False, SUBMITTED)
    assert pass_times([started]) == [(0.0, 10.0)]
    await clock.advance_ms(9.999_999)
    assert await scene.events() == []
    await clock.advance_ms(0.000_001)
    ended = await scene.receive()
    assert (ended.kind, ended.head.t_ms) == (PASS_END, 10.0)
    assert ended.boundary is not None
    await clock.advance_ms(2)
    assert await scene.events() == []
    await scene.finish(ended.boundary)
    assert pass_times(await scene.events()) == [(10.0, 20.0)]
    await scene.stop()


@virtual
async def test_driver_04_boundary_command_keeps_the_carried_deadline(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary(3)
    await clock.advance_ms(2)
    outcome = await boundary.apply(submit(scene.handle.reserve_id(), 1, 4, 1))
    assert (outcome.ok, outcome.text) == (True, SUBMITTED)
    assert [(record.kind, record.t_ms) for record in outcome.records] == [(COMMAND, 10.0), (EventKind.GAUGES, 10.0)]
    assert await scene.events() == [], "what a boundary command does is returned, not published"
    await scene.finish(boundary)
    # The newcomer's prefill is a second part of that pass.
    assert pass_times(await scene.events()) == [(10.0, 30.0)]
    await scene.stop()


@virtual
async def test_driver_05_queued_command_keeps_the_carried_deadline(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary(3)
    await clock.advance_ms(2)
    call = scene.submit(1)
    await clock.settle()
    assert call.waits
    await scene.finish(boundary)
    assert await scene.story() == [(COMMAND, 10.0), (PASS_START, 10.0)]
    assert call.answer == SUBMITTED
    await scene.stop()


@virtual
async def test_driver_06_queued_command_after_a_drained_boundary(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary(1)
    await clock.advance_ms(20)
    call = scene.submit(1)
    await scene.finish(boundary)
    assert await scene.story() == [(COMMAND, 30.0), (PASS_START, 30.0)]
    assert call.answer == SUBMITTED
    await scene.stop()


@virtual
async def test_driver_07_bounded_catch_up(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary(3)
    await clock.advance_ms(20)
    await scene.finish(boundary)
    assert pass_times(await scene.events()) == [(25.0, 35.0)]
    await scene.stop()


@virtual
async def test_driver_08_idle_restart(clock: VirtualClock) -> None:
    scene = Scene(clock)
    await scene.finish(await scene.first_boundary(1))
    assert scene.phase == "idle"
    await clock.advance_ms(100)
    scene.submit(1)
    assert pass_times(await scene.events()) == [(110.0, 120.0)]
    await scene.stop()


@virtual
async def test_driver_11_shared_completion_boundary(clock: VirtualClock) -> None:
    scene = Scene(clock, 100.0, dp_size=2)
    calls = scene.submit(0, 4, rank=0), scene.submit(1, 8, rank=1)
    *commands, started = await scene.events()
    assert [(event.kind, event.head.request) for event in commands] == [(COMMAND, 0), (COMMAND, 1)]
    assert [call.answer for call in calls] == [SUBMITTED, SUBMITTED]
    assert (started.kind, started.head.b) == (PASS_START, 2)
    assert [record.rank for record in started.of(EventKind.RANK_START)] == [0, 1]
    await clock.advance_ms(99)
    assert await scene.events() == []
    await clock.advance_ms(1)
    (ended,) = await scene.events()
    assert (ended.kind, ended.head.t_ms) == (PASS_END, 100.0)
    assert [record.rank for record in ended.of(EventKind.RANK_END)] == [0, 1]
    await scene.stop()


class TenPerToken:
    """Prefill of 10 ms per mean prompt token."""

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        return 10.0 * mean_isl

    def decode(self, *args: int) -> float:
        return 1.0


@virtual
async def test_driver_12_late_wake_up_does_not_inflate_durations(clock: VirtualClock) -> None:
    timing = TimingModel("callback", callback=TenPerToken())
    scene = Scene(clock, dp_size=2, timing=timing, want=2)
    scene.submit(0, 4, rank=0)
    scene.submit(1, 8, rank=1)
    assert [record.x for record in of(await scene.events(), EventKind.RANK_START)] == [40.0, 80.0]
    clock.stall_ms(100)
    (ended,) = await scene.events()
    assert {record.t_ms for record in ended.records} == {80.0}
    walls_s = [
        struct.unpack("<d", struct.pack("<q", ended.words[record.c]))[0] for record in ended.of(EventKind.FPM)
    ]  # fmt: skip
    assert walls_s == [0.08, 0.08]
    await scene.stop()


@pytest.mark.parametrize(
    ("length_ms", "cost_ms", "starts"),
    [
        (10, 2, [0, 10, 20, 30, 40]),
        (1, 2, [0, 1, 2, 3, 4, 6, 8, 10, 12]),
        (1, 3, [0, 1, 2, 5, 8, 11, 14]),
        (0, 1, [0, 0, 0, 0, 0, 0, 1, 2, 3]),
    ],
)
@virtual
async def test_driver_37_trajectories(
    clock: VirtualClock, length_ms: float, cost_ms: float, starts: list[float]
) -> None:
    """A constant cost of publication and boundary a pass: hidden, then lagging up to the bound, then slipping."""
    scene = Scene(clock, length_ms)
    scene.submit(0, 4, 100)
    times: list[tuple[float, float]] = []
    for _ in starts:
        events = await scene.events()
        times += pass_times(events)
        if events[-1].boundary is None:
            deadline_ns = clock.loop.next_deadline_ns()
            assert deadline_ns is not None, "a pass that is ahead is waited for"
            await clock.advance_ns(deadline_ns - clock.now_ns())
            events = await scene.events()
        await clock.advance_ms(cost_ms)
        boundary = events[-1].boundary
        assert boundary is not None
        await scene.finish(boundary)
    assert [start for start, _ in times] == starts
    await scene.stop()


@virtual
async def test_driver_22_zero_duration_loop_yields(clock: VirtualClock) -> None:
    scene = Scene(clock, 0.0)
    scene.submit(0, 4, 32)
    boundary = await scene.completed()

    async def shut_down() -> None:
        await asyncio.sleep(0)
        scene.token.cancel()

    owner = asyncio.create_task(shut_down())
    await boundary.finish()
    await owner
    await scene.ended()
    assert clock.now_ms() == 0.0


@virtual
async def test_driver_22_passes_of_no_length_leave_turns_to_others(clock: VirtualClock) -> None:
    """A consumer that is always there, and a bystander that counts its turns."""
    scene = Scene(clock, 0.0, num_gpu_blocks=512)
    turns = 0

    async def stand_by() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def consume() -> int:
        passes = 0
        while (event := await scene.driver.events.receive()) is not None:
            if event.boundary is not None:
                passes += 1
                await event.boundary.finish()
                if passes == 1_000:
                    scene.token.cancel()
        return passes

    bystander, consumer = asyncio.create_task(stand_by()), asyncio.create_task(consume())
    scene.submit(0, 4, 1_000)
    assert await consumer == 1_000
    bystander.cancel()
    assert turns >= 1_000
    await scene.ended()


@virtual
async def test_a_pass_with_duration_does_not_yield(clock: VirtualClock) -> None:
    scene = Scene(clock)
    await scene.finish(await scene.first_boundary(3))
    assert "yielded" not in scene.recorder.stimuli
    await scene.stop()


@virtual
async def test_driver_35_boundary_command_that_drains_clears_the_carried_deadline(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary(3)
    await clock.advance_ms(30)
    ids = scene.handle
    assert (await boundary.apply(cancel(ids.reserve_id(), 0))).text == APPLIED
    assert (await boundary.apply(submit(ids.reserve_id(), 5, 4, 1))).text == SUBMITTED
    await scene.finish(boundary)
    assert pass_times(await scene.events()) == [(40.0, 50.0)]
    await scene.stop()


@virtual
async def test_driver_35_a_boundary_that_stays_ready_inherits_the_deadline(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary(3)
    await clock.advance_ms(30)
    ids = scene.handle
    await boundary.apply(submit(ids.reserve_id(), 5, 4, 1))
    await boundary.apply(cancel(ids.reserve_id(), 0))
    await scene.finish(boundary)
    assert pass_times(await scene.events()) == [(35.0, 45.0)]
    await scene.stop()


@virtual
async def test_driver_36_clock_that_jumps_back(clock: VirtualClock) -> None:
    scene = Scene(clock, readings=JumpingBack())
    scene.submit(0, 4, 6)
    scene.submit(1, 4, 3)
    times: list[float] = []
    starts: list[float] = []
    for _ in range(6):
        for event in await scene.events():
            times += [record.t_ms for record in event.records]
            starts += [start for start, _ in pass_times([event])]
            if event.boundary is not None:
                await clock.advance_ms(7)
                await scene.finish(event.boundary)
        await clock.advance_ms(20)
    for event in await scene.events():
        if event.boundary is not None:
            await scene.finish(event.boundary)
    given = [step.given.reading_ms for step in scene.recorder.steps]
    assert given != sorted(given), "the readings did jump back"
    assert times == sorted(times)
    assert len(starts) >= 5
    assert starts == sorted(starts)
    await scene.stop()


@virtual
async def test_driver_38_slow_consumer(clock: VirtualClock) -> None:
    scene = Scene(clock, event_capacity=1)
    scene.submit(0, 4, 2)
    assert (await scene.receive()).kind is COMMAND
    await clock.advance_ms(50)  # the start of the pass stands on the lane; its end is computed and waits
    assert len(scene.driver.events) == 1
    started = await scene.receive()
    assert pass_times([started]) == [(0.0, 10.0)]
    await clock.advance_ms(1)
    ended = await scene.receive()
    assert (ended.kind, ended.head.t_ms) == (PASS_END, 10.0), "late on the lane, and never later in the model"
    assert ended.boundary is not None
    await scene.finish(ended.boundary)
    assert pass_times(await scene.events()) == [(46.0, 56.0)]
    await scene.stop()


@virtual
async def test_driver_42_command_and_cancellation_at_the_pass_end(clock: VirtualClock) -> None:
    scene = Scene(clock)
    scene.submit(0, 4, 3)
    await scene.events()
    clock.stall_ms(10)  # the timer, the command and the cancellation come in one turn
    command, cancellation = scene.submit(1), scene.cancel(0)
    applied, ended = await scene.events()
    assert (applied.is_request_cancellation, applied.in_pass, applied.head.t_ms) == (True, True, 0.0)
    assert (ended.kind, ended.head.t_ms) == (PASS_END, 10.0)
    assert cancellation.answer == APPLIED
    assert command.waits
    assert ended.boundary is not None
    await scene.finish(ended.boundary)
    events = await scene.events()
    assert [(event.kind, event.head.t_ms) for event in events] == [(COMMAND, 10.0), (PASS_START, 10.0)]
    assert not events[0].in_pass
    assert command.answer == SUBMITTED
    await scene.stop()


@virtual
async def test_driver_44_both_deadlines_past_after_a_stall(clock: VirtualClock) -> None:
    scene = Scene(clock)
    scene.submit(0, 4, 3)
    await scene.events()
    scene.engine.deadlines[:] = [15.0]
    clock.stall_ms(100)
    (ended,) = await scene.events()
    assert (ended.kind, ended.head.t_ms) == (PASS_END, 10.0)
    assert ended.boundary is not None
    await scene.finish(ended.boundary)
    # Still active: the time of the work is its deadline, whatever the clock says.
    assert await scene.story() == [(WORK, 15.0), (PASS_START, 95.0)]
    await scene.stop()


@virtual
async def test_driver_44_internal_work_of_a_drained_engine_takes_the_clock(clock: VirtualClock) -> None:
    scene = Scene(clock)
    boundary = await scene.first_boundary(1)
    scene.engine.deadlines[:] = [15.0]
    clock.stall_ms(90)
    await scene.finish(boundary)
    assert await scene.story() == [(WORK, 100.0)]
    await scene.stop()
