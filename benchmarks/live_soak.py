"""A live engine under submits and cancels for a long time: nothing may be left behind, and memory must stay flat.

    python benchmarks/live_soak.py [--seconds 60] [--rate 1000] [--seed 1] [--speedup 1000]

`rate` requests a second are submitted, and all but a few of them cancelled in one of the ways there are: by client id,
by their stream, by leaving its block, by losing it, by reading too slowly, by being cut off while they submit. Prints
Markdown: what the clients saw, passes, share of one core, memory after the warm-up (a fifth of the time, at most a
minute) and at the end. Exit code 1 when a route, a task, a descriptor or memory was left behind, or when less than
95 % of the rate was kept up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import os
import random
import sys
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from mocker_replay.live import GenerateRequest, LiveEngine, RankConfig

# Clients at one time. A machine that cannot keep up would pile them up, and their peak would look like a leak.
MOST_ALIVE = 4000
# Growth that is no leak: the allocator's arenas, and one sample beside another.
SPARE_KIB = 8192
TIMERS_OF_AN_ENGINE = 2
OUTPUT_TOKENS = (1, 4, 8, 16, 48)
ENGINE = {"engine": {"block_size": 16, "num_gpu_blocks": 8192, "max_num_seqs": 256}}

Sleep = Callable[[float], Awaitable[None]]


class Clients:
    """Requests of all kinds of callers, drawn from a seed. `sleep` waits in seconds of whatever clock there is."""

    def __init__(self, engine: LiveEngine, seed: int, sleep: Sleep = asyncio.sleep) -> None:
        self.engine = engine
        self.sleep = sleep
        self.draw = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ways: list[tuple[Callable[[GenerateRequest], Awaitable[None]], int]] = [
            (self.reads, 6),
            (self.cancels_by_id, 30),
            (self.cancels_its_stream, 20),
            (self.leaves, 20),
            (self.loses, 8),
            (self.is_slow, 8),
            (self.is_cut_off, 8),
        ]

    def launch(self, number: int) -> None:
        """Start one client; it lives by itself."""
        (way,) = self.draw.choices([way for way, _ in self._ways], [weight for _, weight in self._ways])
        task = asyncio.ensure_future(self._run(way, self._request(number)))
        self._tasks.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if (error := task.exception()) is not None:
            self.errors.append(error)

    async def finish(self) -> None:
        """Until every client has gone."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    @property
    def num_alive(self) -> int:
        return len(self._tasks)

    async def _run(self, way: Callable[[GenerateRequest], Awaitable[None]], request: GenerateRequest) -> None:
        self.seen["submits"] += 1
        await way(request)
        self.seen[way.__name__] += 1

    def _request(self, number: int) -> GenerateRequest:
        blocks = self.draw.randint(1, 16)
        hash_ids = [self.draw.randrange(8), *(number * 16 + block for block in range(1, blocks))]
        return GenerateRequest(
            input_tokens=blocks * 16,
            hash_ids=hash_ids,
            max_output_tokens=self.draw.choice(OUTPUT_TOKENS),
            client_id=uuid.UUID(int=number),
        )

    # -- ways to go ---------------------------------------------------------------------------------

    async def reads(self, request: GenerateRequest) -> None:
        async with await self.engine.submit(request) as stream:
            async for signal in stream:
                self.seen["signals"] += 1
                self.seen["completed"] += signal.completed

    async def cancels_by_id(self, request: GenerateRequest) -> None:
        stream = await self.engine.submit(request)
        await self.sleep(self.draw.random() * 0.005)
        assert request.client_id is not None
        self.seen["cancels"] += 1
        self.seen["effective cancels"] += await self.engine.cancel(request.client_id)
        self.seen["signals"] += stream.num_unread

    async def cancels_its_stream(self, request: GenerateRequest) -> None:
        stream = await self.engine.submit(request)
        if await stream.recv() is not None:
            self.seen["signals"] += 1
        self.seen["cancels"] += 1
        self.seen["effective cancels"] += await stream.cancel()

    async def leaves(self, request: GenerateRequest) -> None:
        async with await self.engine.submit(request) as stream:
            async for _ in stream:
                self.seen["signals"] += 1
                break
        self.seen["cancels"] += 1

    async def loses(self, request: GenerateRequest) -> None:
        stream = await self.engine.submit(request)
        await stream.recv()
        self.seen["cancels"] += 1

    async def is_slow(self, request: GenerateRequest) -> None:
        async with await self.engine.submit(request) as stream:
            async for _ in stream:
                self.seen["signals"] += 1
                await self.sleep(0.005)
        self.seen["cancels"] += 1

    async def is_cut_off(self, request: GenerateRequest) -> None:
        submit = asyncio.ensure_future(self.engine.submit(request))
        for _ in range(self.draw.randrange(4)):
            await asyncio.sleep(0)
        submit.cancel()
        await asyncio.wait([submit])
        if not submit.cancelled():
            submit.result().drop()
        self.seen["cancels"] += 1


class Sample(NamedTuple):
    """What a process holds."""

    rss_kib: int
    descriptors: int  # but for those of timers
    timers: int
    tasks: int
    finalizers: int
    objects: int


def take_sample() -> Sample:
    gc.collect()
    timers, descriptors = _descriptors()
    objects = len(gc.get_objects())
    _trim()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Sample(
        rss_kib=pages * 4,
        descriptors=descriptors,
        timers=timers,
        tasks=len(asyncio.all_tasks()),
        finalizers=len(weakref.finalize._registry),  # type: ignore[attr-defined]
        objects=objects,
    )


def _trim() -> None:
    """Give back what the allocator keeps: the list of all objects alone is megabytes in a process that has many."""
    with contextlib.suppress(AttributeError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)


def _descriptors() -> tuple[int, int]:
    """Open descriptors: those of timers, and all others."""
    targets = []
    for link in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            targets.append(os.readlink(f"/proc/self/fd/{link}"))
    timers = sum("timerfd" in target for target in targets)
    return timers, len(targets) - timers


async def offer(clients: Clients, rate: float, seconds: float, first: int) -> int:
    """Launch clients at a rate [1/s] for so long, from number `first` on; late ones are launched as there is room."""
    start_s = time.monotonic()
    number = first
    while (elapsed_s := time.monotonic() - start_s) < seconds:
        due = first + int(elapsed_s * rate)
        while number < due and clients.num_alive < MOST_ALIVE:
            clients.launch(number)
            number += 1
        await asyncio.sleep(0.001)
    return number


async def until_idle(engine: LiveEngine) -> None:
    metrics = engine.metrics_receiver()
    while engine.active_request_count() or not metrics.value.idle:
        await metrics.changed(metrics.version)


def left_behind(engine: LiveEngine) -> list[str]:
    """What an idle engine must not hold; looks behind its API."""
    rank = engine._rank
    group = rank.group
    shell = group.driver.shell
    held = {
        "routes": len(rank.routes),
        "routes by scheduler id": len(rank.routes._by_scheduler),
        "commands without an answer": len(group._pending),
        "replies nobody gave": len(shell._replies),
        "plans": len(group.plans),
        "batches": rank.batches.unsettled,
        "items on lanes": shell.cancels.unsettled + shell.commands.unsettled + shell.events.unsettled,
        "blocks": engine.metrics_receiver().value.active_blocks,
        "token callbacks": max(len(group.token._callbacks) - 2, 0),
        "watchers": len(rank.metrics._waiters),
    }
    return [f"{count} {what}" for what, count in held.items() if count]


def differences(warm: Sample, end: Sample) -> list[str]:
    """What grew between two samples of an idle process."""
    grown = [
        f"{getattr(end, name) - getattr(warm, name)} {name}"
        for name in ("descriptors", "tasks", "finalizers")
        if getattr(end, name) > getattr(warm, name)
    ]
    # A timer makes its descriptor with its first deadline ahead, which may come late in a run of short passes.
    if end.timers > max(warm.timers, TIMERS_OF_AN_ENGINE):
        grown.append(f"{end.timers} timers")
    if end.objects > warm.objects + 1000:
        grown.append(f"{end.objects - warm.objects} objects")
    if end.rss_kib > warm.rss_kib + SPARE_KIB:
        grown.append(f"{end.rss_kib - warm.rss_kib} KiB of memory")
    return grown


async def soak(seconds: float, rate: float, seed: int, speedup: float) -> int:
    before = take_sample()
    passes: Counter[str] = Counter()
    rank = RankConfig(forward_pass_publisher=lambda metrics: passes.update(["passes"]))
    config = {"engine": {**ENGINE["engine"], "speedup_ratio": speedup}}
    engine = LiveEngine.start(config, rank=rank)
    clients = Clients(engine, seed)
    warm_s = min(seconds / 5, 60.0)
    number = await offer(clients, rate, warm_s, 0)
    await clients.finish()
    await until_idle(engine)
    warm = take_sample()
    wall_s, cpu_s = time.monotonic(), time.process_time()
    first, passes_before = number, passes["passes"]
    number = await offer(clients, rate, seconds - warm_s, first)
    wall_s, cpu_s = time.monotonic() - wall_s, time.process_time() - cpu_s
    late = clients.num_alive
    await clients.finish()
    await until_idle(engine)
    faults = left_behind(engine) + [f"a client with {error!r}" for error in clients.errors[:10]]
    end = take_sample()
    faults += differences(warm, end)
    achieved = (number - first) / wall_s
    if achieved < 0.95 * rate:
        faults.append(f"only {achieved:.0f} submits a second were kept up")
    rows = {
        "submits a second": f"{achieved:.0f}",
        "share of one core": f"{cpu_s / wall_s:.0%}",
        "passes a second": f"{(passes['passes'] - passes_before) / wall_s:.0f}",
        "clients at the last moment": f"{late}",
        "memory when warm, at the end [KiB]": f"{warm.rss_kib}, {end.rss_kib}",
        **{what: f"{count}" for what, count in sorted(clients.seen.items())},
    }
    await engine.shutdown()
    del engine, clients, rank
    for _ in range(3):  # finalisers tell the loop, which lets the next object go
        gc.collect()
        await asyncio.sleep(0)
    after = take_sample()
    faults += [
        f"{getattr(after, name) - getattr(before, name)} {name} after the shutdown"
        for name in ("descriptors", "timers", "tasks", "finalizers")
        if getattr(after, name) > getattr(before, name)
    ]
    print(f"| soak of {seconds:g} s at {rate:g}/s | |\n|---|---:|")
    for what, value in rows.items():
        print(f"| {what} | {value} |")
    for fault in faults:
        print(f"left behind: {fault}", file=sys.stderr)
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Soak of the live boundary.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="submits a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speedup", type=float, default=1000.0, help="speedup_ratio of the engine")
    options = parser.parse_args()
    return asyncio.run(soak(options.seconds, options.rate, options.seed, options.speedup))


if __name__ == "__main__":
    sys.exit(main())
