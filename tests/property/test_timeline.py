"""Timelines of many logs: a well-formed trace file, with as many slices as the log has of what they show."""

from __future__ import annotations

import gzip
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from mocker_replay.log.timeline import write_timeline
from mocker_replay.log.wall import bare_lines
from tests.property.test_rerun import runs
from tests.support.random_logs import LEVELS, Log, random_log, read_log
from tests.support.realtime import RealtimeRun
from tests.support.stories import ENDS
from tests.support.trace_events import Checked, check_trace

PHASES = ("waiting", "prefill", "decode", "preempted")


def timeline_of(data: bytes, name: str = "trace.json") -> tuple[Any, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        log, target = Path(folder) / "log.jsonl", Path(folder) / name
        log.write_bytes(data)
        return write_timeline(log, target), target.read_bytes()


def check_counts(log: Log, checked: Checked, counts: Any) -> None:
    lines = Counter(event["event"] for event in log.events)
    names = Counter(event["request"] for event in log.events if event["event"] == "arrival")
    of_requests = {name: count for (cat, name), count in checked.slices.items() if cat == "request"}
    phases = Counter({phase: of_requests.get(phase, 0) - names[phase] for phase in PHASES})
    assert counts.requests == lines["arrival"] == len(checked.tracks)
    assert {name: of_requests[name] - phases[name] for name in names} == names
    assert phases["waiting"] == lines["arrival"]
    assert phases["preempted"] == lines["preemption"]
    assert phases["prefill"] + phases["decode"] == lines["admission"] + lines["first_token"]
    assert counts.phases == phases.total()
    starts = [event for event in log.events if event["event"] == "pass_start"]
    passes = Counter(f"pass {event['pass']}" for event in starts for _ in event["ranks"])
    assert Counter({name: n for (cat, name), n in checked.slices.items() if cat == "pass"}) == passes
    assert counts.passes == passes.total()
    told = checked.args["pass"]
    tokens = sum(rank["tokens"] for event in log.events if event["event"] == "pass_end" for rank in event["ranks"])
    assert sum(args.get("tokens", 0) for args in told) == tokens
    gauges = sum(len(event["ranks"]) for event in log.events if event["event"] == "pass_end")
    gauges += sum("gauges" in event for event in log.events if event["event"] == "command")
    assert checked.counters.total() == counts.counters == 2 * gauges
    waits = [(rank.get("end_ms", event["end_ms"]), event["end_ms"]) for event in starts for rank in event["ranks"]]
    barriers = sum(round(rank_ms * 1e6) < round(group_ms * 1e6) for rank_ms, group_ms in waits)
    assert checked.slices["barrier", "waits for a slower rank"] == counts.barriers == barriers


@pytest.mark.parametrize("level", LEVELS)
def test_slices_are_as_many_as_the_log_tells(level: str) -> None:
    for seed in range(40):
        log = random_log(seed, level)
        counts, data = timeline_of(log.bytes())
        check_counts(log, check_trace(data), counts)


def test_the_life_of_a_request_is_its_track() -> None:
    log = random_log(5, "tokens")
    checked = check_trace(timeline_of(log.bytes())[1])
    arrivals = [event for event in log.events if event["event"] == "arrival"]
    for at, arrival in enumerate(arrivals):
        *phases, (name, begin_ns, end_ns) = checked.tracks[at]
        end = next(e for e in log.events if e["event"] in ENDS and e["request"] == arrival["request"])
        assert (name, begin_ns) == (arrival["request"], round(arrival["t_ms"] * 1e6))
        assert end_ns == max(round(end["t_ms"] * 1e6), phases[-1][1])
        assert [begin for _, begin, _ in phases] == [begin_ns, *(end for _, _, end in phases[:-1])]
        assert phases[-1][2] == end_ns


@given(runs())
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
def test_a_clock_that_jumps_makes_no_crooked_slice(run: Any) -> None:
    arguments, script, end = run
    data = RealtimeRun(**arguments).play(script, **end)
    counts, trace = timeline_of(data)
    check_counts(read_log(bare_lines(data)), check_trace(trace), counts)


def test_the_same_log_gives_the_same_bytes_compressed_too() -> None:
    log = random_log(5, "passes").bytes()
    plain = timeline_of(log)[1]
    assert plain == timeline_of(log)[1] == gzip.decompress(timeline_of(log, "trace.json.gz")[1])
