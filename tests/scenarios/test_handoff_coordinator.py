"""Scenarios of the handoff specification that one coordinator decides by itself."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable

import pytest

from mocker_replay._core.coordinator import Action, Coordinator, HandoffError, Timing, transfer_delay_ms

OWN = uuid.UUID(int=7)
TIMING = Timing("full_prompt", 16, 1_000_000, 1.0)
OUTCOMES = {
    "submit_prefill": "submitted", "reserve_destination": "accepted", "start_transfer": "scheduled",
    "activate_destination": "applied", "release_source": "applied", "cancel_source": "applied",
    "cancel_destination": "applied",
}  # fmt: skip
# What follows from an acknowledged action, and how the events of a handoff are called.
FOLLOWS = {"submit_prefill": "held", "reserve_destination": "reserved", "start_transfer": "transferred"}
EVENTS = {"reserve_destination": "accepted", "activate_destination": "activated", "release_source": "released"}


class Ends:
    """Source, destination and transfer that do what they are asked, at once; keeps what happened in order.

    Args:
        deaf: kinds of actions that are never acknowledged, although they are done.
    """

    def __init__(
        self, order: str, *, timing: Timing = TIMING, fallback_ms: float = 0.0, deaf: Iterable[str] = ()
    ) -> None:
        self.coordinator = Coordinator(OWN, order, fallback_ms=fallback_ms)
        self.events: list[str] = []  # by the names of the specification
        self.asked: list[Action] = []
        self._timing = timing
        self._deaf = set(deaf)

    def do(self, actions: Iterable[Action]) -> None:
        """Each action, then what it leads to."""
        for action in actions:
            self.asked.append(action)
            if action.kind == "complete":
                self.events.append("completed")
            elif action.kind not in self._deaf:
                self.events += [EVENTS[action.kind]] if action.kind in EVENTS else []
                self.do(self.coordinator.outcome(action.id, OUTCOMES[action.kind]))
                self.do(self.fact(FOLLOWS.get(action.kind, "")))

    def fact(self, name: str) -> tuple[Action, ...]:
        self.events += [name] if name in ("held", "reserved") else []
        if name == "held":
            return self.coordinator.source_held(OWN, self._timing)
        if name == "reserved":
            return self.coordinator.destination_reserved(OWN, 12)
        return self.coordinator.transfer_completed(OWN) if name else ()

    @property
    def kinds(self) -> list[str]:
        return [action.kind for action in self.asked]


@pytest.mark.parametrize(
    ("order", "events"),
    [
        ("source_first", ["held", "accepted", "reserved", "activated", "released", "completed"]),
        ("destination_first", ["accepted", "reserved", "held", "activated", "released", "completed"]),
    ],
)
def test_handoff_10_both_orders_reach_completion(order: str, events: list[str]) -> None:
    ends = Ends(order)
    ends.do(ends.coordinator.start())
    assert ends.events == events
    assert ends.coordinator.phase == "succeeded"


def test_handoff_10_duplicates_are_idempotent_and_conflicts_are_rejected() -> None:
    coordinator = Coordinator(OWN, "source_first")
    coordinator.start()
    assert coordinator.start() == ()
    coordinator.outcome(0, "submitted")
    assert coordinator.outcome(0, "submitted") == ()
    coordinator.source_held(OWN, TIMING)
    assert coordinator.source_held(OWN, TIMING) == ()
    with pytest.raises(HandoffError, match="another outcome before"):
        coordinator.outcome(0, "failed", "no")


def test_handoff_10_cancel_after_the_reservation_was_issued_cleans_both() -> None:
    ends = Ends("source_first", deaf=["reserve_destination"])
    ends.do(ends.coordinator.start())
    ends.do(ends.coordinator.cancelled(OWN))
    assert ends.kinds[-3:] == ["cancel_source", "cancel_destination", "complete"]
    assert ends.coordinator.phase == "cancelled"


@pytest.mark.parametrize(
    ("order", "issued", "cleaned"),
    [
        ("source_first", "submit_prefill", "cancel_source"),
        ("destination_first", "reserve_destination", "cancel_destination"),
    ],
)
def test_handoff_10_timeout_before_the_first_acknowledgement_cleans_the_issued_side(
    order: str, issued: str, cleaned: str
) -> None:
    ends = Ends(order, deaf=[issued])
    ends.do(ends.coordinator.start())
    ends.do(ends.coordinator.timed_out(OWN))
    assert ends.kinds == [issued, cleaned, "complete"]


@pytest.mark.parametrize("lost", ["activate_destination", "release_source"])
@pytest.mark.parametrize("order", ["source_first", "destination_first"])
def test_handoff_10_a_lost_acknowledgement_still_cleans_both(order: str, lost: str) -> None:
    ends = Ends(order, deaf=[lost])
    ends.do(ends.coordinator.start())
    assert ends.kinds[-1] == lost
    ends.do(ends.coordinator.timed_out(OWN))
    assert ends.kinds[-3:] == ["cancel_source", "cancel_destination", "complete"]
    assert ends.coordinator.phase == "cancelled"


@pytest.mark.parametrize("bandwidth", [-1.0, math.nan, math.inf])
def test_handoff_10_invalid_bandwidths_are_rejected(bandwidth: float) -> None:
    ends = Ends("source_first", timing=TIMING._replace(bandwidth_gbps=bandwidth))
    with pytest.raises(HandoffError, match="kv_transfer_bandwidth"):
        ends.do(ends.coordinator.start())
    assert "start_transfer" not in ends.kinds
    assert "reserve_destination" not in ends.kinds


@pytest.mark.parametrize("bandwidth", [None, 0.0])
def test_handoff_10_no_bandwidth_uses_the_fallback(bandwidth: float | None) -> None:
    ends = Ends("source_first", timing=TIMING._replace(bandwidth_gbps=bandwidth), fallback_ms=7.5)
    ends.do(ends.coordinator.start())
    assert [action.delay_ms for action in ends.asked if action.kind == "start_transfer"] == [7.5]


def test_handoff_11_delay_formula() -> None:
    hundred = Timing("full_prompt", 100, 1000, 1.0)
    assert transfer_delay_ms(hundred, 20) == 0.1
    assert transfer_delay_ms(hundred._replace(mode="destination_missing"), 20) == 0.02
    assert transfer_delay_ms(Timing("full_prompt", 128, 1_000_000, 1.0), 0) == 128.0


@pytest.mark.parametrize("transfer_first", [True, False])
def test_handoff_22_transfer_completed_in_the_same_step_as_cancel(transfer_first: bool) -> None:
    """Whoever is told first wins; either way both ends are cleaned and nothing is activated after the cancel."""
    ends = Ends("source_first", deaf=["start_transfer", "activate_destination"])
    ends.do(ends.coordinator.start())
    ends.coordinator.outcome(ends.asked[-1].id, "scheduled")
    told = [ends.coordinator.transfer_completed, ends.coordinator.cancelled]
    for tell in told if transfer_first else reversed(told):
        ends.do(tell(OWN))
    wanted = ["cancel_source", "cancel_destination", "complete"]
    assert ends.kinds[3:] == (["activate_destination", *wanted] if transfer_first else wanted)


def test_handoff_23_activation_acknowledged_after_the_timeout() -> None:
    """The destination is active: its cancellation was asked for already, and must be acknowledged before the end."""
    ends = Ends("source_first", deaf=["activate_destination", "cancel_destination"])
    ends.do(ends.coordinator.start())
    activation = ends.asked[-1]
    ends.do(ends.coordinator.timed_out(OWN))
    assert ends.coordinator.phase == "cleanup"
    assert ends.coordinator.outcome(activation.id, "applied") == ()
    cancel = next(action for action in ends.asked if action.kind == "cancel_destination")
    assert [action.kind for action in ends.coordinator.outcome(cancel.id, "applied")] == ["complete"]
    assert "release_source" not in ends.kinds


@pytest.mark.parametrize("order", ["source_first", "destination_first"])
def test_handoff_28_zero_length_transfer_goes_through_every_step(order: str) -> None:
    ends = Ends(order, timing=TIMING._replace(mode="destination_missing", bandwidth_gbps=None))
    ends.do(ends.coordinator.start())
    assert ends.kinds[2:] == ["start_transfer", "activate_destination", "release_source", "complete"]
    assert ends.asked[2].delay_ms == 0.0
