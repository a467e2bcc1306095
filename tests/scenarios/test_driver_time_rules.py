"""Driver scenarios about the two rules that pick a modelled time from the clock, as pure functions.

Source: driver specification, sections 6.1, 6.3 and 12.
"""

from __future__ import annotations

import pytest

from mocker_replay._core.time_rules import CATCH_UP_MS, internal_work_ms, pass_start_ms


@pytest.mark.parametrize(
    ("wall", "engine", "carried", "start"),
    [
        (12, 0, 10, 10),
        (15, 0, 10, 10),
        (15.000001, 0, 10, 15.000001 - 5.0),
        (30, 0, 10, 25),
        (30, 28, 10, 28),
        (100, 28, None, 100),
        (9, 0, 10, 10),
        (4, 0, 0, 0),
        (28, 100, None, 100),
    ],
)
def test_driver_01_start_selection_table(wall: float, engine: float, carried: float | None, start: float) -> None:
    assert CATCH_UP_MS == 5.0
    assert pass_start_ms(wall, engine, carried) == start


@pytest.mark.parametrize(
    ("wall", "engine", "deadline", "active", "at"),
    [
        (30, 10, 12, True, 12),
        (30, 15, 12, True, 15),
        (30, 10, 12, False, 30),
        (11, 10, 12, True, None),
        (11, 13, 12, True, 13),
        (11, 13, 12, False, 13),
        (12, 0, 12, False, 12),
    ],
)
def test_driver_02_internal_time_table(
    wall: float, engine: float, deadline: float, active: bool, at: float | None
) -> None:
    assert internal_work_ms(wall, engine, deadline, active) == at
