"""The destination's party of a handoff session: it does at its engine what the source asks for, and says so.

Decides when it gives up by itself: its caller leaves, its stream ends, the source is gone or completes too early. Then
it cancels what it has, whatever the source does. Source: handoff specification, section 7.
"""

from __future__ import annotations

import math
import uuid
from functools import partial
from typing import TYPE_CHECKING, Final

from mocker_replay.live.errors import LiveError
from mocker_replay.live.handoff.control import HandoffControl, HandoffEvents
from mocker_replay.live.handoff.facts import DestinationReserved
from mocker_replay.live.handoff.inbox import Inbox
from mocker_replay.live.handoff.operations import CommandName
from mocker_replay.live.handoff.result import CLEANUP_MS, Ending, HandoffResult
from mocker_replay.live.handoff.transport import (
    Aborted,
    Answer,
    Ask,
    Completed,
    Endpoint,
    Message,
    PeerGone,
    Refused,
    Reserved,
)
from mocker_replay.live.request import Signal
from mocker_replay.live.stream import Registration
from mocker_replay.shells.lanes import BoundedLane
from mocker_replay.shells.tokens import CancelToken

if TYPE_CHECKING:
    from mocker_replay.live.group import Group

_COMMANDS: Final[dict[str, CommandName]] = {
    "reserve_destination": "reserve_destination", "activate_destination": "activate_destination",
    "cancel_destination": "cancel_destination",
}  # fmt: skip


class DestinationHandoff:
    """The decode side of a handoff. Losing it changes nothing; losing the stream of its request cancels it.

    Args:
        output: queue of the request's stream. stop: the engine has stopped. timeout_ms: of the session.
    """

    def __init__(
        self,
        control: HandoffControl,
        events: HandoffEvents,
        registration: Registration,
        output: BoundedLane[Signal],
        endpoint: Endpoint,
        group: Group,
        stop: CancelToken,
        timeout_ms: float,
    ) -> None:
        self.handoff_id: uuid.UUID = control.handoff_id
        self._control = control
        self._events = events
        self._registration = registration
        self._output = output
        self._endpoint = endpoint
        self._stop = stop
        self._token = CancelToken()
        self._ending = Ending()
        self._now_ms = group.wall_ms
        self._timeout_ms = timeout_ms
        self._inbox = Inbox(group.clock, group.driver.shell.origin_ns)
        self._begun: set[str] = set()  # commands that were asked for
        self._accepted = False  # the reservation is acknowledged; facts are parked until then
        self._activated = False
        self._stream_over = False
        self._giving_up: str | None = None  # why
        self._cleanup_end_ms = math.inf

    def cancel(self) -> None:
        """Nobody wants it any more; `completed` says when it is cleaned up."""
        self._token.cancel()

    async def completed(self) -> HandoffResult:
        """Until the source has handed everything over, or this end is clean."""
        return await self._ending.wait()

    async def run(self) -> None:
        """Until there is a result."""
        keys = [(token, token.on_cancel(self._inbox.ring)) for token in (self._stop, self._token)]
        try:
            self._inbox.listen(self._events, self._endpoint, self._message)
            self._inbox.watch(self._output, self._stream_ended)
            while not self._ending.is_over:
                if not self._take_first():
                    await self._inbox.wait(self._cleanup_end_ms)
        finally:
            for token, key in keys:
                token.forget(key)
            await self._inbox.close()
            self._endpoint.close()
            self._registration.drop()
            self._events.drop()
            self._finish("the session was stopped")

    # -- what happened ------------------------------------------------------------------------------

    def _take_first(self) -> bool:
        """Deal with what comes first; False if nothing has happened."""
        if self._stop.cancelled:
            self._finish("the engine has stopped")
        elif self._token.cancelled and self._giving_up is None:
            self._give_up("cancelled")
        elif self._now_ms() >= self._cleanup_end_ms:
            self._finish(f"{self._giving_up}; the cleanup did not end in time")
        elif self._inbox.facts and self._accepted:
            fact = self._inbox.facts.popleft()
            assert isinstance(fact, DestinationReserved), "a destination is told of nothing else"
            self._post(Reserved(fact.missing_tokens))
        elif self._inbox.others:
            self._inbox.others.popleft()()
        else:
            return False
        return True

    def _message(self, message: Message | None) -> None:
        if self._giving_up is not None:
            return  # the source is told by the end of the connection
        if isinstance(message, Ask) and message.kind in _COMMANDS and message.kind not in self._begun:
            self._begin(message.action_id, _COMMANDS[message.kind])
        elif isinstance(message, Completed) and self._activated:
            self._finish(None)
        elif isinstance(message, Completed):
            self._give_up("the source completed before the activation")
        elif isinstance(message, Refused):
            self._give_up(f"refused: {message.text}")
        elif message is None:
            self._give_up("the source has disconnected")
        else:
            self._give_up(f"unexpected message {type(message).__name__}")

    def _stream_ended(self) -> None:
        """Its reader has left, unless it is being activated or cancelled or was refused, which is told otherwise."""
        self._stream_over = True
        told = self._begun & {"activate_destination", "cancel_destination"}
        if self._accepted and not told and self._giving_up is None:
            self._give_up("its stream has ended")

    # -- what follows -------------------------------------------------------------------------------

    def _begin(self, action_id: int, kind: CommandName) -> None:
        """Ask the engine, and tell the source what became of it."""
        self._begun.add(kind)
        if kind == "cancel_destination" and "reserve_destination" not in self._begun:
            self._post(Answer(action_id, "noop", ""))
            self._finish("the source gave up")
            return
        registration = self._registration if kind == "reserve_destination" else None
        try:
            operation = self._control.begin(kind, registration)
        except LiveError as exc:
            self._inbox.note(partial(self._ended, action_id, kind, False, str(exc)))
        else:
            self._inbox.follow(operation, partial(self._ended, action_id, kind))

    def _ended(self, action_id: int, kind: CommandName, applied: bool, text: str) -> None:
        if self._giving_up is not None:
            return
        if text:
            self._post(Answer(action_id, "failed", text))
        elif kind == "reserve_destination":
            self._accepted = True
            self._post(Answer(action_id, "accepted", ""))
            if self._stream_over:
                self._stream_ended()
        else:
            self._activated = self._activated or kind == "activate_destination"
            self._post(Answer(action_id, "applied" if applied else "noop", ""))
        if kind == "cancel_destination":
            self._finish(f"the source gave up; cancel destination failed: {text}" if text else "the source gave up")

    def _give_up(self, why: str) -> None:
        """Cancel what may be owned, and say so."""
        self._giving_up = why
        self._cleanup_end_ms = self._now_ms() + max(self._timeout_ms, CLEANUP_MS)
        self._post(Aborted(why))
        if "reserve_destination" not in self._begun:
            self._finish(why)
            return
        try:
            self._inbox.follow(self._control.begin("cancel_destination"), self._cleaned)
        except LiveError as exc:
            self._cleaned(False, str(exc))

    def _cleaned(self, applied: bool, text: str) -> None:
        self._finish(f"{self._giving_up}; cancel destination failed: {text}" if text else self._giving_up)

    def _post(self, message: Message) -> None:
        try:
            self._endpoint.post(message)
        except PeerGone:
            return  # the end of its messages says so, too

    def _finish(self, error: str | None) -> None:
        self._ending.end(HandoffResult(self.handoff_id, error is None, error))
