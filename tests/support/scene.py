"""A driver on the controllable clock with a test in all roles around it: callers, consumer, owner, clock."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from mocker_replay._core._testing import ScriptedEngine
from mocker_replay._core.driver import Machine
from mocker_replay._core.lanes import Command
from mocker_replay.events import EventKind
from mocker_replay.shells.boundary import Boundary
from mocker_replay.shells.clock import Clock
from mocker_replay.shells.handle import spawn
from mocker_replay.shells.published import EventRecord, Published
from mocker_replay.shells.readings import Readings
from mocker_replay.shells.tokens import CancelToken
from tests.support.machines import cancel, fixed, make_machine, submit
from tests.support.recording import Recorder
from tests.support.virtual_loop import VirtualClock, run_virtual

COMMAND, PASS_START, PASS_END = EventKind.COMMAND, EventKind.PASS_START, EventKind.PASS_END
WORK = EventKind.INTERNAL_WORK
APPLIED, NOOP, SUBMITTED = "applied", "noop", "submitted"


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test on the controllable clock, which is its first argument; whatever it leaves behind fails it."""

    @functools.wraps(test)
    def run(**kwargs: Any) -> None:
        run_virtual(lambda clock: test(clock, **kwargs))

    signature = inspect.signature(test)
    parameters = list(signature.parameters.values())[1:]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


class Call:
    """A caller of its own that sends one command and waits for the acknowledgement."""

    def __init__(self, scene: Scene, command: Command, stamp_ms: float | None) -> None:
        self.command_id = command.command_id
        self.task = asyncio.create_task(
            scene.handle.send(command, stamp_ms=stamp_ms), name=f"caller of {command.command_id}"
        )

    @property
    def waits(self) -> bool:
        return not self.task.done()

    @property
    def answer(self) -> str:
        """What the driver said; an error as "ErrorClass: text". Fails while the caller still waits."""
        assert self.task.done(), f"{self.task.get_name()} still waits"
        if self.task.cancelled():
            return "cancelled"
        error = self.task.exception()
        return self.task.result() if error is None else f"{type(error).__name__}: {error}"


class Scene:
    """A spawned driver of one scripted engine; passes take `pass_ms` each unless a timing model says otherwise.

    `deadlines_ms`: of internal work.
    """

    def __init__(
        self, clock: VirtualClock, pass_ms: float = 10.0, *, other_clock: Clock | None = None,
        control_capacity: int = 64, event_capacity: int = 64, token: CancelToken | None = None,
        readings: Readings | None = None, deadlines_ms: Sequence[float] = (), **settings: Any,
    ) -> None:  # fmt: skip
        self.clock = clock
        self.recorder = Recorder()
        self._settings = {"timing": fixed(pass_ms, pass_ms), "engine_class": ScriptedEngine, **settings}
        self._deadlines_ms = deadlines_ms
        self.machine = self.fresh_machine()
        self.driver = spawn(
            self.machine, clock=other_clock or clock, control_capacity=control_capacity, event_capacity=event_capacity,
            token=token, readings=readings, observer=self.recorder,
        )  # fmt: skip
        self.handle = self.driver.handle
        self.shell = self.driver.shell
        self.token = self.shell.token
        self.actor = self.driver.actor
        self.calls: list[Call] = []

    def fresh_machine(self) -> Machine:
        """A machine as this one was at the start."""
        machine = make_machine(**self._settings)
        machine.engine.deadlines[:] = self._deadlines_ms  # type: ignore[attr-defined]
        return machine

    @property
    def engine(self) -> Any:
        """The scripted engine: deadlines, and faults on order."""
        return self.machine.engine

    @property
    def phase(self) -> str:
        return self.machine.phase_name

    # -- callers ------------------------------------------------------------------------------------

    def send(self, command: Command, *, stamp_ms: float | None = None) -> Call:
        call = Call(self, command, stamp_ms)
        self.calls.append(call)
        return call

    def submit(self, request: int, n_in: int = 4, n_out: int = 1, *, rank: int = 0) -> Call:
        return self.send(submit(self.handle.reserve_id(), request, n_in, n_out, rank=rank))

    def cancel(self, request: int, *, rank: int = 0, discard: bool = False) -> Call:
        return self.send(cancel(self.handle.reserve_id(), request, rank=rank, discard=discard))

    # -- the consumer -------------------------------------------------------------------------------

    async def receive(self) -> Published:
        """The next event, which must be there when all has come to rest."""
        await self.clock.settle()
        assert len(self.driver.events), f"no event in phase {self.phase}"
        event = self.driver.events.receive_nowait()
        self.driver.events.done()
        await self.clock.settle()
        return event

    async def events(self) -> list[Published]:
        """All events there are, without finishing any boundary."""
        found: list[Published] = []
        while True:
            await self.clock.settle()
            while len(self.driver.events):
                found.append(self.driver.events.receive_nowait())
            self.driver.events.done()
            await self.clock.settle()
            if not len(self.driver.events):
                return found

    async def story(self) -> list[tuple[EventKind, float]]:
        """Kind and time of all events there are."""
        return [(event.kind, event.head.t_ms) for event in await self.events()]

    async def completed(self) -> Boundary:
        """The boundary of the next completed pass, the only events before it being that pass's start and commands."""
        while True:
            event = await self.receive()
            if event.boundary is not None:
                return event.boundary
            assert event.kind in (COMMAND, PASS_START), event

    async def first_boundary(self, n_out: int = 3, **fields: Any) -> Boundary:
        """The boundary of the first pass of request 0, of one pass length."""
        call = self.submit(0, n_out=n_out, **fields)
        assert (await self.receive()).kind is COMMAND
        assert call.answer == SUBMITTED
        started = await self.receive()
        await self.clock.advance_ms(started.head.x - started.head.t_ms)
        return await self.completed()

    async def finish(self, boundary: Boundary) -> None:
        """Finish, and run on until everybody waits."""
        finishing = asyncio.create_task(boundary.finish(), name="owner of a boundary")
        await self.clock.settle()
        await finishing

    # -- the end ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop the driver, which must end orderly."""
        self.token.cancel()
        await self.ended()

    async def ended(self) -> None:
        """The driver has ended orderly, and nobody waits for it any more."""
        await self._over()
        self.actor.result()

    async def failed(self) -> str:
        """The driver has ended with an error: its text. Nobody waits for it any more."""
        await self._over()
        error = self.actor.exception()
        assert error is not None
        return f"{type(error).__name__}: {error}"

    async def _over(self) -> None:
        await self.clock.settle()
        assert self.actor.done(), f"the driver goes on in phase {self.phase}"
        assert all(call.answer for call in self.calls)


def pass_times(events: list[Published]) -> list[tuple[float, float]]:
    """Start and end of the passes that were started."""
    return [(event.head.t_ms, event.head.x) for event in events if event.kind is PASS_START]


def of(events: list[Published], kind: EventKind) -> list[EventRecord]:
    """All records of one kind."""
    return [record for event in events for record in event.of(kind)]
