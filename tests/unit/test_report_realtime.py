"""The object `realtime` of a summary: against slow definitions, by hand at the edges, and against its documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_replay.report.metrics import nearest_rank
from mocker_replay.report.realtime import LATENESS_EDGES_MS, InFlight, Lateness, Punctuality

LATE_MS = st.floats(0.0, 2_000.0) | st.sampled_from(LATENESS_EDGES_MS)
PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def lateness_of(values_ms: list[float]) -> Lateness:
    lateness = Lateness()
    for value_ms in values_ms:
        lateness.add(value_ms)
    return lateness


# -- lateness ---------------------------------------------------------------------------------------


@given(st.lists(LATE_MS, min_size=1, max_size=300))
def test_lateness_equals_its_definition(values_ms: list[float]) -> None:
    lateness = lateness_of(values_ms)
    summary = lateness.summary()
    assert summary is not None
    ordered = sorted(values_ms)
    assert len(lateness) == summary["count"] == len(values_ms)
    assert summary["mean_ms"] == pytest.approx(sum(values_ms) / len(values_ms))
    assert summary["p50_ms"] == ordered[nearest_rank(len(ordered), 50)]
    assert summary["p99_ms"] == ordered[nearest_rank(len(ordered), 99)]
    assert summary["max_ms"] == lateness.max_ms == ordered[-1]
    lower = float("-inf")
    for bar in summary["histogram"]:
        upper = float("inf") if bar["le_ms"] is None else bar["le_ms"]
        assert bar["count"] == sum(lower < value <= upper for value in values_ms)
        lower = upper
    assert lower == float("inf")


@pytest.mark.parametrize(("n", "p50_ms", "p99_ms"), [(1, 1.0, 1.0), (2, 2.0, 2.0), (3, 2.0, 3.0), (200, 101.0, 198.0)])
def test_percentiles_by_hand(n: int, p50_ms: float, p99_ms: float) -> None:
    summary = lateness_of([float(value) for value in range(n, 0, -1)]).summary()
    assert summary is not None
    assert (summary["p50_ms"], summary["p99_ms"]) == (p50_ms, p99_ms)


def test_an_edge_belongs_to_the_bar_below_it() -> None:
    summary = lateness_of([*LATENESS_EDGES_MS, 1000.5]).summary()
    assert summary is not None
    assert [bar["le_ms"] for bar in summary["histogram"]] == [*LATENESS_EDGES_MS, None]
    assert [bar["count"] for bar in summary["histogram"]] == [1] * (len(LATENESS_EDGES_MS) + 1)


def test_punctual_events_stand_in_the_first_bar() -> None:
    summary = lateness_of([0.0, 0.0]).summary()
    assert summary is not None
    assert summary["histogram"][0] == {"le_ms": 0.05, "count": 2}


def test_no_event_has_no_lateness() -> None:
    assert Lateness().summary() is None


# -- requests in flight -----------------------------------------------------------------------------


def most_per_bucket(changes: list[tuple[int, float]], width_ms: float) -> list[int]:
    """Slow model: the level when each bucket begins, and after each change within it."""
    buckets = []
    for bucket in range(int(changes[-1][1] / width_ms) + 1):
        begin_ms = bucket * width_ms
        before = sum(by for by, at_ms in changes if at_ms < begin_ms)
        within = [by for by, at_ms in changes if begin_ms <= at_ms < begin_ms + width_ms]
        buckets.append(max(before + sum(within[:n]) for n in range(len(within) + 1)))
    return buckets


@st.composite
def changes_of_level(draw: st.DrawFn) -> list[tuple[int, float]]:
    """Arrivals and ends in order of time [ms], never more ends than arrivals; times up to hours, edges included."""
    step_ms = st.sampled_from([0.0, 0.5, 99.5, 100.0, 1_600.0, 12_000.0]) | st.floats(0.0, 50_000.0)
    changes, level, at_ms = [], 0, 0.0
    for gap_ms, by in draw(st.lists(st.tuples(step_ms, st.integers(-3, 3).filter(bool)), min_size=1, max_size=60)):
        at_ms += gap_ms
        by = max(by, -level) or 1
        level += by
        changes.append((by, at_ms))
    return changes


@given(changes_of_level())
def test_in_flight_equals_the_model(changes: list[tuple[int, float]]) -> None:
    in_flight = InFlight()
    for by, at_ms in changes:
        in_flight.change(by, at_ms)
    summary = in_flight.summary()
    width_ms = summary["bucket_ms"]
    levels = [sum(by for by, _ in changes[: n + 1]) for n in range(len(changes))]
    assert in_flight.now == levels[-1]
    assert summary["max"] == max(0, *levels)
    assert summary["max_per_bucket"] == most_per_bucket(changes, width_ms)
    assert max(summary["max_per_bucket"]) == summary["max"]
    # As narrow as 120 buckets allow.
    assert len(summary["max_per_bucket"]) <= 120
    assert width_ms == 100.0 or changes[-1][1] >= 120 * width_ms / 2


def test_buckets_widen_when_there_are_too_many() -> None:
    in_flight = InFlight()
    in_flight.change(2, 0.0)
    in_flight.change(-1, 11_999.0)
    assert in_flight.summary() == {"max": 2, "bucket_ms": 100.0, "max_per_bucket": [2] * 120}
    in_flight.change(4, 12_000.0)
    assert in_flight.summary() == {"max": 5, "bucket_ms": 200.0, "max_per_bucket": [2] * 60 + [5]}


def test_nothing_in_flight() -> None:
    assert InFlight().summary() == {"max": 0, "bucket_ms": 100.0, "max_per_bucket": []}


# -- all of it --------------------------------------------------------------------------------------


def test_rates_count_the_gaps_between_arrivals() -> None:
    punctuality = Punctuality()
    for planned_ms, wall_ms in ((100.0, 100.5), (350.0, 350.0), (600.0, 1100.5)):
        punctuality.arrived(planned_ms, wall_ms)
    summary = punctuality.summary("measured", None, 2_000.0)
    assert summary["planned_request_rate_rps"] == 4.0
    assert summary["achieved_request_rate_rps"] == 2.0
    assert summary["arrival_lateness"]["max_ms"] == 500.5
    assert summary["pass_end_lateness"] is None
    assert summary["in_flight"]["max"] == 3


@pytest.mark.parametrize("arrivals_ms", [[], [5.0], [5.0, 5.0]], ids=["none", "one", "one instant"])
def test_a_rate_needs_a_span(arrivals_ms: list[float]) -> None:
    punctuality = Punctuality()
    for at_ms in arrivals_ms:
        punctuality.arrived(at_ms, at_ms)
    summary = punctuality.summary("nominal", None, 10.0)
    assert summary["planned_request_rate_rps"] is None
    assert summary["achieved_request_rate_rps"] is None


def test_one_instant_takes_time_to_hand_over() -> None:
    punctuality = Punctuality()
    punctuality.arrived(0.0, 0.25)
    punctuality.arrived(0.0, 0.5)
    summary = punctuality.summary("measured", None, 10.0)
    assert summary["planned_request_rate_rps"] is None
    assert summary["achieved_request_rate_rps"] == 4_000.0


@pytest.mark.parametrize(
    ("limit_ms", "late"), [(None, False), (2.5, False), (2.4, True), (0.0, True)], ids=["none", "just", "over", "zero"]
)
def test_late_is_more_than_the_limit(limit_ms: float | None, late: bool) -> None:
    punctuality = Punctuality()
    punctuality.arrived(0.0, 1.0)
    punctuality.pass_ends.add(2.5)
    summary = punctuality.summary("measured", limit_ms, 10.0)
    assert summary["max_lateness_ms"] == 2.5
    assert summary["max_lateness_limit_ms"] == limit_ms
    assert summary["late"] is late


def test_recent_lateness_starts_again() -> None:
    punctuality = Punctuality()
    punctuality.arrived(0.0, 3.0)
    punctuality.pass_ends.add(1.0)
    assert punctuality.take_recent_ms() == 3.0
    assert punctuality.take_recent_ms() == 0.0
    punctuality.pass_ends.add(0.5)
    assert punctuality.take_recent_ms() == 0.5
    assert punctuality.max_lateness_ms == 3.0


# -- its documentation ------------------------------------------------------------------------------


def keys_of(value: Any) -> Iterator[str]:
    """All keys, those of nested objects too."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


def full_summary() -> dict[str, Any]:
    punctuality = Punctuality()
    punctuality.arrived(0.0, 1.0)
    punctuality.pass_ends.add(0.5)
    return punctuality.summary("measured", 5.0, 10.0)


def test_every_field_is_documented_and_exists() -> None:
    section = re.split(r"\n##+ ", PAGE.split("\n### Realtime\n")[1])[0]
    rows = re.findall(r"^\| (`[^|]*) \| (.*) \|$", section, re.MULTILINE)
    named = {name for field, definition in rows for name in re.findall(r"`(\w+)`", field)}
    words = {name for _, definition in rows for name in re.findall(r"`(\w+)`", definition)}
    fields = set(keys_of(full_summary()))
    assert named <= fields
    assert fields <= named | {"le_ms", "count"}  # the bars are defined in the row of the histogram
    assert "le_ms" in words


def test_it_can_be_written_as_json() -> None:
    assert json.loads(json.dumps(full_summary(), allow_nan=False)) == full_summary()
