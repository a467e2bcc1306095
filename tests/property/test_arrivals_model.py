"""Rows that are not due yet against a sorted list: handed over in any order, some withdrawn before they are due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mocker_replay.events import EventKind
from tests.support.machines import Row, fixed, make_fleet, push_rows, read_records

# How late each row of a batch is after the last instant, which rows are withdrawn, and how far time moves then.
BATCH = st.tuples(
    st.lists(st.integers(0, 9), max_size=12) | st.lists(st.integers(0, 9), max_size=12).map(sorted),
    st.sets(st.integers(0, 40), max_size=3),
    st.integers(0, 6),
)


@given(st.lists(BATCH, max_size=12))
def test_rows_arrive_in_order_of_time_and_ordinal(batches: list[tuple[list[int], set[int], int]]) -> None:
    fleet = make_fleet(timing=fixed(0.5))
    waiting: dict[int, float] = {}
    now_ms, pushed = 0, 0
    expected: list[int] = []
    arrived: list[int] = []
    for delays, withdrawn, step in [*batches, ([], set(), 100)]:
        rows = [Row(float(now_ms + delay + 1), 4, 1, (pushed + i,)) for i, delay in enumerate(delays)]
        push_rows(fleet, rows, pushed)
        waiting |= {pushed + i: row.due_ms for i, row in enumerate(rows)}
        pushed += len(rows)
        for ordinal in withdrawn & waiting.keys():
            fleet.withdraw(ordinal)
            del waiting[ordinal]
        now_ms += step
        fleet.set_horizon(now_ms + 1.0)
        fleet.advance(float(now_ms))
        arrived += [r.request for r in read_records(fleet.out) if r.kind == EventKind.ARRIVAL]
        fleet.clear_events()
        due = sorted((due_ms, ordinal) for ordinal, due_ms in waiting.items() if due_ms <= now_ms)
        expected += [ordinal for _, ordinal in due]
        for _, ordinal in due:
            del waiting[ordinal]
        assert arrived == expected
    assert not waiting
