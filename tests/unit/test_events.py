"""The Python enums against the C header they mirror, and the vocabulary against the encoder."""

from __future__ import annotations

import enum
import re
from pathlib import Path

import orjson
import pytest

from mocker_replay import _core, events
from mocker_replay._core.event_buffer import KIND_NAMES
from mocker_replay._core.log_encoder import LEVELS, LogEncoder
from tests.support.event_stream import handoff_stream, host_stream, sample_stream

PREFIXES = {
    "EventKind": "EV_",
    "HostStep": "HOST_",
    "CommandKind": "CMD_",
    "CommandResult": "RES_",
    "CommandFlag": "CMD_",
    "HandoffStage": "STAGE_",
    "TerminalStatus": "TERM_",
    "TerminalReason": "REASON_",
    "Want": "WANT_",
}


def header_enums() -> dict[str, dict[str, int]]:
    """Name and members of every enum in event_buffer.pxd."""
    text = (Path(next(iter(_core.__path__))) / "event_buffer.pxd").read_text()
    blocks = re.findall(r"^cdef enum (\w+):\n((?:    .*\n)+)", text, re.MULTILINE)
    return {name: {k: int(v) for k, v in re.findall(r"^\s+(\w+) = (\d+)", body, re.MULTILINE)} for name, body in blocks}


def test_every_enum_of_the_header_is_mirrored() -> None:
    assert set(header_enums()) == set(PREFIXES)


@pytest.mark.parametrize("name", PREFIXES)
def test_enum_agrees_with_the_header(name: str) -> None:
    mirror: type[enum.IntEnum] = getattr(events, name)
    assert {PREFIXES[name] + member.name: int(member) for member in mirror} == header_enums()[name]


def test_kind_names_agree() -> None:
    assert tuple(kind.name.lower() for kind in events.EventKind) == KIND_NAMES


def test_levels_agree_with_the_encoder() -> None:
    assert tuple(events.EventLevel) == LEVELS


@pytest.mark.parametrize("level", events.EventLevel)
def test_each_level_holds_exactly_the_events_said(level: events.EventLevel) -> None:
    streams = (sample_stream, handoff_stream, host_stream)
    lines = [line for make in streams for line in LogEncoder(level).encode(make()).splitlines()]
    order = list(events.EventLevel)
    said = {event for event, lowest in events.EVENT_LEVELS.items() if order.index(lowest) <= order.index(level)}
    assert {orjson.loads(line)["event"] for line in lines} == said


def test_reason_texts_are_the_member_names() -> None:
    lines = LogEncoder("requests").encode(sample_stream()).splitlines()
    reasons = {row["reason"] for row in map(orjson.loads, lines) if "reason" in row and row["event"] != "decision"}
    assert reasons == {"output_length", "prompt_over_pool", "client", "growth_over_pool"}
    assert reasons <= {reason.name.lower() for reason in events.TerminalReason}
