"""One line of an agentic Mooncake trace, checked field by field: its header, or one request.

Decides which lines are legal on their own and names everything wrong with one that is not. What holds between lines
is in graph_checks.py. A faulty line comes out with what is right about it, so that later checks still see that.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from msgspec import Struct, field

from mocker_replay.trace.base import MAX_TOKENS
from mocker_replay.trace.decimals import is_read_alike
from mocker_replay.trace.exact_fields import NULL, Fields
from mocker_replay.trace.exact_json import add_syntax_fault, exact_pairs, is_blank
from mocker_replay.trace.faults import FaultList
from mocker_replay.trace.graph import Relation, Trigger

SCHEMA: Final = "dynamo.agentic_mooncake"
VERSION: Final = 2

_MAX_U64: Final = 2**64 - 1
_MAX_U32: Final = 2**32 - 1
_HEADER: Final = {name: name for name in ("schema", "version", "block_size", "hash_id_scope", "source")}
_SOURCE: Final = {name: name for name in ("format", "digest")}
_REQUEST: Final = {
    name: name
    for name in (
        "request_id", "play_id", "session_id", "model", "input_length", "output_length", "hash_ids", "not_before_ms",
        "dependencies", "source_play_ordinal", "recorded_api_time_ms", "output_token_ids", "priority",
        "strict_priority", "policy_class",
    )
} | {"input_tokens": "input_length", "output_tokens": "output_length"}  # fmt: skip
_DEPENDENCY: Final = {name: name for name in ("request_id", "trigger", "delay_ms", "relation")}
_TRIGGERS: Final = {trigger.name.lower(): trigger for trigger in Trigger}
_RELATIONS: Final = {relation.name.lower(): relation for relation in Relation}
_TIMES: Final = ("not_before_ms", "recorded_api_time_ms", "delay_ms")
_TIME_PATTERNS: Final = {name: re.compile(rb'"%b"\s*:\s*([^\s,}]+)' % name.encode()) for name in _TIMES}


class AgenticHeader(Struct, frozen=True):
    """The first line; 0 and empty where it is faulty."""

    block_size: int
    source: Mapping[str, str]


class Dependency(Struct, frozen=True):
    """One edge into a request, as the file names it."""

    source: str
    trigger: Trigger
    delay_ms: float
    relation: Relation
    field: str  # where it stands, for messages


class AgenticRow(Struct):
    """One request; what is faulty about it has a harmless value, and its name stands in `faulty`."""

    line: int
    request_id: str = ""
    play_id: str = ""
    session_id: str = ""
    model: str = ""
    input_tokens: int = 1
    output_tokens: int = 0
    hash_ids: array[int] = field(default_factory=lambda: array("Q"))
    not_before_ms: float = 0.0
    dependencies: list[Dependency] = field(default_factory=list)
    source_play_ordinal: int | None = None
    priority: int = 0
    strict_priority: int = 0
    faulty: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()


def read_header(text: bytes, line: int, faults: FaultList) -> AgenticHeader | None:
    """The first line that is not blank; None if it is no header at all."""
    pairs = _exact_object(text, line, faults)
    if pairs is None:
        return None
    if not any(key in ("schema", "version", "block_size", "hash_id_scope") for key, _ in pairs):
        rule = f'must be the header, {{"schema": "{SCHEMA}", "version": {VERSION}, ...}}'
        faults.add(line, "", f"{rule}; rows without one are of a version that is not read", text[:200])
        return None
    fields = Fields(pairs, _HEADER, line, "", faults)
    fields.constant("schema", SCHEMA)
    fields.constant("version", VERSION)
    fields.constant("hash_id_scope", "local")
    block_size = fields.integer("block_size", 1, MAX_TOKENS)
    source: dict[str, str] = {}
    given = fields.take("source")
    if given is not None:
        if type(given) is tuple:
            inner = Fields(given, _SOURCE, line, "source.", faults)
            source = {name: inner.text(name) or "" for name in _SOURCE}
        else:
            fields.refuse("source", 'must be an object, {"format": ..., "digest": ...}', given)
    return AgenticHeader(block_size or 0, source)


def read_request(text: bytes, line: int, block_size: int, faults: FaultList) -> AgenticRow | None:
    """Parse and check one line; None if it is blank or no JSON object.

    Args:
        block_size: tokens a hash id stands for; 0: not known, the number of hash ids is not looked at.
    """
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        parsed = None
        if is_blank(text):
            return None
    if type(parsed) is dict and _is_plain(text, parsed):
        trial = FaultList("")
        row = _checked(_as_pairs(parsed), line, block_size, trial)
        if not trial:
            return row
    pairs = _exact_object(text, line, faults)
    return None if pairs is None else _checked(pairs, line, block_size, faults)


def _exact_object(text: bytes, line: int, faults: FaultList) -> Iterable[tuple[str, Any]] | None:
    """Names and values as they stand; None, and the fault, if the line is no JSON object."""
    try:
        pairs = exact_pairs(text)
    except RecursionError:
        faults.add(line, "", "must not be nested so deeply", text[:200])
        return None
    except ValueError:  # no JSON, or no UTF-8
        pairs = None
    if type(pairs) is tuple:
        return pairs
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        add_syntax_fault(text, line, exc, faults)
    else:
        faults.add(line, "", "must be one JSON object", text[:200])
    return None


def _is_plain(text: bytes, row: dict[str, Any]) -> bool:
    """True when no known key stands twice, in the row or in a dependency, and no number needs the exact reading.

    Rereads times of many digits in place, as the peer reads them.
    """
    if b"\\" in text or b"-0" in text:
        return False
    dependencies = row.get("dependencies")
    inner = dependencies if type(dependencies) is list else []
    if not all(type(dependency) is dict for dependency in inner):
        return False
    objects = [row, *inner]
    if text.count(b":") != sum(map(len, objects)):  # a key that stands twice has a colon, but no entry of its own
        for name in (*_REQUEST, *_DEPENDENCY):  # colons in texts, or objects further inside: count the names
            if text.count(b'"%b"' % name.encode()) != sum(name in one for one in objects):
                return False
    for name in _TIMES:
        places = [one for one in objects if type(one.get(name)) is float]
        if places:
            found = _TIME_PATTERNS[name].findall(text)
            holders = [one for one in objects if name in one]
            if len(found) != len(holders) or not all(map(is_read_alike, found)):
                return False
    return True


def _as_pairs(value: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """A parsed row in the form of the exact reading: dependencies as pairs, too."""
    dependencies = value.get("dependencies")
    if type(dependencies) is list:
        value = {**value, "dependencies": [tuple(one.items()) for one in dependencies]}
    return value.items()


def _checked(pairs: Iterable[tuple[str, Any]], line: int, block_size: int, faults: FaultList) -> AgenticRow:
    fields = Fields(pairs, _REQUEST, line, "", faults)
    row = AgenticRow(line)
    row.request_id = fields.text("request_id") or ""
    row.play_id = fields.text("play_id") or ""
    row.session_id = fields.text("session_id") or ""
    row.model = fields.text("model") or ""
    row.input_tokens = fields.integer("input_length", 1, MAX_TOKENS) or 1
    row.output_tokens = fields.integer("output_length", 0, MAX_TOKENS) or 0
    row.hash_ids = fields.ids("hash_ids", "Q", _MAX_U64) or array("Q")
    row.not_before_ms = fields.time("not_before_ms") or 0.0
    fields.time("recorded_api_time_ms", is_required=False)
    row.source_play_ordinal = fields.integer("source_play_ordinal", 0, _MAX_U64, is_required=False)
    row.priority = fields.integer("priority", -(2**31), 2**31 - 1, is_required=False) or 0
    row.strict_priority = fields.integer("strict_priority", 0, _MAX_U32, is_required=False) or 0
    output_ids = fields.ids("output_token_ids", "I", _MAX_U32, is_required=False)
    fields.any_text("policy_class")
    if output_ids is not None and fields.is_fine("output_length") and len(output_ids) != row.output_tokens:
        rule = f"must hold output_length = {row.output_tokens} ids, but holds {len(output_ids)}"
        fields.refuse("output_token_ids", rule, None)
    if block_size and fields.is_fine("input_length") and fields.is_fine("hash_ids"):
        needed = -(-row.input_tokens // block_size)
        if len(row.hash_ids) != needed:
            rule = f"must hold {needed} ids for {row.input_tokens} tokens at block size {block_size}"
            fields.refuse("hash_ids", f"{rule}, but holds {len(row.hash_ids)}", None)
    row.dependencies = _dependencies(fields, line, faults)
    row.faulty, row.unknown = frozenset(fields.faulty), frozenset(fields.unknown)
    return row


def _dependencies(fields: Fields, line: int, faults: FaultList) -> list[Dependency]:
    """The legal ones; an explicit null is no list."""
    given = fields.take("dependencies", is_required=False, null_is_absent=False)
    if given is None:
        return []
    if type(given) is not list:
        fields.refuse("dependencies", "must be a list", b"null" if given is NULL else given)
        return []
    legal = []
    for at, one in enumerate(given):
        place = f"dependencies[{at}]"
        if type(one) is not tuple:
            faults.add(line, place, "must be an object", b"null" if one is None else one)
            fields.faulty.add("dependencies")
            continue
        dependency = _dependency(Fields(one, _DEPENDENCY, line, f"{place}.", faults), place)
        if dependency is None:
            fields.faulty.add("dependencies")
        else:
            legal.append(dependency)
    return legal


def _dependency(fields: Fields, place: str) -> Dependency | None:
    source = fields.text("request_id")
    trigger = fields.choice("trigger", _TRIGGERS)
    relation = fields.choice("relation", _RELATIONS)
    delay_ms = fields.time("delay_ms")
    if trigger is Trigger.DISPATCH and relation is not None and relation is not Relation.SPAWN:
        fields.refuse("relation", "must be spawn with trigger dispatch", relation.name.lower())
    if fields.faulty or source is None or trigger is None or relation is None or delay_ms is None:
        return None
    return Dependency(source, trigger, delay_ms, relation, place)
