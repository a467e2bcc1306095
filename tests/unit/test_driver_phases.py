"""Every pair of phase and stimulus: what a phase wants is taken, everything else is refused and changes nothing."""

from __future__ import annotations

import pytest

from mocker_replay._core.driver import PHASE_NAMES, STIMULUS_NAMES, DriverMisuse, Machine
from tests.support.machines import Shell, buffer_bytes, cancel, fixed, make_machine, submit

PUBLISHING = ("published", "cancel", "publish_closed")
# What may come in each phase, the first wins. Phases that do not wait for the token still remember it.
WANTS: dict[str, tuple[str, ...]] = {
    "turn": ("cancel", "go"),
    "idle": ("cancel", "cancel_item", "cancels_closed", "command_item", "commands_closed", "internal_timer"),
    "snapshot": ("lane_counts", "cancel_item", "command_item"),
    "snapshot_cancels": ("cancel_item", "lane_empty"),
    "snapshot_commands": ("command_item", "lane_empty"),
    "start_pass": ("go",),
    "in_pass": (
        *("cancel", "cancel_item", "cancels_closed", "pass_timer", "internal_timer"),
        *("command_item", "commands_closed"),
    ),
    "at_boundary": ("cancel", "boundary_apply", "boundary_finish", "boundary_dropped"),
    "post_pass": ("lane_counts",),
    "post_cancels": ("cancel_item", "lane_empty"),
    "post_deferred": ("go",),
    "post_commands": ("command_item", "lane_empty"),
    "yield": ("yielded",),
    "stopped": (),
}
# Phases a step with events leaves the machine in.
PUBLISHING_PHASES = (
    "turn", "snapshot_cancels", "snapshot_commands", "start_pass", "in_pass", "at_boundary", "post_cancels",
    "post_deferred", "post_commands",
)  # fmt: skip


def reach(phase: str, *, publishing: bool = False) -> Machine:
    """A machine in that phase, its lanes filled so that every group has something to take."""
    shell = Shell(make_machine(timing=fixed(0.0 if phase == "yield" else 10.0, 10.0)))
    if phase == "stopped":
        shell.give("cancel")
    ids = iter(range(100))
    shell.put(submit(next(ids), 0, 4, 3))
    filled = {"snapshot": False, "at_boundary": False, "in_pass": False}
    for _ in range(100):
        now = shell.machine.phase_name
        if now == phase and (shell.machine.wants() == PUBLISHING) == publishing:
            return shell.machine
        if filled.get(now) is False:
            filled[now] = True
            for _ in range(1 if now == "in_pass" else 2):
                shell.put(submit(i := next(ids), i, 4, 3))
            if now != "in_pass":
                shell.put(cancel(next(ids), 77), cancel(next(ids), 77))
        if shell.take() is None:
            shell.now_ms = shell.next_deadline()
    raise AssertionError(f"{phase} was not reached")


def state_of(machine: Machine) -> tuple[object, ...]:
    return (
        machine.phase_name, machine.wants(), machine.engine_ms, repr(machine.carried_ms), repr(machine.pass_end_ms),
        machine.engine.pass_id, machine.engine.in_pass, buffer_bytes(machine.out),
        machine.boundary_events.records_array().tobytes(),
    )  # fmt: skip


def give(machine: Machine, stimulus: str):
    command = None
    if stimulus in ("command_item", "boundary_apply"):
        command = submit(500, 500)
    elif stimulus == "cancel_item":
        command = cancel(500, 0)
    return machine.step(stimulus, 1_000.0, command=command)


def test_the_table_is_whole() -> None:
    assert tuple(WANTS) == PHASE_NAMES
    assert {stimulus for wants in (*WANTS.values(), PUBLISHING) for stimulus in wants} == set(STIMULUS_NAMES)


@pytest.mark.parametrize("phase", PHASE_NAMES)
@pytest.mark.parametrize("stimulus", STIMULUS_NAMES)
def test_every_pair(phase: str, stimulus: str) -> None:
    machine = reach(phase)
    assert machine.wants() == WANTS[phase]
    before = state_of(machine)
    if stimulus in WANTS[phase]:
        step = give(machine, stimulus)
        assert step.wants == machine.wants()
        assert step.error is None or stimulus == "boundary_dropped"
    elif stimulus == "cancel":
        step = give(machine, stimulus)
        assert state_of(machine) == before
        assert (step.events, step.stopped) == (0, phase == "stopped")
    else:
        with pytest.raises(DriverMisuse, match=f"^{stimulus} in phase {phase}$"):
            give(machine, stimulus)
        assert state_of(machine) == before


@pytest.mark.parametrize("phase", PUBLISHING_PHASES)
@pytest.mark.parametrize("stimulus", STIMULUS_NAMES)
def test_every_pair_while_publishing(phase: str, stimulus: str) -> None:
    machine = reach(phase, publishing=True)
    assert machine.wants() == PUBLISHING
    before = state_of(machine)
    if stimulus in PUBLISHING:
        step = give(machine, stimulus)
        assert step.stopped is (stimulus != "published")
        assert machine.wants() == (WANTS[phase] if stimulus == "published" else ())
    else:
        with pytest.raises(DriverMisuse, match=f"^{stimulus} in phase {phase} while publishing$"):
            give(machine, stimulus)
        assert state_of(machine) == before


@pytest.mark.parametrize("phase", [phase for phase in PHASE_NAMES if "cancel" in WANTS[phase]])
def test_the_token_ends_every_wait(phase: str) -> None:
    step = give(reach(phase), "cancel")
    assert (step.stopped, step.error, step.wants) == (True, None, ())


@pytest.mark.parametrize(
    "phase", ["snapshot", "snapshot_commands", "start_pass", "post_pass", "post_deferred", "yield"]
)
def test_a_remembered_token_ends_the_machine_at_its_next_wait(phase: str) -> None:
    machine = reach(phase)
    give(machine, "cancel")
    for _ in range(20):
        wants = machine.wants()
        if "cancel" in wants and wants[0] != "published":
            give(machine, "cancel")
            break
        machine.step(
            "lane_empty" if "lane_empty" in wants else wants[0], 1_000.0, num_cancels=0, num_commands=0,
        )  # fmt: skip
    assert machine.phase_name == "stopped"


@pytest.mark.parametrize("reading_ms", [-1.0, float("nan"), float("inf"), -float("inf")])
def test_a_reading_that_is_no_time_is_refused(reading_ms: float) -> None:
    machine = reach("idle")
    before = state_of(machine)
    with pytest.raises(ValueError, match="clock reading must be finite and not negative"):
        machine.step("command_item", reading_ms, command=submit(500, 500))
    assert state_of(machine) == before


@pytest.mark.parametrize(
    ("phase", "stimulus", "command", "message"),
    [
        ("idle", "command_item", None, "command_item needs a command"),
        ("idle", "cancel_item", None, "cancel_item needs a command"),
        ("at_boundary", "boundary_apply", None, "boundary_apply needs a command"),
        ("idle", "cancel", submit(500, 500), "cancel takes no command"),
        ("at_boundary", "boundary_finish", submit(500, 500), "boundary_finish takes no command"),
        ("idle", "command_item", cancel(500, 0), "command_item does not carry a cancel"),
        ("idle", "cancel_item", submit(500, 500), "cancel_item does not carry a submit"),
        ("idle", "wake", None, "unknown stimulus 'wake'"),
    ],
)
def test_a_command_in_the_wrong_place_is_refused(phase: str, stimulus: str, command, message: str) -> None:
    machine = reach(phase)
    before = state_of(machine)
    with pytest.raises(DriverMisuse, match=f"^{message}$"):
        machine.step(stimulus, 1_000.0, command=command)
    assert state_of(machine) == before


def test_commands_and_counts_that_cannot_be_are_refused() -> None:
    machine = reach("at_boundary")
    before = state_of(machine)
    with pytest.raises(ValueError, match="unknown kind of command 'abort'"):
        machine.step("boundary_apply", 1_000.0, command=submit(500, 500)._replace(kind="abort"))
    with pytest.raises(OverflowError):
        machine.step("boundary_apply", 1_000.0, command=submit(500, 500)._replace(hash_ids=(1, 2**64)))
    assert state_of(machine) == before
    machine = reach("snapshot")
    with pytest.raises(ValueError, match="lane lengths must not be negative, got -1 and 0"):
        machine.step("lane_counts", 1_000.0, num_cancels=-1)
    assert machine.phase_name == "snapshot"
