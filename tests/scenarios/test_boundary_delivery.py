"""Boundary scenarios about output: queues and their overflow, the gate, what counts as delivered, cancellations."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import pytest

from mocker_replay.live import EngineMetrics, LiveEngine, LiveError, NotRunning, RankConfig, RequestStream, Watch
from mocker_replay.live.effects import publish_metrics
from mocker_replay.live.metrics import ForwardPass
from mocker_replay.live.rank import Outputs
from mocker_replay.live.request import OutputSignal, Signal, TokenPlan
from mocker_replay.live.route import CancelResult, Delivery, Route, RouteState
from tests.support.live import (
    SLOW,
    Commands,
    ask,
    group_of,
    outcome_of,
    rank_of,
    read_all,
    rest_and_stop,
    start,
    submit_and_read,
    tokens_of,
    until_idle,
)  # fmt: skip
from tests.support.virtual_loop import VirtualClock, run_virtual

CLIENT = uuid.UUID(int=1)


def make_route(capacity: int = 8, scheduler_id: int = 2, client_id: uuid.UUID = CLIENT) -> Route:
    return Route(client_id, scheduler_id, capacity, TokenPlan(None, "a"))


def output(scheduler_id: int = 2, position: int = 0, *, completed: bool = False) -> OutputSignal:
    return OutputSignal(scheduler_id, position, completed, "output_length" if completed else None, 1.0)


def signal(position: int = 0) -> Signal:
    return Signal(CLIENT, position, False, None, 1.0, 1.0, lambda at: at)


async def dispatch(engine: LiveEngine, signals: Sequence[OutputSignal]) -> list[OutputSignal] | None:
    """What the scheduler is told about a batch."""
    batch = Outputs(list(signals), asyncio.get_running_loop().create_future())
    await rank_of(engine).batches.send(batch)
    return await batch.failed


def test_boundary_01_failed_batch_reports_scheduler_ids() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        rank_of(engine).routes.insert(make_route(capacity=1))
        assert await dispatch(engine, [output(2, 0)]) == []
        assert await dispatch(engine, [output(2, 1)]) == [output(2, 1)]
        assert engine.active_request_count() == 0
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_01_a_failed_send_changes_nothing() -> None:
    route = make_route(capacity=1)
    assert route.queue is not None
    queue = route.queue
    assert route.send(signal(0)) is Delivery.DELIVERED
    assert route.send(signal(1)) is Delivery.FULL
    assert queue.take_nowait().position == 0
    assert route.send(signal(1)) is Delivery.DELIVERED  # it is still the caller's
    route.abandon()  # the reader went away
    assert route.send(signal(2)) is Delivery.CLOSED
    assert queue.take_nowait().position == 1


def test_boundary_02_cache_observation_latch() -> None:
    """The flavour with this figure is not built: snapshots of its kind go through the watch."""

    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        metrics = engine.metrics_receiver()

        def publish(hit_tokens: int, total_tokens: int) -> tuple[int, int]:
            snapshot = EngineMetrics(0, 0, 128, 0, 0, 0, hit_tokens, total_tokens)
            publish_metrics(rank_of(engine), snapshot)
            return metrics.value.cache_hit_tokens, metrics.value.cache_total_tokens

        assert publish(0, 8) == (0, 8)
        assert publish(4, 8) == (4, 8)
        assert publish(0, 0) == (4, 8)  # a pass without prefill does not erase the last observation
        assert publish(0, 0) == (4, 8)
        assert publish(0, 8) == (0, 8)  # a real miss replaces it
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_15_boundary_waits_for_gated_delivery() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = Watch(False)
        engine = start(clock, RankConfig(output_gate=gate))
        stream = await clock.until_done(engine.submit(ask(name=15)))
        await clock.advance_ms(25)
        cancel = asyncio.ensure_future(engine.cancel(uuid.UUID(int=15)))
        await clock.advance_ms(25)
        assert not cancel.done()
        gate.set(True)
        assert await clock.until_done(stream.recv()) is None
        assert await clock.until_done(cancel) is False
        assert (await clock.until_done(submit_and_read(engine, ask(name=15))))[-1].completed
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_15_draining_a_completion_waits_for_the_gate() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = Watch(False)
        engine = start(clock, RankConfig(output_gate=gate), speedup_ratio=SLOW)
        stream = await clock.until_done(engine.submit(ask()))
        await asyncio.wait_for(engine.drain_completion_boundary(), 1)  # in mid-pass there is nothing to wait for
        await clock.advance_ms(10)
        drain = asyncio.ensure_future(engine.drain_completion_boundary())
        await clock.advance_ms(5)
        assert not drain.done()
        gate.set(True)
        await clock.until_done(drain)
        assert (await read_all(stream))[-1].completed
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_16_full_stream_cancelled_others_unaffected() -> None:
    async def main(clock: VirtualClock) -> None:
        passes: list[ForwardPass] = []
        engine = start(clock, RankConfig(output_buffering=1, forward_pass_publisher=passes.append))
        slow, fast = await clock.until_done(asyncio.gather(engine.submit(ask(3)), engine.submit(ask(1))))
        assert (await clock.until_done(read_all(fast)))[-1].completed
        await clock.until_done(until_idle(engine))
        assert [signal.position for signal in await read_all(slow)] == [0]
        await clock.advance_ms(100)
        assert len(passes) == 2  # cancelled at the completion boundary, before a third
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_23_full_response_buffering() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, RankConfig(output_buffering="full"))
        streams = [await clock.until_done(engine.submit(ask(32))) for _ in range(4)]
        await clock.until_done(until_idle(engine))
        assert engine.active_request_count() == 0
        for stream in streams:
            signals = await read_all(stream)
            assert [signal.position for signal in signals] == list(range(32))
            assert [signal.completed for signal in signals] == [False] * 31 + [True]
            assert await stream.recv() is None
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_26_dispatcher_exit() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = Watch(False)
        engine = start(clock, RankConfig(output_gate=gate))
        stream = await clock.until_done(engine.submit(ask(3)))
        await clock.advance_ms(5)
        gate.close()
        assert await clock.until_done(stream.recv()) is None
        with pytest.raises(NotRunning):
            await engine.submit(ask())
        assert engine.active_request_count() == 0
        error = await outcome_of(clock, engine.shutdown())
        assert isinstance(error, LiveError)
        assert "output gate closed" in str(error)

    run_virtual(main)


def test_boundary_26_a_gate_that_was_left_open_needs_no_writer() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = Watch(True)
        gate.close()
        engine = start(clock, RankConfig(output_gate=gate))
        assert (await clock.until_done(submit_and_read(engine, ask(3))))[-1].completed
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_30_two_concurrent_cancels_of_one_request() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        stream = await clock.until_done(engine.submit(ask(5, name=30)))
        both = asyncio.gather(engine.cancel(uuid.UUID(int=30)), stream.cancel())
        assert await clock.until_done(both) == [True, False]
        assert await engine.cancel(uuid.UUID(int=30)) is False
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_30_any_number_of_cancels() -> None:
    """They stand in line; none of them calls the next."""

    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        stream = await clock.until_done(engine.submit(ask(5, name=30)))
        cancels = [rank_of(engine).cancel_route(stream._route) for _ in range(3000)]
        outcomes = await clock.until_done(asyncio.gather(*(cancel.wait() for cancel in cancels)))
        assert outcomes == [True] + [False] * 2999
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_30_cancels_stand_in_line_behind_one_that_failed() -> None:
    """Each asks the scheduler itself, one after the other, until one has an effect."""

    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        stream = await clock.until_done(engine.submit(ask(5)))
        refuse_cancels(engine, 2)
        cancels = [rank_of(engine).cancel_route(stream._route) for _ in range(4)]
        outcomes = [await outcome_of(clock, cancel.wait()) for cancel in cancels]
        assert [isinstance(outcome, LiveError) or outcome for outcome in outcomes] == [True, True, True, False]
        assert [isinstance(outcome, LiveError) for outcome in outcomes] == [True, True, False, False]
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_30_a_route_that_is_not_in_the_maps_is_not_cancelled() -> None:
    async def main(clock: VirtualClock) -> None:
        commands = Commands()
        engine = start(clock, observer=commands, speedup_ratio=SLOW)
        stream = await clock.until_done(engine.submit(ask(2)))
        route = stream._route
        rank_of(engine).routes.remove(route)
        assert await stream.cancel() is False
        rank_of(engine).routes.insert(route)
        await clock.until_done(until_idle(engine))
        assert [given.stimulus for given in commands.seen] == ["command_item", "boundary_apply"]
        await rest_and_stop(clock, engine)

    run_virtual(main)


def refuse_cancels(engine: LiveEngine, num_cancels: int = 1) -> None:
    """The scheduler answers so many cancellations with an error."""
    rank = rank_of(engine)
    left = num_cancels

    def refuse(route, on_result) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            del rank.send_cancel
        asyncio.get_running_loop().call_soon(on_result, None, "refused for a test")

    rank.send_cancel = refuse


def test_boundary_31_cancel_error_from_the_scheduler() -> None:
    async def main(clock: VirtualClock) -> None:
        passes: list[ForwardPass] = []
        engine = start(clock, RankConfig(forward_pass_publisher=passes.append), speedup_ratio=SLOW)
        stream = await clock.until_done(engine.submit(ask(5)))
        refuse_cancels(engine)
        error = await outcome_of(clock, stream.cancel())
        assert isinstance(error, LiveError)
        assert "refused for a test" in str(error)
        route = stream._route
        assert (route.state, route.abandoned) == (RouteState.ACTIVE, True)
        assert engine.active_request_count() == 1
        await clock.until_done(until_idle(engine))
        assert (clock.now_ms(), len(passes)) == (10.0, 1)  # at the first boundary
        assert route.state is RouteState.CLOSED
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_31_nobody_hears_the_error_of_a_drop(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        stream = await clock.until_done(engine.submit(ask(5)))
        refuse_cancels(engine)
        stream.drop()
        await clock.settle()
        assert "refused for a test" in caplog.text
        await rest_and_stop(clock, engine)

    run_virtual(main)


@pytest.mark.parametrize("result", CancelResult)
def test_boundary_32_terminal_output_while_cancelling(result: CancelResult) -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        route = make_route()
        assert route.queue is not None
        stream = RequestStream(rank_of(engine), route, route.queue)
        rank_of(engine).routes.insert(route)
        route.activate()
        assert route.begin_cancellation()
        assert await dispatch(engine, [output(completed=True)]) == []
        assert [signal.completed for signal in await read_all(stream)] == [True]
        assert engine.active_request_count() == 1  # until the acknowledgement
        assert route.finish_cancellation(result)
        rank_of(engine).routes.remove(route)
        assert not route.finish_cancellation(result)
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_37_batch_of_known_unknown_and_full_routes() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        known, full, later = (make_route(2, number, uuid.UUID(int=number)) for number in (2, 3, 4))
        queues = [route.queue for route in (known, full, later)]
        for route in (known, full, later):
            rank_of(engine).routes.insert(route)
        full.send(signal())
        full.send(signal())
        batch = [output(2, 0), output(9, 0), output(3, 2), output(4, 0), output(2, 1), output(3, 3), output(4, 1)]
        # The second signal of the full one finds no route any more, which is as good as delivered.
        assert await dispatch(engine, batch) == [output(3, 2)]
        read = [[queue.take_nowait().position for _ in range(len(queue))] for queue in queues if queue is not None]
        assert read == [[0, 1], [0, 0], [0, 1]]
        assert engine.active_request_count() == 2
        rank_of(engine).routes.close_all()
        await rest_and_stop(clock, engine)

    run_virtual(main)


@pytest.mark.parametrize("num_tokens", range(1, 7))
@pytest.mark.parametrize("capacity", [1, 3, 5])
def test_boundary_38_overflow_at_the_boundaries_of_capacity(num_tokens: int, capacity: int) -> None:
    async def main(clock: VirtualClock) -> None:
        passes: list[ForwardPass] = []
        rank = RankConfig(output_buffering=capacity, forward_pass_publisher=passes.append)
        engine = start(clock, rank)
        stream = await clock.until_done(engine.submit(ask(num_tokens)))
        assert stream._queue.capacity == min(num_tokens, capacity)
        await clock.until_done(until_idle(engine))
        signals = await read_all(stream)
        assert [signal.position for signal in signals] == list(range(min(num_tokens, capacity)))
        assert signals[-1].completed == (num_tokens <= capacity)
        assert len(passes) == min(num_tokens, capacity + 1)
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_38_a_reader_in_time_is_not_cancelled() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, RankConfig(output_buffering=1))
        signals = await clock.until_done(submit_and_read(engine, ask(20)))
        assert [signal.position for signal in signals] == list(range(20))
        await rest_and_stop(clock, engine)

    run_virtual(main)


@pytest.mark.parametrize("every_turns", [1, 2, 3, 5])
def test_boundary_41_gate_toggled_while_batches_flow(every_turns: int) -> None:
    async def main(clock: VirtualClock) -> None:
        gate = Watch(False)
        engine = start(clock, RankConfig(output_gate=gate, output_buffering="full"))
        plans = [list(range(100 * row, 100 * row + 30)) for row in range(4)]
        submits = [engine.submit(ask(output_ids=plan)) for plan in plans]
        streams = await clock.until_done(asyncio.gather(*submits))
        most_pending = 0

        async def toggle() -> None:
            nonlocal most_pending
            while engine.active_request_count():
                gate.set(not gate.value)
                for _ in range(every_turns):
                    await asyncio.sleep(0)
                    most_pending = max(most_pending, rank_of(engine).batches.unsettled)
                if gate.value:
                    await asyncio.sleep(1e-6)

        await clock.until_done(toggle())
        gate.set(True)
        for plan, stream in zip(plans, streams, strict=True):
            assert tokens_of(await clock.until_done(read_all(stream))) == plan
        assert most_pending == 1
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_44_metrics_watcher_that_never_reads() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        metrics = engine.metrics_receiver()
        seen_by_a_reader = []

        async def read_now_and_then() -> None:
            version = metrics.version
            while True:
                version = await metrics.changed(version)
                seen_by_a_reader.append(metrics.value)

        version, sizes = metrics.version, set()
        reader = asyncio.ensure_future(read_now_and_then())
        for _ in range(50):
            await clock.until_done(submit_and_read(engine, ask(3)))
            await clock.settle()
            sizes.add((len(metrics._waiters), *sorted(vars(metrics))))
        assert metrics.version > version + 50
        assert len(sizes) == 1  # one waiter, and one value
        assert seen_by_a_reader[-1] == metrics.value  # readers may miss some, never the last
        assert group_of(engine).ranks[0].metrics is metrics
        reader.cancel()
        await rest_and_stop(clock, engine)

    run_virtual(main)
