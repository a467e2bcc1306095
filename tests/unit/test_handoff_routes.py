"""Registrations of handoffs, the lane of their facts, and what a control may ask for."""

from __future__ import annotations

import asyncio
import gc
import threading
import uuid

import pytest

from mocker_replay.events import CommandKind, CommandResult, EventKind, HandoffStage
from mocker_replay.live import AlreadyActive, DestinationReserved, LiveError, RankConfig
from mocker_replay.live.handoff.facts import HandoffSettings, SeenFact, facts_of
from mocker_replay.live.handoff.routes import FACT_CAPACITY, HandoffRoutes, number_of
from mocker_replay.shells.published import EventRecord, Published
from tests.support.handoffs import OWN, drain_and_stop, hold, owned, reserve, start_destination, start_source
from tests.support.live import SLOW, ask, group_of, rank_of, read_all, start, start_ranks
from tests.support.virtual_loop import VirtualClock, run_virtual

OTHER = uuid.UUID(int=78)


def routes() -> HandoffRoutes:
    return HandoffRoutes()


# -- registrations --------------------------------------------------------------------------------------


def test_numbers_are_made_of_the_whole_id() -> None:
    assert number_of(uuid.UUID(int=5)) == 5
    assert number_of(uuid.UUID(int=5 << 64)) == 5
    assert number_of(uuid.UUID(int=2**128 - 1)) == 0
    assert number_of(uuid.UUID(int=2**63 | 6)) == 6  # 63 bits: the records hold signed words


def test_ids_that_fold_to_one_number_are_told_apart() -> None:
    table = routes()
    table.register(uuid.UUID(int=5))
    with pytest.raises(LiveError, match="internal id collision"):
        table.register(uuid.UUID(int=5 << 64))
    assert len(table) == 1


def test_a_registration_ends_and_a_newer_one_takes_its_place() -> None:
    async def main(clock: VirtualClock) -> None:
        table = routes()
        old = table.register(OWN)
        assert table.is_registered(old)
        table.unregister(old)
        assert not table.is_registered(old)
        assert table.is_latest(old)
        new = table.register(OWN)
        assert table.is_registered(new)
        assert not table.is_latest(old)
        table.unregister(old)  # late, and of no effect
        assert table.by_number(new.number) is new
        table.unregister(new)
        assert table.is_latest(new)
        assert len(table) == 0

    run_virtual(main)


def test_the_latest_registration_is_remembered_as_long_as_something_of_it_lives() -> None:
    async def main(clock: VirtualClock) -> None:
        table = routes()
        old = table.register(OWN)
        table.unregister(old)
        old.turns.enter(lambda: None)
        with pytest.raises(AlreadyActive, match="earlier registration is in progress"):
            table.register(OWN)
        del old
        gc.collect()
        table.register(OWN)

    run_virtual(main)


def test_two_ranks_may_hand_off_under_one_id() -> None:
    async def main(clock: VirtualClock) -> None:
        engines = start_ranks(clock, [RankConfig(), RankConfig()], worker_type="decode")
        held = [await reserve(clock, engine, ask(output_ids=[70])) for engine in engines]
        assert [len(owned(engine)) for engine in engines] == [2, 2]  # of the whole group
        assert await clock.until_done(held[1][0].cancel_destination()) is True
        await clock.until_done(held[0][0].activate_destination())
        assert len(await clock.until_done(read_all(held[0][2]))) == 1
        assert await clock.until_done(read_all(held[1][2])) == []
        del held
        gc.collect()
        await drain_and_stop(clock, *engines)

    run_virtual(main)


def test_another_loop_is_refused() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        with pytest.raises(LiveError, match="in the loop it was started in"):
            await asyncio.to_thread(engine.register_handoff, OWN)
        await clock.until_done(engine.shutdown())

    run_virtual(main, outside_s=10.0)


# -- facts ----------------------------------------------------------------------------------------------


def record(kind: EventKind, stage: int, *, request: int = 3, number: int = 77, tokens: int = 8) -> EventRecord:
    return EventRecord(5.0, 0.0, stage, tokens, 0, 0, 0, number, kind, 0, 0, request)


def test_facts_are_what_somebody_waits_for() -> None:
    stages = [record(EventKind.HANDOFF, stage) for stage in HandoffStage]
    facts = facts_of([record(EventKind.GAUGES, HandoffStage.SOURCE_HELD), *stages])
    assert facts == [
        SeenFact(77, 3, HandoffStage.SOURCE_HELD, 8, 5.0),
        SeenFact(77, 3, HandoffStage.DESTINATION_RESERVED, 8, 5.0),
    ]


def reserved_facts(count: int, *, number: int = 77, request: int = -1) -> list[SeenFact]:
    return [SeenFact(number, request, HandoffStage.DESTINATION_RESERVED, at, float(at)) for at in range(count)]


def test_a_slow_reader_holds_back_the_dispatcher_and_nobody_else() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock)
        _, events = engine.register_handoff(OWN)
        _, other = engine.register_handoff(OTHER)
        handoffs = rank_of(engine).handoffs
        await handoffs.tell(reserved_facts(FACT_CAPACITY + 2))
        await handoffs.tell(reserved_facts(1, number=78))
        waiting = asyncio.ensure_future(other.recv())
        await clock.settle()
        assert not waiting.done()  # behind the dispatcher that waits for the first reader
        assert len(await clock.until_done(read_all(await engine.submit(ask(2))))) == 2
        seen = [await clock.until_done(events.recv()) for _ in range(FACT_CAPACITY + 2)]
        assert [fact.missing_tokens for fact in seen if isinstance(fact, DestinationReserved)] == list(range(10))
        assert await clock.until_done(waiting) == DestinationReserved(OTHER, 0, 0.0)
        await clock.until_done(engine.shutdown())

    run_virtual(main)


@pytest.mark.parametrize("by", ["reader", "shutdown"])
def test_a_dispatcher_that_waits_for_a_reader_is_let_go(by: str) -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock)
        _, events = engine.register_handoff(OWN)
        await rank_of(engine).handoffs.tell(reserved_facts(FACT_CAPACITY + 5))
        await clock.settle()
        if by == "reader":
            events.drop()
            _, newer = engine.register_handoff(OWN)
            await rank_of(engine).handoffs.tell(reserved_facts(1))
            assert await clock.until_done(newer.recv()) is not None
            newer.drop()
            await drain_and_stop(clock, engine)
        else:
            await clock.until_done(engine.shutdown())
            assert [await events.recv() for _ in range(FACT_CAPACITY + 1)][-2:] == [
                DestinationReserved(OWN, 7, 7.0), None,
            ]  # fmt: skip

    run_virtual(main)


def test_facts_reach_only_the_registration_that_asked() -> None:
    """A prefill of an earlier registration is held: the newer one has nothing to do with it, but may cancel it."""

    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock, speedup_ratio=SLOW)
        control, events = engine.register_handoff(OWN)
        registration, stream = engine.prepare(ask())
        await clock.until_done(control.submit_prefill(registration))
        events.drop()
        newer, newer_events = engine.register_handoff(OWN)
        assert len(await clock.until_done(read_all(stream))) == 1
        waiting = asyncio.ensure_future(newer_events.recv())
        await clock.settle()
        assert not waiting.done()
        assert await clock.until_done(newer.cancel_source()) is True
        waiting.cancel()
        newer_events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_events_have_one_reader_and_lose_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock)
        _, events = engine.register_handoff(OWN)
        first = asyncio.ensure_future(events.recv())
        await clock.settle()
        with pytest.raises(LiveError, match="one reader"):
            await events.recv()
        first.cancel()
        await clock.settle()
        await rank_of(engine).handoffs.tell(reserved_facts(2))
        async with events:
            async for fact in events:
                assert fact == DestinationReserved(OWN, 0, 0.0)
                break
        assert await events.recv() is None  # what was not read is gone with the registration
        engine.register_handoff(OWN)[1].drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_events_that_are_collected_in_a_foreign_thread() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock)
        held = [engine.register_handoff(OWN)]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        gc.collect()
        await clock.settle()
        engine.register_handoff(OWN)[1].drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


# -- commands -------------------------------------------------------------------------------------------


def test_commands_of_a_handoff_take_turns() -> None:
    """Called at once, applied one after the other, in the order of the calls."""

    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock, speedup_ratio=SLOW)
        control, events = engine.register_handoff(OWN)
        registration, stream = engine.prepare(ask())
        done: list[str] = []

        async def call(name: str, *arguments: object) -> object:
            result = await getattr(control, name)(*arguments)
            done.append(name)
            return result

        calls = [call("submit_prefill", registration), call("cancel_source"), call("release_source")]
        assert await clock.until_done(asyncio.gather(*calls)) == [None, True, False]
        assert done == ["submit_prefill", "cancel_source", "release_source"]
        assert len(await clock.until_done(read_all(stream))) == 1  # the pass had begun
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_a_command_goes_on_without_its_caller() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        control, events, _, _ = await hold(clock, engine)
        calling = asyncio.ensure_future(control.release_source())
        await clock.turns(1)
        calling.cancel()
        await clock.settle()
        assert owned(engine) == []
        assert await clock.until_done(control.release_source()) is False
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_a_refused_reservation_ends_its_stream() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_destination(clock, num_gpu_blocks=2)
        control, events = engine.register_handoff(OWN)
        registration, stream = engine.prepare(ask(prompt_tokens=12))
        with pytest.raises(LiveError, match="larger than the KV pool"):
            await clock.until_done(control.reserve_destination(registration))
        assert await read_all(stream) == []
        with pytest.raises(LiveError, match="already consumed"):
            await control.reserve_destination(registration)
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_begin_wants_what_its_command_needs() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        control, events = engine.register_handoff(OWN)
        registration, _stream = engine.prepare(ask())
        with pytest.raises(LiveError, match="release_source takes no registration"):
            control.begin("release_source", registration)
        with pytest.raises(LiveError, match="submit_prefill needs a registration"):
            control.begin("submit_prefill")
        registration.drop()
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


@pytest.mark.parametrize("stopped", ["before", "while it waits for its turn"])
def test_a_stopped_engine_takes_no_command(stopped: str) -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock, speedup_ratio=SLOW)
        busy = await clock.until_done(engine.submit(ask()))
        await clock.advance_ms(1)
        control, events = engine.register_handoff(OWN)
        calls = [] if stopped == "before" else [asyncio.ensure_future(control.release_source()) for _ in range(2)]
        await clock.settle()
        await clock.until_done(engine.shutdown())
        calls.append(asyncio.ensure_future(control.release_source()))
        for call in calls:
            with pytest.raises(LiveError, match=r"not running|dropped a command acknowledgement"):
                await clock.until_done(call)
        assert await events.recv() is None
        assert await read_all(busy) == []

    run_virtual(main)


def test_an_answer_about_something_else_is_an_error() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        control, events = engine.register_handoff(OWN)
        group = group_of(engine)
        calling = asyncio.ensure_future(control.release_source())
        await clock.turns(1)
        (command_id,) = group._pending
        done = (CommandKind.RELEASE_SOURCE, CommandResult.APPLIED, 0, command_id)
        head = EventRecord(0.0, 0.0, *done, 0, 5, EventKind.COMMAND, 0, 0, -1)
        group.answer(Published(EventKind.COMMAND, [head], [], None))
        with pytest.raises(LiveError, match="unexpected result for handoff 5"):
            await clock.until_done(calling)
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)


def test_a_fact_of_a_command_in_mid_pass_stops_the_engine() -> None:
    """The driver's promise; without it a reader would be told before the pass that it follows from."""

    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock)
        effects = group_of(engine)._effects
        assert effects is not None
        head = EventRecord(0.0, 0.0, CommandKind.SUBMIT_PREFILL, 0, 1, 0, 0, 77, EventKind.COMMAND, 0, 0, 3)
        fact = record(EventKind.HANDOFF, HandoffStage.SOURCE_HELD)
        with pytest.raises(LiveError, match="in mid-pass carries a fact"):
            effects._command(Published(EventKind.COMMAND, [head, fact], [], None))
        await clock.until_done(engine.shutdown())

    run_virtual(main)


# -- delays ---------------------------------------------------------------------------------------------


def test_only_a_prefill_worker_reports_a_delay() -> None:
    async def main(clock: VirtualClock) -> None:
        delays = {}
        for kind in ("prefill", "decode", "aggregated"):
            engine = start(
                clock, worker_type=kind, kv_transfer_bytes_per_token=1_000_000, kv_transfer_bandwidth=1.0,
                kv_transfer_timing_mode="destination_missing",
            )  # fmt: skip
            signals = await clock.until_done(read_all(await engine.submit(ask(2, prompt_tokens=10))))
            delays[kind] = [signal.handoff_delay_ms for signal in signals]
            await clock.until_done(engine.shutdown())
        assert delays == {"prefill": [None, 10.0], "decode": [None, None], "aggregated": [None, None]}

    run_virtual(main)


def test_no_delay_is_reported_where_none_is_modelled() -> None:
    settings = HandoffSettings(bytes_per_token=1000, bandwidth_gbps=1.0, reports_delay=True)
    assert settings.full_prompt_delay_ms(100) == 0.1
    for missing in ({"bytes_per_token": None}, {"bandwidth_gbps": None}, {"bandwidth_gbps": 0.0}):
        assert settings._replace(**missing).full_prompt_delay_ms(100) is None  # type: ignore[arg-type]


def test_a_held_source_knows_how_long_its_transfer_takes() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start_source(clock, kv_transfer_timing_mode="destination_missing")
        control, events, _, fact = await hold(clock, engine)
        assert (fact.transfer_delay_ms(4), fact.transfer_delay_ms(0)) == (4.0, 0.0)
        assert fact._replace(timing=fact.timing._replace(bandwidth_gbps=None)).transfer_delay_ms(4, 7.5) == 7.5
        with pytest.raises(LiveError, match="tokens is negative"):
            fact.transfer_delay_ms(-1)
        await clock.until_done(control.release_source())
        events.drop()
        await drain_and_stop(clock, engine)

    run_virtual(main)
