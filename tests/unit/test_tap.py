"""The tap writes steps in the form of the log, whatever came with them."""

from __future__ import annotations

import orjson
import pytest

from mocker_replay._core.lanes import Command
from mocker_replay.log.wall import StepTaken, WallRecorder, pack_step
from mocker_replay.replay.tap import _record
from mocker_replay.shells.realtime import Given

SUBMIT = Command(7, "submit", 3, 0, 8, 2, (1, 2))
CANCEL = Command(8, "cancel", 3, 0, discard=True)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (Given("go", 1.5, None, 0, 0), StepTaken(1, "go", 1.5)),
        (Given("lane_counts", 0.0, None, 2, 5), StepTaken(1, "lane_counts", 0.0, num_cancels=2, num_commands=5)),
        (Given("command_item", 2.0, SUBMIT, 0, 0), StepTaken(1, "command_item", 2.0, 7, 3)),
        (Given("cancel_item", 2.0, CANCEL, 0, 0), StepTaken(1, "cancel_item", 2.0, 8, 3, discard=True)),
        (Given("boundary_apply", 2.0, CANCEL, 0, 0), StepTaken(1, "boundary_apply", 2.0, 8, 3, discard=True)),
    ],
)
def test_a_step_is_recorded_as_the_log_packs_it(given: Given, taken: StepTaken) -> None:
    recorder = WallRecorder()
    _record(recorder, 1, given)
    assert orjson.loads(recorder.text(0.0))["steps"] == [pack_step(taken)]
