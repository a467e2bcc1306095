"""A profile of a trace: what a replay of it would be asked to do, without replaying it.

Decides the figures of `check` and their definitions (docs/trace-formats.md). Keeps a few numbers a row and one a
distinct block; never an engine, so a request "fits" only by the arithmetic of the pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np
from msgspec import Struct, to_builtins

from mocker_replay.trace.base import FactUnit, Int64s, RowBatch, TraceFacts, TraceSource
from mocker_replay.trace.suspicion import likely_unit

PERCENTILES: Final = (50, 90, 99)
MAX_LINES: Final = 10  # named for each kind of misfit


class Spread(Struct, frozen=True):
    """Of one quantity over all rows; percentiles by nearest rank, as in the summary."""

    min: float
    mean: float
    p50: float
    p90: float
    p99: float
    max: float
    total: float


class Pool(Struct, frozen=True):
    """The limits that requests are held against."""

    num_gpu_blocks: int
    block_size: int = 64
    max_model_len: int | None = None


class Misfit(Struct, frozen=True):
    """Requests of one kind that such an engine would not complete."""

    outcome: str  # rejected or failed
    reason: str
    count: int
    lines: tuple[int, ...]  # the first ones


class TraceProfile(Struct, frozen=True):
    """What `check` prints. Times in ms, lengths in tokens."""

    num_rows: int
    num_sessions: int
    num_multi_turn_sessions: int
    max_turns: int
    span_ms: float
    mean_arrivals_per_s: float | None  # sessions; None without a span
    timestamp_unit: str
    likely_timestamp_unit: str
    num_tied_arrivals: int  # sessions that arrive at the instant of another one
    max_arrivals_at_once: int
    num_distinct_arrivals: int  # instants at which sessions arrive
    is_sorted: bool
    trace_block_size: int
    input_tokens: Spread
    output_tokens: Spread
    num_zero_output_rows: int
    think_time_ms: Spread | None  # over later turns
    num_rows_with_patience: int  # whose client leaves after some time
    cancel_after_ms: Spread | None  # over these
    num_blocks: int  # trace blocks of all prompts
    num_distinct_blocks: int  # by their whole prefix
    num_rows_sharing_prefix: int  # whose first block an earlier row had
    reusable_input_ratio: float  # prompt tokens in leading blocks that earlier rows had / all
    num_repeated_request_ids: int
    misfits: tuple[Misfit, ...] | None  # None: no pool was given

    def to_mapping(self) -> dict[str, object]:
        """For JSON, in the order of the fields."""
        mapping: dict[str, object] = to_builtins(self)
        return mapping


def profile_trace(source: TraceSource, pool: Pool | None = None) -> TraceProfile:
    """Read a trace and profile it.

    Raises:
        TraceError: the trace has faults.
    """
    facts = source.scan()
    columns = _Columns()
    for batch in source.batches():
        columns.add(batch, facts.trace_block_size)
    return columns.profile(facts, pool)


class _Columns:
    """Figures collected over the batches."""

    def __init__(self) -> None:
        self._lines: list[Int64s] = []
        self._inputs: list[Int64s] = []
        self._outputs: list[Int64s] = []
        self._arrivals: list[np.ndarray] = []
        self._delays: list[np.ndarray] = []
        self._patience: list[np.ndarray] = []
        self._turns_of_session: Counter[int] = Counter()
        self._seen: set[int] = set()  # one number a distinct prefix
        self._num_blocks = 0
        self._num_sharing = 0
        self._reusable_tokens = 0
        self._request_ids: set[str] = set()
        self._num_repeated_ids = 0

    def add(self, batch: RowBatch, trace_block_size: int) -> None:
        is_first = batch.turn == 0
        self._lines.append(batch.lines)
        self._inputs.append(batch.input_tokens)
        self._outputs.append(batch.output_tokens)
        self._arrivals.append(batch.timestamp_ms[is_first])
        self._delays.append(batch.delay_ms[~is_first])
        if batch.cancel_after_ms is not None:
            self._patience.append(batch.cancel_after_ms[np.isfinite(batch.cancel_after_ms)])
        self._turns_of_session.update(batch.session[~is_first].tolist())
        for name in batch.request_ids or ():
            if name is not None:
                self._num_repeated_ids += name in self._request_ids
                self._request_ids.add(name)
        offsets, ids = batch.hash_offsets.tolist(), batch.hash_ids.tolist()
        for row, input_tokens in enumerate(batch.input_tokens.tolist()):
            num_shared = self._count_shared(ids[offsets[row] : offsets[row + 1]])
            self._num_sharing += num_shared > 0
            self._reusable_tokens += min(num_shared * trace_block_size, input_tokens)
        self._num_blocks += len(ids)

    def _count_shared(self, ids: list[int]) -> int:
        """Leading blocks that an earlier row had; notes all of them."""
        chain, num_shared, known = 0, 0, self._seen
        for at, block in enumerate(ids):
            chain = hash((chain, block))  # of integers: the same in every process
            if chain not in known:
                known.add(chain)
            elif num_shared == at:
                num_shared += 1
        return num_shared

    def profile(self, facts: TraceFacts, pool: Pool | None) -> TraceProfile:
        inputs, outputs = np.concatenate(self._inputs), np.concatenate(self._outputs)
        arrivals, delays = np.concatenate(self._arrivals), np.concatenate(self._delays)
        patience = np.concatenate([np.empty(0), *self._patience])
        given = arrivals[~np.isnan(arrivals)]
        _, counts = np.unique(given, return_counts=True)
        turns = self._turns_of_session
        return TraceProfile(
            num_rows=facts.num_rows,
            num_sessions=facts.num_sessions,
            num_multi_turn_sessions=len(turns),
            max_turns=1 + max(turns.values(), default=0),
            span_ms=facts.span_ms,
            mean_arrivals_per_s=_rate(facts),
            timestamp_unit=facts.timestamp_unit,
            likely_timestamp_unit=_likely_unit(facts),
            num_tied_arrivals=int(counts[counts > 1].sum()),
            max_arrivals_at_once=int(counts.max(initial=0)),
            num_distinct_arrivals=len(counts),
            is_sorted=bool((given[1:] >= given[:-1]).all()),
            trace_block_size=facts.trace_block_size,
            input_tokens=_spread(inputs),
            output_tokens=_spread(outputs),
            num_zero_output_rows=int((outputs == 0).sum()),
            think_time_ms=_spread(delays) if len(delays) else None,
            num_rows_with_patience=len(patience),
            cancel_after_ms=_spread(patience) if len(patience) else None,
            num_blocks=self._num_blocks,
            num_distinct_blocks=len(self._seen),
            num_rows_sharing_prefix=self._num_sharing,
            reusable_input_ratio=self._reusable_tokens / facts.total_input_tokens,
            num_repeated_request_ids=self._num_repeated_ids,
            misfits=None if pool is None else tuple(_misfits(np.concatenate(self._lines), inputs, outputs, pool)),
        )


def _spread(values: np.ndarray) -> Spread:
    ordered = np.sort(values)
    ranks = [int((len(ordered) - 1) * percent / 100 + 0.5) for percent in PERCENTILES]
    p50, p90, p99 = (ordered[rank].item() for rank in ranks)
    total = ordered.sum().item()
    return Spread(ordered[0].item(), total / len(ordered), p50, p90, p99, ordered[-1].item(), total)


def _rate(facts: TraceFacts) -> float | None:
    """Sessions a second over the span; n arrivals have n - 1 gaps."""
    return (facts.num_sessions - 1) / facts.span_ms * 1000.0 if facts.span_ms > 0.0 else None


def _likely_unit(facts: TraceFacts) -> FactUnit:
    first_ms, last_ms = facts.min_first_timestamp_ms, facts.max_first_timestamp_ms
    if first_ms is None or last_ms is None or facts.timestamp_unit == "datetime" or facts.assumptions is not None:
        return facts.timestamp_unit  # nothing to judge, or the format says so
    return likely_unit(first_ms, last_ms, facts.num_sessions, facts.total_input_tokens, facts.timestamp_unit)


def _misfits(lines: Int64s, inputs: Int64s, outputs: Int64s, pool: Pool) -> Iterable[Misfit]:
    """Each request under the first limit it meets, in the order in which the engine looks at them."""
    limit = np.iinfo(np.int64).max if pool.max_model_len is None else pool.max_model_len
    over_model = inputs >= limit
    over_pool = ~over_model & (-(-inputs // pool.block_size) > pool.num_gpu_blocks)
    # The last token needs no place: nothing follows it.
    grown = np.minimum(inputs + outputs, limit)
    over_growth = ~over_model & ~over_pool & (grown > pool.num_gpu_blocks * pool.block_size + 1)
    capacity = f"{pool.num_gpu_blocks} blocks of {pool.block_size} tokens"
    kinds = (
        ("rejected", f"prompts at or over max_model_len {pool.max_model_len}", over_model),
        ("rejected", f"prompts larger than the pool of {capacity}", over_pool),
        ("failed", f"prompt and output together outgrow the pool of {capacity}", over_growth),
    )
    for outcome, reason, is_misfit in kinds:
        if is_misfit.any():
            yield Misfit(outcome, reason, int(is_misfit.sum()), tuple(lines[is_misfit][:MAX_LINES].tolist()))
