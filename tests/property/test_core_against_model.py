"""The compiled engine, driver and reports against the slow model, on random configurations and traces.

Everything both can say is compared: figures per request, reasons of failure, the summary, telemetry, and every
forward-pass record in order.
"""

from __future__ import annotations

import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.generate import make_case, make_shared_tier_case, make_tier_case
from tests.parity import compare
from tests.parity.cases import Case, read_replay_case
from tests.parity.runners import run_model_case, run_product_case

SEEDS = st.integers(0, 2**32 - 1)


def differences(case: Case) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        model, product = run_model_case(case, Path(name)), run_product_case(case, Path(name))
    found = compare.compare_records(model.records, product.records)
    found += compare.compare_summary(model.summary, product.summary)
    if model.telemetry is not None:
        found += compare.compare_telemetry(model.telemetry, product.telemetry)
    if model.failures != product.failures:
        found.append(f"failures: expected {model.failures}, got {product.failures}")
    if model.exit_code != product.exit_code:
        found.append(f"exit code: expected {model.exit_code}, got {product.exit_code}")
    tier = case.config["engine"].get("native_host_offload", {})
    in_order = _by_worker if tier.get("scope") == "cluster_shared" else list
    return found + compare.compare_passes(in_order(model.passes), in_order(product.passes))


def _by_worker(passes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Passes of some length, by time and worker: those without show only who looked at a shared tier first."""
    some = [record for record in passes if record["wall_time"] > 0.0]
    return sorted(some, key=lambda record: (record["at_ms"], record["worker_id"]))


@settings(max_examples=150)
@given(SEEDS)
def test_core_equals_model(seed: int) -> None:
    assert differences(make_case(seed)) == []


@settings(max_examples=150)
@given(SEEDS)
def test_core_equals_model_with_clients_that_leave(seed: int) -> None:
    assert differences(with_impatience(make_case(seed), seed)) == []


@settings(max_examples=60)
@given(SEEDS)
def test_core_equals_model_with_a_host_tier(seed: int) -> None:
    assert differences(make_tier_case(seed)) == []


@settings(max_examples=60)
@given(SEEDS)
def test_core_equals_model_with_a_host_tier_and_clients_that_leave(seed: int) -> None:
    assert differences(with_impatience(make_tier_case(seed), seed)) == []


@settings(max_examples=40)
@given(SEEDS)
def test_core_equals_model_with_a_shared_host_tier(seed: int) -> None:
    assert differences(make_shared_tier_case(seed)) == []


@settings(max_examples=40)
@given(SEEDS)
def test_core_equals_model_with_a_shared_host_tier_and_clients_that_leave(seed: int) -> None:
    assert differences(with_impatience(make_shared_tier_case(seed), seed)) == []


def with_impatience(case: Case, seed: int) -> Case:
    """The same rows, some of them with a client that leaves: often at a pass end, sometimes at once."""
    rng = random.Random(seed)
    rows = [json.loads(line) for line in case.trace_text.splitlines()]
    for row in rows:
        if rng.random() < 0.4:
            row["cancel_after_ms"] = rng.choice((0, 0, 1, 1.5, 10, 12, 20, 50, round(rng.uniform(0, 200), 3)))
    return replace(case, trace_text="".join(json.dumps(row) + "\n" for row in rows))


FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_once_differed(path: Path) -> None:
    """Inputs on which the compiled core was wrong, made small by the fuzzer."""
    assert differences(read_replay_case(json.loads(path.read_text()))) == []
