"""Long lists of gaps: added up where they repeat, grown where they do not, and the same in the end."""

from __future__ import annotations

import numpy as np
import pytest

from mocker_replay._core.gap_weights import GapWeights, merged


@pytest.mark.parametrize(
    ("num_distinct", "most_room"),
    [(1, 1024), (900, 1 << 18), (40_000, 1 << 18), (120_000, 1 << 18), (10**9, 1 << 19)],
)
def test_whatever_was_put_in_comes_out(num_distinct: int, most_room: int) -> None:
    random = np.random.default_rng(num_distinct)
    gaps_ms = random.integers(1, num_distinct + 1, 400_000) / 7.0
    weights = random.integers(1, 9, len(gaps_ms))
    pool = GapWeights()
    room = pool.put(gaps_ms, weights)
    wanted, places = np.unique(gaps_ms, return_inverse=True)
    for _ in range(2):  # what it gives, it keeps
        values, sums = merged([*pool.arrays()])
        np.testing.assert_array_equal(values, wanted)
        np.testing.assert_array_equal(sums, np.bincount(places, weights).astype(np.int64))
    assert room <= most_room
