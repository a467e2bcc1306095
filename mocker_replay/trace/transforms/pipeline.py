"""A trace whose rows go through transforms, in the order in which they were asked for.

Decides the digest of a pipeline, which stands for the rows that come out of it, and what is read how often: the source
once for its facts, once through the pipeline for the facts of what comes out, then for the rows. Never changes a row
itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from blake3 import blake3
from msgspec import structs

from mocker_replay.errors import UsageError
from mocker_replay.trace.base import Lineage, RowBatch, TraceFacts, TraceSource
from mocker_replay.trace.transforms.parse import read_transforms
from mocker_replay.trace.transforms.rows import split
from mocker_replay.trace.transforms.step import Incoming, Step, refusal

_DIGEST_FORM: Final = "mocker-replay.transforms/1"


def transformed(source: TraceSource, texts: Sequence[str]) -> TraceSource:
    """The trace with transforms (docs/transforms.md); without any it is the source itself.

    Raises:
        UsageError: transforms that are none; the source is closed.
    """
    if not texts:
        return source
    try:
        steps = read_transforms(texts)
    except UsageError:
        source.close()
        raise
    return TransformedTrace(source, steps)


def pipeline_digest(steps: Sequence[str], source_digest: str) -> str:
    """What stands for the rows that these steps, by their canonical texts, make of a trace."""
    return blake3("\n".join((_DIGEST_FORM, *steps, source_digest)).encode()).hexdigest()


class TransformedTrace:
    """The rows of a source after all steps; see TraceSource.

    Rows are numbered anew, as they would be in a file of their own: ordinals, lines and sessions.
    """

    def __init__(self, source: TraceSource, steps: Sequence[Step]) -> None:
        self._source = source
        self._steps = tuple(steps)
        self._facts: TraceFacts | None = None

    def __enter__(self) -> TransformedTrace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._source.close()

    def scan(self) -> TraceFacts:
        """As of a TraceSource.

        Raises:
            UsageError: a transform that this trace does not go with, or that leaves no row.
        """
        if self._facts is None:
            self._facts = self._scan()
        return self._facts

    def batches(self, max_rows: int = 1024) -> Iterator[RowBatch]:
        self.scan()
        yield from self._rows(max_rows, [0] * len(self._steps))

    def _rows(self, max_rows: int, rows_after: list[int]) -> Iterator[RowBatch]:
        """The rows; `rows_after` counts what comes out of each step."""
        facts = self._source.scan()
        incoming = Incoming(facts.min_first_timestamp_ms or 0.0, facts.trace_block_size)
        # Ids beyond a prompt are no part of what is transformed.
        rows: Iterator[RowBatch] = (
            structs.replace(batch, surplus_included=None) for batch in self._source.batches(max_rows)
        )
        for number, step in enumerate(self._steps):
            rows = _counted(step.apply(rows, incoming), rows_after, number)
            if step.starts_at_zero:
                incoming = structs.replace(incoming, origin_ms=0.0)
        numbering = _Numbering()
        for batch in rows:
            for part in split(batch, max_rows):
                yield numbering.numbered(part)

    def _scan(self) -> TraceFacts:
        source = self._source.scan()
        if source.graph is not None or source.format == "mooncake-delta":
            what = "a graph of requests" if source.graph is not None else "a trace of deltas"
            raise UsageError(f"transforms are not built for {what}: {source.name} ({source.format})")
        rows_after = [0] * len(self._steps)
        tally = _Tally()
        for batch in self._rows(1024, rows_after):
            tally.add(batch)
        for step, num_rows in zip(self._steps, rows_after, strict=True):
            if num_rows == 0:
                raise refusal(step, f"leaves none of the {source.num_rows} rows of {source.name}")
        texts = tuple(step.text for step in self._steps)
        lineage = Lineage(texts, source.digest, source.num_rows, tuple(rows_after))
        return tally.facts(source, pipeline_digest(texts, source.digest), lineage)


def _counted(batches: Iterator[RowBatch], rows_after: list[int], number: int) -> Iterator[RowBatch]:
    for batch in batches:
        rows_after[number] += len(batch)
        yield batch


class _Numbering:
    """Rows and sessions counted from 0, lines from 1, in the order in which they come."""

    def __init__(self) -> None:
        self._num_rows = 0
        self._num_sessions = 0
        self._of_named: dict[int, int] = {}  # session of the source -> its new ordinal; others have one row

    def numbered(self, batch: RowBatch) -> RowBatch:
        num_rows = len(batch)
        is_first = batch.turn == 0
        session = self._num_sessions + np.cumsum(is_first, dtype=np.int64) - 1
        for at, name in enumerate(batch.session_names):
            if name is not None:
                source = int(batch.session[at])
                session[at] = self._of_named.setdefault(source, int(session[at]))
        first_row = self._num_rows
        self._num_rows += num_rows
        self._num_sessions += int(is_first.sum())
        lines = np.arange(first_row + 1, first_row + 1 + num_rows, dtype=np.int64)
        return structs.replace(batch, first_row=first_row, lines=lines, session=session)


class _Tally:
    """Facts of the rows that come out."""

    def __init__(self) -> None:
        self._num_rows = 0
        self._num_sessions = 0
        self._input_tokens = 0
        self._output_tokens = 0
        self._has_names = False
        self._has_request_ids = False
        self._is_sorted = True
        self._first_ms: float | None = None
        self._last_ms: float | None = None
        self._latest_ms = -np.inf

    def add(self, batch: RowBatch) -> None:
        is_first = batch.turn == 0
        self._num_rows += len(batch)
        self._num_sessions += int(is_first.sum())
        self._input_tokens += int(batch.input_tokens.sum())
        self._output_tokens += int(batch.output_tokens.sum())
        self._has_names |= any(name is not None for name in batch.session_names)
        self._has_request_ids |= any(name is not None for name in batch.request_ids or ())
        arrivals_ms = batch.timestamp_ms[is_first & ~np.isnan(batch.timestamp_ms)]
        if len(arrivals_ms):
            low, high = float(arrivals_ms.min()), float(arrivals_ms.max())
            self._first_ms = low if self._first_ms is None else min(low, self._first_ms)
            self._last_ms = high if self._last_ms is None else max(high, self._last_ms)
            self._is_sorted &= bool((np.diff(arrivals_ms, prepend=self._latest_ms) >= 0.0).all())
            self._latest_ms = float(arrivals_ms[-1])

    def facts(self, source: TraceFacts, digest: str, lineage: Lineage) -> TraceFacts:
        is_multi_turn = self._num_sessions < self._num_rows
        return structs.replace(
            source,
            num_rows=self._num_rows,
            digest=digest,
            is_sorted=self._is_sorted and not is_multi_turn,
            has_sessions=self._has_names,
            is_multi_turn=is_multi_turn,
            num_sessions=self._num_sessions,
            min_first_timestamp_ms=self._first_ms,
            max_first_timestamp_ms=self._last_ms,
            total_input_tokens=self._input_tokens,
            total_output_tokens=self._output_tokens,
            has_request_ids=self._has_request_ids,
            lineage=lineage,
        )
