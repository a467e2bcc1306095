"""The audit against many logs: nothing is found in those that runs write, each planted fault is found where it is."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mocker_replay.config import RealtimeOptions
from mocker_replay.log.audit.rules import RULES
from mocker_replay.log.audit.run import AuditReport, audit
from mocker_replay.log.reader import LogError
from tests.property.replays import NOMINAL, Case, cases, measured, paces
from tests.property.replays import run as run_realtime
from tests.property.test_rerun import runs
from tests.support import planted_decisions, planted_in_passes, planted_plays
from tests.support.crowded import crowded_log
from tests.support.planted import FAULTS, FOOTER
from tests.support.random_logs import LEVELS, Log, graph_log, random_log, stopped_log
from tests.support.realtime import RealtimeRun
from tests.support.realtime_replay import Pace

many = settings(max_examples=120, suppress_health_check=list(HealthCheck))
OF_POLICIES = ("decision", "budget")
OF_GRAPHS = ("play", "lanes", "skipped")
NUM_LOGS = 50  # of each level, into which faults are planted
MOST_ATTEMPTS = 3_000
FAULTS_A_RULE = 21  # of some fifty rules: a thousand and more


def audit_bytes(data: bytes, summary: dict[str, Any] | None = None) -> AuditReport:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        path.write_bytes(data)
        return audit(path, summary)


def audit_log(log: Log) -> AuditReport:
    return audit_bytes(log.bytes(), log.summary)


# -- no false alarm -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_seed", range(0, 320, 40))
def test_nothing_is_found_in_the_log_of_a_run(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 40):
        report = audit_log(random_log(seed))
        assert (report.num_findings, report.damage) == (0, None), (seed, report.findings[:3])


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_found_in_the_log_of_a_run_that_could_not_go_on(level: str) -> None:
    ends = Counter()
    for seed in range(25):
        log = stopped_log(seed, level)
        ends[log.footer["end"]] += 1
        report = audit_bytes(log.bytes())
        assert (report.num_findings, report.damage) == (0, None), (seed, report.findings[:3])
    assert ends["stopped"] > 10


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_found_in_the_log_of_a_policy_that_departs_in_every_way(level: str) -> None:
    for seed in range(40):
        report = audit_log(crowded_log(seed, level))
        assert (report.num_findings, report.damage) == (0, None), (seed, report.findings[:3])


@given(cases(), paces, measured)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_nothing_is_found_in_the_log_of_a_realtime_run(case: Case, pace: Pace, realtime: RealtimeOptions) -> None:
    for options in (NOMINAL, realtime):
        with tempfile.TemporaryDirectory() as name:
            outputs = run_realtime(case, Path(name), options, pace)
            report = audit(Path(name) / "events.jsonl", outputs.summary)
        assert (report.num_findings, report.damage) == (0, None), report.findings[:3]


@given(runs())
@many
def test_nothing_is_found_in_the_log_of_a_late_and_jumping_clock(run: Any) -> None:
    arguments, script, end = run
    report = audit_bytes(RealtimeRun(**arguments).play(script, **end))
    assert (report.num_findings, report.damage) == (0, None), report.findings[:3]


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_found_in_the_log_of_a_graph(level: str) -> None:
    for seed in range(40):
        report = audit_log(graph_log(seed, level))
        assert (report.num_findings, report.damage) == (0, None), (seed, report.findings[:3])


# -- planted faults -------------------------------------------------------------------------------------


def test_there_is_a_fault_for_every_rule() -> None:
    assert set(FAULTS) == set(RULES)
    assert planted_in_passes.FOOTER == FOOTER, "its faults are among them"
    assert planted_plays.FOOTER == FOOTER, "its faults are among them"
    assert planted_decisions.placement_of_round_robin in FAULTS["decision"]


def test_a_log_put_together_again_is_the_same() -> None:
    log = random_log(3, "kv").copy()
    before = log.bytes()
    log.recount()
    log.resign()
    assert log.bytes() == before


@pytest.mark.parametrize("rule", RULES)
def test_a_planted_fault_is_found_by_its_rule_alone(rule: str) -> None:
    rng = random.Random(rule)
    planted: Counter[str] = Counter()
    for attempt in range(MOST_ATTEMPTS):
        fault = FAULTS[rule][attempt % len(FAULTS[rule])]
        make = crowded_log if rule in OF_POLICIES and rng.random() < 0.7 else random_log
        if rule in OF_GRAPHS and rng.random() < 0.8:
            make = graph_log
        log = make(rng.randrange(NUM_LOGS), rng.choice(LEVELS)).copy()
        seq = fault(log, rng)
        if seq is None:
            continue
        if rule != "digest":
            log.resign()
        report = audit_bytes(log.bytes(), log.summary if rule == "summary" else None)
        assert set(report.by_rule) == {rule}, (fault.__name__, report.findings[:4])
        assert report.findings[0].seq == (None if seq == FOOTER else seq), (fault.__name__, seq, report.findings[:4])
        assert report.findings[0].line == (len(log.events) + 2 if seq == FOOTER else seq + 2)
        planted[fault.__name__] += 1
        if planted.total() >= FAULTS_A_RULE and len(planted) == len(FAULTS[rule]):
            return
    pytest.fail(f"too few places for the faults of {rule}: {planted}")


@given(st.integers(0, NUM_LOGS - 1), st.sampled_from(LEVELS), st.integers(0, 2**32))
@settings(max_examples=200)
def test_no_log_however_broken_breaks_the_audit(seed: int, level: str, chance: int) -> None:
    rng = random.Random(chance)
    log = random_log(seed, level).copy()
    for _ in range(rng.randrange(1, 6)):
        damage(log, rng)
    data = log.bytes()
    if rng.random() < 0.2:
        data = data[: rng.randrange(len(data))]
    try:
        report = audit_bytes(data, log.summary)
    except LogError:
        return  # a header that is none
    orjson.dumps(report.to_mapping())


def damage(log: Log, rng: random.Random) -> None:
    """Any change to the lines."""
    if not log.events:
        return
    at = rng.randrange(len(log.events))
    kind = rng.randrange(5)
    if kind == 0:
        del log.events[at]
    elif kind == 1:
        log.events.insert(rng.randrange(len(log.events)), log.events[at])
    elif kind == 2:
        other = rng.randrange(len(log.events))
        log.events[at], log.events[other] = log.events[other], log.events[at]
    else:
        event = log.events[at] = orjson.loads(orjson.dumps(log.events[at]))
        key = rng.choice(list(event))
        values = [None, 0, 7, -1, 0.5, "r0", [], {}, True, 2**63]
        event[key] = rng.choice([other.get(key) for other in log.events] if kind == 3 else values)
