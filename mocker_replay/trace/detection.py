"""Which format a trace is in, by its first rows.

Decides from names of fields and columns alone, never from the name of a file or the size of a value: exactly one format
may fit. Knows formats that this version does not read, so that they are named. Never reads more than the head.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import orjson
from msgspec import Struct, structs

from mocker_replay.errors import TraceError
from mocker_replay.trace import sglang_bench, vllm_bench
from mocker_replay.trace.azure import COLUMNS as AZURE_COLUMNS
from mocker_replay.trace.burstgpt import COLUMNS as BURSTGPT_COLUMNS
from mocker_replay.trace.exact_json import is_blank
from mocker_replay.trace.faults import shown, whole_file_error

HEAD_BYTES: Final = 256 * 1024
MAX_ROWS: Final = 16  # looked at
MAX_SHOWN_NAMES: Final = 12
AUTO: Final = "auto"

_SAME: Final = {"mooncake-delta": "mooncake", "mooncake_delta": "mooncake", "agentic-mooncake": "agentic_mooncake"}
_MOONCAKE_FIELDS: Final = frozenset(("hash_ids", "input_length", "input_tokens", "output_length", "output_tokens"))
_QWEN_FIELDS: Final = frozenset(("chat_id", "parent_chat_id"))
_APPLIED_COMPUTE_FIELDS: Final = frozenset(("num_turns", "input_prompt_length", "tool_call_latency"))
_BENCH_FIELDS: Final = frozenset(("request_throughput", "total_input_tokens"))
# A text of JSON, or a mark of its structure; the head of a file may end anywhere.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:]')


class Detected(Struct, frozen=True):
    """What the head of a trace looks like."""

    candidates: tuple[str, ...]  # formats that fit
    seen: str  # for people
    line: int = 0  # where it was seen


class _Object(Struct, frozen=True):
    """The outermost names of one JSON object, and its value where the head holds all of it."""

    names: frozenset[str]
    value: dict[str, Any]


class _Signature(Struct, frozen=True):
    """How one format is known among JSON objects."""

    name: str
    told: str
    fits: Callable[[_Object], bool]


def _is_agentic_mooncake(found: _Object) -> bool:
    return found.value.get("schema") == "dynamo.agentic_mooncake" or found.names >= {"play_id", "not_before_ms"}


def _is_dynamo(found: _Object) -> bool:
    inner = found.value.get("event")
    values = (found.value, inner if isinstance(inner, dict) else {})
    is_event = found.names >= {"event_type", "event_time_unix_ms"}
    return is_event or any(value.get("schema") == "dynamo.request.trace.v1" for value in values)


def _is_weka(found: _Object) -> bool:
    return found.names >= {"requests", "block_size"} or found.names >= {"requests", "hash_id_scope"}


def _is_applied_compute(found: _Object) -> bool:
    return len(found.names & _APPLIED_COMPUTE_FIELDS) > 1


def _is_bench(found: _Object) -> bool:
    return found.names >= {"input_lens", "output_lens"} or found.names >= _BENCH_FIELDS


def _is_vllm_bench(found: _Object) -> bool:
    return _is_bench(found) and (bool(found.names & vllm_bench.MARKS) or not found.names & sglang_bench.MARKS)


def _is_sglang_bench(found: _Object) -> bool:
    return _is_bench(found) and (bool(found.names & sglang_bench.MARKS) or not found.names & vllm_bench.MARKS)


def _is_qwen(found: _Object) -> bool:
    return bool(found.names & _QWEN_FIELDS) and bool(found.names & _MOONCAKE_FIELDS)


def _is_mooncake(found: _Object) -> bool:
    # With both names it is Qwen's beyond doubt; one alone may be an addition of somebody's.
    return bool(found.names & _MOONCAKE_FIELDS) and not found.names >= _QWEN_FIELDS


# In the order in which they are told; those of a header line or of an event first, since their rows hold other fields.
_HEADED: Final = (
    _Signature("agentic_mooncake", "a header line of schema dynamo.agentic_mooncake", _is_agentic_mooncake),
    _Signature("dynamo", "events of schema dynamo.request.trace.v1", _is_dynamo),
    _Signature("weka", "requests, block_size", _is_weka),
    _Signature("applied_compute_agentic", "num_turns, input_prompt_length, tool_call_latency", _is_applied_compute),
    _Signature("vllm_bench", "input_lens, output_lens, model_id", _is_vllm_bench),
    _Signature("sglang_bench", "input_lens, output_lens, dataset_name", _is_sglang_bench),
)
_PLAIN: Final = (
    _Signature("qwen", "chat_id, parent_chat_id, input_length, hash_ids", _is_qwen),
    _Signature("mooncake", "input_length, output_length, hash_ids", _is_mooncake),
)
TABLES: Final = {"azure": AZURE_COLUMNS, "burstgpt": BURSTGPT_COLUMNS}


def detect(head: bytes) -> Detected:
    """Look at the head of a text."""
    detected = _detect(head)
    first = next((number for number, line in enumerate(head.split(b"\n"), 1) if not is_blank(line)), 0)
    return structs.replace(detected, line=first)


def _detect(head: bytes) -> Detected:
    if head.startswith(b"\xef\xbb\xbf"):  # the reader will refuse it, and say so
        head = head[3:]
    lines = [line for line in head.split(b"\n") if not is_blank(line)]
    if not lines:
        return Detected((), "no text")
    if not lines[0].lstrip().startswith((b"{", b"[")):
        table = _detect_table(lines[0])
        if table.candidates:
            return table
        return _detect_objects(_objects(lines), table.seen)
    objects = _objects(lines)
    if not objects:
        objects = [_Object(frozenset(_outer_names(head)), {})]
    names = sorted(objects[0].names)
    more = f" and {len(names) - MAX_SHOWN_NAMES} more" if len(names) > MAX_SHOWN_NAMES else ""
    seen = f"JSON with the fields {', '.join(map(_name, names[:MAX_SHOWN_NAMES]))}{more}" if names else "JSON"
    return _detect_objects(objects, seen)


def require_one(detected: Detected, shown_path: str) -> str:
    """The one format that fits.

    Raises:
        TraceError: none or several do.
    """
    if len(detected.candidates) == 1:
        return detected.candidates[0]
    if detected.seen == "no text":
        raise whole_file_error(shown_path, "must hold at least one request")
    raise _undecided(detected, shown_path)


def hint_for(declared: str, detected: Detected) -> str:
    """What to say when a trace cannot be read as declared but plainly is another; "" if it is not."""
    if len(detected.candidates) != 1 or detected.candidates[0] == _SAME.get(declared, declared):
        return ""
    found = detected.candidates[0]
    return f"the trace is read as {declared}, but looks like {found} (--trace-format {found})"


def _undecided(detected: Detected, shown_path: str) -> TraceError:
    if detected.candidates:
        rule = f"may be {' or '.join(detected.candidates)}: --trace-format says which (seen: {detected.seen})"
        return whole_file_error(shown_path, rule, detected.line)
    tried = "; ".join(
        [f"{signature.name} ({signature.told})" for signature in (*_PLAIN, *_HEADED)]
        + [f"{name} (columns {', '.join(columns)})" for name, columns in TABLES.items()]
    )
    rule = f"is in no format that is known (--trace-format says which); seen: {detected.seen}; tried: {tried}"
    return whole_file_error(shown_path, rule, detected.line)


def _detect_objects(objects: list[_Object], seen: str) -> Detected:
    if objects:
        headed = tuple(signature.name for signature in _HEADED if signature.fits(objects[0]))
        if headed:
            return Detected(headed, seen)
    found = tuple(signature.name for signature in _PLAIN if any(signature.fits(one) for one in objects))
    return Detected(found, seen)


def _detect_table(line: bytes) -> Detected:
    text = line.decode("utf-8", "replace").strip()
    try:
        names = [name.strip() for name in next(csv.reader([text]), [])]
    except csv.Error:
        names = []
    found = tuple(name for name, columns in TABLES.items() if set(columns) <= set(names))
    return Detected(found, f"a first line {shown(text)}")


def _objects(lines: Iterable[bytes]) -> list[_Object]:
    """The objects of the first lines; a line that is none is passed over."""
    found: list[_Object] = []
    for line in lines:
        parsed = _parsed(line)
        if isinstance(parsed, dict):
            found.append(_Object(frozenset(parsed), parsed))
            if len(found) == MAX_ROWS:
                break
    return found


def _parsed(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass
    try:  # with Infinity, as benchmarks write it
        return json.loads(line.decode())
    except (ValueError, RecursionError):
        return None


def _outer_names(head: bytes) -> list[str]:
    """Names of the first object as far as the head goes: one of many lines, or in a line longer than the head."""
    names: list[str] = []
    depth = 0
    waiting: bytes | None = None  # a text that is a name if a colon follows
    for token in _TOKEN.finditer(head):
        part = token.group()
        if part in (b"{", b"["):
            depth += 1
        elif part in (b"}", b"]"):
            depth -= 1
            if depth <= 0:
                break
        elif part == b":" and depth == 1 and waiting is not None:
            names.append(waiting[1:-1].decode("utf-8", "replace"))
        waiting = part if part.startswith(b'"') else None
    return names


def _name(name: str) -> str:
    text = shown(name)[1:-1]
    return text or '""'
