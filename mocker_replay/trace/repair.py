"""A repaired copy of a Mooncake file, and the list of what was done to it.

Decides the repairs that look across rows (stand-ins that were asked for, order of time, dropped rows) and that a copy
exists only if nothing is wrong with it any more. What a repair would have to guess stays a fault. The file is held in
memory. Source of the rules: docs/trace-formats.md, Repairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct, structs

from mocker_replay._core.mooncake_lines import MooncakeLines
from mocker_replay.errors import Fault, TraceError
from mocker_replay.trace.decimals import write_number
from mocker_replay.trace.faults import MAX_LISTED, FaultList, shown
from mocker_replay.trace.line_file import LineBlock, Lines
from mocker_replay.trace.mooncake_columns import read_columns
from mocker_replay.trace.mooncake_row import MooncakeRules
from mocker_replay.trace.repair_row import BOM, Fix, Number, RawRow, read_raw, repair_form
from mocker_replay.trace.sessions import SessionTable

_ROWS_A_BLOCK: Final = 1024
_ID_END: Final = 2**64


class _Line(Struct):
    """One line of the file on its way into the copy."""

    number: int  # in the file as it was
    text: bytes  # as it was, or as repaired
    row: RawRow | None = None  # None: blank, or no JSON object


class Repaired(Struct, frozen=True):
    """A copy without faults."""

    lines: tuple[bytes, ...]
    fixes: tuple[Fix, ...]  # in the order of the file as it was

    def text(self) -> bytes:
        """The file."""
        return b"".join(line + b"\n" for line in self.lines)


def repair(file: Lines, rules: MooncakeRules, *, drop: bool = False) -> Repaired:
    """Repair what can be without a guess.

    Args:
        rules: how the file is read. What they state beyond the defaults is written into the copy: timestamps in ms,
            stand-ins for missing timestamps and hash ids.
        drop: rows that stay faulty are left out, with the later turns of their sessions.

    Raises:
        TraceError: what is still wrong, by the lines of the file as it was; or the file cannot be read.
    """
    lines = [_Line(block.first_line + at, text) for block in file.blocks(_ROWS_A_BLOCK) for at, text in _texts(block)]
    fixes: list[Fix] = []
    for line in lines:
        if line.number == 1 and line.text.startswith(BOM):
            line.text = line.text.removeprefix(BOM)
            fixes.append(Fix(1, "", "byte-order mark", "", "drop-byte-order-mark"))
        line.row = read_raw(line.text, line.number)
    rows = [line.row for line in lines if line.row is not None]
    for row in rows:
        repair_form(row, rules)
    _convert_unit(rows, rules)
    _fill_timestamps(rows, rules)
    _fill_hash_ids(rows, rules)
    for line in lines:
        if line.row is not None and line.row.fixes:
            line.text = line.row.text() + (b"\r" if line.text.endswith(b"\r") else b"")
            fixes += line.row.fixes
    dropped: list[Fix] = []
    if drop:  # first what is wrong by itself, so that it does not stand in the way of the order
        lines = _dropped(lines, _faults_of(lines, file.shown_path, rules, by_row=True), dropped)
    lines, late = _sorted(lines, rules)
    if drop:
        lines = _dropped(lines, _faults_of(lines, file.shown_path, rules), dropped)
    _require_faultless(lines, file.shown_path, rules)
    gone = {fix.line for fix in dropped}
    fixes = [fix for fix in fixes if fix.line not in gone] + dropped + _moved(lines, late)
    return Repaired(tuple(line.text for line in lines), tuple(sorted(fixes, key=lambda fix: fix.line)))


def _texts(block: LineBlock) -> list[tuple[int, bytes]]:
    return list(enumerate(block.lines))


def _convert_unit(rows: Sequence[RawRow], rules: MooncakeRules) -> None:
    """Timestamps in ms, by the arithmetic of the reader."""
    if rules.timestamp_unit == "ms":
        return
    for row in rows:
        time = row.number("timestamp")
        if time is not None:
            time_ms = time * 1000.0 if rules.timestamp_unit == "s" else time / 1000.0
            if math.isfinite(time_ms):
                row.put("timestamp", Number(write_number(time_ms)), "timestamp-unit")


def _fill_timestamps(rows: Sequence[RawRow], rules: MooncakeRules) -> None:
    """What was stated to stand in for the timestamp of a first turn; timestamps are in ms by now."""
    if rules.missing_timestamps == "refuse":
        return
    seen: set[str] = set()
    last_ms = 0.0
    for row in rows:
        name = row.get("session_id")
        is_first = not isinstance(name, str) or name not in seen
        if isinstance(name, str):
            seen.add(name)
        if row.get("timestamp") is None and is_first:
            stand_in_ms = last_ms if rules.missing_timestamps == "previous" else 0.0
            row.put("timestamp", Number(write_number(stand_in_ms)), "fill-timestamp")
        elif (time_ms := row.number("timestamp")) is not None:
            last_ms = time_ms


def _fill_hash_ids(rows: Sequence[RawRow], rules: MooncakeRules) -> None:
    """Ids that no other row has, where it was stated that prompts lack some; counted up above all ids of the file."""
    if rules.missing_hash_ids != "private":
        return
    next_id = 1 + max((int(x) for row in rows for x in row.ids() or ()), default=-1)
    for row in rows:
        tokens = row.integer("input_length")
        ids = row.ids() if row.get("hash_ids") is not None else []
        if tokens is None or not 1 <= tokens < 2**31 or ids is None:
            continue
        count = rules.num_blocks(tokens) - len(ids)
        if count > 0 and next_id + count <= _ID_END:
            row.put("hash_ids", [*ids, *(Number(x) for x in range(next_id, next_id + count))], "fill-hash-ids")
            next_id += count


def _sorted(lines: list[_Line], rules: MooncakeRules) -> tuple[list[_Line], set[int]]:
    """Rows in order of time, if every row has one and no think time is given; equal times stay as they were.

    With think times given the order of the file says more than the timestamps, and a closed loop goes by it alone.

    Returns:
        The lines, and the numbers of those that stood behind a later time.
    """
    filled = [line for line in lines if line.text.strip()]
    times_ms = [None if line.row is None else line.row.number("timestamp") for line in filled]
    known = [time_ms for time_ms in times_ms if time_ms is not None]
    has_delays = any(line.row is not None and line.row.get("delay") is not None for line in filled)
    if rules.closed_loop or has_delays or len(known) < len(filled) or not known:
        return lines, set()
    falls = np.array(known) < np.maximum.accumulate(known)
    if not falls.any():
        return lines, set()
    order = np.argsort(known, kind="stable")
    return [filled[at] for at in order.tolist()], {filled[at].number for at in np.flatnonzero(falls).tolist()}


def _moved(lines: Sequence[_Line], late: set[int]) -> list[Fix]:
    """What the order of time has done to the rows that stood behind a later one."""
    return [
        Fix(line.number, "", f"line {line.number}", f"line {place}", "sort-rows")
        for place, line in enumerate(lines, 1)
        if line.number in late
    ]


class _EveryFault(FaultList):
    """All faults, however many."""

    def add(self, line: int, field: str, rule: str, value: object = None) -> None:
        self.listed.append(Fault(self.file, line, field, shown(value), rule))


def _require_faultless(lines: Sequence[_Line], file: str, rules: MooncakeRules) -> None:
    faults = _faults_of(lines, file, rules)
    if not faults and not any(line.text.strip() for line in lines):
        faults = [Fault(file, 0, "", "", "must hold at least one request that can be read")]
    if faults:
        ordered = sorted(faults, key=lambda fault: fault.line)
        raise TraceError(ordered[:MAX_LISTED], len(ordered[MAX_LISTED:]))


def _dropped(lines: list[_Line], faults: Sequence[Fault], dropped: list[Fix]) -> list[_Line]:
    """The lines that are left; what goes is added to `dropped`, with the first of its faults."""
    wrong = {fault.line: fault for fault in reversed(faults)}
    kept: list[_Line] = []
    broken: set[str] = set()  # sessions that have lost a turn: what follows answers to nothing
    for line in lines:
        name = None if line.row is None else line.row.get("session_id")
        fault = wrong.get(line.number)
        if fault is None and not (isinstance(name, str) and name in broken):
            kept.append(line)
            continue
        field, rule = ("", "drop-later-turn") if fault is None else (fault.field, "drop-row")
        dropped.append(Fix(line.number, field, shown(line.text), "", rule))
        if isinstance(name, str):
            broken.add(name)
    return kept


def _faults_of(lines: Sequence[_Line], file: str, rules: MooncakeRules, *, by_row: bool = False) -> list[Fault]:
    """Everything a plain reading of the copy would find, by the lines of the file as it was.

    Args:
        by_row: look at each row for itself only.
    """
    plain = structs.replace(
        rules, timestamp_unit="ms", missing_timestamps="refuse", surplus_hash_ids="refuse", missing_hash_ids="refuse"
    )
    found = _EveryFault(file)
    sessions = SessionTable(plain, found)
    for start in range(0, len(lines), _ROWS_A_BLOCK):
        texts = [line.text for line in lines[start : start + _ROWS_A_BLOCK]]
        columns = read_columns(LineBlock(start + 1, b"\n".join(texts)), plain, found, MooncakeLines())
        if not by_row:
            sessions.place(columns)
    if not by_row:
        sessions.finish()
    numbers = [0, *(line.number for line in lines)]
    return [structs.replace(fault, line=numbers[fault.line]) for fault in found.listed]
