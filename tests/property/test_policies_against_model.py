"""Policies of the core against the same ones in the slow model: admissions, preemptions, decisions, pass by pass."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from mocker_replay.config import EngineConfig, ReplayOptions
from mocker_replay.policies import Policy
from mocker_replay.replay import replay
from tests.model.engine_model import run_model
from tests.model.policies import POLICIES, ModelPolicy
from tests.property.replays import Case
from tests.support.crowded import crowded
from tests.support.policies import FRESHEST, ODD_JOBS, Freshest, OddJobs

BUILT_IN = {"fcfs": {}, "sjf": {}, "priority": {}, "edf": {}, "lpm": {}}


SEEDS = st.integers(0, 2**32 - 1)


def passes_of(case: Case, options: ReplayOptions, policy: Policy | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Passes as the log tells them, and the summary."""
    with tempfile.TemporaryDirectory() as name:
        trace, log = Path(name) / "trace.jsonl", Path(name) / "log.jsonl"
        trace.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in case.rows))
        result = replay(trace, case.config, options, events=log, policy=policy)
        lines = [orjson.loads(line) for line in log.read_bytes().splitlines()[1:-1]]
    passes: list[dict[str, Any]] = []
    by_rank: dict[tuple[int, int], dict[str, Any]] = {}
    for event in lines:
        if event["event"] == "pass_start":
            for rank in event["ranks"]:
                budget = [("budget", None, rank["budget"][0])] if "budget" in rank else []
                told = {
                    "worker": event["worker"],
                    "rank": rank["rank"],
                    "start_ms": event["t_ms"],
                    "admitted": [(row_of(name), reused) for name, reused in rank.get("admitted", [])],
                    "preempted": [row_of(name) for name in rank.get("preempted", [])],
                    "scheduled_tokens": rank["scheduled_tokens"],
                    "decisions": budget,
                }
                passes.append(told)
                by_rank[event["worker"], rank["rank"]] = told
        elif event["event"] == "decision":
            other = None if "instead_of" not in event else row_of(event["instead_of"])
            told = by_rank[event["worker"], event["rank"]]
            told["decisions"].append((event["kind"], row_of(event["request"]), other))
    return passes, result.summary


def row_of(name: str) -> int:
    return int(name.removeprefix("r"))


def passes_of_model(case: Case, policy: ModelPolicy) -> list[dict[str, Any]]:
    options = case.options
    run = run_model(
        case.rows,
        case.config.to_mapping(),
        trace_block_size=512 if options.trace_block_size is None else options.trace_block_size,
        num_workers=options.num_workers,
        arrival_speedup_ratio=options.arrival_speedup_ratio,
        replay_concurrency=options.replay_concurrency,
        max_sim_time_ms=options.max_sim_time_ms,
        trace_passes=True,
        policy=policy,
    )
    keys = ("worker", "rank", "start_ms", "admitted", "preempted", "decisions")
    return [
        {**{key: told[key] for key in keys}, "scheduled_tokens": sum(total for *_, total in told["work"])}
        for told in run.passes
    ]


def by_place(passes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(passes, key=lambda told: (told["worker"], told["rank"]))


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=60)
@given(seed=SEEDS)
@example(22519160)  # an admission that preempts, under multi-token prediction
@example(1327645710)  # an admission whose victim stood at the front of the queue before it was itself taken out
@example(2931216007)  # a readmission that gives a request another node before it leaves the queue
def test_a_built_in_policy_is_that_of_the_model(name: str, seed: int) -> None:
    case = crowded(seed)
    options = structs.replace(case.options, policy=name, policy_options=BUILT_IN[name])
    passes, _ = passes_of(case, options, None)
    assert by_place(passes) == by_place(passes_of_model(case, POLICIES[name]))


@settings(max_examples=60)
@given(seed=SEEDS)
def test_prefixes_are_looked_up_for_few_who_wait(seed: int) -> None:
    case = crowded(seed)
    options = structs.replace(case.options, policy="lpm", policy_options={"max_waiting": 3})
    passes, _ = passes_of(case, options, None)
    assert by_place(passes) == by_place(passes_of_model(case, POLICIES["lpm3"]))


@settings(max_examples=100)
@given(seed=SEEDS)
def test_a_python_policy_that_departs_in_every_way(seed: int) -> None:
    case = crowded(seed)
    case = dataclasses.replace(case, config=chunked(case.config))
    passes, summary = passes_of(case, case.options, OddJobs())
    assert by_place(passes) == by_place(passes_of_model(case, ODD_JOBS))
    told = [kind for one in passes for kind, *_ in one["decisions"]]
    assert {kind: count for kind, count in summary["policy_decisions"].items() if count} == {
        kind: told.count(kind) for kind in set(told)
    }


@settings(max_examples=60)
@given(seed=SEEDS)
def test_a_python_policy_that_orders_anew_in_each_pass(seed: int) -> None:
    case = crowded(seed)
    passes, _ = passes_of(case, case.options, Freshest())
    assert by_place(passes) == by_place(passes_of_model(case, FRESHEST))


def chunked(config: EngineConfig) -> EngineConfig:
    """A budget below a prompt would keep it out for ever without chunks."""
    return structs.replace(config, enable_chunked_prefill=True)
