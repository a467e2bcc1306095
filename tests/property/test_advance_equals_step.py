"""The bulk move of a machine against the same machine stepped by a shell; readings of any kind; recorded runs.

The shell is the one of the driver specification, section 11.2: it puts what is due on the lanes, takes the first
wanted stimulus that is there, and jumps to the next deadline.
"""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mocker_replay._core._testing import ScriptedEngine
from mocker_replay._core.driver import Machine
from mocker_replay._core.lanes import Command
from mocker_replay._core.timing import TimingModel
from mocker_replay._core.types import CommandError
from mocker_replay.events import EventKind
from tests.property.workloads import Timed, driven_engines
from tests.support.machines import Shell, buffer_bytes, check_ranks, make_machine, read_records, replay_steps, submit

many = settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def by_time(script: list[Timed]) -> list[tuple[float, list[Command]]]:
    """Commands in groups of one time."""
    groups = itertools.groupby(script, lambda timed: timed.at_ms)
    return [(at_ms, [timed.command for timed in group]) for at_ms, group in groups]


def just_before(at_ms: float) -> float:
    return max(0.0, math.nextafter(at_ms, -math.inf))


def stepped(shell: Shell, script: list[Timed]) -> None:
    """Drive the machine through the script, as the virtual shell does, until nothing moves it any more."""
    for at_ms, commands in by_time(script):
        shell.run(just_before(at_ms))
        shell.now_ms = at_ms
        shell.put(*commands)
        shell.run(at_ms)
    shell.run(math.inf)


def advanced(machine: Machine, script: list[Timed]) -> None:
    """The same script by the bulk move."""
    now_ms = 0.0
    for at_ms, commands in by_time(script):
        machine.advance(now_ms, just_before(at_ms))
        for command in commands:
            machine.enqueue(command)
        now_ms = machine.advance(at_ms, at_ms)
    machine.advance(now_ms, math.inf)


@given(driven_engines())
@many
def test_advance_equals_step(case) -> None:
    config, script = case
    shell, bulk = Shell(make_machine(**config)), make_machine(**config)
    stepped(shell, script)
    advanced(bulk, script)
    assert shell.machine.phase_name == bulk.phase_name == "idle"
    assert buffer_bytes(shell.machine.out) == buffer_bytes(bulk.out)
    assert (shell.machine.engine_ms, shell.machine.engine.pass_id) == (bulk.engine_ms, bulk.engine.pass_id)
    check_ranks([shell.machine, bulk])


@given(driven_engines(), st.lists(st.integers(0, 120).map(lambda n: n / 4.0), max_size=6))
@many
def test_advance_equals_step_with_internal_work(case, deadlines: list[float]) -> None:
    config, script = case
    shell = Shell(make_machine(engine_class=ScriptedEngine, **config))
    bulk = make_machine(engine_class=ScriptedEngine, **config)
    for machine in (shell.machine, bulk):
        machine.engine.deadlines[:] = deadlines
    stepped(shell, script)
    advanced(bulk, script)
    assert buffer_bytes(shell.machine.out) == buffer_bytes(bulk.out)
    work = [record for record in read_records(bulk.out) if record.kind == EventKind.INTERNAL_WORK]
    assert sum(record.a for record in work) == len(deadlines)


noise = st.lists(st.sampled_from([0.0, 0.0, 0.25, 3.0, 7.0, 40.0, -1.0, -8.0, -100.0]), min_size=1, max_size=30)


def noisy(config, script: list[Timed], shifts: list[float], seen_ms: list[float]) -> Shell:
    """A run whose readings are late by `shifts` in turn, or early: the clock jumps back."""
    shell = Shell(make_machine(**config))

    def reading_of(now_ms: float) -> float:
        seen_ms.append(shell.machine.engine_ms)
        return max(0.0, now_ms + shifts[len(seen_ms) % len(shifts)])

    shell.reading_of = reading_of
    stepped(shell, script)
    return shell


@given(driven_engines(), noise)
@many
def test_time_never_decreases_whatever_the_clock_says(case, shifts: list[float]) -> None:
    config, script = case
    seen_ms: list[float] = []
    shell = noisy(config, script, shifts, seen_ms)
    assert seen_ms == sorted(seen_ms)
    records = read_records(shell.machine.out)
    starts = [record.t_ms for record in records if record.kind == EventKind.PASS_START]
    assert starts == sorted(starts)
    times = [record.t_ms for record in records]
    assert times == sorted(times), "commands, passes and ends of one engine are in the order of their times"
    planned = {record.a: record.x for record in records if record.kind == EventKind.PASS_START}
    ended = {record.a: record.t_ms for record in records if record.kind == EventKind.PASS_END}
    assert planned == ended, "lateness never stretches a pass"
    check_ranks([shell.machine])


@given(driven_engines(), noise)
@many
def test_a_recording_replayed_gives_the_same_bytes(case, shifts: list[float]) -> None:
    """Guarantee A on the machine: it is a function of its stimuli and readings."""
    config, script = case
    shell = noisy(config, script, shifts, [])
    again = make_machine(**config)
    steps = replay_steps(again, shell.recording)
    assert buffer_bytes(again.out) == buffer_bytes(shell.machine.out)
    assert steps == shell.steps


@given(driven_engines(), st.integers(0, 12))
@many
def test_a_failing_pass_stops_both_in_the_same_state(case, num_good: int) -> None:
    """A timing model of the user's raises at its n-th question: no half group is left, and both stop there."""
    config, script = case

    class Fails:
        def __init__(self) -> None:
            self.left = num_good

        def prefill(self, *args: int) -> float:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("on order")
            return 2.5

        decode = prefill

    config = {**config, "timing": TimingModel("callback", callback=Fails())}
    shell = Shell(make_machine(**config))
    stepped(shell, script)
    config["timing"] = TimingModel("callback", callback=Fails())
    bulk = make_machine(**config)
    if shell.steps[-1].stopped:
        assert shell.steps[-1].error == "RuntimeError: on order"
        with pytest.raises(RuntimeError, match="on order"):
            advanced(bulk, script)
        assert bulk.engine.poisoned
        assert bulk.phase_name == "stopped"
        open_groups = 0
        for record in read_records(bulk.out):
            open_groups += record.kind in (EventKind.PASS_START, EventKind.PASS_END)
            open_groups -= record.kind in (EventKind.PASS_START_CLOSE, EventKind.PASS_END_CLOSE)
            assert open_groups in (0, 1)
        assert open_groups == 0
    else:
        advanced(bulk, script)
    assert buffer_bytes(shell.machine.out) == buffer_bytes(bulk.out)


def test_the_bulk_move_raises_a_refusal_because_nobody_reads_replies() -> None:
    machine = make_machine()
    machine.enqueue(submit(0, 0))
    machine.enqueue(submit(1, 0))
    with pytest.raises(CommandError, match="command 1: request is already active"):
        machine.advance(0.0, math.inf)
    assert machine.phase_name == "stopped"
    assert not machine.engine.poisoned
    before = buffer_bytes(machine.out)
    assert machine.advance(0.0, math.inf) == 0.0
    assert buffer_bytes(machine.out) == before, "a stopped machine does not move"
