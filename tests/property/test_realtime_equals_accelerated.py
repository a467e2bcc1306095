"""Guarantee B: under the nominal clock a realtime run is the accelerated one, however late its clock is.

And what holds of a measured run: its log runs again, nothing is lost, its figures of lateness are what the clock did.
All on the controllable clock, so that nothing waits and a failing run fails again.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings

from mocker_replay.config import RealtimeOptions
from mocker_replay.log.wall import read_wall
from mocker_replay.replay.rerun import rerun
from tests.property.replays import NOMINAL, Case, Outputs, cases, conserves, measured, paces, run
from tests.support.realtime_replay import Pace

many = settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

HEAD_START_NS = 20_000_000  # of a run, before modelled time 0


@given(cases(), paces)
@many
def test_the_nominal_clock_gives_the_accelerated_run(case: Case, pace: Pace) -> None:
    with tempfile.TemporaryDirectory() as name:
        accelerated = run(case, Path(name)).bare()
        for lateness in (None, pace):
            outputs = run(case, Path(name), NOMINAL, lateness)
            assert outputs.bare() == accelerated
            tells_how_late_it_was(case, outputs)
            names_its_rows(case, outputs.log)
            again = rerun(Path(name) / "events.jsonl")
            assert again.difference is None, again.difference


# -- the measured clock -------------------------------------------------------------------------------


@given(cases(), paces, measured)
@many
def test_a_measured_run_runs_again_and_tells_how_late_it_was(case: Case, pace: Pace, realtime: RealtimeOptions) -> None:
    with tempfile.TemporaryDirectory() as name:
        outputs = run(case, Path(name), realtime, pace)
        again = rerun(Path(name) / "events.jsonl")
        assert again.difference is None, again.difference
    seen = Seen(outputs.log)
    conserves(seen.footer, outputs)
    if case.options.max_sim_time_ms is None:
        assert seen.footer["arrived"] == len(case.rows)
        assert seen.num_events["pass_start"] == seen.num_events["pass_end"], "a pass that began is waited for"
    tells_how_late_it_was(case, outputs)
    assert seen.readings_ms == sorted(seen.readings_ms)
    origin_ns = pace.readings_ns[0] + HEAD_START_NS
    read_ms = {max(ns - origin_ns, 0) / 1e6 for ns in pace.readings_ns}
    assert {*seen.readings_ms, *seen.walls_ms, *seen.arrivals_ms} <= read_ms
    assert all(wall["steps"][-1][2] == wall["ms"] for wall in seen.published), "a line is made when its step is taken"


class Seen:
    """What a measured log tells about the clock."""

    def __init__(self, log: bytes) -> None:
        self.arrival_lateness_ms: list[float] = []
        self.pass_end_lateness_ms: list[float] = []
        self.readings_ms: list[float] = []  # of all steps, in order
        self.walls_ms: list[float] = []  # of all lines, in order
        self.arrivals_ms: list[float] = []
        self.num_events: Counter[str] = Counter()
        self.published: list[dict[str, Any]] = []  # the wall keys of lines that a step published
        _, *lines, footer = log.splitlines()
        for line in lines:
            self._take(*read_wall(line))
        bare, wall = read_wall(footer)
        self._take(bare, wall)
        self.footer = orjson.loads(bare)

    def _take(self, bare: bytes, wall: dict[str, Any] | None) -> None:
        event = orjson.loads(bare)
        self.num_events[event["event"]] += 1
        if wall is not None:
            self.walls_ms.append(wall["ms"])
            self.readings_ms += [step[2] for step in wall.get("steps", ())]
            if "steps" in wall and event["event"] not in ("arrival", "cut", "footer"):
                self.published.append(wall)
        if event["event"] == "arrival":
            assert wall is not None
            assert wall["planned_ms"] <= event["t_ms"] <= wall["ms"]
            self.arrivals_ms.append(event["t_ms"])
            self.arrival_lateness_ms.append(wall["ms"] - wall["planned_ms"])
        elif event["event"] == "pass_end":
            assert wall is not None
            self.pass_end_lateness_ms.append(wall["ms"] - event["t_ms"])


def names_its_rows(case: Case, log: bytes) -> None:
    """Requests are called as their rows say, however few rows were read at a time."""
    for line in log.splitlines():
        event = orjson.loads(line)
        if event["event"] == "arrival":
            row = event.get("row", event["request"].removeprefix("r"))
            assert event["request"] == case.rows[int(row)].get("request_id", f"r{row}")


def tells_how_late_it_was(case: Case, outputs: Outputs) -> None:
    """The summary says what the lines of the log say."""
    seen, told = Seen(outputs.log), outputs.summary["realtime"]
    is_told(told["arrival_lateness"], seen.arrival_lateness_ms)
    if case.level != "requests":
        is_told(told["pass_end_lateness"], seen.pass_end_lateness_ms)
    assert told["max_lateness_ms"] >= max(seen.arrival_lateness_ms + seen.pass_end_lateness_ms, default=0.0)


def is_told(told: dict[str, Any] | None, late_ms: list[float]) -> None:
    """The summary's figures are those of this list."""
    if not late_ms:
        assert told is None
        return
    assert told is not None
    ordered = sorted(late_ms)
    assert ordered[0] >= 0.0, "nothing comes early"
    assert told["count"] == len(ordered) == sum(bar["count"] for bar in told["histogram"])
    assert told["max_ms"] == ordered[-1]
    for name, percent in (("p50_ms", 50), ("p99_ms", 99)):
        assert told[name] == ordered[math.floor((len(ordered) - 1) * percent / 100 + 0.5)]
    assert math.isclose(told["mean_ms"], math.fsum(ordered) / len(ordered), abs_tol=1e-12)
    below = 0.0
    for bar in told["histogram"]:
        upper = math.inf if bar["le_ms"] is None else bar["le_ms"]
        assert bar["count"] == sum(below < late <= upper for late in ordered) + (below == 0.0) * ordered.count(0.0)
        below = upper
