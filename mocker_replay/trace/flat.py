"""Traces of single requests: what all formats without sessions have in common.

Decides how the columns of such a format become facts and row batches: order of time, hash ids that are given or
assumed, what is warned of. Each row is its own arrival. Keeps no rows. Never knows a format: a FlatFormat reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

import numpy as np
from msgspec import Struct, field

from mocker_replay.trace.base import (
    Assumptions,
    FactUnit,
    FailedRows,
    Float64s,
    Int64s,
    MissingHashIds,
    MissingTimestamps,
    RowBatch,
    SurplusHashIds,
    TraceFacts,
    Uint64s,
)
from mocker_replay.trace.block_ids import ID_END, MAX_MISSING_IDS, PrefixEstimate, exact_ids, shared_ids
from mocker_replay.trace.faults import FaultList, whole_file_error
from mocker_replay.trace.line_file import Lines, place_of

SCAN_ROWS: Final = 1024
MAX_BATCH_IDS: Final = 1 << 20  # hash ids of a batch, unless one row has more
MAX_NAMED_COLUMNS: Final = 5


class FlatRules(Struct, frozen=True):
    """How such a file is to be read; the fields are explained in docs/trace-formats.md."""

    trace_block_size: int
    closed_loop: bool = False
    missing_timestamps: MissingTimestamps = "refuse"
    surplus_hash_ids: SurplusHashIds = "ignore"
    missing_hash_ids: MissingHashIds = "refuse"
    failed_rows: FailedRows = "drop"
    estimate: PrefixEstimate = field(default_factory=PrefixEstimate)


class FlatColumns(Struct):
    """Checked rows in file order."""

    lines: Int64s
    times: Int64s | Float64s  # as the format counts them; NaN = absent
    input_tokens: Int64s
    output_tokens: Int64s
    hash_ids: Uint64s | None = None  # as given, rows one after another; None: the format has none
    num_hash_ids: Int64s | None = None
    request_ids: list[str | None] | None = None


class FlatReading(Protocol):
    """One reading of a file; made anew for each."""

    num_failed: int  # calls that failed, as the file says

    def columns(self, max_rows: int) -> Iterator[FlatColumns]:
        """All legal rows; what is wrong with the others is added to the faults."""

    def finish(self) -> list[str]:
        """Checks over the whole trace; says what is suspicious."""


class FlatFormat(Protocol):
    """A format of single requests."""

    @property
    def name(self) -> str: ...

    @property
    def timestamp_unit(self) -> FactUnit: ...

    @property
    def has_hash_ids(self) -> bool: ...

    @property
    def tells_failures(self) -> bool: ...

    def reading(self, file: Lines, rules: FlatRules, faults: FaultList) -> FlatReading: ...

    def to_ms(self, times: Any, origin: Any) -> Float64s:
        """Times as `timestamp_ms` of a batch; `origin` is the smallest of the trace, None if no row has a time."""

    def origin_text(self, origin: Any) -> str:
        """The smallest time as the file writes it, with its unit."""


class FlatTrace:
    """One trace of such a format; see TraceSource."""

    def __init__(self, file: Lines, form: FlatFormat, rules: FlatRules) -> None:
        self._file = file
        self._form = form
        self._rules = rules
        self._facts: TraceFacts | None = None
        self._origin: Any = None
        self._first_private_id = 0

    def __enter__(self) -> FlatTrace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def scan(self) -> TraceFacts:
        if self._facts is None:
            self._facts = self._scan()
        return self._facts

    def batches(self, max_rows: int = 1024) -> Iterator[RowBatch]:
        facts = self.scan()
        if max_rows < 1:
            raise ValueError(f"max_rows must be positive, got {max_rows}")
        faults = FaultList(self._file.shown_path, self._file.locate)
        reading = self._form.reading(self._file, self._rules, faults)
        first_row, next_private_id = 0, self._first_private_id
        for columns in reading.columns(max_rows):
            if faults:
                break
            for part in self._parts(columns):
                batch, num_private = self._batch(part, first_row, next_private_id)
                first_row += len(batch)
                next_private_id += num_private
                yield batch
        if faults or self._file.digest != facts.digest:
            raise whole_file_error(self._file.shown_path, "must not change while it is replayed, but did")

    def _scan(self) -> TraceFacts:
        faults = FaultList(self._file.shown_path, self._file.locate)
        tally = _Tally(self._rules, faults)
        reading = self._form.reading(self._file, self._rules, faults)
        for columns in reading.columns(SCAN_ROWS):
            tally.add(columns)
        told = reading.finish()
        if tally.num_rows == 0 and not faults:
            raise whole_file_error(self._file.shown_path, "must hold at least one request")
        if tally.first_private_id + tally.num_private > ID_END:
            rule = f"leave no room above {tally.first_private_id - 1} for {tally.num_private} private ids"
            faults.add(0, "hash_ids", rule)
        if faults:
            raise faults.error()
        self._origin = tally.min_time
        self._first_private_id = tally.first_private_id
        return self._facts_of(tally, reading, told)

    def _facts_of(self, tally: _Tally, reading: FlatReading, told: list[str]) -> TraceFacts:
        first_ms, last_ms = self._span(tally)
        if first_ms is not None and last_ms is not None and not np.isfinite(last_ms - first_ms):
            raise whole_file_error(self._file.shown_path, "must span a finite time over the trace")
        form, rules = self._form, self._rules
        assumptions = Assumptions(
            origin=None if tally.min_time is None else form.origin_text(tally.min_time),
            estimate_prefix=None if form.has_hash_ids else str(rules.estimate),
            failed_rows=rules.failed_rows if form.tells_failures else None,
            num_failed_rows=reading.num_failed,
        )
        return TraceFacts(
            path=self._file.path,
            name=self._file.name,
            format=form.name,
            num_rows=tally.num_rows,
            digest=self._file.digest,
            is_sorted=tally.is_sorted,
            has_sessions=False,
            is_multi_turn=False,
            num_sessions=tally.num_rows,
            min_first_timestamp_ms=first_ms,
            max_first_timestamp_ms=last_ms,
            total_input_tokens=tally.input_tokens,
            total_output_tokens=tally.output_tokens,
            has_request_ids=tally.has_request_ids,
            timestamp_unit=form.timestamp_unit,
            trace_block_size=rules.trace_block_size,
            warnings=tuple(told + self._warnings(tally, reading)),
            assumptions=assumptions,
        )

    def _span(self, tally: _Tally) -> tuple[float | None, float | None]:
        if tally.min_time is None:
            return None, None
        ends = self._form.to_ms(np.array([tally.min_time, tally.max_time]), tally.min_time)
        return float(ends[0]), float(ends[1])

    def _warnings(self, tally: _Tally, reading: FlatReading) -> list[str]:
        """What holds for all such formats."""
        rules, found = self._rules, []
        if not tally.is_sorted and not rules.closed_loop:
            where = place_of(self._file, tally.first_unsorted_line)
            found.append(f"rows are not in order of time (first at {where}); they are sorted")
        if tally.num_surplus_rows:
            where = place_of(self._file, tally.first_surplus_line)
            found.append(
                f"{rows(tally.num_surplus_rows)} with more hash_ids than their prompt has blocks of "
                f"{rules.trace_block_size} tokens (first at {where}); the surplus is ignored"
            )
        if self._form.has_hash_ids:
            if tally.num_private:
                found.append(
                    f"{rows(tally.num_private_rows)} with {tally.num_private} prompt blocks that have no hash id; "
                    "these share nothing"
                )
        elif not rules.estimate.is_sharing:
            found.append(
                f"{self._form.name} has no hash ids: every prompt is taken for private, nothing is reused between "
                "requests (--estimate-prefix RATIO:GROUPS assumes otherwise)"
            )
        else:
            found.append(
                f"{self._form.name} has no hash ids: it is assumed that the first {rules.estimate.ratio:g} of each "
                f"prompt's blocks are those of one of {rules.estimate.num_groups} groups (--estimate-prefix)"
            )
        if reading.num_failed and self._form.tells_failures:
            found.append(_failed_text(reading.num_failed, rules.failed_rows))
        return found

    def _parts(self, columns: FlatColumns) -> Iterator[FlatColumns]:
        """The columns cut so that no batch has too many hash ids."""
        ends = np.cumsum(_num_blocks(columns, self._rules))
        start = 0
        while start < len(columns.lines):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + MAX_BATCH_IDS, "right")))
            yield _slice(columns, start, stop)
            start = stop

    def _batch(self, columns: FlatColumns, first_row: int, next_private_id: int) -> tuple[RowBatch, int]:
        """A batch, and how many private ids it took."""
        needed = _num_blocks(columns, self._rules)
        if columns.hash_ids is None or columns.num_hash_ids is None:
            given_ids, given = shared_ids(self._rules.estimate, first_row, needed)
        else:
            given_ids, given = columns.hash_ids, columns.num_hash_ids
        num_rows = len(columns.lines)
        offsets = np.zeros(num_rows + 1, np.int64)
        np.cumsum(needed, out=offsets[1:])
        batch = RowBatch(
            first_row=first_row,
            lines=columns.lines,
            timestamp_ms=self._form.to_ms(columns.times, self._origin),
            input_tokens=columns.input_tokens,
            output_tokens=columns.output_tokens,
            hash_offsets=offsets,
            hash_ids=exact_ids(given_ids, given, needed, next_private_id),
            session=np.arange(first_row, first_row + num_rows, dtype=np.int64),
            turn=np.zeros(num_rows, np.int32),
            delay_ms=np.zeros(num_rows),
            session_names=[None] * num_rows,
            request_ids=columns.request_ids,
            priority=np.zeros(num_rows, np.int32),
            strict_priority=np.zeros(num_rows, np.int64),
            surplus_included=columns.hash_ids if (given > needed).any() else None,
        )
        return batch, int(np.maximum(needed - given, 0).sum())


class _Tally:
    """Sums over the rows of a scan, and the faults of hash ids."""

    def __init__(self, rules: FlatRules, faults: FaultList) -> None:
        self._rules = rules
        self._faults = faults
        self._last_time: Any = None
        self.num_rows = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.has_request_ids = False
        self.min_time: Any = None
        self.max_time: Any = None
        self.is_sorted = True
        self.first_unsorted_line = 0
        self.first_private_id = 0  # above all ids that are given or shared
        self.num_private = 0
        self.num_private_rows = 0
        self.num_surplus_rows = 0
        self.first_surplus_line = 0

    def add(self, columns: FlatColumns) -> None:
        if len(columns.lines) == 0:
            return
        self.num_rows += len(columns.lines)
        self.input_tokens += int(columns.input_tokens.sum())
        self.output_tokens += int(columns.output_tokens.sum())
        self.has_request_ids |= columns.request_ids is not None
        self._note_times(columns)
        self._note_ids(columns)

    def _note_times(self, columns: FlatColumns) -> None:
        given = ~np.isnan(columns.times)
        times = columns.times[given]
        if len(times) == 0:
            return
        low, high = times.min().item(), times.max().item()
        if self.is_sorted:
            before = times[:1] if self._last_time is None else np.array([self._last_time], times.dtype)
            falls = np.flatnonzero(times < np.concatenate((before, times[:-1])))
            if len(falls):
                self.is_sorted = False
                self.first_unsorted_line = int(columns.lines[given][falls[0]])
        self._last_time = times[-1].item()
        self.min_time = low if self.min_time is None else min(low, self.min_time)
        self.max_time = high if self.max_time is None else max(high, self.max_time)

    def _note_ids(self, columns: FlatColumns) -> None:
        needed = _num_blocks(columns, self._rules)
        if columns.hash_ids is None or columns.num_hash_ids is None:
            estimate = self._rules.estimate
            given = estimate.num_shared(needed)
            past = int(given.max()) * estimate.num_groups
            self._note_missing(columns, needed)
        else:
            given = columns.num_hash_ids
            past = int(columns.hash_ids.max()) + 1 if len(columns.hash_ids) else 0
            surplus = columns.lines[given > needed]
            if len(surplus):
                self.first_surplus_line = self.first_surplus_line or int(surplus[0])
                self.num_surplus_rows += len(surplus)
            self._note_missing(columns, needed - given)
        self.first_private_id = max(self.first_private_id, past)
        missing = np.maximum(needed - given, 0)
        self.num_private += int(missing.sum())
        self.num_private_rows += int((missing > 0).sum())

    def _note_missing(self, columns: FlatColumns, missing: Int64s) -> None:
        """A prompt without ids costs memory that no byte of the file answers for."""
        for at in np.flatnonzero(missing > MAX_MISSING_IDS):
            rule = f"must not need more than {MAX_MISSING_IDS} blocks without a hash id, but needs {missing[at]}"
            self._faults.add(int(columns.lines[at]), "", rule, int(columns.input_tokens[at]))


def _num_blocks(columns: FlatColumns, rules: FlatRules) -> Int64s:
    return -(-columns.input_tokens // rules.trace_block_size)


def _slice(columns: FlatColumns, start: int, stop: int) -> FlatColumns:
    if start == 0 and stop >= len(columns.lines):
        return columns
    hash_ids, num_hash_ids = columns.hash_ids, columns.num_hash_ids
    if hash_ids is not None and num_hash_ids is not None:
        ends = np.cumsum(num_hash_ids)
        hash_ids = hash_ids[int(ends[start - 1]) if start else 0 : int(ends[stop - 1])]
        num_hash_ids = num_hash_ids[start:stop]
    return FlatColumns(
        lines=columns.lines[start:stop],
        times=columns.times[start:stop],
        input_tokens=columns.input_tokens[start:stop],
        output_tokens=columns.output_tokens[start:stop],
        hash_ids=hash_ids,
        num_hash_ids=num_hash_ids,
        request_ids=None if columns.request_ids is None else columns.request_ids[start:stop],
    )


def rows(count: int) -> str:
    """A count in words."""
    return "1 row" if count == 1 else f"{count} rows"


def unknown_text(names: set[str]) -> str:
    """The warning of fields or columns that no rule knows."""
    ordered = sorted(names)
    more = f" and {len(ordered) - MAX_NAMED_COLUMNS} more" if len(ordered) > MAX_NAMED_COLUMNS else ""
    return f"fields that mean nothing here were ignored: {', '.join(ordered[:MAX_NAMED_COLUMNS])}{more}"


def _failed_text(num_failed: int, failed_rows: FailedRows) -> str:
    if failed_rows == "keep":
        return f"{rows(num_failed)} of failed calls kept: prompts without output (--failed-rows keep)"
    return f"{rows(num_failed)} of failed calls left out (--failed-rows drop; keep replays their prompts)"
