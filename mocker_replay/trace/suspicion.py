"""Warnings: what is legal in a trace but hardly meant.

Decides which facts look wrong and says what to do about it. Never refuses anything.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from mocker_replay.trace.base import Int64s, TimestampUnit
from mocker_replay.trace.line_file import Lines, place_of
from mocker_replay.trace.mooncake_columns import Columns
from mocker_replay.trace.mooncake_row import MooncakeRules
from mocker_replay.trace.sessions import SessionTable

MAX_NAMED_FIELDS: Final = 5
SHORT_SPAN_MS: Final = 10.0
# Arrivals outside these bounds suggest another unit of the timestamps.
MIN_ROWS_TO_JUDGE: Final = 10
MIN_MEAN_GAP_MS: Final = 1.0  # 1 000 requests a second
MAX_MEAN_GAP_MS: Final = 600_000.0  # one request in ten minutes
MAX_INPUT_TOKENS_PER_S: Final = 5e6  # what a hundred large nodes could prefill
# Seconds since 1970, for the years 2001 to 2286: a clock in seconds, ms or us is told by its size.
_EPOCH_S: Final = (1e9, 1e10)
_MS_PER_UNIT: Final = {"s": 1000.0, "ms": 1.0, "us": 0.001}


class Tally(Struct):
    """Sums over the rows of one reading."""

    num_rows: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    has_request_ids: bool = False
    max_hash_id: int = -1
    num_surplus_rows: int = 0
    first_surplus_line: int = 0
    num_private_ids: int = 0
    num_private_rows: int = 0
    unknown_fields: dict[str, int] = field(default_factory=dict)  # name -> a line near its first use

    def add(self, columns: Columns, needed: Int64s) -> None:
        """Count some rows in; `needed` is the number of trace blocks of each prompt."""
        if len(columns.lines) == 0:
            return
        self.num_rows += len(columns.lines)
        self.input_tokens += int(columns.input_tokens.sum())
        self.output_tokens += int(columns.output_tokens.sum())
        self.has_request_ids |= columns.request_ids is not None and any(r is not None for r in columns.request_ids)
        if len(columns.hash_ids):
            self.max_hash_id = max(self.max_hash_id, int(columns.hash_ids.max()))
        surplus = columns.num_hash_ids - needed
        if surplus.any():
            lines = columns.lines[surplus > 0]
            if len(lines):
                self.first_surplus_line = self.first_surplus_line or int(lines[0])
                self.num_surplus_rows += len(lines)
            self.num_private_rows += int((surplus < 0).sum())
            self.num_private_ids -= int(surplus[surplus < 0].sum())
        for name in columns.unknown - self.unknown_fields.keys():
            self.unknown_fields[name] = int(columns.lines[0])


def warnings_about(tally: Tally, sessions: SessionTable, rules: MooncakeRules, file: Lines) -> list[str]:
    """Everything suspicious, in a fixed order."""
    found: list[str] = []
    if not rules.closed_loop:
        found += _about_time(tally, sessions, rules, file)
    if sessions.num_filled:
        stand_in = "0" if rules.missing_timestamps == "zero" else "that of the row above"
        found.append(f"{_rows(sessions.num_filled)} without a timestamp were given {stand_in}")
    if rules.timestamp_unit != "ms" and sessions.has_delays:
        found.append(f"delays are read as ms, though timestamps are read as {rules.timestamp_unit}")
    if tally.num_surplus_rows:
        where = place_of(file, tally.first_surplus_line)
        found.append(
            f"{_rows(tally.num_surplus_rows)} with more hash_ids than their prompt has blocks of "
            f"{rules.trace_block_size} tokens (first at {where}); the surplus is ignored"
        )
    if tally.num_private_rows:
        found.append(
            f"{_rows(tally.num_private_rows)} with {tally.num_private_ids} prompt blocks that have no hash id; "
            "these share nothing"
        )
    if tally.unknown_fields:
        names = sorted(tally.unknown_fields)
        more = f" and {len(names) - MAX_NAMED_FIELDS} more" if len(names) > MAX_NAMED_FIELDS else ""
        found.append(f"fields that mean nothing here were ignored: {', '.join(names[:MAX_NAMED_FIELDS])}{more}")
    return found


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _about_time(tally: Tally, sessions: SessionTable, rules: MooncakeRules, file: Lines) -> list[str]:
    first_ms, last_ms = sessions.min_first_ms, sessions.max_first_ms
    if first_ms is None or last_ms is None:
        return []
    found = []
    unit, span_ms = rules.timestamp_unit, last_ms - first_ms
    likely = likely_unit(first_ms, last_ms, sessions.num_sessions, tally.input_tokens, unit)
    if likely != unit:
        found.append(
            f"{sessions.num_sessions} arrivals with {tally.input_tokens} prompt tokens span {span_ms:g} ms when "
            f"timestamps are read as {unit}; they look like {likely} (--timestamp-unit {likely})"
        )
    elif 0.0 < span_ms < SHORT_SPAN_MS:
        found.append(f"the whole trace spans {span_ms:g} ms; are its timestamps really in {unit} (--timestamp-unit)?")
    if not sessions.is_sorted:
        where = place_of(file, sessions.first_unsorted_line)
        found.append(f"rows are not in order of time (first at {where}); they are sorted")
    return found


def likely_unit(
    first_ms: float, last_ms: float, num_sessions: int, input_tokens: int, unit: TimestampUnit
) -> TimestampUnit:
    """The unit the timestamps seem to have, given the one they were read in.

    A clock since 1970 is told by its size. Otherwise the mean gap between arrivals and the prompt tokens
    a second must be credible; the first unit with which they are is the likely one.
    """
    raw_first, raw_last = first_ms / _MS_PER_UNIT[unit], last_ms / _MS_PER_UNIT[unit]
    candidates: tuple[tuple[TimestampUnit, float], ...] = (("s", 1.0), ("ms", 1e3), ("us", 1e6))
    for candidate, per_s in candidates:
        if _EPOCH_S[0] * per_s <= raw_first <= raw_last < _EPOCH_S[1] * per_s:
            return candidate
    if num_sessions < MIN_ROWS_TO_JUDGE or last_ms == first_ms:
        return unit
    order: tuple[TimestampUnit, ...] = (unit, "ms", "s", "us")
    for candidate in order:
        span_ms = (raw_last - raw_first) * _MS_PER_UNIT[candidate]
        is_credible_load = input_tokens <= MAX_INPUT_TOKENS_PER_S * span_ms / 1000.0
        if is_credible_load and MIN_MEAN_GAP_MS <= span_ms / (num_sessions - 1) <= MAX_MEAN_GAP_MS:
            return candidate
    return unit
