"""The fleet as servant of shells of the caller's own: what it hands out, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mocker_replay._core.fleet import Fleet, Handed
from mocker_replay.events import EventKind
from tests.support.machines import OwnShells, Row, cancel, make_fleet, push_rows, read_records, submit

K = EventKind


def external(*rows: Row, **settings: Any) -> Fleet:
    fleet = make_fleet(external=True, **settings)
    push_rows(fleet, rows)
    fleet.set_horizon(math.inf)
    return fleet


def test_an_instant_told_step_by_step() -> None:
    """Two workers: both start out, the row is placed and worker 0 moves; then its pass ends, and it goes on alone."""
    fleet = external(Row(2.0, 4, 2, (1,), cancel_after_ms=11.0), num_workers=2)
    shells = OwnShells(fleet)
    told = []
    while (status := fleet.advance()) != "done":
        told.append((fleet.now_ms, status))
        if status == "move":
            told[-1] += (fleet.moving_worker, fleet.hold_boundary)
            shells.move()
        elif status == "place":
            shells.place()
        else:
            shells.cancel()
    assert told == [
        (0.0, "move", 0, True), (0.0, "move", 1, True), (0.0, "move", 0, False), (0.0, "move", 1, False),
        (2.0, "place"), (2.0, "move", 0, False), (2.0, "move", 1, False),
        (12.0, "move", 0, True), (12.0, "move", 0, False), (12.0, "move", 1, False),
        (13.0, "move", 0, True), (13.0, "move", 0, False), (13.0, "move", 1, False),
    ]  # fmt: skip
    assert fleet.moving_worker == -1
    assert [r.request for r in read_records(fleet.out) if r.kind == K.TERMINAL] == [0], "it ended at 13 by itself"


def test_a_row_as_it_is_handed_over() -> None:
    fleet = external(Row(2.0, 9, 5, (7, 8, 2**64 - 1), 3, 1, 4.5), num_workers=2, dp_size=2, telemetry=True)
    assert (fleet.next_due_ms, fleet.next_instant_ms, fleet.needs_rows) == (2.0, 0.0, False)
    with pytest.raises(ValueError, match="no row is due"):
        fleet.take_next()
    fleet.note_now(2.25)
    assert fleet.next_place == (0, 0)
    assert fleet.next_arrival() == (0, 9, [7, 8, 2**64 - 1])
    assert fleet.take_next(queued=3) == Handed(0, 0, 0, 9, 5, (7, 8, 2**64 - 1), 2.0, 6.5, 0, 2.0, math.inf)
    arrival, gauges = read_records(fleet.out)
    assert (arrival.kind, arrival.t_ms, arrival.worker, arrival.rank, arrival.request) == (K.ARRIVAL, 2.0, 0, 0, 0)
    assert (arrival.a, arrival.b, arrival.c, arrival.d) == (9, 5, 3, 1)
    assert (gauges.kind, gauges.t_ms, gauges.d, gauges.e) == (K.GAUGES, 2.25, 4, 1), "three wait on the lane before it"
    assert (fleet.num_arrived, fleet.next_due_ms) == (1, 6.5)


def test_a_row_that_arrives_late_keeps_its_patience() -> None:
    fleet = external(Row(2.0, 4, 5, (7,), cancel_after_ms=4.5), Row(2.0, 4, 5, (8,)), num_workers=2)
    fleet.note_now(3.0)
    assert fleet.take_next(at_ms=2.75).cancel_due_ms == 7.25
    assert fleet.next_due_ms == 2.0
    assert fleet.take_next().cancel_due_ms == math.inf
    assert [r.t_ms for r in read_records(fleet.out)] == [2.75, 2.0]
    with pytest.raises(ValueError, match="no cancellation is due"):
        fleet.take_cancel()
    fleet.note_now(7.25)
    assert fleet.take_cancel() == (0, 0, 0)
    assert fleet.next_due_ms == math.inf


def test_placement_is_the_fleet_s_round_robin_or_the_caller_s() -> None:
    fleet = external(*(Row(0.0, 4, 1, (i,)) for i in range(6)), num_workers=2, dp_size=2)
    fleet.note_now(0.0)
    placed = [fleet.take_next()[1:3], fleet.take_next()[1:3], fleet.take_next(1, 0)[1:3], fleet.take_next()[1:3]]
    assert placed == [(0, 0), (1, 0), (1, 0), (0, 1)], "a row the caller places uses no turn"
    for worker, rank in ((2, 0), (0, 2), (-1, 0), (0, -1), (-2, -2)):
        with pytest.raises(ValueError, match=f"no worker {worker} with rank {rank}"):
            fleet.take_next(worker, rank)
    with pytest.raises(ValueError, match="a row cannot arrive at"):
        fleet.take_next(at_ms=math.inf)
    with pytest.raises(ValueError, match="a row cannot arrive at"):
        fleet.take_next(at_ms=-1.0)
    assert fleet.num_arrived == 4


def test_shells_that_run_freely() -> None:
    """No `advance`: rows are taken when the clock says so, ends are heard of though the records are cleared."""
    rows = [Row(0.0, 4, 1, (1,), cancel_after_ms=30.0), Row(0.0, 4, 9, (2,), cancel_after_ms=30.0)]
    fleet = external(*rows, wake_on_end=True)
    shells = OwnShells(fleet)
    (shell,) = shells.shells
    fleet.note_now(0.5)
    shells.place()
    shells.place()
    shell.run(0.5)
    fleet.clear_events()
    shell.run(10.5)
    fleet.note_now(10.5)
    fleet.clear_events()
    assert len(fleet.out) == 0
    assert fleet.ended_requests() == [0]
    assert fleet.ended_requests() == []
    assert fleet.next_due_ms == 30.0
    shell.run(17.0)
    assert fleet.next_due_ms == 30.0
    fleet.note_now(30.0)
    shell.run(30.0)
    assert fleet.next_due_ms == math.inf, "the second one ended as well, whose records are still there"
    with pytest.raises(ValueError, match="no cancellation is due"):
        fleet.take_cancel()
    assert fleet.ended_requests() == [1]


def test_time_noted_moves_forward_only() -> None:
    fleet = external(num_workers=3)
    fleet.note_now(5.0)
    fleet.note_now(2.0)
    assert (fleet.now_ms, fleet.last_event_ms, fleet.worker_seconds) == (5.0, 5.0, 3 * 0.005)
    for ms in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="time must be finite and not negative"):
            fleet.note_now(ms)


def test_rows_behind_the_horizon() -> None:
    fleet = make_fleet(external=True)
    assert fleet.needs_rows
    push_rows(fleet, [Row(5.0, 4, 1, (1,)), Row(6.0, 4, 1, (2,))])
    fleet.set_horizon(6.0)
    assert not fleet.needs_rows
    fleet.note_now(5.0)
    fleet.take_next()
    assert fleet.needs_rows, "a row due at 6 as well may stand in the order before the one that is known"
    fleet.set_horizon(math.inf)
    assert not fleet.needs_rows


def test_cuts_worker_by_worker() -> None:
    """In the order of a fleet that moves its machines: engine, deferred, lane."""
    rows = [Row(0.0, 4, 9, (i,)) for i in range(2)] + [Row(5.0, 4, 9, (i,)) for i in range(2, 6)]
    fleet = external(*rows, num_workers=2)
    shells = OwnShells(fleet)
    while (status := fleet.advance(6.0)) != "until":
        shells.move() if status == "move" else shells.place()
    for worker, shell in enumerate(shells.shells):
        fleet.publish_cuts(worker)
        for command in shell.commands:
            fleet.publish_cut(command.request, worker, command.rank)
    cuts = [(r.worker, r.request, r.t_ms) for r in read_records(fleet.out) if r.kind == K.CUT]
    assert cuts == [(0, 0, 5.0), (0, 2, 5.0), (0, 4, 5.0), (1, 1, 5.0), (1, 3, 5.0), (1, 5, 5.0)]
    with pytest.raises(ValueError, match="no worker 2"):
        fleet.publish_cuts(2)


def test_each_kind_of_fleet_refuses_what_is_the_other_s() -> None:
    inside = make_fleet()
    assert not inside.external
    with pytest.raises(ValueError, match="the fleet moves its machines itself"):
        inside.take_next()
    with pytest.raises(ValueError, match="the fleet moves its machines itself"):
        inside.take_cancel()
    fleet = external(Row(0.0, 4, 1, (1,)))
    fleet.note_now(0.0)
    assert fleet.external
    with pytest.raises(ValueError, match="hands rows over by take_next"):
        fleet.place_next(0, 0)


# -- closed lanes, in the order of a machine's wants ---------------------------------------------------------


def test_a_closed_lane_counts_at_its_lane_s_place() -> None:
    """In mid-pass a closed cancellation lane beats the overdue pass end, a closed command lane does not."""
    for closed, phase in (("cancels_closed", "stopped"), ("commands_closed", "at_boundary")):
        (shell,) = OwnShells(external()).shells
        shell.finishing = False
        shell.put(submit(0, 0, 4, 3))
        shell.run()
        shell.closed_lanes.add(closed)
        shell.now_ms = 10.0
        assert shell.take() is not None
        assert shell.machine.phase_name == phase


def test_a_lane_that_is_not_read_is_not_found_closed() -> None:
    """A submission was deferred: the command lane is not looked at before the boundary."""
    (shell,) = OwnShells(external()).shells
    shell.put(submit(0, 0, 4, 3))
    shell.run()
    shell.put(submit(1, 1, 4, 3))
    shell.closed_lanes.add("commands_closed")
    shell.run()
    assert shell.machine.phase_name == "in_pass"
    assert "commands_closed" not in shell.machine.wants()
    shell.run(10.0)
    assert shell.machine.phase_name == "stopped", "the lane is found closed at once in the next pass"
    assert shell.steps[-1].error is None


@pytest.mark.parametrize("closed", ["cancels_closed", "commands_closed"])
def test_what_is_left_on_a_closed_lane_is_taken_first(closed: str) -> None:
    (shell,) = OwnShells(external()).shells
    shell.run()
    assert shell.machine.phase_name == "idle"
    shell.put(submit(0, 0, 4, 3), cancel(1, 7))
    shell.closed_lanes.add(closed)
    shell.run(50.0)
    assert shell.machine.phase_name == "stopped"
    assert [reply[0] for reply in shell.replies][:1] == [1], "the cancellation lane is the first to be read"
    assert (0 in [reply[0] for reply in shell.replies]) == (closed == "commands_closed")
