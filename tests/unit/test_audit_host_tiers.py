"""Audits of logs with host memory: recorded runs are sound, and each rule finds what breaks it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_replay.config import ReplayOptions
from mocker_replay.log.audit.run import AuditReport, audit
from mocker_replay.replay import replay
from tests.fuzz.generate import make_shared_tier_case, make_tier_case
from tests.parity.cases import CASES, Case

SOUND = ("g02", "g05", "g06", "g08", "g09", "g10", "g12", "g14", "g19", "g20", "g21", "g22")
Lines = list[dict[str, Any]]


def log_of(key: str, folder: Path, level: str = "kv") -> Path:
    (path,) = (CASES / "handoff").glob(f"{key}-*.json")
    data = json.loads(path.read_text())
    trace = folder / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in data["trace"]))
    options = ReplayOptions(trace_block_size=data["trace_block_size"], num_workers=data["workers"]["aggregated"])
    replay(trace, data["aggregated_config"], options, events=folder / "events.jsonl", event_level=level)
    return folder / "events.jsonl"


@pytest.mark.parametrize("level", ["requests", "passes", "kv"])
@pytest.mark.parametrize("key", SOUND)
def test_recorded_runs_are_sound(key: str, level: str, tmp_path: Path) -> None:
    report = audit(log_of(key, tmp_path, level))
    assert report.findings == []
    assert ("host-lane" in report.not_checked) == (level == "requests")


def run_is_sound(case: Case) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        args = {key: value for key, value in case.args.items() if key != "telemetry_sample_interval_ms"}
        trace, events = case.write_trace(folder), folder / "events.jsonl"
        replay(trace, case.config_with_files(folder), ReplayOptions(**args), events=events, event_level="kv")
        assert audit(events).findings == []


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_random_runs_are_sound(seed: int) -> None:
    run_is_sound(make_tier_case(seed))


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
def test_random_runs_with_a_shared_tier_are_sound(seed: int) -> None:
    run_is_sound(make_shared_tier_case(seed))


def changed(key: str, folder: Path, change: Callable[[Lines], None]) -> AuditReport:
    path = log_of(key, folder)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return audit(path)


def first(lines: Lines, event: str) -> dict[str, Any]:
    return next(line for line in lines if line.get("event") == event)


def later_store(lines: Lines) -> None:
    first(lines, "store_submitted")["end_ms"] += 1.0


def later_load(lines: Lines) -> None:
    first(lines, "load_scheduled")["end_ms"] += 1.0


def other_copy(lines: Lines) -> None:
    first(lines, "load_completed")["copy"] += 7


def no_end(lines: Lines) -> None:
    lines.remove(first(lines, "store_completed"))


def too_many_blocks(lines: Lines) -> None:
    first(lines, "store_prepared")["blocks"] = 10**6


def more_from_the_host(lines: Lines) -> None:
    admission = next(line for line in lines if line.get("host_tokens"))
    admission["host_tokens"] = admission["reused_tokens"] + 400


def unasked_fence(lines: Lines) -> None:
    first(lines, "fence")["until_ms"] += 0.5


def load_of_another(lines: Lines) -> None:
    first(lines, "load_completed")["request"] = "r0"


@pytest.mark.parametrize(
    ("key", "change", "rule"),
    [
        ("g02", later_store, "host-lane"),
        ("g02", later_load, "host-lane"),
        ("g02", other_copy, "host-copy"),
        ("g02", no_end, "host-copy"),
        ("g02", too_many_blocks, "host-room"),
        ("g02", more_from_the_host, "host-reuse"),
        ("g09", unasked_fence, "host-fence"),
        ("g02", load_of_another, "host-wait"),
        ("g21", no_end, "host-copy"),
    ],
)
def test_a_broken_rule_is_found(key: str, change: Callable[[Lines], None], rule: str, tmp_path: Path) -> None:
    assert changed(key, tmp_path, change).by_rule[rule] > 0
