"""The live boundary beside its numbered scenarios: what is refused, what is kept and for how long, the real clock."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import struct
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from mocker_replay.errors import ConfigError
from mocker_replay.live import BoundedLane, GenerateRequest, KvEvent, LiveEngine, LiveError, NotRunning, RankConfig
from mocker_replay.live.engine import Attachments
from mocker_replay.live.request import Prompt
from mocker_replay.shells.handle import spawn
from tests.support.live import (
    SLOW,
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
)  # fmt: skip
from tests.support.machines import make_machine, submit
from tests.support.virtual_loop import VirtualClock, run_virtual

REFUSED = {
    "no prompt": ({}, "either prompt or input_tokens"),
    "two prompts": ({"prompt": [1], "input_tokens": 1}, "either prompt or input_tokens"),
    "an empty prompt": ({"prompt": []}, "at least one token"),
    "ids beside tokens": ({"prompt": [1], "hash_ids": [1]}, "hash_ids go with input_tokens"),
    "a text": ({"prompt": "abc"}, "prompt must be integers"),
    "a large token": ({"prompt": [2**32]}, "prompt must lie in"),
    "a negative token": ({"prompt": [-1]}, "prompt must lie in"),
    "no input": ({"input_tokens": 0}, "input_tokens must lie in"),
    "a fraction": ({"input_tokens": 1.5}, "input_tokens must be an integer"),
    "too few ids": ({"input_tokens": 9, "hash_ids": [1, 2]}, "must name 3 blocks of 4 tokens"),
    "a large id": ({"input_tokens": 4, "hash_ids": [2**64]}, "hash_ids must lie in"),
    "a negative id": ({"input_tokens": 4, "hash_ids": [-1]}, "hash_ids must lie in"),
    "a negative output": ({"prompt": [1], "max_output_tokens": -1}, "max_output_tokens must lie in"),
    "a huge output": ({"prompt": [1], "max_output_tokens": 2**31}, "max_output_tokens must lie in"),
    "half an output": ({"prompt": [1], "max_output_tokens": 1.5}, "max_output_tokens must be an integer"),
    "a planned token that is none": ({"prompt": [1], "output_ids": [2**32]}, "output_ids must lie in"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_requests_the_core_could_not_hold_are_refused(name: str) -> None:
    """Before they reach the driver, which would stop over them."""
    fields, rule = REFUSED[name]

    async def main(clock: VirtualClock) -> None:
        engine = start(clock, RankConfig(allow_zero_output=True))
        with pytest.raises(LiveError, match=rule):
            engine.prepare(GenerateRequest(**fields))
        assert engine.active_request_count() == 0
        assert (await clock.until_done(submit_and_read(engine, ask(2))))[-1].completed
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_prompts_by_tokens_and_by_identities_share_prefixes_of_their_kind() -> None:
    async def main(clock: VirtualClock) -> None:
        admissions: BoundedLane = BoundedLane(None)
        engine = start(clock, RankConfig(admissions=admissions))
        for request in (
            GenerateRequest(prompt=[1, 2, 3, 4, 5, 6, 7, 8, 9]),
            GenerateRequest(prompt=[1, 2, 3, 4, 5, 6, 7, 8, 10]),
            GenerateRequest(prompt=[5, 6, 7, 8, 9]),  # equal tokens behind another prefix
            GenerateRequest(input_tokens=9, hash_ids=[7, 8, 9, 10, 11]),
            GenerateRequest(input_tokens=9, hash_ids=[7, 8, 12]),
        ):
            await clock.until_done(submit_and_read(engine, request))
        assert [admissions.take_nowait().reused_tokens for _ in range(5)] == [0, 8, 0, 0, 8]
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_cache_events_name_blocks_by_their_tokens() -> None:
    """The hashes a router makes from a prompt and its response: XXH3 with seed 1337, of the block and of the chain."""

    def hashes(tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        local = [
            xxh3_64_intdigest(struct.pack("<4I", *tokens[at : at + 4]), 1337)
            for at in range(0, len(tokens) // 4 * 4, 4)
        ]
        chain = local[:1]
        for value in local[1:]:
            chain.append(xxh3_64_intdigest(struct.pack("<2Q", chain[-1], value), 1337))
        return local, chain

    async def main(clock: VirtualClock) -> None:
        kv: list[KvEvent] = []
        engine = start(clock, RankConfig(kv_publishers=[kv.append]))
        requests = [
            (GenerateRequest(prompt=range(50, 60), output_ids=[7, 8, 9, 10, 11, 12, 13]), range(50, 60)),
            (GenerateRequest(prompt=[2**32 - 1] * 6, max_output_tokens=4), [2**32 - 1] * 6),
            (GenerateRequest(input_tokens=6, hash_ids=[5, 2**40 + 6], max_output_tokens=3), [5, 5, 5, 5, 6, 6]),
        ]
        for request, prompt in requests:
            kv.clear()
            signals = await clock.until_done(submit_and_read(engine, request))
            # The last token is never computed.
            local, chain = hashes([*prompt, *(token for token in tokens_of(signals)[:-1] if token is not None)])
            assert [value for event in kv for value in event.local_hashes] == local
            assert [value for event in kv for value in event.block_hashes] == chain
            firsts = [0, *itertools.accumulate(len(event.block_hashes) for event in kv)]
            parents = [chain[first - 1] if first else None for first in firsts[:-1]]
            assert [event.parent_hash for event in kv] == parents
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_generated_tokens_are_private_to_their_request() -> None:
    """A prompt that repeats a response hits the blocks of the first prompt only."""

    async def main(clock: VirtualClock) -> None:
        admissions: BoundedLane = BoundedLane(None)
        engine = start(clock, RankConfig(admissions=admissions))
        prompt, response = list(range(8)), list(range(100, 108))
        await clock.until_done(submit_and_read(engine, GenerateRequest(prompt=prompt, output_ids=response)))
        again = GenerateRequest(prompt=prompt + response + [1])
        for reused_tokens in (8, 16):  # the second time that prompt is known itself
            await clock.until_done(submit_and_read(engine, again))
            assert [admissions.take_nowait() for _ in range(len(admissions))][-1].reused_tokens == reused_tokens
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_a_prompt_that_never_fits_ends_with_a_signal_without_a_token() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        (signal,) = await clock.until_done(submit_and_read(engine, ask(2, prompt_tokens=4 * 129)))
        assert (signal.token_id, signal.completed, signal.reason) == (None, True, "prompt_over_pool")
        assert "token_id=None" in repr(signal)
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_planned_tokens_are_those_of_the_submission() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        plan = [1, 2, 3]
        stream = await clock.until_done(engine.submit(ask(output_ids=plan)))
        plan[:] = [7]
        assert tokens_of(await clock.until_done(read_all(stream))) == [1, 2, 3]
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_plans_are_kept_for_what_the_scheduler_holds() -> None:
    async def main(clock: VirtualClock) -> None:
        kv: list[KvEvent] = []
        engine = start(clock, RankConfig(kv_publishers=[kv.append]), speedup_ratio=SLOW)
        plans = group_of(engine).plans
        registration, _stream = engine.prepare(ask())
        registration.drop()
        assert len(plans) == 0  # never submitted
        stream = await clock.until_done(engine.submit(ask(40)))
        assert len(plans) == 1
        await clock.advance_ms(20)
        await clock.until_done(stream.cancel())
        assert len(plans) == 0  # cancelled
        await clock.until_done(submit_and_read(engine, ask(9)))
        assert len(plans) == 0  # ended
        unread = await clock.until_done(engine.submit(ask(40)))
        await clock.advance_ms(60)
        assert len(plans) == 0  # cancelled at a boundary, since nobody read
        assert unread.num_unread == 8
        assert kv
        await rest_and_stop(clock, engine)

        silent = start(clock)
        stream = await clock.until_done(silent.submit(ask(40)))
        assert len(group_of(silent).plans) == 0  # nobody asks
        stream.drop()
        await rest_and_stop(clock, silent)

    run_virtual(main)


def test_a_stream_has_one_reader() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        stream = await clock.until_done(engine.submit(ask(2)))
        first = asyncio.ensure_future(stream.recv())
        await clock.settle()
        with pytest.raises(LiveError, match="one reader"):
            await stream.recv()
        assert (await clock.until_done(first)).position == 0
        assert (await clock.until_done(stream.recv())).position == 1
        await rest_and_stop(clock, engine)

    run_virtual(main)


def test_breaking_out_of_a_loop_keeps_the_stream() -> None:
    """The stream carries the lifetime, not the loop."""

    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        stream = await clock.until_done(engine.submit(ask(4)))

        async def first() -> int | None:
            async for signal in stream:
                return signal.position
            return None

        assert await clock.until_done(first()) == 0
        assert [signal.position for signal in await clock.until_done(read_all(stream))] == [1, 2, 3]
        other = await clock.until_done(engine.submit(ask(400)))
        await other.aclose()
        await other.aclose()
        other.drop()
        assert await other.cancel() is False
        await rest_and_stop(clock, engine)

    run_virtual(main)


@pytest.mark.parametrize(
    "rank",
    [
        RankConfig(output_buffering=0),
        RankConfig(output_buffering=-1),
        RankConfig(output_buffering="all"),
        RankConfig(output_buffering=2.5),  # type: ignore[arg-type]
        RankConfig(admissions=BoundedLane(8)),
    ],
)
def test_rank_configurations_that_are_none(rank: RankConfig) -> None:
    async def main(clock: VirtualClock) -> None:
        with pytest.raises(LiveError):
            LiveEngine.start(fixture_config(), rank=rank)

    run_virtual(main)


def test_starts_that_are_refused(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        with pytest.raises(LiveError, match=r"is for one rank \(got dp_size 2, dp_rank 0\).*start_grouped"):
            LiveEngine.start(fixture_config(dp_size=2))
        with pytest.raises(LiveError, match="dp_rank 1"):
            LiveEngine.start(fixture_config(), 1)
        with pytest.raises(LiveError, match="expected 2, got 1"):
            LiveEngine.start_grouped(fixture_config(dp_size=2), [RankConfig()])
        with pytest.raises(LiveError, match=r"invalid engine arguments: .*block_size"):
            LiveEngine.start({"engine": {"block_size": -1}})
        with pytest.raises(LiveError, match=r"invalid engine arguments: .*not built yet"):
            LiveEngine.start({"engine": {"prefix_match_unit": 4}})
        with pytest.raises(LiveError, match="clock must be one of measured, nominal"):
            LiveEngine.start(fixture_config(), clock="virtual")  # type: ignore[arg-type]
        (tmp_path / "torn.npz").write_bytes(b"PK")
        profile = {"type": "external", "provider": "dynamo_profile", "config": {"path": str(tmp_path / "torn.npz")}}
        with pytest.raises(LiveError, match=r"invalid engine arguments: .*torn\.npz"):
            LiveEngine.start(fixture_config(timing_model=profile))
        for name in ("control_capacity", "event_capacity"):
            around = Attachments(clock=clock, **{name: 0})
            with pytest.raises(ConfigError, match=name):
                LiveEngine.start_attached(fixture_config(), [RankConfig()], around)

    run_virtual(main)


def test_a_command_for_a_stopped_driver_is_refused_once() -> None:
    """With the word for a closed lane, not that of an answer that never came."""

    async def main(clock: VirtualClock) -> None:
        driver = spawn(make_machine(), clock=clock)
        driver.shell.token.cancel()
        await clock.settle()
        assert driver.actor.done()
        told: list[tuple[bool, str]] = []
        driver.handle.put(submit(driver.handle.reserve_id(), 0), lambda ok, text: told.append((ok, text)))
        assert told == [(False, "control lane closed")]
        assert not driver.shell._replies

    run_virtual(main)


def test_errors_of_a_stopped_driver_name_what_was_asked() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        stream = await clock.until_done(engine.submit(ask(5)))
        registration, _other = engine.prepare(ask())
        group_of(engine).driver.shell.close()  # it is gone, and nobody has noticed yet
        submission = rank_of(engine).submit(registration)
        cancellation = rank_of(engine).cancel_route(stream._route)
        error = await outcome_of(clock, submission.wait())
        assert isinstance(error, NotRunning)
        assert "not accepting commands" in str(error)
        error = await outcome_of(clock, cancellation.wait())
        assert isinstance(error, NotRunning)
        assert "not accepting cancellations" in str(error)
        await outcome_of(clock, engine.shutdown())

    run_virtual(main)


def test_a_prompt_of_a_caller_that_names_blocks_itself_is_looked_at_too() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        registration, stream = rank_of(engine).prepare(ask(), prompt=Prompt(4, (-1,)))
        error = await outcome_of(clock, engine.submit_prepared(registration))
        assert isinstance(error, LiveError)
        assert "no such command" in str(error)
        assert await stream.recv() is None
        assert not group_of(engine)._pending
        await rest_and_stop(clock, engine)

    run_virtual(main)


@pytest.mark.parametrize("what", ["submission", "cancellation"])
def test_answers_that_will_never_come(what: str) -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, speedup_ratio=SLOW)
        stream = await clock.until_done(engine.submit(ask(5)))
        await clock.advance_ms(1)
        if what == "submission":
            asked = asyncio.ensure_future(engine.submit(ask(5)))  # waits for the end of the pass
        else:
            group_of(engine).answer = lambda event: None  # the answer is lost on its way
            asked = asyncio.ensure_future(stream.cancel())
        await clock.settle()
        assert not asked.done()
        await clock.until_done(engine.shutdown())
        error = await outcome_of(clock, asked)
        assert isinstance(error, NotRunning)
        word = "a command acknowledgement" if what == "submission" else "a cancellation acknowledgement"
        assert f"dropped {word}" in str(error)

    run_virtual(main)


def test_every_waiter_gets_an_error_of_its_own() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock)
        _stream, submission = engine.submit_nowait(ask(5))
        group_of(engine).token.cancel()
        waits = [asyncio.ensure_future(submission.wait()) for _ in range(2)]
        errors = [await outcome_of(clock, wait) for wait in waits]
        assert all(isinstance(error, NotRunning) for error in errors)
        assert errors[0] is not errors[1]

    run_virtual(main)


def test_a_loop_that_ends_without_a_shutdown_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[object]:
        engines = LiveEngine.start_grouped(fixture_config(dp_size=2), [RankConfig(), RankConfig()])
        streams = [await engine.submit(ask(400)) for engine in engines]
        reader = asyncio.ensure_future(read_all(streams[0]))
        await asyncio.sleep(0.01)
        return [engines, streams, reader]

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
        gc.collect()
    assert not caplog.records


@pytest.mark.parametrize("clock", ["measured", "nominal"])
def test_on_the_real_clock(clock: str) -> None:
    async def main() -> None:
        async with LiveEngine.start(fixture_config(), clock=clock) as engine:  # type: ignore[arg-type]
            assert engine.clone() is engine
            assert engine.dp_rank == 0
            reads = [submit_and_read(engine, ask(5)) for _ in range(20)]
            for signals in await asyncio.gather(*reads):
                assert [signal.position for signal in signals] == list(range(5))
                assert signals[-1].t_ms <= signals[-1].observed_ms
        assert not engine.running

    asyncio.run(main())


def test_calls_from_another_thread() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with LiveEngine.start(fixture_config()) as engine:

            def elsewhere() -> list[int | None]:
                stream = asyncio.run_coroutine_threadsafe(engine.submit(ask(3, name=7)), loop).result()
                signals = asyncio.run_coroutine_threadsafe(read_all(stream), loop).result()
                assert not asyncio.run_coroutine_threadsafe(engine.cancel(uuid.UUID(int=7)), loop).result()
                return [signal.position for signal in signals]

            assert await asyncio.to_thread(elsewhere) == [0, 1, 2]

    asyncio.run(main())


def test_calls_in_another_loop_are_refused() -> None:
    """They would touch what the engine's own loop is about to look at."""

    async def main() -> None:
        async with LiveEngine.start(fixture_config()) as engine:
            stream = await engine.submit(ask(3, name=7))

            def elsewhere() -> None:
                with pytest.raises(LiveError, match="the loop it was started in"):
                    engine.prepare(ask())
                for call in (engine.submit, lambda _: engine.cancel(uuid.UUID(int=7)), lambda _: engine.shutdown()):
                    with pytest.raises(LiveError, match="the loop it was started in"):
                        asyncio.run(call(ask()))

            await asyncio.to_thread(elsewhere)
            assert engine.active_request_count() <= 1
            assert engine.running
            assert (await read_all(stream))[-1].completed

    asyncio.run(main())


def test_ranks_of_one_engine_share_its_clock() -> None:
    async def main(clock: VirtualClock) -> None:
        engines = start_ranks(clock, [RankConfig()] * 3, speedup_ratio=SLOW)
        streams = await clock.until_done(asyncio.gather(*(engine.submit(ask(2)) for engine in engines)))
        ends = [[signal.t_ms for signal in await clock.until_done(read_all(stream))] for stream in streams]
        assert ends == [[10.0, 11.0]] * 3
        assert {rank_of(engine).group for engine in engines} == {group_of(engines[0])}
        await rest_and_stop(clock, *engines)

    run_virtual(main)


def test_importing_the_boundary_loads_no_core() -> None:
    code = (
        "import sys, mocker_replay.live\n"
        "heavy = ('numpy', 'rich', 'typer', 'orjson', 'xxhash', 'zstandard')\n"
        "print([name for name in sys.modules if name in heavy or name.startswith('mocker_replay._core')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
