"""Cancellation: the table of the engine specification (section 7), what becomes of a pass in flight, failing passes."""

from __future__ import annotations

import math

import pytest

from mocker_replay._core.timing import TimingModel
from mocker_replay.events import CommandFlag, CommandResult, EventKind, TerminalReason, TerminalStatus
from tests.support.machines import (
    Record,
    Row,
    Shell,
    cancel,
    check_ranks,
    fixed,
    make_fleet,
    make_machine,
    push_rows,
    read_records,
    submit,
)  # fmt: skip

K = EventKind
IN_PASS, SUPPRESSED = CommandFlag.IN_PASS, CommandFlag.SUPPRESSED
NAN = pytest.approx(math.nan, nan_ok=True)


def make_shell(*, prefill_ms: float = 10.0, decode_ms: float = 10.0, **kwargs) -> Shell:
    """Passes of 10 ms; events so far are forgotten by the first `events` of the test."""
    return Shell(make_machine(timing=fixed(prefill_ms, decode_ms), **kwargs))


def give(shell: Shell, *commands) -> list[Record]:
    """The records of commands put at the present time."""
    shell.events()
    shell.put(*commands)
    shell.run()
    check_ranks([shell.machine])
    return shell.events()


def head(records: list[Record]) -> tuple[CommandResult, int]:
    """Result and flags of the command the records begin with; gauges stand directly behind it."""
    assert (records[0].kind, records[1].kind) == (K.COMMAND, K.GAUGES)
    return CommandResult(records[0].b), records[0].c


def end_of(records: list[Record]) -> tuple[int, int, int, float]:
    """(status, tokens, reason, last token) of the one terminal record, behind the gauges."""
    (end,) = [record for record in records if record.kind == K.TERMINAL]
    assert records.index(end) == 2
    return end.a, end.b, end.c, end.x


CANCELLED, CLIENT = TerminalStatus.CANCELLED, TerminalReason.CLIENT


# -- the table --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discard", [False, True])
def test_owned_and_idle_pass_is_applied(discard: bool) -> None:
    """Between passes: a request that has decoded for two passes."""
    shell = make_shell()
    shell.finishing = False
    shell.put(submit(0, 0, 8, 5))
    shell.run(10.0)
    shell.boundary.append("finish")
    shell.run(20.0)
    shell.events()
    shell.boundary.append("finish")
    shell.put(cancel(1, 0, discard=discard))
    shell.run()
    records = shell.events()
    assert head(records) == (CommandResult.APPLIED, 0)
    assert end_of(records) == (CANCELLED, 2, CLIENT, 20.0)
    assert (records[1].a, records[1].c, records[1].d) == (0, 0, 0)
    assert shell.machine.phase_name == "idle"


@pytest.mark.parametrize("discard", [False, True])
def test_owned_with_outputs_in_flight_is_applied_and_they_are_dropped(discard: bool) -> None:
    shell = make_shell()
    shell.put(submit(0, 0, 8, 5))
    shell.run(25.0)
    records = give(shell, cancel(1, 0, discard=discard))
    assert head(records) == (CommandResult.APPLIED, IN_PASS | SUPPRESSED)
    assert end_of(records) == (CANCELLED, 2, CLIENT, 20.0)
    assert {record.t_ms for record in records} == {20.0}, "stamped with the start of the pass"
    shell.run(30.0)
    (rank_end,) = shell.events(K.RANK_END)
    assert (rank_end.a, rank_end.b, rank_end.c, rank_end.e) == (0, 0, 0, 0)


@pytest.mark.parametrize("discard", [False, True])
def test_owned_without_outputs_in_flight_is_applied(discard: bool) -> None:
    """A prompt in chunks: the pass in flight computes but gives no token."""
    shell = make_shell(max_num_batched_tokens=6)
    shell.put(submit(0, 0, 16, 5))
    shell.run(5.0)
    records = give(shell, cancel(1, 0, discard=discard))
    assert head(records) == (CommandResult.APPLIED, IN_PASS)
    assert end_of(records) == (CANCELLED, 0, CLIENT, NAN)
    assert (records[1].a, records[1].b) == (0, 1), "the block that was full stays cached, the rest is free"
    shell.run(10.0)
    (rank_end,) = shell.events(K.RANK_END)
    assert (rank_end.a, rank_end.d) == (0, 6), "the work of the pass was done all the same"


def test_ended_with_outputs_in_flight_without_discard_is_a_noop() -> None:
    shell = make_shell()
    shell.put(submit(0, 0, 8, 3))
    shell.run(25.0)
    records = give(shell, cancel(1, 0))
    assert head(records) == (CommandResult.NOOP, IN_PASS)
    assert len(records) == 2
    shell.run(30.0)
    (end,) = shell.events(K.TERMINAL)
    assert (end.a, end.b, end.x) == (TerminalStatus.COMPLETED, 3, 30.0)


def test_ended_with_outputs_in_flight_and_discard_loses_them() -> None:
    shell = make_shell()
    shell.put(submit(0, 0, 8, 3), submit(1, 1, 8, 9))
    shell.run(25.0)
    records = give(shell, cancel(2, 0, discard=True))
    assert head(records) == (CommandResult.NOOP, IN_PASS | SUPPRESSED)
    assert end_of(records) == (CANCELLED, 2, CLIENT, 20.0)
    shell.run(30.0)
    (rank_end,) = shell.events(K.RANK_END)
    assert (rank_end.a, rank_end.b, rank_end.c, rank_end.e) == (1, 1, 1, 1), "only the other one emits"
    assert len(give(shell, cancel(3, 0, discard=True))) == 2, "a second order finds nothing"


def test_its_first_token_in_flight_and_discard_leaves_no_time() -> None:
    shell = make_shell()
    shell.put(submit(0, 0, 8, 1))
    shell.run(5.0)
    assert end_of(give(shell, cancel(1, 0, discard=True))) == (CANCELLED, 0, CLIENT, NAN)


@pytest.mark.parametrize("discard", [False, True])
@pytest.mark.parametrize("when_ms", [5.0, 45.0])
def test_unknown_or_long_ended_is_a_noop(discard: bool, when_ms: float) -> None:
    shell = make_shell()
    shell.put(submit(0, 0, 8, 1), submit(1, 1, 8, 3))
    shell.run(when_ms)
    in_pass = IN_PASS if when_ms < 30.0 else 0
    assert head(give(shell, cancel(2, 77, discard=discard))) == (CommandResult.NOOP, in_pass)
    if when_ms > 30.0:
        records = give(shell, cancel(3, 0, discard=discard))
        assert (head(records), len(records)) == ((CommandResult.NOOP, 0), 2)


def test_discard_of_a_request_that_ended_before_the_pass_its_rank_sits_out() -> None:
    """The rank's records of its last pass are not those of the pass in flight."""
    shell = make_shell(dp_size=2)
    shell.put(submit(0, 0, 4, 1, rank=0), submit(1, 1, 4, 3, rank=1))
    shell.run(15.0)
    records = give(shell, cancel(2, 0, rank=0, discard=True))
    assert (head(records), len(records)) == ((CommandResult.NOOP, IN_PASS), 2)
    shell.run(100.0)
    assert [event.request for event in read_records(shell.machine.out) if event.kind == K.TERMINAL] == [0, 1]


def test_a_rejection_in_flight_is_an_output_too() -> None:
    shell = make_shell(num_gpu_blocks=4, prefill_ms=10.0)
    shell.put(submit(0, 0, 4, 2), submit(1, 1, 40, 2))
    shell.run(5.0)
    records = give(shell, cancel(2, 1, discard=True))
    assert head(records) == (CommandResult.NOOP, IN_PASS | SUPPRESSED)
    assert end_of(records) == (CANCELLED, 0, CLIENT, NAN)
    shell.run(10.0)
    assert [event.request for event in shell.events(K.TERMINAL, K.FIRST_TOKEN)] == [0]


# -- requests in every state ------------------------------------------------------------------------------


def test_waiting() -> None:
    shell = make_shell(max_num_seqs=1)
    shell.put(submit(0, 0, 8, 5), submit(1, 1, 8, 5), submit(2, 2, 8, 1))
    shell.run(15.0)
    records = give(shell, cancel(3, 1))
    assert head(records) == (CommandResult.APPLIED, IN_PASS)
    assert end_of(records) == (CANCELLED, 0, CLIENT, NAN)
    assert (records[1].c, records[1].d) == (1, 1)
    shell.run(200.0)
    assert [event.request for event in shell.events(K.TERMINAL)] == [0, 2]


def test_steady_neighbours_go_on() -> None:
    """Requests that decode by calendar leave it when one of them is cancelled, and nothing of theirs changes."""
    shell = make_shell(prefill_ms=10.0, decode_ms=1.0)
    shell.put(*(submit(i, i, 4 + i, 30) for i in range(4)))
    shell.run(20.5)
    assert shell.machine.engine.schedulers[0].num_steady == 4
    assert end_of(give(shell, cancel(9, 1))) == (CANCELLED, 11, CLIENT, 20.0)
    assert shell.machine.engine.schedulers[0].num_steady == 0
    shell.run(23.0)
    assert shell.machine.engine.schedulers[0].num_steady == 3
    shell.run(100.0)
    records = shell.events(K.TERMINAL, K.RESUMED)
    assert [(record.kind, record.request, record.t_ms) for record in records] == [
        (K.TERMINAL, 0, 39.0), (K.TERMINAL, 2, 39.0), (K.TERMINAL, 3, 39.0),
    ]  # fmt: skip


def test_in_the_middle_of_its_chunks_others_keep_theirs() -> None:
    shell = make_shell(max_num_batched_tokens=6)
    shell.put(submit(0, 0, 16, 1), submit(1, 1, 8, 1))
    shell.run(15.0)
    assert end_of(give(shell, cancel(2, 0))) == (CANCELLED, 0, CLIENT, NAN)
    shell.run(100.0)
    assert [event.request for event in shell.events(K.TERMINAL)] == [1]


def preempted_shell() -> tuple[Shell, int]:
    """Three requests in too small a pool, at the moment the third lost its blocks; the number of tokens it had."""
    shell = Shell(make_machine(timing=fixed(), num_gpu_blocks=10))
    shell.put(submit(0, 0, 8, 12), submit(1, 1, 9, 12), submit(2, 2, 10, 12))
    shell.run()
    while not (found := shell.events(K.PREEMPTION)):
        shell.run(shell.next_deadline())
    (preemption,) = found
    assert (preemption.request, preemption.b) == (2, 1)
    return shell, preemption.a


def test_preempted() -> None:
    shell, tokens = preempted_shell()
    records = give(shell, cancel(3, 2))
    assert head(records) == (CommandResult.APPLIED, IN_PASS)
    status, shown, _, last_ms = end_of(records)
    assert (status, shown) == (CANCELLED, tokens)
    assert last_ms == shell.machine.engine.pass_start_ms
    assert (records[1].c, records[1].d) == (2, 0)
    shell.run(1_000.0)
    assert [event.request for event in shell.events(K.TERMINAL)] == [0, 1]


def test_running_when_somebody_waits_for_its_blocks() -> None:
    shell, _ = preempted_shell()
    give(shell, cancel(3, 0), cancel(4, 1))
    shell.run(1_000.0)
    events = shell.events(K.ADMISSION, K.RESUMED, K.TERMINAL)
    assert [event.kind for event in events] == [K.ADMISSION, K.RESUMED, K.TERMINAL]
    assert (events[0].b, events[2].b) == (1, 12)


def test_resumed_and_ending_in_the_pass_in_flight_keeps_the_time_before_its_preemption() -> None:
    """Request 1 got a token at 10, lost its blocks in the next pass, and gets its last one in the pass from 13."""
    shell = Shell(make_machine(timing=fixed(), num_gpu_blocks=3))
    shell.put(submit(0, 0, 4, 4), submit(1, 1, 4, 2))
    shell.run(13.5)
    story = [(event.kind, event.t_ms) for event in shell.events() if event.request == 1]
    assert story[-3:] == [(K.FIRST_TOKEN, 10.0), (K.PREEMPTION, 10.0), (K.ADMISSION, 13.0)]
    records = give(shell, cancel(9, 1, discard=True))
    assert head(records) == (CommandResult.NOOP, IN_PASS | SUPPRESSED)
    assert end_of(records) == (CANCELLED, 1, CLIENT, 10.0)


def test_burst_of_drafts() -> None:
    """All tokens of a burst in flight are taken back."""
    shell = make_shell(accept_rates=(1.0, 1.0, 1.0))
    shell.put(submit(0, 0, 8, 14), submit(1, 1, 8, 14))
    shell.run(25.0)
    assert end_of(give(shell, cancel(2, 0))) == (CANCELLED, 4, CLIENT, 20.0)
    shell.run(30.0)
    (rank_end,) = shell.events(K.RANK_END)
    assert (rank_end.a, rank_end.b, rank_end.c, rank_end.e) == (4, 1, 1, 1)


def test_a_request_can_be_submitted_again_after_its_cancellation() -> None:
    shell = make_shell()
    shell.put(submit(0, 0, 8, 5))
    shell.run(15.0)
    give(shell, cancel(1, 0))
    shell.put(submit(2, 0, 8, 1))
    shell.run(100.0)
    assert [reply[1:] for reply in shell.replies] == [(True, "submitted"), (True, "applied"), (True, "submitted")]
    assert [event.b for event in shell.events(K.TERMINAL)] == [1]


# -- a pass that fails ------------------------------------------------------------------------------------


class FailsAt:
    """Answers 10 ms, and raises at its n-th question."""

    def __init__(self, n: int, error: Exception) -> None:
        self.left, self.error = n, error

    def prefill(self, *args: int) -> float:
        if self.left == 0:
            raise self.error
        self.left -= 1
        return 10.0

    decode = prefill


@pytest.mark.parametrize("n", [0, 1, 2])
def test_step_names_the_first_cause_and_the_machine_is_over(n: int) -> None:
    timing = TimingModel("callback", callback=FailsAt(n, ZeroDivisionError("a rate of 0")))
    shell = Shell(make_machine(timing=timing))
    shell.put(submit(0, 0, 8, 5))
    shell.run(100.0)
    step = shell.steps[-1]
    assert (step.stopped, step.error, step.wants) == (True, "ZeroDivisionError: a rate of 0", ())
    assert shell.machine.engine.poisoned
    assert not shell.machine.engine.in_pass
    assert len(shell.events(K.PASS_START)) == n, "nothing of the pass that failed is shown"


def test_a_duration_out_of_range_poisons_as_well() -> None:
    timing = TimingModel("fixed", prefill_ms=10.0, decode_ms=1e300)
    shell = Shell(make_machine(timing=timing))
    shell.put(submit(0, 0, 8, 5))
    shell.run(100.0)
    assert shell.steps[-1].error == "EngineError: decode duration out of range: 1 requests, 9 tokens"


def test_deferred_commands_of_a_machine_that_failed_are_answered() -> None:
    timing = TimingModel("callback", callback=FailsAt(1, ZeroDivisionError("mine")))
    shell = Shell(make_machine(timing=timing), finishing=False)
    shell.put(submit(0, 0, 8, 5))
    shell.run(5.0)
    shell.put(submit(1, 1, 8, 5))
    shell.run(10.0)
    shell.boundary.append("finish")
    shell.run()
    assert shell.steps[-1].stopped
    assert shell.replies == [(0, True, "submitted"), (1, True, "submitted")]


@pytest.mark.parametrize("n", range(1, 10))
def test_cuts_after_a_failing_pass_count_what_was_shown(n: int) -> None:
    """Steady and other requests, a rejected one and one without output in the pass that fails."""
    fleet = make_fleet(timing=TimingModel("callback", callback=FailsAt(n, ZeroDivisionError("mine"))))
    found = [Row(0.0, 8, 9, (1, 2)), Row(0.0, 5, 9, (3, 4))]
    late = float(10 * max(0, n - 2))  # what arrives for the pass that fails
    push_rows(fleet, [*found, Row(late, 4 * 129, 3, tuple(range(129))), Row(late, 4, 0, (9,))])
    fleet.set_horizon(math.inf)
    with pytest.raises(ZeroDivisionError):
        fleet.advance(max_records=2**40)
    fleet.publish_cuts()
    records = read_records(fleet.out)
    ends = [event.t_ms for event in records if event.kind == K.PASS_END]
    assert [event.kind for event in records if event.kind in (K.PASS_START, K.PASS_END)] == [
        K.PASS_START, K.PASS_END,
    ] * len(ends)  # fmt: skip
    tokens = sum(event.a for event in records if event.kind == K.RANK_END)
    accounted = {event.request: event for event in records if event.kind in (K.TERMINAL, K.CUT)}
    assert sum(event.b if event.kind == K.TERMINAL else event.a for event in accounted.values()) == tokens
    arrived = {event.request for event in records if event.kind == K.ARRIVAL}
    assert set(accounted) == arrived
    assert sum(event.kind in (K.TERMINAL, K.CUT) for event in records) == len(arrived)
    for event in accounted.values():
        if event.kind == K.CUT and event.a > 0:
            assert event.x == ends[-1]
