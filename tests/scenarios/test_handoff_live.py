"""Scenarios of the handoff specification over live engines: what is owned when something comes at an odd moment."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay.events import EventKind, HandoffStage
from mocker_replay.live import DestinationReserved, HandoffResult
from mocker_replay.shells.published import read_records
from mocker_replay.shells.realtime import Given
from tests.support.handoffs import OWN, drain_and_stop, hold, owned, reserve, start_destination, start_source
from tests.support.live import SLOW, RankConfig, ask, outcome_of, read_all, start_ranks
from tests.support.virtual_loop import VirtualClock, run_virtual

FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)


class Stages:
    """An observer of a machine: what it told of handoffs, and when [ms]."""

    def __init__(self) -> None:
        self.seen: list[tuple[HandoffStage, float]] = []

    def stepped(self, given: Given, deadline_ms: float | None, wall_ms: float, events: EventBuffer) -> None:
        records, _ = read_records(events)
        self.seen += [(HandoffStage(record.a), record.t_ms) for record in records if record.kind == EventKind.HANDOFF]


def test_handoff_19_reserve_and_cancel_destination_in_one_mid_pass() -> None:
    """The pass end reserves before the cancel is applied: first the fact, then an applied cancel, and no leak."""

    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock, speedup_ratio=SLOW)
        busy = await clock.until_done(engine.submit(ask(3)))
        await clock.advance_ms(2)
        control, events = engine.register_handoff(OWN)
        registration, stream = engine.prepare(ask())
        calls = asyncio.gather(control.reserve_destination(registration), control.cancel_destination())
        assert await clock.until_done(calls) == [None, True]
        fact = await clock.until_done(events.recv())
        assert isinstance(fact, DestinationReserved)
        assert await clock.until_done(read_all(stream)) == []
        assert owned(engine) == []
        await clock.until_done(read_all(busy))
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_a_destination_that_waits_for_a_copy_to_the_host_is_reserved_when_it_ends() -> None:
    """No pass and no command tells it: the end of the copy does."""

    async def main(clock: VirtualClock) -> None:
        tier = {"num_host_blocks": 8, "d2h_bandwidth_gbps": 0.01}  # a block in 100 ms
        engine = start_destination(
            clock, num_gpu_blocks=3, block_size=4, kv_cache_bytes_per_token=250_000, native_host_offload=tier
        )
        await clock.until_done(read_all(await clock.until_done(engine.submit(ask(name=1)))))
        control, events = engine.register_handoff(OWN)
        registration, stream = engine.prepare(ask(name=2, prompt_tokens=12))
        await clock.until_done(control.reserve_destination(registration))
        assert [entry[2] for entry in owned(engine)] == ["pending"]
        fact = await clock.until_done(events.recv())
        assert isinstance(fact, DestinationReserved)
        assert fact.t_ms >= 200.0
        assert await clock.until_done(control.cancel_destination()) is True
        assert await clock.until_done(read_all(stream)) == []
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_handoff_20_release_while_pending_then_completion() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock, speedup_ratio=SLOW, max_num_seqs=1)
        busy = await clock.until_done(engine.submit(ask(2, name=3)))
        control, events = engine.register_handoff(OWN)
        registration, stream = engine.prepare(ask(output_ids=[70]))
        await clock.until_done(control.submit_prefill(registration))
        assert [entry[2] for entry in owned(engine)] == ["source pending"]
        assert await clock.until_done(control.release_source()) is True
        waiting = asyncio.ensure_future(events.recv())
        assert [signal.completed for signal in await clock.until_done(read_all(stream))] == [True]
        await clock.until_done(read_all(busy))
        await clock.settle()
        assert not waiting.done()  # it went on as an ordinary request: no fact
        events.drop()
        assert await clock.until_done(waiting) is None
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_handoff_21_cancelling_the_request_of_a_held_source_does_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        control, events, stream, _ = await hold(clock, engine, ask(name=3))
        assert await engine.cancel(uuid.UUID(int=3)) is False  # no request any more
        assert await clock.until_done(stream.cancel()) is False
        assert [entry[2] for entry in owned(engine)] == ["source held"]
        assert await clock.until_done(control.release_source()) is True
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_handoff_21_a_reader_who_left_before_the_prefill_was_held() -> None:
    """Its signal finds nobody, and the cancellation at the boundary nothing to cancel: the source is held."""

    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock, speedup_ratio=SLOW)
        control, events = engine.register_handoff(OWN)
        registration, stream = engine.prepare(ask())
        await clock.until_done(control.submit_prefill(registration))
        await clock.advance_ms(1)
        stream.drop()
        assert (await clock.until_done(events.recv())) is not None
        assert [entry[2] for entry in owned(engine)] == ["source held"]
        assert await clock.until_done(control.cancel_source()) is True
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_handoff_23_activation_acknowledged_after_the_timeout() -> None:
    """The destination is active already when the cleanup reaches it."""

    async def main(clock: VirtualClock) -> None:
        source_engine = start_source(clock, speedup_ratio=SLOW, kv_transfer_bytes_per_token=1_050_000)
        stages = Stages()
        engine = start_destination(clock, RankConfig(output_buffering="full"), observer=stages, speedup_ratio=SLOW)
        busy = await clock.until_done(engine.submit(ask(40)))
        await clock.advance_ms(0.3)
        # Reserved at 11, transferred at 19.4, over at 19.7; the pass at the destination ends at 20.
        sessions = source_engine.handoff_sessions(session_timeout_ms=11.0)
        source = sessions.offer(OWN, ask(9, prompt_tokens=8))
        destination, stream = engine.join_handoff(OWN, ask(9, prompt_tokens=8), sessions.connect(OWN))
        result = await clock.until_done(source.completed())
        assert (result.succeeded, result.error, result.delay_ms) == (False, "timed out", 8.4)
        assert (await clock.until_done(destination.completed())).error == "the source gave up"
        assert stages.seen[-2:] == [
            (HandoffStage.DESTINATION_ACTIVATED, 20.0),
            (HandoffStage.DESTINATION_CANCELLED, 21.0),
        ]
        assert [(signal.t_ms, signal.completed) for signal in await clock.until_done(read_all(stream))] == [
            (21.0, False)
        ]
        await clock.until_done(asyncio.gather(read_all(busy), sessions.shutdown()))
        await drain_and_stop(clock, source_engine, engine)

    run_virtual(main)


@pytest.mark.parametrize("what", ["activate", "cancel"])
def test_handoff_26_a_follower_that_would_fit_waits_for_the_next_occasion(what: str) -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock, num_gpu_blocks=4, speedup_ratio=SLOW)
        blocker = await reserve(clock, engine, ask(prompt_tokens=16), uuid.UUID(int=9))
        waiting = []
        for handoff_id in (FIRST, SECOND):
            control, events = engine.register_handoff(handoff_id)
            registration, stream = engine.prepare(ask(prompt_tokens=4, name=handoff_id.int))
            await clock.until_done(control.reserve_destination(registration))
            waiting.append((control, events, stream))
        assert await clock.until_done(blocker[0].cancel_destination()) is True
        assert await clock.until_done(waiting[0][1].recv()) is not None
        second = asyncio.ensure_future(waiting[1][1].recv())
        await clock.advance_ms(1000)
        assert not second.done()  # there is room, and nothing has happened since
        if what == "activate":
            await clock.until_done(waiting[0][0].activate_destination())
        else:
            assert await clock.until_done(waiting[0][0].cancel_destination()) is True
        assert await clock.until_done(second) is not None
        for control, events, _ in [*waiting, (blocker[0], blocker[1], None)]:
            await clock.until_done(control.cancel_destination())
            events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_handoff_27_a_delay_stands_although_the_cached_prefix_is_evicted() -> None:
    """What was found belongs to the reservation: it cannot be evicted, and the transfer is as short as it was."""

    async def main(clock: VirtualClock) -> None:
        source_engine = start_source(clock, speedup_ratio=SLOW, kv_transfer_timing_mode="destination_missing")
        engine = start_destination(clock, speedup_ratio=SLOW, num_gpu_blocks=8)
        await clock.until_done(read_all(await engine.submit(ask(prompt_tokens=8, name=3))))  # leaves its prefix
        sessions = source_engine.handoff_sessions()
        request = ask(2, prompt_tokens=16, name=3)
        source = sessions.offer(OWN, request)
        destination, stream = engine.join_handoff(OWN, request, sessions.connect(OWN))
        while not [entry for entry in owned(engine) if entry[2] == "reserved"]:
            await clock.advance_ms(1)
        other = await clock.until_done(engine.submit(ask(prompt_tokens=16, name=5)))  # takes all that is free
        await clock.until_done(read_all(other))
        assert len(await clock.until_done(read_all(stream))) == 2
        assert await clock.until_done(source.completed()) == HandoffResult(OWN, True, None, 8.0)
        assert (await clock.until_done(destination.completed())).succeeded
        await clock.until_done(sessions.shutdown())
        await drain_and_stop(clock, source_engine, engine)

    run_virtual(main)


@pytest.mark.parametrize(("number", "bandwidth"), [(28, None), (29, 1e280)])
def test_handoff_28_and_29_transfers_that_take_no_time(number: int, bandwidth: float | None) -> None:
    """Started, completed and activated at one time, in this order: the first token comes one pass after the prefill."""

    async def main(clock: VirtualClock) -> None:
        source_engine = start_source(clock, speedup_ratio=SLOW, kv_transfer_bandwidth=bandwidth)
        engine = start_destination(clock, speedup_ratio=SLOW)
        sessions = source_engine.handoff_sessions()
        source = sessions.offer(OWN, ask())
        _, stream = engine.join_handoff(OWN, ask(), sessions.connect(OWN))
        (signal,) = await clock.until_done(read_all(stream))
        assert signal.t_ms == 11.0
        result = await clock.until_done(source.completed())
        assert result.succeeded
        assert result.delay_ms is not None
        assert 11.0 + result.delay_ms == 11.0
        assert (result.delay_ms > 0.0) == (number == 29)
        await clock.until_done(sessions.shutdown())
        await drain_and_stop(clock, source_engine, engine)

    run_virtual(main)


def test_handoff_24_one_id_at_two_ranks_of_one_group_is_two_handoffs() -> None:
    async def main(clock: VirtualClock) -> None:
        engines = start_ranks(clock, [RankConfig(), RankConfig()], worker_type="decode")
        held = [await reserve(clock, engine) for engine in engines]
        assert await clock.until_done(held[0][0].cancel_destination()) is True
        assert await outcome_of(clock, held[1][0].activate_destination()) is None
        assert len(await clock.until_done(read_all(held[1][2]))) == 1
        for _, events, _, _ in held:
            events.drop()
        await drain_and_stop(clock, *engines)

    run_virtual(main)
