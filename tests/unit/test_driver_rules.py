"""The driver machine, fed by hand: the scenarios of the driver specification that the reference tests.

`test_machine_NN_...` is scenario NN of section 12, without a shell; tests/scenarios has them over one. Section 13 is in
test_driver_corner_rules.py.
"""

from __future__ import annotations

import struct

import pytest

from mocker_replay._core.timing import TimingModel
from mocker_replay.events import CommandFlag, CommandKind, CommandResult, EventKind, TerminalStatus
from tests.support.machines import Shell, cancel, fixed, make_machine, read_records, submit

COMMAND, PASS_START, PASS_END = EventKind.COMMAND, EventKind.PASS_START, EventKind.PASS_END
WANT_FPM = 2


def make_shell(prefill_ms: float = 10.0, decode_ms: float | None = None, **kwargs) -> Shell:
    """A shell whose boundaries the test finishes; all passes take as long as the first."""
    timing = fixed(prefill_ms, prefill_ms if decode_ms is None else decode_ms)
    return Shell(make_machine(timing=timing, **kwargs), finishing=False)


def pass_times(shell: Shell) -> list[tuple[float, float]]:
    """(start, end) of passes started since the last look."""
    return [(event.t_ms, event.x) for event in shell.events(PASS_START)]


def finish(shell: Shell) -> None:
    shell.boundary.append("finish")
    shell.run()


@pytest.mark.parametrize(
    ("length_ms", "cost_ms", "starts"),
    [
        (10, 2, [0, 10, 20, 30, 40]),
        (1, 2, [0, 1, 2, 3, 4, 6, 8, 10, 12]),
        (1, 3, [0, 1, 2, 5, 8, 11, 14]),
        (0, 1, [0, 0, 0, 0, 0, 0, 1, 2, 3]),
    ],
)
def test_machine_37_trajectories(length_ms: float, cost_ms: float, starts: list[float]) -> None:
    """A constant cost of publication and boundary a pass: hidden, then lagging up to the bound, then slipping."""
    shell = make_shell(length_ms)
    shell.put(submit(0, 0, 4, 100))
    shell.run()
    for _ in starts:
        shell.run(shell.next_deadline())  # sleeps until the end where it is still ahead
        shell.now_ms += cost_ms
        finish(shell)
    assert [start for start, _ in pass_times(shell)][: len(starts)] == starts


# -- section 12 -------------------------------------------------------------------------------------------


def first_pass_over(num_outputs: int, prefill_ms: float = 10.0) -> Shell:
    """One request, its first pass completed, the boundary open."""
    shell = make_shell(prefill_ms)
    shell.put(submit(0, 0, 4, num_outputs))
    shell.run(prefill_ms)
    assert shell.machine.phase_name == "at_boundary"
    return shell


def test_machine_03_finish_delay_is_absorbed() -> None:
    shell = make_shell()
    shell.put(submit(0, 0, 4, 3))
    shell.run()
    assert shell.replies == [(0, True, "submitted")]
    assert [event.kind for event in shell.events() if event.kind in (COMMAND, PASS_START)] == [COMMAND, PASS_START]
    shell.run(10.0)
    assert [event.t_ms for event in shell.events(PASS_END)] == [10.0]
    shell.run(12.0)
    assert shell.events() == []
    finish(shell)
    assert pass_times(shell) == [(10.0, 20.0)]


def test_machine_04_boundary_command_keeps_the_carried_deadline() -> None:
    shell = first_pass_over(3)
    shell.events()
    shell.now_ms = 12.0
    shell.boundary.append(submit(7, 1, 4, 1))
    shell.run()
    assert shell.steps[-1].boundary_reply == (7, True, "submitted")
    assert shell.events() == [], "what a boundary command does is returned, not published"
    assert [EventKind(int(kind)) for kind in shell.machine.boundary_events.records_array()["kind"]] == [
        COMMAND,
        EventKind.GAUGES,
    ]
    finish(shell)
    assert pass_times(shell) == [(10.0, 30.0)]


def test_machine_05_queued_command_keeps_the_carried_deadline() -> None:
    shell = first_pass_over(3)
    shell.events()
    shell.now_ms = 12.0
    shell.put(submit(7, 1, 4, 1))
    finish(shell)
    started = [event for event in shell.events() if event.kind in (COMMAND, PASS_START)]
    assert [(event.kind, event.t_ms) for event in started] == [(COMMAND, 10.0), (PASS_START, 10.0)]
    assert shell.replies[-1] == (7, True, "submitted")


def test_machine_06_queued_command_after_a_drained_boundary() -> None:
    shell = first_pass_over(1)
    shell.events()
    shell.now_ms = 30.0
    shell.put(submit(7, 1, 4, 1))
    finish(shell)
    started = [event for event in shell.events() if event.kind in (COMMAND, PASS_START)]
    assert [(event.kind, event.t_ms) for event in started] == [(COMMAND, 30.0), (PASS_START, 30.0)]


def test_machine_07_catch_up_is_bounded() -> None:
    shell = first_pass_over(3)
    shell.events()
    shell.now_ms = 30.0
    finish(shell)
    assert pass_times(shell) == [(25.0, 35.0)]


def test_machine_08_idle_restart() -> None:
    shell = first_pass_over(1)
    finish(shell)
    assert shell.machine.phase_name == "idle"
    shell.events()
    shell.now_ms = 110.0
    shell.put(submit(7, 1, 4, 1))
    shell.run()
    assert pass_times(shell) == [(110.0, 120.0)]


def test_machine_09_cancel_while_blocked_publishing() -> None:
    shell = make_shell(100.0)
    shell.put(submit(0, 0, 4, 1))
    shell.space = 1  # the command's event fits, that of the pass does not
    shell.run()
    assert shell.machine.wants() == ("published", "cancel", "publish_closed")
    shell.token = True
    shell.run()
    assert (shell.steps[-1].stopped, shell.steps[-1].error) == (True, None)
    assert next(event.kind for event in shell.events()) == COMMAND
    assert shell.machine.wants() == ()


def test_machine_10_closed_event_lane() -> None:
    shell = make_shell()
    shell.put(submit(0, 0, 4, 1))
    shell.closed = True
    shell.run()
    assert (shell.steps[-1].stopped, shell.steps[-1].error) == (True, "the event lane has no reader")
    assert shell.replies == [(0, False, "stopped while publishing")]
    orderly = make_shell()
    orderly.put(submit(0, 0, 4, 1))
    orderly.space = 0
    orderly.run()
    orderly.give("publish_closed")
    assert orderly.steps[-1].error is not None


def test_machine_10_closed_event_lane_after_the_token_is_orderly() -> None:
    """The token fired in a phase that does not wait for it; the lane is then found closed."""
    shell = make_shell()
    shell.put(submit(0, 0, 4, 1))
    while shell.machine.phase_name != "start_pass":
        shell.take()
    shell.give("cancel")
    shell.give("go")
    shell.give("publish_closed")
    assert (shell.steps[-1].stopped, shell.steps[-1].error) == (True, None)


def test_machine_11_shared_completion_boundary() -> None:
    shell = make_shell(100.0, dp_size=2)
    shell.put(submit(0, 0, 4, 1, rank=0), submit(1, 1, 8, 1, rank=1))
    shell.run(99.0)
    events = shell.events()
    assert [event.request for event in events if event.kind == COMMAND] == [0, 1]
    assert [event.b for event in events if event.kind == PASS_START] == [2]
    assert [event.rank for event in events if event.kind == EventKind.RANK_START] == [0, 1]
    assert not [event for event in events if event.kind == PASS_END]
    shell.run(100.0)
    events = shell.events()
    assert [(event.t_ms, event.b) for event in events if event.kind == PASS_END] == [(100.0, 2)]
    assert [event.rank for event in events if event.kind == EventKind.RANK_END] == [0, 1]


class TenPerToken:
    """Prefill of 10 ms per mean prompt token."""

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        return 10.0 * mean_isl

    def decode(self, *args: int) -> float:
        return 1.0


def test_machine_12_late_wake_up_does_not_inflate_durations() -> None:
    shell = Shell(
        make_machine(dp_size=2, timing=TimingModel("callback", callback=TenPerToken()), want=WANT_FPM), finishing=False
    )
    shell.put(submit(0, 0, 4, 1, rank=0), submit(1, 1, 8, 1, rank=1))
    shell.run()
    assert [event.x for event in shell.events(EventKind.RANK_START)] == [40.0, 80.0]
    shell.now_ms = 100.0
    shell.run()
    events = shell.events()
    walls = [
        struct.unpack("<d", struct.pack("<q", event.words[0]))[0] for event in events if event.kind == EventKind.FPM
    ]
    assert walls == [0.08, 0.08]
    assert {event.t_ms for event in events} == {80.0}


def test_machine_13_mid_pass_cancellation_suppresses_output() -> None:
    shell = make_shell(100.0)
    shell.put(submit(0, 0, 4, 1))
    shell.run(40.0)
    shell.events()
    shell.put(cancel(1, 0, discard=True))
    shell.run()
    command, _, end = shell.events()
    assert (command.kind, command.t_ms) == (COMMAND, 0.0), "stamped with the start of the pass"
    assert command.c == CommandFlag.IN_PASS | CommandFlag.SUPPRESSED
    assert (end.kind, end.a) == (EventKind.TERMINAL, TerminalStatus.CANCELLED)
    shell.run(100.0)
    events = shell.events()
    assert [(event.t_ms, event.kind) for event in events if event.kind == PASS_END] == [(100.0, PASS_END)]
    assert [event.a for event in events if event.kind == EventKind.RANK_END] == [0]
    assert not [event for event in events if event.request >= 0]


def test_machine_15_queued_cancellation_beats_an_overdue_pass_end() -> None:
    shell = make_shell(100.0)
    shell.put(submit(0, 0, 4, 1))
    shell.run()
    shell.events()
    shell.now_ms = 200.0
    shell.put(cancel(99, 0, discard=True))
    shell.run()
    assert [g.stimulus for g in shell.recording[-4:]] == ["cancel_item", "published", "pass_timer", "published"]
    assert shell.replies[-1] == (99, True, "noop")
    command = shell.events()[0]
    assert (command.d, command.a, command.c) == (
        99, CommandKind.CANCEL, CommandFlag.IN_PASS | CommandFlag.SUPPRESSED,
    )  # fmt: skip
    assert not [event for event in shell.events() if event.kind == EventKind.FIRST_TOKEN]


@pytest.mark.parametrize("discard", [False, True], ids=["16_noop", "17_noop_with_discard"])
def test_machine_cancellation_of_a_request_that_has_ended(discard: bool) -> None:
    """16 and 17: its only output was computed when the pass started; it is no longer owned."""
    shell = make_shell(100.0)
    shell.put(submit(0, 0, 4, 1))
    shell.run()
    shell.events()
    shell.put(cancel(1, 0, discard=discard))
    shell.run(100.0)
    events = shell.events()
    assert (events[0].b, bool(events[0].c & CommandFlag.SUPPRESSED)) == (CommandResult.NOOP, discard)
    assert sum(event.kind == EventKind.FIRST_TOKEN for event in events) == (not discard)
    assert [event.a for event in events if event.kind == EventKind.TERMINAL] == [
        TerminalStatus.CANCELLED if discard else TerminalStatus.COMPLETED
    ]


def test_machine_21_cancellation_does_not_end_a_pass_early() -> None:
    shell = make_shell(100.0)
    shell.put(submit(0, 0, 4, 2), submit(1, 1, 4, 1))
    shell.run(50.0)
    shell.events()
    shell.put(cancel(2, 0))
    shell.run(99.0)
    command, gauges, end = shell.events()
    assert (command.b, command.c) == (CommandResult.APPLIED, CommandFlag.IN_PASS | CommandFlag.SUPPRESSED)
    assert (gauges.kind, gauges.c, gauges.d) == (EventKind.GAUGES, 0, 0)
    assert end.request == 0
    shell.run(100.0)
    events = shell.events()
    assert [event.request for event in events if event.kind == EventKind.FIRST_TOKEN] == [1]
    assert [event.a for event in events if event.kind == EventKind.RANK_END] == [1]


def test_machine_22_zero_duration_loop_yields() -> None:
    shell = make_shell(0.0)
    shell.put(submit(0, 0, 4, 32))
    shell.run()
    yields = 0
    for _ in range(3):
        shell.boundary.append("finish")
        while shell.machine.phase_name != "yield":
            shell.take()
        assert shell.machine.wants() == ("yielded",)
        yields += 1
        shell.run()
    shell.boundary.append("finish")
    while shell.machine.phase_name != "yield":
        shell.take()
    shell.token = True
    shell.run()
    assert (yields, shell.steps[-1].stopped, shell.steps[-1].error) == (3, True, None)
    assert {record.t_ms for record in read_records(shell.machine.out)} == {0.0}


def test_a_pass_with_duration_does_not_yield() -> None:
    shell = first_pass_over(3)
    finish(shell)
    assert "yielded" not in [g.stimulus for g in shell.recording]


# -- companions: the engine behind the machine ------------------------------------------------------------


def test_idle_siblings_cross_the_boundary_too() -> None:
    shell = make_shell(100.0, dp_size=2, want=WANT_FPM)
    shell.put(submit(0, 0, 4, 1, rank=1))
    shell.run(100.0)
    events = shell.events()
    assert [event.rank for event in events if event.kind == EventKind.RANK_START] == [1]
    assert [event.rank for event in events if event.kind == EventKind.RANK_END] == [0, 1]
    assert next(event.words[1:] for event in events if event.kind == EventKind.FPM) == (0,) * 13


def waves(shell: Shell) -> list[int]:
    return [event.c for event in shell.events(PASS_START)]


def test_the_group_step_number_is_shared_and_restarts_after_a_drain() -> None:
    shell = make_shell(10.0, dp_size=2)
    shell.finishing = True
    shell.put(submit(0, 0, 4, 3, rank=0), submit(1, 1, 4, 2, rank=1))
    shell.run(100.0)
    assert waves(shell) == [0, 1, 2]
    shell.put(submit(2, 2, 4, 2))
    shell.run(150.0)
    assert waves(shell) == [0, 1]


def test_the_group_step_number_restarts_after_a_cancellation_that_drains() -> None:
    shell = make_shell(10.0, dp_size=2)
    shell.put(submit(0, 0, 4, 9))
    shell.run(10.0)
    finish(shell)
    shell.run(20.0)
    assert waves(shell) == [0, 1]
    shell.put(cancel(1, 0))
    finish(shell)
    shell.put(submit(2, 1, 4, 1))
    shell.run()
    assert waves(shell) == [0]


def test_a_submission_deferred_over_a_drain_keeps_the_group_step_number() -> None:
    """Handed over at once it would have been in the queue when the pass ended."""
    shell = make_shell(10.0, dp_size=2)
    shell.finishing = True
    shell.put(submit(0, 0, 4, 1))
    shell.run(5.0)
    shell.put(submit(1, 1, 4, 1))
    shell.run(15.0)
    assert waves(shell) == [0, 1]


@pytest.mark.parametrize("arrival_ms", [10.0, 11.0])
def test_a_submission_at_the_pass_end_or_later_comes_after_the_drain(arrival_ms: float) -> None:
    shell = make_shell(10.0, dp_size=2)
    shell.finishing = True
    shell.put(submit(0, 0, 4, 1))
    shell.run(9.0)
    shell.now_ms = arrival_ms
    shell.put(submit(1, 1, 4, 1))
    shell.run(arrival_ms)
    assert waves(shell) == [0, 0]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (submit(5, 0, 4, 1), "request is already active"),
        (submit(5, 9, 4, 1, rank=2), "attention-DP rank is out of range"),
        (submit(5, 9, 4, 1, rank=-1), "attention-DP rank is out of range"),
        (cancel(5, 0, rank=2), "attention-DP rank is out of range"),
        (submit(5, 9, 9, 1, hash_ids=[1, 2]), "a length is negative or the hash ids do not cover the prompt"),
        (submit(5, 9, 4, -1), "a length is negative or the hash ids do not cover the prompt"),
        (submit(5, 9, -1, 1), "a length is negative or the hash ids do not cover the prompt"),
    ],
)
def test_a_refused_command_changes_nothing(command, text: str) -> None:
    shell = make_shell(10.0, dp_size=2)
    shell.put(submit(0, 0, 4, 3))
    shell.run(10.0)
    shell.events()
    shell.put(command)
    finish(shell)
    assert shell.replies[-1] == (5, False, text)
    events = shell.events()
    assert not [event for event in events if event.kind == COMMAND]
    assert [event.t_ms for event in events if event.kind == PASS_START] == [10.0]
    assert shell.steps[-1].error is None
