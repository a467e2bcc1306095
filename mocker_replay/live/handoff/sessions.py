"""Sessions of one prefill engine: prompts that were offered and destinations that came for them, paired by handoff id.

Decides who is let in and how long one party waits for the other. Never decides what happens in a session. Source:
handoff specification, section 7.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import uuid
from typing import TYPE_CHECKING, Final

from mocker_replay.live.errors import AlreadyActive, LiveError, NotRunning, text_of
from mocker_replay.live.handoff.result import HandoffResult
from mocker_replay.live.handoff.source import SourceHandoff, SourceSession
from mocker_replay.live.handoff.transport import Endpoint, PeerGone, QueueEndpoint, Refused, connected_endpoints
from mocker_replay.live.request import GenerateRequest
from mocker_replay.shells.alarm import Alarm
from mocker_replay.shells.tokens import CancelToken

if TYPE_CHECKING:
    from mocker_replay.live.rank import Rank

_log = logging.getLogger(__name__)

MAX_SESSIONS: Final = 1024
RENDEZVOUS_MS: Final = 30_000.0  # one party waits for the other
SCAN_MS: Final = 100.0  # those that wait are looked at
RETIRED_MS: Final = 30_000.0  # an id that was used is not used again


class _Waiting:
    """One party without the other."""

    def __init__(self, since_ms: float, source: SourceHandoff | None, endpoint: Endpoint | None) -> None:
        self.since_ms = since_ms
        self.source = source
        self.endpoint = endpoint

    def give_up(self, why: str) -> None:
        """Tell whoever waits that nobody will come."""
        if self.source is not None:
            self.source.give_up(why)
        if self.endpoint is not None:
            _refuse(self.endpoint, why)


class HandoffSessions:
    """Made by `LiveEngine.handoff_sessions`. Ends with its engine, or by `shutdown`, or at the end of its block."""

    def __init__(self, rank: Rank, max_sessions: int, timeout_ms: float) -> None:
        if max_sessions < 1:
            raise LiveError(f"max_sessions must be at least 1 (got {max_sessions})")
        if not (timeout_ms > 0.0 and math.isfinite(timeout_ms)):
            raise LiveError(f"session_timeout_ms must be positive and finite (got {timeout_ms})")
        rank.require_loop()
        if (error := rank.not_running()) is not None:
            raise error
        self._rank = rank
        self._max_sessions = max_sessions
        self._timeout_ms = timeout_ms
        self._stop: CancelToken = rank.token.child()
        self._waiting: dict[uuid.UUID, _Waiting] = {}
        self._active: dict[uuid.UUID, asyncio.Task[None]] = {}
        self._retired: dict[uuid.UUID, float] = {}  # since when, the oldest first
        self._alarm = Alarm(rank.group.clock, rank.group.driver.shell.origin_ns)
        self._scanner = rank.handoffs.run(self._scan(), "rendezvous of handoff sessions")
        self._stop.on_cancel(self._stopped)

    # -- the two parties ----------------------------------------------------------------------------

    def offer(self, handoff_id: uuid.UUID, request: GenerateRequest) -> SourceHandoff:
        """Offer a prompt to the destination that comes, or has come, under this id. Nothing is computed before.

        Raises:
            NotRunning: the engine or these sessions have stopped. AlreadyActive: the id is in use, or was lately.
            LiveError: there are too many sessions; the request is none.
        """
        self._rank.require_loop()
        if self._stop.cancelled:
            raise NotRunning("these handoff sessions have ended")
        partner = self._waiting.get(handoff_id)
        if partner is not None and partner.source is not None:
            raise AlreadyActive(f"handoff {handoff_id} is offered already")
        if (why := self._refusal(handoff_id)) is not None:
            raise (LiveError if why == "overloaded" else AlreadyActive)(f"handoff {handoff_id}: {why}")
        control, events = self._rank.handoffs.register(handoff_id)
        try:
            registration, stream = self._rank.prepare(request)
        except BaseException:
            events.drop()
            raise
        source = SourceHandoff(control, events, registration, stream)
        if partner is not None and partner.endpoint is not None:
            self._pair(source, partner.endpoint)
        else:
            self._wait(handoff_id, source, None)
        return source

    def accept(self, handoff_id: uuid.UUID, endpoint: Endpoint) -> None:
        """A destination has connected. One that cannot be taken is told why, and disconnected."""
        self._rank.require_loop()
        partner = self._waiting.get(handoff_id)
        if self._stop.cancelled:
            _refuse(endpoint, "shut down")
        elif partner is not None and partner.endpoint is not None:
            _refuse(endpoint, "another destination waits under this id")
        elif (why := self._refusal(handoff_id)) is not None:
            _refuse(endpoint, why)
        elif partner is not None and partner.source is not None:
            self._pair(partner.source, endpoint)
        else:
            self._wait(handoff_id, None, endpoint)

    def connect(self, handoff_id: uuid.UUID) -> QueueEndpoint:
        """A connection within this process: the end of a destination under this id."""
        own, theirs = connected_endpoints()
        self.accept(handoff_id, own)
        return theirs

    @property
    def num_sessions(self) -> int:
        """Pairs, and parties that wait for the other."""
        return len(self._waiting) + len(self._active)

    # -- the end ------------------------------------------------------------------------------------

    async def shutdown(self) -> None:
        """End all sessions; resolves when they are cleaned up. Idempotent."""
        self._stop.cancel()
        while self._active:
            await asyncio.wait(list(self._active.values()))
        await asyncio.wait([self._scanner])

    async def __aenter__(self) -> HandoffSessions:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.shutdown()

    # -- inside -------------------------------------------------------------------------------------

    def _now_ms(self) -> float:
        return self._rank.group.wall_ms()

    def _refusal(self, handoff_id: uuid.UUID) -> str | None:
        """Why a party may not come in; the partner of one that waits always finds a place."""
        self._forget_retired()
        if handoff_id in self._active:
            return "a session of this id is active"
        if handoff_id in self._retired:
            return "a session of this id has ended a short while ago"
        if handoff_id not in self._waiting and self.num_sessions >= self._max_sessions:
            return "overloaded"
        return None

    def _forget_retired(self) -> None:
        now_ms = self._now_ms()
        while self._retired and now_ms - next(iter(self._retired.values())) >= RETIRED_MS:
            del self._retired[next(iter(self._retired))]

    def _wait(self, handoff_id: uuid.UUID, source: SourceHandoff | None, endpoint: Endpoint | None) -> None:
        if not self._waiting:
            self._alarm.ring()
        self._waiting[handoff_id] = _Waiting(self._now_ms(), source, endpoint)

    def _pair(self, source: SourceHandoff, endpoint: Endpoint) -> None:
        handoff_id = source.handoff_id
        self._waiting.pop(handoff_id, None)
        self._active[handoff_id] = self._rank.handoffs.run(
            self._hold(source, endpoint), f"handoff session {handoff_id}"
        )

    async def _hold(self, source: SourceHandoff, endpoint: Endpoint) -> None:
        """One session; it ends in a result whatever happens."""
        try:
            await SourceSession(source, endpoint, self._rank, self._stop, self._timeout_ms).run()
        except Exception as exc:
            _log.exception("handoff session %s", source.handoff_id)
            source.ending.end(HandoffResult(source.handoff_id, False, text_of(exc)))
        finally:
            del self._active[source.handoff_id]
            self._retire(source.handoff_id)

    def _retire(self, handoff_id: uuid.UUID) -> None:
        self._forget_retired()
        self._retired[handoff_id] = self._now_ms()

    async def _scan(self) -> None:
        """Look at those that wait, now and then, while there are any."""
        try:
            while not self._stop.cancelled:
                await self._alarm.sleep_until(self._now_ms() + SCAN_MS if self._waiting else math.inf)
                for handoff_id, waiting in list(self._waiting.items()):
                    why = self._why_over(waiting)
                    if why is not None:
                        self._end_waiting(handoff_id, why)
        finally:
            self._alarm.close()

    def _why_over(self, waiting: _Waiting) -> str | None:
        if waiting.source is not None and waiting.source.token.cancelled:
            return "cancelled"
        if waiting.endpoint is not None and waiting.endpoint.peer_gone:
            return "disconnected"
        if self._now_ms() - waiting.since_ms > RENDEZVOUS_MS:
            return f"nobody came within {RENDEZVOUS_MS / 1000:g} s"
        return None

    def _end_waiting(self, handoff_id: uuid.UUID, why: str) -> None:
        self._waiting.pop(handoff_id).give_up(why)
        self._retire(handoff_id)

    def _stopped(self) -> None:
        for handoff_id in list(self._waiting):
            self._end_waiting(handoff_id, "shut down")
        self._alarm.ring()


def _refuse(endpoint: Endpoint, why: str) -> None:
    with contextlib.suppress(PeerGone):  # it does not want to know any more
        endpoint.post(Refused(why))
    endpoint.close()
