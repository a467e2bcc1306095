"""docs/event-log.md against the golden log: its examples are real lines, and no field goes without a word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from mocker_replay._core.log_encoder import LogEncoder
from mocker_replay.events import EVENT_LEVELS, EVENT_SCHEMA, LogEvent, RunEnd, TerminalReason
from tests.support.event_stream import host_stream

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "event-log.md").read_text()
GOLDEN_LINES = (ROOT / "tests" / "golden" / "event_log" / "sample.jsonl").read_text().splitlines()
HOST_LINES = LogEncoder("passes").encode(host_stream()).decode().splitlines()
HANDOFF_LINES = [
    line
    for line in (ROOT / "tests" / "golden" / "runs" / "prefill-decode-kv" / "events.jsonl").read_text().splitlines()
    if '"event":"handoff"' in line
]
REALTIME_LINES = [
    line
    for path in sorted((ROOT / "tests" / "golden" / "realtime").glob("*.jsonl"))
    for line in path.read_text().splitlines()
]


def keys_of(value: Any) -> Iterator[str]:
    """All keys of a line, those of nested objects too."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key not in ("trace", "config", "options"):  # defined elsewhere
                yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


def section_of(event: str) -> str:
    """The part of the page that defines an event."""
    if event in ("header", "footer"):
        return PAGE.split("\n## Header and footer\n")[1].split("\n## ")[0]
    match = re.search(rf"^### [^\n]*`{event}`.*?(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert match, f"no section for {event}"
    return match.group()


def test_examples_are_lines_of_the_golden_log() -> None:
    examples = [line for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    assert {orjson.loads(line)["event"] for line in examples} == set(LogEvent)
    assert [line for line in examples if line not in GOLDEN_LINES + HANDOFF_LINES + REALTIME_LINES + HOST_LINES] == []


def test_every_field_is_defined_in_its_section() -> None:
    common = {"seq", "t_ms", "event"}
    for line in map(orjson.loads, GOLDEN_LINES + HANDOFF_LINES):
        section = section_of(line["event"])
        prose = re.sub(r"```json\n.*?```", "", section, flags=re.DOTALL)
        missing = {key for key in keys_of(line) if f"`{key}`" not in prose} - common
        assert not missing, f"{line['event']}: {missing}"


def test_every_field_of_the_clock_is_defined() -> None:
    section = PAGE.split("\n## The key `wall`\n")[1].split("\n## ")[0]
    walls = [orjson.loads(line).get("wall", {}) for line in REALTIME_LINES]
    fields = {key for wall in walls for key in keys_of(wall)}
    assert fields == {"mode", "clock", "ms", "planned_ms", "hash_ids", "steps"}
    assert not {key for key in fields if f"`{key}`" not in section}
    carried = {step[1]: len(step) - 3 for wall in walls for step in wall.get("steps", ())}
    for stimulus, num_more in carried.items():
        assert (f"`{stimulus}`" in section) == (num_more > 0), stimulus


def test_levels_reasons_ends_and_schema_are_those_of_the_program() -> None:
    table = dict(re.findall(r"^\| `(\w+)`[^|]*\| ((?:`\w+` ?)+)\|$", PAGE, re.MULTILINE))
    for event, level in EVENT_LEVELS.items():
        assert f"`{event}`" in table[level]
    for word in (*(reason.name.lower() for reason in TerminalReason), *RunEnd, EVENT_SCHEMA):
        assert f"`{word}`" in PAGE
