"""Driver scenarios about request cancellations in mid-pass, and about which of several stimuli comes first.

Over the real shell on the controllable clock. Source: driver specification, sections 4, 7.2, 12 and 13.
"""

from __future__ import annotations

import asyncio

import pytest

from mocker_replay.events import CommandResult, EventKind, TerminalStatus
from mocker_replay.shells.published import Published
from tests.support.machines import cancel, submit
from tests.support.scene import APPLIED, COMMAND, NOOP, PASS_END, PASS_START, WORK, Scene, virtual
from tests.support.virtual_loop import VirtualClock


async def in_pass(clock: VirtualClock, pass_ms: float = 100.0, n_out: int = 1, **settings) -> Scene:
    scene = Scene(clock, pass_ms, **settings)
    scene.submit(0, 4, n_out)
    await scene.events()
    return scene


def outputs_of(ended: Published) -> list[int]:
    """Requests that got their first token with this pass end."""
    assert ended.kind is PASS_END
    return [record.request for record in ended.of(EventKind.FIRST_TOKEN)]


@virtual
async def test_driver_13_mid_pass_cancellation_suppresses_output(clock: VirtualClock) -> None:
    scene = await in_pass(clock)
    await clock.advance_ms(40)
    scene.cancel(0, discard=True)
    applied = await scene.receive()
    assert (applied.in_pass, applied.suppressed, applied.is_request_cancellation) == (True, True, True)
    assert applied.head.t_ms == 0.0, "stamped with the start of the pass"
    assert [record.a for record in applied.of(EventKind.TERMINAL)] == [TerminalStatus.CANCELLED]
    await clock.advance_ms(59)
    assert await scene.events() == []
    await clock.advance_ms(1)
    ended = await scene.receive()
    assert ended.head.t_ms == 100.0
    assert outputs_of(ended) == []
    assert [record.a for record in ended.of(EventKind.RANK_END)] == [0]
    await scene.stop()


@virtual
async def test_driver_15_queued_cancellation_beats_an_overdue_pass_end(clock: VirtualClock) -> None:
    scene = await in_pass(clock)
    taken = len(scene.recorder.steps)
    clock.stall_ms(200)
    call = scene.send(cancel(99, 0, discard=True))
    applied, ended = await scene.events()
    assert scene.recorder.stimuli[taken:] == ["cancel_item", "published", "pass_timer", "published"]
    assert scene.phase == "at_boundary"
    assert call.answer == NOOP
    assert (applied.command_id, applied.in_pass, applied.is_request_cancellation) == (99, True, True)
    assert applied.suppressed
    retired = {record.request for event in (applied, ended) for record in event.of(EventKind.TERMINAL)}
    assert retired == {0}
    assert outputs_of(ended) == []
    await scene.stop()


@pytest.mark.parametrize("num_commands", [1, 20])
@virtual
async def test_an_overdue_pass_end_beats_any_number_of_commands(clock: VirtualClock, num_commands: int) -> None:
    scene = await in_pass(clock, n_out=3)
    taken = len(scene.recorder.steps)
    clock.stall_ms(200)
    for request in range(1, num_commands + 1):
        scene.submit(request)
    assert [event.kind for event in await scene.events()] == [PASS_END]
    assert scene.recorder.stimuli[taken:] == ["pass_timer", "published"]
    await scene.stop()


@virtual
async def test_a_pass_of_no_length_beats_commands_and_gives_up_one_turn(clock: VirtualClock) -> None:
    """Its end is there at once, but is not taken before others had a turn; a command waits, a cancellation does not."""
    scene = Scene(clock, 0.0)
    scene.submit(0, 4, 3)
    scene.submit(1, 4, 3)
    replies: list[str] = []

    async def meddle() -> None:
        while scene.phase != "in_pass":
            await asyncio.sleep(0)
        for command in (submit(100, 2), cancel(101, 1)):
            scene.handle.put(command, lambda ok, text: replies.append(text))

    meddler = asyncio.create_task(meddle())
    events = await scene.events()
    await meddler
    kinds = [(event.kind, event.kind is COMMAND and event.in_pass) for event in events]
    assert kinds[2:] == [(PASS_START, False), (COMMAND, True), (PASS_END, False)]
    assert "command_item" not in scene.recorder.stimuli[scene.recorder.stimuli.index("cancel_item") :]
    assert replies == [APPLIED]
    await scene.stop()


@virtual
async def test_driver_16_noop_cancellation_without_discard(clock: VirtualClock) -> None:
    """Its only output was computed when the pass started; the engine does not own it any more."""
    scene = await in_pass(clock)
    call = scene.cancel(0, discard=False)
    applied = await scene.receive()
    assert (call.answer, applied.head.b, applied.suppressed) == (NOOP, CommandResult.NOOP, False)
    await clock.advance_ms(100)
    ended = await scene.receive()
    assert outputs_of(ended) == [0]
    assert [record.a for record in ended.of(EventKind.TERMINAL)] == [TerminalStatus.COMPLETED]
    await scene.stop()


@virtual
async def test_driver_17_noop_cancellation_with_discard(clock: VirtualClock) -> None:
    scene = await in_pass(clock)
    call = scene.cancel(0, discard=True)
    applied = await scene.receive()
    assert (call.answer, applied.head.b, applied.suppressed) == (NOOP, CommandResult.NOOP, True)
    await clock.advance_ms(100)
    assert outputs_of(await scene.receive()) == []
    await scene.stop()


@virtual
async def test_driver_21_cancellation_does_not_end_a_pass_early(clock: VirtualClock) -> None:
    scene = Scene(clock, 100.0)
    scene.submit(0, 4, 2)
    scene.submit(1, 4, 1)
    await scene.events()
    await clock.advance_ms(50)
    call = scene.cancel(0)
    applied = await scene.receive()
    assert (call.answer, applied.suppressed) == (APPLIED, True)
    (gauges,) = applied.of(EventKind.GAUGES)
    assert (gauges.c, gauges.d) == (0, 0), "nothing runs, nothing waits"
    await clock.advance_ms(49)
    assert await scene.events() == []
    await clock.advance_ms(1)
    ended = await scene.receive()
    assert (ended.head.t_ms, outputs_of(ended)) == (100.0, [1])
    assert [record.a for record in ended.of(EventKind.RANK_END)] == [1]
    await scene.stop()


@virtual
async def test_driver_45_refilled_cancellations_do_not_keep_a_pass_from_ending(clock: VirtualClock) -> None:
    """Each acknowledgement is answered with another cancellation, for ever."""
    scene = await in_pass(clock, 10.0, n_out=3, control_capacity=4)

    def refill(ok: bool = True, text: str = "") -> None:
        if not scene.shell.stopped:
            scene.handle.put(cancel(scene.handle.reserve_id(), 77), refill)

    clock.stall_ms(10)
    refill()
    completed = None
    for _ in range(2_000):
        event = await scene.driver.events.receive()
        assert event is not None
        if event.kind is PASS_END:
            completed = event
            break
        assert event.kind is COMMAND
    assert completed is not None
    assert completed.head.t_ms == 10.0
    given = scene.recorder.stimuli
    assert given[: given.index("pass_timer")].count("cancel_item") == 1024
    await scene.stop()


@virtual
async def test_the_token_beats_everything_but_a_publication_that_can_proceed(clock: VirtualClock) -> None:
    scene = await in_pass(clock, 10.0, n_out=3)
    clock.stall_ms(10)
    call, cancellation = scene.submit(1), scene.cancel(0)
    await asyncio.sleep(0)  # both are on their lanes, the pass end is due, and the driver has not run
    taken = len(scene.recorder.steps)
    scene.token.cancel()
    await scene.ended()
    assert scene.recorder.stimuli[taken:] == ["cancel"]
    assert call.answer == cancellation.answer == "CommandFailed: engine stopped before acknowledging"


@pytest.mark.parametrize("kind", ["cancel", "submit"])
@virtual
async def test_idle_takes_items_before_an_internal_deadline(clock: VirtualClock, kind: str) -> None:
    scene = Scene(clock)
    scene.engine.deadlines[:] = [5.0]
    await clock.settle()
    assert scene.phase == "idle"
    taken = len(scene.recorder.steps)
    clock.stall_ms(8)
    scene.cancel(70) if kind == "cancel" else scene.submit(0)
    events = await scene.events()
    assert scene.recorder.stimuli[taken] == ("cancel_item" if kind == "cancel" else "command_item")
    assert [(event.kind, event.head.t_ms) for event in events[:2]] == [(WORK, 8.0), (COMMAND, 8.0)]
    await scene.stop()


@virtual
async def test_in_pass_takes_the_internal_deadline_before_commands(clock: VirtualClock) -> None:
    """No engine has internal work in mid-pass; one that had would be served in this order."""
    scene = Scene(clock)
    scene.engine.masked = False
    scene.engine.deadlines[:] = [4.0]
    scene.submit(0, 4, 3)
    await scene.events()
    taken = len(scene.recorder.steps)
    clock.stall_ms(6)
    scene.submit(1)
    assert [(event.kind, event.head.t_ms) for event in await scene.events()] == [(WORK, 4.0)]
    assert scene.recorder.stimuli[taken:] == ["internal_timer", "published", "command_item"]
    await scene.stop()


@virtual
async def test_nobody_reads_the_lanes_while_a_boundary_is_open(clock: VirtualClock) -> None:
    scene = await in_pass(clock, 10.0, n_out=3)
    await clock.advance_ms(10)
    boundary = await scene.completed()
    taken = len(scene.recorder.steps)
    calls = scene.submit(1), scene.cancel(0)
    await clock.advance_ms(1_000)
    assert [call.waits for call in calls] == [True, True]
    assert scene.recorder.stimuli[taken:] == []
    await scene.finish(boundary)
    assert [event.kind for event in await scene.events()] == [COMMAND, COMMAND, PASS_START]
    await scene.stop()
