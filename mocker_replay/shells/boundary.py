"""The boundary of a completed pass: until its owner finishes it, the driver reads no lane and starts nothing.

Decides only who may ask what when; the machine answers. Source: driver specification, section 8.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from mocker_replay.errors import MockerReplayError
from mocker_replay.shells.published import EventRecord
from mocker_replay.shells.tokens import call_on

if TYPE_CHECKING:
    from mocker_replay._core.lanes import Command


class BoundaryClosed(MockerReplayError):
    """The driver stopped: it took no further request, or did not answer one it had taken."""


class BoundaryOutcome(NamedTuple):
    """Answer to a command that was applied through a boundary; its records are the caller's to publish."""

    ok: bool
    text: str  # "applied", "noop", "submitted", or why it was refused
    records: list[EventRecord]  # internal work that was due, then the command
    words: list[int]


class BoundaryRequest:
    """What the owner asks."""

    __slots__ = ("answer", "command", "kind")

    def __init__(self, kind: str, command: Command | None, answer: asyncio.Future[BoundaryOutcome | None]) -> None:
        self.kind = kind  # "apply" or "finish"
        self.command = command
        self.answer = answer


class BoundarySlot:
    """The shell's side: what the owner asked, oldest first, and whether it let go.

    Args:
        notify: called whenever the owner did something; it has seen all events up to its boundary then.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        # More than one only when an owner went away from a request and came back with another.
        self.requests: deque[BoundaryRequest] = deque()
        self.dropped = False
        self.closed = False
        self._notify = notify

    @property
    def request(self) -> BoundaryRequest | None:
        """What is to be answered next."""
        return self.requests[0] if self.requests else None

    def ask(self, request: BoundaryRequest) -> None:
        if self.closed:
            raise BoundaryClosed("boundary closed")
        self.requests.append(request)
        self._notify()

    def drop(self) -> None:
        self.dropped = True
        self._notify()

    def answer(self, outcome: BoundaryOutcome | None) -> None:
        """Answer the oldest request; its owner may have gone away."""
        answer = self.requests.popleft().answer
        if not answer.done():
            answer.set_result(outcome)

    def close(self, text: str) -> None:
        """The driver has moved on or stopped; whoever still waits is told."""
        self.closed = True
        while self.requests:
            answer = self.requests.popleft().answer
            if not answer.done():
                answer.set_exception(BoundaryClosed(text))
                answer.exception()  # an owner that went away does not look at it


def _report_drop(slot: BoundarySlot, loop: asyncio.AbstractEventLoop) -> None:
    """Runs wherever the collector finds the object, also after the loop was closed."""
    if not slot.closed:
        call_on(loop, slot.drop)


class Boundary:
    """Handed out with every completed pass; `finish` it, or use it as `async with`.

    Leaving the block with an exception drops the boundary, which stops the driver with an error.
    """

    def __init__(self, slot: BoundarySlot) -> None:
        self._slot = slot
        self._finalizer = weakref.finalize(self, _report_drop, slot, asyncio.get_running_loop())
        self._finalizer.atexit = False

    async def apply(self, command: Command) -> BoundaryOutcome:
        """Apply a command at the boundary; any number of times, one after the other.

        A caller that is cancelled while it waits has its command applied anyway, and loses the outcome.

        Raises:
            BoundaryClosed: the driver stopped.
            ValueError, OverflowError, TypeError: no machine takes such a command.
        """
        from mocker_replay._core.lanes import check_command

        check_command(command)
        outcome = await self._ask("apply", command)
        assert outcome is not None, "only a finish has no outcome"
        return outcome

    async def finish(self) -> None:
        """Let the driver go on; resolves when it has acknowledged, and goes on without a caller who left.

        Raises:
            BoundaryClosed: the driver stopped, or this is the second time.
        """
        await self._ask("finish", None)

    def drop(self) -> None:
        """Let go without finishing: a driver error, unless the driver is being stopped."""
        if self._finalizer.detach() is not None and not self._slot.closed:
            self._slot.drop()

    async def _ask(self, kind: str, command: Command | None) -> BoundaryOutcome | None:
        answer: asyncio.Future[BoundaryOutcome | None] = asyncio.get_running_loop().create_future()
        self._slot.ask(BoundaryRequest(kind, command, answer))
        if kind == "finish":
            self._finalizer.detach()
        return await answer

    async def __aenter__(self) -> Boundary:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.drop()
        elif self._finalizer.alive:  # neither finished nor dropped within
            await self.finish()
