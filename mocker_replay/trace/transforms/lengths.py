"""Prompts and outputs, scaled.

Decides the new lengths (to the nearest token, halves up, never 0 where there was something) and how hash ids follow: a
shorter prompt loses its last ones, a longer one gets ids that no other prompt has. So what prompts share is at most
what they shared, and prompts that grow share as many leading ids as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from msgspec import Struct, structs

from mocker_replay.config.decimals import plain_decimal
from mocker_replay.trace.base import MAX_TOKENS, Float64s, Int64s, RowBatch, Uint64s
from mocker_replay.trace.transforms.rows import held, offsets_of
from mocker_replay.trace.transforms.step import Incoming, Step, refusal


def _scaled(step: Step, tokens: Int64s, factor: float, lines: Int64s) -> Int64s:
    exact: Float64s = np.floor(tokens * factor + 0.5)
    too_long = np.flatnonzero(exact > MAX_TOKENS)
    if len(too_long):
        at = int(too_long[0])
        more = f" and {len(too_long) - 1} more" if len(too_long) > 1 else ""
        raise refusal(step, f"makes more than {MAX_TOKENS} tokens of {tokens[at]} (line {lines[at]}{more})")
    return np.where(tokens > 0, np.maximum(exact, 1.0), 0.0).astype(np.int64)


class ScaleInput(Struct, frozen=True):
    """Prompts of `factor` times their length."""

    factor: float

    starts_at_zero: ClassVar[bool] = False

    @property
    def text(self) -> str:
        return f"scale-input={plain_decimal(self.factor)}"

    def apply(self, batches: Iterator[RowBatch], incoming: Incoming) -> Iterator[RowBatch]:
        # Only prompts that grow need ids that nobody has, and to know those all rows must have been seen.
        for batch in batches if self.factor <= 1.0 else held(batches):
            tokens = _scaled(self, batch.input_tokens, self.factor, batch.lines)
            lengths = -(-tokens // incoming.trace_block_size)
            offsets = offsets_of(lengths)
            kept = np.minimum(np.diff(batch.hash_offsets), lengths)
            first_kept = offsets_of(kept)[:-1]
            within = np.arange(kept.sum()) - np.repeat(first_kept, kept)  # position of a kept id in its row
            ids = np.empty(offsets[-1], np.uint64)
            is_private = np.ones(len(ids), bool)
            target = np.repeat(offsets[:-1], kept) + within
            is_private[target] = False
            ids[target] = batch.hash_ids[np.repeat(batch.hash_offsets[:-1], kept) + within]
            ids[is_private] = unused_ids(batch.hash_ids, int(is_private.sum()))
            yield structs.replace(batch, input_tokens=tokens, hash_offsets=offsets, hash_ids=ids)


class ScaleOutput(Struct, frozen=True):
    """Outputs of `factor` times their length."""

    factor: float

    starts_at_zero: ClassVar[bool] = False

    @property
    def text(self) -> str:
        return f"scale-output={plain_decimal(self.factor)}"

    def apply(self, batches: Iterator[RowBatch], incoming: Incoming) -> Iterator[RowBatch]:
        for batch in batches:
            tokens = _scaled(self, batch.output_tokens, self.factor, batch.lines)
            yield structs.replace(batch, output_tokens=tokens)


def unused_ids(used: Uint64s, count: int) -> Uint64s:
    """So many ids that are not among `used`: the next ones above, or the smallest free ones where there is no room."""
    above = int(used.max(initial=0)) + 1
    if above + count <= 2**64:
        return np.arange(count, dtype=np.uint64) + np.uint64(min(above, 2**64 - 1))
    candidates = np.arange(len(used) + count, dtype=np.uint64)
    return np.setdiff1d(candidates, used)[:count]
