"""Random configurations and traces from a seed; the same seed always gives the same case.

Aims at the corners: tiny pools, shared prefixes that straddle blocks, ties, passes of no length, tight budgets.
Every case is valid input; whether a request can ever run is left to chance.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from tests.parity.cases import Case

BLOCK_SIZES = (2, 3, 4, 4, 5, 8, 16, 64)
DURATIONS_MS = (0.0, 0.25, 1.0, 1.0, 2.0, 10.0, 1.23456789012, 1.0 / 3.0, 4e-7, 6e-7, 17.5)
SPEEDUPS = (1.0, 1.0, 1.0, 2.0, 3.0, 1.7, 0.3, 0.0, 1e6)


def _maybe(rng: random.Random, chance: float) -> bool:
    return rng.random() < chance


class Draft:
    """One case in the making; the shape of the load is drawn first, since everything else leans on it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        rng = self.rng
        self.block_size = rng.choice(BLOCK_SIZES)
        self.trace_block_size = self._trace_block_size()
        self.max_blocks_a_request = rng.choice((2, 3, 5, 8, 12))
        tightness = rng.choice((0.8, 1, 1, 1.2, 1.2, 1.5, 1.5, 2, 3, 6, 20))
        self.num_blocks = max(1, int(self.max_blocks_a_request * tightness))
        self.num_rows = rng.choice((1, 2, 3, 5, 8, 12, 12, 20, 20, 30, 45))
        self.mtp = _maybe(rng, 0.2)
        self.profiled = self.slow = False
        self.spare_impossible = self.mtp or _maybe(rng, 0.8)

    def _trace_block_size(self) -> int:
        choices = (self.block_size, 1, self.block_size * 2, self.block_size * 3, self.block_size + 1, 7)
        return self.rng.choice(choices)

    def engine(self) -> dict[str, Any]:
        rng = self.rng
        engine: dict[str, Any] = {"block_size": self.block_size, "num_gpu_blocks": self.num_blocks}
        longest = self.max_blocks_a_request * self.block_size
        if _maybe(rng, 0.5):
            budgets = (1, 2, self.block_size, longest // 2 + 1, longest, longest * 2)
            engine["max_num_batched_tokens"] = rng.choice(budgets)
        elif _maybe(rng, 0.1):
            engine["max_num_batched_tokens"] = None
        if _maybe(rng, 0.4):
            engine["max_num_seqs"] = rng.choice((1, 2, 3, 5, None))
        if _maybe(rng, 0.3):
            engine["enable_chunked_prefill"] = False
            if self.spare_impossible and engine.get("max_num_batched_tokens"):
                engine["max_num_batched_tokens"] = longest * rng.choice((1, 2))
        if _maybe(rng, 0.25):
            engine["enable_prefix_caching"] = False
        if _maybe(rng, 0.4):
            engine["preemption_mode"] = "fifo"
        if _maybe(rng, 0.2):
            engine["max_model_len"] = rng.randint(1, longest + 2)
        if _maybe(rng, 0.3):
            engine["speedup_ratio"] = rng.choice(SPEEDUPS)
        if self.mtp:
            engine |= self._mtp()
        elif _maybe(rng, 0.2):
            engine["decode_speedup_ratio"] = rng.choice(SPEEDUPS)
        engine["timing_model"] = self._timing()
        return engine

    def host_tier(self, engine: dict[str, Any]) -> None:
        """Add a host tier: from far too small to ample, its copies from instant to longer than many passes."""
        rng = self.rng
        engine["enable_prefix_caching"] = True
        engine["kv_cache_bytes_per_token"] = rng.choice((1, 1000, 131072, 250_000, 999_983))
        block_bytes = engine["kv_cache_bytes_per_token"] * self.block_size

        def bandwidth_gbps() -> float:
            block_ms = rng.choice((0.0, 0.01, 0.1, 0.5, 1.0, 1.0, 3.0, 10.0, 40.0))
            return 0.0 if block_ms == 0.0 else float(f"{block_bytes / (block_ms * 1e6):.6g}")

        tier: dict[str, Any] = {
            "num_host_blocks": max(1, int(self.num_blocks * rng.choice((0.3, 0.6, 1, 1, 1.5, 2, 3, 10)))),
            "d2h_bandwidth_gbps": bandwidth_gbps(),
            "h2d_bandwidth_gbps": bandwidth_gbps(),
        }
        if _maybe(rng, 0.4):
            tier["latency_to_first_byte_ms"] = rng.choice((0.1, 1.0, 2.5, 20.0))
        engine["native_host_offload"] = tier

    def _mtp(self) -> dict[str, Any]:
        rng = self.rng
        mtp: dict[str, Any] = {"aic_nextn": rng.randint(1, 5)}
        if _maybe(rng, 0.8):
            rates = [rng.choice((0.0, 1.0, 0.5, 0.85, 0.999, round(rng.random(), 3))) for _ in range(rng.randint(1, 6))]
            mtp["aic_nextn_accept_rates"] = ",".join(str(rate) for rate in rates)
        if _maybe(rng, 0.5):
            mtp["aic_mtp_seed"] = rng.choice((0, 1, 7, rng.getrandbits(64)))
        return mtp

    def _timing(self) -> dict[str, Any]:
        rng = self.rng
        if _maybe(rng, 0.25):
            self.slow = True
            return {"type": "polynomial"}
        self.profiled = _maybe(rng, 0.07)
        if self.profiled:
            return {"type": "external", "provider": "dynamo_profile", "config": {"path": "<npz>"}}
        return {"type": "fixed", "prefill_ms": rng.choice(DURATIONS_MS), "decode_ms": rng.choice(DURATIONS_MS)}

    def profile(self) -> dict[str, Any]:
        """Arrays of a measured profile, with knots where batches of this load fall on them, just below and above."""
        rng = self.rng
        most = float(self.num_rows * self.max_blocks_a_request * self.block_size)

        def axis(points: int) -> list[float]:
            steps = [float(rng.choice((1, 2, self.block_size, 10, 33.5))) for _ in range(points - 1)]
            knots = [sum(steps[: i + 1]) for i in range(points - 1)]
            return [*knots, knots[-1] + rng.choice((1.0, most))]

        isl, active, context = axis(rng.randint(2, 5)), axis(rng.randint(2, 4)), axis(rng.randint(2, 4))
        return {
            "prefill_isl": isl,
            "prefill_ttft_ms": [round(rng.uniform(0.5, 20.0), 4) for _ in isl],
            "decode_active_kv_tokens": active,
            "decode_context_length": context,
            "decode_itl": [[round(rng.uniform(0.2, 9.0), 4) for _ in context] for _ in active],
        }

    def rows(self) -> list[dict[str, Any]]:
        rng = self.rng
        documents = [[rng.getrandbits(64) for _ in range(200)] for _ in range(rng.choice((1, 2, 4)))]
        longest = self.max_blocks_a_request * self.block_size
        times = self._timestamps()
        rows = []
        for index in range(self.num_rows):
            n_in = rng.choice((rng.randint(1, longest), rng.randint(1, longest // 2), longest, self.block_size))
            n_out = rng.choice((0, 1, 2, rng.randint(1, 10), rng.randint(1, longest), rng.randint(1, longest)))
            if self.spare_impossible:
                n_in, n_out = self._fit(n_in, n_out)
            ids = self._hash_ids(n_in, documents)
            row: dict[str, Any] = {"timestamp": times[index], "input_length": n_in, "output_length": n_out}
            if n_in == len(ids) * self.trace_block_size and _maybe(rng, 0.3):
                del row["input_length"]
            rows.append(row | {"hash_ids": ids})
        if _maybe(rng, 0.3):
            self._add_sessions(rows)
        return rows

    def _fit(self, n_in: int, n_out: int) -> tuple[int, int]:
        """Shorten what could never run in the pool; a prompt over the pool stays now and then: it is rejected."""
        room = self.num_blocks * self.block_size
        if _maybe(self.rng, 0.03):
            return n_in, n_out
        n_in = min(n_in, room)
        return n_in, min(n_out, max(0, room - n_in))

    def _hash_ids(self, n_in: int, documents: list[list[int]]) -> list[int]:
        rng = self.rng
        needed = -(-n_in // self.trace_block_size)
        shared = rng.choice((0, rng.randint(0, needed), needed))
        ids = [rng.choice(documents)[0]] if needed and _maybe(rng, 0.05) else []
        document = rng.choice(documents)
        for position in range(len(ids), needed):
            ids.append(document[position % 200] if position < shared else rng.getrandbits(62))
        if _maybe(rng, 0.05):
            ids += [rng.getrandbits(8) for _ in range(rng.randint(1, 3))]
        return ids

    def _timestamps(self) -> list[float | int]:
        rng = self.rng
        kind = rng.choice(("burst", "grid", "uniform", "ties", "sparse"))
        if kind == "burst":
            return [5] * self.num_rows
        if kind == "grid":
            step = rng.choice((1, 2, 0.5, 10))
            return [k * step for k in range(self.num_rows)]
        if kind == "ties":
            return [rng.choice((0, 1, 10, 11, 12, 20)) for _ in range(self.num_rows)]
        span = self.num_rows * (3.0 if kind == "uniform" else 60.0)
        times = [round(rng.uniform(-5.0, span), rng.choice((0, 1, 3, 9))) for _ in range(self.num_rows)]
        return times if _maybe(rng, 0.5) else sorted(times)

    def _add_sessions(self, rows: list[dict[str, Any]]) -> None:
        """Put rows into conversations; inside one, time stamps must not fall and delays must not be negative."""
        rng = self.rng
        num_sessions = rng.randint(1, max(1, len(rows) // 2))
        latest: dict[str, float] = {}
        for row in rows:
            if _maybe(rng, 0.2):
                continue  # a session of its own
            name = f"s{rng.randrange(num_sessions)}"
            row["session_id"] = name
            if name not in latest:
                latest[name] = float(row["timestamp"])
                continue
            kind = rng.choice(("delay", "timestamp", "both", "neither"))
            if kind in ("delay", "both"):
                row["delay"] = rng.choice((0, 0.0, 1, 2.5, 10, 33.333))
            if kind in ("timestamp", "both"):
                row["timestamp"] = latest[name] = round(latest[name] + rng.choice((0, 1, 7.25, 20)), 9)
            else:
                del row["timestamp"]

    def args(self, dp_size: int) -> dict[str, Any]:
        rng = self.rng
        args: dict[str, Any] = {"trace_block_size": self.trace_block_size}
        if _maybe(rng, 0.3):
            args["num_workers"] = rng.randint(1, 4)
        if args.get("num_workers", 1) * dp_size == 1 and _maybe(rng, 0.15):
            args["router_mode"] = "kv_router"  # with several schedulers the wheel breaks ties at random
        if _maybe(rng, 0.2):
            args["replay_concurrency"] = rng.choice((1, 2, 3, 7))
        if _maybe(rng, 0.2):
            args["arrival_speedup_ratio"] = rng.choice((2.0, 3.0, 0.5, 1.7))
        if _maybe(rng, 0.1):
            args["max_sim_time_ms"] = rng.choice((0.0, 10.0, 20.0, round(rng.uniform(0, 100), 3)))
        if _maybe(rng, 0.4):
            # Where passes last long, short intervals would give more samples than can be compared in time.
            intervals = (1e6,) if self.profiled else (33.3, 250.0, 1000.0) if self.slow else (1.0, 2.3, 5.0, 10.0, 33.3)
            args["telemetry_sample_interval_ms"] = rng.choice(intervals)
        if _maybe(rng, 0.15):
            args[rng.choice(("sla_ttft_ms", "sla_itl_ms", "sla_e2e_ms"))] = rng.choice((1.0, 5.5, 30.0))
        return args

    def synthetic(self) -> dict[str, Any]:
        """Arguments of a synthetic workload; only what the generator of the reference takes as well."""
        rng = self.rng
        longest = self.max_blocks_a_request * self.block_size
        n_in, n_out = self._fit(rng.randint(1, longest), rng.randint(1, longest))
        workload: dict[str, Any] = {
            "input_tokens": n_in,
            "output_tokens": max(1, n_out),
            "request_count": rng.choice((1, 2, 5, 12, 40)),
        }
        arrivals = rng.choice(("request_rate", "arrival_interval_ms", "replay_concurrency"))
        workload[arrivals] = {
            "request_rate": rng.choice((0.5, 3.0, 50.0, 1000.0, 1e6)),
            "arrival_interval_ms": rng.choice((0.0, 1.0, 0.3, 20.0)),
            "replay_concurrency": rng.choice((1, 2, 7)),
        }[arrivals]
        if _maybe(rng, 0.5):
            workload["arrival_seed"] = rng.choice((0, 7, rng.getrandbits(64)))
        if _maybe(rng, 0.4):
            workload["turns_per_session"] = rng.choice((1, 2, 4))
        if _maybe(rng, 0.3):
            workload["inter_turn_delay_ms"] = rng.choice((0.0, 1.0, 12.5))
        if _maybe(rng, 0.5):
            workload["shared_prefix_ratio"] = rng.choice((0.0, 0.25, 0.5, 0.9, 1.0, rng.random()))
            workload["num_prefix_groups"] = rng.choice((0, 1, 2, 3, 1000))
        return workload


def make_case(seed: int) -> Case:
    """The case of a seed, as the parity harness takes it."""
    draft = Draft(seed)
    engine = draft.engine()
    config: dict[str, Any] = {"engine": engine}
    dp_size = draft.rng.choice((1, 1, 1, 2, 3, 4))
    if dp_size > 1:
        config["dp_size"] = dp_size
        if _maybe(draft.rng, 0.6):
            engine["prefill_schedule_interval"] = draft.rng.choice((2, 3, 4, 7))
    if _maybe(draft.rng, 0.08):
        return _synthetic_case(draft, config, dp_size)
    rows = draft.rows()
    args = draft.args(dp_size)
    if "replay_concurrency" in args:
        for row in rows:
            if "timestamp" in row and row["timestamp"] < 0:
                row["timestamp"] = 0
    npz = draft.profile() if draft.profiled else {}
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return Case(f"seed-{seed}", "mooncake", config, text, args, {}, npz_arrays=npz)


def make_tier_case(seed: int) -> Case:
    """The same with a host tier; workloads that go round in circles, so that much is loaded."""
    draft = Draft(seed)
    draft.mtp = False  # the wheel has no tier with it
    rng = draft.rng
    engine = draft.engine()
    draft.host_tier(engine)
    config: dict[str, Any] = {"engine": engine}
    dp_size = rng.choice((1, 1, 1, 1, 2, 3))
    if dp_size > 1:
        config["dp_size"] = dp_size
        cadence = random.Random(seed)  # one of its own: the rest stays as it is
        if _maybe(cadence, 0.5):
            engine["prefill_schedule_interval"] = cadence.choice((2, 3, 4, 7))
    rows = draft.rows()
    args = draft.args(dp_size)
    args.pop("router_mode", None)
    if "replay_concurrency" in args:
        for row in rows:
            if "timestamp" in row and row["timestamp"] < 0:
                row["timestamp"] = 0
    npz = draft.profile() if draft.profiled else {}
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return Case(f"tier-{seed}", "mooncake", config, text, args, {}, npz_arrays=npz)


def share_tier(rng: random.Random, tier: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a host tier one that ranks share."""
    shared: dict[str, Any] = {"scope": "cluster_shared", "kv_layout_id": "one"}
    for lane in ("d2h", "h2d"):
        ratio = rng.choice((None, 0.0, 0.5, 1.0, 1.0, 2.0, 3.0))
        if ratio is not None:
            shared[f"shared_{lane}_bandwidth_gbps"] = float(f"{ratio * (tier[f'{lane}_bandwidth_gbps'] or 1.0):.6g}")
    return shared


def make_shared_tier_case(seed: int) -> Case:
    """The same with one host tier of all workers."""
    case = make_tier_case(seed)
    rng = random.Random(seed)
    tier = case.config["engine"]["native_host_offload"]
    tier |= share_tier(rng, tier)
    if _maybe(rng, 0.8):
        case.args["num_workers"] = rng.choice((1, 2, 2, 3, 4))
    return case


def _synthetic_case(draft: Draft, config: dict[str, Any], dp_size: int) -> Case:
    args = draft.args(dp_size)
    for key in ("trace_block_size", "replay_concurrency", "max_sim_time_ms"):
        args.pop(key, None)
    npz = draft.profile() if draft.profiled else {}
    return Case(f"seed-{draft.seed}", "synthetic", config, "", draft.synthetic() | args, {}, npz_arrays=npz)
