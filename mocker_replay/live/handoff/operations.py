"""Commands about one handoff, as operations that belong to the engine and not to who asked for them.

Decides which registration may still ask for what, and which answers it may get. All commands of one registration take
turns; a submission keeps its turn until it is admitted. Source: handoff specification, section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from mocker_replay.events import CommandResult
from mocker_replay.live.errors import LiveError, NotRunning
from mocker_replay.live.handoff.routes import Generation
from mocker_replay.live.operations import Operation, SendResult, Submission
from mocker_replay.live.request import Asked
from mocker_replay.live.route import Route
from mocker_replay.shells.published import Published

if TYPE_CHECKING:
    from mocker_replay.live.rank import Rank

CommandName = Literal[
    "submit_prefill",
    "reserve_destination",
    "release_source",
    "cancel_source",
    "activate_destination",
    "cancel_destination",
]
# What brings a request, and its outcome.
SUBMISSIONS: Final = {"submit_prefill": CommandResult.SUBMITTED, "reserve_destination": CommandResult.ACCEPTED}


def refusal(rank: Rank, generation: Generation, kind: CommandName) -> LiveError | None:
    """Why this registration may not ask for this, if it may not."""
    name = f"handoff {generation.handoff_id}"
    routes = rank.handoffs.routes
    if rank.released:
        return LiveError(f"{name}: the engine no longer exists")
    if (error := rank.not_running()) is not None:
        return error
    if not routes.is_latest(generation):
        return LiveError(f"{name}: the control belongs to an earlier registration")
    if kind in SUBMISSIONS and not routes.is_registered(generation):
        return LiveError(f"{name}: its lifecycle route is no longer registered")
    return None


class HandoffSubmission(Submission):
    """A prefill or a reservation: a submission that has its handoff's turn until it is resolved."""

    def __init__(self, rank: Rank, route: Route, generation: Generation, kind: CommandName) -> None:
        super().__init__(rank, route, expected=SUBMISSIONS[kind])
        self._handoff_rank = rank
        self._generation = generation
        self._kind = kind

    def start(self, asked: Asked) -> None:
        """Put the command on its way when it is its turn."""
        self._generation.turns.enter(lambda: self._run(asked))

    def _run(self, asked: Asked) -> None:
        error = refusal(self._handoff_rank, self._generation, self._kind)
        if error is not None:
            self._fail(error)
            return
        if self._kind == "reserve_destination":
            self._generation.destination_request = self._route.scheduler_id
        else:
            self._generation.source_request = self._route.scheduler_id
        self._handoff_rank.send_submit(
            self._route, asked, self._answered, kind=self._kind, handoff=self._generation.number
        )

    def _accepted(self) -> None:
        # Before the route is active: whoever waits for that to cancel it must know how.
        if self._kind == "reserve_destination":
            self._route.destination = self._generation
        super()._accepted()

    def _resolve(self, value: bool, error: LiveError | None = None) -> None:
        super()._resolve(value, error)
        self._generation.turns.leave()


class HandoffCommand(Operation):
    """Any other command. The outcome: whether the scheduler did something."""

    def __init__(self, rank: Rank, generation: Generation, kind: CommandName) -> None:
        super().__init__()
        self._rank = rank
        self._generation = generation
        self._kind = kind

    def start(self) -> None:
        """Put the command on its way when it is its turn."""
        self._generation.turns.enter(self._run)

    def _run(self) -> None:
        error = refusal(self._rank, self._generation, self._kind)
        if error is not None:
            self._leave(False, error)
        else:
            self._rank.handoffs.send(self._generation, self._kind, self._answered)

    def _answered(self, event: Published | None, text: str) -> None:
        name = f"handoff {self._generation.handoff_id}"
        if event is None:
            self._leave(False, command_error(name, text))
            return
        result = CommandResult(event.head.b)
        applied = result is CommandResult.APPLIED
        if event.head.f != self._generation.number:
            self._leave(False, LiveError(f"{name}: unexpected result for handoff {event.head.f}"))
        elif not applied and (result is not CommandResult.NOOP or self._kind == "activate_destination"):
            what = self._kind.replace("_", " ")
            self._leave(False, LiveError(f"{name}: unexpected result {result.name.lower()} of {what}"))
        else:
            self._leave(applied)

    def _leave(self, value: bool, error: LiveError | None = None) -> None:
        self._resolve(value, error)
        self._generation.turns.leave()


def cancel_through_destination(
    rank: Rank, generation: Generation, on_result: SendResult, on_stale: Callable[[], None]
) -> None:
    """Cancel the request of a destination for its stream; a registration that came later is not touched."""

    def run() -> None:
        if rank.released or not rank.handoffs.routes.is_latest(generation):
            on_stale()
            generation.turns.leave()
        else:
            rank.handoffs.send(generation, "cancel_destination", answered)

    def answered(event: Published | None, text: str) -> None:
        on_result(event, text)
        generation.turns.leave()

    generation.turns.enter(run)


def command_error(name: str, text: str) -> LiveError:
    """What a caller is told of a command that was not applied."""
    if text == "control lane closed":
        return NotRunning(f"{name}: the scheduler is not accepting commands")
    if text.startswith(("stopped", "engine stopped")):
        return NotRunning(f"{name}: the scheduler dropped a command acknowledgement")
    return LiveError(f"{name}: {text}")
