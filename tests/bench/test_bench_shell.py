"""Passes a second of the realtime shell with a consumer that is always there; run with --benchmark-only for figures."""

from __future__ import annotations

import asyncio

import pytest

from mocker_replay.shells.handle import spawn
from tests.support.machines import fixed, make_machine, submit

NUM_PASSES = 2_000


async def steady_loop(pass_ms: float) -> int:
    """One request that decodes for ever, on the real clock; every boundary is finished at once."""
    driver = spawn(make_machine(timing=fixed(pass_ms, pass_ms), num_gpu_blocks=NUM_PASSES))
    driver.handle.put(submit(driver.handle.reserve_id(), 0, 4, NUM_PASSES), lambda ok, text: None)
    passes = 0
    while passes < NUM_PASSES:
        event = await driver.events.receive()
        assert event is not None
        if event.boundary is not None:
            passes += 1
            await event.boundary.finish()
    driver.handle.close()
    await driver.actor
    return passes


@pytest.mark.bench
@pytest.mark.benchmark(group="shell")
@pytest.mark.parametrize("pass_ms", [0.001, 0.0], ids=["always_late", "no_length"])
def test_steady_loop(benchmark, pass_ms: float) -> None:
    passes = benchmark.pedantic(lambda: asyncio.run(steady_loop(pass_ms)), rounds=5, warmup_rounds=1)
    assert passes == NUM_PASSES
    if benchmark.stats is not None:  # not measured in an ordinary test run
        benchmark.extra_info["passes_per_second"] = passes / benchmark.stats.stats.min
