"""The heap of clients that will leave against a sorted list."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_replay._core._testing import run_cancellations


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[object, ...]]:
    """Requests are noted once each; numbers far apart fall on one another in the hash."""
    stride = draw(st.sampled_from([1, 3, 128, 1 << 20]))
    steps = draw(st.lists(st.sampled_from(["add", "add", "add", "drop", "pop"]), max_size=400))
    script: list[tuple[object, ...]] = []
    noted = 0
    for name in steps:
        if name == "add":
            due_ms = draw(st.integers(0, 20)) / 2.0
            script.append(("add", due_ms, draw(st.integers(0, 3)), noted, noted * stride))
            noted += 1
        elif name == "drop":
            script.append(("drop", draw(st.integers(0, noted)) * stride))
        else:
            script.append(("pop",))
    return script


@given(scripts())
@settings(max_examples=300)
def test_heap_equals_sorted_list(script: list[tuple[object, ...]]) -> None:
    entries: list[tuple[float, int, int, int]] = []  # (due, order, turn, request)
    for step, (answer, count, next_ms) in zip(script, run_cancellations(script), strict=True):
        expected: object = None
        if step[0] == "add":
            entries.append(step[1:])  # type: ignore[arg-type]
        elif step[0] == "drop":
            left = [entry for entry in entries if entry[3] != step[1]]
            expected, entries = len(left) < len(entries), left
        elif entries:
            first = min(entries)
            entries.remove(first)
            expected = (first[0], first[3])
        assert (answer, count) == (expected, len(entries))
        assert next_ms == min((entry[0] for entry in entries), default=math.inf)
