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

from mocker_replay.config import EngineConfig, RealtimeOptions, ReplayOptions, TimingModel
from mocker_replay.config.engine import HostOffloadSettings
from mocker_replay.errors import ExitCode
from mocker_replay.log.audit.run import audit
from mocker_replay.log.wall import read_wall
from mocker_replay.replay.rerun import rerun
from tests.property.replays import (
    NOMINAL,
    Case,
    Outputs,
    cases,
    conserves,
    measured,
    paces,
    run,
    tier_cases,
)
from tests.support.realtime_replay import Pace

many = settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

some = settings(many, max_examples=60)

HEAD_START_NS = 20_000_000  # of a run, before modelled time 0


@given(cases(), paces)
@many
def test_the_nominal_clock_gives_the_accelerated_run(case: Case, pace: Pace) -> None:
    is_the_accelerated_run(case, pace)


@given(tier_cases(), paces)
@some
def test_the_nominal_clock_gives_the_accelerated_run_with_a_host_tier(case: Case, pace: Pace) -> None:
    is_the_accelerated_run(case, pace)


def test_an_arrival_at_the_end_of_a_copy_joins_the_pass_that_starts_then() -> None:
    tier = HostOffloadSettings(num_host_blocks=100, d2h_bandwidth_gbps=1.0, h2d_bandwidth_gbps=1.0)
    config = EngineConfig(
        num_gpu_blocks=4,
        num_gpu_blocks_is_explicit=True,
        block_size=4,
        timing_model=TimingModel("fixed", 10.0, 1.0),
        kv_cache_bytes_per_token=250_000,  # a block is copied in 1 ms
        native_host_offload=tier,
    )
    documents = [(0.0, [0, 1]), (50.0, [5, 6, 7, 8]), (100.0, [0, 1]), (102.0, [9])]
    rows = [
        {"timestamp": at_ms, "input_length": 4 * len(ids), "output_length": 1, "hash_ids": ids}
        for at_ms, ids in documents
    ]
    case = Case(config, ReplayOptions(trace_block_size=4), rows, "passes", 1024)
    log = is_the_accelerated_run(case, None)
    assert b'"t_ms":102.0,"event":"pass_start","worker":0,"pass":3,"end_ms":112.0,"ranks":[{"rank":0,' in log
    assert b'"admitted":[["r2",4],["r3",0]]' in log


def test_an_arrival_comes_between_a_load_of_no_length_and_the_pass_that_uses_it() -> None:
    tier = HostOffloadSettings(num_host_blocks=100, d2h_bandwidth_gbps=0.0, h2d_bandwidth_gbps=0.0)
    config = EngineConfig(
        num_gpu_blocks=4,
        num_gpu_blocks_is_explicit=True,
        block_size=4,
        timing_model=TimingModel("fixed", 10.0, 1.0),
        kv_cache_bytes_per_token=1000,
        native_host_offload=tier,
    )
    # By turns of two workers. At 100 the first one has blocks 4 and 5 and ends r6 at once; the second loads 0 and 1 for
    # r7. Then r9 follows r6, and comes to the second before it computes the rest of r7.
    prompts = [
        (0.0, [4, 5], 0),
        (0.0, [0, 1], 0),
        (50.0, [9], 0),
        (50.0, [5, 6, 7, 8], 0),
        (60.0, [9], 0),
        (60.0, [9], 0),
    ]
    prompts += [(100.0, [4, 5], 0), (100.0, [0, 1, 2], 1), (100.0, [4, 5], 0), (100.0, [3], 1)]
    rows = [
        {"timestamp": at_ms, "input_length": 4 * len(ids), "output_length": n_out, "hash_ids": ids}
        for at_ms, ids, n_out in prompts
    ]
    for row in (rows[6], rows[9]):
        row["session_id"] = "s"
    rows[9]["delay"] = 0.0
    case = Case(config, ReplayOptions(trace_block_size=4, num_workers=2), rows, "passes", 1024)
    log = is_the_accelerated_run(case, None)
    assert b'"admitted":[["r7",8],["r9",0]]' in log


def is_the_accelerated_run(case: Case, pace: Pace | None) -> bytes:
    """The nominal clock gives it, on time and late, and a log that runs again; returns that log."""
    with tempfile.TemporaryDirectory() as name:
        accelerated = run(case, Path(name)).bare()
        for lateness in (None, pace):
            outputs = run(case, Path(name), NOMINAL, lateness)
            assert outputs.bare() == accelerated
            tells_how_late_it_was(case, outputs)
            names_its_rows(case, outputs.log)
            again = rerun(Path(name) / "events.jsonl")
            assert again.difference is None, again.difference
    return outputs.log


# -- the measured clock -------------------------------------------------------------------------------


@given(cases(), paces, measured)
@many
def test_a_measured_run_runs_again_and_tells_how_late_it_was(case: Case, pace: Pace, realtime: RealtimeOptions) -> None:
    runs_again_and_tells_how_late_it_was(case, pace, realtime)


@given(tier_cases(), paces, measured)
@some
def test_a_measured_run_with_a_host_tier_runs_again(case: Case, pace: Pace, realtime: RealtimeOptions) -> None:
    runs_again_and_tells_how_late_it_was(case, pace, realtime)


def runs_again_and_tells_how_late_it_was(case: Case, pace: Pace, realtime: RealtimeOptions) -> None:
    with tempfile.TemporaryDirectory() as name:
        outputs = run(case, Path(name), realtime, pace)
        again = rerun(Path(name) / "events.jsonl")
        assert again.difference is None, again.difference
        report = audit(Path(name) / "events.jsonl")
        assert report.exit_code == ExitCode.OK, [finding.to_mapping() for finding in report.findings[:3]]
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
