"""Rows picked out of a batch, and put together from several.

Decides how the columns of a batch follow a choice of rows. Never decides which rows are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import structs

from mocker_replay.trace.base import Int64s, RowBatch, Uint64s, concatenate


def take(batch: RowBatch, chosen: Int64s) -> RowBatch:
    """The rows at positions `chosen`, in that order."""
    lengths = np.diff(batch.hash_offsets)[chosen]
    offsets = offsets_of(lengths)
    names, ids = batch.session_names, batch.request_ids
    positions = chosen.tolist()
    return RowBatch(
        first_row=batch.first_row,
        lines=batch.lines[chosen],
        timestamp_ms=batch.timestamp_ms[chosen],
        input_tokens=batch.input_tokens[chosen],
        output_tokens=batch.output_tokens[chosen],
        hash_offsets=offsets,
        hash_ids=_ids_of(batch, chosen, lengths, offsets),
        session=batch.session[chosen],
        turn=batch.turn[chosen],
        delay_ms=batch.delay_ms[chosen],
        session_names=[names[at] for at in positions],
        request_ids=None if ids is None else [ids[at] for at in positions],
        priority=batch.priority[chosen],
        strict_priority=batch.strict_priority[chosen],
        cancel_after_ms=None if batch.cancel_after_ms is None else batch.cancel_after_ms[chosen],
        deadline_ms=None if batch.deadline_ms is None else batch.deadline_ms[chosen],
    )


def offsets_of(lengths: Int64s) -> Int64s:
    """Where each row's ids begin, and where the last one's end."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _ids_of(batch: RowBatch, chosen: Int64s, lengths: Int64s, offsets: Int64s) -> Uint64s:
    """The hash ids of the chosen rows, row after row."""
    shift = np.repeat(batch.hash_offsets[:-1][chosen] - offsets[:-1], lengths)
    ids: Uint64s = batch.hash_ids[np.arange(offsets[-1]) + shift]
    return ids


def held(batches: Iterator[RowBatch]) -> Iterator[RowBatch]:
    """All rows as one batch, for what needs them together; none if there is no row."""
    rows = [batch for batch in batches if len(batch)]
    if rows:
        yield concatenate(rows)


def split(batch: RowBatch, max_rows: int) -> Iterator[RowBatch]:
    """A batch in parts of at most `max_rows`; parts without rows are left out."""
    if 0 < len(batch) <= max_rows:
        yield batch
        return
    for start in range(0, len(batch), max_rows):
        part = take(batch, np.arange(start, min(start + max_rows, len(batch))))
        yield structs.replace(part, first_row=batch.first_row + start)


def names_of(batch: RowBatch) -> list[str]:
    """The session each row belongs to, by name; a row that names none is `request_<line>`."""
    named = zip(batch.session_names, batch.lines.tolist(), strict=True)
    return [f"request_{line}" if name is None else name for name, line in named]
