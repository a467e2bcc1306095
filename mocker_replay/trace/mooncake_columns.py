"""Blocks of Mooncake lines to columns: two fast readings.

Decides nothing about legality that mooncake_row.py does not decide too: it accepts a block when every row is
legal beyond doubt, and otherwise leaves the block to the next reading, the exact one in the end. Plain rows are read by
the core (`_core/mooncake_lines`), whatever else JSON allows by its parser. The property tests hold the three equal.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson
from msgspec import Struct

from mocker_replay._core.mooncake_lines import ROW_FIELDS, MooncakeLines
from mocker_replay.config.decimals import read_json_number
from mocker_replay.trace.base import MAX_TOKENS, Float64s, Int64s, TimestampUnit, Uint64s
from mocker_replay.trace.decimals import is_read_alike
from mocker_replay.trace.faults import FaultList
from mocker_replay.trace.line_file import LineBlock
from mocker_replay.trace.mooncake_row import ALIASES, CANONICAL, FIELDS, CheckedRow, MooncakeRules, Row, read_row

_ROW_TYPE: Final = np.dtype(list(ROW_FIELDS))


class _Irregular(Exception):
    """The block needs the exact reading."""


class Columns(Struct):
    """Checked rows as columns; sessions and surplus ids are not settled yet."""

    lines: Int64s
    timestamp_ms: Float64s  # NaN = absent
    input_tokens: Int64s
    output_tokens: Int64s
    num_hash_ids: Int64s  # as given
    hash_ids: Uint64s  # as given, rows one after another
    delay_ms: Float64s | None  # NaN = absent
    session_ids: list[str | None] | None
    request_ids: list[str | None] | None
    priority: Int64s
    strict_priority: Int64s
    cancel_after_ms: Float64s | None  # inf = the client stays
    deadline_ms: Float64s | None  # inf = nobody said
    output_ids: list[array[int] | None] | None  # authored outputs, where they are wanted
    unknown: set[str]  # names of fields that are no part of the format
    excused_lines: frozenset[int] = frozenset()  # rows with faults that sessions would trip over again


def read_columns(
    block: LineBlock, rules: MooncakeRules, faults: FaultList, scanner: MooncakeLines, *, is_checked: bool = False
) -> Columns:
    """The rows of a block; blank lines are left out, faults are added.

    Args:
        scanner: reads plain rows; what it holds of an earlier block is forgotten.
        is_checked: a former reading has found these bytes faultless, so no key stands twice.
    """
    columns = _scan(block, rules, scanner)
    if columns is None:
        columns = _accept(block, rules, is_checked)
    return columns if columns is not None else _read_exactly(block, rules, faults)


def _scan(block: LineBlock, rules: MooncakeRules, scanner: MooncakeLines) -> Columns | None:
    """The rows of a block in which each is plain."""
    if not scanner.scan(block.text):
        return None
    rows = np.frombuffer(scanner.table(), _ROW_TYPE)
    column = {name: np.ascontiguousarray(rows[name]) for name, _ in ROW_FIELDS}
    inputs, outputs = column["input_tokens"], column["output_tokens"]
    if len(rows) and (inputs.min() < 1 or max(inputs.max(), outputs.max()) > MAX_TOKENS):
        return None
    if not _are_enough(column["num_hash_ids"], inputs, rules):
        return None
    return Columns(
        lines=column["line"] + block.first_line,
        timestamp_ms=_to_ms(column["timestamp"], rules.timestamp_unit),
        input_tokens=inputs,
        output_tokens=outputs,
        num_hash_ids=column["num_hash_ids"],
        hash_ids=np.frombuffer(scanner.ids(), np.uint64),
        delay_ms=column["delay"] if scanner.has("delay") else None,
        session_ids=scanner.session_ids or None,
        request_ids=scanner.request_ids or None,
        priority=np.zeros(len(rows), np.int64),
        strict_priority=np.zeros(len(rows), np.int64),
        cancel_after_ms=column["cancel_after_ms"] if scanner.has("cancel_after_ms") else None,
        deadline_ms=column["deadline_ms"] if scanner.has("deadline_ms") else None,
        output_ids=None,
        unknown=set(),
    )


def _accept(block: LineBlock, rules: MooncakeRules, is_checked: bool) -> Columns | None:
    try:
        rows = list(map(orjson.loads, block.lines))
    except orjson.JSONDecodeError:
        return None
    if set(map(type, rows)) != {dict}:
        return None
    names = set().union(*rows)
    spelling = _spelling(names)
    if spelling is None or not (is_checked or _is_plain(block.lines, rows, names)):
        return None
    lines = np.arange(block.first_line, block.first_line + len(rows), dtype=np.int64)
    try:
        for name in _DECIMALS & spelling.keys():
            _reread_decimals(rows, block.lines, spelling[name])
        return _assemble(rows, lines, spelling, names - CANONICAL.keys(), rules)
    except (_Irregular, TypeError, OverflowError):  # the last two: what an array of integers refuses
        return None


def _read_exactly(block: LineBlock, rules: MooncakeRules, faults: FaultList) -> Columns:
    checked: list[CheckedRow] = []
    for at, text in enumerate(block.lines):
        row = read_row(text, block.first_line + at, rules, faults)
        if row is not None:
            checked.append(row)
    lines = np.array([row.line for row in checked], np.int64)
    rows = [row.row for row in checked]
    names = set().union(*rows)
    spelling = {name: name for name in FIELDS if name in names}
    columns = _assemble(rows, lines, spelling, names - CANONICAL.keys(), rules)
    columns.excused_lines = frozenset(row.line for row in checked if row.is_excused)
    return columns


def _spelling(names: set[str]) -> dict[str, str] | None:
    """Canonical name -> the one in use; None when a block uses both spellings of a field."""
    spelling = {name: name for name in FIELDS if name in names}
    for name, alias in ALIASES.items():
        if alias in names:
            if name in spelling:
                return None
            spelling[name] = alias
    return spelling


def _is_plain(lines: list[bytes], rows: list[Row], names: set[str]) -> bool:
    """True when no known key stands twice in a row, and nothing looks like a bool or "-0"."""
    text = b"\n".join(lines)
    if b"true" in text or b"false" in text or b"-0" in text:
        return False
    # A key that stands twice has a colon, but no entry of its own.
    if text.count(b":") == sum(map(len, rows)):
        return True
    # Colons in strings or inner objects: count the names, which nothing can spell differently without "\".
    return b"\\" not in text and all(
        text.count(b'"%b"' % name.encode()) == sum(name in row for row in rows) for name in names & CANONICAL.keys()
    )


_DECIMALS: Final = frozenset(("timestamp", "delay", "cancel_after_ms", "deadline_ms"))


def _reread_decimals(rows: list[Row], lines: list[bytes], key: str) -> None:
    """Replace floats of many digits, which the parser has rounded correctly, by what the peer reads."""
    if float not in {type(row.get(key)) for row in rows}:
        return
    pattern = re.compile(rb'"%b"\s*:\s*([^\s,}]+)' % key.encode())
    for row, line in zip(rows, lines, strict=True):
        if type(row.get(key)) is float:
            found = pattern.findall(line)
            if len(found) != 1:  # the name stands in an inner object or in a string as well
                raise _Irregular
            if not is_read_alike(found[0]):
                row[key] = read_json_number(found[0].decode())


def _assemble(
    rows: list[Row], lines: Int64s, spelling: dict[str, str], unknown: set[str], rules: MooncakeRules
) -> Columns:
    def column(name: str) -> list[Any] | None:
        key = spelling.get(name)
        return None if key is None else [row.get(key) for row in rows]

    num_rows = len(rows)
    hash_lists = _hash_lists(column("hash_ids"), num_rows, rules)
    hash_ids = array("Q")
    for ids in hash_lists:
        hash_ids.fromlist(ids)
    num_hash_ids = np.fromiter(map(len, hash_lists), np.int64, num_rows)
    input_tokens = _input_tokens(column("input_length"), num_hash_ids, rules)
    output_tokens = _integers(column("output_length"), num_rows, 0, MAX_TOKENS)
    output_ids = _output_ids(column("output_token_ids"), output_tokens)
    _strings(column("policy_class"))
    return Columns(
        lines=lines,
        timestamp_ms=_to_ms(_floats(column("timestamp"), num_rows), rules.timestamp_unit),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        num_hash_ids=num_hash_ids,
        hash_ids=np.array(hash_ids, np.uint64),
        delay_ms=_floats(delays, num_rows) if (delays := column("delay")) is not None else None,
        session_ids=_strings(column("session_id")),
        request_ids=_strings(column("request_id")),
        priority=_integers(column("priority"), num_rows, -(2**31), 2**31 - 1, default=0),
        strict_priority=_integers(column("strict_priority"), num_rows, 0, 2**32 - 1, default=0),
        cancel_after_ms=_times_or_never(column("cancel_after_ms"), num_rows),
        deadline_ms=_times_or_never(column("deadline_ms"), num_rows),
        output_ids=output_ids if rules.is_delta else None,
        unknown=unknown,
    )


_NONE: Final = type(None)


def _integers(values: list[Any] | None, num_rows: int, low: int, high: int, default: int | None = None) -> Int64s:
    if values is None:
        values = [None] * num_rows
    types = set(map(type, values))
    if default is not None and _NONE in types:
        values = [default if value is None else value for value in values]
        types = types - {_NONE} | {int}
    if not types <= {int}:
        raise _Irregular
    column = np.array(values, np.int64)
    if num_rows and (column.min() < low or column.max() > high):
        raise _Irregular
    return column


def _floats(values: list[Any] | None, num_rows: int) -> Float64s:
    if values is None:
        return np.full(num_rows, np.nan)
    if not set(map(type, values)) <= {int, float, _NONE}:
        raise _Irregular
    return np.array(values, np.float64) + 0.0  # None becomes NaN, -0.0 becomes 0.0


def _times_or_never(values: list[Any] | None, num_rows: int) -> Float64s | None:
    if values is None or set(map(type, values)) == {_NONE}:
        return None
    column = _floats(values, num_rows)
    if (column < 0.0).any():
        raise _Irregular
    column[np.isnan(column)] = np.inf
    return column


def _strings(values: list[Any] | None) -> list[str | None] | None:
    if values is not None and not set(map(type, values)) <= {str, _NONE}:
        raise _Irregular
    return values


def _to_ms(times: Float64s, unit: TimestampUnit) -> Float64s:
    """Times of the file in ms; one beyond the range of float64 becomes infinite, which sessions refuse."""
    if unit == "ms":
        return times
    with np.errstate(over="ignore"):
        return times * 1000.0 if unit == "s" else times / 1000.0


def _hash_lists(values: list[Any] | None, num_rows: int, rules: MooncakeRules) -> Sequence[list[int]]:
    if values is None:
        values = [None] * num_rows
    types = set(map(type, values))
    if _NONE in types and rules.missing_hash_ids == "private":
        values = [[] if value is None else value for value in values]
        types = types - {_NONE} | {list}
    if not types <= {list}:
        raise _Irregular
    return values


def _input_tokens(values: list[Any] | None, num_hash_ids: Int64s, rules: MooncakeRules) -> Int64s:
    size = rules.trace_block_size
    if values is None:
        values = [None] * len(num_hash_ids)
    if None in values:
        capacity = num_hash_ids.tolist()
        values = [n * size if value is None else value for value, n in zip(values, capacity, strict=True)]
    column = _integers(values, len(values), 1, MAX_TOKENS)
    if not _are_enough(num_hash_ids, column, rules):
        raise _Irregular
    return column


def _are_enough(num_hash_ids: Int64s, input_tokens: Int64s, rules: MooncakeRules) -> bool:
    """Whether no row has fewer hash ids than its prompt needs, or too many, as far as the rules mind."""
    surplus = num_hash_ids - num_trace_blocks(input_tokens, rules.trace_block_size)
    too_few = rules.missing_hash_ids == "refuse" and (surplus < 0).any()
    return not (too_few or (rules.surplus_hash_ids == "refuse" and (surplus > 1).any()))


def num_trace_blocks(input_tokens: Int64s, trace_block_size: int) -> Int64s:
    """Trace blocks each prompt covers, a partial last one included."""
    return -(-input_tokens // trace_block_size)


def _output_ids(values: list[Any] | None, output_tokens: Int64s) -> list[array[int] | None] | None:
    if values is None:
        return None
    columns: list[array[int] | None] = []
    for ids, expected in zip(values, output_tokens.tolist(), strict=True):
        if ids is not None and type(ids) is not list:
            raise _Irregular
        columns.append(None if ids is None else array("I", ids))
        if ids is not None and len(ids) != expected:
            raise _Irregular
    return columns
