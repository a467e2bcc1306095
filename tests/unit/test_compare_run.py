"""Running all variants: the same arrivals for all, progress over all runs, and what ends a comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from msgspec import structs

from mocker_replay.compare import run as run_module
from mocker_replay.compare.run import Comparison, Replicates, run_comparison
from mocker_replay.compare.variants import Shared, Variant, read_variants
from mocker_replay.config import ReplayOptions
from mocker_replay.errors import ReplayInterrupted, UsageError
from mocker_replay.report.compare_metrics import METRICS, metrics_with
from mocker_replay.report.summary import without_wall_clock
from tests.conftest import make_row

MakeTrace = Callable[[Iterable[Mapping[str, Any]]], Path]
SLOW = '{"name": "slow", "engine": {"speedup_ratio": 0.5}}'


def variants(*texts: str, **options: Any) -> tuple[Variant, ...]:
    return read_variants(texts, Shared(ReplayOptions(**options)))


@pytest.fixture
def trace(make_trace: MakeTrace) -> Path:
    return make_trace([make_row(7.0 * i, 60 + 11 * (i % 9), 2 + i % 6, hash_ids=[i % 4]) for i in range(120)])


def plain(comparison: Comparison) -> bytes:
    document = comparison.to_mapping()
    del document["wall"]
    return orjson.dumps(document)


def test_a_variant_against_itself(trace: Path) -> None:
    found = run_comparison(trace, variants('{"name": "a"}', '{"name": "b"}'), replicates=Replicates(3))
    assert {metric.verdict for metric in found.results[0].metrics} == {"same"}
    for a, b in zip(found.runs[0].samples, found.runs[1].samples, strict=True):
        assert np.array_equal(a.arrival_ms, b.arrival_ms)
    first, second, third = (sample.arrival_ms for sample in found.runs[0].samples)
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, third)
    assert found.runs[0].num_requests == 360


def test_the_same_bytes_twice_and_others_with_another_seed(trace: Path) -> None:
    chosen = variants('{"name": "a"}', SLOW)
    one = plain(run_comparison(trace, chosen, replicates=Replicates(2, 0.5, 1)))
    assert plain(run_comparison(trace, chosen, replicates=Replicates(2, 0.5, 1))) == one
    assert plain(run_comparison(trace, chosen, replicates=Replicates(2, 0.5, 2))) != one
    assert json.loads(one)["variants"][1]["config"]["engine"]["speedup_ratio"] == 0.5


def test_goals_bring_their_metrics(trace: Path) -> None:
    found = run_comparison(trace, variants('{"name": "a"}', SLOW, sla_ttft_ms=20.0))
    assert [metric.name for metric in found.results[0].metrics] == [metric.name for metric in METRICS]
    attained = found.results[0].metric("goodput_ratio")
    assert attained.baseline is not None
    assert attained.variant is not None
    assert 1.0 >= attained.baseline > attained.variant
    without = run_comparison(trace, variants('{"name": "a"}', SLOW))
    assert [m.name for m in without.results[0].metrics] == [m.name for m in metrics_with(goals=False)]


def test_a_cut_run_is_compared_as_far_as_it_went(trace: Path) -> None:
    cut = '{"name": "cut", "options": {"max_sim_time_ms": 300}}'
    result = run_comparison(trace, variants('{"name": "a"}', cut)).results[0]
    assert result.metric("completed_requests").verdict == "worse"
    assert result.metric("cut_requests").variant
    assert result.num_completed_variant_only == 0
    assert result.num_completed_baseline_only == 120 - result.num_completed_both


def test_columns_add_up_to_the_summary(trace: Path) -> None:
    sample = run_comparison(trace, variants('{"name": "a"}', SLOW)).runs[1].samples[0]
    values, columns = sample.values, sample.columns
    assert columns["span_ms"].sum() == pytest.approx(values["duration_ms"])
    assert columns["completed"].sum() / columns["span_s"].sum() == pytest.approx(values["request_throughput_rps"])
    assert columns["gap_span_ms"].sum() / columns["gaps"].sum() == pytest.approx(values["mean_itl_ms"])
    ratio = columns["reused_tokens"].sum() / columns["input_tokens"].sum()
    assert ratio == pytest.approx(values["prefix_cache_reused_ratio"])
    assert np.nanmean(columns["queue_ms"]) == pytest.approx(values["mean_queue_ms"])
    assert (columns["queue_ms"] <= columns["ttft_ms"]).all()


def test_progress_goes_over_all_runs(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    actual = run_module.replay

    def eager(*args: Any, progress: Any, **given: Any) -> Any:
        result = actual(*args, **given)
        progress(120, 120, 1.0)
        return result

    monkeypatch.setattr(run_module, "replay", eager)
    chosen = variants('{"name": "a"}', SLOW)
    run_comparison(trace, chosen, replicates=Replicates(2), progress=lambda rows, total, _: told.append((rows, total)))
    assert told == [(120, 480), (240, 480), (360, 480), (480, 480)]


def test_an_interrupt_leaves_no_comparison(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actual = run_module.replay

    def interrupted(*args: Any, **given: Any) -> Any:
        result = actual(*args, **given)
        return structs.replace(result, facts=structs.replace(result.facts, interrupted=True))

    monkeypatch.setattr(run_module, "replay", interrupted)
    with pytest.raises(ReplayInterrupted):
        run_comparison(trace, variants('{"name": "a"}', SLOW))


def test_what_a_run_refuses_names_its_variant(trace: Path) -> None:
    crowd = '{"name": "crowd", "dp_size": 4000, "options": {"num_workers": 4000}}'
    with pytest.raises(UsageError, match="variant crowd: num_workers times dp_size"):
        run_comparison(trace, variants('{"name": "a"}', crowd))


def test_a_closed_loop_without_think_times_has_nothing_to_jitter(trace: Path) -> None:
    chosen = variants('{"name": "open"}', '{"name": "closed", "options": {"replay_concurrency": 4}}')
    with pytest.raises(UsageError, match="nothing to jitter for closed"):
        run_comparison(trace, chosen, replicates=Replicates(2))
    found = run_comparison(trace, chosen)
    assert found.results[0].metric("completed_requests").verdict == "same"


def test_values_are_those_of_the_summary(trace: Path) -> None:
    (variant, _) = variants('{"name": "a"}', SLOW)
    summary = without_wall_clock(run_module.replay(trace, variant.config, variant.options).summary)
    sample = run_comparison(trace, variants('{"name": "a"}', SLOW)).runs[0].samples[0]
    shared = {name: value for name, value in sample.values.items() if name in summary}
    assert len(shared) > 20
    assert shared == {name: summary[name] for name in shared}
