"""One object of a Weka trace, checked field by field.

Decides which objects are legal on their own and names everything wrong with one that is not. What holds between objects
(block size, clock of the sub-agents) is in weka.py.

Source: replay specification, section 1.6.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Any, Final

import orjson

from mocker_replay.trace.base import MAX_TOKENS
from mocker_replay.trace.exact_fields import NULL, Fields
from mocker_replay.trace.exact_json import add_syntax_fault, is_unicode
from mocker_replay.trace.faults import FaultList
from mocker_replay.trace.plain_json import decimal_pattern, members, read_exact, read_plain
from mocker_replay.trace.weka_lowering import WekaAgent, WekaPlay, WekaRequest, milliseconds

_MAX_U64: Final = 2**64 - 1
_OBJECT: Final = {name: name for name in ("id", "block_size", "hash_id_scope", "requests", "models")}
_REQUEST: Final = {name: name for name in ("type", "t", "model", "in", "out", "hash_ids", "api_time")}
_AGENT: Final = {name: name for name in ("type", "t", "agent_id", "subagent_type", "status", "requests", "duration_ms")}
_REQUEST_TYPES: Final = ("n", "s")
_STATUSES: Final = {name: name for name in ("completed", "async_launched")}  # the parent waits, or not
_DECIMALS: Final = decimal_pattern("t", "api_time")


def read_object(text: bytes, line: int, source: str, faults: FaultList) -> WekaPlay | None:
    """Parse and check one object; None if it is faulty.

    Args:
        source: names the object within its corpus.
    """
    plain = members(read_plain(text, _DECIMALS))
    if plain is not None:
        trial = FaultList("")
        play = _Reading(line, trial).play(plain, source)
        if not trial:
            return play
    try:
        pairs = members(read_exact(text))
    except RecursionError:
        faults.add(line, "", "must not be nested so deeply", text[:200])
        return None
    num_faults = len(faults)
    play = None if pairs is None else _Reading(line, faults).play(pairs, source)
    if len(faults) == num_faults and play is None:
        _add_syntax_fault(text, line, faults)
    return play if len(faults) == num_faults else None


def _add_syntax_fault(text: bytes, line: int, faults: FaultList) -> None:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        add_syntax_fault(text, line + text.count(b"\n", 0, exc.pos), exc, faults)
    else:
        faults.add(line, "", "must be one JSON object", text[:200])


class _Reading:
    """The checks of one object; what is faulty is left out."""

    def __init__(self, line: int, faults: FaultList) -> None:
        self._line = line
        self._faults = faults
        self._num_faults = len(faults)  # of the objects before
        self._requests: list[WekaRequest] = []
        self._agents: list[WekaAgent] = []
        self._latest_own: int | None = None  # the latest listed request that is no sub-agent's
        self._has_own = False  # one was listed, faulty or not

    def play(self, pairs: Iterable[tuple[str, Any]], source: str) -> WekaPlay | None:
        fields = Fields(pairs, _OBJECT, self._line, "", self._faults)
        play_id = fields.text("id")
        block_size = fields.integer("block_size", 1, MAX_TOKENS)
        fields.constant("hash_id_scope", "local")
        models = self._models(fields)
        listed = fields.take("requests")
        if listed is not None and type(listed) is not list:
            fields.refuse("requests", "must be a list of objects", listed)
        for outer, entry in enumerate(listed if type(listed) is list else []):
            self._entry(entry, outer)
        if type(listed) is list and not self._requests and len(self._faults) == self._num_faults:
            fields.refuse("requests", "must hold at least one model request", None)
        if models:
            self._check_models(models)
        if play_id is None or block_size is None or not self._requests:
            return None
        return WekaPlay(source, play_id, block_size, self._line, self._requests, self._agents)

    def _models(self, fields: Fields) -> set[str]:
        """The declared models; none: any will do."""
        given = fields.take("models", is_required=False)
        if given is None:
            return set()
        if type(given) is not list:
            fields.refuse("models", "must be a list of strings", given)
            return set()
        for at, model in enumerate(given):
            if type(model) is not str or not is_unicode(model) or not model.strip():
                fields.refuse(
                    f"models[{at}]", "must be a string that is not blank", b"null" if model is None else model
                )
                return set()
        return set(given)

    def _check_models(self, declared: set[str]) -> None:
        for request in self._requests:
            if request.model and request.model not in declared:
                rule = f"must be one of the declared models, {', '.join(sorted(declared))}"
                self._faults.add(self._line, f"{_place(request.outer, request.inner)}.model", rule, request.model)

    def _entry(self, entry: object, outer: int) -> None:
        pairs = members(entry)
        if pairs is None:
            self._faults.add(self._line, _place(outer), "must be an object", b"null" if entry is None else entry)
            return
        if any(key == "type" and value == "subagent" for key, value in pairs):
            self._agent(pairs, outer)
            return
        self._has_own = True
        request = self._request(pairs, outer, None, (*_REQUEST_TYPES, "subagent"))
        if request is not None:
            self._latest_own = len(self._requests)
            self._requests.append(request)

    def _request(
        self, pairs: Iterable[tuple[str, Any]], outer: int, inner: int | None, types: Iterable[str]
    ) -> WekaRequest | None:
        fields = Fields(pairs, _REQUEST, self._line, f"{_place(outer, inner)}.", self._faults)
        fields.choice("type", dict.fromkeys(types, True))
        start_s = self._seconds(fields, "t")
        model = fields.text("model")
        input_tokens = fields.integer("in", 1, MAX_TOKENS)
        output_tokens = fields.integer("out", 0, MAX_TOKENS)
        hash_ids = array("Q")
        if fields.take("hash_ids", is_required=False, null_is_absent=False) is NULL:
            fields.refuse("hash_ids", "must be a list of integers", b"null")
        else:
            hash_ids = fields.ids("hash_ids", "Q", _MAX_U64, is_required=False) or hash_ids
        api_s = self._seconds(fields, "api_time", is_required=False) or 0.0
        if start_s is None or model is None or input_tokens is None or output_tokens is None or fields.faulty:
            return None
        return WekaRequest(outer, inner, start_s, api_s, model, input_tokens, output_tokens, hash_ids)

    def _agent(self, pairs: Iterable[tuple[str, Any]], outer: int) -> None:
        fields = Fields(pairs, _AGENT, self._line, f"{_place(outer)}.", self._faults)
        start_s = self._seconds(fields, "t")
        agent_id = fields.text("agent_id")
        kind = fields.take("subagent_type")
        if kind is not None and type(kind) is not str:
            fields.refuse("subagent_type", "must be a string", kind)
        status = fields.choice("status", _STATUSES)
        duration_ms = fields.integer("duration_ms", 0, MAX_TOKENS, is_required=False)
        listed = fields.take("requests")
        first = len(self._requests)
        if listed is not None and type(listed) is not list:
            fields.refuse("requests", "must be a list of objects", listed)
        elif listed is not None:
            self._inner_requests(listed, outer)
            if status == "completed" and not listed:
                rule = "must not be empty where the parent waits: what it waited for is not known"
                fields.refuse("requests", rule, None)
        if not self._has_own:
            fields.refuse("agent_id", "must have a request listed before it, which started it", agent_id)
        if start_s is None or agent_id is None or self._latest_own is None or fields.faulty:
            return
        end = len(self._requests)
        self._agents.append(
            WekaAgent(outer, start_s, agent_id, status == "completed", duration_ms, first, end, self._latest_own)
        )

    def _inner_requests(self, listed: list[Any], outer: int) -> None:
        for inner, entry in enumerate(listed):
            pairs = members(entry)
            if pairs is None:
                place = _place(outer, inner)
                self._faults.add(self._line, place, "must be an object", b"null" if entry is None else entry)
                continue
            request = self._request(pairs, outer, inner, _REQUEST_TYPES)
            if request is not None:
                self._requests.append(request)

    def _seconds(self, fields: Fields, name: str, *, is_required: bool = True) -> float | None:
        value = fields.time(name, is_required=is_required)
        if value is not None and not math.isfinite(milliseconds(value)):
            fields.refuse(name, "must be seconds that are a finite time in milliseconds", value)
            return None
        return value


def _place(outer: int, inner: int | None = None) -> str:
    """Where a request stands in its object."""
    return f"requests[{outer}]" if inner is None else f"requests[{outer}].requests[{inner}]"
