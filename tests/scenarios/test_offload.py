"""The offload scenarios of the hand-off and offload specification, section 15, by number.

Numbers 12 to 18 hold of the reference's own tests; of those that it does not test, the ones about a host tier.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mocker_replay._core.offload import HostTier
from mocker_replay.config import ReplayOptions
from mocker_replay.log.audit.run import audit
from mocker_replay.replay import replay

MB_PER_BLOCK = 1_000_000.0  # 1 ms a block at 1 GB/s


def tier(num_blocks: int = 8) -> tuple[HostTier, list[int]]:
    """A tier with lanes of one block a ms, and the identities of ten blocks."""
    made = HostTier(num_blocks, MB_PER_BLOCK, 1.0, 1.0, 0.0, 1, 1)
    return made, [made.key(number, number + 1) for number in range(10)]


def run(folder: Path, rows: list[dict[str, Any]], **engine: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(records, log lines) of a run with blocks of 4 tokens, 1 MB each, and a tier of 32 blocks; its log is sound."""
    offload = {"num_host_blocks": 32, "d2h_bandwidth_gbps": 1.0, "h2d_bandwidth_gbps": 1.0} | engine.pop("tier", {})
    options = ReplayOptions(trace_block_size=4, num_workers=engine.pop("workers", 1))
    config = {"dp_size": engine.pop("dp_size", 1)}
    settings = {
        "num_gpu_blocks": 8, "block_size": 4, "max_num_batched_tokens": 256, "kv_cache_bytes_per_token": 250_000,
        "timing_model": {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 5.0}, "native_host_offload": offload,
    }  # fmt: skip
    trace, events = folder / "trace.jsonl", folder / "events.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = replay(trace, config | {"engine": settings | engine}, options, events=events, event_level="kv")
    assert audit(events).findings == []
    return list(result.records()), [json.loads(line) for line in events.read_text().splitlines()[1:-1]]


def row(at_ms: float, ids: list[int], output_length: int = 1, **more: Any) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": 4 * len(ids), "output_length": output_length, "hash_ids": ids} | more


A, B, C = [1, 2, 3, 4], [11, 12, 13, 14], [21, 22, 23, 24]
ROUND = [row(0, A), row(100, B), row(200, C), row(300, A)]  # A has left the device when it comes again


def told(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event]


def test_offload_12_a_store_is_pending_until_its_deadline() -> None:
    made, keys = tier()
    made.py_prepare(keys[:2])
    assert made.next_end == math.inf
    assert made.py_submit(8.0) == [(0, 10.0)]
    assert made.py_prepare(keys[:2]) == ("present", [])
    assert made.py_load(keys[:2], 8.0) is None
    made.py_touch(keys[0])
    assert made.py_tick(9.9) == []
    assert made.py_tick(10.0) == [0]
    assert made.lru_order() == keys[:2]


def test_offload_12_members_are_spared_and_what_does_not_fit_leaves_no_trace() -> None:
    made, keys = tier(3)
    made.py_prepare(keys[:3])
    made.py_submit(0.0)
    made.py_tick(3.0)
    assert made.py_prepare([keys[0], keys[3]]) == (1, [keys[1]])
    assert made.py_prepare(keys[4:8]) == ("retry", [])
    assert made.num_entries == 3


def test_offload_12_a_pinned_source_is_never_evicted_and_a_cancelled_batch_is_the_newest() -> None:
    made, keys = tier(3)
    for key in keys[:3]:
        made.py_prepare([key])
    made.py_submit(0.0)
    made.py_tick(3.0)
    load = made.py_load([keys[0]], 3.0)
    assert load is not None
    assert made.py_prepare([keys[3]]) == (4, [keys[1]])
    made.py_cancel(load[1])
    assert made.lru_order() == [keys[2], keys[0]]


def test_offload_12_lanes_overlap_and_a_cancelled_load_does_not_reflow_its_lane() -> None:
    made, keys = tier()
    made.py_prepare(keys[:2])
    made.py_submit(0.0)
    made.py_tick(2.0)
    made.py_prepare([keys[5]])
    assert made.py_submit(2.0) == [(1, 3.0)]
    first, second = made.py_load([keys[0]], 2.0), made.py_load([keys[1]], 2.0)
    assert first is not None
    assert second is not None
    assert (first[2], second[2]) == (3.0, 4.0)
    made.py_cancel(first[1])
    assert made.next_end == 3.0
    assert made.py_tick(3.0) == [1]
    assert made.next_end == 4.0


def test_offload_13_a_load_reserves_device_blocks_and_a_cancel_releases_them(tmp_path: Path) -> None:
    rows = [*ROUND[:3], row(300, A, cancel_after_ms=1), row(310, B)]
    records, lines = run(tmp_path, rows)
    assert [line["end_ms"] for line in told(lines, "load_cancelled")] == [304.0]
    assert records[3]["terminal_status"] == "canceled"
    assert records[4]["terminal_status"] == "completed"


def test_offload_13_a_follower_is_deferred_and_hits_afterwards(tmp_path: Path) -> None:
    records, lines = run(tmp_path, [*ROUND, row(300, A)])
    assert len(told(lines, "load_scheduled")) == 1
    assert [record["first_admit_ms"] for record in records[3:]] == [304.0, 304.0]
    assert records[4]["first_admission_g1_reused_input_tokens"] == 12


def test_offload_14_a_completed_load_is_a_device_hit(tmp_path: Path) -> None:
    records, lines = run(tmp_path, [*ROUND, row(330, A)])
    assert len(told(lines, "load_scheduled")) == 1
    assert records[4]["first_admission_host_reused_input_tokens"] == 0
    assert records[4]["first_admission_g1_reused_input_tokens"] == 12


def test_offload_15_a_reused_source_fences_and_does_not_pin(tmp_path: Path) -> None:
    rows = [row(0, A), row(10, B), row(20, C)]
    records, lines = run(tmp_path, rows, tier={"d2h_bandwidth_gbps": 0.1})
    assert records[2]["first_admit_ms"] == 20.0
    assert [line["until_ms"] for line in told(lines, "fence")] == [50.0]
    assert records[2]["first_token_ms"] == 60.0


def test_offload_16_an_exhausted_budget_looks_nothing_up(tmp_path: Path) -> None:
    rows = [row(0, A), row(100, B), row(200, C), row(300, [31, 32]), row(300, A)]
    records, lines = run(tmp_path, rows, max_num_batched_tokens=8)
    (load,) = told(lines, "load_scheduled")
    assert load["t_ms"] > 300.0
    assert records[4]["first_admission_host_reused_input_tokens"] > 0


def test_offload_17_what_is_removed_makes_room_before_what_is_stored(tmp_path: Path) -> None:
    _, lines = run(tmp_path, ROUND[:3], tier={"num_host_blocks": 4})
    steps = [line["event"] for line in lines if line["event"] in ("host_eviction", "store_prepared")]
    assert steps == ["store_prepared", "host_eviction", "store_prepared", "host_eviction", "store_prepared"]


def test_offload_18_ranks_of_one_domain_share_room_and_bandwidth(tmp_path: Path) -> None:
    shared = {"scope": "cluster_shared", "kv_layout_id": "m", "shared_d2h_bandwidth_gbps": 1.0}
    _, lines = run(tmp_path, [row(0, A), row(0, B)], workers=2, tier=shared)
    assert [line["end_ms"] for line in told(lines, "store_completed")] == [18.0, 18.0]


def test_offload_30_a_load_that_ends_at_a_pass_end_is_seen_there(tmp_path: Path) -> None:
    rows = [*ROUND[:3], row(290, [41], 4), row(300, A)]
    records, lines = run(tmp_path, rows, num_gpu_blocks=10, tier={"h2d_bandwidth_gbps": 0.8})
    (load,) = told(lines, "load_completed")
    assert load["t_ms"] == load["end_ms"] == records[4]["first_admit_ms"]


@pytest.mark.parametrize("bandwidth_gbps", [0.0, 1.0])
def test_offload_31_copies_both_ways_may_end_at_one_instant(bandwidth_gbps: float, tmp_path: Path) -> None:
    both = {"d2h_bandwidth_gbps": bandwidth_gbps, "h2d_bandwidth_gbps": bandwidth_gbps}
    records, _ = run(tmp_path, [*ROUND, row(300, [31])], tier=both)
    assert {record["terminal_status"] for record in records} == {"completed"}


def test_offload_32_a_loading_request_is_cancelled_in_mid_pass(tmp_path: Path) -> None:
    rows = [*ROUND[:3], row(299, [41]), row(300, A, cancel_after_ms=12)]
    records, lines = run(tmp_path, rows, num_gpu_blocks=10, tier={"h2d_bandwidth_gbps": 0.1})
    (cancelled,) = told(lines, "load_cancelled")
    assert cancelled["t_ms"] <= 312.0
    assert records[4]["terminal_status"] == "canceled"


def test_offload_33_a_request_is_preempted_before_its_store_was_submitted(tmp_path: Path) -> None:
    rows = [row(0, [1, 2], 12), row(0, [11, 12], 12)]
    records, _ = run(tmp_path, rows, num_gpu_blocks=5)
    assert sum(record["preemption_count"] for record in records) > 0
    assert {record["terminal_status"] for record in records} == {"completed"}


def test_offload_34_a_tier_of_one_block(tmp_path: Path) -> None:
    records, lines = run(tmp_path, [row(0, [1]), row(100, [2]), row(200, B), row(300, C), row(400, [2])],
                         tier={"num_host_blocks": 1})  # fmt: skip
    assert len(told(lines, "host_eviction")) == 1
    assert [record["terminal_status"] for record in records] == ["completed"] * 5


def test_offload_35_a_backlog_of_the_lane_holds_a_pass_up_as_long_as_it_lasts(tmp_path: Path) -> None:
    rows = [row(0, A), row(10, B), row(20, C)]
    records, lines = run(tmp_path, rows, tier={"d2h_bandwidth_gbps": 0.001})
    assert told(lines, "fence")[0]["until_ms"] == 4010.0
    assert records[2]["first_token_ms"] == 4020.0


def test_offload_36_a_speed_up_ratio_does_not_scale_lanes(tmp_path: Path) -> None:
    _, lines = run(tmp_path, ROUND, speedup_ratio=10.0)
    (load,) = told(lines, "load_scheduled")
    assert load["end_ms"] - load["t_ms"] == 4.0


def test_offload_37_copies_under_way_are_waited_for_after_the_last_request(tmp_path: Path) -> None:
    records, lines = run(tmp_path, [row(0, A)], tier={"d2h_bandwidth_gbps": 0.01})
    assert records[0]["terminal_time_ms"] == 10.0
    assert told(lines, "store_completed")[0]["t_ms"] == lines[-1]["t_ms"] == 410.0


def test_offload_38_all_ranks_of_a_group_end_late_when_one_is_fenced(tmp_path: Path) -> None:
    rows = [row(0, A), row(0, [91]), row(10, B), row(10, [92]), row(20, C), row(20, [93])]
    records, lines = run(tmp_path, rows, dp_size=2, tier={"d2h_bandwidth_gbps": 0.1})
    assert {line["rank"] for line in told(lines, "fence")} == {0}
    assert records[5]["first_token_ms"] == records[4]["first_token_ms"] == 60.0
