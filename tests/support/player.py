"""Random lives of a driver: callers, a consumer with moods, stalls and an end, played on any clock.

Decides nothing about the driver; a script is drawn from a `Random`, which may be a seeded one or one of Hypothesis's.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, Protocol

from mocker_replay._core._testing import ScriptedEngine
from mocker_replay._core.driver import Machine
from mocker_replay._core.lanes import Command
from mocker_replay._core.timing import TimingModel
from mocker_replay.events import EventKind
from mocker_replay.shells.boundary import Boundary, BoundaryClosed
from mocker_replay.shells.clock import Clock, MonotonicClock
from mocker_replay.shells.handle import CommandFailed, spawn
from mocker_replay.shells.published import EventRecord
from mocker_replay.shells.readings import Measured, Nominal, Readings
from tests.support.machines import cancel, fixed, make_machine, submit
from tests.support.recording import Recorder
from tests.support.virtual_loop import VirtualClock

# An owner who submits more at each boundary of passes without length would never be done.
MAX_APPLIED = 20
KINDS = (
    *("submit", "submit", "submit", "cancel", "cancel", "burst"),
    *("wait", "wait", "wait", "stall", "turns", "abandon", "hold", "release"),
)
ENDINGS = ("token", "token", "task", "handles", "receiver", "idle", "idle")


class Action(NamedTuple):
    """What the player does next: `kind` with a number that belongs to it."""

    kind: str  # submit, cancel, burst, wait, stall, turns, abandon, hold, release
    amount: float = 0.0


@dataclass(frozen=True)
class Script:
    """Everything about one life that is drawn."""

    settings: dict[str, Any]  # of `make_machine`
    deadlines_ms: list[float]  # internal work
    control_capacity: int
    event_capacity: int
    clock: str  # "measured", "nominal", "jumping"
    actions: list[Action]
    pauses_ms: list[float]  # of the consumer, one an event, over and over
    applied: list[int]  # commands through each boundary, over and over
    commands: list[tuple[int, int, int, bool]]  # number in, number out, prefix, discard; over and over
    ending: str

    def fresh_machine(self) -> Machine:
        machine = make_machine(engine_class=ScriptedEngine, **self.settings)
        machine.engine.deadlines[:] = self.deadlines_ms  # type: ignore[attr-defined]
        return machine


def draw_script(random: Random, *, num_actions: int = 40, scale: float = 1.0) -> Script:
    """One life; waits, stalls and passes are multiples of 0.5 ms times `scale`, so that ties are common."""
    block_size = random.randint(2, 6)
    dp_size = random.choice([1, 1, 2, 3])
    settings = {
        "dp_size": dp_size,
        "interval": random.choice([1, 1, 3]),
        "block_size": block_size,
        "trace_block_size": block_size,
        "num_gpu_blocks": random.randint(2, 14),
        "max_num_seqs": random.choice([1, 2, 4, None]),
        "max_num_batched_tokens": random.choice([3, 7, 20, None]),
        "preemption_mode": random.choice(["lifo", "fifo"]),
        "timing": _draw_timing(random, scale),
        "want": random.choice([0, 1, 3, 4]),
    }
    return Script(
        settings=settings,
        deadlines_ms=sorted(random.randint(0, 80) * 0.5 * scale for _ in range(random.choice([0, 0, 3]))),
        control_capacity=random.choice([1, 2, 64]),
        event_capacity=random.choice([1, 2, 64]),
        clock=random.choice(["measured", "measured", "nominal", "jumping"]),
        actions=[_draw_action(random, scale) for _ in range(num_actions)],
        pauses_ms=[random.choice([0, 0, 0, 0, 0.5, 3, 9]) * scale for _ in range(7)],
        applied=[random.choice([0, 0, 0, 1, 3]) for _ in range(5)],
        commands=[
            (random.randint(1, 24), random.randint(0, 12), random.randint(0, 3), random.choice([False, True]))
            for _ in range(8)
        ],
        ending=random.choice(ENDINGS),
    )


def _draw_timing(random: Random, scale: float) -> TimingModel:
    if random.randint(0, 5) == 0:
        return TimingModel("polynomial", speedup_ratio=3.0 / scale)
    return fixed(random.choice([0.0, 1.0, 2.5, 10.0]) * scale, random.choice([0.0, 0.5, 1.0]) * scale)


def _draw_action(random: Random, scale: float) -> Action:
    kind = random.choice(KINDS)
    if kind in ("wait", "stall"):
        return Action(kind, random.randint(1, 20) * 0.5 * scale)
    if kind == "burst":
        return Action(kind, random.randint(2, 6))
    return Action(kind, random.randint(0, 5))


class JumpingBack(Measured):
    """A clock whose readings jump back again and again."""

    def __init__(self) -> None:
        self._late_ms = itertools.cycle((0.0, 3.0, 0.25, 40.0, 0.0, 1_000.0))

    def reading(self, wall_ms: float, nominal_ms: float | None) -> float:
        return max(0.0, wall_ms - next(self._late_ms))


class Hands(Protocol):
    """Who moves the clock."""

    clock: Clock

    async def wait_ms(self, duration_ms: float) -> None: ...

    def stall_ms(self, duration_ms: float) -> None: ...

    async def until_done(self, tasks: Sequence[asyncio.Task[Any]]) -> None: ...


class VirtualHands:
    """The test does."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock: VirtualClock = clock

    async def wait_ms(self, duration_ms: float) -> None:
        await self.clock.advance_ms(duration_ms)

    def stall_ms(self, duration_ms: float) -> None:
        self.clock.stall_ms(duration_ms)

    async def until_done(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        await self.clock.until_done(asyncio.wait(tasks))


class RealHands:
    """Nobody does."""

    def __init__(self) -> None:
        self.clock: Clock = MonotonicClock()

    async def wait_ms(self, duration_ms: float) -> None:
        await asyncio.sleep(duration_ms / 1000.0)

    def stall_ms(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1000.0)

    async def until_done(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        await asyncio.wait(tasks)


@dataclass
class Life:
    """What is known of a life when it is over."""

    script: Script
    recorder: Recorder = field(default_factory=Recorder)
    received: list[EventRecord] = field(default_factory=list)  # by the consumer, in order
    answers: dict[int, tuple[bool, str]] = field(default_factory=dict)  # to callers that did not leave
    error: str | None = None  # of the driver


class Player:
    """Plays one script."""

    def __init__(self, script: Script, hands: Hands) -> None:
        self.life = Life(script)
        self._script = script
        self._hands = hands
        readings: dict[str, Readings] = {"measured": Measured(), "nominal": Nominal(), "jumping": JumpingBack()}
        self._driver = spawn(
            script.fresh_machine(),
            clock=hands.clock,
            control_capacity=script.control_capacity,
            event_capacity=script.event_capacity,
            readings=readings[script.clock],
            observer=self.life.recorder,
        )
        self._commands = itertools.cycle(script.commands)
        self._requests = itertools.count()
        self._left_to_apply = MAX_APPLIED
        self._submitted: list[Command] = []
        self._callers: list[asyncio.Task[None]] = []
        self._released = asyncio.Event()
        self._released.set()

    async def play(self) -> Life:
        consumer = asyncio.create_task(self._consume(), name="consumer")
        for action in self._script.actions:
            await self._act(action)
        await self._end()
        tasks = [self._driver.actor, consumer, *self._callers]
        await self._hands.until_done(tasks)
        for task in (consumer, *self._callers):
            if not task.cancelled():
                task.result()
        if not self._driver.actor.cancelled():
            error = self._driver.actor.exception()
            self.life.error = None if error is None else f"{type(error).__name__}: {error}"
        assert self._driver.shell.stopped
        return self.life

    # -- callers ------------------------------------------------------------------------------------

    async def _act(self, action: Action) -> None:
        if action.kind == "wait":
            await self._hands.wait_ms(action.amount)
        elif action.kind == "stall":
            self._hands.stall_ms(action.amount)
        elif action.kind == "turns":
            for _ in range(int(action.amount)):
                await asyncio.sleep(0)
        elif action.kind == "abandon" and self._callers:
            self._callers[int(action.amount) % len(self._callers)].cancel()
        elif action.kind == "hold":
            self._released.clear()
        elif action.kind == "release":
            self._released.set()
        else:
            for _ in range(int(action.amount) if action.kind == "burst" else 1):
                self._send(self._command("cancel" if action.kind == "cancel" else "submit", action.amount))

    def _command(self, kind: str, amount: float) -> Command:
        n_in, n_out, family, discard = next(self._commands)
        number = self._driver.handle.reserve_id()
        if kind == "cancel" and self._submitted:
            aim = self._submitted[-1 - int(amount) % len(self._submitted)]
            return cancel(number, aim.request, rank=aim.rank, discard=discard)
        block_size, dp_size = self._script.settings["trace_block_size"], self._script.settings["dp_size"]
        request = next(self._requests)
        shared = family * 2
        hash_ids = [family if at < shared else 1_000 * request + at for at in range(-(-n_in // block_size))]
        command = submit(number, request, n_in, n_out, rank=request % dp_size, hash_ids=hash_ids)
        self._submitted.append(command)
        return command

    def _send(self, command: Command) -> None:
        task = asyncio.create_task(self._call(command), name=f"caller of {command.command_id}")
        self._callers.append(task)

    async def _call(self, command: Command) -> None:
        try:
            answer = True, await self._driver.handle.send(command)
        except CommandFailed as exc:
            answer = False, str(exc)
        self.life.answers[command.command_id] = answer

    # -- the consumer -------------------------------------------------------------------------------

    async def _consume(self) -> None:
        pauses, applied = itertools.cycle(self._script.pauses_ms), itertools.cycle(self._script.applied)
        while (event := await self._driver.events.receive()) is not None:
            self.life.received += event.records
            await self._pause(pauses)
            if event.boundary is not None:
                try:
                    await self._own(event.boundary, next(applied), pauses)
                except BoundaryClosed:
                    continue  # the driver is being stopped
            del event

    async def _own(self, boundary: Boundary, num_applied: int, pauses: Iterator[float]) -> None:
        async with boundary:
            for number in range(min(num_applied, self._left_to_apply)):
                self._left_to_apply -= 1
                await boundary.apply(self._command("cancel" if number % 2 else "submit", number))
                await self._pause(pauses)

    async def _pause(self, pauses: Iterator[float]) -> None:
        await self._released.wait()
        if (pause_ms := next(pauses)) > 0:
            await asyncio.sleep(pause_ms / 1000.0)

    # -- the end ------------------------------------------------------------------------------------

    async def _end(self) -> None:
        ending = self._script.ending
        if ending == "idle":
            self._released.set()
            for _ in range(200):
                if self._driver.shell.machine.phase_name == "idle" or self._driver.shell.stopped:
                    break
                await self._hands.wait_ms(1.0)
            self._driver.shell.token.cancel()
        elif ending == "token":
            self._driver.shell.token.cancel()
        elif ending == "task":
            self._driver.actor.cancel()
        elif ending == "handles":
            self._driver.handle.close()
        elif ending == "receiver":
            self._driver.events.close()
            # A driver that has nothing to say does not notice.
            self._send(self._command("submit", 0))
            self._send(self._command("cancel", 0))
        self._released.set()
        if ending == "receiver":
            await self._hands.wait_ms(50.0)
            self._driver.shell.token.cancel()


def published_by(life: Life) -> list[EventKind]:
    """Kinds of all records the consumer has seen."""
    return [EventKind(record.kind) for record in life.received]
