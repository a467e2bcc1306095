"""The coordinator of a handoff against the table of its specification: every order of inputs, odd ones at random."""

from __future__ import annotations

import contextlib
import copy
import math
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mocker_replay._core.coordinator import (
    ACTION_NAMES,
    CAUSE_NAMES,
    ORDER_NAMES,
    OUTCOME_NAMES,
    PHASE_NAMES,
    Coordinator,
    HandoffError,
    Timing,
    transfer_delay_ms,
)
from tests.model.handoff import HandoffModel, Refused, TimingModel, delay_of

OWN, FOREIGN = 2**127 + 5, 5  # they differ in the upper half only
FULL = TimingModel("full_prompt", 16, 1_000_000, 1.0)
MISSING = TimingModel("destination_missing", 16, 1_000_000, 1.0)
Input = tuple[object, ...]


class Driven:
    """A coordinator under the names of the model."""

    def __init__(self, order: str, fallback_ms: float = 0.0) -> None:
        self.coordinator = Coordinator(uuid.UUID(int=OWN), order, fallback_ms=fallback_ms)

    def apply(self, name: str, *arguments: object) -> list[tuple[int, str, float]]:
        coordinator = self.coordinator
        if name == "start":
            return list(coordinator.start())
        if name == "outcome":
            number, outcome, text = arguments
            return list(coordinator.outcome(number, outcome, text))  # type: ignore[arg-type]
        handoff, *payload = arguments
        assert isinstance(handoff, int)
        method = {
            "held": "source_held", "reserved": "destination_reserved", "transferred": "transfer_completed",
        }.get(name, name)  # fmt: skip
        given_to = [Timing(*vars(value).values()) if isinstance(value, TimingModel) else value for value in payload]
        given_to += ["somebody fell"] if name == "failed" else []
        return list(getattr(coordinator, method)(uuid.UUID(int=handoff), *given_to))


def compare(model: HandoffModel, driven: Driven, told: Input) -> bool:
    """Whether the input was taken; both say the same."""
    before = (driven.coordinator.phase, driven.coordinator.delay_ms, driven.coordinator.cause)
    name, *arguments = told
    assert isinstance(name, str)
    try:
        wanted = model.apply(name, *arguments)
    except Refused:
        with pytest.raises(HandoffError):
            driven.apply(name, *arguments)
        assert (driven.coordinator.phase, driven.coordinator.delay_ms, driven.coordinator.cause) == before
        return False
    assert driven.apply(name, *arguments) == wanted
    same_state(model, driven)
    return True


def same_state(model: HandoffModel, driven: Driven) -> None:
    coordinator = driven.coordinator
    assert coordinator.phase == model.phase
    assert coordinator.cause == model.cause
    assert coordinator.delay_ms == model.delay_ms
    assert (coordinator.cause_text is None) == (model.cause is None)


def inputs_of(timing: TimingModel, num_actions: int) -> list[Input]:
    """Every input there is for a handoff that has issued so many actions."""
    facts: list[Input] = [("start",), ("held", OWN, timing), ("reserved", OWN, 12), ("transferred", OWN)]
    facts += [(name, OWN) for name in ("failed", "timed_out", "cancelled")]
    outcomes = [
        ("outcome", number, outcome, "refused" if outcome == "failed" else "")
        for number in range(num_actions)
        for outcome in OUTCOME_NAMES[1:]
    ]
    return [*facts, *outcomes]


def never_taken(num_actions: int) -> list[Input]:
    """What must be refused, or do nothing, in every state."""
    return [
        ("held", FOREIGN, FULL), ("reserved", FOREIGN, 0), ("transferred", FOREIGN), ("cancelled", FOREIGN),
        ("outcome", num_actions, "applied", ""), ("outcome", -1, "applied", ""), ("outcome", 2**40, "applied", ""),
        ("outcome", 0, "none", ""), ("outcome", 0, "gone", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(("order", "timing"), [("source_first", FULL), ("destination_first", MISSING)])
def test_every_state_takes_every_input_like_the_table(order: str, timing: TimingModel) -> None:
    """A walk over all states that any order of inputs can reach, and from each of them every input."""
    seen: set[str] = set()
    open_paths: list[tuple[Input, ...]] = [()]
    phases = set()
    while open_paths:
        path = open_paths.pop()
        model, driven = HandoffModel(OWN, order), Driven(order)
        for taken in path:
            assert compare(model, driven, taken)
        phases.add(model.phase)
        for wrong in never_taken(len(model.actions)):
            compare(model, driven, wrong)
        # Inputs that are refused or change nothing leave the same coordinator for the next one.
        known = repr(model)
        for told in inputs_of(timing, len(model.actions)):
            trial = copy.deepcopy(model)
            with contextlib.suppress(Refused):
                trial.apply(str(told[0]), *told[1:])
            if repr(trial) == known:
                compare(model, driven, told)
            elif repr(trial) not in seen:
                seen.add(repr(trial))
                open_paths.append((*path, told))
    assert phases == set(PHASE_NAMES)
    assert len(seen) > 100


NUMBERS = st.one_of(st.none(), st.integers(0, 3), st.integers(-1, 10**9))
BANDWIDTHS = st.one_of(
    st.none(), st.sampled_from([0.0, 1.0, 64.0, -1.0, math.nan, math.inf, 5e-324, 1e-300]), st.floats(0.001, 1e3)
)
TIMINGS = st.builds(
    TimingModel, st.sampled_from(["full_prompt", "destination_missing"]), st.integers(-1, 10**6), NUMBERS, BANDWIDTHS
)


@given(TIMINGS, st.integers(-1, 10**6), st.sampled_from([0.0, 7.5]))
def test_the_delay_is_that_of_the_formula(timing: TimingModel, missing_tokens: int, fallback_ms: float) -> None:
    packed = Timing(*vars(timing).values())
    try:
        wanted = delay_of(timing, missing_tokens, fallback_ms)
    except Refused:
        with pytest.raises(HandoffError):
            transfer_delay_ms(packed, missing_tokens, fallback_ms)
    else:
        assert transfer_delay_ms(packed, missing_tokens, fallback_ms) == wanted


class CoordinatorAgainstModel(RuleBasedStateMachine):
    """Any interleaving of inputs, wrong ones included."""

    @initialize(order=st.sampled_from(ORDER_NAMES), fallback_ms=st.sampled_from([0.0, 7.5]))
    def begin(self, order: str, fallback_ms: float) -> None:
        self.model, self.driven = HandoffModel(OWN, order, fallback_ms), Driven(order, fallback_ms)

    def give(self, *told: object) -> None:
        compare(self.model, self.driven, told)

    @rule()
    def start(self) -> None:
        self.give("start")

    @rule(timing=st.one_of(st.sampled_from([FULL, MISSING]), TIMINGS), handoff=st.sampled_from([OWN, OWN, FOREIGN]))
    def held(self, timing: TimingModel, handoff: int) -> None:
        self.give("held", handoff, timing)

    @rule(tokens=st.integers(-1, 40), handoff=st.sampled_from([OWN, OWN, FOREIGN]))
    def reserved(self, tokens: int, handoff: int) -> None:
        self.give("reserved", handoff, tokens)

    @rule(handoff=st.sampled_from([OWN, OWN, FOREIGN]))
    def transferred(self, handoff: int) -> None:
        self.give("transferred", handoff)

    @rule(name=st.sampled_from(["failed", "timed_out", "cancelled"]), handoff=st.sampled_from([OWN, FOREIGN]))
    def give_up(self, name: str, handoff: int) -> None:
        self.give(name, handoff)

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        """The outcome that the oldest open action waits for: without it most walks would end early."""
        number = next((at for at in range(len(self.model.actions)) if at not in self.model.outcomes), None)
        if number is None or self.model.actions[number] == "complete":
            return
        expected = ("submitted", "accepted", "scheduled", "applied")
        outcome = expected[min(ACTION_NAMES.index(self.model.actions[number]), 3)]
        self.give("outcome", number, outcome, "")

    @rule(number=st.integers(0, 8), outcome=st.sampled_from(OUTCOME_NAMES[1:]), text=st.sampled_from(["full", "gone"]))
    def outcome(self, number: int, outcome: str, text: str) -> None:
        self.give("outcome", number, outcome, text if outcome == "failed" else "")

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "model"):
            same_state(self.model, self.driven)
            assert self.model.cause in (None, *CAUSE_NAMES)


TestCoordinatorAgainstModel = CoordinatorAgainstModel.TestCase
