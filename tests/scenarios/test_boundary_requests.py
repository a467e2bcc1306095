"""Boundary scenarios about requests: ids, registrations, admission, what is refused, what reaches the caller."""

from __future__ import annotations

import asyncio
import gc
import unicodedata
import uuid

import pytest

from mocker_replay.live import (
    Admission,
    AlreadyActive,
    BoundedLane,
    GenerateRequest,
    LiveEngine,
    LiveError,
    NotRunning,
    RankConfig,
    Watch,
    deterministic_output_tokens,
    stable_request_uuid,
)  # fmt: skip
from mocker_replay.live.metrics import ForwardPass
from mocker_replay.live.rank import Admissions, SeenAdmission
from mocker_replay.live.request import OutputSignal, Prompt
from tests.support.live import (
    SLOW,
    Commands,
    ask,
    fixture_config,
    group_of,
    outcome_of,
    rank_of,
    read_all,
    rest_and_stop,
    start,
    start_ranks,
    submit_and_read,
    tokens_of,
    until_idle,
)  # fmt: skip
from tests.support.virtual_loop import VirtualClock, run_virtual


def test_boundary_03_two_ranks_one_group() -> None:
    async def main(clock: VirtualClock) -> None:
        engines = start_ranks(clock, [RankConfig(), RankConfig()])
        requests = [ask(output_ids=[70 + rank]) for rank in range(2)]
        reads = [submit_and_read(engine, request) for engine, request in zip(engines, requests, strict=True)]
        for rank, signals in enumerate(await clock.until_done(asyncio.gather(*reads))):
            assert tokens_of(signals) == [70 + rank]
            assert signals[0].completed
        await rest_and_stop(clock, *engines)

    run_virtual(main)


def test_boundary_05_planned_tokens_reach_the_owner() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        stream = await clock.until_done(engine.submit(ask(name=5, output_ids=[41, 42, 43])))
        signals = await clock.until_done(read_all(stream))
        assert [(signal.client_id, signal.token_id) for signal in signals] == [
            (uuid.UUID(int=5), token) for token in (41, 42, 43)
        ]
        assert [signal.completed for signal in signals] == [False, False, True]
        assert signals[-1].reason == "output_length"
        assert await stream.recv() is None
        assert engine.active_request_count() == 0
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_05_tokens_without_a_plan_follow_from_the_client_id() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        signals = await clock.until_done(submit_and_read(engine, ask(3, name=5)))
        assert tokens_of(signals) == deterministic_output_tokens(0, str(uuid.UUID(int=5)), 3)
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_06_speculative_lifecycle_drains() -> None:
    async def main(clock: VirtualClock) -> None:
        passes: list[ForwardPass] = []
        engine = start(
            clock, RankConfig(forward_pass_publisher=passes.append), aic_nextn=2, aic_nextn_accept_rates="1,1"
        )
        plans = [list(range(100 * row, 100 * row + 7)) for row in range(8)]
        reads = [submit_and_read(engine, ask(name=row, output_ids=plan)) for row, plan in enumerate(plans)]
        for plan, signals in zip(plans, await clock.until_done(asyncio.gather(*reads)), strict=True):
            assert tokens_of(signals) == plan
            assert [signal.completed for signal in signals] == [False] * 6 + [True]
        await rest_and_stop(clock, engine)
        assert 0 < len(passes) < 7

    run_virtual(main)


def test_boundary_09_duplicate_client_id() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        stream = await clock.until_done(engine.submit(ask(5, name=9)))
        with pytest.raises(AlreadyActive, match=f"{uuid.UUID(int=9)} is already active"):
            engine.prepare(ask(name=9))
        with pytest.raises(AlreadyActive):
            await engine.submit(ask(name=9))
        assert engine.active_request_count() == 1
        assert await clock.until_done(engine.cancel(uuid.UUID(int=9)))
        assert engine.active_request_count() == 0
        assert await stream.recv() is None
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_09_colliding_scheduler_id() -> None:
    """Only a replay names requests itself; the route that is there is left alone, and the client id is free."""

    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        registration, _stream = rank_of(engine).prepare(ask(name=1), scheduler_id=4)
        with pytest.raises(LiveError, match="internal id collision"):
            rank_of(engine).prepare(ask(name=2), scheduler_id=4)
        assert engine.active_request_count() == 1
        registration.drop()
        assert engine.active_request_count() == 0
        await rest_and_stop(clock, engine)

    run_virtual(main)


@pytest.mark.parametrize("losing", [False, True], ids=["drop", "last reference"])
def test_boundary_10_dropping_a_registration(losing: bool) -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        registration, stream = engine.prepare(ask(name=10))
        if losing:
            del registration
            await clock.settle()
        else:
            registration.drop()
        assert engine.active_request_count() == 0
        assert await stream.recv() is None
        signals = await clock.until_done(submit_and_read(engine, ask(name=10)))
        assert signals[-1].completed
        await rest_and_stop(clock, engine)

    run_virtual(main)


@pytest.mark.parametrize("fields", [{"max_output_tokens": 0}, {"max_output_tokens": 4, "output_ids": []}])
def test_boundary_17_empty_effective_output_is_refused(fields: dict) -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        with pytest.raises(LiveError, match="at least one output token"):
            await engine.submit(GenerateRequest(prompt=[1, 2, 3], **fields))
        assert engine.active_request_count() == 0
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_18_dropping_an_active_request() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = Watch(False)
        engine = start(clock, RankConfig(output_gate=gate), speedup_ratio=SLOW)
        stream = await clock.until_done(engine.submit(ask(4, name=18)))
        assert engine.metrics_receiver().value.running + engine.metrics_receiver().value.waiting == 1
        await clock.advance_ms(5)
        stream.drop()
        await clock.until_done(until_idle(engine))
        assert clock.now_ms() == 5.0  # in mid-pass: the pass goes on for nobody
        gate.set(True)
        signals = await clock.until_done(submit_and_read(engine, ask(4, name=18)))
        assert [signal.completed for signal in signals] == [False, False, False, True]
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_19_burst_at_one_boundary() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = Watch(False)
        engine = start(clock, RankConfig(output_gate=gate), speedup_ratio=SLOW)
        first = await clock.until_done(engine.submit(ask(3)))
        await clock.advance_ms(10)  # its pass has ended, and the boundary waits for the gate
        burst = [asyncio.ensure_future(engine.submit(ask())) for _ in range(6)]
        await clock.settle()
        assert engine.active_request_count() == 7
        assert not any(submit.done() for submit in burst)
        gate.set(True)
        await clock.settle()
        assert all(submit.done() for submit in burst)
        assert clock.now_ms() == 10.0
        for stream in [first, *(submit.result() for submit in burst)]:
            assert (await clock.until_done(read_all(stream)))[-1].completed
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_20_aborted_deferred_submit() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        first = await clock.until_done(engine.submit(ask(50)))
        await clock.advance_ms(1)
        second = asyncio.ensure_future(engine.submit(ask(50)))
        await clock.settle()
        assert engine.active_request_count() == 2
        assert not second.done()
        second.cancel()
        await clock.settle()
        assert second.cancelled()
        assert await clock.until_done(first.cancel())
        await clock.until_done(until_idle(engine))
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_21_admission_before_output() -> None:
    async def main(clock: VirtualClock) -> None:
        gate = Watch(False)
        admissions: BoundedLane[Admission] = BoundedLane(None)
        engine = start(clock, RankConfig(output_gate=gate, admissions=admissions))
        stream = await clock.until_done(engine.submit(ask(name=21)))
        admission = await clock.until_done(admissions.take())
        assert (admission.client_id, admission.reused_tokens) == (uuid.UUID(int=21), 0)
        await clock.advance_ms(3)
        assert stream.num_unread == 0
        gate.set(True)
        (signal,) = await clock.until_done(read_all(stream))
        assert signal.completed
        assert admission.observed_ms <= signal.observed_ms == clock.now_ms()
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_21_admission_before_output_with_the_gate_open() -> None:
    """One lane for both: whoever has seen an output can look for the admission."""

    async def main(clock: VirtualClock) -> None:
        admissions: BoundedLane[Admission] = BoundedLane(None)
        engine = start(clock, RankConfig(admissions=admissions))
        for name in range(3):
            stream = await clock.until_done(engine.submit(ask(2, name=name, prompt_tokens=8)))
            await clock.until_done(stream.recv())
            assert admissions.take_nowait().client_id == uuid.UUID(int=name)
            await clock.until_done(read_all(stream))
        again = await clock.until_done(engine.submit(GenerateRequest(prompt=range(2000, 2008))))
        assert (
            await clock.until_done(admissions.take())
        ).reused_tokens == 4  # the block of the last token is computed anew
        await clock.until_done(read_all(again))
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_21_an_output_stays_behind_an_admission_that_waits_for_its_turn() -> None:
    async def main(clock: VirtualClock) -> None:
        admissions: BoundedLane[Admission] = BoundedLane(None)
        engine = start(clock, RankConfig(admissions=admissions))
        rank = rank_of(engine)
        _registration, _stream = rank.prepare(ask(), scheduler_id=7)
        await rank.batches.send(Admissions([SeenAdmission(7, 0, 1.0)]))
        assert rank.deliver_now([OutputSignal(7, 0, False, None, 1.0)]) is None
        await clock.settle()
        assert len(admissions) == 1
        assert rank.deliver_now([OutputSignal(7, 0, False, None, 1.0)]) == []
        rank.routes.close_all()
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_22_zero_output_allowed() -> None:
    """As the engine does for no output: the prompt is computed, and the pass ends with a terminal alone."""

    async def main(clock: VirtualClock) -> None:
        engine = start(clock, RankConfig(allow_zero_output=True), speedup_ratio=SLOW)
        for request in (ask(0, name=1), ask(name=2, output_ids=[])):
            before_ms = clock.now_ms()
            (signal,) = await clock.until_done(submit_and_read(engine, request))
            assert (signal.position, signal.token_id, signal.completed) == (None, None, True)
            assert signal.t_ms == before_ms + 10.0
        await rest_and_stop(clock, engine)

        strict = start(clock)
        with pytest.raises(LiveError, match="at least one output token"):
            strict.prepare(ask(0))
        await rest_and_stop(clock, strict)

    run_virtual(main)


def test_boundary_29_cancel_while_submitting() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        first = await clock.until_done(engine.submit(ask(2)))
        await clock.advance_ms(1)
        submit = asyncio.ensure_future(engine.submit(ask(5, name=29)))
        await clock.settle()
        cancel = asyncio.ensure_future(engine.cancel(uuid.UUID(int=29)))
        await clock.settle()
        assert not submit.done()
        assert not cancel.done()  # waits for the admission
        await clock.advance_ms(9)
        assert await cancel is True
        assert await (await submit).recv() is None
        assert (await clock.until_done(read_all(first)))[-1].completed
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_29_cancel_while_submitting_and_the_admission_fails() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        first = await clock.until_done(engine.submit(ask(2)))
        await clock.advance_ms(1)
        # A replay names the blocks itself; too few of them are refused by the scheduler.
        registration, other = rank_of(engine).prepare(ask(5, name=29), prompt=Prompt(100, (1, 2)))
        submit = asyncio.ensure_future(engine.submit_prepared(registration))
        await clock.settle()
        cancel = asyncio.ensure_future(engine.cancel(uuid.UUID(int=29)))
        await clock.settle()
        assert not cancel.done()
        error = await outcome_of(clock, submit)
        assert isinstance(error, LiveError)
        assert "hash ids do not cover the prompt" in str(error)
        assert await cancel is False
        assert await other.recv() is None
        assert engine.active_request_count() == 1
        first.drop()
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_34_registration_submitted_on_another_engine() -> None:
    async def main(clock: VirtualClock) -> None:
        mine, theirs = Commands(), Commands()
        engine, other = start(clock, observer=mine), start(clock, observer=theirs)
        registration, stream = engine.prepare(ask())
        with pytest.raises(LiveError, match="belongs to a different engine"):
            await other.submit_prepared(registration)
        assert await stream.recv() is None
        assert (engine.active_request_count(), other.active_request_count()) == (0, 0)
        for target in (engine, other):
            with pytest.raises(LiveError, match="already consumed"):
                await target.submit_prepared(registration)
        await clock.settle()
        assert not mine.seen
        assert not theirs.seen
        await rest_and_stop(clock, engine, other)

    run_virtual(main)


def test_boundary_34_registration_of_an_engine_that_is_gone() -> None:
    async def main(clock: VirtualClock) -> None:
        engine, other = start(clock), start(clock)
        registration, stream = engine.prepare(ask())
        del engine
        await clock.settle()
        with pytest.raises(LiveError, match="engine no longer exists"):
            await other.submit_prepared(registration)
        assert await stream.recv() is None
        registration, stream = other.prepare(ask())
        await clock.until_done(other.shutdown())
        with pytest.raises(NotRunning):
            await other.submit_prepared(registration)
        assert await stream.recv() is None

    run_virtual(main)


def test_boundary_42_same_client_id_on_two_ranks() -> None:
    async def main(clock: VirtualClock) -> None:
        engines = start_ranks(clock, [RankConfig(), RankConfig()])
        reads = [submit_and_read(engine, ask(name=42, output_ids=[rank, rank])) for rank, engine in enumerate(engines)]
        both = await clock.until_done(asyncio.gather(*reads))
        assert [tokens_of(signals) for signals in both] == [[0, 0], [1, 1]]
        await rest_and_stop(clock, *engines)

    run_virtual(main)


def test_boundary_43_scheduler_acknowledges_a_different_id() -> None:
    async def main(clock: VirtualClock) -> None:
        commands = Commands()
        engine = start(clock, observer=commands, speedup_ratio=SLOW)
        foreign = await clock.until_done(engine.submit(ask(3, name=1)))
        group = group_of(engine)
        answer = group.answer

        def answer_for_the_foreign_one(event) -> None:
            records = [event.head._replace(request=foreign._route.scheduler_id), *event.records[1:]]
            group.answer = answer
            answer(event._replace(records=records))

        group.answer = answer_for_the_foreign_one
        error = await outcome_of(clock, engine.submit(ask(3, name=2)))
        assert isinstance(error, LiveError)
        assert f"{uuid.UUID(int=2)}: unexpected result submitted for request 0" in str(error)
        assert engine.active_request_count() == 1
        assert rank_of(engine).routes.by_client(uuid.UUID(int=1)) is not None
        assert (await clock.until_done(read_all(foreign)))[-1].completed
        assert {given.command.kind for given in commands.seen} == {"submit"}  # nothing was cancelled
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_boundary_45_no_running_loop() -> None:
    gc.collect()
    before = len(gc.get_objects())
    config = fixture_config()
    with pytest.raises(LiveError, match=r"LiveEngine\.start needs a running event loop"):
        LiveEngine.start(config)
    with pytest.raises(LiveError, match=r"LiveEngine\.start_grouped needs a running event loop"):
        LiveEngine.start_grouped(config, [RankConfig()])
    gc.collect()
    assert len(gc.get_objects()) < before + 500

    async def nothing(clock: VirtualClock) -> None:
        """The loop that runs later has nothing of them in it."""

    run_virtual(nothing)


def test_boundary_46_names_equal_up_to_normalisation_differ() -> None:
    composed, decomposed = (unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD"))
    names = [stable_request_uuid(0, name) for name in (composed, decomposed)]
    assert names[0] != names[1]
    assert deterministic_output_tokens(0, composed, 4) != deterministic_output_tokens(0, decomposed, 4)

    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        reads = [
            submit_and_read(engine, GenerateRequest(prompt=[1, 2], max_output_tokens=2, client_id=name))
            for name in names
        ]
        for name, signals in zip(names, await clock.until_done(asyncio.gather(*reads)), strict=True):
            assert {signal.client_id for signal in signals} == {name}
        await rest_and_stop(clock, engine)

    run_virtual(main)
