"""Boundary scenarios about ends: of engines, streams and tasks, at any moment; and what a shutdown says."""

from __future__ import annotations

import asyncio
import gc
import threading
import uuid
import weakref
from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from mocker_replay.config.timing import TimingModel
from mocker_replay.live import BoundedLane, LiveEngine, LiveError, NotRunning, RankConfig, RequestStream, Watch
from mocker_replay.live.engine import Attachments
from mocker_replay.shells.tokens import call_on
from tests.support.live import (
    SLOW,
    ask,
    assert_stopped,
    at_every_turn,
    fixture_config,
    group_of,
    outcome_of,
    rank_of,
    read_all,
    rest_and_stop,
    start,
    start_ranks,
    steps,
    submit_and_read,
    until_idle,
)  # fmt: skip
from tests.support.virtual_loop import VirtualClock, VirtualTimeLoop, run_virtual

LARGE = {"num_gpu_blocks": 8192}  # 10 000 tokens fit, for a few requests


def test_boundary_04_dropping_one_rank_retires_its_requests() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = Watch(False)
        kept, dropped = start_ranks(clock, [RankConfig(output_gate=gate), RankConfig(output_gate=gate)])
        streams = await clock.until_done(asyncio.gather(kept.submit(ask(3)), dropped.submit(ask(3))))
        metrics = dropped.metrics_receiver()
        await clock.advance_ms(1)
        del dropped
        await clock.settle()
        assert await streams[1].recv() is None
        assert not metrics.value.idle
        gate.set(True)
        assert (await clock.until_done(read_all(streams[0])))[-1].completed
        assert metrics.value.idle
        assert metrics.value.active_blocks == 0
        assert (await clock.until_done(submit_and_read(kept, ask(2))))[-1].completed
        await rest_and_stop(clock, kept)

    run_virtual(main)


@pytest.mark.parametrize("in_flight", ["in mid-pass", "while submitting", "between two batches"])
def test_boundary_04_whatever_the_dropped_rank_was_doing(in_flight: str) -> None:
    async def main(clock: VirtualClock) -> None:
        kept, dropped = start_ranks(clock, [RankConfig(), RankConfig()], speedup_ratio=SLOW)
        first = await clock.until_done(kept.submit(ask(5)))
        metrics = dropped.metrics_receiver()
        await clock.advance_ms(1)
        submit = asyncio.ensure_future(rank_of(dropped).submit(dropped.prepare(ask(50))[0]).wait())
        if in_flight != "while submitting":
            await clock.until_done(submit)
        if in_flight == "between two batches":
            await clock.advance_ms(1.5)
        del dropped
        await clock.settle()
        if in_flight == "while submitting":
            assert isinstance(await outcome_of(clock, submit), NotRunning)
        assert (await clock.until_done(read_all(first)))[-1].completed
        await clock.until_done(until_idle(kept))
        assert (await clock.until_done(submit_and_read(kept, ask(1))))[-1].completed
        assert metrics.value.idle
        await rest_and_stop(clock, kept)

    run_virtual(main)


def test_boundary_07_dropping_the_engine_closes_streams() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, RankConfig(output_buffering="full"), **LARGE)
        streams = await clock.until_done(asyncio.gather(*(engine.submit(ask(10_000)) for _ in range(2))))
        waiting = asyncio.ensure_future(read_all(streams[0]))
        await clock.advance_ms(1)
        assert not waiting.done()
        group = group_of(engine)
        del engine
        await clock.settle()
        assert waiting.done()
        assert 0 < len(await read_all(streams[1])) < 10_000
        assert group.driver.actor.done()
        assert not group.ranks[0].routes
        await group.stopped()  # without an error

    run_virtual(main)


class Publisher:
    """Something a caller attaches and does not keep."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def __call__(self, event: object) -> None:
        self.events.append(event)


def test_boundary_24_shutdown_waits_for_publishers_to_be_destroyed() -> None:
    async def main(clock: VirtualClock) -> None:
        publishers = [Publisher(), Publisher()]
        alive = [weakref.ref(publisher) for publisher in publishers]
        engine = start(clock, RankConfig(kv_publishers=publishers[:1], forward_pass_publisher=publishers[1]))
        del publishers[:]
        await clock.until_done(submit_and_read(engine, ask(3)))
        assert all(ref() is not None for ref in alive)
        await clock.until_done(engine.shutdown())
        assert [ref() for ref in alive] == [None, None]
        assert_stopped(engine)

    gc.disable()  # nobody has to come for them
    try:
        run_virtual(main, collect=False)
    finally:
        gc.enable()


def test_boundary_25_admission_sink_closed() -> None:
    async def main(clock: VirtualClock) -> None:
        admissions: BoundedLane = BoundedLane(None)
        engine = start(clock, RankConfig(admissions=admissions))
        admissions.close_reader()
        stream = await clock.until_done(engine.submit(ask()))
        assert await clock.until_done(read_all(stream)) == []
        errors = [await outcome_of(clock, engine.shutdown()) for _ in range(3)]
        assert all(isinstance(error, LiveError) for error in errors)
        assert {str(error) for error in errors} == {
            "scheduler failed: event dispatcher of rank 0: admission receiver closed"
        }
        assert_stopped(engine)

    run_virtual(main)


def test_boundary_33_shutdown_racing_a_request_at_every_turn() -> None:
    async def scenario(clock: VirtualClock, num_turns: int) -> bool:
        engine = start(clock)
        outcomes = []

        async def request(name: int) -> None:
            try:
                registration, stream = engine.prepare(ask(3, name=name))
                await asyncio.sleep(0)
                await engine.submit_prepared(registration)
                outcomes.append([signal.completed async for signal in stream])
            except NotRunning:
                outcomes.append(None)

        async def all_requests() -> None:
            for name in range(3):
                await asyncio.gather(request(name), request(name + 10))

        requests = asyncio.ensure_future(all_requests())
        await steps(clock, num_turns)
        in_time = not requests.done()
        assert await outcome_of(clock, engine.shutdown()) is None
        assert_stopped(engine)
        await clock.settle()
        assert requests.done()
        assert len(outcomes) == 6
        assert all(outcome is None or len(outcome) <= 3 for outcome in outcomes)
        return in_time

    assert at_every_turn(scenario) > 50


def test_boundary_33_a_request_that_shuts_the_engine_down() -> None:
    """The token fires between the first look at it and the insertion: the route must not stay."""

    class Tokens(list):
        def __len__(self) -> int:
            rank_of(engine).group.token.cancel()
            return super().__len__()

    async def main(clock: VirtualClock) -> None:
        nonlocal engine
        engine = start(clock)
        request = ask()
        structs.force_setattr(request, "prompt", Tokens([1, 2, 3]))
        with pytest.raises(NotRunning):
            engine.prepare(request)
        assert engine.active_request_count() == 0
        assert await outcome_of(clock, engine.shutdown()) is None
        assert_stopped(engine)

    engine: LiveEngine = None  # type: ignore[assignment]
    run_virtual(main)


class Use:
    """What a task may do with an engine and a stream of its; notes what it received."""

    def __init__(self, engine: LiveEngine, stream: RequestStream) -> None:
        self.engine = engine
        self.stream = stream
        self.received: list[int | None] = []

    async def submit(self) -> None:
        await self.engine.submit(ask(4, name=36))

    async def submit_prepared(self) -> None:
        registration, _stream = self.engine.prepare(ask(4, name=36))
        await self.engine.submit_prepared(registration)

    async def receive(self) -> None:
        while (signal := await self.stream.recv()) is not None:
            self.received.append(signal.position)

    async def use_a_body(self) -> None:
        async with await self.engine.submit(ask(4, name=36)) as stream:
            async for _ in stream:
                await asyncio.sleep(0)

    async def cancel_a_stream(self) -> None:
        await self.stream.cancel()

    async def cancel_by_id(self) -> None:
        await self.engine.cancel(self.stream.client_id)

    async def shutdown(self) -> None:
        await self.engine.shutdown()


OPERATIONS = [
    Use.submit, Use.submit_prepared, Use.receive, Use.use_a_body, Use.cancel_a_stream, Use.cancel_by_id, Use.shutdown,
]  # fmt: skip


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a pass"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_boundary_35_task_cancelled_at_every_turn(operation: Callable[[Use], Awaitable[None]], busy: bool) -> None:
    """Of submit, receive, cancel and shutdown: a task cancelled after k turns, for all k until it ends by itself."""

    async def scenario(clock: VirtualClock, num_turns: int) -> bool:
        engine = start(clock, speedup_ratio=SLOW)
        stream = await clock.until_done(engine.submit(ask(6, name=35)))
        if busy:
            await clock.advance_ms(4)
        use = Use(engine, stream)
        task = asyncio.ensure_future(operation(use))
        await steps(clock, num_turns)
        in_time = task.cancel()
        await clock.settle()
        assert task.done()  # at once, whatever it waited for
        assert task.cancelled() == in_time
        if operation is Use.shutdown:
            # It goes on without its caller, if it had begun.
            assert engine.running == (num_turns == 0)
        elif operation in (Use.cancel_a_stream, Use.cancel_by_id):
            if num_turns == 0:
                stream.drop()
        else:
            # No signal that was on its way is lost: the next reader gets it.
            rest = [signal.position for signal in await clock.until_done(read_all(stream))]
            assert use.received + rest == list(range(6))
        if engine.running:
            await clock.until_done(until_idle(engine))
            # The names are free: whatever was submitted has ended, or was cancelled with its caller.
            for client in (35, 36):
                signals = await clock.until_done(submit_and_read(engine, ask(2, name=client)))
                assert [signal.completed for signal in signals] == [False, True]
        assert await outcome_of(clock, engine.shutdown()) is None
        assert_stopped(engine)
        return in_time

    assert at_every_turn(scenario) >= 2


def test_boundary_35_one_signal_cancelled_at_every_turn() -> None:
    """Cancelled in the very turn in which a signal arrives, and in the turns around it."""

    async def scenario(clock: VirtualClock, num_turns: int) -> bool:
        engine = start(clock)
        stream = await clock.until_done(engine.submit(ask(5)))
        got = []

        async def receive_one() -> None:
            got.append(await stream.recv())

        first = asyncio.ensure_future(receive_one())
        await steps(clock, num_turns)
        in_time = first.cancel()
        got += await clock.until_done(read_all(stream))
        assert [signal.position for signal in got] == list(range(5))
        await rest_and_stop(clock, engine)
        return in_time

    assert at_every_turn(scenario) > 2


def test_boundary_35_a_submit_that_is_cancelled_drops_its_stream_at_once() -> None:
    """Not only when the exception, and the frames it holds, are collected."""

    async def main(clock: VirtualClock) -> None:
        engine = start(clock, RankConfig(output_buffering="full"), speedup_ratio=SLOW)
        first = await clock.until_done(engine.submit(ask(3)))
        await clock.advance_ms(1)
        task = asyncio.ensure_future(engine.submit(ask(100)))
        await clock.settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as kept:
            await task
        assert (await clock.until_done(read_all(first)))[-1].completed
        assert engine.active_request_count() == 0
        assert kept.value is not None
        await rest_and_stop(clock, engine)

    run_virtual(main)


def collect_elsewhere(holder: list) -> None:
    """The last reference goes away on another thread."""
    thread = threading.Thread(target=holder.clear)
    thread.start()
    thread.join()


def test_boundary_36_stream_collected_in_a_foreign_thread() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        streams = [await clock.until_done(engine.submit(ask(50))) for _ in range(2)]
        registrations = [engine.prepare(ask())[0]]
        assert engine.active_request_count() == 3
        collect_elsewhere(streams)
        collect_elsewhere(registrations)
        await clock.settle()
        assert engine.active_request_count() == 0
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_36_engine_collected_in_a_foreign_thread() -> None:
    async def main(clock: VirtualClock) -> None:
        engines = list(start_ranks(clock, [RankConfig(), RankConfig()]))
        group = group_of(engines[0])
        collect_elsewhere(engines)
        await clock.settle()
        assert group.driver.actor.done()

    run_virtual(main)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("orderly", [False, True], ids=["left running", "shut down"])
def test_boundary_36_collected_after_the_loop_closed(orderly: bool) -> None:
    async def main(clock: VirtualClock) -> list[object]:
        (engine,) = LiveEngine.start_attached(fixture_config(), [RankConfig()], Attachments(clock=clock))
        stream = await clock.until_done(engine.submit(ask(50)))
        registration, other = engine.prepare(ask())
        if orderly:
            await clock.until_done(engine.shutdown())
        return [engine, stream, registration, other]

    loop = VirtualTimeLoop()
    seen: list[object] = []
    loop.set_exception_handler(lambda _, context: seen.append(context))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:

        async def with_clock() -> list[object]:
            return await main(VirtualClock(loop))

        left = runner.run(with_clock())
    assert loop.is_closed()
    left.clear()
    gc.collect()
    assert not seen


def test_boundary_36_loop_that_closes_at_this_very_moment() -> None:
    class Closing:
        """Still open when it is asked, closed when it is called."""

        def is_closed(self) -> bool:
            return False

        def call_soon_threadsafe(self, callback: object) -> None:
            raise RuntimeError("Event loop is closed")

    call_on(Closing(), lambda: None)  # type: ignore[arg-type]


def test_boundary_39_one_engine_s_failure_inside_a_group() -> None:
    async def main(clock: VirtualClock) -> None:
        admissions: BoundedLane = BoundedLane(None)
        ranks = [RankConfig(), RankConfig(admissions=admissions), RankConfig()]
        engines = start_ranks(clock, ranks, **LARGE)
        streams = [await clock.until_done(engine.submit(ask(10_000))) for engine in (engines[0], engines[2])]
        waiting = [asyncio.ensure_future(read_all(stream)) for stream in streams]
        await clock.advance_ms(1)
        assert not any(read.done() for read in waiting)
        admissions.close_reader()
        failing = await clock.until_done(engines[1].submit(ask()))
        assert await clock.until_done(read_all(failing)) == []
        await clock.until_done(asyncio.wait(waiting))
        for engine in engines:
            with pytest.raises(NotRunning):
                engine.prepare(ask())
        errors = [str(await outcome_of(clock, engine.shutdown())) for engine in engines]
        assert set(errors) == {"scheduler failed: event dispatcher of rank 1: admission receiver closed"}
        for engine in engines:
            assert_stopped(engine)

    run_virtual(main)


def test_boundary_39_a_shutdown_of_siblings_before_anybody_noticed() -> None:
    """The failed rank has nothing to deliver any more; its error counts for all the same."""

    async def main(clock: VirtualClock) -> None:
        engines = start_ranks(clock, [RankConfig(), RankConfig()])
        await clock.settle()
        rank_of(engines[1])._dispatcher.cancel()
        await clock.settle()
        errors = [str(await outcome_of(clock, engine.shutdown())) for engine in engines]
        assert set(errors) == {"scheduler failed: event dispatcher of rank 1: its task was cancelled"}

    run_virtual(main)


def test_boundary_39_an_engine_below_that_fails() -> None:
    class Broken:
        def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
            raise RuntimeError("no such figure")

        def decode(self, batch_size: int, active: int, mean_context_length: int, total: int) -> float:
            return 1.0

    async def main(clock: VirtualClock) -> None:
        engines = start_ranks(
            clock, [RankConfig(), RankConfig()], timing_model=TimingModel("callback", callable=Broken())
        )
        stream = await clock.until_done(engines[0].submit(ask()))
        assert await clock.until_done(read_all(stream)) == []
        errors = {str(await outcome_of(clock, engine.shutdown())) for engine in engines}
        assert len(errors) == 1
        assert "no such figure" in errors.pop()

    run_virtual(main)


def test_boundary_40_shutdown_from_inside_a_stream_consumer() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, **LARGE)

        async def consume() -> int:
            num_seen = 0
            async with await engine.submit(ask(10_000)) as stream:
                async for _ in stream:
                    num_seen += 1
                    if num_seen == 3:
                        await engine.shutdown()
            return num_seen

        assert await clock.until_done(consume()) == 3
        assert_stopped(engine)

    run_virtual(main)


@pytest.mark.parametrize("failing", [False, True])
def test_boundary_40_shutdown_from_ten_tasks(failing: bool) -> None:
    async def main(clock: VirtualClock) -> None:
        gate = Watch(True)
        engine = start(clock, RankConfig(output_gate=gate, output_buffering="full"), **LARGE)
        stream = await clock.until_done(engine.submit(ask(10_000)))
        await clock.advance_ms(1)
        if failing:
            gate.set(False)
            gate.close()
            await clock.advance_ms(1)
        tasks = [asyncio.ensure_future(engine.shutdown()) for _ in range(10)]
        tasks[3].cancel()
        await clock.until_done(asyncio.wait(tasks))
        assert tasks.pop(3).cancelled()
        texts = {str(task.exception()) for task in tasks}
        assert texts == {"scheduler failed: event dispatcher of rank 0: output gate closed" if failing else "None"}
        assert_stopped(engine)
        stream.drop()

    run_virtual(main)


def test_boundary_40_shutdown_of_every_rank_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        engines = start_ranks(clock, [RankConfig(), RankConfig()], **LARGE)
        streams = [await clock.until_done(engine.submit(ask(10_000))) for engine in engines]
        await clock.until_done(asyncio.gather(*(engine.shutdown() for engine in engines)))
        for engine, stream in zip(engines, streams, strict=True):
            assert_stopped(engine)
            assert len(await read_all(stream)) <= 8
            assert await engine.cancel(uuid.UUID(int=1)) is False
            assert await stream.cancel() is False

    run_virtual(main)
