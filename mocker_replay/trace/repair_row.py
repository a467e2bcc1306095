"""One row of a Mooncake file with its text kept: what is wrong with its form alone can be put right.

Decides the repairs that need no other row: repeated fields, forms of numbers, a length that the ids say, ids beyond the
prompt. Each keeps what the row says; a value that might mean something else is left as it is. Never decides whether a
row is legal.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct, field

from mocker_replay.config.decimals import read_json_number
from mocker_replay.trace.base import MAX_TOKENS
from mocker_replay.trace.faults import shown
from mocker_replay.trace.mooncake_row import CANONICAL, MooncakeRules

BOM: Final = b"\xef\xbb\xbf"
_INTEGERS: Final = ("input_length", "output_length", "priority", "strict_priority")
_LISTS: Final = ("hash_ids", "output_token_ids")
_NUMBERS: Final = ("timestamp", "delay", "cancel_after_ms", "deadline_ms")
_PLAIN_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
_LONGEST_INTEGER: Final = 40  # characters of a number that is looked at; 64 bits have 20 digits


class Fix(Struct, frozen=True):
    """One thing that a repair changed."""

    line: int  # in the file as it was
    field: str  # "" when the whole row is meant
    old: str  # as it stood there, shortened; "" where nothing did
    new: str  # as it stands in the copy; "" where nothing does
    rule: str  # name of the repair, see docs/trace-formats.md

    def __str__(self) -> str:
        what = f"{self.field}: " if self.field else ""
        change = " -> ".join(part or "nothing" for part in (self.old, self.new))
        return f"{self.line}: {what}{self.rule}: {change}"


class Number(str):
    """A number as the file writes it."""


class RawRow(Struct):
    """The fields of a row in their order, numbers as text. Known ones are found by their canonical name."""

    line: int
    pairs: list[tuple[str, Any]]
    fixes: list[Fix] = field(default_factory=list)

    def get(self, name: str) -> Any:
        """The value of a known field, None if it is absent, null or given twice."""
        values = [value for key, value in self.pairs if CANONICAL.get(key) == name]
        return values[0] if len(values) == 1 else None

    def number(self, name: str) -> float | None:
        """The value of a known field as a finite number, None if it is none."""
        value = self.get(name)
        number = read_json_number(value) if isinstance(value, Number) and _is_json_number(value) else math.inf
        return number if math.isfinite(number) else None

    def integer(self, name: str) -> int | None:
        """The value of a known field as a whole number, None if it is none."""
        value = self.get(name)
        return int(value) if isinstance(value, Number) and _PLAIN_INTEGER.fullmatch(value) else None

    def ids(self) -> list[Any] | None:
        """The hash ids, None if there is no list of whole numbers."""
        value = self.get("hash_ids")
        if not isinstance(value, list):
            return None
        return value if all(isinstance(x, Number) and _PLAIN_INTEGER.fullmatch(x) for x in value) else None

    def put(self, name: str, value: Any, rule: str) -> None:
        """Set a known field, at its place if it has one, and note it."""
        for at, (key, old) in enumerate(self.pairs):
            if CANONICAL.get(key) == name:
                self.fixes.append(Fix(self.line, key, _shown(old), _shown(value), rule))
                self.pairs[at] = (key, value)
                return
        self.fixes.append(Fix(self.line, name, "", _shown(value), rule))
        self.pairs.append((name, value))

    def text(self) -> bytes:
        """The row as a line."""
        return _written(tuple(self.pairs)).encode()


def read_raw(text: bytes, line: int) -> RawRow | None:
    """Parse a line and keep its numbers as they are; None if it is no JSON object."""
    try:
        pairs = json.loads(
            text.decode(), object_pairs_hook=tuple, parse_int=Number, parse_float=Number, parse_constant=Number
        )
    except (ValueError, RecursionError):
        return None
    return RawRow(line, list(pairs)) if isinstance(pairs, tuple) else None


def repair_form(row: RawRow, rules: MooncakeRules) -> None:
    """Everything about a row that needs no other one."""
    _repair_numbers(row)
    _drop_repeated(row)
    ids, size = row.ids(), rules.trace_block_size
    if ids is None:
        return
    if row.get("input_length") is None and not _is_given(row, "input_length") and 0 < len(ids) * size <= MAX_TOKENS:
        row.put("input_length", Number(len(ids) * size), "fill-input-length")
    tokens = row.integer("input_length")
    if tokens is None or tokens < 1:
        return
    num_blocks = rules.num_blocks(tokens)
    # Many surplus ids are nearly always another block size, so that they are cut only where that was said.
    if len(ids) == num_blocks + 1 or (len(ids) > num_blocks and rules.surplus_hash_ids == "ignore"):
        row.put("hash_ids", ids[:num_blocks], "drop-surplus-ids")


def _is_given(row: RawRow, name: str) -> bool:
    """True when a field stands in the row with a value, readable or not."""
    return any(CANONICAL.get(key) == name and value is not None for key, value in row.pairs)


def _drop_repeated(row: RawRow) -> None:
    """Of a known field given twice with one value, one is enough; null counts as absent."""
    kept: dict[str, int] = {}  # canonical name -> position among those that stay
    pairs: list[tuple[str, Any]] = []
    for key, value in row.pairs:
        name = CANONICAL.get(key)
        if name in kept and (value is None or value == pairs[kept[name]][1]):
            row.fixes.append(Fix(row.line, key, _shown(value), "", "drop-repeated-field"))
        elif name in kept and pairs[kept[name]][1] is None:
            row.fixes.append(Fix(row.line, pairs[kept[name]][0], "null", "", "drop-repeated-field"))
            pairs[kept[name]] = (key, value)
        else:
            if name is not None:
                kept.setdefault(name, len(pairs))
            pairs.append((key, value))
    row.pairs = pairs


def _repair_numbers(row: RawRow) -> None:
    """Numbers in another form than the format has them: as text, or whole ones with a point or an exponent."""
    for at, (key, value) in enumerate(row.pairs):
        name = CANONICAL.get(key)
        new: Any = value
        if name in _INTEGERS:
            new = _plain_integer(value)
        elif name in _LISTS and isinstance(value, list):
            new = [_plain_integer(element) for element in value]
        elif name in _NUMBERS and type(value) is str and _is_json_number(value.strip()):
            new = Number(value.strip())
        if new != value or type(new) is not type(value) or _types(new) != _types(value):
            row.fixes.append(Fix(row.line, key, _shown(value), _shown(new), "plain-number"))
            row.pairs[at] = (key, new)


def _types(value: Any) -> list[type]:
    return list(map(type, value)) if isinstance(value, list) else []


def _plain_integer(value: Any) -> Any:
    """A whole number in its plain form; anything else as it is."""
    if not isinstance(value, str) or len(value) > _LONGEST_INTEGER or not _is_json_number(value.strip()):
        return value
    text = value.strip()
    if _PLAIN_INTEGER.fullmatch(text):
        return Number(text)
    sign, digits, exponent = _decimal(text)
    if digits == 0:
        return Number("0")
    if exponent < 0 and digits % 10**-exponent:
        return value
    whole = digits * 10**exponent if exponent >= 0 else digits // 10**-exponent
    return Number(f"{sign}{whole}") if whole < 2**64 else value


def _decimal(text: str) -> tuple[str, int, int]:
    """Sign, digits and power of ten of a JSON number; powers out of reach of 64 bits are shortened."""
    mantissa, _, power = text.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    exponent = max(-_LONGEST_INTEGER, min(int(power or "0"), _LONGEST_INTEGER)) - len(fraction)
    return "-" if text.startswith("-") else "", int(whole + fraction), exponent


def _is_json_number(text: str) -> bool:
    try:
        return math.isfinite(read_json_number(text))
    except ValueError:
        return False


def _shown(value: Any) -> str:
    """As the file writes it, shortened."""
    return shown(_written(value).encode())


def _written(value: Any) -> str:
    if isinstance(value, Number):
        return value
    if isinstance(value, tuple):
        return f"{{{', '.join(_members(value))}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(value)
    return text


def _members(pairs: tuple[tuple[str, Any], ...]) -> Iterator[str]:
    for key, value in pairs:
        yield f"{_written(key)}: {_written(value)}"
