"""Mooncake JSONL: one request a line, optionally in sessions.

Decides how a file becomes row batches, in two readings: `scan` finds all faults and the facts, `batches`
delivers the rows. Both keep one small record per named session. The rows of a small file are kept from the first
reading to the second, which then needs no file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from mocker_replay._core.mooncake_lines import MooncakeLines
from mocker_replay.trace.base import Int64s, RowBatch, TraceFacts
from mocker_replay.trace.block_ids import MAX_MISSING_IDS, exact_ids
from mocker_replay.trace.faults import FaultList, whole_file_error
from mocker_replay.trace.kept_rows import KeptRows
from mocker_replay.trace.line_file import Lines
from mocker_replay.trace.mooncake_columns import Columns, num_trace_blocks, read_columns
from mocker_replay.trace.mooncake_row import MooncakeRules
from mocker_replay.trace.sessions import SessionTable
from mocker_replay.trace.suspicion import Tally, warnings_about

if TYPE_CHECKING:
    from mocker_replay.trace.repair import Repaired

SCAN_ROWS: Final = 1024
_ID_END: Final = 2**64


class MooncakeTrace:
    """One Mooncake file; see TraceSource."""

    def __init__(self, file: Lines, rules: MooncakeRules) -> None:
        self._file = file
        self._rules = rules
        self._facts: TraceFacts | None = None
        self._scanner = MooncakeLines()
        self._first_private_id = 0  # above all ids of the file, once scanned
        self._kept: KeptRows | None = None  # in blocks of SCAN_ROWS; None: not scanned

    def __enter__(self) -> MooncakeTrace:
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
        sessions = SessionTable(self._rules, faults)
        first_row, next_private_id = 0, self._first_private_id
        for columns in self._columns(max_rows, faults):
            batch = self._batch(columns, sessions, first_row, next_private_id)
            if faults:
                break
            if len(batch):
                first_row += len(batch)
                next_private_id += _num_private(columns, self._rules)
                yield batch
        if faults or self._file.digest != facts.digest:
            raise whole_file_error(self._file.shown_path, "must not change while it is replayed, but did")

    def _columns(self, max_rows: int, faults: FaultList) -> Iterator[Columns]:
        """The rows for a second time, at most `max_rows` at once."""
        if self._kept is not None and self._kept.is_whole and max_rows >= SCAN_ROWS:
            yield from self._kept
            return
        for block in self._file.blocks(max_rows):
            yield read_columns(block, self._rules, faults, self._scanner, is_checked=True)

    def repaired(self, *, drop: bool = False) -> Repaired:
        """A copy without faults, and what was done to it; see `mocker_replay.trace.repair`."""
        from mocker_replay.trace.repair import repair

        return repair(self._file, self._rules, drop=drop)

    def _scan(self) -> TraceFacts:
        faults = FaultList(self._file.shown_path, self._file.locate)
        sessions = SessionTable(self._rules, faults)
        tally = Tally()
        kept = KeptRows(self._file.least_bytes)
        for block in self._file.blocks(SCAN_ROWS):
            columns = read_columns(block, self._rules, faults, self._scanner)
            needed = num_trace_blocks(columns.input_tokens, self._rules.trace_block_size)
            _require_few_private(columns, needed, faults)
            tally.add(columns, needed)
            sessions.place(columns)
            kept.add(columns)
        sessions.finish()
        if tally.num_rows == 0 and not faults:
            raise whole_file_error(self._file.shown_path, "must hold at least one request")
        self._reserve_private_ids(tally, faults)
        if faults:
            raise faults.error()
        self._kept = kept
        return TraceFacts(
            path=self._file.path,
            name=self._file.name,
            format="mooncake-delta" if self._rules.is_delta else "mooncake",
            num_rows=tally.num_rows,
            digest=self._file.digest,
            is_sorted=sessions.is_sorted and not sessions.is_multi_turn,
            has_sessions=sessions.has_names,
            is_multi_turn=sessions.is_multi_turn,
            num_sessions=sessions.num_sessions,
            min_first_timestamp_ms=sessions.min_first_ms,
            max_first_timestamp_ms=sessions.max_first_ms,
            total_input_tokens=tally.input_tokens,
            total_output_tokens=tally.output_tokens,
            has_request_ids=tally.has_request_ids,
            timestamp_unit=self._rules.timestamp_unit,
            trace_block_size=self._rules.trace_block_size,
            warnings=tuple(warnings_about(tally, sessions, self._rules, self._file)),
        )

    def _reserve_private_ids(self, tally: Tally, faults: FaultList) -> None:
        """Blocks without an id get one that no row of the file uses."""
        self._first_private_id = tally.max_hash_id + 1
        if tally.num_private_ids and self._first_private_id + tally.num_private_ids > _ID_END:
            rule = f"leave no room above {tally.max_hash_id} for {tally.num_private_ids} private ids"
            faults.add(0, "hash_ids", rule)

    def _batch(self, columns: Columns, sessions: SessionTable, first_row: int, next_private_id: int) -> RowBatch:
        placed = sessions.place(columns)
        needed = num_trace_blocks(columns.input_tokens, self._rules.trace_block_size)
        num_rows = len(columns.lines)
        offsets = np.zeros(num_rows + 1, np.int64)
        np.cumsum(needed, out=offsets[1:])
        return RowBatch(
            first_row=first_row,
            lines=columns.lines,
            timestamp_ms=placed.timestamp_ms,
            input_tokens=columns.input_tokens,
            output_tokens=columns.output_tokens,
            hash_offsets=offsets,
            hash_ids=exact_ids(columns.hash_ids, columns.num_hash_ids, needed, next_private_id),
            session=placed.session,
            turn=placed.turn,
            delay_ms=placed.delay_ms,
            session_names=columns.session_ids or [None] * num_rows,
            request_ids=columns.request_ids,
            priority=columns.priority.astype(np.int32),
            strict_priority=columns.strict_priority,
            cancel_after_ms=columns.cancel_after_ms,
            deadline_ms=columns.deadline_ms,
            output_token_ids=columns.output_ids,
            surplus_included=columns.hash_ids if (columns.num_hash_ids > needed).any() else None,
        )


def _require_few_private(columns: Columns, needed: Int64s, faults: FaultList) -> None:
    """A prompt without ids costs memory that no byte of the file answers for."""
    missing = needed - columns.num_hash_ids
    for at in np.flatnonzero(missing > MAX_MISSING_IDS):
        rule = f"must not leave more than {MAX_MISSING_IDS} blocks without an id, but leaves {missing[at]}"
        faults.add(int(columns.lines[at]), "hash_ids", rule)


def _num_private(columns: Columns, rules: MooncakeRules) -> int:
    missing = num_trace_blocks(columns.input_tokens, rules.trace_block_size) - columns.num_hash_ids
    return int(missing[missing > 0].sum())
