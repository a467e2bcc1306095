"""One line of an Applied Compute trace, checked field by field: a session of an agent and its tools.

Decides which lines are legal and what the turns of a session are. Makes no block identities.

Source: replay specification, section 1.7.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, Final

import orjson
from msgspec import Struct

from mocker_replay.config.decimals import read_json_number
from mocker_replay.trace.base import MAX_TOKENS
from mocker_replay.trace.exact_fields import Fields
from mocker_replay.trace.exact_json import add_syntax_fault, is_blank
from mocker_replay.trace.faults import FaultList
from mocker_replay.trace.plain_json import members, read_exact, read_plain

_LISTS: Final = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")
_FIELDS: Final = {
    name: name for name in ("num_turns", "input_prompt_length", *_LISTS, "final_assistant_response_length")
}
_MAX_LISTED: Final = 2**31 - 1
# Numbers that parsers may read differently: long ones, and those with an exponent.
_DOUBTFUL: Final = re.compile(rb"[-+.0-9eE]{17,}|[.0-9][eE]")


class AppliedSession(Struct, frozen=True):
    """The turns of one session; each prompt continues the one before."""

    line: int
    input_tokens: list[int]
    output_tokens: list[int]
    delay_ms: list[float]  # think time before each turn; 0 before the first
    unknown: frozenset[str]


def read_session(text: bytes, line: int, faults: FaultList) -> AppliedSession | None:
    """Parse and check one line; None if it is blank or faulty."""
    plain = members(read_plain(text, _DOUBTFUL))
    if plain is not None:
        trial = FaultList("")
        session = _session(plain, line, trial)
        if not trial:
            return session
    try:
        pairs = members(read_exact(text))
    except RecursionError:
        faults.add(line, "", "must not be nested so deeply", text[:200])
        return None
    if pairs is not None:
        return _session(pairs, line, faults)
    try:
        orjson.loads(text)
        faults.add(line, "", "must be one JSON object", text[:200])
    except orjson.JSONDecodeError as exc:
        if not is_blank(text):
            add_syntax_fault(text, line, exc, faults)
    return None


def _session(pairs: Iterable[tuple[str, Any]], line: int, faults: FaultList) -> AppliedSession | None:
    fields = Fields(pairs, _FIELDS, line, "", faults)
    num_turns = fields.integer("num_turns", 0, _MAX_LISTED)
    prompt = fields.integer("input_prompt_length", 1, MAX_TOKENS)
    answers = fields.ids("assistant_response_length", "q", MAX_TOKENS)
    tools = fields.ids("tool_call_output_length", "q", MAX_TOKENS)
    latencies = _latencies(fields)
    final = fields.integer("final_assistant_response_length", 0, MAX_TOKENS)
    for name, values in zip(_LISTS, (answers, tools, latencies), strict=True):
        if num_turns is not None and values is not None and len(values) != num_turns:
            fields.refuse(name, f"must hold num_turns = {num_turns} values, but holds {len(values)}", None)
    if fields.faulty or prompt is None or answers is None or tools is None or latencies is None or final is None:
        return None
    prompts = [prompt]
    for answer, tool in zip(answers, tools, strict=True):
        prompts.append(prompts[-1] + answer + tool)
        if prompts[-1] > MAX_TOKENS:
            turn = len(prompts) - 1
            rule = f"must not let the prompt of turn {turn} grow above {MAX_TOKENS} tokens, but it has {prompts[-1]}"
            fields.refuse(f"tool_call_output_length[{turn - 1}]", rule, tool)
            return None
    delays_ms = [0.0, *(latency * 1000.0 for latency in latencies)]
    return AppliedSession(line, prompts, [*answers, final], delays_ms, frozenset(fields.unknown))


def _latencies(fields: Fields) -> list[float] | None:
    """Times in seconds, each finite and not negative."""
    given = fields.take("tool_call_latency")
    if given is None:
        return None
    if type(given) is not list:
        fields.refuse("tool_call_latency", "must be a list of numbers", given)
        return None
    found = []
    for at, value in enumerate(given):
        if type(value) not in (int, float) or not value >= 0 or not math.isfinite(float(value) * 1000.0):
            rule = "must be a finite number of seconds of at least 0"
            fields.refuse(f"tool_call_latency[{at}]", rule, b"null" if value is None else value)
            return None
        found.append(read_json_number(str(value)) if type(value) is int else value + 0.0)
    return found
