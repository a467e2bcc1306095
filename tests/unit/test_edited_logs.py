"""Logs that somebody has edited: each verb refuses them or tells what it finds, and none of them breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from mocker_replay.log.audit.run import audit
from mocker_replay.log.diff import diff_logs
from mocker_replay.log.digest import EventDigest
from mocker_replay.log.explain import explain
from mocker_replay.log.reader import LogError
from mocker_replay.log.timeline import write_timeline

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = ROOT / "tests" / "golden" / "runs" / "plain-kv" / "events.jsonl"


def edited(event: str, path: tuple[str | int, ...], value: object, target: Path) -> Path:
    """The sample with another value in its last line of this kind; the footer agrees."""
    lines = SAMPLE.read_bytes().splitlines()
    at = max(number for number, line in enumerate(lines) if f'"event":"{event}"'.encode() in line)
    document = orjson.loads(lines[at])
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    assert place[path[-1]] != value
    place[path[-1]] = value
    lines[at] = orjson.dumps(document)
    digest = EventDigest()
    digest.update(b"".join(line + b"\n" for line in lines[1:-1]))
    lines[-1] = orjson.dumps(orjson.loads(lines[-1]) | {"digest": digest.hexdigest()})
    target.write_bytes(b"".join(line + b"\n" for line in lines))
    return target


HEADERS: list[tuple[tuple[str | int, ...], object]] = [
    (("level",), None),
    (("level",), "most"),
    (("options",), 3),
    (("options", "num_workers"), "two"),
    (("options", "num_workers"), 10**18),
    (("config",), []),
    (("config", "dp_size"), "two"),
    (("config", "dp_size"), 2**40),
    (("trace",), "x"),
    (("config", "engine", "backend"), ["vllm"]),
    (("config", "engine"), None),
]
LINES: list[tuple[str, tuple[str | int, ...], object]] = [
    ("pass_start", ("end_ms",), 1e308),
    ("pass_start", ("worker",), 2**64 - 1),
    ("pass_start", ("ranks",), 1),
    ("pass_start", ("ranks", 0), []),
    ("pass_end", ("t_ms",), 1e308),
    ("pass_end", ("worker",), 2**63),
    ("pass_end", ("ranks", 0, "gauges"), None),
    ("pass_end", ("ranks", 0, "tokens"), 2**64 - 1),
    ("arrival", ("t_ms",), 1e305),
    ("arrival", ("request",), ["r0"]),
    ("arrival", ("worker",), 2**64 - 1),
    ("finish", ("output_tokens",), 2**64 - 1),
    ("finish", ("t_ms",), -1e308),
    ("admission", ("worker",), 2**63),
    ("footer", ("arrived",), 2**64 - 1),
]


@pytest.mark.parametrize(("path", "value"), HEADERS, ids=str)
def test_a_header(path: tuple[str | int, ...], value: object, tmp_path: Path) -> None:
    log = edited("header", path, value, tmp_path / "log.jsonl")
    for read in (
        lambda: audit(log),
        lambda: explain(log, "r0"),
        lambda: write_timeline(log, tmp_path / "trace.json"),
        lambda: diff_logs(SAMPLE, log),
    ):
        try:
            read()
        except LogError as exc:
            assert f"{log}:1: " in str(exc)  # noqa: PT017 - not every verb needs every field
            assert not (tmp_path / "trace.json").exists()


@pytest.mark.parametrize(("event", "path", "value"), LINES, ids=str)
def test_a_line(event: str, path: tuple[str | int, ...], value: object, tmp_path: Path) -> None:
    log = edited(event, path, value, tmp_path / "log.jsonl")
    report = audit(log)
    assert report.num_findings
    orjson.dumps(report.to_mapping())
    for pair in ((SAMPLE, log), (log, SAMPLE)):
        diff = diff_logs(*pair)
        assert event == "footer" or diff.first is not None
        orjson.dumps(diff.to_mapping())
    for read in (lambda: explain(log, "r0"), lambda: write_timeline(log, tmp_path / "trace.json")):
        try:
            read()
        except LogError as exc:
            assert "mocker-replay audit says more" in str(exc)  # noqa: PT017


def test_a_line_that_is_no_json_is_told_by_its_number(tmp_path: Path) -> None:
    lines = SAMPLE.read_bytes().splitlines()
    at = next(number for number, line in enumerate(lines) if b'"event":"finish"' in line)
    lines[at] = lines[at].replace(b'"output_tokens":', b'"output_tokens":1e999,"x":')
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"".join(line + b"\n" for line in lines))
    request = orjson.loads(SAMPLE.read_bytes().splitlines()[at])["request"]
    for read in (lambda: explain(log, request), lambda: write_timeline(log, tmp_path / "trace.json")):
        with pytest.raises(LogError, match=f"{log}:{at + 1}: no run writes this line here"):
            read()


def test_a_line_that_is_no_json_in_both_logs_is_no_history(tmp_path: Path) -> None:
    lines = SAMPLE.read_bytes().splitlines()
    at = next(number for number, line in enumerate(lines) if b'"event":"first_token"' in line)
    request = orjson.loads(lines[at])["request"]
    lines[at] = lines[at].replace(b'"t_ms":', b'"t_ms":1e999,"x":')
    logs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    logs[0].write_bytes(b"\n".join(lines) + b"\n")
    end = max(number for number, line in enumerate(lines) if f'"request":"{request}"'.encode() in line)
    lines[end] = lines[end].replace(b'"t_ms":', b'"t_ms":1')
    logs[1].write_bytes(b"\n".join(lines) + b"\n")
    diff = diff_logs(*logs, verify=True, history_lines=100)
    assert diff.first is not None
    assert diff.first.history is not None
    assert diff.first.history.about == f"request {request}"
    assert diff.first.history.num_lines == len(diff.first.history.events) + 1
