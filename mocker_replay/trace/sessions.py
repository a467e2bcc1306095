"""Which session and turn each row is, and how long its user thinks before it.

Decides session ordinals (by first appearance), turns, think times and what stands in for a missing
arrival. Keeps one small record per named session and nothing per row. Never decides when a turn starts:
a think time counts from the end of the previous answer, which only a replay knows.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from msgspec import Struct

from mocker_replay.trace.base import Float64s, Int32s, Int64s
from mocker_replay.trace.faults import FaultList
from mocker_replay.trace.mooncake_columns import Columns
from mocker_replay.trace.mooncake_row import MooncakeRules

_RESERVED_PREFIX: Final = "request_"
MAX_NAMED_SESSIONS: Final = 20_000_000  # each takes some 300 bytes until the trace is read


class _Session(Struct):
    ordinal: int
    num_turns: int
    last_timestamp_ms: float  # the latest given one; NaN before any


class Placed(Struct, frozen=True):
    """The session columns of some rows."""

    session: Int64s
    turn: Int32s
    timestamp_ms: Float64s
    delay_ms: Float64s


class SessionTable:
    """Follows a trace row by row, in file order."""

    def __init__(self, rules: MooncakeRules, faults: FaultList) -> None:
        self._rules = rules
        self._faults = faults
        self._named: dict[str, _Session] = {}
        self._last_timestamp_ms = 0.0  # of the nearest row above that has one, for "previous"
        self._latest_first_ms = -math.inf
        self._reserved: tuple[int, str] | None = None  # line and id of a session called like an unnamed one
        self._has_unnamed = False
        self.num_sessions = 0
        self.is_multi_turn = False
        self.is_sorted = True  # first turns, in file order
        self.first_unsorted_line = 0
        self.num_filled = 0  # missing timestamps that an option replaced
        self.has_delays = False
        self.min_first_ms: float | None = None
        self.max_first_ms: float | None = None

    @property
    def has_names(self) -> bool:
        return bool(self._named)

    def place(self, columns: Columns) -> Placed:
        """Settle the session columns of the next rows; faults go to the list."""
        timestamps = columns.timestamp_ms
        for at in np.flatnonzero(np.isinf(timestamps)):
            self._faults.add(int(columns.lines[at]), "timestamp", "must be a finite number of milliseconds")
        stand_in = self._stand_ins(timestamps)
        if columns.session_ids is None:
            placed = self._place_unnamed(columns, stand_in)
        else:
            placed = self._place_each(columns, columns.session_ids, stand_in)
        self._note_first_turns(columns, placed)
        return placed

    def finish(self) -> None:
        """Checks that need the whole trace."""
        if self._reserved is not None and self._has_unnamed:
            line, name = self._reserved
            rule = "must not have the form request_<number>, the name of rows without a session_id, when there are such"
            self._faults.add(line, "session_id", rule, name)
        if self.min_first_ms is not None and math.isinf((self.max_first_ms or 0.0) - self.min_first_ms):
            self._faults.add(0, "timestamp", "must span a finite time over the trace")

    def _stand_ins(self, timestamps: Float64s) -> Float64s | None:
        """What a first turn without timestamp gets, per row; None when it gets nothing."""
        missing = np.isnan(timestamps)
        policy = self._rules.missing_timestamps
        stand_in = None
        if policy == "zero":
            stand_in = np.zeros(len(timestamps))
        elif policy == "previous" and missing.any():
            source = np.maximum.accumulate(np.where(missing, -1, np.arange(len(timestamps))))
            stand_in = np.where(source < 0, self._last_timestamp_ms, timestamps[source])
        if not missing.all():
            self._last_timestamp_ms = float(timestamps[~missing][-1])
        return stand_in

    def _place_unnamed(self, columns: Columns, stand_in: Float64s | None) -> Placed:
        num_rows = len(columns.lines)
        self._has_unnamed |= num_rows > 0
        session = np.arange(self.num_sessions, self.num_sessions + num_rows, dtype=np.int64)
        self.num_sessions += num_rows
        if columns.delay_ms is not None:
            for at in np.flatnonzero(np.nan_to_num(columns.delay_ms) != 0.0):
                self._refuse_first_delay(columns, int(at), f"request_{columns.lines[at]}", float(columns.delay_ms[at]))
        missing = np.isnan(columns.timestamp_ms)
        timestamps = columns.timestamp_ms
        if missing.any():
            timestamps = timestamps.copy()
            for at in np.flatnonzero(missing):
                timestamps[at] = self._first_timestamp(columns, int(at), stand_in)
        return Placed(session, np.zeros(num_rows, np.int32), timestamps, np.zeros(num_rows))

    def _place_each(self, columns: Columns, names: list[str | None], stand_in: Float64s | None) -> Placed:
        num_rows = len(names)
        session, turn = np.empty(num_rows, np.int64), np.zeros(num_rows, np.int32)
        timestamps, delays = columns.timestamp_ms.copy(), np.zeros(num_rows)
        given_delays = [math.nan] * num_rows if columns.delay_ms is None else columns.delay_ms.tolist()
        for at, (name, timestamp_ms, delay_ms) in enumerate(zip(names, timestamps.tolist(), given_delays, strict=True)):
            known = None if name is None else self._named.get(name)
            if known is not None:
                session[at], turn[at] = known.ordinal, known.num_turns
                delays[at] = self._think_time(columns, at, str(name), known, timestamp_ms, delay_ms)
                known.num_turns += 1
                self.is_multi_turn = True
            else:
                session[at] = self.num_sessions
                if timestamp_ms != timestamp_ms:
                    timestamps[at] = timestamp_ms = self._first_timestamp(columns, at, stand_in)
                if name is None:
                    self._has_unnamed = True
                else:
                    self._require_room(int(columns.lines[at]))
                    known = self._named[name] = _Session(self.num_sessions, 1, math.nan)
                    self._note_reserved(name, int(columns.lines[at]))
                if delay_ms == delay_ms and delay_ms != 0.0:
                    self._refuse_first_delay(columns, at, name or f"request_{columns.lines[at]}", delay_ms)
                self.num_sessions += 1
            if known is not None and timestamp_ms == timestamp_ms:
                known.last_timestamp_ms = timestamp_ms
        return Placed(session, turn, timestamps, delays)

    def _require_room(self, line: int) -> None:
        if len(self._named) >= MAX_NAMED_SESSIONS:
            rule = f"must not be the name of session {len(self._named) + 1}: at most {MAX_NAMED_SESSIONS} can have one"
            self._faults.add(line, "session_id", rule)
            raise self._faults.error()

    def _think_time(
        self, columns: Columns, at: int, name: str, known: _Session, timestamp_ms: float, delay_ms: float
    ) -> float:
        line = int(columns.lines[at])
        if line in columns.excused_lines:
            return 0.0
        if delay_ms == delay_ms:
            self.has_delays = True
            if delay_ms < 0.0:
                self._faults.add(line, "delay", "must not be negative", _plain(delay_ms))
            return delay_ms
        if timestamp_ms != timestamp_ms:
            return 0.0
        gap_ms = timestamp_ms - known.last_timestamp_ms
        if gap_ms != gap_ms:
            rule = f"is required: no earlier row of session {name!r} has a timestamp to measure the think time from"
            self._faults.add(line, "delay", rule)
        elif gap_ms < 0.0:
            rule = f"must not be before {self._as_given(known.last_timestamp_ms)}, the last one of session {name!r}"
            self._faults.add(line, "timestamp", rule, self._as_given(timestamp_ms))
        elif math.isinf(gap_ms):
            self._faults.add(line, "timestamp", f"must be a finite time after the last one of session {name!r}")
        return gap_ms

    def _first_timestamp(self, columns: Columns, at: int, stand_in: Float64s | None) -> float:
        """The arrival of a session whose first row gives none; NaN when it needs none."""
        if stand_in is not None:
            self.num_filled += 1
            return float(stand_in[at])
        line = int(columns.lines[at])
        if not self._rules.closed_loop and line not in columns.excused_lines:
            self._faults.add(line, "timestamp", "is required for the first turn of a session in an open loop")
        return math.nan

    def _refuse_first_delay(self, columns: Columns, at: int, name: str, delay_ms: float) -> None:
        line = int(columns.lines[at])
        if line not in columns.excused_lines:
            rule = f"must be 0 or absent on the first turn of session {name!r}"
            self._faults.add(line, "delay", rule, _plain(delay_ms))

    def _as_given(self, time_ms: float) -> int | float:
        """A time in the unit of the file."""
        return _plain(time_ms * {"s": 0.001, "ms": 1.0, "us": 1000.0}[self._rules.timestamp_unit])

    def _note_reserved(self, name: str, line: int) -> None:
        if self._reserved is None and name.startswith(_RESERVED_PREFIX) and name[len(_RESERVED_PREFIX) :].isdecimal():
            self._reserved = (line, name)

    def _note_first_turns(self, columns: Columns, placed: Placed) -> None:
        is_first = (placed.turn == 0) & ~np.isnan(placed.timestamp_ms)
        firsts = placed.timestamp_ms[is_first]
        if len(firsts) == 0:
            return
        low, high = float(firsts.min()), float(firsts.max())
        if self._rules.closed_loop and low < 0.0:
            for at in np.flatnonzero(is_first & (placed.timestamp_ms < 0.0)):
                value = self._as_given(float(placed.timestamp_ms[at]))
                self._faults.add(int(columns.lines[at]), "timestamp", "must not be negative in a closed loop", value)
        if self.is_sorted:
            falls = np.flatnonzero(firsts < np.concatenate(([self._latest_first_ms], firsts[:-1])))
            if len(falls):
                self.is_sorted = False
                self.first_unsorted_line = int(columns.lines[is_first][falls[0]])
            self._latest_first_ms = float(firsts[-1])
        self.min_first_ms = low if self.min_first_ms is None else min(low, self.min_first_ms)
        self.max_first_ms = high if self.max_first_ms is None else max(high, self.max_first_ms)


def _plain(value: float) -> int | float:
    """Without the .0 that the file does not have."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
