"""Summary: recomputed from the listed requests of case files, and by hand where no case goes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from mocker_replay._core.collector import Collector
from mocker_replay.report.summary import WALL_CLOCK_FIELDS, summarize, summary_of, without_wall_clock

from .recompute import RECOMPUTED, case_path, columns_of, facts_of, gaps_of

CASES = [case_path(name) for name in RECOMPUTED]
SKETCHED = re.compile(r"(median|p\d+)_(itl_ms|output_token_throughput_per_user)")
POOLED = re.compile(r"\w+_(itl_ms|output_token_throughput_per_user)")
REORDERED = re.compile(r"mean_\w+|std_(itl_ms|output_token_throughput_per_user)")
GROWTH = 1.001 / 0.999  # of the buckets in which the reference keeps pooled gaps


def sketched(value: float) -> float:
    """What the reference reports for a percentile of pooled gaps that is exactly `value`."""
    if value == 0.0:
        return 0.0
    return 2.0 * GROWTH ** math.ceil(math.log(value) / math.log(GROWTH)) / (1.0 + GROWTH)


def summary_from(case: dict[str, Any]) -> dict[str, Any]:
    values, weights, _ = gaps_of(case)
    totals = dict.fromkeys(("preemptions", "passes", "rank_passes", "decode_tokens", "decode_forwards"), 0)
    totals["prefill_tokens"] = case["expect"]["summary"]["committed_prefill_tokens"]
    return summary_of(columns_of(case), values, weights, totals, facts_of(case))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_summary_equals_the_case(path: Path) -> None:
    case = json.loads(path.read_text())
    summary = summary_from(case)
    _, gap_weights, gaps_are_exact = gaps_of(case)
    expected = case["expect"]["summary"] | case["expect"].get("summary_approx", {})
    for name, value in expected.items():
        if POOLED.fullmatch(name) and not gaps_are_exact and name != "mean_itl_ms":
            continue
        if SKETCHED.fullmatch(name):
            if gap_weights.sum() > 1:  # a single gap is reported as it is
                assert sketched(summary[name]) == pytest.approx(value, rel=1e-12), name
            assert summary[name] == pytest.approx(value, rel=0.00101), name
        elif REORDERED.fullmatch(name) or (name.startswith("std_") and path.stem.startswith("itl-sketch")):
            assert summary[name] == pytest.approx(value, rel=1e-12), name
        elif name == "gpu_hours":
            assert summary[name] == pytest.approx(value, rel=1e-12)
        else:
            assert summary[name] == value, name


def test_cases_are_there() -> None:
    assert len(CASES) > 15
    assert sum(gaps_of(json.loads(path.read_text()))[2] for path in CASES) > 5


def test_an_empty_run_is_all_zeros() -> None:
    case = json.loads(CASES[0].read_text())
    summary = summarize(Collector(1, 1), facts_of(case))
    assert summary["num_requests"] == summary["completed_requests"] == 0
    assert summary["duration_ms"] == 0.0
    assert summary["request_throughput_rps"] == 0.0
    assert summary["prefix_cache_reused_ratio"] == 0.0
    assert summary["max_itl_ms"] == 0.0
    assert summary["avg_accept_length"] is None


def test_endings_are_counted_with_their_reasons() -> None:
    case = json.loads(case_path("l02_reject_pool").read_text())
    columns = {name: array.copy() for name, array in columns_of(case).items()}
    rejected = int((columns["status"] == 1).sum())
    assert rejected >= 1
    completed = int(columns["status"].argmin())
    columns["status"][completed], columns["reason"][completed] = 3, 5
    totals = dict.fromkeys(
        ("preemptions", "passes", "rank_passes", "decode_tokens", "decode_forwards", "prefill_tokens"), 3
    )
    values, weights, _ = gaps_of(case)
    summary = summary_of(columns, values, weights, totals, facts_of(case))
    assert summary["failed_requests"] == 1
    assert summary["failure_reasons"]["growth_over_pool"] == 1
    assert sum(summary["failure_reasons"].values()) == summary["rejected_requests"] + summary["failed_requests"]
    assert summary["avg_accept_length"] == 1.0
    assert list(summary["failure_reasons"]) == ["prompt_over_pool", "growth_over_pool"]


def test_time_limit_leaves_requests_cut() -> None:
    case = json.loads(case_path("mooncake-max-sim-time-100_0").read_text())
    summary = summary_from(case)
    assert summary["cut_requests"] == 1
    assert summary["num_requests"] == 2


def test_wall_clock_fields_are_named() -> None:
    summary = summary_from(json.loads(CASES[0].read_text()))
    assert tuple(summary["wall_clock_fields"]) == WALL_CLOCK_FIELDS
    assert set(WALL_CLOCK_FIELDS) < set(summary)
    assert not set(WALL_CLOCK_FIELDS) & set(without_wall_clock(summary))
    assert summary["wall_time_ms"] == 2.0
    assert summary["processed_tokens_per_s"] == summary["processed_tokens"] * 500.0


def test_every_value_can_be_written_as_json() -> None:
    summary = summary_from(json.loads(CASES[0].read_text()))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
