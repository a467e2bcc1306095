"""Verdicts: better, worse, same, undecided, metric by metric.

Decides what is said of a difference, given how sure it is. All intervals of one comparison hold together with the
confidence asked for: each is made at the level (1 - confidence) / number of metrics that are tested (Bonferroni), and a
verdict never says more than its interval. Never runs anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from mocker_replay.report.compare_blocks import BlockError, PairedRuns, quantile
from mocker_replay.report.compare_metrics import LATENCIES, Kind, Metric, RunSample, metrics_with
from mocker_replay.report.compare_result import Basis, MetricResult, PairSummary, VariantResult, Verdict
from mocker_replay.report.compare_student import critical_t

REPLICATES_MIN: Final = 8  # fewer are too few to know their own spread
_DIGITS: Final = 6  # significant ones of an interval; a bootstrap knows fewer


class Rules(Struct, frozen=True):
    """What a verdict is held to."""

    confidence: float = 0.95  # of all intervals of a comparison together
    margin: float = 0.01  # relative changes within it count as the same


def compare_runs(
    name: str, baseline: Sequence[RunSample], variant: Sequence[RunSample], rules: Rules, *, goals: bool = False
) -> VariantResult:
    """Compare a variant with the baseline.

    Args:
        baseline, variant: a sample a replicate, of the same arrivals in the same order; of the same rows.
        goals: both have an SLA, and it is the same.
    """
    table = metrics_with(goals=goals)
    judge = _Judge(PairedRuns(baseline, variant), rules, table)
    done = [(a.columns["completed"] > 0, b.columns["completed"] > 0) for a, b in zip(baseline, variant, strict=True)]
    return VariantResult(
        variant=name,
        metrics=tuple(judge.result(metric) for metric in table),
        pairs=tuple(_pairs(latency, baseline, variant) for latency in LATENCIES),
        num_completed_both=sum(int((a & b).sum()) for a, b in done),
        num_completed_baseline_only=sum(int((a & ~b).sum()) for a, b in done),
        num_completed_variant_only=sum(int((b & ~a).sum()) for a, b in done),
    )


class _Judge:
    """Judges the metrics of one comparison."""

    def __init__(self, runs: PairedRuns, rules: Rules, table: Sequence[Metric]) -> None:
        self._runs = runs
        self._rules = rules
        self._num_replicates = len(runs.baseline)
        self._is_identical = all(
            np.array_equal(a.columns[name], b.columns[name], equal_nan=True)
            for a, b in zip(runs.baseline, runs.variant, strict=True)
            for name in a.columns
        )
        # Counted before anything is looked at: what is tested does not depend on what is found.
        tested = [metric for metric in table if self._is_tested(metric)]
        self._alpha = (1.0 - rules.confidence) / max(len(tested), 1)

    def _is_tested(self, metric: Metric) -> bool:
        if metric.kind is Kind.POOLED:
            return self._num_replicates >= REPLICATES_MIN
        return metric.kind is not Kind.COUNT

    def result(self, metric: Metric) -> MetricResult:
        """The metric, its interval and what may be said."""
        a, b = (_mean([run.values[metric.name] for run in runs]) for runs in (self._runs.baseline, self._runs.variant))
        told = (metric.name, metric.unit, metric.higher_is_better, a, b)
        if a is None or b is None:
            who = "neither run has a" if a is b else f"the {'baseline' if a is None else 'variant'} has no"
            return MetricResult(*told, Verdict.UNDECIDED, Basis.NONE, reason=f"{who} sample")
        if metric.kind is Kind.COUNT or self._is_same(metric):
            change = b - a if not a else (b - a) / abs(a)
            return MetricResult(*told, verdict_of(change, change, 0.0, metric), Basis.EXACT, (change, change))
        if metric.kind is Kind.POOLED and self._num_replicates < REPLICATES_MIN:
            reason = "a percentile of all gaps" + self._hint()
            return MetricResult(*told, Verdict.UNDECIDED, Basis.NONE, reason=reason)
        ratio = b / a if a else 1.0
        replicates = self._replicate_error(metric, ratio)
        blocks = BlockError()
        if metric.kind is not Kind.POOLED and (replicates is None or not metric.is_of_span):
            # Blocks that are all alike tell of one long drift, of which replicates know more.
            blocks = self._runs.error(metric, ratio, strict=replicates is not None)
        halves = self._half_widths(blocks, replicates)
        if not halves:
            return MetricResult(*told, Verdict.UNDECIDED, Basis.NONE, reason=blocks.reason + self._hint())
        half, scale = max(halves.values()), abs(a) or 1.0
        low, high = (b - a - half) / scale, (b - a + half) / scale
        # No figure is negative, so none falls by more than all of it.
        interval = _rounded(max(low, -1.0) if a else low), _rounded(high)
        verdict = verdict_of(*interval, self._rules.margin if a else 0.0, metric)
        reason = ""
        if verdict is Verdict.UNDECIDED:
            reason = "the interval holds changes of either kind" + self._hint()
            if abs(b - a) > halves.get(Basis.REPLICATES, math.inf):
                reason = "replicates agree, but stretches of the trace do not"
        basis = Basis.BOTH if len(halves) == 2 else next(iter(halves))
        return MetricResult(*told, verdict, basis, interval, blocks.num_blocks, reason)

    def _hint(self) -> str:
        """What may help, where it was not done."""
        return "" if self._num_replicates >= REPLICATES_MIN else f" (--replicates {REPLICATES_MIN} may tell)"

    def _is_same(self, metric: Metric) -> bool:
        """Every request has the same figures in both runs: there is nothing to be unsure of."""
        if metric.kind is Kind.POOLED:
            return self._is_identical
        names = [name for name in (metric.column, metric.per) if name]
        return all(
            np.array_equal(a.columns[name], b.columns[name], equal_nan=True)
            for a, b in zip(self._runs.baseline, self._runs.variant, strict=True)
            for name in names
        )

    def _replicate_error(self, metric: Metric, ratio: float) -> float | None:
        """Standard error of `variant - ratio * baseline` by replicates; None where they are too few."""
        if self._num_replicates < REPLICATES_MIN:
            return None
        differences = [
            (b.values[metric.name] or 0.0) - ratio * (a.values[metric.name] or 0.0)
            for a, b in zip(self._runs.baseline, self._runs.variant, strict=True)
        ]
        return float(np.std(differences, ddof=1)) / math.sqrt(self._num_replicates)

    def _half_widths(self, blocks: BlockError, replicates: float | None) -> dict[Basis, float]:
        """Half of the interval, by whatever gives one."""
        halves: dict[Basis, float] = {}
        if blocks.error is not None:
            halves[Basis.BLOCKS] = blocks.error * critical_t(self._alpha, blocks.df)
        if replicates is not None:
            halves[Basis.REPLICATES] = replicates * critical_t(self._alpha, self._num_replicates - 1)
        return halves


def verdict_of(low: float, high: float, margin: float, metric: Metric) -> Verdict:
    """What an interval of a change allows to be said."""
    if -margin <= low and high <= margin:
        return Verdict.SAME
    if low > 0.0 or high < 0.0:
        return Verdict.BETTER if (low > 0.0) == metric.higher_is_better else Verdict.WORSE
    return Verdict.UNDECIDED


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean over replicates; None where one of them has no sample."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return known[0] if len(known) == 1 else math.fsum(known) / len(known)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _pairs(latency: str, baseline: Sequence[RunSample], variant: Sequence[RunSample]) -> PairSummary:
    """The same request in both runs, in all replicates."""
    rows, changes = [], []
    for a, b in zip(baseline, variant, strict=True):
        change = b.columns[latency] - a.columns[latency]
        found = np.flatnonzero(~np.isnan(change))
        rows.append(found)
        changes.append(change[found])
    row, change = np.concatenate(rows), np.concatenate(changes)
    if not len(change):
        return PairSummary(latency, 0, 0, 0, 0, None, None, None, None, None)
    up, down = int(change.argmax()), int(change.argmin())
    rises, falls = bool(change[up] > 0), bool(change[down] < 0)
    return PairSummary(
        name=latency,
        num_pairs=len(change),
        num_lower=int((change < 0).sum()),
        num_equal=int((change == 0).sum()),
        num_higher=int((change > 0).sum()),
        median_change=quantile(change, 50.0),
        largest_increase=float(change[up]) if rises else None,
        largest_increase_row=int(row[up]) if rises else None,
        largest_decrease=float(change[down]) if falls else None,
        largest_decrease_row=int(row[down]) if falls else None,
    )
