"""Verdicts: what an interval allows to be said, what makes it wider, and where nothing is said."""

from __future__ import annotations

import numpy as np
import pytest

from mocker_replay.report.compare_blocks import NUM_BLOCKS
from mocker_replay.report.compare_metrics import METRICS, Kind, Metric, RunSample, metrics_with
from mocker_replay.report.compare_result import Basis, MetricResult, Verdict
from mocker_replay.report.compare_student import critical_t
from mocker_replay.report.compare_verdict import REPLICATES_MIN, Rules, compare_runs, verdict_of
from tests.support.compare_samples import random_sample, with_values

LOWER = next(metric for metric in METRICS if metric.name == "mean_ttft_ms")
HIGHER = next(metric for metric in METRICS if metric.name == "output_throughput_tok_s")


@pytest.mark.parametrize(
    ("low", "high", "lower_is_better", "higher_is_better"),
    [
        (-0.01, 0.01, "same", "same"), (0.0, 0.0, "same", "same"), (0.002, 0.01, "same", "same"),
        (0.002, 0.02, "worse", "better"), (-0.02, -0.002, "better", "worse"), (0.5, 0.9, "worse", "better"),
        (-0.02, 0.01, "undecided", "undecided"), (0.0, 0.02, "undecided", "undecided"),
        (-0.5, 0.5, "undecided", "undecided"), (-0.02, 0.0, "undecided", "undecided"),
    ],
)  # fmt: skip
def test_an_interval_and_its_verdict(low: float, high: float, lower_is_better: str, higher_is_better: str) -> None:
    assert verdict_of(low, high, 0.01, LOWER) == lower_is_better
    assert verdict_of(low, high, 0.01, HIGHER) == higher_is_better


def test_without_a_margin_only_the_same_is_the_same() -> None:
    assert verdict_of(0.0, 0.0, 0.0, LOWER) is Verdict.SAME
    assert verdict_of(1e-9, 2e-9, 0.0, LOWER) is Verdict.WORSE


def compared(
    baseline: list[RunSample], variant: list[RunSample], *, goals: bool = True, **rules: float
) -> dict[str, MetricResult]:
    result = compare_runs("b", baseline, variant, Rules(**rules), goals=goals)
    return {metric.name: metric for metric in result.metrics}


def test_a_run_against_itself_is_the_same_in_all() -> None:
    for num_rows in (1, 5, 400):
        sample = random_sample(1, num_rows, missing=0.0)
        found = compared([sample], [sample])
        assert {metric.verdict for metric in found.values()} == {Verdict.SAME}
        assert {metric.basis for metric in found.values()} == {Basis.EXACT}


def test_what_scales_is_found_and_what_does_not_is_the_same() -> None:
    found = compared([random_sample(1, 1200)], [random_sample(1, 1200, slower=1.05)])
    for name in ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "mean_e2e_latency_ms", "duration_ms"):
        assert found[name].verdict is Verdict.WORSE, name
        low, high = found[name].interval or (0, 0)
        assert low <= 0.05 <= high + 1e-9
    assert found["output_throughput_tok_s"].verdict is Verdict.WORSE
    assert found["prefix_cache_reused_ratio"].verdict is Verdict.SAME
    faster = compared([random_sample(1, 1200)], [random_sample(1, 1200, slower=0.95)])
    assert faster["mean_ttft_ms"].verdict is Verdict.BETTER
    assert faster["output_throughput_tok_s"].verdict is Verdict.BETTER


def test_other_requests_are_undecided_and_the_interval_holds_the_truth() -> None:
    found = compared([random_sample(1, 1200)], [random_sample(2, 1200)])
    verdicts = [metric.verdict for metric in found.values() if metric.basis is Basis.BLOCKS]
    assert len(verdicts) > 15
    assert not {Verdict.BETTER, Verdict.WORSE} & set(verdicts)


def test_the_correction_counts_the_metrics() -> None:
    """With a third of the metrics an interval is as much narrower as the quantiles say."""
    baseline, variant = [random_sample(1, 1200)], [random_sample(2, 1200)]
    with_goals, without = compared(baseline, variant), compared(baseline, variant, goals=False)
    tested = [m for m in metrics_with(goals=True) if m.kind not in (Kind.COUNT, Kind.POOLED)]
    assert len(tested) == len([m for m in metrics_with(goals=False) if m.kind not in (Kind.COUNT, Kind.POOLED)]) + 2
    one, other = with_goals["mean_ttft_ms"], without["mean_ttft_ms"]
    assert one.num_blocks is not None
    expected = critical_t(0.05 / len(tested), one.num_blocks - 1) / critical_t(
        0.05 / (len(tested) - 2), one.num_blocks - 1
    )
    assert one.interval is not None
    assert other.interval is not None
    widths = [high - low for low, high in (one.interval, other.interval)]
    assert widths[0] / widths[1] == pytest.approx(expected, rel=1e-4)


def test_too_few_requests_are_undecided() -> None:
    found = compared([random_sample(1, 300)], [random_sample(1, 300, slower=1.3)])
    assert found["p99_ttft_ms"].verdict is Verdict.UNDECIDED
    assert "1,000 are needed" in found["p99_ttft_ms"].reason
    few = compared([random_sample(1, 39)], [random_sample(1, 39, slower=1.3)])
    assert {m.verdict for m in few.values() if m.name.startswith("mean")} == {Verdict.UNDECIDED}
    assert few["mean_ttft_ms"].interval is None


def test_a_difference_that_drifts_is_undecided() -> None:
    sample = random_sample(1, 800, missing=0.0)
    order = np.argsort(sample.arrival_ms)
    drift = np.empty(800)
    drift[order] = np.linspace(0, 50, 800)
    columns = dict(sample.columns) | {"ttft_ms": sample.columns["ttft_ms"] + drift}
    found = compared([sample], [with_values(sample.arrival_ms, columns)])
    assert found["mean_ttft_ms"].verdict is Verdict.UNDECIDED
    assert "too few independent stretches" in found["mean_ttft_ms"].reason
    assert found["mean_tpot_ms"].verdict is Verdict.SAME


def test_replicates_decide_where_blocks_cannot() -> None:
    def drifting(seed: int, slower: float) -> RunSample:
        sample = random_sample(seed, 600, slower=slower, missing=0.0)
        return sample

    runs = range(REPLICATES_MIN)
    found = compared([drifting(i, 1.0) for i in runs], [drifting(i, 1.1) for i in runs])
    assert found["p99_ttft_ms"].basis is Basis.REPLICATES
    assert found["p99_ttft_ms"].verdict is Verdict.WORSE
    assert found["mean_ttft_ms"].basis is Basis.BOTH
    assert found["p99_itl_ms"].basis is Basis.REPLICATES
    fewer = compared([drifting(i, 1.0) for i in runs][:-1], [drifting(i, 1.1) for i in runs][:-1])
    assert fewer["p99_ttft_ms"].verdict is Verdict.UNDECIDED
    assert fewer["mean_ttft_ms"].basis is Basis.BLOCKS


def test_counts_are_exact() -> None:
    baseline = random_sample(1, 400, missing=0.0)
    columns = {name: column.copy() for name, column in baseline.columns.items()}
    columns["ended"][7] = 4.0
    columns["completed"][7] = 0.0
    for name in ("ttft_ms", "tpot_ms", "e2e_latency_ms", "queue_ms"):
        columns[name][7] = np.nan
    variant = with_values(baseline.arrival_ms, columns)
    result = compare_runs("b", [baseline], [variant], Rules())
    found = {metric.name: metric for metric in result.metrics}
    assert (found["failed_requests"].verdict, found["failed_requests"].change) == (Verdict.WORSE, 1)
    assert found["completed_requests"].verdict is Verdict.WORSE
    assert found["rejected_requests"].verdict is Verdict.SAME
    assert (result.num_completed_both, result.num_completed_baseline_only, result.num_completed_variant_only) == (
        399,
        1,
        0,
    )
    assert result.pairs[0].num_pairs == result.pairs[0].num_equal == 399
    assert result.pairs[0].largest_increase is None


def test_pairs_are_of_the_same_row() -> None:
    baseline, variant = random_sample(1, 50, missing=0.0), random_sample(1, 50, missing=0.0)
    variant.columns["ttft_ms"][13] += 5.0
    variant.columns["ttft_ms"][17] -= 0.5
    pair = compare_runs("b", [baseline], [variant], Rules()).pairs[0]
    assert (pair.num_lower, pair.num_equal, pair.num_higher) == (1, 48, 1)
    assert (pair.largest_increase_row, pair.largest_decrease_row) == (13, 17)
    assert pair.largest_increase == pytest.approx(5.0)


def test_runs_without_a_sample() -> None:
    empty, full = random_sample(1, 60, missing=1.0), random_sample(1, 60)
    found = compared([empty], [full])
    assert found["mean_ttft_ms"].reason == "the baseline has no sample"
    assert compared([full], [empty])["mean_ttft_ms"].reason == "the variant has no sample"
    assert compared([empty], [empty])["mean_ttft_ms"].reason == "neither run has a sample"
    assert found["completed_requests"].verdict is Verdict.BETTER


def test_the_table_is_sound() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert tuple(sorted(NUM_BLOCKS, reverse=True)) == NUM_BLOCKS
    higher = {metric.name for metric in METRICS if metric.higher_is_better}
    assert higher == {
        "output_throughput_tok_s", "request_throughput_rps", "prefix_cache_reused_ratio", "goodput_ratio",
        "goodput_request_throughput_rps", "completed_requests",
    }  # fmt: skip
    assert {"name", "unit", "kind"} <= {*Metric.__struct_fields__}
