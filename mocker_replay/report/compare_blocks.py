"""How sure a difference of two runs is: a bootstrap over blocks of consecutive arrivals.

Requests of a run are correlated (they share queues), so single requests must not be drawn. The rows, in order of
arrival, are cut into blocks, and blocks are drawn with replacement, the same ones from all runs: a row is paired with
itself. Decides how long the blocks are and when there are too few. Never decides what a difference means.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from mocker_replay._core.chacha import ChaCha12Rng
from mocker_replay.report.compare_metrics import Kind, Metric, RunSample
from mocker_replay.report.metrics import nearest_rank

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

RESAMPLES: Final = 500
# Numbers of blocks that are tried, the most first. Fewer than the last are too few to know their own spread.
NUM_BLOCKS: Final = (64, 48, 32, 24, 16, 12, 8)
ROWS_PER_BLOCK_MIN: Final = 5
# Blocks count as independent when the correlation of neighbours is below this many standard errors.
_CORRELATION_MAX: Final = 0.6
_CORRELATION_MAX_LAST: Final = 1.4  # of the fewest blocks, whose interval is wide
DF_MIN: Final = 5
TAIL_MIN: Final = 10  # samples beyond a percentile, on each side
TAIL_BLOCKS_MIN: Final = 5  # blocks that these stem from
_SEED: Final = 5
_ROUNDING: Final = 1e-12
_GRID: Final = 4096  # ranks at which a bootstrapped percentile is looked up, where there are more samples


class BlockError(Struct, frozen=True):
    """Standard error of a difference by blocks, or why there is none."""

    error: float | None = None  # of variant - ratio * baseline, in the unit of the metric
    num_blocks: int | None = None
    df: int = 0  # degrees of freedom of the error
    reason: str = ""


class _Blocks(Struct, frozen=True):
    """How the rows are cut for one metric."""

    count: int
    df: int
    inflation: float  # of the variance, for what correlation is left between neighbours


class PairedRuns:
    """Runs of a baseline and of a variant, replicate by replicate, row by row.

    Args:
        baseline, variant: one sample a replicate; all of the same rows.
    """

    def __init__(self, baseline: Sequence[RunSample], variant: Sequence[RunSample]) -> None:
        self.baseline = baseline
        self.variant = variant
        self.num_rows = len(baseline[0])
        # Rows are ordered once, so that a block holds the same rows in every replicate; NaN comes last.
        order = np.argsort(baseline[0].arrival_ms, kind="stable")
        self._position = np.empty(self.num_rows, np.int64)
        self._position[order] = np.arange(self.num_rows)

    def block_of(self, num_blocks: int) -> Int64s:
        """(n,) the block of each row."""
        return self._position * num_blocks // max(self.num_rows, 1)

    def error(self, metric: Metric, ratio: float, *, strict: bool = False) -> BlockError:
        """Standard error of `variant - ratio * baseline` of a metric, averaged over replicates.

        Args:
            ratio: variant / baseline as measured, so that what moves both in proportion does not count; 1 where the
                baseline is 0.
            strict: no error at all where even the longest blocks are alike; otherwise a large one.
        """
        reason = self._lacks_tail(metric)
        if reason:
            return BlockError(reason=reason)
        blocks = self._blocks(metric, ratio, strict)
        if blocks is None:
            return BlockError(reason="too few independent stretches of the trace")
        num_blocks = blocks.count
        block_of = self.block_of(num_blocks)
        if metric.kind is Kind.QUANTILE:
            tails = [_tail_blocks(metric, sample, block_of) for sample in (*self.baseline, *self.variant)]
            if min(tails) < TAIL_BLOCKS_MIN:
                return BlockError(reason=f"the samples beyond stem from {min(tails)} stretches of the trace")
        variant = _mean_of([_resampled(metric, sample, block_of, num_blocks) for sample in self.variant])
        baseline = _mean_of([_resampled(metric, sample, block_of, num_blocks) for sample in self.baseline])
        errors = variant - ratio * baseline
        if not np.isfinite(errors).all():
            return BlockError(reason="too few stretches of the trace have samples")
        spread = float(errors.std()) * math.sqrt(num_blocks / (num_blocks - 1) * blocks.inflation)
        return BlockError(spread, num_blocks, blocks.df)

    def _lacks_tail(self, metric: Metric) -> str:
        if metric.kind is not Kind.QUANTILE:
            return ""
        share = min(metric.percent, 100.0 - metric.percent) / 100.0
        fewest = min(int((~np.isnan(run.columns[metric.column])).sum()) for run in (*self.baseline, *self.variant))
        if fewest * share < TAIL_MIN:
            return f"{fewest:,} requests; {math.ceil(TAIL_MIN / share):,} are needed"
        return ""

    def _blocks(self, metric: Metric, ratio: float, strict: bool) -> _Blocks | None:
        """As many blocks as look independent, of which no few dominate; None where there are none."""
        variant = _mean_of([influence(metric, sample) for sample in self.variant])
        baseline = _mean_of([influence(metric, sample) for sample in self.baseline])
        if metric.kind is Kind.QUANTILE:
            # Exceedances have no scale; and who is beyond must be spread over the trace in both runs.
            series = [variant - baseline, variant, baseline]
        else:
            series = [variant - ratio * baseline]
        # Waiting builds up on itself: where it does in one run, a difference may only look independent.
        waits = [variant, baseline] if metric.is_waiting else []
        # What is left of figures that are in proportion is rounding, and has no correlation to speak of.
        series[0][np.abs(series[0]) <= _ROUNDING * np.abs(variant).max(initial=0.0)] = 0.0
        for num_blocks in NUM_BLOCKS:
            if self.num_rows < num_blocks * ROWS_PER_BLOCK_MIN:
                continue
            block_of = self.block_of(num_blocks)
            sums = [_block_sums(one, block_of, num_blocks) for one in series]
            correlations = [neighbour_correlation(one) for one in sums]
            df = min(degrees_of_freedom(one) for one in sums)
            waiting = [neighbour_correlation(_block_sums(one, block_of, num_blocks)) for one in waits]
            if max(waiting, default=0.0) > _CORRELATION_MAX_LAST / math.sqrt(num_blocks):
                continue
            limit = _CORRELATION_MAX if strict or num_blocks > NUM_BLOCKS[-1] else _CORRELATION_MAX_LAST
            if max(correlations) <= limit / math.sqrt(num_blocks) and df >= DF_MIN:
                return _Blocks(num_blocks, df, self._inflation(series[0], num_blocks, max(correlations[0], 0.0)))
        return None

    def _inflation(self, series: Float64s, num_blocks: int, correlation: float) -> float:
        """By how much the variance of the blocks is too small, by their neighbours or by what longer blocks say."""
        variances = {}
        for fewer in NUM_BLOCKS:
            if fewer <= num_blocks:
                sums = _block_sums(series, self.block_of(fewer), fewer)
                variances[fewer] = float(sums.var()) * fewer * fewer / (fewer - 1)
        own = variances[num_blocks]
        return max((1.0 + correlation) / (1.0 - correlation), max(variances.values()) / own if own > 0.0 else 1.0)


def influence(metric: Metric, sample: RunSample) -> Float64s:
    """(n,) by how much each row moves a figure, to first order; of a percentile up to a factor."""
    if metric.kind is Kind.RATIO:
        upper = sample.columns[metric.column]
        if not metric.per:
            return np.asarray(upper - upper.mean())
        lower = sample.columns[metric.per]
        total = lower.sum()
        return (upper - upper.sum() / total * lower) / total if total else np.zeros_like(upper)
    values = sample.columns[metric.column]
    counts = ~np.isnan(values)
    num_samples = max(int(counts.sum()), 1)
    if metric.kind is Kind.MEAN:
        return np.where(counts, values - np.nansum(values) / num_samples, 0.0) / num_samples
    beyond = values > quantile(values[counts], metric.percent)
    return np.where(counts, beyond - beyond.sum() / num_samples, 0.0) / num_samples


def quantile(values: Float64s, percent: float) -> float:
    """The nearest rank, as the summary takes it."""
    rank = nearest_rank(len(values), percent)
    return float(np.partition(values, rank)[rank])


def neighbour_correlation(values: Float64s) -> float:
    """Correlation of each value with the next one, corrected for its bias of about -1 / n; 0 without variance."""
    deviations = values - values.mean()
    variance = float(np.dot(deviations, deviations))
    if variance <= 0.0:
        return 0.0
    return float(np.dot(deviations[1:], deviations[:-1])) / variance + 1.0 / len(values)


def degrees_of_freedom(sums: Float64s) -> int:
    """How well the spread of block sums is known: less than count - 1 where few of them dominate.

    The variance of a sample variance is (kurtosis - 1) / count, that of df degrees of freedom 2 / df.
    """
    deviations = sums - sums.mean()
    square = float((deviations**2).sum())
    if square <= 0.0:
        return len(sums) - 1
    kurtosis = len(sums) * float((deviations**4).sum()) / square**2
    return min(len(sums) - 1, math.floor(2.0 * len(sums) / max(kurtosis - 1.0, 1e-9)))


def _block_sums(values: Float64s, block_of: Int64s, num_blocks: int) -> Float64s:
    return np.bincount(block_of, weights=values, minlength=num_blocks).astype(np.float64)


def _tail_blocks(metric: Metric, sample: RunSample, block_of: Int64s) -> int:
    """How many blocks have samples beyond the percentile, on the side where there are fewer."""
    values = sample.columns[metric.column]
    counts = ~np.isnan(values)
    at = quantile(values[counts], metric.percent)
    beyond = values >= at if metric.percent >= 50.0 else values <= at
    return len(np.unique(block_of[counts & beyond]))


@functools.cache
def drawn_blocks(num_blocks: int) -> Float64s:
    """(RESAMPLES, num_blocks) how often each block is drawn; the same in every comparison."""
    rng = ChaCha12Rng(_SEED * 1000 + num_blocks)
    drawn = np.array([[rng.below(num_blocks) for _ in range(num_blocks)] for _ in range(RESAMPLES)])
    counts = np.zeros((RESAMPLES, num_blocks), np.float64)
    np.add.at(counts, (np.arange(RESAMPLES)[:, None], drawn), 1.0)
    return counts


def _resampled(metric: Metric, sample: RunSample, block_of: Int64s, num_blocks: int) -> Float64s:
    """(RESAMPLES,) the figure of each draw; NaN or infinite where it has no sample."""
    draws = drawn_blocks(num_blocks)
    if metric.kind is Kind.QUANTILE:
        return _resampled_quantile(metric, sample, block_of, draws)
    values = sample.columns[metric.column]
    upper = draws @ _block_sums(np.nan_to_num(values), block_of, num_blocks)
    if metric.kind is Kind.RATIO and not metric.per:
        return np.asarray(upper)
    per = sample.columns[metric.per] if metric.kind is Kind.RATIO else (~np.isnan(values)).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(upper / (draws @ _block_sums(per, block_of, num_blocks)))


def _resampled_quantile(metric: Metric, sample: RunSample, block_of: Int64s, draws: Float64s) -> Float64s:
    values = sample.columns[metric.column]
    chosen = ~np.isnan(values)
    values, blocks = values[chosen], block_of[chosen]
    order = np.argsort(values, kind="stable")
    ascending, blocks = values[order], blocks[order]
    grid = rank_grid(len(values), metric.percent)
    counts = np.zeros((draws.shape[1], len(grid)))  # samples of each block up to each rank of the grid
    for block in range(draws.shape[1]):
        counts[block] = np.searchsorted(np.flatnonzero(blocks == block), grid, side="right")
    up_to = draws @ counts
    drawn = draws @ np.bincount(blocks, minlength=draws.shape[1])
    rank = np.floor((drawn - 1.0) * metric.percent / 100.0 + 0.5)
    found = (up_to <= rank[:, None]).sum(axis=1)  # `up_to` ascends
    figures = ascending[grid[np.minimum(found, len(grid) - 1)]]
    return np.where(drawn > 0.0, figures, np.nan)


def rank_grid(num_samples: int, percent: float) -> Int64s:
    """Ranks at which a percentile is looked up: all of them, or those around it and the last."""
    if num_samples <= _GRID:
        return np.arange(num_samples)
    share = percent / 100.0
    reach = min(share, 1.0 - share)  # at p99 a draw lies between p98 and p100
    ranks = np.linspace((share - reach) * (num_samples - 1), (share + reach) * (num_samples - 1), _GRID)
    return np.unique(np.append(ranks.astype(np.int64), num_samples - 1))


def _mean_of(figures: Sequence[Float64s]) -> Float64s:
    total = figures[0]
    for more in figures[1:]:
        total = total + more
    return total / len(figures)
