"""The order of one instant: pass ends, what they make due, placement, pass starts, a sample; then time jumps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_replay._core.driver import Machine
from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.fleet import Fleet
from mocker_replay.events import EventKind
from tests.support.machines import Record, Row, fixed, make_fleet, make_machine, push_rows, read_records

K = EventKind


def row(due_ms: float, n_in: int = 4, n_out: int = 2, key: int = 0, **fields: Any) -> Row:
    return Row(due_ms, n_in, n_out, tuple(1_000 * key + i for i in range(-(-n_in // 4))), **fields)


def started(fleet: Fleet, rows: list[Row], *, horizon_ms: float = math.inf) -> Fleet:
    push_rows(fleet, rows)
    fleet.set_horizon(horizon_ms)
    return fleet


def story(records: list[Record], *kinds: EventKind) -> list[tuple[str, float, int, int]]:
    """(kind, time, worker, request) of the records of those kinds."""
    return [(r.kind.name, r.t_ms, r.worker, r.request) for r in records if r.kind in kinds]


def admitted_ms(fleet: Fleet) -> dict[int, float]:
    return {r.request: r.t_ms for r in read_records(fleet.out) if r.kind == K.ADMISSION}


# -- the order of one instant -----------------------------------------------------------------------------


def test_a_follow_up_joins_the_pass_of_another_worker_at_the_same_instant() -> None:
    """Both passes end at 10. The follow-up of worker 1's request goes to worker 0, whose boundary is still open."""
    fleet = started(make_fleet(num_workers=2, wake_on_end=True), [row(0.0, n_out=3, key=1), row(0.0, n_out=1, key=2)])
    assert fleet.advance() == "ends"
    assert (fleet.now_ms, fleet.ended_requests()) == (10.0, [1])
    before = len(fleet.out)
    push_rows(fleet, [row(10.0, n_out=1, key=3)], first=2)
    while fleet.advance() == "ends":
        fleet.ended_requests()
    records = read_records(fleet.out)
    assert story(records[:before], K.PASS_END) == [("PASS_END", 10.0, 0, -1), ("PASS_END", 10.0, 1, -1)]
    assert story(records[before:], K.ARRIVAL, K.COMMAND, K.PASS_START, K.ADMISSION)[:4] == [
        ("ARRIVAL", 10.0, 0, 2),
        ("COMMAND", 10.0, 0, 2),
        ("PASS_START", 10.0, 0, -1),
        ("ADMISSION", 10.0, 0, 2),
    ]


@pytest.mark.parametrize("dp_size", [1, 2])
def test_an_arrival_at_the_pass_end_joins_and_one_in_mid_pass_waits(dp_size: int) -> None:
    """It waits even for an idle rank of the worker."""
    fleet = started(
        make_fleet(dp_size=dp_size), [row(0.0, n_out=3, key=1), row(5.0, n_out=1, key=2), row(10.0, n_out=1, key=3)]
    )
    assert fleet.advance() == "done"
    assert admitted_ms(fleet) == {0: 0.0, 1: 10.0, 2: 10.0}
    arrivals = [r for r in read_records(fleet.out) if r.kind == K.ARRIVAL]
    assert [(r.t_ms, r.rank) for r in arrivals] == [(0.0, 0), (5.0, 1 % dp_size), (10.0, 0)]
    commands = [r.t_ms for r in read_records(fleet.out) if r.kind == K.COMMAND]
    assert commands == [0.0, 10.0, 10.0], "a submission in mid-pass is applied at the pass end"


def test_an_arrival_while_idle_starts_a_pass_at_once() -> None:
    fleet = started(make_fleet(), [row(0.0, n_out=1), row(123.25, n_out=1, key=2)])
    assert fleet.advance() == "done"
    assert admitted_ms(fleet) == {0: 0.0, 1: 123.25}


def test_a_thousand_rows_at_one_instant_are_all_known_before_the_pass() -> None:
    n = 1_000
    settings = {"num_gpu_blocks": 4_000, "max_num_seqs": None, "max_num_batched_tokens": None}
    for due_ms in (0.0, 5.0, 10.0):
        fleet = started(
            make_fleet(**settings), [row(0.0, n_out=2), *(row(due_ms, n_out=1, key=i + 1) for i in range(n))]
        )
        assert fleet.advance(max_records=2**40) == "done"
        starts = [r for r in read_records(fleet.out) if r.kind == K.RANK_START]
        joined = starts[0 if due_ms == 0.0 else 1]
        assert joined.a == n + 1
        assert set(admitted_ms(fleet).values()) == {0.0, joined.t_ms}


def test_workers_end_their_passes_before_anything_is_placed() -> None:
    fleet = started(make_fleet(num_workers=3), [row(0.0, key=i) for i in range(3)] + [row(10.0, key=9)])
    fleet.advance()
    at_ten = [r for r in read_records(fleet.out) if r.t_ms == 10.0]
    assert story(at_ten, K.PASS_END, K.ARRIVAL, K.PASS_START) == [
        ("PASS_END", 10.0, 0, -1),
        ("PASS_END", 10.0, 1, -1),
        ("PASS_END", 10.0, 2, -1),
        ("ARRIVAL", 10.0, 0, 3),
        ("PASS_START", 10.0, 0, -1),
        ("PASS_START", 10.0, 1, -1),
        ("PASS_START", 10.0, 2, -1),
    ]


def test_ends_are_told_in_the_order_of_workers_ranks_and_positions() -> None:
    rows = [row(0.0, n_out=1, key=i) for i in range(8)]
    fleet = started(make_fleet(num_workers=2, dp_size=2, wake_on_end=True), rows)
    assert fleet.advance() == "ends"
    # Placed on (worker, rank) in turn: (0,0) (1,0) (0,1) (1,1) (0,0) ...
    assert fleet.ended_requests() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert fleet.ended_requests() == []


def test_placement_is_round_robin_over_workers_then_ranks() -> None:
    fleet = started(make_fleet(num_workers=2, dp_size=2), [row(0.0, key=i) for i in range(6)])
    fleet.advance()
    placed = [(r.worker, r.rank) for r in read_records(fleet.out) if r.kind == K.ARRIVAL]
    assert placed == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 0), (1, 0)]


def test_the_caller_places() -> None:
    fleet = started(
        make_fleet(num_workers=2, dp_size=2, external_placement=True), [row(0.0, 9, key=1), row(5.0, 4, key=2)]
    )
    assert fleet.advance() == "place"
    assert fleet.next_arrival() == (0, 9, [1000, 1001, 1002])
    with pytest.raises(ValueError, match="no worker 2 with rank 0"):
        fleet.place_next(2, 0)
    with pytest.raises(ValueError, match="no worker 0 with rank 2"):
        fleet.place_next(0, 2)
    fleet.place_next(1, 1)
    with pytest.raises(ValueError, match="no row is due"):
        fleet.place_next(0, 0)
    assert fleet.advance() == "place"
    assert (fleet.now_ms, fleet.next_arrival()[0]) == (5.0, 1)
    fleet.place_next(0, 1)
    assert fleet.advance() == "done"
    assert [(r.worker, r.rank) for r in read_records(fleet.out) if r.kind == K.ARRIVAL] == [(1, 1), (0, 1)]


# -- passes of no length ----------------------------------------------------------------------------------


def test_passes_of_no_length_all_belong_to_their_instant() -> None:
    fleet = started(make_fleet(timing=fixed(0.0, 0.0)), [row(0.0, n_out=5), row(7.0, n_out=5, key=2)])
    assert fleet.advance(6.0) == "until"
    records = read_records(fleet.out)
    assert [r.a for r in records if r.kind == K.PASS_START] == [0, 1, 2, 3, 4]
    assert {r.t_ms for r in records} == {0.0}
    assert fleet.advance() == "done"
    assert {r.t_ms for r in read_records(fleet.out)} == {0.0, 7.0}


def test_what_ends_in_a_pass_of_no_length_may_bring_rows_of_that_instant() -> None:
    fleet = started(make_fleet(timing=fixed(0.0, 0.0), wake_on_end=True), [row(3.0, n_out=2)])
    told = []
    for follow_up in (1, 2, 3):
        assert fleet.advance() == "ends"
        told += fleet.ended_requests()
        push_rows(fleet, [row(3.0, n_out=2, key=follow_up)], first=follow_up)
    while fleet.advance() == "ends":
        told += fleet.ended_requests()
    assert told == [0, 1, 2, 3]
    assert {r.t_ms for r in read_records(fleet.out)} == {3.0}


# -- horizon, limit, fullness, samples --------------------------------------------------------------------


def test_rows_are_asked_for_before_an_instant_that_may_hold_more() -> None:
    fleet = make_fleet()
    assert fleet.advance() == "needs_rows"
    push_rows(fleet, [row(0.0, n_out=3), row(10.0, n_out=1, key=2)])
    fleet.set_horizon(10.0)  # more rows may be due at 10, none before
    assert fleet.advance() == "needs_rows"
    assert fleet.now_ms == 0.0, "the pass that ends at 10 is not ended: rows due then come first to be known"
    push_rows(fleet, [row(10.0, n_out=1, key=3)], first=2)
    fleet.set_horizon(math.inf)
    assert fleet.advance() == "done"
    assert admitted_ms(fleet) == {0: 0.0, 1: 10.0, 2: 10.0}


def test_an_empty_fleet_waits_for_rows_or_is_done() -> None:
    fleet = make_fleet()
    fleet.set_horizon(5.0)
    assert fleet.advance() == "needs_rows"
    fleet.set_horizon(math.inf)
    assert fleet.advance() == "done"
    assert fleet.idle
    assert (fleet.last_event_ms, fleet.worker_seconds, fleet.num_arrived) == (0.0, 0.0, 0)


@pytest.mark.parametrize(("until_ms", "passes_ended"), [(9.999, 0), (10.0, 1), (10.5, 1), (11.0, 2)])
def test_the_limit_is_processed_whole_and_nothing_after_it(until_ms: float, passes_ended: int) -> None:
    fleet = started(make_fleet(), [row(0.0, n_out=9)])
    assert fleet.advance(until_ms) == "until"
    records = read_records(fleet.out)
    assert sum(r.kind == K.PASS_END for r in records) == passes_ended
    assert sum(r.kind == K.PASS_START for r in records) == passes_ended + 1, "the next pass starts in that instant"
    assert fleet.advance(until_ms) == "until"
    assert len(fleet.out) == len(records)
    fleet.publish_cuts()
    (cut,) = [r for r in read_records(fleet.out) if r.kind == K.CUT]
    assert (cut.a, cut.t_ms) == (passes_ended, fleet.last_event_ms)


def test_cuts_include_what_waits_on_lanes() -> None:
    fleet = started(make_fleet(max_num_seqs=1), [row(0.0, key=i) for i in range(2)] + [row(4.0), row(5.0), row(50.0)])
    fleet.advance(6.0)
    fleet.publish_cuts()
    assert [r.request for r in read_records(fleet.out) if r.kind == K.CUT] == [0, 1, 2, 3]


def test_full_between_instants_only() -> None:
    fleet = started(make_fleet(), [row(0.0, n_out=4)])
    pieces = []
    while (status := fleet.advance(max_records=1)) == "full":
        pieces.append(read_records(fleet.out))
        fleet.clear_events()
    assert status == "done"
    assert [{r.t_ms for r in piece} for piece in pieces] == [{0.0}, {10.0}, {11.0}, {12.0}, {13.0}]
    whole = started(make_fleet(), [row(0.0, n_out=4)])
    assert whole.advance() == "done"
    # Payload offsets restart with each piece; the records are the same (NaN is not equal to itself).
    assert repr([r for piece in pieces for r in piece]) == repr(read_records(whole.out))


def test_a_sample_sees_its_instant_as_it_ends() -> None:
    fleet = started(make_fleet(telemetry=True), [row(0.0, n_out=3), row(10.0, n_out=1, key=2)])
    fleet.set_sample(10.0)
    assert fleet.advance() == "sample"
    assert fleet.now_ms == 10.0
    at_ten = [r for r in read_records(fleet.out) if r.t_ms == 10.0]
    assert story(at_ten, K.PASS_END, K.ARRIVAL, K.PASS_START) == [
        ("PASS_END", 10.0, 0, -1),
        ("ARRIVAL", 10.0, 0, 1),
        ("PASS_START", 10.0, 0, -1),
    ]
    fleet.set_sample(10.25)
    assert fleet.advance() == "sample"
    assert (fleet.now_ms, fleet.last_event_ms) == (10.25, 10.0), "a sample is no event"
    fleet.set_sample(math.inf)
    assert fleet.advance() == "done"


def test_a_sample_at_zero_comes_after_the_whole_instant() -> None:
    fleet = started(make_fleet(timing=fixed(0.0, 0.0)), [row(0.0, n_out=3)])
    fleet.set_sample(0.0)
    assert fleet.advance() == "sample"
    assert [r.kind for r in read_records(fleet.out)].count(K.TERMINAL) == 1


def test_gauges_at_an_arrival_show_the_eager_state_and_count_who_waits_on_the_lane() -> None:
    """Prompt of 16 in chunks of 6: in mid-pass two blocks are taken, one request runs, the arrival waits."""
    fleet = started(
        make_fleet(telemetry=True, max_num_batched_tokens=6), [row(0.0, 16, 3, key=1), row(5.0, 10, key=2), row(6.0)]
    )
    fleet.advance(9.0)
    seen = [(r.t_ms, r.a, r.c, r.d) for r in read_records(fleet.out) if r.kind == K.GAUGES and r.e]
    assert seen == [(0.0, 0, 0, 1), (5.0, 2, 1, 1), (6.0, 2, 1, 2)]


def test_worker_seconds_and_last_event() -> None:
    fleet = started(make_fleet(num_workers=2), [row(0.0, n_out=1), row(20.0, n_out=2, key=2)])
    assert fleet.advance() == "done"
    assert fleet.last_event_ms == 31.0
    assert fleet.worker_seconds == pytest.approx(2 * 0.031, abs=1e-15)


# -- rows -------------------------------------------------------------------------------------------------


@given(st.permutations(range(12)), st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=12, max_size=12))
def test_rows_enter_by_time_then_order_then_turn(order: list[int], due_ms: list[float]) -> None:
    """Whatever order they are handed over in."""
    n = len(order)
    fleet = make_fleet(max_num_seqs=None)
    turn = [i % 3 for i in range(n)]
    session = [i // 3 for i in range(n)]
    fleet.push_rows(
        np.array([due_ms[i] for i in order]),
        np.array(order, np.int32),
        np.array([session[i] for i in order], np.int64),
        np.array([turn[i] for i in order], np.int64),
        np.array([session[i] for i in order], np.int64),
        np.full(n, 4, np.int64),
        np.full(n, 1, np.int64),
        np.arange(n + 1, dtype=np.int64),
        np.array(order, np.uint64),
    )
    fleet.set_horizon(math.inf)
    assert fleet.advance() == "done"
    arrivals = [r for r in read_records(fleet.out) if r.kind == K.ARRIVAL]
    assert [r.request for r in arrivals] == sorted(range(n), key=lambda i: (due_ms[i], session[i], turn[i]))
    assert [(r.a, r.b, r.c, r.d) for r in arrivals] == [(4, 1, session[r.request], turn[r.request]) for r in arrivals]


@pytest.mark.parametrize("position", range(9))
def test_columns_that_do_not_fit_each_other_are_refused(position: int) -> None:
    columns = [
        np.zeros(2), np.arange(2, dtype=np.int32), *(np.zeros(2, np.int64) for _ in range(3)),
        np.full(2, 4, np.int64), np.ones(2, np.int64), np.arange(3, dtype=np.int64), np.zeros(2, np.uint64),
    ]  # fmt: skip
    columns[position] = columns[position][:-1]
    fleet = make_fleet()
    with pytest.raises(ValueError, match="columns of rows"):
        fleet.push_rows(*columns)
    fleet.set_horizon(math.inf)
    assert fleet.advance() == "done"
    assert fleet.num_arrived == 0


@pytest.mark.parametrize(
    ("position", "values"), [(0, [0.0, math.nan]), (0, [0.0, -1.0]), (0, [math.inf, 0.0]), (7, [0, 2, 1])]
)
def test_rows_that_cannot_be_are_refused_before_any_is_taken(position: int, values: list[float]) -> None:
    columns = [
        np.zeros(2), np.arange(2, dtype=np.int32), *(np.zeros(2, np.int64) for _ in range(3)),
        np.full(2, 4, np.int64), np.ones(2, np.int64), np.array([0, 1, 1]), np.zeros(2, np.uint64),
    ]  # fmt: skip
    columns[position] = np.array(values, columns[position].dtype)
    fleet = make_fleet()
    with pytest.raises(ValueError, match=r"^row [01]: due at"):
        fleet.push_rows(*columns)
    fleet.set_horizon(math.inf)
    assert fleet.advance() == "done"
    assert fleet.num_arrived == 0


def test_a_fleet_needs_machines() -> None:
    with pytest.raises(ValueError, match="num_workers must be positive"):
        Fleet([], EventBuffer())
    machine: Any = object()
    with pytest.raises(TypeError, match="worker 0 is no Machine"):
        Fleet([machine], EventBuffer())
    assert isinstance(make_machine(), Machine)
