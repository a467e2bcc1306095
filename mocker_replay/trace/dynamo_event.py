"""One line of a Dynamo request trace, checked field by field.

Decides which lines are events that matter, which are legal on their own, and names everything wrong with one that is
not. What holds between events is in dynamo.py and dynamo_edges.py.

Source: replay specification, section 1.8.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Any, Final

import orjson
from msgspec import Struct

from mocker_replay.trace.base import MAX_TOKENS
from mocker_replay.trace.exact_fields import NULL, Fields
from mocker_replay.trace.exact_json import add_syntax_fault, is_blank
from mocker_replay.trace.faults import FaultList
from mocker_replay.trace.graph import Relation, Trigger
from mocker_replay.trace.plain_json import decimal_pattern, members, read_exact, read_plain

SCHEMA: Final = "dynamo.request.trace.v1"
_MAX_U64: Final = 2**64 - 1
_MAX_TIME_MS: Final = 2**53
_SKIPPED: Final = ("request_payload", "tool_start")
_TOOL_TYPES: Final = ("tool_end", "tool_error")


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_EVENT: Final = _same("schema", "event_type", "event_time_unix_ms", "agent_context", "request", "tool")
_CONTEXT: Final = _same("session_id", "parent_session_id")
_REQUEST: Final = _same("request_id", "output_tokens", "request_received_ms", "total_time_ms", "model", "replay")
_REPLAY: Final = _same("trace_block_size", "input_length", "input_sequence_hashes", "dependencies")
_DEPENDENCY: Final = _same("request_id", "relation", "trigger")
_TOOL: Final = _same("tool_call_id", "tool_class", "claude")
_CLAUDE: Final = _same("source_request_id", "consumer_request_id", "child_session_id", "execution_mode")
_EXECUTION_MODES: Final = _same("blocking", "background")
_TRIGGERS: Final = {trigger.name.lower(): trigger for trigger in Trigger}
_RELATIONS: Final = {relation.name.lower(): relation for relation in Relation}
_DECIMALS: Final = decimal_pattern("total_time_ms")


class DynamoDependency(Struct, frozen=True):
    """An edge that the trace names itself."""

    place: str  # where it stands, for messages
    source: str
    trigger: Trigger
    relation: Relation


class DynamoRequest(Struct, frozen=True):
    """One finished request; times in ms of the recording's clock."""

    line: int  # counted over all files
    request_id: str
    output_tokens: int
    start_ms: int
    end_ms: int
    model: str | None
    block_size: int
    input_tokens: int
    hash_ids: array[int]
    dependencies: tuple[DynamoDependency, ...]
    session: str | None  # None: no agent sent it
    parent_session: str | None

    @property
    def order(self) -> tuple[int, int, str]:
        """Where it stands among all requests of a trace."""
        return self.start_ms, self.end_ms, self.request_id


class ToolCall(Struct, frozen=True):
    """A finished tool call of an agent, as far as it says which requests it stands between."""

    line: int
    place: str  # where its requests are named, for messages
    session: str
    source: str
    consumer: str | None
    child_session: str | None  # the session that was the call


def read_event(text: bytes, line: int, faults: FaultList) -> DynamoRequest | ToolCall | None:
    """Parse and check one line; None if it is faulty or says nothing that matters."""
    plain = members(read_plain(text, _DECIMALS))
    if plain is not None:
        trial = FaultList("")
        event = _event(plain, line, trial)
        if not trial:
            return event
    try:
        value = read_exact(text)
    except RecursionError:
        faults.add(line, "", "must not be nested so deeply", text[:200])
        return None
    pairs = members(value)
    if pairs is not None:
        return _event(pairs, line, faults)
    try:
        orjson.loads(text)  # what is JSON and no object is passed over
    except orjson.JSONDecodeError as exc:
        if not is_blank(text):
            add_syntax_fault(text, line, exc, faults)
    return None


def _event(pairs: Iterable[tuple[str, Any]], line: int, faults: FaultList) -> DynamoRequest | ToolCall | None:
    prefix = ""
    wrapped = [value for key, value in pairs if key == "event"]
    if wrapped:
        inner = members(wrapped[-1])
        if inner is None:
            faults.add(line, "event", "must be an object", b"null" if wrapped[-1] is None else wrapped[-1])
            return None
        pairs, prefix = inner, "event."
    fields = Fields(pairs, _EVENT, line, prefix, faults)
    kind = fields.take("event_type")
    if kind in _SKIPPED:
        return None
    if kind is not None and kind != "request_end" and kind not in _TOOL_TYPES:
        fields.refuse("event_type", f"must be one of request_end, {', '.join((*_TOOL_TYPES, *_SKIPPED))}", kind)
    if kind is None or not fields.is_fine("event_type"):
        return None
    fields.constant("schema", SCHEMA)
    time_ms = fields.integer("event_time_unix_ms", 0, _MAX_U64)
    context = _inner(fields, "agent_context", f"{prefix}agent_context.", _CONTEXT, line, faults, is_required=False)
    session = None if context is None else context.text("session_id")
    parent = None if context is None else _optional_text(context, "parent_session_id")
    if kind != "request_end":
        call = _tool_call(fields, prefix, line, faults, session)
        return None if context is None else call
    request = _inner(fields, "request", f"{prefix}request.", _REQUEST, line, faults)
    if request is None:
        return None
    return _request(request, f"{prefix}request.", line, faults, time_ms, session, parent, context)


def _request(
    fields: Fields, prefix: str, line: int, faults: FaultList, time_ms: int | None, session: str | None,
    parent: str | None, context: Fields | None,
) -> DynamoRequest | None:  # fmt: skip
    num_faults = len(faults)
    request_id = fields.text("request_id")
    output_tokens = fields.integer("output_tokens", 0, MAX_TOKENS)
    received_ms = fields.integer("request_received_ms", 0, _MAX_U64, is_required=False)
    total_ms = fields.time("total_time_ms", is_required=False)
    if total_ms is not None and total_ms > _MAX_TIME_MS:
        fields.refuse("total_time_ms", f"must be at most {_MAX_TIME_MS}", total_ms)
    model = _optional_text(fields, "model")
    replay = _inner(fields, "replay", f"{prefix}replay.", _REPLAY, line, faults)
    if replay is None:
        return None
    block_size = replay.integer("trace_block_size", 1, MAX_TOKENS)
    input_tokens = replay.integer("input_length", 1, MAX_TOKENS)
    hash_ids = replay.ids("input_sequence_hashes", "Q", _MAX_U64)
    dependencies = _dependencies(replay, f"{prefix}replay.dependencies", line, faults)
    is_fine = len(faults) == num_faults and time_ms is not None and (context is None or session is not None)
    if not is_fine or request_id is None or output_tokens is None:
        return None
    if block_size is None or input_tokens is None or hash_ids is None or time_ms is None:
        return None
    rounded_ms = None if total_ms is None else math.floor(total_ms) + (total_ms - math.floor(total_ms) >= 0.5)
    start_ms = received_ms if received_ms is not None else max(0, time_ms - (rounded_ms or 0))
    end_ms = time_ms if received_ms is None or rounded_ms is None else start_ms + rounded_ms
    return DynamoRequest(
        line, request_id, output_tokens, start_ms, end_ms, model, block_size, input_tokens, hash_ids,
        dependencies, session, parent,
    )  # fmt: skip


def _tool_call(fields: Fields, prefix: str, line: int, faults: FaultList, session: str | None) -> ToolCall | None:
    tool = _inner(fields, "tool", f"{prefix}tool.", _TOOL, line, faults, is_required=False)
    if tool is None:
        return None
    for name in ("tool_call_id", "tool_class"):
        value = tool.take(name)
        if value is not None and type(value) is not str:
            tool.refuse(name, "must be a string", value)
    place = f"{prefix}tool.claude."
    claude = _inner(tool, "claude", place, _CLAUDE, line, faults, is_required=False)
    if claude is None:
        return None
    source = claude.text("source_request_id")
    consumer = _optional_text(claude, "consumer_request_id")
    child = _optional_text(claude, "child_session_id")
    claude.choice("execution_mode", _EXECUTION_MODES)
    if session is None or source is None or claude.faulty or tool.faulty:
        return None
    return ToolCall(line, place, session, source, consumer, child)


def _dependencies(fields: Fields, place: str, line: int, faults: FaultList) -> tuple[DynamoDependency, ...]:
    given = fields.take("dependencies", is_required=False, null_is_absent=False)
    if given is None:
        return ()
    if type(given) is not list:
        fields.refuse("dependencies", "must be a list", b"null" if given is NULL else given)
        return ()
    found = []
    for at, one in enumerate(given):
        pairs = members(one)
        if pairs is None:
            faults.add(line, f"{place}[{at}]", "must be an object", b"null" if one is None else one)
            continue
        inner = Fields(pairs, _DEPENDENCY, line, f"{place}[{at}].", faults)
        source = inner.text("request_id")
        trigger = inner.choice("trigger", _TRIGGERS)
        relation = inner.choice("relation", _RELATIONS)
        if source is not None and trigger is not None and relation is not None and not inner.faulty:
            found.append(DynamoDependency(f"{place}[{at}]", source, trigger, relation))
    return tuple(found)


def _inner(
    fields: Fields, name: str, prefix: str, known: dict[str, str], line: int, faults: FaultList, *,
    is_required: bool = True,
) -> Fields | None:  # fmt: skip
    """The fields of an inner object; None, and a fault unless it may be left out, if it is none."""
    value = fields.take(name, is_required=is_required)
    if value is None:
        return None
    pairs = members(value)
    if pairs is None:
        fields.refuse(name, "must be an object", value)
        return None
    return Fields(pairs, known, line, prefix, faults)


def _optional_text(fields: Fields, name: str) -> str | None:
    """A text that is not blank, or nothing."""
    return None if fields.take(name, is_required=False) is None else fields.text(name)
