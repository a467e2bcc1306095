"""`replay()` in realtime mode on the controllable clock: the whole run, in no time.

Nothing here reads a real clock. The clock may stand still while code runs and jump from deadline to deadline, or be
as late as it likes: `Lateness` says by how much.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from mocker_replay.replay.interrupt import InterruptFlag
from mocker_replay.replay.realtime import RealtimeRun
from mocker_replay.shells.clock import ns_from_ms
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
    interrupt_turn: int | None = None  # turn of the loop, from the first one on, in which Ctrl-C comes
    second_turn: int | None = None  # and comes once more
    rng: random.Random = field(init=False)
    readings_ns: list[int] = field(init=False, default_factory=list)  # all the clock gave
    num_turns: int = field(init=False, default=0)  # that the run took

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def late_ns(self) -> int:
        return ns_from_ms(self.rng.choice(self.late_ms))

    def step_ns(self) -> int:
        return ns_from_ms(self.rng.choice(self.step_ms))


class PacedClock:
    """A virtual clock with a pace, and the hand that moves it."""

    def __init__(self, clock: VirtualClock, pace: Pace) -> None:
        self._clock = clock
        self._pace = pace

    def now_ns(self) -> int:
        loop = self._clock.loop
        loop.move_to(loop.now_ns + self._pace.step_ns())
        self._pace.readings_ns.append(loop.now_ns)
        return loop.now_ns

    def timer(self, on_expiry: Callable[[], None]) -> VirtualTimer:
        return self._clock.timer(on_expiry)

    async def run(self, run: VirtualRun, interrupt: InterruptFlag) -> bool:
        loop = self._clock.loop
        first_turn = loop.num_turns
        for turn in (self._pace.interrupt_turn, self._pace.second_turn):
            if turn is not None:
                loop.in_turn(first_turn + turn, lambda: press_ctrl_c(interrupt))
        future = loop.create_task(run.live(interrupt, self), name="the replay")
        while True:
            await self._clock.settle()
            if future.done():
                self._pace.num_turns = loop.num_turns - first_turn
                return future.result()
            deadline_ns = loop.next_deadline_ns()
            assert deadline_ns is not None, f"nobody waits for anything: {loop.who_waits()}"
            loop.move_to(max(deadline_ns, loop.now_ns) + self._pace.late_ns())


class VirtualRun(RealtimeRun):
    """A realtime replay whose time does not pass by itself; `virtual_time` says how it passes."""

    pace: Pace

    def loop(self, interrupt: InterruptFlag) -> bool:
        return run_virtual(lambda clock: PacedClock(clock, self.pace).run(self, interrupt), collect=False)


def press_ctrl_c(interrupt: InterruptFlag) -> None:
    """What the signal's handler does."""
    interrupt._handle(signal.SIGINT, None)


def virtual_time(pace: Pace | None = None) -> AbstractContextManager[Any]:
    """Within, `replay()` in realtime mode runs on a virtual clock of this pace, a punctual one if left out."""
    run = type("PacedRun", (VirtualRun,), {"pace": pace or Pace()})
    return patch("mocker_replay.replay.realtime.RealtimeRun", run)
