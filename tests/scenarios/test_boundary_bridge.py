"""Boundary scenarios about what lies between driver and boundary: the order in which effects become visible."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from mocker_replay._core.lanes import Command
from mocker_replay.config.timing import TimingModel
from mocker_replay.events import CommandFlag, CommandKind, CommandResult, EventKind
from mocker_replay.live import ForwardPass, KvEvent, LiveEngine, LiveError, RankConfig, RequestStream, Watch
from mocker_replay.live.effects import Effects
from mocker_replay.live.request import OutputSignal
from mocker_replay.shells.boundary import Boundary, BoundarySlot
from mocker_replay.shells.published import EventRecord, Published
from tests.support.live import (
    SLOW,
    Commands,
    ask,
    assert_stopped,
    at_every_turn,
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
from tests.support.virtual_loop import VirtualClock, run_virtual


def effects_of(engine: LiveEngine) -> Effects:
    effects = group_of(engine)._effects
    assert effects is not None
    return effects


async def submit_all(clock: VirtualClock, engine: LiveEngine, num_tokens: Sequence[int]) -> list[RequestStream]:
    """Requests that share their first pass."""
    return list(await clock.until_done(asyncio.gather(*(engine.submit(ask(count)) for count in num_tokens))))


def test_boundary_27_cancellations_keep_the_discard_flag() -> None:
    async def main(clock: VirtualClock) -> None:
        commands = Commands()
        engine = start(clock, RankConfig(output_buffering=1), observer=commands, speedup_ratio=SLOW)
        dropped, _overflowing = await submit_all(clock, engine, [9, 9])
        await clock.advance_ms(3)
        await dropped.cancel()
        await clock.until_done(until_idle(engine))
        cancels = [given for given in commands.seen if given.command.kind == "cancel"]
        assert [(given.stimulus, given.command.discard) for given in cancels] == [
            ("cancel_item", True), ("boundary_apply", True),
        ]  # fmt: skip
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_27_no_op_cancel_cleans_up_only_where_output_was_suppressed() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, RankConfig(kv_publishers=[lambda event: None]), speedup_ratio=SLOW)
        group = group_of(engine)

        async def cancel(scheduler_id: int, *, discard: bool) -> tuple[CommandResult, bool]:
            answered: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
            group.send(
                lambda number: Command(number, "cancel", scheduler_id, 0, discard=discard),
                lambda event, text: answered.set_result(event),
            )
            event = await clock.until_done(answered)
            return CommandResult(event.head.b), event.suppressed

        (stream,) = await submit_all(clock, engine, [1])  # its one output is computed when the pass starts
        await clock.advance_ms(1)
        assert await cancel(0, discard=False) == (CommandResult.NOOP, False)
        assert len(group.plans) == 1
        assert await cancel(0, discard=True) == (CommandResult.NOOP, True)
        assert len(group.plans) == 0
        await clock.advance_ms(20)
        assert stream.num_unread == 0
        rank_of(engine).routes.close_all()  # its end was taken from it behind the back of the boundary
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_27_suppressed_output_counts_as_applied() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        (stream,) = await submit_all(clock, engine, [1])
        await clock.advance_ms(1)
        assert await clock.until_done(stream.cancel()) is True
        assert engine.active_request_count() == 0
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_27_ranks_publish_apart() -> None:
    async def main(clock: VirtualClock) -> None:
        kv: list[list[KvEvent]] = [[], []]
        passes: list[list[ForwardPass]] = [[], []]
        ranks = [
            RankConfig(kv_publishers=[kv[rank].append], forward_pass_publisher=passes[rank].append) for rank in range(2)
        ]
        engines = start_ranks(clock, ranks)
        reads = [submit_and_read(engine, ask(1, name=rank)) for rank, engine in enumerate(engines)]
        await clock.until_done(asyncio.gather(*reads))
        for rank in range(2):
            assert {event.rank for event in kv[rank]} == {rank}
            assert {metrics.rank for metrics in passes[rank]} == {rank}
        assert kv[0][0].local_hashes != kv[1][0].local_hashes
        # A barrier: the second rank has an end of each pass, too, whether it had work or not.
        assert len(passes[0]) == len(passes[1])
        await rest_and_stop(clock, *engines)

    run_virtual(main)


def test_boundary_27_burst_shares_the_first_pass() -> None:
    async def main(clock: VirtualClock) -> None:
        passes: list[ForwardPass] = []
        engine = start(clock, RankConfig(forward_pass_publisher=passes.append))
        streams = await submit_all(clock, engine, [1, 1, 1, 1])
        for stream in streams:
            assert (await clock.until_done(read_all(stream)))[-1].completed
        assert [metrics.values["num_prefill_requests"] for metrics in passes] == [4]
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_27_cancellation_bypasses_a_deferred_command() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        (first,) = await submit_all(clock, engine, [5])
        await clock.advance_ms(1)
        second = asyncio.ensure_future(engine.submit(ask()))
        await clock.settle()
        assert await clock.until_done(first.cancel())
        assert clock.now_ms() == 1.0
        assert not second.done()  # unanswered until the pass ends
        assert (await clock.until_done(read_all(await clock.until_done(second))))[-1].completed
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_27_mid_pass_cancel_is_acknowledged_before_the_effects_of_the_pass() -> None:
    async def main(clock: VirtualClock) -> None:
        passes: list[ForwardPass] = []
        kv: list[KvEvent] = []
        engine = start(
            clock, RankConfig(forward_pass_publisher=passes.append, kv_publishers=[kv.append]), speedup_ratio=SLOW
        )
        metrics = engine.metrics_receiver()
        cancelled, other = await submit_all(clock, engine, [5, 2])
        before = metrics.value
        await clock.advance_ms(4)
        assert await clock.until_done(cancelled.cancel())
        assert clock.now_ms() == 4.0
        assert not passes
        assert not kv
        assert metrics.value == before  # others run: the figures show with the end of the pass
        await clock.advance_ms(5.9)
        assert not passes
        await clock.advance_ms(0.1)
        assert len(passes) == 1
        assert kv
        assert (metrics.value.running, metrics.value.waiting) == (1, 0)
        assert (await clock.until_done(read_all(other)))[-1].completed
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_27_applied_mid_pass_cancel_to_empty_shows_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        passes: list[ForwardPass] = []
        engine = start(clock, RankConfig(forward_pass_publisher=passes.append), speedup_ratio=SLOW)
        metrics = engine.metrics_receiver()
        (stream,) = await submit_all(clock, engine, [5])
        await clock.advance_ms(4)
        assert not metrics.value.idle
        assert await clock.until_done(stream.cancel())
        assert metrics.value.idle
        assert metrics.value.active_blocks == 0
        assert clock.now_ms() == 4.0
        assert not passes
        await clock.advance_ms(6)
        assert len(passes) == 1
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_27_no_op_cancel_shows_no_early_end() -> None:
    """The only request ends with the pass in flight; an order for somebody else must not tell before it does."""

    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        metrics = engine.metrics_receiver()
        (stream,) = await submit_all(clock, engine, [1])
        await clock.advance_ms(4)
        answered: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        group_of(engine).send(
            lambda number: Command(number, "cancel", 99, 0, discard=True),
            lambda event, text: answered.set_result(event),
        )
        assert (await clock.until_done(answered)).head.b == CommandResult.NOOP
        assert not metrics.value.idle
        await clock.until_done(read_all(stream))
        assert metrics.value.idle
        await rest_and_stop(clock, engine)

    run_virtual(main)


def record(kind: EventKind, *, t_ms: float = 4.0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> EventRecord:
    return EventRecord(t_ms, 0.0, a, b, c, d, 0, 0, kind, 0, 0, 0)


def test_boundary_27_mid_pass_cache_events_show_at_completion_before_the_forward_pass() -> None:
    """No command of the flavours built so far brings cache events: one is handed to the dispatcher."""

    async def main(clock: VirtualClock) -> None:
        seen: list[tuple[str, float]] = []
        rank = RankConfig(
            kv_publishers=[lambda event: seen.append(("kv", event.t_ms))],
            forward_pass_publisher=lambda metrics: seen.append(("forward pass", metrics.t_ms)),
        )
        engine = start(clock, rank, speedup_ratio=SLOW)
        (stream,) = await submit_all(clock, engine, [1])
        await clock.advance_ms(4)
        head = record(EventKind.COMMAND, a=CommandKind.CANCEL, b=CommandResult.APPLIED, c=CommandFlag.IN_PASS, d=10**6)
        removed = record(EventKind.KV_REMOVED, a=1, c=0, d=1)
        command = Published(EventKind.COMMAND, [head, record(EventKind.GAUGES, c=1), removed], [77], None)
        effects_of(engine)._command(command)
        assert not seen
        await clock.until_done(read_all(stream))
        assert seen == [("kv", 10.0), ("kv", 4.0), ("forward pass", 10.0)]
        seen.clear()
        effects_of(engine)._command(command._replace(records=[head._replace(c=0), record(EventKind.GAUGES), removed]))
        assert seen == [("kv", 4.0)]  # without a pass in flight at once
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_27_closed_output_receiver_cancels_at_the_first_boundary() -> None:
    async def main(clock: VirtualClock) -> None:
        passes: list[ForwardPass] = []
        engine = start(clock, RankConfig(forward_pass_publisher=passes.append))
        (stream,) = await submit_all(clock, engine, [9])
        stream._route.abandon()  # without a cancellation
        await clock.until_done(until_idle(engine))
        assert engine.metrics_receiver().value.active_blocks == 0
        await clock.advance_ms(100)
        assert len(passes) == 1
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_27_failed_deliveries_are_cancelled_in_the_order_of_their_ids() -> None:
    async def main(clock: VirtualClock) -> None:
        commands = Commands()
        engine = start(clock, observer=commands)
        streams = []
        for scheduler_id in (9, 3, 5):
            registration, stream = rank_of(engine).prepare(ask(9), scheduler_id=scheduler_id)
            rank_of(engine).submit(registration)
            streams.append(stream)
        await clock.turns(1)
        for stream in streams[:2]:
            stream._route.abandon()
        assert (await clock.until_done(read_all(streams[2])))[-1].completed
        applied = [given.command.request for given in commands.seen if given.stimulus == "boundary_apply"]
        assert applied == [3, 9]
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_27_a_publisher_that_fails_is_called_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        num_calls = 0

        def publish(metrics: ForwardPass) -> None:
            nonlocal num_calls
            num_calls += 1
            raise RuntimeError("no connection")

        engine = start(clock, RankConfig(forward_pass_publisher=publish))
        assert (await clock.until_done(submit_and_read(engine, ask(3))))[-1].completed
        assert num_calls == 3
        await rest_and_stop(clock, engine)

    run_virtual(main)
    assert caplog.text.count("a publisher failed") == 3


SIGNALS = [OutputSignal(7, 0, False, None, 1.0)]


def test_boundary_28_output_send_unresolved_until_acknowledged() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = Watch(False)
        engine = start(clock, RankConfig(output_gate=gate))
        send = asyncio.ensure_future(effects_of(engine)._deliver(rank_of(engine), SIGNALS))
        await clock.settle()
        assert rank_of(engine).batches.unsettled == 1
        assert not send.done()
        gate.set(True)
        assert await clock.until_done(send) == []
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_28_acknowledgement_dropped_after_cancel() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, RankConfig(output_gate=Watch(False)))
        send = asyncio.ensure_future(effects_of(engine)._deliver(rank_of(engine), SIGNALS))
        await clock.settle()
        await clock.until_done(engine.shutdown())
        assert await send is None
        assert await effects_of(engine)._deliver(rank_of(engine), SIGNALS) is None

    run_virtual(main)


def test_boundary_28_acknowledgement_dropped_without_cancel() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        await clock.settle()
        rank_of(engine).batches.close_reader()
        with pytest.raises(LiveError, match="ordered lane of rank 0 is closed"):
            await effects_of(engine)._deliver(rank_of(engine), SIGNALS)
        error = await outcome_of(clock, engine.shutdown())
        assert str(error) == "scheduler failed: event dispatcher of rank 0: the ordered lane closed unexpectedly"

    run_virtual(main)


def test_boundary_28_pending_finish_is_ended_by_cancellation() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        slot = BoundarySlot(lambda: None)
        finish = asyncio.ensure_future(effects_of(engine)._finish(Boundary(slot)))
        await clock.settle()
        assert not finish.done()
        slot.close("engine stopped before acknowledging")  # as the driver does when its token fires
        assert await finish is None
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_28_ready_error_wins_over_cancellation() -> None:
    """A driver that fails while a shutdown comes in, at every turn: what it said is not lost."""

    class Broken:
        def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
            return 1.0

        def decode(self, batch_size: int, active: int, mean_context_length: int, total: int) -> float:
            if active > 10:
                raise RuntimeError("no such figure")
            return 1.0

    outcomes = []

    async def scenario(clock: VirtualClock, num_turns: int) -> bool:
        engine = start(clock, timing_model=TimingModel("callback", callable=Broken()))
        read = asyncio.ensure_future(submit_and_read(engine, ask(9)))
        await steps(clock, num_turns)
        in_time = not read.done()
        group = group_of(engine)
        error = await outcome_of(clock, engine.shutdown())
        failed = group.driver.shell.error
        assert (error is not None) == (failed is not None)
        assert failed is None or failed in str(error)
        outcomes.append(failed is not None)
        assert_stopped(engine)
        await outcome_of(clock, read)
        return in_time

    at_every_turn(scenario)
    assert set(outcomes) == {False, True}
