"""Handoffs of a realtime replay: commands of the fleet's handoffs to live engines, and what these answer.

Everything that is done to the handoffs is a step with a reading, written down for `rerun` among those of the machines.
Decides when they are looked at on a measured clock: at once after anything that a machine told. Which command follows
is decided where an accelerated run decides it (`_core/disaggregation`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Literal

from mocker_replay._core.fleet import Fleet
from mocker_replay._core.lanes import Command
from mocker_replay.events import CommandKind, CommandResult
from mocker_replay.live.errors import LiveError, NotRunning
from mocker_replay.live.group import Group
from mocker_replay.live.operations import Submission
from mocker_replay.live.rank import Rank
from mocker_replay.live.request import Asked, Prompt
from mocker_replay.live.route import Route
from mocker_replay.log.wall import NO_WORKER, WallRecorder
from mocker_replay.replay.pool_router import PoolRouter
from mocker_replay.replay.realtime_clients import Clients
from mocker_replay.shells.published import Published


class LiveHandoffs:
    """Between the fleet's handoffs and the engines of both pools.

    Args:
        groups: of the engines, by worker; filled when they start.
        tell: called when the handoffs may have put out records of their own.
        note_now: called before they are looked at on a measured clock. on_settled: called when that is over.
        fail: called with what went wrong in a turn of the loop of its own.
    """

    def __init__(
        self,
        fleet: Fleet,
        recorder: WallRecorder,
        groups: Sequence[Group],
        clients: Clients,
        tell: Callable[[], None],
        note_now: Callable[[], None],
        on_settled: Callable[[], None],
        fail: Callable[[Exception], None],
        *,
        measured: bool,
    ) -> None:
        assert fleet.handoffs is not None, "the fleet has two pools"
        self._fleet = fleet
        self._handoffs = fleet.handoffs
        self._recorder = recorder
        self._groups = groups
        self._clients = clients
        self._tell = tell
        self._note_now = note_now
        self._on_settled = on_settled
        self._fail = fail
        self._measured = measured
        self._wanted = False  # a look is to come
        self._closed = False

    @property
    def next_transfer_ms(self) -> float:
        """When the next transfer ends [ms]; inf when none is under way."""
        return self._handoffs.next_transfer_ms

    @property
    def at_rest(self) -> bool:
        """Nobody owns anything of a handoff."""
        return self._handoffs.num_open == 0

    @property
    def nothing_is_due(self) -> bool:
        """No transfer is under way, and everything that was told has been looked at."""
        return not self._wanted and not self._handoffs.has_work and self.next_transfer_ms == math.inf

    def close(self) -> None:
        """The run is over: nothing follows from anything any more."""
        self._closed = True

    # -- steps --------------------------------------------------------------------------------------

    def give_next(self) -> int | None:
        """Put the command that is due on the lane of its machine; whose it was, None when nothing is due."""
        # A worker that was held at its last command looks at its copies from here on.
        due = self._handoffs.has_work or self._fleet.onlookers.held_worker != NO_WORKER
        given = self._fleet.take_command()
        if due or given is not None or len(self._fleet.out):
            self._recorder.packed_step(NO_WORKER, "settle", self._fleet.now_ms)
        self._tell()
        if given is None:
            return None
        self._give(*given)
        return given[0]

    def settle_soon(self) -> None:
        """Measured clock: a machine told something; look in the next turn of the loop, before it can move on."""
        if not self._wanted and not self._closed:
            self._wanted = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        self._wanted = False
        if self._closed:
            return
        try:
            self.settle()
            self._on_settled()
        except Exception as exc:
            self._fail(exc)

    def settle(self) -> None:
        """Measured clock: give every command that is due."""
        self._note_now()
        while self.give_next() is not None:
            pass

    def leave(self) -> None:
        """The client that is due leaves; what machines have told by now comes before that."""
        if self._measured:
            self.settle()
        request, *_ = self._fleet.take_cancel()
        self._recorder.packed_step(NO_WORKER, "leave", self._fleet.now_ms, request)
        self._tell()

    def _refused(self, command: Command) -> None:
        if self._closed:
            return
        self._note_now()
        self._fleet.refuse_command(command.request, command.kind)
        kind = CommandKind[command.kind.upper()]
        self._recorder.packed_step(NO_WORKER, "refuse", self._fleet.now_ms, command.request, int(kind))
        self._tell()

    # -- commands -----------------------------------------------------------------------------------

    def _give(self, worker: int, command: Command) -> None:
        group = self._groups[worker]
        rank = group.ranks[command.rank]
        if command.kind == "reserve_destination":
            self._reserve(rank, command)
        elif command.kind == "cancel":
            route = rank.routes.by_scheduler(command.request)
            if route is not None:
                rank.cancel_route(route, explicit=False)
        else:

            def answered(event: Published | None, text: str) -> None:
                if event is None and not text.startswith(("stopped", "engine stopped", "control lane closed")):
                    self._refused(command)

            group.send(lambda number: command._replace(command_id=number), answered)

    def _reserve(self, rank: Rank, command: Command) -> None:
        """The decode worker is where the client's stream comes from."""
        registration, stream = self._clients.prepare(
            rank, command.request, Prompt(command.n_in, command.hash_ids), command.n_out, command.priority,
            (command.arrival_ms, command.deadline_ms),
        )  # fmt: skip
        route, asked = registration.consume(rank)
        reservation = _Reservation(rank, route, command.handoff, lambda: self._refused(command))
        reservation.start(asked)
        self._clients.start(command.request, stream, reservation, may_be_refused=True)


class RecordedPlaces:
    """A router of prefill and decode workers whose choices are written down for `rerun`, but for that of the pool where
    a request arrives: its arrival tells it."""

    def __init__(self, router: PoolRouter, recorder: WallRecorder, arrives_at: Literal["prefill", "decode"]) -> None:
        self._router = router
        self._recorder = recorder
        self._arrives_at = arrives_at

    def choose_prefill(
        self, now_ms: float, request: int, input_tokens: int, hash_ids: Sequence[int]
    ) -> tuple[int, int]:
        """As the router chooses."""
        return self._told(
            "prefill", now_ms, request, self._router.choose_prefill(now_ms, request, input_tokens, hash_ids)
        )

    def choose_decode(self, now_ms: float, request: int, input_tokens: int) -> tuple[int, int]:
        """As the router chooses."""
        return self._told("decode", now_ms, request, self._router.choose_decode(now_ms, request, input_tokens))

    def _told(self, pool: str, now_ms: float, request: int, place: tuple[int, int]) -> tuple[int, int]:
        if pool != self._arrives_at:
            self._recorder.packed_step(NO_WORKER, "place", now_ms, request, *place)
        return place


class _Reservation(Submission):
    """From a registered route to a destination in line, or to a refusal."""

    def __init__(self, rank: Rank, route: Route, handoff: int, on_refused: Callable[[], None]) -> None:
        super().__init__(rank, route, expected=CommandResult.ACCEPTED)
        self._sender = rank
        self._handoff = handoff
        self._on_refused = on_refused

    def start(self, asked: Asked) -> None:
        self._sender.send_submit(self._route, asked, self._answered, kind="reserve_destination", handoff=self._handoff)

    def _fail(self, error: LiveError) -> None:
        super()._fail(error)
        if not isinstance(error, NotRunning):
            self._on_refused()
