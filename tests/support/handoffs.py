"""Two live engines on the virtual clock, one that computes prompts and one that decodes them, and what they still own.

Decides nothing about a handoff; it starts engines, makes requests, and says whether anything was left behind.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from mocker_replay._core.sched_handoff import HandoffScheduler
from mocker_replay.live import (
    DestinationReserved,
    GenerateRequest,
    HandoffControl,
    HandoffEvents,
    LiveEngine,
    RankConfig,
    RequestStream,
    SourceHeld,
)  # fmt: skip
from tests.support.live import ask, assert_stopped, group_of, rank_of, start, until_idle
from tests.support.virtual_loop import VirtualClock

OWN = uuid.UUID(int=77)
# 1 ms a token of the prompt.
MILLISECOND_A_TOKEN = {"kv_transfer_bytes_per_token": 1_000_000, "kv_transfer_bandwidth": 1.0}


def start_source(clock: VirtualClock, rank: RankConfig | None = None, **config: Any) -> LiveEngine:
    """A prefill worker; its pass takes 10 ms (with `speedup_ratio` SLOW), a transfer 1 ms a token."""
    return start(clock, rank, worker_type="prefill", **MILLISECOND_A_TOKEN | config)


def start_destination(clock: VirtualClock, rank: RankConfig | None = None, **config: Any) -> LiveEngine:
    """A decode worker; a pass takes 1 ms (with `speedup_ratio` SLOW)."""
    return start(clock, rank, worker_type="decode", **config)


async def hold(
    clock: VirtualClock, engine: LiveEngine, request: GenerateRequest | None = None, handoff_id: uuid.UUID = OWN
) -> tuple[HandoffControl, HandoffEvents, RequestStream, SourceHeld]:
    """A source that holds a prompt."""
    control, events = engine.register_handoff(handoff_id)
    registration, stream = engine.prepare(request or ask(1, prompt_tokens=8))
    await clock.until_done(control.submit_prefill(registration))
    fact = await clock.until_done(events.recv())
    assert isinstance(fact, SourceHeld)
    return control, events, stream, fact


async def reserve(
    clock: VirtualClock, engine: LiveEngine, request: GenerateRequest | None = None, handoff_id: uuid.UUID = OWN
) -> tuple[HandoffControl, HandoffEvents, RequestStream, DestinationReserved]:
    """A destination that has room."""
    control, events = engine.register_handoff(handoff_id)
    registration, stream = engine.prepare(request or ask(1, prompt_tokens=8))
    await clock.until_done(control.reserve_destination(registration))
    fact = await clock.until_done(events.recv())
    assert isinstance(fact, DestinationReserved)
    return control, events, stream, fact


def schedulers_of(engine: LiveEngine) -> list[HandoffScheduler]:
    """Those of all ranks of its group."""
    found = group_of(engine).driver.shell.machine.engine.schedulers
    return [scheduler for scheduler in found if isinstance(scheduler, HandoffScheduler)]


def owned(engine: LiveEngine) -> list[tuple[int, int, str, int]]:
    """What the schedulers own for handoffs: (handoff, request, state, blocks)."""
    return [entry for scheduler in schedulers_of(engine) for entry in scheduler.ownership()]


def is_drained(engine: LiveEngine) -> bool:
    """No route, no request, no block, nothing owned; the block pool agrees."""
    for scheduler in schedulers_of(engine):
        scheduler.check()
    metrics = engine.metrics_receiver().value
    return (
        metrics.idle
        and metrics.active_blocks == 0
        and engine.active_request_count() == 0
        and not owned(engine)
        and not len(rank_of(engine).handoffs.routes)
    )


async def drain_and_stop(clock: VirtualClock, *engines: LiveEngine) -> None:
    """What every handoff ends with: both ends are empty, and stop without an error."""
    for engine in engines:
        await clock.until_done(until_idle(engine))
    await clock.settle()
    for engine in engines:
        assert is_drained(engine), owned(engine)
        await clock.until_done(engine.shutdown())
        assert_stopped(engine)
        assert not rank_of(engine).handoffs._tasks


async def both(clock: VirtualClock, *awaitables: Any) -> list[Any]:
    """Results of all, as time goes on."""
    return list(await clock.until_done(asyncio.gather(*awaitables)))
