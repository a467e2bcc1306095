"""The reference's cases of two pools through every clock and every reader of a log: what each of them says."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import orjson
import pytest

from mocker_replay.config import RealtimeOptions, ReplayOptions
from mocker_replay.errors import ExitCode
from mocker_replay.log.audit.run import audit
from mocker_replay.log.explain import explain
from mocker_replay.log.timeline import write_timeline
from mocker_replay.log.wall import bare_lines, read_wall, with_wall
from mocker_replay.replay import ReplayResult, replay
from mocker_replay.replay.rerun import rerun
from mocker_replay.report.summary import without_wall_clock
from tests.parity.test_handoff_cases import ALL, RUNS
from tests.support.realtime_replay import Pace, virtual_time

CLOCKS = {"nominal": RealtimeOptions(clock="nominal"), "measured": RealtimeOptions(clock="measured")}


def run(key: str, folder: Path, clock: str | None = None, level: str = "tokens", **outputs: Any) -> ReplayResult:
    case = ALL[key]
    trace = folder / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in case["trace"]))
    options = ReplayOptions(
        mode="accelerated" if clock is None else "realtime",
        num_prefill_workers=case["workers"]["prefill"],
        num_decode_workers=case["workers"]["decode"],
        trace_block_size=case["trace_block_size"],
    )
    configs = {f"{role}_config": case[f"{role}_config"] for role in ("prefill", "decode")}
    realtime = None if clock is None else CLOCKS[clock]
    with virtual_time(Pace()):
        return replay(trace, None, options, event_level=level, realtime=realtime, **configs, **outputs)


@pytest.mark.parametrize("key", RUNS)
def test_every_clock_and_every_reader(key: str, tmp_path: Path) -> None:
    logs = {}
    for clock in (None, "nominal", "measured"):
        log = tmp_path / f"{clock}.jsonl"
        run(key, tmp_path, clock, events=log)
        logs[clock] = bare_lines(log.read_bytes())
        assert audit(log).exit_code == ExitCode.OK
        if clock is not None:
            assert rerun(log).difference is None
        for row in range(len(ALL[key]["trace"])):
            told = explain(log, f"r{row}")
            assert sum((ms for _, ms, _ in told.parts()), Fraction(0)) == told.exact_ms
    assert logs["nominal"] == logs[None], "on a punctual clock as on a late one"


@pytest.mark.parametrize("key", RUNS)
def test_what_is_said_of_requests_does_not_depend_on_a_log(key: str, tmp_path: Path) -> None:
    told = []
    for level in (None, "requests", "kv"):
        requests = tmp_path / "requests.jsonl"
        events = {} if level is None else {"events": tmp_path / "events.jsonl", "level": level}
        result = run(key, tmp_path, requests=requests, **events)
        told.append((requests.read_bytes(), without_wall_clock(result.summary)))
    assert told[0] == told[1] == told[2]


def test_where_the_time_of_a_handoff_goes(tmp_path: Path) -> None:
    """d18: the first of the line is in the way of the second, which fits."""
    log = tmp_path / "events.jsonl"
    run("d18", tmp_path, events=log)
    told = explain(log, "r1")
    parts = {part: float(ms) for part, ms, _ in told.parts()}
    assert (told.worker, told.rank) == (1, 0)
    assert parts == {"waiting": 9.0, "prefill": 10.0, "destination": 36.0, "transfer": 32.0, "decode": 15.0}
    run("d18", tmp_path, events=log, level="requests")
    assert {part: float(ms) for part, ms, _ in explain(log, "r1").parts()} == parts


def test_phases_of_a_timeline(tmp_path: Path) -> None:
    log, path = tmp_path / "events.jsonl", tmp_path / "timeline.json"
    run("d14", tmp_path, events=log)
    write_timeline(log, path)
    events = json.loads(path.read_text())["traceEvents"]
    (track,) = {event["id"] for event in events if event["name"] == "r0"}
    phases = [event["name"] for event in events if event.get("id") == track and event["ph"] == "b"]
    assert phases == ["r0", "waiting", "prefill", "held", "transfer", "waiting", "prefill", "decode"]


def tampered(log: Path, change: Any) -> None:
    """Change the first step that was done to the handoffs."""
    lines = log.read_bytes().splitlines()
    for number, line in enumerate(lines):
        bare, wall = read_wall(line)
        for step in (wall or {}).get("steps", ()):
            if step[0] == -1:
                change(wall["steps"], step)
                lines[number] = with_wall(bare, orjson.dumps(wall))
                log.write_bytes(b"\n".join(lines) + b"\n")
                return
    raise AssertionError("no such step")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda steps, step: steps.remove(step), "is submitted, but does not wait on the lane of worker 0"),
        (lambda steps, step: step.__setitem__(2, -1.0), "the handoffs do not take the step settle"),
        (lambda steps, step: steps.insert(0, [-1, "leave", 0.0, 0]), "the rerun makes a line that"),
    ],
    ids=["left out", "no time", "a client who did not leave"],
)  # fmt: skip
def test_a_rerun_finds_what_was_changed(change: Any, rule: str, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    run("d14", tmp_path, "measured", events=log)
    tampered(log, change)
    difference = rerun(log).difference
    assert difference is not None
    assert rule in difference.rule


def test_the_summary_of_both_modes_is_one(tmp_path: Path) -> None:
    accelerated, nominal = run("d32", tmp_path), run("d32", tmp_path, "nominal")
    assert "realtime" in nominal.summary
    told = {key: value for key, value in nominal.summary.items() if key != "realtime"}
    assert without_wall_clock(told) == without_wall_clock(accelerated.summary)
    assert nominal.facts.prefill == accelerated.facts.prefill
