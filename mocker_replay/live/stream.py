"""The caller's ends of one request: the right to submit it, and the stream of its output.

Decides when the end of life of an object cancels a request: always, and without waiting. Source: boundary
specification, sections 3, 7 and 10.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING

from mocker_replay.live.errors import LiveError
from mocker_replay.live.operations import Cancellation
from mocker_replay.live.request import Asked, Signal
from mocker_replay.live.route import Route, RouteState
from mocker_replay.shells.lanes import BoundedLane, LaneClosed
from mocker_replay.shells.tokens import call_on

if TYPE_CHECKING:
    from mocker_replay.live.rank import Rank


class RequestStream:
    """Output of one request, read by one reader: `async with stream: async for signal in stream: ...`.

    Leaving the block in any way cancels the request unless it has ended; so does losing the last reference. Breaking
    out of a bare `async for` does not: the stream carries the lifetime, not the loop.
    """

    def __init__(self, rank: Rank, route: Route, queue: BoundedLane[Signal]) -> None:
        self.client_id: uuid.UUID = route.client_id
        self._rank = rank
        self._route = route
        self._queue = queue
        self._reading = False
        self._finalizer = weakref.finalize(self, call_on, rank.loop, lambda: rank.drop_stream(route))
        self._finalizer.atexit = False

    def __aiter__(self) -> AsyncIterator[Signal]:
        return self

    async def __anext__(self) -> Signal:
        signal = await self.recv()
        if signal is None:
            raise StopAsyncIteration
        return signal

    async def recv(self) -> Signal | None:
        """The next signal; None at the end of the stream. Cancelling the wait loses nothing.

        Raises:
            LiveError: another task waits for the next signal.
        """
        if self._reading:
            raise LiveError(f"request {self.client_id}: a stream has one reader")
        self._reading = True
        try:
            signal = await self._queue.take()
        except LaneClosed:
            if self._route.state is RouteState.CLOSED:
                self._finalizer.detach()
            return None
        finally:
            self._reading = False
        self._queue.done()
        return signal

    async def until_ended(self) -> None:
        """Until no further signal can come; those that were not read can be read still.

        With `output_buffering` "full" this is the cheap way to take a whole response: one wait instead of one a token.
        """
        await self._queue.until_closed()

    @property
    def output(self) -> BoundedLane[Signal]:
        """Where it reads from: for whoever wants to know when nothing can come any more, and must not keep it alive."""
        return self._queue

    @property
    def num_unread(self) -> int:
        """Signals that wait to be read."""
        return len(self._queue)

    def drop(self) -> None:
        """Stop reading: the request is cancelled unless it has ended. Does not wait; idempotent."""
        if self._finalizer.detach() is not None:
            self._rank.drop_stream(self._route)

    async def aclose(self) -> None:
        """As `drop`."""
        self.drop()

    async def cancel(self) -> bool:
        """Stop reading, cancel the request, and wait until the scheduler has answered.

        A caller that is cancelled while it waits leaves the cancellation running.

        Returns:
            True if the scheduler removed something or dropped pending output.

        Raises:
            LiveError: the cancellation failed.
        """
        self._finalizer.detach()
        return await self._rank.cancel_route(self._route).wait()

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()


class Registration:
    """The right to submit one prepared request, once, on the engine that prepared it.

    Unused it must be dropped, by `drop` or by losing the last reference; the paired stream ends then.
    """

    def __init__(self, rank: Rank, route: Route, asked: Asked) -> None:
        self.client_id: uuid.UUID = route.client_id
        self._rank = rank
        self._route = route
        self._asked = asked
        self._finalizer = weakref.finalize(self, call_on, rank.loop, lambda: rank.close_route(route))
        self._finalizer.atexit = False

    def drop(self) -> None:
        """Give the right back: the stream ends, the client id is free."""
        if self._finalizer.detach() is not None:
            self._rank.close_route(self._route)

    def consume(self, rank: Rank) -> tuple[Route, Asked]:
        """Use the right; it is gone afterwards, also where this raises.

        Raises:
            LiveError: used before, of another engine, or of one that is gone.
        """
        if self._finalizer.detach() is None:
            raise LiveError(f"request {self.client_id}: the registration is already consumed")
        error: LiveError | None = None
        if self._rank.released:
            error = LiveError(f"request {self.client_id}: the engine no longer exists")
        elif self._rank is not rank:
            error = LiveError(f"request {self.client_id}: the registration belongs to a different engine")
        else:
            error = rank.not_running()
        if error is not None:
            self._rank.close_route(self._route)
            raise error
        return self._route, self._asked


def start_cancellation(rank: Rank, route: Route, *, explicit: bool) -> Cancellation:
    """Abandon a stream at once, so that nobody waits for it, and ask the scheduler."""
    route.abandon()
    cancellation = Cancellation(rank, route, explicit=explicit)
    cancellation.start()
    return cancellation
