"""Clients that go away, in virtual time: when their cancellation is on its lane, and what follows from it.

Passes take 10 ms while a prompt is computed and 1 ms after; rows of four tokens that share nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mocker_replay._core.fleet import Fleet
from mocker_replay.events import CommandFlag, CommandKind, EventKind, TerminalStatus
from tests.support.machines import Row, fixed, make_fleet, push_rows, read_records

K = EventKind
IN_PASS, SUPPRESSED = CommandFlag.IN_PASS, CommandFlag.SUPPRESSED


def row(due_ms: float, cancel_after_ms: float = math.inf, *, n_out: int = 9, key: int, **fields: Any) -> Row:
    return Row(due_ms, 4, n_out, (key,), cancel_after_ms=cancel_after_ms, **fields)


def finished(rows: list[Row], **settings: Any) -> Fleet:
    """A fleet that ran to its end; follow-ups are none."""
    fleet = make_fleet(**settings)
    push_rows(fleet, rows)
    fleet.set_horizon(math.inf)
    assert fleet.advance(max_records=2**40) == "done"
    return fleet


def commands(fleet: Fleet) -> list[tuple[str, int, float, int]]:
    """(kind, request, time, flags) of the commands that were applied."""
    return [
        (CommandKind(r.a).name.lower(), r.request, r.t_ms, r.c) for r in read_records(fleet.out) if r.kind == K.COMMAND
    ]


def cancels(fleet: Fleet) -> list[tuple[int, float, int]]:
    return [found[1:] for found in commands(fleet) if found[0] == "cancel"]


def ends(fleet: Fleet) -> dict[int, tuple[TerminalStatus, float, int]]:
    """Status, time and tokens of each request."""
    return {r.request: (TerminalStatus(r.a), r.t_ms, r.b) for r in read_records(fleet.out) if r.kind == K.TERMINAL}


def starts(fleet: Fleet) -> list[float]:
    return [r.t_ms for r in read_records(fleet.out) if r.kind == K.PASS_START]


# -- when ---------------------------------------------------------------------------------------------------


def test_in_mid_pass_it_is_applied_at_once_and_stamped_with_the_start_of_the_pass() -> None:
    fleet = finished([row(0.0, 12.5, key=1), row(0.0, n_out=4, key=2)])
    assert cancels(fleet) == [(0, 12.0, IN_PASS | SUPPRESSED)]
    assert ends(fleet)[0] == (TerminalStatus.CANCELLED, 12.0, 3)
    assert starts(fleet) == [0.0, 10.0, 11.0, 12.0], "the pass in flight keeps its end"


def test_at_a_pass_end_it_comes_after_what_the_pass_shows_and_before_the_next_start() -> None:
    fleet = finished([row(0.0, 12.0, key=1)])
    assert cancels(fleet) == [(0, 12.0, 0)]
    assert ends(fleet)[0] == (TerminalStatus.CANCELLED, 12.0, 3)
    assert starts(fleet) == [0.0, 10.0, 11.0]


def test_of_a_request_that_ended_nothing_is_left() -> None:
    """Neither a command nor an instant of its own: the end of the run is that of the last pass."""
    for patience_ms in (12.0, 12.1, 500.0):  # the third token comes at 12, first of all things of that instant
        fleet = finished([row(0.0, patience_ms, n_out=3, key=1)])
        assert cancels(fleet) == []
        assert ends(fleet)[0] == (TerminalStatus.COMPLETED, 12.0, 3)
        assert (fleet.last_event_ms, fleet.next_due_ms) == (12.0, math.inf)


def test_a_request_that_computed_its_last_token_in_the_pass_in_flight_has_not_ended() -> None:
    fleet = finished([row(0.0, 11.5, n_out=3, key=1)])
    assert cancels(fleet) == [(0, 11.0, IN_PASS | SUPPRESSED)]
    assert ends(fleet)[0] == (TerminalStatus.CANCELLED, 11.0, 2)


def test_an_instant_of_its_own_is_an_event() -> None:
    fleet = finished([row(0.0, 3.0, key=1), row(0.0, n_out=1, key=2)], num_workers=2)
    assert cancels(fleet) == [(0, 0.0, IN_PASS | SUPPRESSED)]
    assert fleet.worker_seconds == pytest.approx(2 * 0.01, abs=1e-15)
    assert fleet.last_event_ms == 10.0
    late = make_fleet()
    push_rows(late, [row(0.0, 3.0, key=1)])
    late.set_horizon(math.inf)
    assert late.advance(3.0) == "until"
    assert (late.now_ms, late.last_event_ms) == (3.0, 3.0)


# -- a submission that was not applied yet ------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1, 2])
def test_in_mid_pass_it_waits_until_the_submission_is_applied(position: int) -> None:
    """Whether the submission is deferred or behind another one on the lane, it never enters a pass."""
    arriving = [row(5.0, 2.0 if i == position else math.inf, n_out=1, key=i + 2) for i in range(3)]
    fleet = finished([row(0.0, n_out=2, key=1), *arriving])
    gone = 1 + position
    assert cancels(fleet) == [(gone, 10.0, 0)]
    assert [name for name, *_ in commands(fleet)] == ["submit"] * 4 + ["cancel"], "all that waits is applied first"
    admitted = {r.request: r.t_ms for r in read_records(fleet.out) if r.kind == K.ADMISSION}
    assert admitted == {0: 0.0} | {request: 10.0 for request in (1, 2, 3) if request != gone}
    assert ends(fleet)[gone] == (TerminalStatus.CANCELLED, 10.0, 0)


def test_due_at_the_very_pass_end_it_follows_its_submission_too() -> None:
    fleet = finished([row(0.0, n_out=1, key=1), row(5.0, 5.0, key=2)])
    assert commands(fleet) == [("submit", 0, 0.0, 0), ("submit", 1, 10.0, 0), ("cancel", 1, 10.0, 0)]
    assert starts(fleet) == [0.0]


def test_no_patience_at_all_while_idle() -> None:
    """The first one goes before the pass; those behind it are heard in the pass, which they are part of."""
    fleet = finished([row(7.0, 0.0, key=i + 1) for i in range(3)])
    assert commands(fleet) == [
        ("submit", 0, 7.0, 0),
        ("cancel", 0, 7.0, 0),
        ("submit", 1, 7.0, 0),
        ("submit", 2, 7.0, 0),
        ("cancel", 1, 7.0, IN_PASS | SUPPRESSED),
        ("cancel", 2, 7.0, IN_PASS | SUPPRESSED),
    ]
    assert {status for status, *_ in ends(fleet).values()} == {TerminalStatus.CANCELLED}


def test_a_cut_counts_one_that_waits_for_admission_once() -> None:
    fleet = make_fleet()
    push_rows(fleet, [row(0.0, key=1), row(5.0, 1.0, key=2)])
    fleet.set_horizon(math.inf)
    assert fleet.advance(6.0) == "until"
    fleet.publish_cuts()
    records = read_records(fleet.out)
    assert [(r.request, r.t_ms) for r in records if r.kind == K.CUT] == [(0, 6.0), (1, 6.0)]
    assert cancels(fleet) == []


# -- order and consequences ---------------------------------------------------------------------------------


def test_order_at_one_instant_is_that_of_rows() -> None:
    """Of one due time; whoever arrived when."""
    rows = [row(0.0, 12.5, key=1), row(0.0, n_out=9, key=2), row(0.0, 12.5, key=3), row(0.0, 12.5, key=4)]
    fleet = make_fleet()
    for ordinal in (3, 1, 0, 2):
        push_rows(fleet, [rows[ordinal]], ordinal)
    fleet.set_horizon(math.inf)
    assert fleet.advance() == "done"
    assert [request for request, *_ in cancels(fleet)] == [0, 2, 3]


def test_it_comes_after_the_rows_of_its_instant_have_arrived() -> None:
    fleet = finished([row(0.0, 12.5, key=1), row(12.5, n_out=1, key=2)])
    at = [(r.kind, r.request) for r in read_records(fleet.out) if r.kind in (K.ARRIVAL, K.COMMAND)]
    assert at == [(K.ARRIVAL, 0), (K.COMMAND, 0), (K.ARRIVAL, 1), (K.COMMAND, 0), (K.COMMAND, 1)]


@pytest.mark.parametrize("patience_ms", [12.5, 12.0])
def test_the_workload_hears_of_it_at_its_instant(patience_ms: float) -> None:
    """Not at the time it is stamped with: what follows may join the next pass, or arrives in mid-pass."""
    fleet = make_fleet(wake_on_end=True)
    push_rows(fleet, [row(0.0, patience_ms, key=1), row(0.0, n_out=9, key=2)])
    fleet.set_horizon(math.inf)
    assert fleet.advance() == "ends"
    assert (fleet.now_ms, fleet.ended_requests()) == (patience_ms, [0])
    push_rows(fleet, [row(fleet.now_ms, n_out=1, key=3)], 2)
    while fleet.advance() == "ends":
        fleet.ended_requests()
    admitted = {r.request: r.t_ms for r in read_records(fleet.out) if r.kind == K.ADMISSION}
    assert admitted[2] == 13.0, "at 12 the machine had started its pass when the end was told"


def test_a_cancellation_that_empties_the_worker_begins_the_cadence_anew() -> None:
    """Two ranks; the group has made three passes when its last request goes, and a submission waits behind it."""
    fleet = finished([row(0.0, 12.0, key=1), row(11.5, n_out=1, key=2)], dp_size=2, interval=5)
    waves = [(r.t_ms, r.c) for r in read_records(fleet.out) if r.kind == K.PASS_START]
    assert waves == [(0.0, 0), (10.0, 1), (11.0, 2), (12.0, 0)]


def test_zero_length_passes_hear_it_before_they_end() -> None:
    fleet = finished([row(3.0, key=1), row(3.0, 0.0, n_out=500, key=2)], timing=fixed(0.0, 0.0))
    assert cancels(fleet) == [(1, 3.0, IN_PASS | SUPPRESSED)]
    assert ends(fleet)[0] == (TerminalStatus.COMPLETED, 3.0, 9)


def test_a_rejected_request_is_not_cancelled_and_one_in_flight_is() -> None:
    """A prompt over the model's length is refused in a pass of no length beside others of 10 ms."""
    settings = {"max_model_len": 6}
    late = finished([row(0.0, 10.0, n_out=1, key=1), Row(0.0, 8, 1, (7, 8), cancel_after_ms=10.0)], **settings)
    assert cancels(late) == []
    assert ends(late)[1][0] == TerminalStatus.REJECTED
    soon = finished([row(0.0, n_out=1, key=1), Row(0.0, 8, 1, (7, 8), cancel_after_ms=9.0)], **settings)
    assert cancels(soon) == [(1, 0.0, IN_PASS | SUPPRESSED)]
    assert ends(soon)[1][0] == TerminalStatus.CANCELLED


# -- what cannot be -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("patience_ms", [-0.5, math.nan, -math.inf])
def test_a_patience_that_is_none_is_refused(patience_ms: float) -> None:
    fleet = make_fleet()
    with pytest.raises(ValueError, match=r"^row 1: its client leaves after"):
        push_rows(fleet, [row(0.0, 5.0, key=1), row(0.0, patience_ms, key=2)])
    fleet.set_horizon(math.inf)
    assert fleet.advance() == "done"
    assert fleet.num_arrived == 0


def test_a_time_beyond_all_numbers_is_never() -> None:
    fleet = finished([row(1e308, 1e308, n_out=1, key=1), row(0.0, 1e308, n_out=1, key=2)])
    assert cancels(fleet) == []
    assert len(ends(fleet)) == 2


def test_the_column_fits_the_others() -> None:
    columns = [
        np.zeros(2), np.arange(2, dtype=np.int32), *(np.zeros(2, np.int64) for _ in range(3)),
        np.full(2, 4, np.int64), np.ones(2, np.int64), np.arange(3, dtype=np.int64), np.zeros(2, np.uint64),
    ]  # fmt: skip
    fleet = make_fleet()
    with pytest.raises(ValueError, match="columns of rows"):
        fleet.push_rows(*columns, np.zeros(1))
    fleet.push_rows(*columns)
    fleet.push_rows(*columns, None)
