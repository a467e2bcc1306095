"""The audit of logs with prefill and decode workers: sound logs pass, each planted fault is found by its rule alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.config import ReplayOptions
from mocker_replay.events import EventLevel
from mocker_replay.log.audit.rules import HANDOFF_RULES, HOST_RULES, OF_ROLES, RULES, decided_by
from mocker_replay.log.audit.run import AuditReport, audit
from mocker_replay.log.digest import EventDigest
from mocker_replay.replay import replay
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
    with_tier = "native_host_offload" in json.dumps(ALL[key]) and level == "kv"
    held = decided_by(EventLevel(level), RULES | HANDOFF_RULES) & OF_ROLES | (set(HOST_RULES) if with_tier else set())
    assert held == set(report.to_mapping()["checked"])
    assert {"handoff", "handoff-tokens", "handoff-time", "handoff-end"} <= held
    assert ("handoff-blocks" in held) == (level == "kv")


@pytest.mark.parametrize("level", ["requests", "passes"])
@pytest.mark.parametrize("patience_ms", [0.0, 4.0])
def test_who_leaves_before_a_prefill_was_asked_for_has_nothing_there(
    level: str, patience_ms: float, tmp_path: Path
) -> None:
    """The destination goes first, and the client leaves with its arrival, or while its prompt is computed."""
    trace = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 8, "output_length": 4, "hash_ids": [1, 2]}
    trace.write_text(json.dumps(row | {"cancel_after_ms": patience_ms}) + "\n")
    engine = {"backend": "sglang", "block_size": 4, "timing_model": {"type": "fixed", "prefill_ms": 10, "decode_ms": 1}}
    pools = {f"{role}_config": {"engine": engine | {"worker_type": role}} for role in ("prefill", "decode")}
    log = tmp_path / "events.jsonl"
    options = ReplayOptions(num_prefill_workers=1, num_decode_workers=1, trace_block_size=4)
    replay(trace, None, options, events=log, event_level=level, **pools)
    assert (audit(log).num_findings, b"source_cancelled" in log.read_bytes()) == (0, patience_ms > 0)


def audited(lines: list[Event], folder: Path) -> AuditReport:
    """What an audit says of changed lines, numbered anew."""
    header, *body, footer = lines
    for seq, event in enumerate(body):
        event["seq"] = seq
    texts = [json.dumps(event, separators=(",", ":")) for event in (header, *body)]
    digest = EventDigest()
    for text in texts[1:]:
        digest.update(text.encode() + b"\n")
    footer |= {"events": len(body), "digest": digest.hexdigest()}
    log = folder / "changed.jsonl"
    log.write_text("".join(f"{text}\n" for text in (*texts, json.dumps(footer, separators=(",", ":")))))
    return audit(log)


def stage(lines: list[Event], kind: str) -> Event:
    return next(line for line in lines if line.get("kind") == kind and line["event"] == "handoff")


def passes(lines: list[Event], kind: str, worker: int) -> list[Event]:
    """Starts or ends of the passes of a worker."""
    return [line for line in lines if line["event"] == kind and line["worker"] == worker]


def later(lines: list[Event]) -> None:
    """The second pass of the decode worker starts before its first one ended, as far as times go."""
    first, second = passes(lines, "pass_start", 1)[:2]
    second["t_ms"] = first["t_ms"] - 0.5
    end = passes(lines, "pass_end", 1)[1]
    for rank in end["ranks"]:
        rank["fpm"]["wall_time"] = (end["t_ms"] - second["t_ms"]) / 1000.0


def gauges(**values: int) -> Callable[[list[Event]], None]:
    """Of the last pass of the decode worker."""
    return lambda lines: passes(lines, "pass_end", 1)[-1]["ranks"][0]["gauges"].update(values)


def drop(kind: str) -> Callable[[list[Event]], None]:
    return lambda lines: lines.remove(stage(lines, kind))


def change(kind: str, **values: Any) -> Callable[[list[Event]], None]:
    return lambda lines: stage(lines, kind).update(values)


FAULTS: dict[str, Callable[[list[Event]], None]] = {
    "handoff": change("destination_accepted", worker=0),
    "handoff-tokens": change("destination_reserved", tokens=15),
    "handoff-time": change("transfer_started", end_ms=27.0),
    "handoff-end": drop("source_released"),
    "handoff-blocks": gauges(active_blocks=1),
    "time": later,
    "pass-pair": lambda lines: lines.remove(passes(lines, "pass_end", 1)[-1]),
    "pass-number": lambda lines: [
        line.update({"pass": 7}) for line in lines if line.get("pass") == 0 and line["worker"]
    ],
    "pass-time": lambda lines: passes(lines, "pass_start", 1)[-1].update(end_ms=1e6),
    "wall-time": lambda lines: passes(lines, "pass_end", 1)[-1]["ranks"][0]["fpm"].update(wall_time=1.0),
    "pool": gauges(inactive_blocks=10_000),
}


def test_every_rule_has_a_fault() -> None:
    # A rank stands idle only among others, which the recorded runs have not.
    held_elsewhere = {"form", "seq", "footer", "digest", "left-over", "idle-rank", *HOST_RULES}
    assert set(FAULTS) | held_elsewhere == OF_ROLES


def test_who_waits_or_runs_is_known(lines: list[Event], tmp_path: Path) -> None:
    changed = json.loads(json.dumps(lines))
    gauges(waiting=3)(changed)
    assert set(audited(changed, tmp_path).by_rule) == {"handoff-blocks"}


def test_an_idle_rank_has_no_tokens(tmp_path: Path) -> None:
    case = json.loads(json.dumps(ALL["d18"]))
    case["decode_config"]["dp_size"] = 2
    run(case, tmp_path, events=tmp_path / "first.jsonl", event_level="passes")
    lines = [json.loads(line) for line in (tmp_path / "first.jsonl").read_text().splitlines()]
    idle = [
        (end["ranks"][rank], rank)
        for start, end in zip(passes(lines, "pass_start", 1), passes(lines, "pass_end", 1), strict=True)
        for rank in range(2)
        if rank not in [told["rank"] for told in start["ranks"]]
    ]
    idle[0][0]["fpm"]["num_decode_requests"] = 1
    assert set(audited(lines, tmp_path).by_rule) == {"idle-rank"}


@pytest.mark.parametrize("rule", FAULTS)
def test_a_planted_fault_is_found(rule: str, lines: list[Event], tmp_path: Path) -> None:
    changed = json.loads(json.dumps(lines))
    FAULTS[rule](changed)
    report = audited(changed, tmp_path)
    assert rule in report.by_rule
    assert set(report.by_rule) == {rule}
