"""Explanations of small runs whose every pass is known, and what is refused."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.config import ReplayOptions
from mocker_replay.log.explain import explain
from mocker_replay.log.explanation import Explanation
from mocker_replay.log.reader import LogError
from mocker_replay.replay import replay
from tests.conftest import MakeTrace

FRESH_IDS = itertools.count(1_000)
FIXED = {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 1.0}


def row(timestamp: float, n_in: int, n_out: int, **fields: Any) -> dict[str, Any]:
    ids = list(itertools.islice(FRESH_IDS, n_in))
    fields.setdefault("hash_ids", ids)
    return {"timestamp": timestamp, "input_length": n_in, "output_length": n_out, **fields}


@pytest.fixture
def told(make_trace: MakeTrace, tmp_path: Path) -> Any:
    """Runs rows through a small engine and explains one of them."""

    def tell(rows: list[dict[str, Any]], request: str, level: str = "tokens", **engine: Any) -> Explanation:
        dp_size = engine.pop("dp_size", 1)
        limit_ms = engine.pop("max_sim_time_ms", None)
        engine = {"block_size": 4, "num_gpu_blocks": 100, "timing_model": FIXED} | engine
        config = {"engine": engine, "dp_size": dp_size}
        path = tmp_path / "events.jsonl"
        options = ReplayOptions(trace_block_size=1, max_sim_time_ms=limit_ms, policy=engine.pop("policy", "fcfs"))
        replay(make_trace(rows), config, options, events=path, event_level=level)
        return explain(path, request)

    return tell


def parts(told: Explanation) -> dict[str, float]:
    assert sum((ms for _, ms, _ in told.parts()), Fraction(0)) == told.exact_ms
    return {part: float(ms) for part, ms, _ in told.parts()}


def test_a_request_alone(told: Any) -> None:
    found = told([row(3, 8, 3)], "r0")
    assert parts(found) == {"prefill": 10.0, "decode": 2.0}
    (prefill,) = [stretch for stretch in found.stretches if stretch.part == "prefill"]
    assert (prefill.own_tokens, prefill.shared_with, prefill.num_scheduled) == (8, (), 1)


def test_one_that_comes_in_mid_pass_and_waits_in_the_queue(told: Any) -> None:
    """One runs at a time: r1 comes at 5, is queued at 10, and runs from 12 on."""
    found = told([row(0, 8, 3), row(5, 6, 2)], "r1", max_num_seqs=1)
    assert parts(found) == {"submission": 5.0, "waiting": 2.0, "prefill": 10.0, "decode": 1.0}
    assert [stretch.passes_meanwhile for stretch in found.stretches if stretch.part == "waiting"] == [2]


def test_prefill_is_shared(told: Any) -> None:
    """Budget 6: the prompt of r1 begins beside the end of that of r0."""
    found = told([row(0, 8, 9), row(0, 10, 1)], "r1", max_num_batched_tokens=6)
    computing = [(s.pass_number, s.own_tokens, s.shared_with, s.num_scheduled) for s in found.stretches if s.own_tokens]
    assert computing == [(1, 4, (("r0", 2),), 2), (2, 5, (), 2), (3, 1, (), 2)]
    assert parts(found) == {"waiting": 10.0, "prefill": 32.0}


@pytest.mark.parametrize("level", ["passes", "tokens"])
def test_a_slower_rank_holds_it(told: Any, level: str) -> None:
    """r0 decodes on rank 0 while rank 1 computes a prompt: of 10 ms it needs 1."""
    found = told([row(0, 8, 5), row(9, 8, 1)], "r0", level, dp_size=2)
    assert parts(found) == {"prefill": 10.0, "decode": 4.0, "slower_rank": 9.0}


def test_the_successor_of_a_victim_is_skipped(told: Any) -> None:
    """Oldest first out of 6 blocks: r0 loses its blocks at 13, and r2, behind it, gets nothing in that pass."""
    rows = [row(0, 4, 5, hash_ids=[1] * 4), row(0, 5, 5, hash_ids=[2] * 5), row(0, 3, 5, hash_ids=[3] * 3)]
    found = told(rows, "r2", num_gpu_blocks=6, preemption_mode="fifo")
    assert parts(found) == {"prefill": 10.0, "decode": 4.0, "stalled": 1.0}
    lost = told(rows, "r0", num_gpu_blocks=6, preemption_mode="fifo")
    assert parts(lost) == {"prefill": 10.0, "decode": 3.0, "preempted": 1.0, "recompute": 1.0}
    assert lost.preemptions == 1


def with_tier(**tier: float) -> dict[str, Any]:
    """A pool of 4 blocks with host memory; a block is loaded in 1 ms."""
    tier = {"num_host_blocks": 100, "d2h_bandwidth_gbps": 0.0, "h2d_bandwidth_gbps": 1.0} | tier
    return {"num_gpu_blocks": 4, "kv_cache_bytes_per_token": 250_000, "native_host_offload": tier}


def test_a_prompt_that_comes_from_host_memory(told: Any) -> None:
    """r1 takes all blocks; at 200 the prompt of r0 comes back, 3 blocks in 3 ms, of which 8 tokens are reused."""
    rows = [row(0, 12, 1, hash_ids=[1] * 12), row(100, 16, 1), row(200, 12, 1, hash_ids=[1] * 12)]
    found = told(rows, "r2", **with_tier())
    assert parts(found) == {"loading": 3.0, "prefill": 10.0}
    late = told(rows, "r2", **with_tier(latency_to_first_byte_ms=2.0))
    assert parts(late) == {"loading": 5.0, "prefill": 10.0}


def test_who_waits_before_it_loads(told: Any) -> None:
    """r1 has all blocks until 112: r2 is queued at 110 and loads when there is room for it."""
    rows = [row(0, 12, 1, hash_ids=[1] * 12), row(100, 13, 3), row(101, 12, 1, hash_ids=[1] * 12)]
    found = told(rows, "r2", **with_tier())
    assert parts(found) == {"submission": 9.0, "waiting": 2.0, "loading": 3.0, "prefill": 10.0}


def test_a_preempted_request_that_loads(told: Any) -> None:
    """r1 loses its blocks to r0; when that has ended it loads the one that the device has lost."""
    rows = [row(0, 4, 9, hash_ids=[1] * 4), row(0, 8, 6, hash_ids=[2] * 8)]
    found = told(rows, "r1", **with_tier())
    told_parts = parts(found)
    assert found.preemptions == 1
    assert list(told_parts)[:2] == ["loading", "prefill"]
    assert told_parts["loading"] == 1.0
    assert {"preempted", "recompute"} <= told_parts.keys()


def test_a_level_says_what_it_cannot_tell(told: Any) -> None:
    rows = [row(0, 8, 3), row(5, 6, 2)]
    found = told(rows, "r1", "requests", max_num_seqs=1)
    assert parts(found) == {"waiting": 7.0, "prefill": 10.0, "decode": 1.0}
    assert len(found.untold) == 2
    assert len(told(rows, "r1", "passes").untold) == 1
    assert told(rows, "r1", "kv").untold == []


def test_ends_of_every_kind(told: Any) -> None:
    assert parts(told([row(0, 8, 3), row(0, 900, 3)], "r1")) == {"waiting": 10.0}
    left = told([row(0, 8, 3, cancel_after_ms=5)], "r0")
    assert (parts(left), left.end, left.exact_ms) == ({}, "cancellation", 0)
    cut = told([row(0, 8, 30), row(12.5, 4, 1)], "r0", max_sim_time_ms=12.75)
    assert (parts(cut), cut.end, cut.end_ms) == ({"prefill": 10.0, "decode": 2.0, "cut_pass": 0.5}, "cut", 12.5)
    nothing_wanted = told([row(0, 8, 0)], "r0")
    assert parts(nothing_wanted) == {"prefill": 10.0}


@pytest.mark.parametrize("level", ["requests", "passes", "tokens"])
def test_decisions_of_a_policy_about_it(told: Any, level: str) -> None:
    rows = [row(0, 8, 3), row(1, 9, 3), row(1, 4, 3), row(2, 5, 3, request_id='a "b" \\ ü')]
    short = {"level": level, "policy": "sjf", "max_num_seqs": 1}
    assert told(rows, "r2", **short).decisions == {"tried before one that came first (shortest_job)": 1}
    assert told(rows, "r1", **short).decisions == {"another one was tried before it (shortest_job)": 2}
    named = told(rows, 'a "b" \\ ü', **short)
    assert named.decisions == {"tried before one that came first (shortest_job)": 1}
    assert told(rows, "r1", level, max_num_seqs=1).decisions == {}


def test_what_cannot_be_explained(told: Any) -> None:
    rows = [row(0, 8, 3, request_id="one"), row(1, 8, 3, request_id="one"), row(2, 8, 3, request_id='a "b" \\ ü')]
    with pytest.raises(LogError, match="no request is called r9"):
        told(rows, "r9")
    with pytest.raises(LogError, match="several requests are called one"):
        told(rows, "one")
    assert told(rows, 'a "b" \\ ü').output_tokens == 3
