"""Boundary scenarios about handoffs: registrations, controls, events, and ids that are used again."""

from __future__ import annotations

import asyncio
import gc
import uuid

import pytest

from mocker_replay._core.coordinator import Timing
from mocker_replay.live import (
    AlreadyActive,
    DestinationReserved,
    LiveEngine,
    LiveError,
    NotRunning,
    RankConfig,
    SourceHeld,
    Watch,
)  # fmt: skip
from tests.support.handoffs import OWN, drain_and_stop, hold, owned, reserve, start_destination, start_source
from tests.support.live import SLOW, ask, at_every_turn, group_of, outcome_of, read_all, steps, tokens_of
from tests.support.virtual_loop import VirtualClock, run_virtual


def test_boundary_08_handoff_control_does_not_keep_the_engine_alive() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock)
        control, events = engine.register_handoff(OWN)
        group = group_of(engine)
        waiting = asyncio.ensure_future(events.recv())
        await clock.settle()
        del engine
        gc.collect()
        await clock.settle()
        assert waiting.result() is None
        for command in (control.cancel_destination, control.release_source, control.activate_destination):
            with pytest.raises(LiveError, match="engine no longer exists"):
                await command()
        await clock.until_done(group.stopped())
        assert not len(group.ranks[0].handoffs.routes)

    run_virtual(main)


def test_boundary_11_typed_handoff_of_a_source() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        control, events = engine.register_handoff(OWN)
        with pytest.raises(AlreadyActive, match="already registered"):
            engine.register_handoff(OWN)
        registration, stream = engine.prepare(ask(5, prompt_tokens=10, output_ids=[70, 71, 72, 73, 74]))
        await clock.until_done(control.submit_prefill(registration))
        signals = await clock.until_done(read_all(stream))
        assert tokens_of(signals) == [70]  # one token, whatever was asked for
        assert (signals[0].completed, signals[0].reason, signals[0].handoff_delay_ms) == (True, "output_length", 10.0)
        fact = await clock.until_done(events.recv())
        assert fact == SourceHeld(OWN, Timing("full_prompt", 10, 1_000_000, 1.0), signals[0].t_ms)
        assert [(entry[0], entry[2], entry[3]) for entry in owned(engine)] == [(OWN.int, "source held", 3)]
        assert engine.active_request_count() == 0
        assert await clock.until_done(control.release_source()) is True
        assert await clock.until_done(control.release_source()) is False
        await clock.until_done(engine.shutdown())
        assert await events.recv() is None

    run_virtual(main)


def test_boundary_11_typed_handoff_of_a_destination() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock)
        control, events, stream, fact = await reserve(clock, engine, ask(2, prompt_tokens=10, output_ids=[80, 81]))
        assert fact == DestinationReserved(OWN, 12, fact.t_ms)
        assert owned(engine) == [(OWN.int, 0, "reserved", 3)]
        await clock.until_done(control.activate_destination())
        signals = await clock.until_done(read_all(stream))
        assert tokens_of(signals) == [80, 81]
        assert [signal.completed for signal in signals] == [False, True]
        assert signals[-1].handoff_delay_ms is None
        await clock.until_done(engine.shutdown())
        assert await events.recv() is None

    run_virtual(main)


def test_boundary_11_a_command_that_finds_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock)
        control, events = engine.register_handoff(OWN)
        assert await clock.until_done(control.release_source()) is False
        assert await clock.until_done(control.cancel_source()) is False
        assert await clock.until_done(control.cancel_destination()) is False
        with pytest.raises(LiveError, match="unexpected result noop of activate destination"):
            await clock.until_done(control.activate_destination())
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_12_dropping_a_reserved_destinations_stream() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock)
        control, events, stream, _ = await reserve(clock, engine)
        assert engine.metrics_receiver().value.active_blocks == 2
        del stream
        gc.collect()
        await clock.settle()
        assert engine.metrics_receiver().value.active_blocks == 0
        assert owned(engine) == []
        assert await clock.until_done(control.cancel_destination()) is False
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


@pytest.mark.parametrize("at", ["pending", "reserved", "active"])
def test_boundary_12_a_cancelled_destination_ends_its_stream(at: str) -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock, num_gpu_blocks=2, speedup_ratio=SLOW)
        if at == "pending":
            first, _, other, _ = await reserve(clock, engine)
            control, events = engine.register_handoff(uuid.UUID(int=5))
            registration, stream = engine.prepare(ask(3, prompt_tokens=8))
            await clock.until_done(control.reserve_destination(registration))
        else:
            control, events, stream, _ = await reserve(clock, engine, ask(9, prompt_tokens=4))
        if at == "active":
            await clock.until_done(control.activate_destination())
            await clock.until_done(stream.recv())
        assert await clock.until_done(control.cancel_destination()) is True
        assert all(not signal.completed for signal in await clock.until_done(read_all(stream)))
        assert await clock.until_done(control.cancel_destination()) is False
        if at == "pending":
            assert await clock.until_done(first.cancel_destination()) is True
            assert await clock.until_done(read_all(other)) == []
        del events
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_13_stale_handoff_control() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock)
        old_control, old_events = engine.register_handoff(OWN)
        old_events.drop()
        control, events = engine.register_handoff(OWN)
        registration, stream = engine.prepare(ask(output_ids=[90]))
        await clock.until_done(control.reserve_destination(registration))
        assert isinstance(await clock.until_done(events.recv()), DestinationReserved)
        events.drop()
        with pytest.raises(LiveError, match="earlier registration"):
            await clock.until_done(old_control.cancel_destination())
        late, late_stream = engine.prepare(ask())
        with pytest.raises(LiveError, match="earlier registration"):
            await clock.until_done(old_control.reserve_destination(late))
        assert await read_all(late_stream) == []
        late, late_stream = engine.prepare(ask())
        with pytest.raises(LiveError, match="no longer registered"):
            await clock.until_done(control.reserve_destination(late))
        assert await read_all(late_stream) == []
        await clock.until_done(control.activate_destination())
        assert tokens_of(await clock.until_done(read_all(stream))) == [90]
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_13_a_registration_while_a_command_is_under_way() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock, speedup_ratio=SLOW)
        busy = await clock.until_done(engine.submit(ask(2)))
        control, events = engine.register_handoff(OWN)
        await clock.advance_ms(1)
        releasing = asyncio.ensure_future(control.release_source())  # deferred: a pass is in flight
        await clock.settle()
        events.drop()
        with pytest.raises(AlreadyActive, match="in progress"):
            engine.register_handoff(OWN)
        assert await clock.until_done(releasing) is False
        control, events = engine.register_handoff(OWN)
        assert len(await clock.until_done(read_all(busy))) == 2
        del control, events
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_14_late_request_cancellation_cannot_hit_a_reused_handoff_id() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = Watch(False)
        engine = start_destination(clock, RankConfig(output_gate=gate))
        control, events, old_stream, _ = await reserve(clock, engine, ask(output_ids=[70]))
        await clock.until_done(control.activate_destination())
        gate.set(True)
        assert tokens_of([await clock.until_done(old_stream.recv())]) == [70]  # type: ignore[list-item]
        await clock.settle()
        assert engine.metrics_receiver().value.idle
        gate.set(False)
        del control, events
        gc.collect()
        await clock.settle()
        control, events, stream, _ = await reserve(clock, engine, ask(output_ids=[71]))
        old_stream.drop()
        await clock.settle()
        assert engine.active_request_count() == 1
        await clock.until_done(control.activate_destination())
        gate.set(True)
        assert tokens_of(await clock.until_done(read_all(stream))) == [71]
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_14_a_stream_whose_handoff_belongs_to_another_cancels_nothing() -> None:
    """Its cancellation waits for its turn; when it comes, the id has been registered anew."""

    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock)
        control, events, old_stream, _ = await reserve(clock, engine, ask(output_ids=[70]))
        events.drop()
        newer, newer_events = engine.register_handoff(OWN)
        assert await clock.until_done(old_stream.cancel()) is False
        assert owned(engine) == [(OWN.int, 0, "reserved", 2)]
        registration, stream = engine.prepare(ask())
        with pytest.raises(LiveError, match="already active"):
            await clock.until_done(newer.reserve_destination(registration))
        assert await clock.until_done(newer.cancel_destination()) is True
        assert await read_all(stream) == []
        with pytest.raises(LiveError, match="earlier registration"):
            await clock.until_done(control.cancel_destination())
        newer_events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_27_submit_handoff_is_acknowledged_and_the_fact_carries_its_id() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        control, events, stream, fact = await hold(clock, engine)
        assert fact.handoff_id is OWN
        assert control.handoff_id == events.handoff_id == OWN
        assert await clock.until_done(control.cancel_source()) is True
        assert len(await read_all(stream)) == 1
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_33_shutdown_racing_a_handoff_at_every_turn() -> None:
    """Whatever a handoff is doing when its engine stops: nobody is left waiting, nothing is left behind."""

    async def scenario(clock: VirtualClock, num_turns: int) -> bool:
        engine = start_source(clock, speedup_ratio=SLOW)

        async def hand_off(engine: LiveEngine) -> None:
            control, events = engine.register_handoff(OWN)
            registration, stream = engine.prepare(ask(1, prompt_tokens=8))
            await control.submit_prefill(registration)
            if await events.recv() is None:
                raise NotRunning("its events have ended")
            await control.release_source()
            assert len(await read_all(stream)) == 1

        task = asyncio.ensure_future(hand_off(engine))
        await steps(clock, num_turns)
        in_time = not task.done()
        await clock.until_done(engine.shutdown())
        ended = await outcome_of(clock, asyncio.gather(task))
        assert not isinstance(ended, BaseException) or isinstance(ended, NotRunning)
        with pytest.raises(NotRunning):
            engine.register_handoff(OWN)
        return in_time

    assert at_every_turn(scenario) > 10
