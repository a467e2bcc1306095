"""The driver machine, fed by hand: the scenarios of the driver specification that the reference leaves untested.

`test_machine_NN_...` is scenario NN of section 13, without a shell; tests/scenarios has them over one, and those that
concern lanes, ids, callers and recordings besides. Internal work and faults come from a scripted engine.
"""

from __future__ import annotations

import pytest

from mocker_replay._core._testing import ScriptedEngine
from mocker_replay.events import CommandFlag, EventKind
from tests.support.machines import Shell, cancel, fixed, make_machine, read_records, records_of, submit

COMMAND, PASS_START, PASS_END = EventKind.COMMAND, EventKind.PASS_START, EventKind.PASS_END
WORK = EventKind.INTERNAL_WORK


def make_shell(pass_ms: float = 10.0, *, finishing: bool = False, scripted: bool = True, **kwargs) -> Shell:
    if scripted:
        kwargs["engine_class"] = ScriptedEngine
    return Shell(make_machine(timing=fixed(pass_ms, pass_ms), **kwargs), finishing=finishing)


def in_pass(num_outputs: int = 3, **kwargs) -> Shell:
    shell = make_shell(**kwargs)
    shell.put(submit(0, 0, 4, num_outputs))
    shell.run()
    shell.events()
    return shell


def at_boundary(num_outputs: int = 3, **kwargs) -> Shell:
    shell = in_pass(num_outputs, **kwargs)
    shell.run(10.0)
    assert shell.machine.phase_name == "at_boundary"
    shell.events()
    return shell


def story(shell: Shell, *kinds: EventKind) -> list[tuple[EventKind, float]]:
    return [(event.kind, event.t_ms) for event in shell.events(*kinds)]


def finish(shell: Shell) -> None:
    shell.boundary.append("finish")
    shell.run()


def test_machine_25_boundary_dropped() -> None:
    shell = at_boundary()
    shell.boundary.append("dropped")
    shell.run()
    assert shell.steps[-1].stopped
    assert shell.steps[-1].error == "the consumer dropped a pass boundary without finishing it"


def test_machine_25_boundary_dropped_after_the_token_is_orderly() -> None:
    shell = at_boundary()
    shell.boundary.append("dropped")
    shell.token = True
    shell.run()
    assert (shell.steps[-1].stopped, shell.steps[-1].error) == (True, None)


def test_machine_26_one_command_is_deferred_a_pass_and_the_lane_is_read_no_further() -> None:
    shell = in_pass()
    shell.put(submit(1, 1), submit(2, 2))
    shell.run(9.0)
    assert [g.stimulus for g in shell.recording[-1:]] == ["command_item"]
    assert len(shell.commands) == 1
    assert "command_item" not in shell.machine.wants()
    assert (story(shell), shell.replies[1:]) == ([], [])
    shell.run(10.0)
    shell.events()
    finish(shell)
    assert [(event.d, event.t_ms) for event in shell.events(COMMAND)] == [(1, 10.0), (2, 10.0)]
    assert shell.replies[1:] == [(1, True, "submitted"), (2, True, "submitted")]
    shell.run(19.0)
    shell.put(submit(3, 3))
    shell.run(19.5)
    assert not shell.commands, "each pass may defer one"


def test_machine_27_post_pass_order() -> None:
    shell = in_pass()
    shell.put(submit(1, 1))
    shell.run(10.0)
    shell.events()
    shell.put(cancel(3, 0), submit(2, 2))
    finish(shell)
    assert [event.d for event in shell.events(COMMAND)] == [3, 1, 2]


def test_machine_28_a_cancellation_during_post_pass_is_not_lost() -> None:
    shell = in_pass()
    shell.put(submit(1, 1))
    shell.run(10.0)
    shell.events()
    shell.boundary.append("finish")
    while shell.machine.phase_name != "post_deferred":
        shell.take()
    shell.put(cancel(2, 0))
    shell.run()
    assert [event.d for event in shell.events(COMMAND)] == [1, 2]
    phases = [g.stimulus for g in shell.recording]
    assert phases[phases.index("cancel_item") - 1] == "lane_counts", "taken by the next snapshot, not by this group"


def test_machine_29_internal_work_between_idle_commands() -> None:
    shell = make_shell()
    shell.run()
    shell.machine.engine.deadlines[:] = [5.0]
    shell.now_ms = 10.0
    shell.put(submit(0, 0), submit(1, 1))
    shell.run()
    assert story(shell, WORK, COMMAND) == [(WORK, 10.0), (COMMAND, 10.0), (COMMAND, 10.0)]


def test_machine_30_an_idle_command_beats_an_expired_internal_deadline_and_forces_it() -> None:
    shell = make_shell()
    shell.run()
    shell.machine.engine.deadlines[:] = [5.0, 7.0]
    shell.now_ms = 10.0
    shell.put(submit(0, 0))
    shell.take()
    assert shell.recording[-1].stimulus == "command_item"
    events = shell.events(WORK, COMMAND)
    assert [(event.kind, event.t_ms) for event in events] == [(WORK, 10.0), (COMMAND, 10.0)]
    assert events[0].a == 2
    assert shell.machine.wants() == ("published", "cancel", "publish_closed")


def test_an_idle_deadline_fires_at_its_time() -> None:
    shell = make_shell()
    shell.machine.engine.deadlines[:] = [5.0, 8.0]
    shell.run(20.0)
    assert story(shell, WORK) == [(WORK, 5.0), (WORK, 8.0)]
    assert shell.machine.engine_ms == 8.0
    assert shell.machine.phase_name == "idle"


def test_machine_31_a_rejected_idle_command_with_internal_work_due() -> None:
    shell = make_shell()
    shell.run()
    shell.machine.engine.deadlines[:] = [5.0]
    shell.now_ms = 10.0
    shell.put(submit(0, 0, rank=7))
    shell.take()
    assert shell.steps[-1].replies == (), "not before the internal event is on the lane"
    shell.run()
    assert story(shell) == [(WORK, 10.0)]
    assert shell.replies == [(0, False, "attention-DP rank is out of range")]
    assert shell.machine.phase_name == "idle"


def test_machine_32_internal_work_fails_inside_a_boundary_apply() -> None:
    shell = at_boundary()
    shell.machine.engine.deadlines[:] = [5.0]
    shell.machine.engine.fail_internal = True
    shell.boundary.append(submit(4, 4))
    shell.take()
    step = shell.steps[-1]
    assert (step.stopped, step.error) == (True, "EngineError: internal work failed on order")
    assert step.boundary_reply == (4, False, "stopped while applying")


@pytest.mark.parametrize("deferred", [False, True])
def test_internal_work_fails_before_a_command(deferred: bool) -> None:
    """The caller of the command whose step failed hears of it, wherever the command was."""
    shell = in_pass() if deferred else make_shell()
    if deferred:
        shell.put(submit(4, 4))
        shell.run(10.0)
        shell.events()
    else:
        shell.run()
        shell.put(submit(4, 4))
        shell.now_ms = 10.0
    shell.machine.engine.deadlines[:] = [5.0]
    shell.machine.engine.fail_internal = True
    shell.finishing = True
    shell.run()
    assert shell.steps[-1].error == "EngineError: internal work failed on order"
    assert shell.replies[-1] == (4, False, "stopped before acknowledging")


def test_boundary_apply_returns_internal_work_too() -> None:
    shell = at_boundary()
    shell.machine.engine.deadlines[:] = [8.0]
    shell.boundary.append(submit(4, 4))
    shell.run()
    returned = records_of(shell.machine.boundary_events.records_array())
    assert [(event.kind, event.t_ms) for event in returned] == [
        (WORK, 10.0), (COMMAND, 10.0), (EventKind.GAUGES, 10.0),
    ]  # fmt: skip
    assert story(shell) == []
    assert shell.steps[-1].boundary_reply == (4, True, "submitted")


def test_machine_34_every_caller_is_answered_when_the_machine_stops() -> None:
    shell = in_pass()
    shell.put(submit(1, 1), submit(2, 2))
    shell.run(5.0)  # 1 is deferred, 2 stays on the lane, which is the shell's
    shell.space = 0
    shell.put(cancel(3, 0))
    shell.run()
    shell.token = True
    shell.run()
    assert (shell.steps[-1].stopped, shell.steps[-1].error) == (True, None)
    assert shell.replies[1:] == [(3, False, "stopped while publishing"), (1, False, "stopped before acknowledging")]
    assert [command.command_id for command in shell.commands] == [2]


def test_machine_35_a_boundary_command_that_drains_the_engine_clears_the_carried_deadline() -> None:
    shell = at_boundary()
    shell.now_ms = 40.0
    shell.boundary.append(cancel(4, 0))
    shell.boundary.append(submit(5, 5))
    shell.boundary.append("finish")
    shell.run()
    assert story(shell, PASS_START) == [(PASS_START, 40.0)]
    kept = at_boundary()
    kept.now_ms = 40.0
    kept.boundary.extend([submit(5, 5), cancel(4, 0), "finish"])
    kept.run()
    assert story(kept, PASS_START) == [(PASS_START, 35.0)], "still ready after each command: the deadline is inherited"


def test_machine_36_a_clock_that_jumps_back() -> None:
    readings = iter([50.0, 20.0, 70.0, 3.0] * 40)
    shell = make_shell(finishing=True, scripted=False)
    shell.reading_of = lambda now_ms: next(readings)
    shell.put(submit(0, 0, 4, 6), submit(1, 1, 4, 3))
    seen = [0.0]
    for _ in range(100):
        if shell.take() is None:
            shell.now_ms = shell.next_deadline()
            if shell.now_ms == float("inf"):
                break
        seen.append(shell.machine.engine_ms)
    assert seen == sorted(seen)
    starts = [event.t_ms for event in read_records(shell.machine.out) if event.kind == PASS_START]
    assert len(starts) == 6
    assert starts == sorted(starts)


def test_machine_38_slow_consumer() -> None:
    shell = make_shell(finishing=True)
    shell.put(submit(0, 0, 4, 2))
    shell.space = 1
    shell.run()
    shell.now_ms = 50.0
    shell.run()
    assert shell.machine.wants()[0] == "published", "the pass has started; its start is not yet on the lane"
    shell.space = 1
    shell.run()
    ends = [event for event in read_records(shell.machine.out) if event.kind == PASS_END]
    assert [event.t_ms for event in ends] == [10.0]
    shell.space = 100
    shell.run()
    starts = [event.t_ms for event in read_records(shell.machine.out) if event.kind == PASS_START]
    assert starts == [0.0, 45.0]


def test_machine_39_space_and_cancel_at_the_same_instant() -> None:
    shell = make_shell()
    shell.put(submit(0, 0))
    shell.space = 1
    shell.run()
    shell.space, shell.token = 1, True
    shell.take()
    assert shell.recording[-1].stimulus == "published"
    assert not shell.steps[-1].stopped
    shell.run()
    assert (shell.steps[-1].stopped, shell.steps[-1].error) == (True, None)
    assert PASS_START in [event.kind for event in shell.events()]


def test_machine_42_command_and_cancellation_at_the_pass_end() -> None:
    shell = in_pass()
    shell.finishing = True
    shell.now_ms = 10.0
    shell.put(submit(1, 1), cancel(2, 0))
    shell.run()
    events = shell.events(COMMAND, PASS_END)
    assert [(event.kind, event.c & CommandFlag.IN_PASS, event.t_ms) for event in events] == [
        (COMMAND, 1, 0.0), (PASS_END, 0, 10.0), (COMMAND, 0, 10.0),
    ]  # fmt: skip


def test_machine_44_both_deadlines_past_after_a_stall() -> None:
    shell = in_pass()
    shell.finishing = True
    shell.machine.engine.deadlines[:] = [15.0]
    shell.now_ms = 100.0
    shell.take()
    assert shell.recording[-1].stimulus == "pass_timer"
    shell.run()
    assert story(shell, PASS_END, WORK, PASS_START)[:3] == [(PASS_END, 10.0), (WORK, 15.0), (PASS_START, 95.0)]


def test_an_engine_that_does_not_mask_internal_work_in_mid_pass_is_served() -> None:
    shell = in_pass()
    shell.machine.engine.masked = False
    shell.machine.engine.deadlines[:] = [4.0]
    shell.give("internal_timer")  # too early: nothing is due
    assert story(shell) == []
    shell.now_ms = 6.0
    shell.put(submit(1, 1))
    shell.run()
    assert [g.stimulus for g in shell.recording[-3:]] == ["internal_timer", "published", "command_item"]
    assert story(shell) == [(WORK, 4.0)]
    assert shell.machine.phase_name == "in_pass"


def test_machine_45_cancellations_refilled_for_ever_do_not_keep_a_pass_from_ending() -> None:
    shell = in_pass()
    shell.now_ms = 10.0
    taken = 0
    while shell.machine.phase_name == "in_pass":
        if not shell.cancels:
            shell.put(cancel(taken, 77))
        shell.take()
        taken += shell.recording[-1].stimulus == "cancel_item"
        assert taken <= 1024
    assert taken == 1024
    shell.events()


def test_cancellations_before_the_deadline_are_not_counted() -> None:
    shell = in_pass()
    shell.now_ms = 9.0
    for i in range(1_100):
        shell.put(cancel(i, 77))
    shell.run()
    assert not shell.cancels
    assert "cancel_item" in shell.machine.wants()


def test_machine_46_passes_without_effect_for_ever_stop_the_machine() -> None:
    shell = make_shell(0.0, finishing=True, num_gpu_blocks=2_000)
    shell.machine.engine.deny_effects = True
    shell.put(submit(0, 0, 4, 5_000))
    shell.run()
    step = shell.steps[-1]
    assert step.stopped
    assert step.error is not None
    assert step.error.startswith("LivelockError: worker 0: 1024 passes without effect at 0.0 ms")
    assert shell.machine.engine.pass_id == 1024


def test_passes_of_no_length_with_effects_are_no_livelock() -> None:
    shell = make_shell(0.0, finishing=True, num_gpu_blocks=2_000)
    shell.put(submit(0, 0, 4, 2_000))
    shell.run()
    assert (shell.machine.phase_name, shell.machine.engine.pass_id) == ("idle", 1_999)


def test_machine_47_ready_but_nothing_executed_yields() -> None:
    shell = make_shell()
    shell.machine.engine.refuse_passes = 2
    shell.put(submit(0, 0))
    shell.run()
    stimuli = [g.stimulus for g in shell.recording]
    assert stimuli.count("yielded") == 2
    assert story(shell, PASS_START) == [(PASS_START, 0.0)]


def test_machine_48_failing_completion_is_named() -> None:
    shell = in_pass()
    shell.machine.engine.fail_completion = True
    shell.run(10.0)
    step = shell.steps[-1]
    assert (step.stopped, step.error) == (True, "EngineError: completion failed on order")
    assert step.wants == ()
    assert shell.events() == []
