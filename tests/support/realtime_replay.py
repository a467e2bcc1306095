"""`replay()` in realtime mode on the controllable clock: the whole run, in no time.

Nothing here reads a real clock. The clock may stand still while code runs and jump from deadline to deadline, or be
as late as it likes: `Lateness` says by how much.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from mocker_replay.replay.interrupt import InterruptFlag
from mocker_replay.replay.realtime import RealtimeRun
from mocker_replay.shells.clock import ms_from_ns, ns_from_ms
from tests.support.virtual_loop import VirtualClock, VirtualTimer, run_virtual


@dataclass
class Pace:
    """How a clock goes.

    Attributes:
        late_ms: each time nothing is left to run the clock goes to the next deadline and one of these further.
        step_ms: each reading of the clock finds it one of these further than the last one, as if code took time.
    """

    seed: int = 0
    late_ms: tuple[float, ...] = (0.0,)
    step_ms: tuple[float, ...] = (0.0,)
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def late_ns(self) -> int:
        return ns_from_ms(self.rng.choice(self.late_ms))

    def step_ns(self) -> int:
        return ns_from_ms(self.rng.choice(self.step_ms))


PUNCTUAL = Pace()


class PacedClock:
    """A virtual clock with a pace, and the hand that moves it."""

    def __init__(self, clock: VirtualClock, pace: Pace) -> None:
        self._clock = clock
        self._pace = pace

    def now_ns(self) -> int:
        loop = self._clock.loop
        loop.move_to(loop.now_ns + self._pace.step_ns())
        return loop.now_ns

    def timer(self, on_expiry: Callable[[], None]) -> VirtualTimer:
        return self._clock.timer(on_expiry)

    async def run(self, run: VirtualRun, interrupt: InterruptFlag) -> bool:
        loop = self._clock.loop
        future = loop.create_task(run.live(interrupt, self), name="the replay")
        while True:
            await self._clock.settle()
            if future.done():
                return future.result()
            deadline_ns = loop.next_deadline_ns()
            assert deadline_ns is not None, f"nobody waits for anything: {loop.who_waits()}"
            loop.move_to(max(deadline_ns, loop.now_ns) + self._pace.late_ns())


class VirtualRun(RealtimeRun):
    """A realtime replay whose time does not pass by itself; `pace` is set for all runs by `virtual_time`."""

    pace: Pace = PUNCTUAL
    outside_s = 0.0

    def loop(self, interrupt: InterruptFlag) -> bool:
        return run_virtual(
            lambda clock: PacedClock(clock, self.pace).run(self, interrupt), outside_s=self.outside_s, collect=False
        )


def virtual_time(pace: Pace = PUNCTUAL, base: type[VirtualRun] = VirtualRun) -> AbstractContextManager[Any]:
    """Within, `replay()` in realtime mode runs on a virtual clock of this pace."""
    run = type("PacedRun", (base,), {"pace": pace})
    return patch("mocker_replay.replay.realtime.RealtimeRun", run)
