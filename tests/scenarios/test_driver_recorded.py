"""Guarantee A, scenario 40: what a realtime run recorded, given to a fresh machine, is the same run bit for bit.

Source: driver specification, sections 11.3 and 13.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_replay._core.driver import DriverMisuse
from mocker_replay.events import EventKind
from tests.support.busy import busy_processes, busy_thread
from tests.support.machines import buffer_bytes
from tests.support.player import Life, Player, RealHands, Script, VirtualHands, draw_script
from tests.support.recording import Taken, first_difference, run_again
from tests.support.virtual_loop import VirtualClock, run_virtual

NUM_SCRIPTS, SCRIPTS_A_TEST = 2_000, 250
NUM_REAL_SCRIPTS = 12
# Told by the shell, where the machine has said nothing.
SHELLS_OWN = ("control lane closed", "engine stopped before acknowledging")


def live(script: Script) -> Life:
    """A life on the controllable clock."""

    async def main(clock: VirtualClock) -> Life:
        return await Player(script, VirtualHands(clock)).play()

    return run_virtual(main, collect=False)


def assert_same_again(life: Life) -> None:
    again = run_again(life.script.fresh_machine(), life.recorder.steps)
    assert first_difference(again.steps, life.recorder.steps) is None
    heard = {number: answer for number, answer in life.answers.items() if answer[1] not in SHELLS_OWN}
    assert heard == {number: again.replies[number] for number in heard}


@pytest.mark.parametrize("first", range(0, NUM_SCRIPTS, SCRIPTS_A_TEST))
def test_driver_40_recorded_runs_of_random_scripts(first: int) -> None:
    seen: set[str] = set()
    for seed in range(first, first + SCRIPTS_A_TEST):
        script = draw_script(Random(seed))
        try:
            life = live(script)
            assert_same_again(life)
        except BaseException as error:
            error.add_note(f"script of seed {seed}: {script}")
            raise
        seen.update(life.recorder.stimuli)
        seen.update(EventKind(record.kind).name for record in life.received)
    # The scripts go everywhere; otherwise they prove little.
    assert seen >= {
        "cancel", "cancel_item", "command_item", "pass_timer", "internal_timer", "boundary_apply", "boundary_finish",
        "publish_closed", "yielded", "PREEMPTION", "INTERNAL_WORK", "ADMISSION", "TERMINAL", "FIRST_TOKEN",
    }  # fmt: skip


@given(st.randoms(use_true_random=False))
def test_driver_40_recorded_runs_of_scripts_that_shrink(random: Random) -> None:
    assert_same_again(live(draw_script(random, num_actions=25)))


@given(st.integers(0, 2**32))
def test_driver_40_a_script_is_one_run(seed: int) -> None:
    """Nothing but the script decides on the controllable clock: not the order of a set, not an address."""
    lives = [live(draw_script(Random(seed))) for _ in range(2)]
    assert first_difference(lives[0].recorder.steps, lives[1].recorder.steps) is None
    assert lives[0].answers == lives[1].answers
    assert repr(lives[0].received) == repr(lives[1].received)


# -- on the real clock, beside work ---------------------------------------------------------------------


@pytest.mark.parametrize("beside", [busy_thread, busy_processes], ids=["thread", "processes"])
def test_driver_40_recorded_runs_on_the_real_clock(beside: Callable[[], AbstractContextManager[None]]) -> None:
    async def main(script: Script) -> Life:
        return await Player(script, RealHands()).play()

    with beside():
        for seed in range(NUM_REAL_SCRIPTS):
            script = draw_script(Random(f"real {seed}"), scale=0.2)
            assert_same_again(asyncio.run(main(script)))


# -- the comparison can fail ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> Life:
    """A life with everything in it."""
    for seed in range(1_000):
        life = live(draw_script(Random(f"rich {seed}")))
        if {"boundary_apply", "command_item", "cancel_item", "internal_timer"} <= set(life.recorder.stimuli):
            return life
    raise AssertionError("no such script")


def differs(life: Life, steps: list[Taken]) -> bool:
    """Whether a rerun of these steps is noticed to be another run than the recorded one."""
    try:
        return run_again(life.script.fresh_machine(), steps).steps != life.recorder.steps
    except (DriverMisuse, ValueError):
        return True


def test_driver_40_a_reading_that_is_off_by_one_bit_is_noticed(recorded: Life) -> None:
    """Wherever the reading became the time of a record."""
    steps = recorded.recorder.steps
    machine = recorded.script.fresh_machine()
    noticed = 0
    for at, step in enumerate(steps):
        given = step.given
        machine.step(
            given.stimulus, given.reading_ms, command=given.command, num_cancels=given.num_cancels,
            num_commands=given.num_commands,
        )  # fmt: skip
        shows = given.reading_ms in machine.out.records_array()["t_ms"]
        machine.out.clear()
        if shows and given.stimulus in ("go", "command_item") and machine.engine_ms == given.reading_ms:
            late = given._replace(reading_ms=math.nextafter(given.reading_ms, math.inf))
            assert differs(recorded, [*steps[:at], step._replace(given=late), *steps[at + 1 :]])
            noticed += 1
    assert noticed


def test_driver_40_a_step_that_is_missing_is_noticed(recorded: Life) -> None:
    steps = recorded.recorder.steps
    for at in range(len(steps)):
        assert differs(recorded, [*steps[:at], *steps[at + 1 :]])


def test_driver_40_a_step_that_is_doubled_or_out_of_order_is_noticed(recorded: Life) -> None:
    steps = recorded.recorder.steps
    for at in range(len(steps) - 1):
        if steps[at].given.stimulus != "cancel":
            assert differs(recorded, [*steps[:at], steps[at], *steps[at:]])
        if steps[at].given != steps[at + 1].given:
            assert differs(recorded, [*steps[:at], steps[at + 1], steps[at], *steps[at + 2 :]])


def test_driver_40_another_command_is_noticed(recorded: Life) -> None:
    steps = recorded.recorder.steps
    for at, step in enumerate(steps):
        command = step.given.command
        if command is None:
            continue
        other = step.given._replace(command=command._replace(request=command.request + 500))
        assert differs(recorded, [*steps[:at], step._replace(given=other), *steps[at + 1 :]])


def test_driver_40_the_bytes_compared_are_those_of_the_machine(recorded: Life) -> None:
    """All records the consumer saw are in the recording, in order; nothing is compared that was empty."""
    machine = recorded.script.fresh_machine()
    steps = recorded.recorder.steps
    assert any(step.words for step in steps) or recorded.script.settings["want"] == 0
    rows = 0
    for step in run_again(machine, steps).steps:
        if step.given.stimulus != "boundary_apply":
            rows += len(step.records) // machine.out.records_array().dtype.itemsize
    assert rows >= len(recorded.received) > 0
    assert buffer_bytes(machine.out) == (b"", b"")
