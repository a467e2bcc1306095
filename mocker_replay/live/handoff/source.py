"""The source's party of a handoff session: it asks its own engine and its peer for what the coordinator wants.

Decides who is listened to first: shutdown, the caller's cancellation, the deadline, facts of the engine, the rest.
Never decides what is to be done: the coordinator does. When its engine stops there is nothing to clean here, and the
peer cleans up when it finds the connection closed. Source: handoff specification, sections 4, 5 and 7.
"""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from mocker_replay.live.errors import LiveError
from mocker_replay.live.handoff.control import HandoffControl, HandoffEvents
from mocker_replay.live.handoff.facts import SourceHeld
from mocker_replay.live.handoff.inbox import Inbox
from mocker_replay.live.handoff.operations import CommandName
from mocker_replay.live.handoff.result import CLEANUP_MS, Ending, HandoffResult
from mocker_replay.live.handoff.transport import Aborted, Answer, Ask, Completed, Endpoint, Message, PeerGone, Reserved
from mocker_replay.live.request import Signal
from mocker_replay.live.stream import Registration, RequestStream
from mocker_replay.shells.tokens import CancelToken

if TYPE_CHECKING:
    from mocker_replay._core.coordinator import Action
    from mocker_replay.live.rank import Rank

_CLEANUP: Final = ("cancel_source", "cancel_destination")
_OWN: Final[dict[str, CommandName]] = {
    "submit_prefill": "submit_prefill", "release_source": "release_source", "cancel_source": "cancel_source",
}  # fmt: skip


class SourceHandoff:
    """A prompt that was offered to whoever decodes it. Losing it changes nothing: the handoff goes on."""

    def __init__(
        self, control: HandoffControl, events: HandoffEvents, registration: Registration, stream: RequestStream
    ) -> None:
        self.handoff_id: uuid.UUID = control.handoff_id
        self.token = CancelToken()
        self.ending = Ending()
        self.control = control
        self.events = events
        self.registration = registration
        self.stream = stream

    def cancel(self) -> None:
        """Nobody wants it any more; `completed` says when it is cleaned up."""
        self.token.cancel()

    async def completed(self) -> HandoffResult:
        """Until the session has ended, or it was given up before there was one."""
        return await self.ending.wait()

    def give_up(self, why: str) -> None:
        """There will be no session."""
        self.registration.drop()
        self.events.drop()
        self.ending.end(HandoffResult(self.handoff_id, False, why))


class SourceSession:
    """One session, from the moment both parties are there.

    Args:
        stop: the manager is shut down. timeout_ms: of the session; the modelled transfer comes on top.
    """

    def __init__(
        self, source: SourceHandoff, endpoint: Endpoint, rank: Rank, stop: CancelToken, timeout_ms: float
    ) -> None:
        from mocker_replay._core.coordinator import Coordinator

        group = rank.group
        self._rank = rank
        self._source = source
        self._endpoint = endpoint
        self._stop = stop
        self._now_ms = group.wall_ms
        self._start_ms = group.wall_ms()
        self._timeout_ms = timeout_ms
        self._coordinator = Coordinator(source.handoff_id, group.handoff_settings.order)
        self._inbox = Inbox(group.clock, group.driver.shell.origin_ns)
        self._submitted = False  # the submission is acknowledged; facts are parked until then
        self._asked: dict[int, Action] = {}  # of the peer
        self._transfer_end_ms = math.inf
        self._cleanup_end_ms = math.inf
        self._open_cleanup: set[int] = set()
        self._cleaning = False
        self._error: str | None = None
        self._result: HandoffResult | None = None

    async def run(self) -> None:
        """Until the handoff has succeeded, or both ends are clean, or cleaning takes too long."""
        source = self._source
        keys = [(token, token.on_cancel(self._inbox.ring)) for token in (self._rank.token, self._stop, source.token)]
        try:
            self._inbox.listen(source.events, self._endpoint, self._message)
            self._inbox.read(source.stream, self._prefill_ended)
            self._tell(self._coordinator.start)
            while self._result is None:
                if not self._take_first():
                    await self._inbox.wait(min(self._deadline_ms(), self._transfer_end_ms))
        finally:
            for token, key in keys:
                token.forget(key)
            await self._inbox.close()
            self._endpoint.close()
            source.registration.drop()
            source.events.drop()
            source.stream.drop()
            source.ending.end(self._result or HandoffResult(source.handoff_id, False, "the session was stopped"))

    # -- what happened ------------------------------------------------------------------------------

    def _take_first(self) -> bool:
        """Deal with what comes first; False if nothing has happened."""
        handoff_id, now_ms = self._source.handoff_id, self._now_ms()
        if not self._rank.running:
            self._finish("the engine has stopped")
        elif self._stop.cancelled and not self._cleaning:
            self._tell(self._coordinator.failed, handoff_id, "shut down")
        elif self._source.token.cancelled and not self._cleaning:
            self._tell(self._coordinator.cancelled, handoff_id)
        elif now_ms >= self._deadline_ms():
            self._time_out()
        elif self._inbox.facts and self._submitted:
            self._fact()
        elif self._inbox.others:
            self._inbox.others.popleft()()
        elif now_ms >= self._transfer_end_ms:
            # Behind its own start, which is among the others: a transfer may take no time.
            self._transfer_end_ms = math.inf
            self._tell(self._coordinator.transfer_completed, handoff_id)
        else:
            return False
        return True

    def _deadline_ms(self) -> float:
        """A long transfer that is modelled does not time itself out."""
        if self._cleaning:
            return self._cleanup_end_ms
        return self._start_ms + self._timeout_ms + (self._coordinator.delay_ms or 0.0)

    def _time_out(self) -> None:
        if self._cleaning:
            self._finish("the cleanup did not end in time")
        else:
            self._tell(self._coordinator.timed_out, self._source.handoff_id)

    def _fact(self) -> None:
        fact = self._inbox.facts.popleft()
        assert isinstance(fact, SourceHeld), "a source is told of nothing else"
        self._tell(self._coordinator.source_held, fact.handoff_id, fact.timing)

    def _prefill_ended(self, last: Signal | None) -> None:
        """With its token it is held; without one there will be no such fact."""
        if last is None or last.position is None:
            reason = "cancelled" if last is None else last.reason
            self._tell(self._coordinator.failed, self._source.handoff_id, f"the prefill has ended: {reason}")

    def _message(self, message: Message | None) -> None:
        handoff_id = self._source.handoff_id
        if isinstance(message, Answer) and message.action_id in self._asked:
            self._ended(self._asked[message.action_id], message.outcome, message.text)
        elif isinstance(message, Reserved):
            self._tell(self._coordinator.destination_reserved, handoff_id, message.missing_tokens)
        elif isinstance(message, Aborted):
            self._tell(self._coordinator.failed, handoff_id, f"the destination gave up: {message.text}")
        elif message is None:
            self._peer_left()
        else:
            self._tell(self._coordinator.failed, handoff_id, f"unexpected message {type(message).__name__}")

    def _peer_left(self) -> None:
        """A destination that disconnects cleans up by itself."""
        self._tell(self._coordinator.failed, self._source.handoff_id, "the destination has disconnected")
        for action in list(self._asked.values()):
            if action.id in self._open_cleanup:
                self._ended(action, "noop")

    # -- what follows -------------------------------------------------------------------------------

    def _tell(self, tell: Callable[..., tuple[Action, ...]], *arguments: object) -> None:
        """Tell the coordinator, and do what it asks for; what breaks the protocol ends the session."""
        from mocker_replay._core.coordinator import HandoffError

        try:
            actions = tell(*arguments)
        except HandoffError as exc:
            self._error = self._error or str(exc)
            actions = self._coordinator.failed(self._source.handoff_id, str(exc))
        if self._coordinator.cause is not None and not self._cleaning:
            self._begin_cleanup()
        for action in actions:
            self._act(action)

    def _begin_cleanup(self) -> None:
        """It cannot succeed any more: nobody waits for what is under way."""
        self._cleaning = True
        self._cleanup_end_ms = self._now_ms() + max(self._timeout_ms, CLEANUP_MS)
        self._error = self._error or self._coordinator.cause_text
        self._transfer_end_ms = math.inf
        self._inbox.stop_actions()
        self._inbox.facts.clear()

    def _act(self, action: Action) -> None:
        if action.kind in _CLEANUP:
            self._open_cleanup.add(action.id)
        if action.kind == "complete":
            self._finish(None)
        elif action.kind == "start_transfer":
            self._transfer_end_ms = self._now_ms() + action.delay_ms
            self._inbox.note(partial(self._ended, action, "scheduled"))
        elif action.kind in _OWN:
            self._begin(action, _OWN[action.kind])
        else:
            self._ask(action)

    def _begin(self, action: Action, kind: CommandName) -> None:
        """Ask the own engine."""

        def on_end(applied: bool, text: str) -> None:
            if text:
                self._ended(action, "failed", text)
            elif kind == "submit_prefill":
                self._submitted = True
                self._ended(action, "submitted")
            else:
                self._ended(action, "applied" if applied else "noop")

        registration = self._source.registration if kind == "submit_prefill" else None
        try:
            self._inbox.follow(self._source.control.begin(kind, registration), on_end)
        except LiveError as exc:
            self._inbox.note(partial(self._ended, action, "failed", str(exc)))

    def _ask(self, action: Action) -> None:
        """Ask the peer; one that is gone has cleaned up."""
        self._asked[action.id] = action
        try:
            self._endpoint.post(Ask(action.id, action.kind))
        except PeerGone as exc:
            gone = ("noop", "") if action.kind in _CLEANUP else ("failed", str(exc))
            self._inbox.note(partial(self._ended, action, *gone))

    def _ended(self, action: Action, outcome: str, text: str = "") -> None:
        if action.kind in _CLEANUP:
            if action.id not in self._open_cleanup:
                return
            self._open_cleanup.discard(action.id)
        if action.kind in _CLEANUP and outcome == "failed":
            self._error = f"{self._error}; {action.kind.replace('_', ' ')} failed: {text}"
        else:
            self._tell(self._coordinator.outcome, action.id, outcome, text)
        if self._cleaning and not self._open_cleanup and self._result is None:
            self._finish(None)  # a cleanup that failed keeps the coordinator from its end

    def _finish(self, why: str | None) -> None:
        succeeded = self._coordinator.phase == "succeeded"
        error = None if succeeded else "; ".join(text for text in (self._error, why) if text)
        if succeeded:
            with contextlib.suppress(PeerGone):  # its request is active, and its own from now on
                self._endpoint.post(Completed())
        self._result = HandoffResult(self._source.handoff_id, succeeded, error, self._coordinator.delay_ms)
