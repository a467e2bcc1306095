"""The caller's ends of one handoff at one engine: the right to command it, and the facts that the engine tells.

Decides when the end of life of an object unregisters a handoff: the events' does, a control's does nothing. Source:
handoff specification, section 6.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from mocker_replay.live.errors import LiveError
from mocker_replay.live.handoff.facts import HandoffFact
from mocker_replay.live.handoff.operations import SUBMISSIONS, CommandName
from mocker_replay.live.handoff.routes import Generation
from mocker_replay.live.operations import Operation
from mocker_replay.live.stream import Registration
from mocker_replay.shells.lanes import LaneClosed
from mocker_replay.shells.tokens import call_on

if TYPE_CHECKING:
    from mocker_replay.live.handoff.lifecycle import Handoffs


class HandoffControl:
    """Commands about one registration of a handoff. They are applied one after the other, in the order of the calls.

    A command goes on when its caller is cancelled. All of them raise `NotRunning` when the engine has stopped and
    `LiveError` when it is gone, when another registration of the id came later, or when the scheduler refuses.
    """

    def __init__(self, handoffs: Handoffs, generation: Generation) -> None:
        self.handoff_id: uuid.UUID = generation.handoff_id
        self._handoffs = handoffs
        self._generation = generation

    def begin(self, kind: CommandName, registration: Registration | None = None) -> Operation:
        """As the method of that name, without waiting: an operation to wait for.

        Raises:
            LiveError: a registration that cannot be submitted, is missing, or is not needed.
        """
        if (registration is not None) != (kind in SUBMISSIONS):
            needed = "needs a" if kind in SUBMISSIONS else "takes no"
            raise LiveError(f"handoff {self.handoff_id}: {kind} {needed} registration")
        if registration is not None:
            return self._handoffs.submit(self._generation, kind, registration)
        return self._handoffs.command(self._generation, kind)

    async def submit_prefill(self, registration: Registration) -> None:
        """Submit a prepared request as the source of the handoff. The registration is used up in any case.

        Its stream has one token, with the end of the prefill.

        Raises:
            LiveError: the events of this control were dropped; and as above.
        """
        await self.begin("submit_prefill", registration).wait()

    async def reserve_destination(self, registration: Registration) -> None:
        """Ask for room for the prompt of a prepared request. The registration is used up in any case.

        Its stream has the tokens of the destination once that is activated; dropping it cancels the destination.

        Raises:
            LiveError: the events of this control were dropped; and as above.
        """
        await self.begin("reserve_destination", registration).wait()

    async def release_source(self) -> bool:
        """Free what the source holds, or let its request go on as an ordinary one; False: there was nothing."""
        return await self.begin("release_source").wait()

    async def cancel_source(self) -> bool:
        """Free what the source holds, or drop its request; False: there was nothing."""
        return await self.begin("cancel_source").wait()

    async def activate_destination(self) -> None:
        """The blocks are filled: the destination's request waits for its first pass.

        Raises:
            LiveError: nothing is reserved; and as above.
        """
        await self.begin("activate_destination").wait()

    async def cancel_destination(self) -> bool:
        """Drop the destination, whether it waits, is reserved or decodes; False: there was nothing."""
        return await self.begin("cancel_destination").wait()


class HandoffEvents:
    """Facts of one registration, read by one reader: `async with events: async for fact in events: ...`.

    When it goes away, by `drop`, the end of its block or its last reference, the handoff is unregistered: no fact
    reaches anybody, and nothing new can be submitted. What was submitted goes on; the control can still cancel it.
    """

    def __init__(self, handoffs: Handoffs, generation: Generation) -> None:
        self.handoff_id: uuid.UUID = generation.handoff_id
        self._facts = generation.facts
        self._reading = False
        self._unregister = partial(handoffs.routes.unregister, generation)
        self._finalizer = weakref.finalize(self, call_on, handoffs.loop, self._unregister)
        self._finalizer.atexit = False

    def __aiter__(self) -> AsyncIterator[HandoffFact]:
        return self

    async def __anext__(self) -> HandoffFact:
        fact = await self.recv()
        if fact is None:
            raise StopAsyncIteration
        return fact

    async def recv(self) -> HandoffFact | None:
        """The next fact; None when there will be none. Cancelling the wait loses nothing.

        Raises:
            LiveError: another task waits for the next fact.
        """
        if self._reading:
            raise LiveError(f"handoff {self.handoff_id}: its events have one reader")
        self._reading = True
        try:
            fact = await self._facts.take()
        except LaneClosed:
            return None
        finally:
            self._reading = False
        self._facts.done()
        return fact

    def drop(self) -> None:
        """Unregister. Idempotent."""
        if self._finalizer.detach() is not None:
            self._unregister()

    async def aclose(self) -> None:
        """As `drop`."""
        self.drop()

    async def __aenter__(self) -> HandoffEvents:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()
