"""The states of a route against the table of the specification: every short sequence, and long ones at random."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_replay.live import LiveError, Signal
from mocker_replay.live.request import TokenPlan
from mocker_replay.live.route import CancelResult, Delivery, Route, Routes
from mocker_replay.shells.lanes import BoundedLane, LaneClosed, LaneEmpty
from tests.model.route import RouteModel

CLIENT = uuid.UUID(int=1)
OPERATIONS = (
    "activate", "abandon", "wait", "begin", "applied", "noop", "error", "send", "terminal", "shutdown", "read",
)  # fmt: skip


class Driven:
    """A route under the names of the model."""

    def __init__(self, capacity: int) -> None:
        self.route = Route(CLIENT, 2, capacity, TokenPlan(None, "a"))
        assert self.route.queue is not None
        self.queue: BoundedLane[Signal] = self.route.queue
        self.told: list[bool] = []

    def apply(self, operation: str, position: int) -> object:
        route = self.route
        if operation == "send":
            sent = route.send(Signal(CLIENT, position, False, None, 0.0, 0.0, lambda at: at))
            assert isinstance(sent, Delivery)
            return sent.value
        if operation == "read":
            return self.read()
        if operation in ("applied", "noop", "error"):
            return route.finish_cancellation(CancelResult(operation))
        if operation == "wait":
            return route.when_admitted(self.told.append)
        return {
            "activate": route.activate,
            "abandon": route.abandon,
            "begin": route.begin_cancellation,
            "terminal": route.observe_terminal,
            "shutdown": route.shutdown,
        }[operation]()

    def read(self) -> int | str | None:
        try:
            signal = self.queue.take_nowait()
        except LaneEmpty:
            return "nothing yet"
        except LaneClosed:
            return "end"
        self.queue.done()
        return signal.position


def compare(operations: Iterable[str], capacity: int = 1) -> None:
    model, driven = RouteModel(capacity), Driven(capacity)
    for at, operation in enumerate(operations):
        assert driven.apply(operation, at) == model.apply(operation, at)
        route = driven.route
        assert route.state.value == model.state
        assert (route.abandoned, route.terminal_seen) == (model.abandoned, model.terminal_seen)
        assert (route.queue is not None) == model.has_sender
        assert len(driven.queue) == len(model.buffered)
        assert driven.told == model.told


def test_every_sequence_of_four_operations() -> None:
    for operations in itertools.product(OPERATIONS, repeat=4):
        compare(operations)


def test_every_sequence_of_five_operations_after_an_admission() -> None:
    """Sends and reads left out: what they find depends on the sender alone, which is compared."""
    transitions = tuple(operation for operation in OPERATIONS if operation not in ("send", "read", "activate"))
    for operations in itertools.product(transitions, repeat=5):
        compare(("send", "activate", *operations))


@given(st.lists(st.sampled_from(OPERATIONS), max_size=60), st.integers(1, 4))
def test_long_sequences(operations: list[str], capacity: int) -> None:
    compare(operations, capacity)


@given(st.lists(st.tuples(st.sampled_from(["insert", "remove", "close_all"]), st.integers(0, 2), st.integers(0, 2))))
def test_both_maps_hold_the_same_routes(script: list[tuple[str, int, int]]) -> None:
    """Removal is by identity: an entry that has been replaced stays."""
    routes = Routes()
    made: list[Route] = []
    held: list[Route] = []
    for operation, client, scheduler in script:
        if operation == "insert":
            route = Route(uuid.UUID(int=client), scheduler, 1, TokenPlan(None, "a"))
            taken = any(
                other.client_id == route.client_id or other.scheduler_id == route.scheduler_id for other in held
            )
            if taken:
                with pytest.raises(LiveError):
                    routes.insert(route)
            else:
                routes.insert(route)
                held.append(route)
            made.append(route)
        elif operation == "remove" and made:
            route = made[(client * 3 + scheduler) % len(made)]
            routes.remove(route)
            held = [other for other in held if other is not route]
        elif operation == "close_all":
            routes.close_all()
            assert all(route.state.value == "closed" for route in held)
            held = []
        assert len(routes) == len(held)
        for route in made:
            assert routes.holds(route) == any(other is route for other in held)
            assert (routes.by_client(route.client_id) is route) == routes.holds(route)
            assert (routes.by_scheduler(route.scheduler_id) is route) == routes.holds(route)
