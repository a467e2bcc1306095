"""Applied Compute traces: one session of an agent and its tools a line, for the closed loop only.

Decides how sessions become rows, which blocks their prompts share, and what sessions have in common where that is asked
for. In two readings, as every format of rows: `scan` finds all faults, `batches` delivers the rows.

Source: replay specification, sections 1.7 and 2.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final

import numpy as np
from msgspec import Struct

from mocker_replay.trace.applied_row import AppliedSession, read_session
from mocker_replay.trace.base import MAX_PROMPT_BLOCKS, RowBatch, TraceFacts, Uint64s
from mocker_replay.trace.faults import FaultList, whole_file_error
from mocker_replay.trace.line_file import Lines

_READ_LINES: Final = 1024
_MAX_NAMED_FIELDS: Final = 5
_FIRST_OWN_ID: Final = 2**62  # of blocks that no other session has; those of groups are below
_BLOCKS_A_GROUP: Final = 2**31
SESSION_PREFIX: Final = "applied_compute_agentic_session_"


class AppliedRules(Struct, frozen=True):
    """How the file is to be read."""

    trace_block_size: int = 512
    shared_prefix_ratio: float = 0.0  # of the first prompt, in blocks
    num_prefix_groups: int = 0  # 0: nothing is shared

    def num_blocks(self, tokens: int) -> int:
        """Blocks that tokens cover, a partial last one included."""
        return -(-tokens // self.trace_block_size)


class AppliedTrace:
    """One file of sessions; see TraceSource."""

    def __init__(self, file: Lines, rules: AppliedRules) -> None:
        self._file = file
        self._rules = rules
        self._facts: TraceFacts | None = None

    def __enter__(self) -> AppliedTrace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
        builder = _RowBuilder(self._rules)
        for session in self._sessions(faults):
            for turn in range(len(session.input_tokens)):
                builder.add(session, turn)
                if len(builder) == max_rows:
                    yield builder.take()
        if faults or self._file.digest != facts.digest:
            raise whole_file_error(self._file.shown_path, "must not change while it is replayed, but did")
        if len(builder):
            yield builder.take()

    def _sessions(self, faults: FaultList) -> Iterator[AppliedSession]:
        for block in self._file.blocks(_READ_LINES):
            for line, text in enumerate(block.lines, block.first_line):
                session = read_session(text, line, faults)
                if session is not None:
                    yield session

    def _scan(self) -> TraceFacts:
        faults = FaultList(self._file.shown_path, self._file.locate)
        num_sessions = num_rows = num_inputs = num_outputs = num_blocks = 0
        unknown: set[str] = set()
        for session in self._sessions(faults):
            num_sessions += 1
            num_rows += len(session.input_tokens)
            num_inputs += sum(session.input_tokens)
            num_outputs += sum(session.output_tokens)
            unknown |= session.unknown
            num_blocks += sum(map(self._rules.num_blocks, session.input_tokens))
            if num_blocks > MAX_PROMPT_BLOCKS:
                faults.add(session.line, "", f"must not bring the blocks of all prompts above {MAX_PROMPT_BLOCKS}")
                break
        if faults:
            raise faults.error()
        if num_sessions == 0:
            raise whole_file_error(self._file.shown_path, "must hold at least one session")
        return TraceFacts(
            path=self._file.path,
            name=self._file.name,
            format="applied_compute_agentic",
            num_rows=num_rows,
            digest=self._file.digest,
            is_sorted=False,
            has_sessions=True,
            is_multi_turn=num_rows > num_sessions,
            num_sessions=num_sessions,
            min_first_timestamp_ms=None,
            max_first_timestamp_ms=None,
            total_input_tokens=num_inputs,
            total_output_tokens=num_outputs,
            has_request_ids=False,
            timestamp_unit="ms",
            trace_block_size=self._rules.trace_block_size,
            warnings=_about_unknown(sorted(unknown)),
        )


def _about_unknown(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    more = f" and {len(names) - _MAX_NAMED_FIELDS} more" if len(names) > _MAX_NAMED_FIELDS else ""
    return (f"fields that mean nothing here were ignored: {', '.join(names[:_MAX_NAMED_FIELDS])}{more}",)


class _RowBuilder:
    """Turns to batches of rows."""

    def __init__(self, rules: AppliedRules) -> None:
        self._rules = rules
        self._rows: list[tuple[AppliedSession, int, int, Uint64s]] = []  # session, its ordinal, turn, blocks
        self._first_row = 0
        self._num_sessions = 0
        self._blocks = np.empty(0, np.uint64)  # of the longest prompt of the latest session
        self._next_own_id = _FIRST_OWN_ID

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, session: AppliedSession, turn: int) -> None:
        """The next turn of the latest session, or the first of a new one."""
        if turn == 0:
            self._num_sessions += 1
            self._blocks = self._all_blocks(session)
        used = self._blocks[: self._rules.num_blocks(session.input_tokens[turn])]
        self._rows.append((session, self._num_sessions - 1, turn, used))

    def take(self) -> RowBatch:
        rows, first_row = self._rows, self._first_row
        self._rows, self._first_row = [], first_row + len(rows)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(blocks) for *_, blocks in rows], out=offsets[1:])
        return RowBatch(
            first_row=first_row,
            lines=np.array([session.line for session, *_ in rows], np.int64),
            timestamp_ms=np.full(len(rows), np.nan),
            input_tokens=np.array([session.input_tokens[turn] for session, _, turn, _ in rows], np.int64),
            output_tokens=np.array([session.output_tokens[turn] for session, _, turn, _ in rows], np.int64),
            hash_offsets=offsets,
            hash_ids=np.concatenate([blocks for *_, blocks in rows]),
            session=np.array([ordinal for _, ordinal, _, _ in rows], np.int64),
            turn=np.array([turn for _, _, turn, _ in rows], np.int32),
            delay_ms=np.array([session.delay_ms[turn] for session, _, turn, _ in rows], np.float64),
            session_names=[f"{SESSION_PREFIX}{session.line}" for session, *_ in rows],
            request_ids=None,
            priority=np.zeros(len(rows), np.int32),
            strict_priority=np.zeros(len(rows), np.int64),
        )

    def _all_blocks(self, session: AppliedSession) -> Uint64s:
        """Identities of the last prompt, of which all others are the beginning."""
        rules = self._rules
        num_blocks = rules.num_blocks(session.input_tokens[-1])
        num_shared = 0
        if rules.num_prefix_groups:
            num_first = rules.num_blocks(session.input_tokens[0])
            num_shared = math.floor(rules.shared_prefix_ratio * num_first + 0.5)
        num_own = num_blocks - num_shared
        group = (session.line - 1) % rules.num_prefix_groups if num_shared else 0
        shared = np.arange(group * _BLOCKS_A_GROUP, group * _BLOCKS_A_GROUP + num_shared, dtype=np.uint64)
        own = np.arange(self._next_own_id, self._next_own_id + num_own, dtype=np.uint64)
        self._next_own_id += num_own
        return np.concatenate([shared, own])
