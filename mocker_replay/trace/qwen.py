"""The Qwen-Bailian traces: JSON lines of chats with hash ids of 16 tokens and the time in seconds.

Decides which rows are legal, and which relations between chats are faults (a chat twice, its own parent) or only worth
a warning. Each row arrives when it was recorded: a parent explains the common prefix and orders nothing. A scan keeps
five numbers a row, for these relations; the rows themselves are not kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from mocker_replay.trace.base import MAX_TOKENS, Float64s
from mocker_replay.trace.csv_table import seconds_to_ms
from mocker_replay.trace.faults import FaultList
from mocker_replay.trace.flat import FlatColumns, FlatRules, rows, unknown_text
from mocker_replay.trace.json_rows import read_object
from mocker_replay.trace.line_file import Lines, place_of

ROOT: Final = -1  # the parent of a chat that has none
FIELDS: Final = (
    "chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "type", "turn", "hash_ids",
)  # fmt: skip
_REQUIRED: Final = ("chat_id", "timestamp", "input_length", "output_length")
_ID_MAX: Final = 2**63 - 1
_INTEGERS: Final = {
    "chat_id": (0, _ID_MAX),
    "parent_chat_id": (ROOT, _ID_MAX),
    "input_length": (1, MAX_TOKENS),
    "output_length": (0, MAX_TOKENS),
    "turn": (0, 2**31 - 1),
}
_NO_TURN: Final = -1


class QwenFormat:
    """See FlatFormat."""

    name = "qwen"
    timestamp_unit: Final = "s"
    has_hash_ids = True
    tells_failures = False

    def reading(self, file: Lines, rules: FlatRules, faults: FaultList) -> QwenReading:
        return QwenReading(file, rules, faults)

    def to_ms(self, times: Any, origin: Any) -> Float64s:
        given: Float64s = times
        return given

    def origin_text(self, origin: Any) -> str:
        return f"{origin / 1000.0:.15g} s"


class QwenReading:
    """See FlatReading."""

    def __init__(self, file: Lines, rules: FlatRules, faults: FaultList) -> None:
        self._file = file
        self._rules = rules
        self._faults = faults
        self._unknown: set[str] = set()
        self._chats = _Chats(file, faults)
        self.num_failed = 0

    def columns(self, max_rows: int) -> Iterator[FlatColumns]:
        for block in self._file.blocks(max_rows):
            lines, times, inputs, outputs, names = array("q"), array("d"), array("q"), array("q"), []
            hash_ids, num_hash_ids = array("Q"), array("q")
            for at, text in enumerate(block.lines):
                line = block.first_line + at
                row = read_object(text, line, self._faults)
                if row is None or not self._is_legal(row, line):
                    continue
                self._chats.add(row, line)
                lines.append(line)
                times.append(row["timestamp"])
                inputs.append(row["input_length"])
                outputs.append(row["output_length"])
                names.append(str(row["chat_id"]))
                hash_ids.extend(row["hash_ids"])
                num_hash_ids.append(len(row["hash_ids"]))
            yield FlatColumns(
                lines=np.array(lines, np.int64),
                times=np.array(times, np.float64),
                input_tokens=np.array(inputs, np.int64),
                output_tokens=np.array(outputs, np.int64),
                hash_ids=np.array(hash_ids, np.uint64),
                num_hash_ids=np.array(num_hash_ids, np.int64),
                request_ids=list(names),
            )

    def finish(self) -> list[str]:
        found = self._chats.finish()
        return found + ([unknown_text(self._unknown)] if self._unknown else [])

    def _is_legal(self, row: dict[str, Any], line: int) -> bool:
        """Check a row and put its time in ms; adds all its faults."""
        known = len(self._faults)
        for name in _REQUIRED:
            if row.get(name) is None:
                self._faults.add(line, name, "is required")
        for name, (low, high) in _INTEGERS.items():
            value = row.get(name)
            if value is not None and (type(value) is not int or not low <= value <= high):
                self._faults.add(line, name, f"must be an integer from {low} to {high}", value)
        time = row.get("timestamp")
        if time is not None:
            row["timestamp"] = seconds_to_ms(repr(time)) if type(time) in (int, float) else None
            if row["timestamp"] is None:
                self._faults.add(line, "timestamp", "must be a finite number of seconds", time)
        if row.get("type") is not None and type(row["type"]) is not str:
            self._faults.add(line, "type", "must be a string", row["type"])
        if row.get("parent_chat_id") is not None and row["parent_chat_id"] == row.get("chat_id"):
            self._faults.add(line, "parent_chat_id", "must not be the chat itself", row["parent_chat_id"])
        self._check_ids(row, line)
        if len(self._faults) > known:
            return False
        self._unknown |= row.keys() - set(FIELDS)
        return True

    def _check_ids(self, row: dict[str, Any], line: int) -> None:
        ids, size = row.get("hash_ids"), self._rules.trace_block_size
        if ids is None:
            row["hash_ids"] = ids = []
            if self._rules.missing_hash_ids == "refuse":
                self._faults.add(line, "hash_ids", f"is required: one id per prompt block of {size} tokens")
                return
        if type(ids) is not list:
            self._faults.add(line, "hash_ids", "must be a list of integers", ids)
            return
        for at, value in enumerate(ids):
            if type(value) is not int or not 0 <= value < 2**64:
                given = b"null" if value is None else value
                self._faults.add(line, f"hash_ids[{at}]", f"must be an integer from 0 to {2**64 - 1}", given)
                return
        num_tokens = row.get("input_length")
        if type(num_tokens) is not int or not 1 <= num_tokens <= MAX_TOKENS:
            return
        needed = -(-num_tokens // size)
        if len(ids) < needed and self._rules.missing_hash_ids == "refuse":
            rule = f"must not exceed the {len(ids) * size} tokens of {len(ids)} hash_ids at trace block size {size}"
            self._faults.add(line, "input_length", f"{rule} (--missing-hash-ids private allows it)", num_tokens)
        if len(ids) > needed + 1 and self._rules.surplus_hash_ids == "refuse":
            rule = f"must hold one id per {size} tokens, {needed} for {num_tokens}, but holds {len(ids)}"
            self._faults.add(line, "hash_ids", f"{rule} (--surplus-hash-ids ignore allows it)")


class _Chats:
    """Who follows whom: numbers only, looked at when all are known."""

    def __init__(self, file: Lines, faults: FaultList) -> None:
        self._file = file
        self._faults = faults
        self._lines, self._ids, self._parents = array("q"), array("q"), array("q")
        self._turns, self._times = array("q"), array("d")

    def add(self, row: dict[str, Any], line: int) -> None:
        parent, turn = row.get("parent_chat_id"), row.get("turn")
        self._lines.append(line)
        self._ids.append(row["chat_id"])
        self._parents.append(ROOT if parent is None else parent)
        self._turns.append(_NO_TURN if turn is None else turn)
        self._times.append(row["timestamp"])

    def finish(self) -> list[str]:
        """Faults of chats given twice; warnings about parents."""
        lines, ids = np.array(self._lines, np.int64), np.array(self._ids, np.int64)
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        for at in np.flatnonzero(ordered[1:] == ordered[:-1]) + 1:
            first = place_of(self._file, int(lines[order[np.searchsorted(ordered, ordered[at])]]))
            rule = f"must not be given twice, but stands at {first} too"
            self._faults.add(int(lines[order[at]]), "chat_id", rule, int(ordered[at]))
        parents = np.array(self._parents, np.int64)
        children = np.flatnonzero(parents != ROOT)
        place = np.searchsorted(ordered, parents[children])
        is_known = (place < len(ordered)) & (ordered[np.minimum(place, len(ordered) - 1)] == parents[children])
        child, parent = children[is_known], order[place[is_known]]
        turns, times = np.array(self._turns, np.int64), np.array(self._times)
        has_turns = (turns[child] != _NO_TURN) & (turns[parent] != _NO_TURN)
        odd_turns = child[has_turns & (turns[child] != turns[parent] + 1)]
        early = child[times[child] < times[parent]]
        return [
            *self._told(
                "a parent_chat_id that is no chat of the trace (it may have begun before)", children[~is_known]
            ),
            *self._told("a turn other than the one after its parent's", odd_turns),
            *self._told("a timestamp before that of its parent", early),
        ]

    def _told(self, what: str, found: Any) -> list[str]:
        if len(found) == 0:
            return []
        return [f"{rows(len(found))} with {what} (first at {place_of(self._file, int(self._lines[int(found[0])]))})"]
