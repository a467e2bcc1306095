"""Handoffs of a recorded run: what was done to them, done again, and the commands that came of it.

The log tells when the handoffs were looked at and which client left; which command follows, to whom, is found by the
same code as in the run. Decides how a recorded step finds its command. Never gives it to a machine.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator

from mocker_replay._core.coordinator import HandoffError
from mocker_replay._core.fleet import Fleet
from mocker_replay._core.lanes import COMMAND_KINDS, Command
from mocker_replay.log.wall import StepTaken
from mocker_replay.replay.rerun_script import Arrived, Script


class HandoffScript(Script):
    """Rows on their way to prefill workers, and what the handoffs have the machines do."""

    def __init__(self, fleet: Fleet, num_rows: int, *, routed: bool) -> None:
        """`routed`: a router chose where requests go behind the pool of their arrival, and steps say what it chose."""
        super().__init__(fleet.num_workers, max(machine.engine.dp_size for machine in fleet.machines), num_rows)
        self._fleet = fleet
        self._given: list[deque[Command]] = [deque() for _ in fleet.machines]  # by worker, in the order of its lane
        self._decode_rank = array("h")  # by row, -1 before its destination is asked for
        self._places: dict[int, tuple[int, int]] = {}  # by row: worker of the pool and rank, until it is asked for
        if routed:
            assert fleet.handoffs is not None, "the run had two pools"
            fleet.handoffs.set_chooser(self)

    def take(self, taken: StepTaken) -> None:
        """Do to the handoffs what was done to them.

        Raises:
            LookupError: it cannot be done; the message says why.
        """
        try:
            self._fleet.note_now(taken.reading_ms)
            if taken.stimulus == "place":
                self._places[taken.request] = taken.place, taken.rank
            elif taken.stimulus == "leave":
                self._fleet.leave(taken.request)
            elif taken.stimulus == "refuse":
                self._fleet.refuse_command(taken.request, COMMAND_KINDS[taken.command_kind])
            elif (given := self._fleet.take_command()) is not None:
                self._keep(*given)
        except (HandoffError, ValueError, OverflowError, IndexError) as exc:
            raise LookupError(f"the handoffs do not take the step {taken.stimulus}: {exc}") from None

    def choose_prefill(self, now_ms: float, request: int, input_tokens: int, hash_ids: list[int]) -> tuple[int, int]:
        """Where the log says that a prompt was computed."""
        return self._recorded_place(request)

    def choose_decode(self, now_ms: float, request: int, input_tokens: int) -> tuple[int, int]:
        """Where the log says that a request was decoded."""
        return self._recorded_place(request)

    def _recorded_place(self, request: int) -> tuple[int, int]:
        if request not in self._places:
            raise LookupError(f"row {request} needs a place, but no step says where")
        return self._places.pop(request)

    def _keep(self, worker: int, command: Command) -> None:
        if command.kind == "reserve_destination":
            self._decode_rank.extend([-1] * (command.request + 1 - len(self._decode_rank)))
            self._decode_rank[command.request] = command.rank
        if command.kind != "cancel":
            self._given[worker].append(command)

    def _place(self, arrived: Arrived) -> None:
        self._fleet.begin_handoff(arrived.worker, arrived.command)

    def _cancelled_rank(self, row: int) -> int:
        return self._decode_rank[row] if 0 <= row < len(self._decode_rank) else -1

    def _command_taken(self, taken: StepTaken) -> Command | None:
        given = self._given[taken.worker]
        return given.popleft() if given and given[0].request == taken.request else None

    def was_taken(self, taken: StepTaken, command: Command | None, phase: str) -> None:
        """The handoffs know who is on the way."""

    def not_applied(self, worker: int) -> Iterator[Command]:
        """Requests of a prefill worker that have not ended, as it may be that nobody ever asks for them."""
        assert self._fleet.handoffs is not None, "the run had two pools"
        for row, place, rank in self._fleet.handoffs.living():
            if place == worker:
                yield Command(0, "submit", row, rank)
