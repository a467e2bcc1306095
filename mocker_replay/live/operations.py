"""Submitting and cancelling one request, as operations that belong to the engine and not to who asked for them.

Decides the order of steps and what each outcome means for the route. An operation is driven by callbacks, so that it
ends whatever becomes of the caller's task; callers wait on a future beside it. Source: boundary specification, sections
3.2 and 7.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Protocol

from mocker_replay.events import CommandResult
from mocker_replay.live.errors import LiveError, NotRunning
from mocker_replay.live.request import Asked
from mocker_replay.live.route import CancelResult, Route, Routes
from mocker_replay.shells.published import Published
from mocker_replay.shells.tokens import resolve

_log = logging.getLogger(__name__)


class SendResult(Protocol):
    """Told once what became of a command: its event, or None and why there is none."""

    def __call__(self, event: Published | None, text: str) -> None: ...


class Scheduler(Protocol):
    """What an operation needs of its rank."""

    routes: Routes

    @property
    def running(self) -> bool: ...

    def send_submit(self, route: Route, asked: Asked, on_result: SendResult) -> None: ...

    def send_cancel(self, route: Route, on_result: SendResult) -> None: ...

    def cancel_destination(self, route: Route, on_result: SendResult, on_stale: Callable[[], None]) -> None: ...


class Operation:
    """Something under way; any number of callers may wait for it, and going away does not hurt it."""

    def __init__(self) -> None:
        self._done = False
        self._value = False
        self._error: LiveError | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def done(self) -> bool:
        """The outcome is known."""
        return self._done

    async def wait(self) -> bool:
        """The outcome.

        Raises:
            LiveError: the operation failed.
        """
        if not self._done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self._error is not None:
            # One of its own for each caller: a shared one would collect, and keep, the frames of all of them.
            raise type(self._error)(*self._error.args)
        return self._value

    def _resolve(self, value: bool, error: LiveError | None = None) -> None:
        self._done = True
        self._value, self._error = value, error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            resolve(waiter, None)


class Submission(Operation):
    """From a registered route to an active one, or to a closed one."""

    def __init__(self, rank: Scheduler, route: Route, *, expected: CommandResult = CommandResult.SUBMITTED) -> None:
        super().__init__()
        self._rank = rank
        self._route = route
        self._expected = expected

    def start(self, asked: Asked) -> None:
        """Put the command on its way."""
        self._rank.send_submit(self._route, asked, self._answered)

    def _answered(self, event: Published | None, text: str) -> None:
        client_id = self._route.client_id
        if event is None:
            self._fail(_submit_error(client_id, text))
        elif event.head.request != self._route.scheduler_id or event.head.b != self._expected:
            result = CommandResult(event.head.b).name.lower()
            self._fail(LiveError(f"request {client_id}: unexpected result {result} for request {event.head.request}"))
        elif not self._rank.running:
            self._fail(NotRunning(f"request {client_id}: the engine stopped during submission"))
        else:
            self._accepted()

    def _accepted(self) -> None:
        self._route.activate()
        self._resolve(True)

    def _fail(self, error: LiveError) -> None:
        self._route.shutdown()
        self._rank.routes.remove(self._route)
        self._resolve(False, error)


def _submit_error(client_id: uuid.UUID, text: str) -> LiveError:
    if text == "control lane closed":
        return NotRunning(f"request {client_id}: the scheduler is not accepting commands")
    if text.startswith(("stopped", "engine stopped")):
        return NotRunning(f"request {client_id}: the scheduler dropped a command acknowledgement")
    return LiveError(f"request {client_id}: {text}")


class Cancellation(Operation):
    """From an abandoned route to a scheduler that has forgotten it. The outcome: something was removed there."""

    def __init__(self, rank: Scheduler, route: Route, *, explicit: bool) -> None:
        """explicit: somebody waits, so that an error is theirs to hear; otherwise it is logged."""
        super().__init__()
        self._rank = rank
        self._route = route
        self._explicit = explicit

    def start(self) -> None:
        """Ask the scheduler as soon as it has the request."""
        self._route.when_admitted(self._admitted)

    def _admitted(self, active: bool) -> None:
        if not active:
            self._resolve(False)
            return
        self._route.cancel_turns.enter(self._run)

    def _run(self) -> None:
        if not self._rank.routes.holds(self._route) or not self._route.begin_cancellation():
            self._leave(False)
        elif self._route.destination is not None:
            self._rank.cancel_destination(self._route, self._answered, self._stale)
        else:
            self._rank.send_cancel(self._route, self._answered)

    def _answered(self, event: Published | None, text: str) -> None:
        error: LiveError | None = None
        result = CancelResult.ERROR
        if event is None:
            error = _cancel_error(self._route.client_id, text)
        elif event.head.request != self._route.scheduler_id:
            error = LiveError(f"request {self._route.client_id}: unexpected result for request {event.head.request}")
        elif event.head.b == CommandResult.APPLIED or event.suppressed:
            result = CancelResult.APPLIED
        else:
            result = CancelResult.NOOP
        self._finish(result, error)

    def _stale(self) -> None:
        """What the scheduler has under this name belongs to somebody else."""
        self._finish(CancelResult.NOOP)

    def _finish(self, result: CancelResult, error: LiveError | None = None) -> None:
        if self._route.finish_cancellation(result):
            self._rank.routes.remove(self._route)
        self._leave(result is CancelResult.APPLIED, error)

    def _leave(self, value: bool, error: LiveError | None = None) -> None:
        if error is not None and not self._explicit and self._rank.running:
            _log.warning("%s", error)
        self._resolve(value, error)
        self._route.cancel_turns.leave()


def _cancel_error(client_id: uuid.UUID, text: str) -> LiveError:
    if text == "control lane closed":
        return NotRunning(f"request {client_id}: the scheduler is not accepting cancellations")
    if text.startswith(("stopped", "engine stopped")):
        return NotRunning(f"request {client_id}: the scheduler dropped a cancellation acknowledgement")
    return LiveError(f"request {client_id}: {text}")
