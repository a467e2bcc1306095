"""What the two parties of a handoff session tell each other, and the pair of queues between them.

Decides when a party counts as gone. Never decides what a message means. A session needs fewer messages than a queue
holds, so posting one never waits; a queue that is full belongs to somebody who does not read, which is the same as
being gone. Source: handoff specification, section 7.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Final, NamedTuple, Protocol

from mocker_replay.errors import MockerReplayError
from mocker_replay.shells.lanes import BoundedLane, LaneClosed
from mocker_replay.shells.tokens import call_on

# Messages under way in one direction.
MESSAGE_CAPACITY: Final = 16


class PeerGone(MockerReplayError):
    """The other party of a session has disconnected, or does not read."""


class Ask(NamedTuple):
    """To the destination: do this."""

    action_id: int
    kind: str  # "reserve_destination", "activate_destination" or "cancel_destination"


class Answer(NamedTuple):
    """To the source: what became of it."""

    action_id: int
    outcome: str  # "accepted", "applied", "noop" or "failed"
    text: str  # why it failed


class Reserved(NamedTuple):
    """To the source: there is room."""

    missing_tokens: int  # [tokens]


class Aborted(NamedTuple):
    """To the source: the destination gives up."""

    text: str


class Refused(NamedTuple):
    """To the destination: there will be no session."""

    text: str


class Completed(NamedTuple):
    """To the destination: the handoff is over, and it owns the request."""


Message = Ask | Answer | Reserved | Aborted | Refused | Completed


class Endpoint(Protocol):
    """One party's end of a connection."""

    @property
    def peer_gone(self) -> bool:
        """The other end was closed, and everything it sent has been received."""

    def post(self, message: Message) -> None:
        """Send without waiting.

        Raises:
            PeerGone: the other party will not get it.
        """

    async def receive(self) -> Message | None:
        """The next message; None when there will be none. One reader; cancelling the wait loses nothing."""

    def close(self) -> None:
        """Disconnect; what was sent can still be received. Idempotent."""


class QueueEndpoint:
    """An end within this process; one that is collected counts as closed."""

    def __init__(self, outgoing: BoundedLane[Message], incoming: BoundedLane[Message]) -> None:
        self._outgoing = outgoing
        self._incoming = incoming

        def close() -> None:
            outgoing.close()
            incoming.close_reader()

        self._close = close
        self._finalizer = weakref.finalize(self, call_on, asyncio.get_running_loop(), close)
        self._finalizer.atexit = False

    @property
    def peer_gone(self) -> bool:
        return self._incoming.closed and not len(self._incoming)

    def post(self, message: Message) -> None:
        try:
            if self._outgoing.try_send(message):
                return
        except LaneClosed:
            raise PeerGone("the other party has disconnected") from None
        raise PeerGone("the other party does not read")

    async def receive(self) -> Message | None:
        try:
            message = await self._incoming.take()
        except LaneClosed:
            return None
        self._incoming.done()
        return message

    def close(self) -> None:
        self._finalizer.detach()
        self._close()


def connected_endpoints() -> tuple[QueueEndpoint, QueueEndpoint]:
    """Two ends of one connection, in the running loop."""
    there: BoundedLane[Message] = BoundedLane(MESSAGE_CAPACITY)
    back: BoundedLane[Message] = BoundedLane(MESSAGE_CAPACITY)
    return QueueEndpoint(there, back), QueueEndpoint(back, there)
