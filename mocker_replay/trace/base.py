"""The words every trace reader shares: row batches, facts, the source protocol.

Decides the columns a replay works with and their units. Never reads a file and never knows a format.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
from msgspec import Struct

TimestampUnit = Literal["s", "ms", "us"]
MissingTimestamps = Literal["refuse", "zero", "previous"]
SurplusHashIds = Literal["refuse", "ignore"]
MissingHashIds = Literal["refuse", "private"]
NestedTimestampBasis = Literal["auto", "absolute", "relative"]  # of requests of sub-agents
FailedRows = Literal["drop", "keep", "refuse"]
FactUnit = Literal["s", "ms", "us", "datetime"]  # of the timestamps in the file

TIMESTAMP_UNITS: Final[tuple[str, ...]] = get_args(TimestampUnit)

# Lengths above this are refused: a row of 10**10 tokens is a mistake, and would take the process down.
MAX_TOKENS: Final = 2**31 - 1
# Blocks of all prompts of a trace that is kept whole: a gibibyte of identities.
MAX_PROMPT_BLOCKS: Final = 2**27
# Of a graph of requests: streams that run side by side can need quadratically many.
MAX_EDGES: Final = 2**22

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Uint64s = npt.NDArray[np.uint64]


class RowBatch(Struct, frozen=True):
    """Some rows in file order, as columns of n entries. No prompt is ever materialised."""

    first_row: int  # ordinal of the first row; the others follow without gaps
    lines: Int64s  # 1-based line numbers in the file
    timestamp_ms: Float64s  # arrival as the file says it, unit converted, not normalised; NaN = absent
    input_tokens: Int64s
    output_tokens: Int64s
    hash_offsets: Int64s  # (n + 1,); row i owns hash_ids[hash_offsets[i]:hash_offsets[i + 1]]
    hash_ids: Uint64s  # exactly ceil(input_tokens / trace_block_size) a row, surplus ids cut off
    session: Int64s  # session ordinal, in order of first appearance
    turn: Int32s  # position of the row in its session, from 0
    delay_ms: Float64s  # think time before this turn; 0 for first turns
    session_names: list[str | None]  # None: the row names no session and is `request_<line>` alone
    request_ids: list[str | None] | None  # None: no row of this batch names one
    priority: Int32s
    strict_priority: Int64s
    cancel_after_ms: Float64s | None = None  # the client's patience from its arrival on; inf = it stays; None: all stay
    deadline_ms: Float64s | None = None  # when the answer is wanted, from the arrival on; inf = nobody said; None: all
    surplus_included: Uint64s | None = None  # the ids as given, row after row; None: none was cut off
    output_token_ids: list[array[int] | None] | None = None  # authored outputs, where the format needs them

    def __len__(self) -> int:
        return len(self.lines)


class Lineage(Struct, frozen=True):
    """How rows were made from those of a trace."""

    steps: tuple[str, ...]  # transforms in their order, by their canonical texts
    source_digest: str
    source_rows: int
    rows_after: tuple[int, ...]  # how many rows each step left

    def to_mapping(self) -> dict[str, object]:
        """For logs and summaries."""
        return {
            "transforms": list(self.steps),
            "source_digest": self.source_digest,
            "source_rows": self.source_rows,
        }


class GraphFacts(Struct, frozen=True):
    """What a trace says about itself as a graph of requests."""

    source: Mapping[str, str]  # `format` and `digest` of what the graph was made from, for reports
    digest: str  # BLAKE3 of the graph itself, hex: equal for equal graphs, whatever file they came from
    num_plays: int
    num_edges: int
    models: tuple[str, ...]  # recorded ones, sorted
    nested_timestamp_basis: str | None = None  # of weka: the clock that requests of sub-agents were found to be on


class Assumptions(Struct, frozen=True):
    """What a reader takes for granted of a trace that does not say all a replay needs."""

    origin: str | None  # the earliest arrival on the clock of the file; None: no row has one
    estimate_prefix: str | None  # what stands in for hash ids: none or RATIO:GROUPS; None: the trace has them
    failed_rows: FailedRows | None  # what became of calls that failed; None: the format does not tell
    num_failed_rows: int

    def texts(self) -> tuple[str, ...]:
        """For people, one phrase each."""
        told = [] if self.origin is None else [f"time 0 is {self.origin}"]
        if self.estimate_prefix is not None:
            is_private = self.estimate_prefix == "none"
            told.append("no prompt shares a prefix" if is_private else f"prefixes shared as {self.estimate_prefix}")
        if self.failed_rows is not None:
            verb = "kept" if self.failed_rows == "keep" else "left out"
            told.append(f"{self.num_failed_rows:,} failed calls {verb if self.num_failed_rows else 'in it'}")
        return tuple(told)


class TraceFacts(Struct, frozen=True):
    """What one complete, faultless reading of a trace has established."""

    path: str  # as given; "-" for standard input
    name: str  # for people and reports: the file name
    format: str
    num_rows: int
    digest: str  # BLAKE3 of the text, decompressed, hex; of transformed rows, that of their pipeline
    is_sorted: bool  # one turn a session and timestamps never fall: rows may be streamed
    has_sessions: bool  # some row names a session
    is_multi_turn: bool  # some session has more than one row
    num_sessions: int  # rows that name none count one each
    min_first_timestamp_ms: float | None  # over the first turns of sessions; None: none has one
    max_first_timestamp_ms: float | None
    total_input_tokens: int
    total_output_tokens: int
    has_request_ids: bool
    timestamp_unit: FactUnit
    trace_block_size: int
    warnings: tuple[str, ...]
    graph: GraphFacts | None = None  # None: the rows do not depend on each other; else the source is a GraphSource
    assumptions: Assumptions | None = None  # None: the trace says all
    lineage: Lineage | None = None  # None: the rows are those of the file

    @property
    def span_ms(self) -> float:
        """Time from the first to the last arrival of a session [ms]."""
        if self.min_first_timestamp_ms is None or self.max_first_timestamp_ms is None:
            return 0.0
        return self.max_first_timestamp_ms - self.min_first_timestamp_ms


class TraceSource(Protocol):
    """A trace that can be read twice: once for the facts, once for the rows."""

    def scan(self) -> TraceFacts:
        """Read everything once and find all faults.

        Raises:
            TraceError: with every fault (the first 100 listed, the rest counted).
        """

    def batches(self, max_rows: int = 1024) -> Iterator[RowBatch]:
        """The rows in file order, at most `max_rows` at a time; memory does not grow with the trace.

        Raises:
            TraceError: the file has faults, or is no longer the one that was scanned.
        """

    def close(self) -> None:
        """Give the file back."""


def concatenate(batches: Sequence[RowBatch]) -> RowBatch:
    """One batch out of consecutive ones, for what needs all rows at once."""
    first = batches[0]
    offsets = [first.hash_offsets]
    for batch in batches[1:]:
        offsets.append(batch.hash_offsets[1:] + offsets[-1][-1])
    named = any(batch.request_ids is not None for batch in batches)
    return RowBatch(
        first_row=first.first_row,
        lines=np.concatenate([batch.lines for batch in batches]),
        timestamp_ms=np.concatenate([batch.timestamp_ms for batch in batches]),
        input_tokens=np.concatenate([batch.input_tokens for batch in batches]),
        output_tokens=np.concatenate([batch.output_tokens for batch in batches]),
        hash_offsets=np.concatenate(offsets),
        hash_ids=np.concatenate([batch.hash_ids for batch in batches]),
        session=np.concatenate([batch.session for batch in batches]),
        turn=np.concatenate([batch.turn for batch in batches]),
        delay_ms=np.concatenate([batch.delay_ms for batch in batches]),
        session_names=[name for batch in batches for name in batch.session_names],
        request_ids=[r for batch in batches for r in batch.request_ids or [None] * len(batch)] if named else None,
        priority=np.concatenate([batch.priority for batch in batches]),
        strict_priority=np.concatenate([batch.strict_priority for batch in batches]),
        cancel_after_ms=_joined_or_none([(batch.cancel_after_ms, len(batch)) for batch in batches]),
        deadline_ms=_joined_or_none([(batch.deadline_ms, len(batch)) for batch in batches]),
        output_token_ids=_authored(batches),
    )


def _authored(batches: Sequence[RowBatch]) -> list[array[int] | None] | None:
    if all(batch.output_token_ids is None for batch in batches):
        return None
    return [ids for batch in batches for ids in batch.output_token_ids or [None] * len(batch)]


def _joined_or_none(columns: Sequence[tuple[Float64s | None, int]]) -> Float64s | None:
    """One column of times that may be never; None if no batch has it."""
    if all(column is None for column, _ in columns):
        return None
    return np.concatenate([np.full(n, np.inf) if column is None else column for column, n in columns])
