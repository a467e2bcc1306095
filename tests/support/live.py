"""Live engines on the virtual clock: the fixture of the boundary's scenarios, and tasks stopped at every turn.

Decides nothing about an engine; it starts them, reads streams, and moves time only as far as somebody waits for it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay.config import EngineConfig, load_engine_config
from mocker_replay.live import GenerateRequest, LiveEngine, RankConfig, RequestStream, Signal
from mocker_replay.live.engine import Attachments
from mocker_replay.live.group import Group
from mocker_replay.live.rank import Rank
from mocker_replay.shells.realtime import Given, Observer
from tests.support.virtual_loop import VirtualClock, run_virtual

Result = TypeVar("Result")

# Passes take 10 ms with prefill and 1 ms without, a thousandth of it in the fast engine.
SLOW, FAST = 1.0, 1000.0


def fixture_config(*, speedup_ratio: float = FAST, dp_size: int = 1, **engine: Any) -> EngineConfig:
    """The engine of the boundary specification, section 11, with fixed pass times."""
    settings = {
        "block_size": 4, "num_gpu_blocks": 128, "max_num_seqs": 8, "max_num_batched_tokens": 64,
        "timing_model": {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 1.0}, "speedup_ratio": speedup_ratio,
    }  # fmt: skip
    return load_engine_config({"engine": settings | engine, "dp_size": dp_size})


def start_ranks(
    clock: VirtualClock, ranks: Sequence[RankConfig], *, observer: Observer | None = None, **config: Any
) -> tuple[LiveEngine, ...]:
    """All ranks of one engine, one a config."""
    around = Attachments(clock=clock, observer=observer)
    return LiveEngine.start_attached(fixture_config(dp_size=len(ranks), **config), ranks, around)


def start(
    clock: VirtualClock, rank: RankConfig | None = None, *, observer: Observer | None = None, **config: Any
) -> LiveEngine:
    """An engine of one rank."""
    (engine,) = start_ranks(clock, [rank or RankConfig()], observer=observer, **config)
    return engine


class Commands:
    """An observer of a machine: the steps that brought it commands."""

    def __init__(self) -> None:
        self.seen: list[Given] = []

    def stepped(self, given: Given, deadline_ms: float | None, wall_ms: float, events: EventBuffer) -> None:
        if given.command is not None:
            self.seen.append(given)


def rank_of(engine: LiveEngine) -> Rank:
    return engine._rank


def group_of(engine: LiveEngine) -> Group:
    return engine._rank.group


def ask(
    num_tokens: int = 1, *, prompt_tokens: int = 8, name: int | None = None, output_ids: Sequence[int] | None = None
) -> GenerateRequest:
    """A request whose prompt is shared with others of the same `name` only; `name` also names its client."""
    first = 0 if name is None else name * 1000
    return GenerateRequest(
        prompt=range(first, first + prompt_tokens),
        max_output_tokens=num_tokens,
        output_ids=output_ids,
        client_id=None if name is None else uuid.UUID(int=name),
    )


async def read_all(stream: RequestStream) -> list[Signal]:
    """Everything until the end of the stream."""
    return [signal async for signal in stream]


async def submit_and_read(engine: LiveEngine, request: GenerateRequest) -> list[Signal]:
    async with await engine.submit(request) as stream:
        return await read_all(stream)


def tokens_of(signals: Sequence[Signal]) -> list[int | None]:
    return [signal.token_id for signal in signals]


def is_idle(engine: LiveEngine) -> bool:
    """No routes, nothing running, nothing waiting."""
    metrics = engine.metrics_receiver().value
    return engine.active_request_count() == 0 and metrics.idle


async def until_idle(engine: LiveEngine) -> None:
    """Until nothing is left; whatever ends a route shows in the gauges afterwards."""
    metrics = engine.metrics_receiver()
    while not is_idle(engine):
        await metrics.changed(metrics.version)


async def rest_and_stop(clock: VirtualClock, *engines: LiveEngine) -> None:
    """What every scenario ends with: nothing is left, and all ranks stop without an error."""
    for engine in engines:
        await clock.until_done(until_idle(engine))
    for engine in engines:
        await clock.until_done(engine.shutdown())
        assert_stopped(engine)


def assert_stopped(engine: LiveEngine) -> None:
    """Nothing of a stopped engine is left, in the boundary or in the engine below."""
    group = group_of(engine)
    assert not engine.running
    assert engine.active_request_count() == 0
    assert len(group.plans) == 0 or group.error is not None or group.driver.shell.stopped
    assert not group._pending
    assert not group.driver.shell._replies
    assert all(rank.batches.reader_gone for rank in group.ranks)
    assert group.driver.actor.done()


async def one_step(clock: VirtualClock) -> None:
    """One turn of the loop; when nothing but this task is left to run, time moves to the next deadline."""
    await asyncio.sleep(0)
    loop = clock.loop
    deadline_ns = loop.next_deadline_ns()
    if not loop._ready and deadline_ns is not None and deadline_ns > loop.now_ns:
        loop.move_to(deadline_ns)


async def steps(clock: VirtualClock, num_steps: int) -> None:
    for _ in range(num_steps):
        await one_step(clock)


async def outcome_of(clock: VirtualClock, awaitable: Awaitable[Result]) -> Result | BaseException:
    """What it returns or raises, also CancelledError; time moves for as long as it takes."""
    task = asyncio.ensure_future(awaitable)
    await clock.until_done(asyncio.wait([task]))
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    return task.result() if error is None else error


def at_every_turn(scenario: Callable[[VirtualClock, int], Coroutine[Any, Any, bool]], *, limit: int = 2000) -> int:
    """Run a scenario with 0, 1, 2, ... turns before its disturbance, until it says that this came too late.

    Returns:
        turns at which the scenario was disturbed. A scenario that never ends fails.
    """
    for num_turns in range(limit):

        async def main(clock: VirtualClock, num_turns: int = num_turns) -> bool:
            return await scenario(clock, num_turns)

        try:
            in_time = run_virtual(main, collect=False)
        except BaseException as error:
            error.add_note(f"disturbed after {num_turns} turns")
            raise
        if not in_time:
            return num_turns
    raise AssertionError(f"still not over after {limit} turns")
