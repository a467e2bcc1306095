"""How late the waits of an asyncio loop are: ours, `asyncio.sleep` and `loop.call_at`, alternately in one run.

    python benchmarks/timer_lateness.py [--waits 2000] [--seed 1] [--fifo]

Each wait has a length of its own between 0.2 and 20 ms, never whole milliseconds, the same one for each of the three,
which take turns in an order drawn anew each time. Prints Markdown: lateness at the median, the 99th percentile and the
worst, and the 99th percentiles beside ours (the goal: ours at most a fifth of each).

All of them wait in a thread as quiet as that of a realtime run (`shells/quiet.py`). A fourth row is the floor: a thread
that the kernel alone wakes (`clock_nanosleep`). Where other work or a busy host keeps even that one waiting for a fifth
of what asyncio needs, the run says nothing about timers and decides nothing (exit code 2). `--fifo` keeps other
processes out of the way: real-time priority for all four, which takes privileges. A wait of ours that ends early, or
one without a descriptor, makes the run fail.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import sys
import time
from collections.abc import Awaitable, Callable

import numpy as np
import numpy.typing as npt

from mocker_replay._core import timerfd
from mocker_replay.shells.quiet import quiet
from mocker_replay.shells.sleeper import Sleeper

LENGTH_MS = (0.2, 20.0)
GOAL = 5.0
OURS, THEIRS, FLOOR = "Sleeper", ("asyncio.sleep", "loop.call_at"), "kernel alone, blocking"

Wait = Callable[[int], Awaitable[None]]


async def asyncio_sleep(deadline_ns: int) -> None:
    await asyncio.sleep((deadline_ns - time.monotonic_ns()) / 1e9)


async def loop_call_at(deadline_ns: int) -> None:
    # The time of the loop is the monotonic clock in seconds.
    loop = asyncio.get_running_loop()
    reached = loop.create_future()
    loop.call_at(deadline_ns / 1e9, reached.set_result, None)
    await reached


async def kernel_alone(deadline_ns: int) -> None:
    timerfd.sleep_until_ns(deadline_ns)


async def measure(num_waits: int, seed: int) -> dict[str, npt.NDArray[np.float64]]:
    """Lateness of each wait [us]."""
    sleeper = Sleeper()
    waits: list[tuple[str, Wait]] = [
        (OURS, sleeper.sleep_until_ns),
        (THEIRS[0], asyncio_sleep),
        (THEIRS[1], loop_call_at),
        (FLOOR, kernel_alone),
    ]
    late_us: dict[str, list[float]] = {name: [] for name, _ in waits}
    draw = random.Random(seed)
    try:
        for _ in range(num_waits):
            length_ns = round(draw.uniform(*LENGTH_MS) * 1e6)
            draw.shuffle(waits)
            for name, wait in waits:
                deadline_ns = time.monotonic_ns() + length_ns
                await wait(deadline_ns)
                late_us[name].append((time.monotonic_ns() - deadline_ns) / 1e3)
        if not sleeper.has_descriptor:
            raise RuntimeError("no timer descriptor on this system")
    finally:
        sleeper.close()
    return {name: np.array(values) for name, values in late_us.items()}


def machine() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return (
        f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {platform.system()} {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--waits", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fifo", action="store_true")
    args = parser.parse_args()
    if args.fifo:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO)))
    with quiet():
        late_us = asyncio.run(measure(args.waits, args.seed))
    priority = "real-time priority" if args.fifo else "ordinary priority"
    print(f"{args.waits} waits of {LENGTH_MS[0]} to {LENGTH_MS[1]} ms each, {priority}; {machine()}\n")
    print("| wait | p50 [us] | p99 [us] | max [us] | p99 beside ours |")
    print("|---|---|---|---|---|")
    p99 = {name: float(np.percentile(values, 99)) for name, values in late_us.items()}
    for name, values in late_us.items():
        print(
            f"| {name} | {np.median(values):.0f} | {p99[name]:.0f} | {values.max():.0f} | {p99[name] / p99[OURS]:.1f} |"
        )
    if late_us[OURS].min() < 0:
        print("a wait of ours was early", file=sys.stderr)
        return 1
    return verdict(p99)


def verdict(p99: dict[str, float]) -> int:
    """Exit code: 0 reached, 1 missed, 2 the machine was too late itself."""
    allowed_us = min(p99[name] for name in THEIRS) / GOAL
    if p99[OURS] <= allowed_us:
        print("\ngoal, ours at most a fifth at p99: reached")
        return 0
    if p99[FLOOR] > allowed_us:
        print("\ngoal, ours at most a fifth at p99: not decided, the machine wakes nobody in time")
        return 2
    print("\ngoal, ours at most a fifth at p99: missed")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
