"""The coordinator of a handoff: every row of its table, every refusal, every rule of what may be told twice."""

from __future__ import annotations

import math
import uuid

import pytest

from mocker_replay._core.coordinator import Action, Coordinator, HandoffError, Timing, transfer_delay_ms

OWN, FOREIGN = uuid.UUID(int=7), uuid.UUID(int=8)
FULL = Timing("full_prompt", 16, 1_000_000, 1.0)  # 16 ms
MISSING = Timing("destination_missing", 16, 1_000_000, 1.0)
# What each order does up to its end, and what it asks for then.
STEPS = {
    "source_first": [
        ("start", (), ["submit_prefill"]),
        ("outcome", (0, "submitted"), []),
        ("source_held", (OWN, FULL), ["reserve_destination"]),
        ("outcome", (1, "accepted"), []),
        ("destination_reserved", (OWN, 12), ["start_transfer"]),
        ("outcome", (2, "scheduled"), []),
        ("transfer_completed", (OWN,), ["activate_destination"]),
        ("outcome", (3, "applied"), ["release_source"]),
        ("outcome", (4, "applied"), ["complete"]),
    ],
    "destination_first": [
        ("start", (), ["reserve_destination"]),
        ("outcome", (0, "accepted"), []),
        ("destination_reserved", (OWN, 12), ["submit_prefill"]),
        ("outcome", (1, "submitted"), []),
        ("source_held", (OWN, FULL), ["start_transfer"]),
        ("outcome", (2, "scheduled"), []),
        ("transfer_completed", (OWN,), ["activate_destination"]),
        ("outcome", (3, "applied"), ["release_source"]),
        ("outcome", (4, "noop"), ["complete"]),
    ],
}
ORDERS = pytest.mark.parametrize("order", list(STEPS))
AT_ANY_STEP = pytest.mark.parametrize(
    ("order", "num_steps"), [(order, at) for order, steps in STEPS.items() for at in range(len(steps) + 1)]
)


def at_step(order: str, num_steps: int, **arguments: float) -> Coordinator:
    """A coordinator that was told the first steps of its order."""
    coordinator = Coordinator(OWN, order, **arguments)
    for name, given, wanted in STEPS[order][:num_steps]:
        assert kinds(getattr(coordinator, name)(*given)) == wanted
    return coordinator


def kinds(actions: tuple[Action, ...]) -> list[str]:
    return [action.kind for action in actions]


def state(coordinator: Coordinator) -> tuple[object, ...]:
    return coordinator.phase, coordinator.cause, coordinator.cause_text, coordinator.delay_ms


# -- the table ----------------------------------------------------------------------------------------


@ORDERS
def test_each_row_of_the_table_in_its_order(order: str) -> None:
    coordinator = Coordinator(OWN, order)
    assert coordinator.phase == "new"
    asked = []
    for name, given, wanted in STEPS[order]:
        actions = getattr(coordinator, name)(*given)
        assert kinds(actions) == wanted
        asked += actions
    assert [action.id for action in asked] == list(range(6))
    assert [action.delay_ms for action in asked] == [
        16.0 if action.kind == "start_transfer" else 0.0 for action in asked
    ]
    assert state(coordinator) == ("succeeded", None, None, 16.0)


@ORDERS
def test_nothing_is_asked_for_before_the_start(order: str) -> None:
    coordinator = Coordinator(OWN, order)
    with pytest.raises(HandoffError, match="no action has this id"):
        coordinator.outcome(0, "submitted")
    with pytest.raises(HandoffError, match="submission is not acknowledged"):
        coordinator.source_held(OWN, FULL)
    assert kinds(coordinator.cancelled(OWN)) == ["complete"]
    assert coordinator.phase == "cancelled"
    assert coordinator.start() == ()


@AT_ANY_STEP
def test_giving_up_cleans_what_was_issued(order: str, num_steps: int) -> None:
    """Acknowledged or not: a source whose submission was sent, a destination whose reservation was."""
    coordinator = at_step(order, num_steps)
    issued = [kind for _, _, wanted in STEPS[order][:num_steps] for kind in wanted]
    if "complete" in issued:
        assert coordinator.timed_out(OWN) == ()
        assert coordinator.phase == "succeeded"
        return
    wanted = [
        cleanup
        for kind, cleanup in [("submit_prefill", "cancel_source"), ("reserve_destination", "cancel_destination")]
        if kind in issued
    ]
    actions = coordinator.timed_out(OWN)
    assert kinds(actions) == (wanted or ["complete"])
    assert [action.id for action in actions] == list(range(len(issued), len(issued) + len(actions)))
    for left, action in zip(range(len(wanted) - 1, -1, -1), actions, strict=False):
        assert coordinator.phase == "cleanup"
        assert kinds(coordinator.outcome(action.id, "noop" if left else "applied")) == ([] if left else ["complete"])
    assert (coordinator.phase, coordinator.cause, coordinator.cause_text) == ("cancelled", "timed_out", "timed out")


@pytest.mark.parametrize("name", ["failed", "timed_out", "cancelled"])
def test_the_first_cause_is_kept(name: str) -> None:
    coordinator = at_step("source_first", 3)
    getattr(coordinator, name)(OWN, *(["the network is down"] if name == "failed" else []))
    assert coordinator.cause == name
    text = coordinator.cause_text
    assert text == {"failed": "the network is down", "timed_out": "timed out", "cancelled": "cancelled"}[name]
    coordinator.failed(OWN, "something else")
    coordinator.outcome(1, "failed", "and this")
    assert (coordinator.cause, coordinator.cause_text) == (name, text)


@pytest.mark.parametrize(
    ("order", "num_steps", "number", "cleanup"),
    [
        ("source_first", 1, 0, ["cancel_source"]),
        ("source_first", 3, 1, ["cancel_source", "cancel_destination"]),
        ("source_first", 5, 2, ["cancel_source", "cancel_destination"]),
        ("source_first", 7, 3, ["cancel_source", "cancel_destination"]),
        ("source_first", 8, 4, ["cancel_source", "cancel_destination"]),
        ("destination_first", 1, 0, ["cancel_destination"]),
        ("destination_first", 3, 1, ["cancel_source", "cancel_destination"]),
    ],
)
def test_an_action_that_fails_turns_to_cleaning(order: str, num_steps: int, number: int, cleanup: list[str]) -> None:
    coordinator = at_step(order, num_steps)
    assert kinds(coordinator.outcome(number, "failed", "no room")) == cleanup
    assert coordinator.cause == "action_failed"
    assert coordinator.cause_text is not None
    assert coordinator.cause_text.endswith(" failed: no room")


# -- refusals: nothing changes, and the right input still works -----------------------------------------


EXPECTED = {
    "submit_prefill": {"submitted"},
    "reserve_destination": {"accepted"},
    "start_transfer": {"scheduled"},
    "activate_destination": {"applied"},
    "release_source": {"applied", "noop"},
}


@AT_ANY_STEP
def test_outcomes_an_action_cannot_have(order: str, num_steps: int) -> None:
    coordinator = at_step(order, num_steps)
    issued = [kind for _, _, wanted in STEPS[order][:num_steps] for kind in wanted]
    if not issued or coordinator.phase == "succeeded":
        return
    number = len(issued) - 1
    told = any(given[:1] == (number,) for name, given, _ in STEPS[order][:num_steps] if name == "outcome")
    before = state(coordinator)
    wrong = {"none", "submitted", "accepted", "scheduled", "applied", "noop", "gone"} - EXPECTED[issued[number]]
    for outcome in wrong:
        with pytest.raises(HandoffError, match="another outcome before" if told else "cannot have this outcome"):
            coordinator.outcome(number, outcome)
    assert state(coordinator) == before
    for name, given, wanted in STEPS[order][num_steps:]:
        assert kinds(getattr(coordinator, name)(*given)) == wanted


@AT_ANY_STEP
def test_facts_of_another_handoff(order: str, num_steps: int) -> None:
    coordinator = at_step(order, num_steps)
    facts = [("source_held", (FULL,)), ("destination_reserved", (4,)), ("transfer_completed", ())]
    facts += [("failed", ("why",)), ("timed_out", ()), ("cancelled", ())]
    for name, given in facts:
        if coordinator.phase == "succeeded":
            assert getattr(coordinator, name)(FOREIGN, *given) == ()
        else:
            with pytest.raises(HandoffError, match="a fact of another handoff"):
                getattr(coordinator, name)(FOREIGN, *given)
    assert coordinator.cause is None


@pytest.mark.parametrize(
    ("order", "num_steps", "name", "given", "why"),
    [
        ("source_first", 1, "source_held", (OWN, FULL), "submission is not acknowledged"),
        ("source_first", 3, "destination_reserved", (OWN, 4), "reservation is acknowledged"),
        ("source_first", 5, "transfer_completed", (OWN,), "before it was scheduled"),
        ("source_first", 2, "transfer_completed", (OWN,), "before it was scheduled"),
        ("destination_first", 1, "destination_reserved", (OWN, 4), "reservation is acknowledged"),
        ("destination_first", 2, "source_held", (OWN, FULL), "submission is not acknowledged"),
        ("destination_first", 3, "source_held", (OWN, FULL), "submission is not acknowledged"),
    ],
)
def test_facts_that_come_too_early(order: str, num_steps: int, name: str, given: tuple[object, ...], why: str) -> None:
    coordinator = at_step(order, num_steps)
    with pytest.raises(HandoffError, match=why):
        getattr(coordinator, name)(*given)
    for name, given, wanted in STEPS[order][num_steps:]:
        assert kinds(getattr(coordinator, name)(*given)) == wanted


@pytest.mark.parametrize("number", [-1, 2, 8, 2**31, 2**70])
def test_an_id_that_no_action_has(number: int) -> None:
    coordinator = at_step("source_first", 3)
    with pytest.raises(HandoffError, match="no action has this id"):
        coordinator.outcome(number, "applied")


def test_a_cleanup_action_that_fails_is_an_error() -> None:
    coordinator = at_step("source_first", 5)
    source, destination = coordinator.cancelled(OWN)
    for action in (source, destination):
        with pytest.raises(HandoffError, match="may still be owned"):
            coordinator.outcome(action.id, "failed", "gone")
    coordinator.outcome(source.id, "applied")
    assert kinds(coordinator.outcome(destination.id, "applied")) == ["complete"]


def test_an_activation_that_found_nothing_is_an_error_until_the_cleanup() -> None:
    coordinator = at_step("source_first", 7)
    with pytest.raises(HandoffError, match="cannot have this outcome"):
        coordinator.outcome(3, "noop")
    coordinator.cancelled(OWN)
    assert coordinator.outcome(3, "noop") == ()


BAD_TIMINGS = [
    (FULL._replace(bandwidth_gbps=-1.0), "kv_transfer_bandwidth"),
    (FULL._replace(bandwidth_gbps=math.inf), "kv_transfer_bandwidth"),
    (FULL._replace(bandwidth_gbps=math.nan), "kv_transfer_bandwidth"),
    (FULL._replace(bytes_per_token=-1), "kv_transfer_bytes_per_token"),
    (FULL._replace(prompt_tokens=-1), "tokens"),
    (FULL._replace(mode="some"), "unknown kv_transfer_timing_mode"),
    (FULL._replace(bandwidth_gbps=1e-300, bytes_per_token=2**62), "delay must be finite"),
]


@pytest.mark.parametrize(("timing", "why"), BAD_TIMINGS)
def test_a_source_that_reports_nonsense(timing: Timing, why: str) -> None:
    """Refused before anything is scheduled, and as soon as it can be known."""
    coordinator = at_step("source_first", 2)
    with pytest.raises(HandoffError, match=why):
        coordinator.source_held(OWN, timing)
    assert kinds(coordinator.source_held(OWN, FULL)) == ["reserve_destination"]
    with pytest.raises(HandoffError, match=why):
        transfer_delay_ms(timing, 16)


def test_a_delay_that_only_the_destination_makes_infinite() -> None:
    coordinator = at_step("source_first", 2)
    coordinator.source_held(OWN, MISSING._replace(bandwidth_gbps=1e-300, bytes_per_token=2**62))
    coordinator.outcome(1, "accepted")
    for tokens, why in [(-4, "tokens is negative"), (2**60, "delay must be finite")]:
        with pytest.raises(HandoffError, match=why):
            coordinator.destination_reserved(OWN, tokens)
    assert coordinator.delay_ms is None
    assert [action.delay_ms for action in coordinator.destination_reserved(OWN, 0)] == [0.0]


@pytest.mark.parametrize("fallback_ms", [-1.0, math.inf, math.nan])
def test_a_fallback_that_is_no_delay(fallback_ms: float) -> None:
    with pytest.raises(HandoffError, match="delay must be finite"):
        Coordinator(OWN, "source_first", fallback_ms=fallback_ms)


def test_an_order_that_is_none() -> None:
    with pytest.raises(ValueError, match="order must be one of source_first, destination_first"):
        Coordinator(OWN, "both")


# -- told twice -----------------------------------------------------------------------------------------


@AT_ANY_STEP
def test_everything_may_be_told_twice(order: str, num_steps: int) -> None:
    coordinator = at_step(order, num_steps)
    before = state(coordinator)
    for name, given, _ in STEPS[order][:num_steps]:
        assert getattr(coordinator, name)(*given) == ()
    assert state(coordinator) == before
    for name, given, wanted in STEPS[order][num_steps:]:
        assert kinds(getattr(coordinator, name)(*given)) == wanted


def test_of_two_facts_the_first_counts() -> None:
    coordinator = at_step("source_first", 3)
    assert coordinator.source_held(OWN, FULL._replace(prompt_tokens=99)) == ()
    assert coordinator.delay_ms == 16.0


def test_equal_failures_are_one_and_others_contradict() -> None:
    coordinator = at_step("source_first", 3)
    assert kinds(coordinator.outcome(1, "failed", "no room")) == ["cancel_source", "cancel_destination"]
    assert coordinator.outcome(1, "failed", "no room") == ()
    for outcome, text in [("failed", "other"), ("accepted", "")]:
        with pytest.raises(HandoffError, match="another outcome before"):
            coordinator.outcome(1, outcome, text)


@pytest.mark.parametrize("ending", ["success", "cleanup"])
def test_nothing_happens_after_the_end(ending: str) -> None:
    coordinator = at_step("source_first", 9 if ending == "success" else 1)
    if ending == "cleanup":
        (action,) = coordinator.cancelled(OWN)
        coordinator.outcome(action.id, "applied")
    before = state(coordinator)
    assert coordinator.start() == coordinator.source_held(FOREIGN, FULL) == coordinator.failed(OWN, "late") == ()
    assert coordinator.outcome(0, "applied") == coordinator.outcome(99, "failed", "late") == ()
    assert coordinator.transfer_completed(OWN) == coordinator.destination_reserved(OWN, -1) == ()
    assert state(coordinator) == before


def test_what_comes_late_while_cleaning_is_taken_and_ignored() -> None:
    coordinator = at_step("source_first", 3)
    source, destination = coordinator.cancelled(OWN)
    assert coordinator.outcome(1, "accepted") == ()
    assert coordinator.destination_reserved(OWN, 12) == coordinator.transfer_completed(OWN) == ()
    assert coordinator.source_held(OWN, FULL._replace(prompt_tokens=-1)) == ()
    assert kinds(coordinator.outcome(destination.id, "applied")) == []
    assert kinds(coordinator.outcome(source.id, "applied")) == ["complete"]


# -- the delay ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timing", "missing_tokens", "delay_ms"),
    [
        (FULL, 0, 16.0),
        (Timing("full_prompt", 16, 131_072, 64.0), 16, 0.032768000000000005),  # 0.032768 as doubles make it
        (Timing("full_prompt", 128, 1_000_000, 1.0), 0, 128.0),
        (Timing("full_prompt", 100, 1000, 1.0), 20, 0.1),
        (Timing("destination_missing", 100, 1000, 1.0), 20, 0.02),
        (Timing("full_prompt", 17, 1_000_000, 1.0), 20, 17.0),  # not rounded to blocks
        (Timing("destination_missing", 18, 1_000_000, 1.0), 20, 20.0),  # by the destination
        (MISSING, 0, 0.0),
        # Left to right; the other order of these operations differs in the last bit.
        (Timing("full_prompt", 3, 7, 0.3), 0, (3.0 * 7.0) / (0.3 * 1e9) * 1000.0),
    ],
)
def test_worked_delays(timing: Timing, missing_tokens: int, delay_ms: float) -> None:
    assert transfer_delay_ms(timing, missing_tokens) == delay_ms


@pytest.mark.parametrize(
    "timing",
    [Timing("full_prompt", 16), FULL._replace(bytes_per_token=None), FULL._replace(bandwidth_gbps=None),
     FULL._replace(bandwidth_gbps=0.0), MISSING._replace(bandwidth_gbps=0.0)],
)  # fmt: skip
@ORDERS
def test_a_source_without_a_model_gets_the_fallback(order: str, timing: Timing) -> None:
    assert transfer_delay_ms(timing, 4) == 0.0
    assert transfer_delay_ms(timing, 4, 7.5) == 7.5
    coordinator = Coordinator(OWN, order, fallback_ms=7.5)
    asked: list[Action] = []
    for name, given, _ in STEPS[order][:5]:
        asked += getattr(coordinator, name)(*(timing if value is FULL else value for value in given))
    assert [action.delay_ms for action in asked if action.kind == "start_transfer"] == [7.5]


@ORDERS
def test_when_the_delay_is_known(order: str) -> None:
    """In full-prompt mode with the held source, in destination-missing mode with both ends."""
    known = {"full_prompt": [], "destination_missing": []}  # type: dict[str, list[bool]]
    for timing in (FULL, MISSING):
        coordinator = Coordinator(OWN, order)
        for name, given, _ in STEPS[order][:5]:
            getattr(coordinator, name)(*(timing if value is FULL else value for value in given))
            known[timing.mode].append(coordinator.delay_ms is not None)
    late = [False, False, False, False, True]
    assert known["full_prompt"] == ([False, False, True, True, True] if order == "source_first" else late)
    assert known["destination_missing"] == late
