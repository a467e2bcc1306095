"""The caller's end of a driver: command ids, the two control lanes, acknowledgements, the drop guard.

Decides which lane a command takes, by its kind alone. Source: driver specification, section 9.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from mocker_replay.errors import ConfigError, MockerReplayError
from mocker_replay.shells.clock import Clock, MonotonicClock
from mocker_replay.shells.lanes import BoundedLane, LaneClosed, Ticket, TicketState
from mocker_replay.shells.published import Published
from mocker_replay.shells.readings import Nominal, Readings
from mocker_replay.shells.realtime import Observer, OnReply, Queued, RealtimeShell
from mocker_replay.shells.tokens import CancelToken, call_on, resolve

if TYPE_CHECKING:
    from mocker_replay._core.driver import Machine
    from mocker_replay._core.lanes import Command

LAST_COMMAND_ID: Final = 2**64 - 1  # never handed out


class CommandFailed(MockerReplayError):
    """A command was refused by the engine, or its driver stopped before it acknowledged."""


class ControlLaneClosed(CommandFailed):
    """The driver takes no more commands."""


class _Share:
    """What all clones of a handle have in common."""

    def __init__(self, shell: RealtimeShell, loop: asyncio.AbstractEventLoop) -> None:
        self.shell = shell
        self.loop = loop
        self.next_id = 0
        self.clones = 0

    def release(self) -> None:
        """A clone went away; may run on any thread, also after the loop was closed."""
        call_on(self.loop, self.drop_one)

    def drop_one(self) -> None:
        self.clones -= 1
        if self.clones == 0:
            self.shell.token.cancel()


class DriverHandle:
    """Sends commands to one driver. Cloneable; when the last clone goes away, the driver's cancel token fires."""

    def __init__(self, share: _Share) -> None:
        self._share = share
        self._shell = share.shell
        share.clones += 1
        self._finalizer = weakref.finalize(self, share.release)
        self._finalizer.atexit = False

    def clone(self) -> DriverHandle:
        return DriverHandle(self._share)

    def close(self) -> None:
        """This clone goes away now."""
        if self._finalizer.detach() is not None:
            self._share.drop_one()

    def reserve_id(self) -> int:
        """The next command id, so that a caller can register interest before the event can appear.

        Raises:
            OverflowError: the counter stands at 2**64 - 1.
        """
        if self._share.next_id >= LAST_COMMAND_ID:
            raise OverflowError(f"the command id {LAST_COMMAND_ID} is never handed out")
        command_id = self._share.next_id
        self._share.next_id += 1
        return command_id

    def put(self, command: Command, on_reply: OnReply, *, stamp_ms: float | None = None) -> Ticket[Queued]:
        """Place a command with a reserved id on its lane, now or as soon as it is its turn.

        Args:
            on_reply: called once with the acknowledgement, or with why there is none. An exception it raises goes to
                the loop's handler, as that of any callback.
            stamp_ms: nominal time of the command; the current time where none is given and the clock is nominal.

        Raises:
            ValueError, OverflowError, TypeError: no machine takes such a command.
        """
        from mocker_replay._core.lanes import check_command

        check_command(command)
        shell = self._shell
        if stamp_ms is None and isinstance(shell.readings, Nominal):
            stamp_ms = shell.wall_ms()
        lane = shell.cancels if command.kind == "cancel" else shell.commands

        def tell(ok: bool, text: str) -> None:
            try:
                on_reply(ok, text)
            except Exception as exc:  # nobody else must go without an answer
                message = f"callback of command {command.command_id} failed"
                self._share.loop.call_exception_handler({"message": message, "exception": exc})

        def on_done(state: TicketState) -> None:
            if state is TicketState.PLACED:
                shell.expect_reply(command.command_id, tell)
            elif state is TicketState.REFUSED:
                tell(False, "control lane closed")

        return lane.put(Queued(command, stamp_ms), on_done)

    async def send(self, command: Command, *, stamp_ms: float | None = None) -> str:
        """Send a command with a reserved id and wait for its acknowledgement: its effects are on the event lane then.

        A caller that is cancelled while it waits for a place has sent nothing; later the command is applied anyway.

        Returns:
            "submitted", "applied" or "noop".

        Raises:
            ControlLaneClosed: the driver takes no more commands.
            CommandFailed: the engine refused it, or the driver stopped before it acknowledged.
            ValueError, OverflowError, TypeError: no machine takes such a command.
        """
        replied: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
        ticket = self.put(command, lambda ok, text: resolve(replied, (ok, text)), stamp_ms=stamp_ms)
        try:
            ok, text = await replied
        except asyncio.CancelledError:
            ticket.withdraw()
            raise
        if ok:
            return text
        raise (ControlLaneClosed if ticket.state is TicketState.REFUSED else CommandFailed)(text)


class EventReceiver:
    """The one consumer of a driver's events. When it goes away, nobody reads them any more, as after `close`."""

    def __init__(self, lane: BoundedLane[Published], loop: asyncio.AbstractEventLoop) -> None:
        self._lane = lane
        self._finalizer = weakref.finalize(self, call_on, loop, lane.close_reader)
        self._finalizer.atexit = False

    def __len__(self) -> int:
        """Events waiting."""
        return len(self._lane)

    async def receive(self) -> Published | None:
        """The next event; None when the driver has stopped and all were read."""
        self._lane.done()
        try:
            return await self._lane.take()
        except LaneClosed:
            return None

    def receive_nowait(self) -> Published:
        """The next event.

        Raises:
            LaneEmpty: there is none now. LaneClosed: there will be none.
        """
        self._lane.done()
        return self._lane.take_nowait()

    def done(self) -> None:
        """All events received so far have been dealt with; told by itself with the next `receive`."""
        self._lane.done()

    def close(self) -> None:
        """Nobody reads any more: the driver stops with an error, unless it is being stopped."""
        self._finalizer.detach()
        self._lane.close_reader()


class Driver(NamedTuple):
    """A spawned driver."""

    handle: DriverHandle
    events: EventReceiver
    actor: asyncio.Task[None]
    shell: RealtimeShell


def spawn(
    machine: Machine,
    *,
    clock: Clock | None = None,
    control_capacity: int | None = 64,
    event_capacity: int | None = 64,
    token: CancelToken | None = None,
    readings: Readings | None = None,
    observer: Observer | None = None,
    origin_ns: int | None = None,
    clear_events: Callable[[], None] | None = None,
) -> Driver:
    """Start a driver in the running loop; its clock starts now, or at `origin_ns`.

    `clear_events` is called instead of clearing the machine's event buffer, where others look at it, too.

    Raises:
        ConfigError: a capacity below 1; nothing was started.
    """
    for name, capacity in (("control_capacity", control_capacity), ("event_capacity", event_capacity)):
        if capacity is not None and capacity < 1:
            raise ConfigError(f"{name}: must be at least 1 (got {capacity})")
    loop = asyncio.get_running_loop()
    shell = RealtimeShell(
        machine,
        clock or MonotonicClock(),
        control_capacity=control_capacity,
        event_capacity=event_capacity,
        token=token,
        readings=readings,
        observer=observer,
        origin_ns=origin_ns,
        clear_events=clear_events,
    )
    actor = loop.create_task(shell.run(), name=f"driver of worker {machine.engine.worker}")
    actor.add_done_callback(shell.ended)
    return Driver(DriverHandle(_Share(shell, loop)), EventReceiver(shell.events, loop), actor, shell)
