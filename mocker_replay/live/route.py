"""The life of one request between its caller and the scheduler: a state machine, and the two maps that hold it.

Decides which transition is legal and what it does to the output queue. Never talks to a scheduler and never waits; who
must be told registers a callback. Source: boundary specification, sections 2, 4 and 5.
"""

from __future__ import annotations

import enum
import uuid
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from mocker_replay.live.errors import AlreadyActive, LiveError
from mocker_replay.live.request import Signal, TokenPlan
from mocker_replay.shells.lanes import BoundedLane, LaneClosed

if TYPE_CHECKING:
    from mocker_replay.live.handoff.routes import Generation

OnAdmission = Callable[[bool], None]


class RouteState(enum.Enum):
    """Where a request is."""

    SUBMITTING = "submitting"
    ACTIVE = "active"
    CANCELLING = "cancelling"
    CLOSED = "closed"


class CancelResult(enum.Enum):
    """What the scheduler said to a cancellation."""

    APPLIED = "applied"
    NOOP = "noop"
    ERROR = "error"


class Delivery(enum.Enum):
    """What became of a signal."""

    DELIVERED = "delivered"
    FULL = "full"
    CLOSED = "closed"


class Turns:
    """At most one at a time, in the order of asking: whose turn it is gets called and must `leave` in the end."""

    __slots__ = ("_busy", "_serving", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False
        self._serving = False

    @property
    def busy(self) -> bool:
        """It is somebody's turn."""
        return self._busy

    def enter(self, run: Callable[[], None]) -> None:
        """Call `run` when it is its turn, now or later."""
        self._waiting.append(run)
        self._serve()

    def leave(self) -> None:
        """The turn is over; also from within the call."""
        self._busy = False
        self._serve()

    def _serve(self) -> None:
        # A loop, not a call from each turn to the next: any number of callers may stand in line.
        if self._serving:
            return
        self._serving = True
        try:
            while self._waiting and not self._busy:
                self._busy = True
                self._waiting.popleft()()
        finally:
            self._serving = False


class Route:
    """One request. Holds the queue its stream reads, never the stream.

    Args:
        client_id: the caller's name for it. scheduler_id: ours; never used again. capacity: unread signals that fit.
    """

    __slots__ = (
        "_on_admission", "abandoned", "cancel_turns", "client_id", "destination", "input_tokens", "plan", "queue",
        "scheduler_id", "state", "terminal_seen",
    )  # fmt: skip

    def __init__(
        self, client_id: uuid.UUID, scheduler_id: int, capacity: int, plan: TokenPlan, input_tokens: int = 0
    ) -> None:
        self.client_id = client_id
        self.scheduler_id = scheduler_id
        self.plan = plan
        self.input_tokens = input_tokens
        self.destination: Generation | None = None  # of which handoff, and so how it is cancelled
        self.state = RouteState.SUBMITTING
        self.abandoned = False  # nobody reads any more
        self.terminal_seen = False
        self.queue: BoundedLane[Signal] | None = BoundedLane(capacity)
        self.cancel_turns = Turns()  # of cancellations that talk to the scheduler
        self._on_admission: list[OnAdmission] = []

    def activate(self) -> None:
        """The scheduler has it."""
        if self.state is RouteState.SUBMITTING:
            self.state = RouteState.ACTIVE
            self._tell_admission()

    def abandon(self) -> bool:
        """Nobody reads any more; True the first time."""
        first = not self.abandoned
        self.abandoned = True
        self._take_queue()
        return first

    def when_admitted(self, callback: OnAdmission) -> None:
        """Call with True when the route is active, with False when it is closed; at once if it is either."""
        if self.state is RouteState.ACTIVE:
            callback(True)
        elif self.state is RouteState.CLOSED:
            callback(False)
        else:
            self._on_admission.append(callback)

    def begin_cancellation(self) -> bool:
        """True if the scheduler must be asked now."""
        if self.state is not RouteState.ACTIVE:
            return False
        self.state = RouteState.CANCELLING
        return True

    def finish_cancellation(self, result: CancelResult) -> bool:
        """True if the route must be removed; otherwise it is active again."""
        if self.state is not RouteState.CANCELLING:
            return False
        remove = (
            result is CancelResult.APPLIED
            or self.terminal_seen
            or (result is CancelResult.NOOP and self.abandoned)
        )  # fmt: skip
        if remove:
            self._close()
        else:
            self.state = RouteState.ACTIVE
            self._tell_admission()
        return remove

    def send(self, signal: Signal) -> Delivery:
        """Put a signal on the queue; never waits."""
        if self.queue is None:
            return Delivery.CLOSED
        try:
            return Delivery.DELIVERED if self.queue.try_send(signal) else Delivery.FULL
        except LaneClosed:
            return Delivery.CLOSED

    def observe_terminal(self) -> bool:
        """The last signal was delivered; True if the route must be removed now."""
        self._take_queue()
        self.terminal_seen = True
        if self.state is RouteState.CANCELLING:
            return False
        self._close()
        return True

    def shutdown(self) -> None:
        """The engine is going: the stream ends after what it has."""
        self._close()

    def _close(self) -> None:
        self._take_queue()
        self.state = RouteState.CLOSED
        self._tell_admission()

    def _take_queue(self) -> None:
        """Signals that are buffered can still be read; then the stream ends."""
        if self.queue is not None:
            self.queue.close()
            self.queue = None

    def _tell_admission(self) -> None:
        waiting, self._on_admission = self._on_admission, []
        active = self.state is RouteState.ACTIVE
        for callback in waiting:
            callback(active)


class Routes:
    """Active routes of one rank, by client id and by scheduler id."""

    def __init__(self) -> None:
        self._by_client: dict[uuid.UUID, Route] = {}
        self._by_scheduler: dict[int, Route] = {}

    def __len__(self) -> int:
        return len(self._by_client)

    def insert(self, route: Route) -> None:
        """Raises AlreadyActive: the client id is taken; LiveError: the scheduler id is. Nothing changed then."""
        if route.client_id in self._by_client:
            raise AlreadyActive(f"request {route.client_id} is already active")
        if route.scheduler_id in self._by_scheduler:
            raise LiveError(f"internal id collision: {route.scheduler_id}")
        self._by_client[route.client_id] = route
        self._by_scheduler[route.scheduler_id] = route

    def by_client(self, client_id: uuid.UUID) -> Route | None:
        """The route of a caller's name."""
        return self._by_client.get(client_id)

    def by_scheduler(self, scheduler_id: int) -> Route | None:
        """The route of the scheduler's number."""
        return self._by_scheduler.get(scheduler_id)

    def holds(self, route: Route) -> bool:
        """Whether both maps hold this very object."""
        return (
            self._by_client.get(route.client_id) is route and self._by_scheduler.get(route.scheduler_id) is route
        )  # fmt: skip

    def remove(self, route: Route) -> None:
        """Take the route out; an entry that has been replaced stays."""
        if self._by_client.get(route.client_id) is route:
            del self._by_client[route.client_id]
        if self._by_scheduler.get(route.scheduler_id) is route:
            del self._by_scheduler[route.scheduler_id]

    def close_all(self) -> None:
        """Close and clear; every stream ends after what it has."""
        routes = list(self._by_client.values())
        self._by_client.clear()
        self._by_scheduler.clear()
        for route in routes:
            route.shutdown()
