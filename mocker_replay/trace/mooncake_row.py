"""One Mooncake row, checked field by field: the slow and exact reading.

Decides which rows are legal and names everything wrong with one that is not. It reads the rows that the
column reader (mooncake_columns.py) does not accept at once. A legal row comes out under canonical field
names; a faulty one with harmless values instead of the faulty ones, so that the checks across rows that
follow still see what is right about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import orjson
from msgspec import Struct

from mocker_replay.config.decimals import read_json_number
from mocker_replay.trace.base import MAX_TOKENS, MissingHashIds, MissingTimestamps, SurplusHashIds, TimestampUnit
from mocker_replay.trace.exact_json import Unreadable, add_syntax_fault, exact_pairs, is_blank, is_unicode
from mocker_replay.trace.faults import FaultList

ALIASES: Final[dict[str, str]] = {
    "timestamp": "created_time",
    "input_length": "input_tokens",
    "output_length": "output_tokens",
    "delay": "delay_ms",
}
FIELDS: Final[tuple[str, ...]] = (
    "timestamp", "input_length", "output_length", "hash_ids", "session_id", "delay", "output_token_ids",
    "request_id", "priority", "strict_priority", "policy_class", "cancel_after_ms", "deadline_ms",
)  # fmt: skip
CANONICAL: Final[dict[str, str]] = {name: name for name in FIELDS} | {alias: name for name, alias in ALIASES.items()}

_INTEGERS: Final = {
    "input_length": (1, MAX_TOKENS),
    "output_length": (0, MAX_TOKENS),
    "priority": (-(2**31), 2**31 - 1),
    "strict_priority": (0, 2**32 - 1),
}
_LISTS: Final = {"hash_ids": 2**64 - 1, "output_token_ids": 2**32 - 1}  # largest element
_NUMBERS: Final = ("timestamp", "delay", "cancel_after_ms", "deadline_ms")
_NOT_NEGATIVE: Final = ("cancel_after_ms", "deadline_ms")
_SESSION_FIELDS: Final[tuple[str, ...]] = ("timestamp", "delay", "session_id")

Row = dict[str, Any]


class MooncakeRules(Struct, frozen=True):
    """How a Mooncake file is to be read; the fields are explained in docs/trace-formats.md."""

    trace_block_size: int = 512
    timestamp_unit: TimestampUnit = "ms"
    closed_loop: bool = False
    missing_timestamps: MissingTimestamps = "refuse"
    surplus_hash_ids: SurplusHashIds = "ignore"
    missing_hash_ids: MissingHashIds = "refuse"
    is_delta: bool = False  # a follow-up turn carries only its new input; what was answered is part of the next prompt

    def num_blocks(self, input_tokens: int) -> int:
        """Trace blocks a prompt covers, a partial last one included."""
        return -(-input_tokens // self.trace_block_size)


class CheckedRow(Struct, frozen=True):
    """A row that parsed, with what the later checks need to know about its faults."""

    line: int
    row: Row
    is_excused: bool  # a field that sessions depend on is faulty: no further faults from it


def read_row(text: bytes, line: int, rules: MooncakeRules, faults: FaultList) -> CheckedRow | None:
    """Parse and check one line; None if it is blank or no JSON object."""
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        return None if is_blank(text) else _read_invalid(text, line, exc, rules, faults)
    if type(parsed) is not dict:
        faults.add(line, "", "must be one JSON object", text[:200])
        return None
    # As many colons as keys: no key stands twice, and the fast parser has told everything. Not so with
    # "-0", which counts as no integer, and with floats, which may have been wide integers or read by other rules.
    if text.count(b":") == len(parsed) and b"-0" not in text and float not in map(type, parsed.values()):
        trial = FaultList("")
        checked = _checked(parsed.items(), line, rules, trial)
        if not trial:
            return checked
    try:
        return _checked(exact_pairs(text), line, rules, faults)
    except RecursionError:
        faults.add(line, "", "must not be nested so deeply", text[:200])
        return None


def _read_invalid(
    text: bytes, line: int, exc: orjson.JSONDecodeError, rules: MooncakeRules, faults: FaultList
) -> CheckedRow | None:
    """A line that is no JSON: name the field if only a number is none (NaN, Infinity, 1e400)."""
    try:
        pairs = exact_pairs(text)
    except (ValueError, RecursionError):
        pairs = None
    if type(pairs) is not tuple:
        add_syntax_fault(text, line, exc, faults)
        return None
    checked = _checked(pairs, line, rules, faults)
    if not any(_is_culprit(value) for key, value in pairs if key in CANONICAL):
        add_syntax_fault(text, line, exc, faults)
    return checked


def _is_culprit(value: object) -> bool:
    """True for what only the strict parser refuses, and what the field checks name."""
    if isinstance(value, list):
        return any(isinstance(inner, Unreadable) for inner in value)
    return isinstance(value, Unreadable) or (type(value) is str and not is_unicode(value))


def _checked(pairs: Iterable[tuple[str, Any]], line: int, rules: MooncakeRules, faults: FaultList) -> CheckedRow:
    row: Row = {}
    spelling: dict[str, str] = {}  # canonical name -> as it stands in the row
    faulty: set[str] = set()
    for key, value in pairs:
        name = CANONICAL.get(key)
        if name is None:
            row.setdefault(key, None)  # unknown: the column reader mentions it
            continue
        if name in spelling:
            first = spelling[name]
            faults.add(line, key, "must not be given twice" if key == first else f"is the same field as {first}", value)
            faulty.add(name)
            continue
        spelling[name] = key
        if value is not None:
            if not _is_legal(name, key, value, line, faults):
                faulty.add(name)
            elif name != "policy_class":
                row[name] = read_json_number(str(value)) if name in _NUMBERS and type(value) is int else value
    _check_lengths(row, spelling, faulty, line, rules, faults)
    if faulty:
        _make_harmless(row, faulty, rules)
    return CheckedRow(line, row, not faulty.isdisjoint(_SESSION_FIELDS))


def _is_legal(name: str, key: str, value: Any, line: int, faults: FaultList) -> bool:
    """One value on its own; adds the fault if there is one."""
    if name in _INTEGERS:
        low, high = _INTEGERS[name]
        if type(value) is int and low <= value <= high:
            return True
        faults.add(line, key, f"must be an integer from {low} to {high}", value)
    elif name in _LISTS:
        if type(value) is list:
            return _are_ids(key, value, _LISTS[name], line, faults)
        faults.add(line, key, "must be a list of integers", value)
    elif name in _NUMBERS:
        at_least = 0.0 if name in _NOT_NEGATIVE else -math.inf  # a delay is looked at with its session
        if type(value) in (int, float) and value >= at_least:
            return True
        faults.add(line, key, "must be a finite number" + (" of at least 0" if at_least == 0.0 else ""), value)
    else:
        if type(value) is str and is_unicode(value):
            return True
        faults.add(line, key, "must be a string" if type(value) is not str else "must be valid Unicode", value)
    return False


def _are_ids(key: str, values: list[Any], high: int, line: int, faults: FaultList) -> bool:
    for at, value in enumerate(values):
        if type(value) is not int or not 0 <= value <= high:
            given = b"null" if value is None else value
            faults.add(line, f"{key}[{at}]", f"must be an integer from 0 to {high}", given)
            return False
    return True


def _check_lengths(
    row: Row, spelling: dict[str, str], faulty: set[str], line: int, rules: MooncakeRules, faults: FaultList
) -> None:
    """Required fields and how the lengths fit each other."""
    size = rules.trace_block_size
    if "hash_ids" not in row and "hash_ids" not in faulty:
        if rules.missing_hash_ids == "private":
            row["hash_ids"] = []
        else:
            faults.add(line, "hash_ids", f"is required: one id per prompt block of {size} tokens")
            faulty.add("hash_ids")
    if "output_length" not in row and "output_length" not in faulty:
        faults.add(line, "output_length", "is required")
        faulty.add("output_length")
    token_ids = row.get("output_token_ids")
    if token_ids is not None and "output_length" in row and len(token_ids) != row["output_length"]:
        rule = f"must hold output_length = {row['output_length']} ids, but holds {len(token_ids)}"
        faults.add(line, "output_token_ids", rule)
        faulty.add("output_token_ids")
    if "hash_ids" in faulty or "input_length" in faulty:
        return
    num_ids = len(row["hash_ids"])
    if "input_length" not in row:
        row["input_length"] = num_ids * size
        if not 1 <= num_ids * size <= MAX_TOKENS:
            rule = f"is absent, and {num_ids} hash_ids of {size} tokens give no length from 1 to {MAX_TOKENS}"
            faults.add(line, "input_length", rule)
            faulty.add("input_length")
            return
    _check_num_ids(row, spelling.get("input_length", "input_length"), faulty, line, rules, faults)


def _check_num_ids(row: Row, key: str, faulty: set[str], line: int, rules: MooncakeRules, faults: FaultList) -> None:
    size, num_ids, num_tokens = rules.trace_block_size, len(row["hash_ids"]), row["input_length"]
    num_blocks = rules.num_blocks(num_tokens)
    if num_ids < num_blocks and rules.missing_hash_ids == "refuse":
        rule = f"must not exceed the {num_ids * size} tokens of {num_ids} hash_ids at trace block size {size}"
        faults.add(line, key, rule + _likely_block_size(num_tokens, num_ids), num_tokens)
        faulty.add("hash_ids")
    if num_ids > num_blocks + 1 and rules.surplus_hash_ids == "refuse":
        rule = f"must hold one id per {size} tokens, {num_blocks} for {num_tokens}, but holds {num_ids}"
        faults.add(line, "hash_ids", rule + _likely_block_size(num_tokens, num_ids))
        faulty.add("hash_ids")


def _likely_block_size(num_tokens: int, num_ids: int) -> str:
    """A power of two that would fit, as a hint at a wrong trace block size."""
    for exponent in range(16):
        if -(-num_tokens // 2**exponent) == num_ids:
            return f" (block size {2**exponent} would fit)"
    return ""


def _make_harmless(row: Row, faulty: set[str], rules: MooncakeRules) -> None:
    """Replace what is faulty, so that the row goes through the columns without a word."""
    row.update(input_length=1, output_length=0, hash_ids=[0])
    for name in faulty | {"output_token_ids"}:
        if name not in ("input_length", "output_length", "hash_ids"):
            row.pop(name, None)
