"""The audit of logs with prefill and decode workers: sound logs pass, each planted fault is found by its rule alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.log.audit.rules import HANDOFF_RULES
from mocker_replay.log.audit.run import audit
from mocker_replay.log.digest import EventDigest
from tests.parity.test_handoff_cases import ALL, RUNS, run

Event = dict[str, Any]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    folder = tmp_path_factory.mktemp("log")
    run(ALL["d18"], folder, events=folder / "events.jsonl", event_level="passes")
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("key", RUNS)
@pytest.mark.parametrize("level", ["requests", "kv"])
def test_every_recorded_run_is_sound(key: str, level: str, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    run(ALL[key], tmp_path, events=log, event_level=level)
    report = audit(log)
    assert (report.num_findings, report.damage) == (0, None)
    assert set(HANDOFF_RULES) <= set(report.to_mapping()["checked"])


def stage(lines: list[Event], kind: str) -> Event:
    return next(line for line in lines if line.get("kind") == kind and line["event"] == "handoff")


def drop(kind: str) -> Callable[[list[Event]], None]:
    return lambda lines: lines.remove(stage(lines, kind))


def change(kind: str, **values: Any) -> Callable[[list[Event]], None]:
    return lambda lines: stage(lines, kind).update(values)


FAULTS: dict[str, Callable[[list[Event]], None]] = {
    "handoff": change("destination_accepted", worker=0),
    "handoff-tokens": change("destination_reserved", tokens=15),
    "handoff-time": change("transfer_started", end_ms=27.0),
    "handoff-end": drop("source_released"),
}


def test_every_rule_has_a_fault() -> None:
    assert set(FAULTS) == set(HANDOFF_RULES)


@pytest.mark.parametrize("rule", FAULTS)
def test_a_planted_fault_is_found(rule: str, lines: list[Event], tmp_path: Path) -> None:
    changed = json.loads(json.dumps(lines))
    FAULTS[rule](changed)
    header, *body, footer = changed
    for seq, event in enumerate(body):
        event["seq"] = seq
    texts = [json.dumps(event, separators=(",", ":")) for event in (header, *body)]
    digest = EventDigest()
    for text in texts[1:]:
        digest.update(text.encode() + b"\n")
    footer |= {"events": len(body), "digest": digest.hexdigest()}
    log = tmp_path / "events.jsonl"
    log.write_text("".join(f"{text}\n" for text in (*texts, json.dumps(footer, separators=(",", ":")))))
    report = audit(log)
    assert rule in report.by_rule
    assert set(report.by_rule) == {rule}
