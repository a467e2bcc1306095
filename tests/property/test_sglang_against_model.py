"""The SGLang-flavoured engine: against the slow model, by its own books after every instant, and by its own logs."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_replay.config import EngineConfig, ReplayOptions, load_engine_config
from mocker_replay.errors import InvariantError
from mocker_replay.log.audit.run import audit
from mocker_replay.replay import replay
from mocker_replay.replay.build import build_fleet
from mocker_replay.replay.pools import Pools
from tests.fuzz.sglang import make_sglang_case, make_sglang_pools_case
from tests.model.sglang import Standstill
from tests.parity import compare
from tests.parity.cases import Case
from tests.parity.runners import run_model_case, run_product_case
from tests.property.test_core_against_model import with_impatience

SEEDS = st.integers(0, 2**32 - 1)


def without_router(case: Case) -> Case:
    """The model knows nothing of what a router sees."""
    return dataclasses.replace(case, args={k: v for k, v in case.args.items() if k != "router_mode"})


def differences(case: Case) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        try:
            model = run_model_case(case, Path(name))
        except Standstill:
            model = None
        try:
            product = run_product_case(case, Path(name))
        except InvariantError:
            return [] if model is None else ["the model goes on"]
    if model is None:
        return ["the model stands still"]
    found = compare.compare_records(model.records, product.records)
    found += compare.compare_summary(model.summary, product.summary)
    if model.telemetry is not None:
        found += compare.compare_telemetry(model.telemetry, product.telemetry)
    return found + compare.compare_passes(model.passes, product.passes)


@settings(max_examples=60)
@given(SEEDS)
def test_engine_equals_model(seed: int) -> None:
    assert differences(without_router(make_sglang_case(seed))) == []


@settings(max_examples=40)
@given(SEEDS)
def test_engine_equals_model_with_clients_that_leave(seed: int) -> None:
    assert differences(with_impatience(without_router(make_sglang_case(seed)), seed)) == []


@settings(max_examples=30)
@given(SEEDS, st.sampled_from(["requests", "passes", "kv"]), st.booleans())
def test_logs_are_sound(seed: int, level: str, pools: bool) -> None:
    case = make_sglang_pools_case(seed) if pools else with_impatience(make_sglang_case(seed), seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = case.config_with_files(folder)
        configs = {f"{role}_config": config[role] for role in ("prefill", "decode") if role in config}
        run = config if not configs else None
        outputs = {"events": folder / "events.jsonl", "event_level": level, "summary": folder / "summary.json"}
        try:
            replay(case.write_trace(folder), run, ReplayOptions(**case.args), **configs, **outputs)
        except InvariantError:
            return
        report = audit(folder / "events.jsonl", json.loads((folder / "summary.json").read_text()))
    assert [finding.to_mapping() for finding in report.findings] == []


def fleet_of(seed: int) -> tuple[EngineConfig, list[tuple[float, int, int, tuple[int, ...], float]]]:
    """A tight engine, and (due, input, output, ids, patience) of some rows."""
    rng = random.Random(seed)
    case = make_sglang_case(rng.randrange(2**32))
    engine = {**case.config["engine"], "timing_model": {"type": "fixed", "prefill_ms": 2.0, "decode_ms": 1.0}}
    config = load_engine_config({**case.config, "engine": engine})
    size = case.args["trace_block_size"]
    rows = []
    for number in range(rng.randint(1, 20)):
        n_in = rng.randint(1, max(1, config.num_gpu_blocks * config.block_size // 2))
        ids = tuple(rng.choice((1, 2, 3)) if rng.random() < 0.7 else 100 + number for _ in range(-(-n_in // size)))
        patience = rng.choice((math.inf, math.inf, 0.0, 3.0, 20.0))
        rows.append((float(rng.randrange(40)), n_in, rng.randint(0, 30), ids, patience))
    return config, sorted(rows)


@settings(max_examples=40)
@given(SEEDS)
def test_books_are_kept(seed: int) -> None:
    from tests.support.machines import Row, push_rows

    config, rows = fleet_of(seed)
    size = make_sglang_case(random.Random(seed).randrange(2**32)).args["trace_block_size"]
    fleet = build_fleet(Pools(config, 2), trace_block_size=size, want=0, telemetry=False, wake_on_end=False)
    push_rows(fleet, [Row(due, n_in, n_out, ids, cancel_after_ms=patience) for due, n_in, n_out, ids, patience in rows])
    at_ms = 0.0
    while fleet.advance(at_ms) == "until" and at_ms < 500.0:
        for machine in fleet.machines:
            for rank in machine.engine.schedulers:
                rank.check()
        at_ms += 1.0
