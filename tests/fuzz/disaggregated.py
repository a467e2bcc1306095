"""Random replays with prefill and decode workers from a seed; the same seed always gives the same case.

Aims at what handoffs add: held sources that fill a small pool, destinations in line, transfers of every length, several
of everything at one instant.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from typing import Any

from tests.fuzz.generate import Draft, share_tier
from tests.parity.cases import Case

# None so high that the clock does not move: the wheel then starts passes before it ends the transfer.
BANDWIDTHS_GBPS = (0.0, 0.5, 1.0, 1.0, 2.0, 64.0)
BYTES_PER_TOKEN = (1, 100_000, 1_000_000, 1_000_000, 131_072)


def make_disaggregated_case(seed: int) -> Case:
    """The case of a seed, as the parity harness takes it: one configuration a pool under `prefill` and `decode`."""
    return _make_case(seed, ())


def make_disaggregated_tier_case(seed: int) -> Case:
    """The same with host tiers: of the prefill workers, of those that decode, or of both."""
    tiered = random.Random(seed).choice((("prefill",), ("decode",), ("prefill", "decode")))
    return _make_case(seed, tiered)


def make_disaggregated_shared_tier_case(seed: int) -> Case:
    """The same with host memory that ranks share: those of the prefill workers, of those that decode, or of all; where
    one kind shares it, the other may have memory of its own."""
    rng = random.Random(seed)
    shared = rng.choice((("prefill",), ("decode",), ("prefill", "decode"), ("prefill", "decode")))
    tiered = shared if rng.random() < 0.8 else ("prefill", "decode")
    case = _make_case(seed, tiered)
    first = case.config[shared[0]]["engine"]
    of_all = {"num_host_blocks": first["native_host_offload"]["num_host_blocks"]}
    of_all |= share_tier(rng, first["native_host_offload"])
    for role in shared:
        engine = case.config[role]["engine"]
        tier = engine["native_host_offload"]
        for lane in ("d2h_bandwidth_gbps", "h2d_bandwidth_gbps"):  # blocks of another size, copied in the same time
            ratio = first["kv_cache_bytes_per_token"] / engine["kv_cache_bytes_per_token"]
            tier[lane] = float(f"{tier[lane] * ratio:.6g}")
        engine["kv_cache_bytes_per_token"] = first["kv_cache_bytes_per_token"]
        tier |= of_all
    return case


def _make_case(seed: int, tiered: Collection[str]) -> Case:
    """`tiered`: the pools with host tiers."""
    draft = Draft(seed)
    rng = draft.rng
    draft.mtp = rng.random() < 0.1 and not tiered  # the wheel has no tier with it
    pools: dict[str, dict[str, Any]] = {}
    for role in ("prefill", "decode"):
        engine = draft.engine()
        draft.slow = draft.profiled = False
        if engine["timing_model"]["type"] == "external":
            engine["timing_model"] = {"type": "polynomial"}
        engine["worker_type"] = role
        engine["num_gpu_blocks"] = max(1, int(draft.max_blocks_a_request * rng.choice((1, 1.2, 1.5, 2, 3, 6, 20))))
        if role in tiered:
            draft.num_blocks = engine["num_gpu_blocks"]
            draft.host_tier(engine)
        pools[role] = {"engine": engine}
        dp_size = rng.choice((1, 1, 1, 1, 2, 3))
        if dp_size > 1:
            pools[role]["dp_size"] = dp_size
    draft.num_blocks = min(pool["engine"]["num_gpu_blocks"] for pool in pools.values())
    return with_transfers(draft, pools, f"seed-{seed}")


def with_transfers(draft: Draft, pools: dict[str, dict[str, Any]], name: str) -> Case:
    """The case of two pools: what a transfer takes, and the rows."""
    rng = draft.rng
    source = pools["prefill"]["engine"]
    if rng.random() < 0.9:
        source["kv_transfer_bandwidth"] = rng.choice(BANDWIDTHS_GBPS)
    if rng.random() < 0.9:
        source["kv_transfer_bytes_per_token"] = rng.choice(BYTES_PER_TOKEN)
    if rng.random() < 0.4:
        source["kv_transfer_timing_mode"] = "destination_missing"
    rows = draft.rows()
    _drop_sessions_that_may_fail(rows, pools["decode"]["engine"])
    args = _args(draft, pools)
    if "replay_concurrency" in args:
        for row in rows:
            if "timestamp" in row and row["timestamp"] < 0:
                row["timestamp"] = 0
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return Case(name, "mooncake", pools, text, args, {})


def _drop_sessions_that_may_fail(rows: list[dict[str, Any]], decode: dict[str, Any]) -> None:
    """The wheel forgets the later turns of a session when a decode worker refuses one; here they go on."""
    longest = min(decode.get("max_model_len", 10**9) - 1, decode["num_gpu_blocks"] * decode["block_size"])
    if any(row.get("input_length", 10**9) > longest for row in rows):
        latest = 0.0
        for row in rows:
            row.pop("session_id", None)
            row.pop("delay", None)
            latest = row.setdefault("timestamp", latest)


def _args(draft: Draft, pools: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """As for workers of one kind, without what two pools do not have."""
    draft.slow = any(pool["engine"]["timing_model"]["type"] == "polynomial" for pool in pools.values())
    args = draft.args(2)
    args.pop("router_mode", None)
    args.pop("num_workers", None)
    args["num_prefill_workers"] = draft.rng.choice((1, 1, 1, 2, 3))
    args["num_decode_workers"] = draft.rng.choice((1, 1, 1, 2, 3))
    return args
