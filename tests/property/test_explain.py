"""Explanations of every request of many logs: parts add up exactly, and are what the lines say."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from mocker_replay.log.explain import explain
from mocker_replay.log.explanation import PARTS, Explanation
from mocker_replay.log.wall import bare_lines
from tests.property.test_rerun import runs
from tests.support.random_logs import LEVELS, Log, random_log, read_log
from tests.support.realtime import RealtimeRun
from tests.support.stories import arrival_of, end_of, names_of, passes_of


def check(log: Log, path: Path, name: str, *, measured: bool = False) -> Explanation:
    told = explain(path, name)
    arrival, end = arrival_of(log, name), end_of(log, name)
    assert (told.arrival_ms, told.end_ms, told.end) == (arrival["t_ms"], end["t_ms"], end["event"])
    assert sum((ms for _, ms, _ in told.parts()), Fraction(0)) == Fraction(end["t_ms"]) - Fraction(arrival["t_ms"])
    assert {part for part, _, _ in told.parts()} <= set(PARTS)
    mark_ms = told.arrival_ms
    for stretch in told.stretches:
        assert stretch.start_ms == mark_ms
        assert (stretch.end_ms < stretch.start_ms) == (stretch.part == "clock"), stretch
        mark_ms = stretch.end_ms
    assert mark_ms == told.end_ms
    assert measured or all(stretch.part not in ("clock", "between_passes") for stretch in told.stretches)
    assert told.preemptions == sum(e["event"] == "preemption" and e["request"] == name for e in log.events)
    return told


@pytest.mark.parametrize("level", LEVELS)
def test_parts_add_up_and_are_what_the_lines_say(level: str, tmp_path: Path) -> None:
    told_parts = set()
    for seed in range(25):
        log = random_log(seed, level)
        path = tmp_path / f"{seed}.jsonl"
        path.write_bytes(log.bytes())
        for name in names_of(log)[:12]:
            told = check(log, path, name)
            told_parts |= {part for part, _, _ in told.parts()}
            if level in ("tokens", "kv"):
                check_passes(log, told)
    expected = {"waiting", "prefill", "decode", "preempted"}
    if level != "requests":
        expected |= {"submission", "slower_rank", "recompute"}
    assert expected <= told_parts, "the logs hold every kind of part"
    assert level != "requests" or told_parts == expected


def check_passes(log: Log, told: Explanation) -> None:
    """Passes that gave it something, one by one."""
    emitting, computing = passes_of(log, told.request)
    by_part: dict[str, set[int]] = {part: set() for part in PARTS}
    for stretch in told.stretches:
        if stretch.pass_number is not None:
            assert stretch.pass_number not in by_part[stretch.part]
            by_part[stretch.part].add(stretch.pass_number)
    recompute, prefill = by_part["recompute"], by_part["prefill"]
    assert {s.pass_number for s in told.stretches if s.own_tokens} == computing <= prefill | recompute
    assert by_part["decode"] == emitting - computing - recompute
    assert not by_part["stalled"] & (emitting | computing)
    assert not recompute or told.preemptions
    assert prefill == computing - recompute or told.asked_tokens == 0


@given(runs())
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
def test_parts_add_up_where_clocks_are_late_and_jump(run: Any) -> None:
    arguments, script, end = run
    data = RealtimeRun(**arguments).play(script, **end)
    log = read_log(bare_lines(data))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        path.write_bytes(data)
        for name in names_of(log):
            orjson.dumps(check(log, path, name, measured=True).to_mapping())
