"""The soak of the live boundary in small, on the virtual clock: thousands of clients, leaving in every way."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from benchmarks.live_soak import Clients, differences, left_behind, take_sample, until_idle
from mocker_replay.live import RankConfig
from tests.support.live import assert_stopped, start, start_ranks
from tests.support.virtual_loop import VirtualClock, run_virtual

NUM_CLIENTS = 1000


async def crowd(clients: Clients, num_clients: int, per_ms: int) -> None:
    """So many clients, some in each virtual millisecond."""
    for number in range(num_clients):
        clients.launch(number)
        if number % per_ms == 0:
            await asyncio.sleep(0.001)
    await clients.finish()
    await until_idle(clients.engine)


# Passes of 10 and 1 ms at 1; at 10 most requests live long enough to be cancelled, at 1000 they end first.
@pytest.mark.parametrize(("speedup_ratio", "per_ms"), [(10.0, 2), (1000.0, 4)])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_crowd_leaves_nothing_behind(seed: int, speedup_ratio: float, per_ms: int) -> None:
    async def main(clock: VirtualClock) -> Counter[str]:
        rank = RankConfig(kv_publishers=[lambda event: None])
        engine = start(
            clock, rank, speedup_ratio=speedup_ratio, block_size=16, num_gpu_blocks=512, max_num_batched_tokens=512
        )
        clients = Clients(engine, seed)
        await clock.until_done(crowd(clients, NUM_CLIENTS, per_ms))
        assert clients.errors == []
        assert left_behind(engine) == []
        await clock.until_done(engine.shutdown())
        assert_stopped(engine)
        return clients.seen

    seen = run_virtual(main)
    assert seen["submits"] == NUM_CLIENTS
    ways = ("reads", "cancels_by_id", "cancels_its_stream", "leaves", "loses", "is_slow", "is_cut_off")
    assert sum(seen[way] for way in ways) == NUM_CLIENTS
    assert seen["completed"] == seen["reads"] > 0
    assert 0 < seen["effective cancels"] < seen["cancels"]


def test_a_crowd_on_two_ranks_one_of_which_is_dropped() -> None:
    async def main(clock: VirtualClock) -> None:
        engines = list(start_ranks(clock, [RankConfig()] * 2, speedup_ratio=10.0, block_size=16, num_gpu_blocks=512))
        metrics = engines[1].metrics_receiver()
        streams = [await clock.until_done(engines[1].submit(request)) for request in requests(engines[1], 20)]
        crowded = asyncio.ensure_future(crowd(Clients(engines[0], 3), 400, 2))
        await clock.advance_ms(50)
        engines.pop()
        await clock.until_done(crowded)
        assert left_behind(engines[0]) == []
        assert metrics.value.idle
        for stream in streams:
            while await stream.recv() is not None:
                pass
        await clock.until_done(engines[0].shutdown())

    run_virtual(main)


def requests(engine, count: int):
    clients = Clients(engine, 4)
    return [clients._request(10_000 + number) for number in range(count)]


def test_the_checks_of_the_soak_can_fail() -> None:
    async def main(clock: VirtualClock) -> None:
        engine = start(clock, block_size=16)
        await clock.settle()
        before = take_sample()
        registration, stream = engine.prepare(requests(engine, 1)[0])
        await clock.settle()
        assert left_behind(engine) == ["1 routes", "1 routes by scheduler id"]
        assert "2 finalizers" in differences(before, take_sample())
        registration.drop()
        del registration, stream
        gc.collect()
        await clock.settle()
        assert left_behind(engine) == []
        assert differences(before, take_sample()) == []
        await clock.until_done(engine.shutdown())

    run_virtual(main)
