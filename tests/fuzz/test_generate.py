"""The fuzzer itself: cases come from their seed alone, reach the corners, and shrink."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mocker_replay.replay.router import Ties
from tests.fuzz.generate import make_case
from tests.fuzz.minimise import minimise
from tests.fuzz.peer import MakeCase
from tests.fuzz.routed import (
    can_be_told_apart,
    following,
    has_ties,
    lengths_of,
    make_routed_case,
    make_routed_pools_case,
)
from tests.fuzz.sglang import make_sglang_case
from tests.fuzz.trtllm import make_trtllm_case
from tests.model.sglang import Standstill
from tests.parity.cases import Case
from tests.parity.runners import run_model_case


def test_a_seed_always_gives_the_same_case() -> None:
    assert [make_case(seed) for seed in range(50)] == [make_case(seed) for seed in range(50)]


def test_cases_reach_what_they_are_meant_to_reach(tmp_path: Path) -> None:
    """Out of 300 cases, each of these happens in a fair number; else the fuzzer proves little."""
    seen: Counter[str] = Counter()
    for seed in range(300):
        outcome = run_model_case(make_case(seed), tmp_path)
        seen["preemption"] += any(r["readmission_count"] for r in outcome.records)
        seen["reuse"] += any(r["reused_input_tokens"] for r in outcome.records)
        for status in ("rejected", "failed"):
            seen[status] += any(r["terminal_status"] == status for r in outcome.records)
        seen["cut"] += outcome.cut
        seen["zero_length_pass"] += any(p["wall_time"] == 0.0 for p in outcome.passes)
        seen["telemetry"] += outcome.telemetry is not None
    for what, least in {
        "preemption": 40,
        "reuse": 100,
        "rejected": 20,
        "failed": 8,
        "cut": 5,
        "zero_length_pass": 30,
        "telemetry": 60,
    }.items():
        assert seen[what] >= least, f"{what}: {seen[what]} of 300 cases"


def test_cases_of_the_tensorrt_llm_flavour_reach_what_it_does_otherwise(tmp_path: Path) -> None:
    cases = [make_trtllm_case(seed) for seed in range(60)]
    assert cases[:20] == [make_trtllm_case(seed) for seed in range(20)]
    seen = Counter("prefill" if "prefill" in case.config else case.format for case in cases)
    for case in cases:
        if case.format != "mooncake" or "prefill" in case.config:
            continue
        outcome = run_model_case(case, tmp_path)
        for record in outcome.records:
            done = record["terminal_status"] == "completed"
            seen["cut"] += done and record["output_length"] < record["requested_output_length"]
            seen["all reused"] += done and record["reused_input_tokens"] == record["input_length"]
            seen["waited"] += done and record["first_admit_ms"] > record["arrival_time_ms"]
            seen["rejected"] += record["terminal_status"] == "rejected"
        seen["drafts"] += "aic_nextn" in case.config["engine"]
    for what, least in {
        "prefill": 6, "mooncake-delta": 2, "agentic_mooncake": 2, "cut": 20, "all reused": 8, "waited": 80,
        "rejected": 20, "drafts": 4,
    }.items():  # fmt: skip
        assert seen[what] >= least, f"{what}: {seen[what]} of 60 cases"


def test_a_failing_case_shrinks_to_what_makes_it_fail() -> None:
    case = next(c for c in map(make_case, range(1000)) if len(c.rows) >= 20 and "num_workers" in c.args)
    culprit = case.rows[13]["hash_ids"]

    def fails(smaller: Case) -> bool:
        return any(row["hash_ids"] == culprit for row in smaller.rows)

    small = minimise(case, fails)
    assert [row["hash_ids"] for row in small.rows] == [culprit]
    assert small.args.keys() == {"trace_block_size"}


@pytest.mark.parametrize("key", ["replay_concurrency", "max_sim_time_ms", "arrival_speedup_ratio", "router_mode"])
def test_options_of_a_run_occur(key: str) -> None:
    assert sum(key in make_case(seed).args for seed in range(300)) >= 10


@pytest.mark.parametrize("make", [make_routed_case, make_routed_pools_case])
def test_requests_of_a_router_can_be_told_apart(make: MakeCase) -> None:
    cases = [make(seed) for seed in range(100)]
    routed = [case for case in cases if has_ties(case)]
    assert all(can_be_told_apart(case) for case in routed)
    assert len(routed) >= 80
    assert sum("kv_event_lag_ms" in case.args for case in routed) >= 10


def test_a_draw_follows_the_wheel_and_no_other_choice_does() -> None:
    """Of ranks of equal cost that of the record; where its rank costs more, the cheapest; else nothing is known."""
    case = next(case for case in map(make_routed_case, range(100)) if has_ties(case) and len(case.rows) > 1)
    n_in, n_out = lengths_of(case.rows[1], case.args["trace_block_size"])
    route = {"pool": "agg", "scheduler_id": 2}
    record = {"input_length": n_in, "requested_output_length": n_out, "routing_history": [route]}
    with following(case, [record]) as draws:
        assert Ties(1).pick(1, "agg", [3.0, 1.0, 1.0, 1.0]) == 2
        assert Ties(1).pick(1, "agg", [3.0, 1.0, 1.5]) == 1
        assert not draws.unknown
        assert Ties(1).pick(0, "agg", [1.0, 1.0]) in (0, 1)
        assert draws.unknown


def test_cases_of_sglang_reach_what_they_are_meant_to_reach(tmp_path: Path) -> None:
    """The same of 200 cases of that engine."""
    seen: Counter[str] = Counter()
    for seed in range(200):
        case = make_sglang_case(seed)
        case = replace(case, args={key: value for key, value in case.args.items() if key != "router_mode"})
        seen["one_token_pages"] += case.config["engine"].get("block_size", 1) == 1
        seen["lpm"] += case.config["engine"].get("sglang", {}).get("schedule_policy") == "lpm"
        try:
            outcome = run_model_case(case, tmp_path)
        except Standstill:
            continue
        seen["retraction"] += any(record["readmission_count"] for record in outcome.records)
        seen["reuse"] += any(record["reused_input_tokens"] for record in outcome.records)
    for what, least in {"one_token_pages": 15, "lpm": 15, "retraction": 8, "reuse": 40}.items():
        assert seen[what] >= least, f"{what}: {seen[what]} of 200 cases"
