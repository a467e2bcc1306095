"""Compares a run with what the reference said; every difference is a line of text.

Figures per request, counts, extremes and rates are compared for equality. Means and deviations hang on the
order of adding and get a tolerance of 1e-9; percentiles of pooled gaps come from a sketch in the reference
that is good to 0.1 %.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

SUM_TOLERANCE = 1e-9
SKETCH_TOLERANCE = 1.01e-3
SKETCHED = tuple(
    f"{stat}_{name}"
    for stat in ("median", "p75", "p90", "p95", "p99")
    for name in ("itl_ms", "output_token_throughput_per_user")
)
SUMS = ("mean_", "std_", "decode_worker_seconds", "prefill_worker_seconds", "gpu_hours")
PASS_VARIANCES = (
    "var_prefill_length",
    "var_decode_kv_tokens",
    "var_queued_prefill_length",
    "var_queued_decode_kv_tokens",
)


def close(got: Any, expected: Any, tolerance: float) -> bool:
    """Equal, or numbers within a relative tolerance; absolute below one, where deviations of equal samples lie."""
    if isinstance(expected, bool) or not isinstance(expected, int | float):
        return bool(got == expected)
    if isinstance(got, bool) or not isinstance(got, int | float):
        return False
    return math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)


def close_deviation(got: float, expected: float, mean: float) -> bool:
    """Deviations of nearly equal samples drown in the rounding of their squares: compare the squares."""
    return abs(got * got - expected * expected) <= SUM_TOLERANCE * expected * expected + 1e-12 * max(1.0, mean * mean)


def _say(what: str, expected: Any, got: Any) -> str:
    return f"{what}: expected {expected!r}, got {got!r}"


def compare_columns(expected: Mapping[str, list[Any]], got: Mapping[str, list[Any]]) -> list[str]:
    """Columns per request, exactly."""
    found = []
    for name, values in expected.items():
        mine = got.get(name)
        if mine is None or len(mine) != len(values):
            found.append(_say(f"per_request.{name}", values, mine))
            continue
        for row, (theirs, ours) in enumerate(zip(values, mine, strict=True)):
            if theirs != ours:
                found.append(_say(f"per_request.{name}[{row}]", theirs, ours))
    return found


def _present(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without its empty fields and without the identifiers that are random in the reference."""
    return {k: v for k, v in record.items() if v is not None and v != [] and k != "uuid"}


def _order(record: Mapping[str, Any]) -> tuple[Any, ...]:
    numbers = [record.get(key) or 0 for key in ("turn_index", "input_length")]
    return (record["arrival_time_ms"], str(record.get("session_id")), *numbers, json.dumps(record, sort_keys=True))


def compare_records(expected: Sequence[Mapping[str, Any]], got: Sequence[Mapping[str, Any]]) -> list[str]:
    """Records per request, exactly; order among equals does not count, further fields of ours do not either."""
    if len(expected) != len(got):
        return [_say("number of records", len(expected), len(got))]
    known = {key for record in expected for key in record}
    theirs = sorted((_present(r) for r in expected), key=_order)
    ours = sorted(({k: v for k, v in _present(r).items() if k in known} for r in got), key=_order)
    found = []
    for index, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        for key in sorted(a.keys() | b.keys()):
            if not _same_record_field(key, a.get(key), b.get(key)):
                found.append(_say(f"record {index} {key}", a.get(key), b.get(key)))
    return found


def _same_record_field(key: str, expected: Any, got: Any) -> bool:
    """Histories are lists of records of their own, where ours may leave out what is null."""
    if isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            return False
        return all(all(b.get(k) == v for k, v in a.items()) for a, b in zip(expected, got, strict=True))
    return bool(expected == got)


def compare_summary(expected: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """The fields the reference gave; counts and extremes exactly, sums and sketches with their tolerance."""
    found = []
    for name, value in expected.items():
        tolerance = SKETCH_TOLERANCE if name in SKETCHED else SUM_TOLERANCE if name.startswith(SUMS) else 0.0
        if name in got and name.startswith("std_"):
            mean = expected.get(name.replace("std_", "mean_", 1), 0.0)
            same = close_deviation(got[name], value, mean)
        else:
            same = name in got and close(got[name], value, tolerance)
        if not same:
            found.append(_say(f"summary.{name}", value, got.get(name, "absent")))
    return found


def compare_passes(expected: Sequence[Mapping[str, Any]], got: Sequence[Mapping[str, Any]]) -> list[str]:
    """Forward-pass records; variances depend on the order of adding."""
    found = [] if len(expected) == len(got) else [_say("number of forward-pass records", len(expected), len(got))]
    for index, (theirs, ours) in enumerate(zip(expected, got, strict=False)):
        for name, value in theirs.items():
            tolerance = SUM_TOLERANCE if name in PASS_VARIANCES else 0.0
            if not close(ours.get(name), value, tolerance):
                found.append(_say(f"forward pass {index} {name}", value, ours.get(name)))
    return found


def compare_gauges(expected: Mapping[str, Any], telemetry: Mapping[str, Any] | None) -> list[str]:
    """Scheduler gauges of the cases/vllm files: ranks of worker 0, preemptions of the interval."""
    samples = telemetry["samples"] if telemetry else []
    if len(samples) != len(expected["samples"]):
        return [_say("number of samples", len(expected["samples"]), len(samples))]
    found = []
    for theirs, ours in zip(expected["samples"], samples, strict=True):
        flat = {
            "kind": ours["kind"],
            "at_ms": ours["sampled_at_ms"],
            "preemptions": ours["decode_interval_metrics"]["preemptions"],
            "ranks": [
                {k: rank.get(k) for k in theirs["ranks"][i]} for i, rank in enumerate(ours["decode_scheduler_metrics"])
            ],
        }
        if flat != {k: theirs[k] for k in flat}:
            found.append(_say(f"gauges at {theirs['at_ms']}", theirs, flat))
    return found


def compare_telemetry(expected: Mapping[str, Any], got: Mapping[str, Any] | None) -> list[str]:
    """Whole samples; means within the sum tolerance, everything else exactly."""
    if got is None:
        return [_say("telemetry", "samples", None)]
    if len(expected["samples"]) != len(got["samples"]):
        times = [[s["sampled_at_ms"] for s in t["samples"]] for t in (expected, got)]
        return [_say("sample times", *times)]
    found = []
    for theirs, ours in zip(expected["samples"], got["samples"], strict=True):
        found += _compare_tree(f"sample {theirs['sample_ordinal']}", theirs, ours)
    return found


def _compare_tree(where: str, expected: Any, got: Any) -> list[str]:
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        return [line for k, v in expected.items() for line in _compare_tree(f"{where}.{k}", v, got.get(k))]
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        return [line for i, v in enumerate(expected) for line in _compare_tree(f"{where}[{i}]", v, got[i])]
    if isinstance(expected, list) and not expected and got is None:
        return []  # a role that does not exist here
    tolerance = SUM_TOLERANCE if ".avg_" in where or where.endswith("duration_s") else 0.0
    return [] if close(got, expected, tolerance) else [_say(where, expected, got)]


def compare_approximate(expected: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """Fields that wobble in the last digit between two runs of the reference."""
    return [
        _say(f"summary.{name}", value, got.get(name, "absent"))
        for name, value in expected.items()
        if not close(got.get(name), value, SKETCH_TOLERANCE if name in SKETCHED else SUM_TOLERANCE)
    ]
