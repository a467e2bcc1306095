"""Columns of hash ids against the obvious loop, and decimals against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mocker_replay.trace.block_ids import PrefixEstimate, exact_ids, shared_ids
from mocker_replay.trace.csv_table import seconds_to_ms
from mocker_replay.trace.datetimes import DateTimes, text_of_ticks

ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), max_size=8)


@given(ROWS)
def test_each_row_has_its_ids_cut_or_filled_up(rows: list[tuple[int, int]]) -> None:
    ids = list(range(sum(given for given, _ in rows)))
    expected, rest, private = [], list(ids), 100
    for num_given, needed in rows:
        own, rest = rest[:num_given], rest[num_given:]
        own = own[:needed]
        while len(own) < needed:
            own.append(private)
            private += 1
        expected += own
    counts = [np.array([row[at] for row in rows], np.int64) for at in (0, 1)]
    assert exact_ids(np.array(ids, np.uint64), *counts, 100).tolist() == expected


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.floats(0.01, 1.0),
    st.integers(1, 9),
    st.integers(0, 2**31),
    st.integers(1, 7),
)
def test_shared_ids_do_not_depend_on_batches(
    blocks: list[int], ratio: float, num_groups: int, first_row: int, cut: int
) -> None:
    estimate = PrefixEstimate(ratio, num_groups)
    whole, given_whole = shared_ids(estimate, first_row, np.array(blocks, np.int64))
    parts = [np.array(part, np.int64) for part in (blocks[:cut], blocks[cut:])]
    first, given_first = shared_ids(estimate, first_row, parts[0])
    second, given_second = shared_ids(estimate, first_row + len(parts[0]), parts[1])
    assert whole.tolist() == first.tolist() + second.tolist()
    assert given_whole.tolist() == given_first.tolist() + given_second.tolist()
    groups = set()
    for row in np.split(whole, np.cumsum(given_whole)[:-1]):
        groups |= {int(number) % num_groups for number in row}
        assert [int(number) // num_groups for number in row] == list(range(len(row)))
        assert len({int(number) % num_groups for number in row}) <= 1, "one group a row"
    assert all(0 <= shared <= needed for shared, needed in zip(given_whole.tolist(), blocks, strict=True))


@given(st.decimals(min_value=-(10**12), max_value=10**12, places=9, allow_nan=False))
def test_seconds_become_the_nearest_ms(seconds: object) -> None:
    assert seconds_to_ms(f"{seconds:f}") == float(Fraction(str(seconds)) * 1000)


@given(st.integers(0, 3652058 * 86_400 * 10**7))
def test_a_tick_is_what_its_text_says(ticks: int) -> None:
    assert DateTimes().ticks(text_of_ticks(ticks)) == ticks
