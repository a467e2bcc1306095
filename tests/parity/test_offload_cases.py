"""Every reference case of the host tier, through the product and through the slow model, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.config import ReplayOptions
from mocker_replay.errors import ConfigError, UsageError
from mocker_replay.replay import replay
from tests.parity import compare
from tests.parity.cases import CASES, Case, read_replay_case
from tests.parity.runners import RUNNERS

# Meant as the reference's text; the words are our own.
REFUSALS = {
    "g23-error-no-block-bytes": "requires kv_cache_bytes_per_token",
    "g24-error-prefix-caching-off": "requires enable_prefix_caching = true",
    "g25-error-backend": "is supported only with backend vllm",
}


def load() -> dict[str, dict[str, Any]]:
    paths = sorted((CASES / "handoff").glob("g*.json"))
    return {path.stem: json.loads(path.read_text()) for path in paths}


DATA = load()
RUNS = [name for name in DATA if name not in REFUSALS]


# Rules that random runs against the reference brought up, each in a small input with what the reference said.
FOUND = [read_replay_case(json.loads(path.read_text())) for path in sorted((CASES / "handoff").glob("h*.json"))]


def case_of(name: str) -> Case:
    data = DATA[name]
    text = "".join(json.dumps(row) + "\n" for row in data["trace"])
    args = {"trace_block_size": data["trace_block_size"], "num_workers": data["workers"]["aggregated"]}
    return Case(name, "mooncake", data["aggregated_config"], text, args, data["expect"])


def test_nothing_is_left_out() -> None:
    assert len(DATA) == 26
    assert len(RUNS) == 23
    assert len(FOUND) == 17


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", RUNS)
def test_run_equals_the_reference(name: str, runner: str, tmp_path: Path) -> None:
    case = case_of(name)
    outcome = RUNNERS[runner](case, tmp_path)
    assert outcome.summary["duration_ms"] == case.expect["duration_ms"]
    for record, expected in zip(outcome.records, case.expect["requests"], strict=True):
        figures = {key: value for key, value in expected.items() if key != "admissions"}
        assert {key: record.get(key) for key in figures} == figures
        shown = [{key: entry[key] for key in expected["admissions"][0]} for entry in record["admission_history"]]
        assert shown == expected["admissions"]


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("case", FOUND, ids=lambda case: case.name)
def test_what_random_runs_found_equals_the_reference(case: Case, runner: str, tmp_path: Path) -> None:
    outcome = RUNNERS[runner](case, tmp_path)
    differences = compare.compare_records(case.expect["per_request"], outcome.records)
    assert differences + compare.compare_summary(case.expect["summary"], outcome.summary) == []


@pytest.mark.parametrize("name", REFUSALS)
def test_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=REFUSALS[name]):
        RUNNERS["product"](case_of(name), tmp_path)


SHARED = {"scope": "cluster_shared", "kv_layout_id": "m"}


def refused(folder: Path, options: ReplayOptions, configs: dict[str, Any]) -> str:
    trace = folder / "trace.jsonl"
    trace.write_text(json.dumps({"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [1]}) + "\n")
    with pytest.raises(UsageError) as caught:
        replay(trace, configs.pop("config", None), options, events=folder / "events.jsonl", **configs)
    assert not (folder / "events.jsonl").exists()
    return str(caught.value)


def with_tier(role: str = "aggregated", **tier: Any) -> dict[str, Any]:
    engine = {"block_size": 4, "kv_cache_bytes_per_token": 1000, "worker_type": role}
    return {"engine": engine | {"native_host_offload": {"num_host_blocks": 8} | tier}}


def test_what_is_not_built_is_refused_by_name(tmp_path: Path) -> None:
    routed = ReplayOptions(trace_block_size=4, router_mode="kv_router")
    assert "router_mode kv_router is not built yet" in refused(tmp_path, routed, {"config": with_tier()})
    live = ReplayOptions(trace_block_size=4, mode="realtime")
    assert "native_host_offload.scope" in refused(tmp_path, live, {"config": with_tier(**SHARED)})
    live_pools = ReplayOptions(trace_block_size=4, mode="realtime", num_prefill_workers=1, num_decode_workers=1)
    configs = {f"{role}_config": with_tier(role, **SHARED) for role in ("prefill", "decode")}
    assert refused(tmp_path, live_pools, configs).count("native_host_offload.scope") == 2


@pytest.mark.parametrize(
    ("key", "theirs"),
    [
        ("kv_layout_id", "n"),
        ("num_host_blocks", 9),
        ("shared_d2h_bandwidth_gbps", 80.5),
        ("shared_h2d_bandwidth_gbps", 0.0),
    ],
)
def test_pools_that_share_memory_agree_on_it(key: str, theirs: Any, tmp_path: Path) -> None:
    """As on the reference, whose ranks all join one memory."""
    pools = ReplayOptions(trace_block_size=4, num_prefill_workers=1, num_decode_workers=1)
    configs = {"prefill_config": with_tier("prefill", **SHARED), "decode_config": with_tier("decode", **SHARED)}
    configs["decode_config"]["engine"]["native_host_offload"][key] = theirs
    message = refused(tmp_path, pools, configs)
    assert f"engine.native_host_offload.{key}: must be that of the decode configuration" in message


def test_blocks_of_pools_that_share_memory_have_one_size(tmp_path: Path) -> None:
    pools = ReplayOptions(trace_block_size=4, num_prefill_workers=1, num_decode_workers=1)
    configs = {"prefill_config": with_tier("prefill", **SHARED), "decode_config": with_tier("decode", **SHARED)}
    configs["prefill_config"]["engine"]["kv_cache_bytes_per_token"] = 999
    configs["prefill_config"]["tensor_parallel_size"] = 2
    message = refused(tmp_path, pools, configs)
    assert "engine.kv_cache_bytes_per_token: must be that of the decode configuration, 1000" in message
    assert "tensor_parallel_size: must be that of the decode configuration, 1" in message


def test_links_of_ranks_that_share_memory_may_differ(tmp_path: Path) -> None:
    """What is said twice of the memory may be said in two ways; links and latencies are each rank's own."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps({"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [1]}) + "\n")
    pools = ReplayOptions(trace_block_size=4, num_prefill_workers=1, num_decode_workers=1)
    fast = with_tier("prefill", **SHARED, d2h_bandwidth_gbps=1.0, shared_d2h_bandwidth_gbps=80.0)
    slow = with_tier("decode", **SHARED, d2h_bandwidth_gbps=0.5, latency_to_first_byte_ms=3.0)
    result = replay(trace, None, pools, prefill_config=fast, decode_config=slow)
    assert result.summary["g2_domains"] == [{"capacity_blocks": 8, "resident_blocks": 1, "used_blocks": 1}]
