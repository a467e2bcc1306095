"""Parts of the audit one by one: statistics, form, names that repeat, limits of a report, memory, its page."""

from __future__ import annotations

import itertools
import random
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mocker_replay.config import ReplayOptions
from mocker_replay.events import EventLevel
from mocker_replay.log.audit import statistics
from mocker_replay.log.audit.cache import chain_hash
from mocker_replay.log.audit.findings import MAX_KEPT
from mocker_replay.log.audit.rules import RULES, decided_by
from mocker_replay.log.audit.run import NAMELESS, AuditReport, audit
from mocker_replay.log.reader import LogError
from mocker_replay.replay import replay
from mocker_replay.report import metrics
from tests.conftest import MakeTrace, make_row
from tests.support.random_logs import Log, random_log, read_log

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "audit.md").read_text()
REALTIME = ROOT / "tests" / "golden" / "realtime" / "complete-kv.jsonl"


@pytest.fixture
def audited(tmp_path: Path) -> Any:
    """Audits a log, its digest made true."""

    def run(log: Log | bytes, summary: dict[str, Any] | None = None) -> AuditReport:
        path = tmp_path / "log.jsonl"
        if isinstance(log, Log):
            log.resign()
            path.write_bytes(log.bytes())
        else:
            path.write_bytes(log)
        return audit(path, summary)

    return run


# -- statistics: two implementations of docs/metrics.md ---------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 3, 8, 11, 500])
def test_statistics_of_requests_are_those_of_the_report_to_the_bit(n: int) -> None:
    rng = random.Random(n)
    for _ in range(20):
        values = [rng.choice([rng.uniform(0, 1e3), rng.expovariate(1e3), 12.5]) for _ in range(n)]
        assert statistics.of_requests(values) == metrics.describe(np.array(values, np.float64))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 8, 300])
def test_statistics_of_a_pool_are_those_of_the_report(n: int) -> None:
    rng = random.Random(n)
    samples = {rng.uniform(0, 50): rng.choice([1, 1, 2, 1000]) for _ in range(n)}
    ordered = sorted(samples)
    told = statistics.of_pool(samples)
    report = metrics.describe_weighted(np.array(ordered), np.array([samples[value] for value in ordered], np.int64))
    assert set(told) == set(report) == set(statistics.STATISTICS)
    assert {k: v for k, v in told.items() if k not in ("mean", "std")} == {
        k: v for k, v in report.items() if k not in ("mean", "std")
    }
    assert told["mean"] == pytest.approx(report["mean"], rel=1e-12)
    assert told["std"] == pytest.approx(report["std"], rel=1e-9, abs=1e-12)


def test_a_left_to_right_sum_is_not_compensated() -> None:
    assert statistics.added([1e16, 1.0, 1.0, -1e16]) == 0.0


# -- form -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"t_ms": 5}, "`t_ms` is of another type or out of range"),
        ({"worker": None}, "`worker` is of another type or out of range"),
        ({"input_tokens": -1}, "`input_tokens` is of another type or out of range"),
        ({"input_tokens": True}, "`input_tokens` is of another type or out of range"),
        ({"event": "arrived"}, "no event of level kv: arrived"),
        ({"event": ["arrival"]}, "no event of level kv: ['arrival']"),
        ({"wall": {"ms": 1.0}}, "`wall` is unknown or out of order"),
    ],
)
def test_a_line_of_another_form(change: dict[str, Any], text: str, audited: Any) -> None:
    log = random_log(1, "kv").copy()
    at = next(at for at, event in enumerate(log.events) if event["event"] == "arrival")
    log.events[at] |= change
    found = audited(log).findings[0]
    assert (found.rule, found.seq, found.text) == ("form", at, text)


def test_a_line_that_is_no_json_and_a_missing_key(audited: Any) -> None:
    log = random_log(1, "passes").copy()
    arrival = next(event for event in log.events if event["event"] == "arrival")
    del arrival["input_tokens"]
    assert audited(log).findings[0].text == "`input_tokens` is missing"
    header, first, *rest = random_log(1, "passes").bytes().splitlines(keepends=True)
    report = audited(header + first[:-2] + b"\n" + b"".join(rest))
    assert report.findings[0].rule == "form"
    assert report.findings[0].text.startswith("no JSON object")
    assert report.by_rule["digest"] == 1


def test_a_line_of_a_higher_level(audited: Any) -> None:
    log = random_log(1, "requests").copy()
    log.events.append(next(event for event in random_log(1, "passes").copy().events if event["event"] == "pass_start"))
    log.recount()
    assert audited(log).by_rule == {"form": 1}


def test_a_wall_key_that_is_not_the_last_one(audited: Any) -> None:
    data = REALTIME.read_bytes()
    assert audited(data).num_findings == 0
    header, first, rest = data.split(b"\n", 2)
    assert first.endswith(b"}}")
    report = audited(b"\n".join((header, first[:-1] + b',"rank":0}', rest)))
    assert report.findings[0].seq == 0
    assert report.findings[0].text == "no JSON object: wall must be a JSON object and the last key of its line"


def test_a_header_that_does_not_say_what_it_must(audited: Any) -> None:
    log = random_log(1, "passes").copy()
    del log.engine["block_size"]
    with pytest.raises(LogError, match=r":1: config\.engine\.block_size: the header of an event log must have it"):
        audited(log)
    log.engine["block_size"] = 0
    with pytest.raises(LogError, match=r"block_size: must be a whole number from 1 on \(got 0\)"):
        audited(log)
    log.header["level"] = "everything"
    with pytest.raises(LogError, match=":1: level: must be one of requests, passes, tokens, kv"):
        audited(log)


# -- names ------------------------------------------------------------------------------------------------


def run_of(make_trace: MakeTrace, tmp_path: Path, rows: list[dict[str, Any]], level: str = "kv") -> Log:
    events = tmp_path / "events.jsonl"
    replay(make_trace(rows), {"engine": {}}, ReplayOptions(), events=events, event_level=level)
    return read_log(events.read_bytes())


def test_two_live_requests_of_one_name_end_what_needs_names(
    make_trace: MakeTrace, tmp_path: Path, audited: Any
) -> None:
    rows = [make_row(0, 900, 4), make_row(1, 900, 9, request_id="twin"), make_row(2, 900, 2, request_id="twin")]
    log = run_of(make_trace, tmp_path, rows)
    second = [event["seq"] for event in log.events if event["event"] == "arrival"][2]
    report = audited(log, {"num_requests": 5})
    assert (report.num_findings, report.damage) == (0, None)
    why = f"two requests of one name live from line {second + 2} on"
    assert {rule for rule, reason in report.not_checked.items() if reason == why} == set(RULES) - NAMELESS
    end = next(event for event in log.events if event["event"] == "pass_end" and event["seq"] > second)
    end["pass"] += 7
    assert audited(log).by_rule == {"pass-pair": 1}


def test_a_name_that_comes_again_later_is_followed(make_trace: MakeTrace, tmp_path: Path, audited: Any) -> None:
    log = run_of(make_trace, tmp_path, [make_row(0, 9, 2, request_id="x"), make_row(9_000, 9, 2, request_id="x")])
    report = audited(log)
    assert (report.num_findings, set(report.not_checked)) == (0, {"summary"})
    log.events[-1]["output_tokens"] = 1
    assert set(audited(log).by_rule) == {"output-tokens"}


# -- reports ----------------------------------------------------------------------------------------------


def test_all_findings_are_counted_and_some_kept(audited: Any) -> None:
    log = max((random_log(seed, "kv") for seed in range(8)), key=lambda log: len(log.events)).copy()
    for event in log.events:
        event["colour"] = "red"
    assert len(log.events) > MAX_KEPT
    report = audited(log)
    assert (len(report.findings), report.num_findings) == (MAX_KEPT, len(log.events))
    assert report.by_rule == {"form": len(log.events)}
    assert report.exit_code == 1


def test_each_level_decides_more() -> None:
    decided = [decided_by(level) for level in EventLevel]
    assert all(lower < higher for lower, higher in itertools.pairwise(decided))
    assert decided[-1] == set(RULES)
    assert set(RULES) > NAMELESS


def test_the_chain_of_a_block() -> None:
    assert chain_hash(1, 2) != chain_hash(2, 1)
    assert 0 <= chain_hash(2**64 - 1, 0) < 2**64


def test_the_page_says_what_the_rules_say() -> None:
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", PAGE, re.MULTILINE))
    assert rows == {name: f"{rule.level} | {rule.holds}" for name, rule in RULES.items()}


# -- memory -----------------------------------------------------------------------------------------------


def test_memory_follows_what_lives_and_not_the_log(make_trace: MakeTrace, tmp_path: Path) -> None:
    """A log of half as many requests again, a few at a time: the audit needs no more for it."""

    def peak(num_rows: int) -> int:
        rows = [make_row(40 * at, 300, 12, hash_ids=[at]) for at in range(num_rows)]
        events = tmp_path / f"{num_rows}.jsonl"
        replay(make_trace(rows), {"engine": {"num_gpu_blocks": 64}}, ReplayOptions(), events=events, event_level="kv")
        tracemalloc.start()
        try:
            assert audit(events).num_findings == 0
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(20)  # whatever is loaded once
    assert peak(1_400) < 1.05 * peak(900), "both are longer than what is read at a time"
