"""Whole replays for property tests: random engines, options and traces, and all that a run of them gives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
from hypothesis import strategies as st
from msgspec import structs

from mocker_replay._core.log_encoder import LEVELS
from mocker_replay.config import EngineConfig, RealtimeOptions, ReplayOptions, TimingModel
from mocker_replay.config.engine import HostOffloadSettings
from mocker_replay.log.wall import bare_lines
from mocker_replay.replay import ReplayResult, replay
from mocker_replay.report.summary import without_wall_clock
from mocker_replay.trace.mooncake import MooncakeTrace
from tests.property.workloads import patience_ms, prompts, times_ms
from tests.support.realtime_replay import Pace, virtual_time

TRACE_BLOCK_SIZE = 3  # no multiple of most block sizes
NOMINAL = RealtimeOptions(clock="nominal")

# Pass times that meet arrivals (multiples of 0.5) often, passes of no length, and times that never meet.
timings = st.tuples(st.sampled_from([0.0, 1.0, 2.5, 10.0]), st.sampled_from([0.0, 0.5, 1.0])).map(
    lambda pair: TimingModel("fixed", *pair)
) | st.just(TimingModel())
# A clock that stands still while code runs, and one by which every reading costs time; both may be late.
late_ms = st.sampled_from([(0.0,), (0.0, 0.0, 0.25, 3.0), (0.0, 7.0, 40.0), (500.0,)])
step_ms = st.sampled_from([(0.0,), (0.0, 0.0, 0.001), (0.0, 0.0, 0.0, 0.0, 5.0)])
# How a client reads, under the measured clock: some are too slow and lose their requests.
readers = st.sampled_from([("full", 0.0), ("full", 0.0), (1, 0.0), (1, 50.0), (3, 2.0)])
measured = readers.map(lambda reader: RealtimeOptions(output_buffering=reader[0], reader_delay_ms=reader[1]))
paces = st.builds(Pace, st.integers(0, 2**32), late_ms, step_ms)


@dataclass
class Case:
    config: EngineConfig
    options: ReplayOptions
    rows: list[dict[str, Any]]
    level: str
    batch_rows: int  # that are read at a time
    prefill: EngineConfig | None = None  # of prefill workers; `config` is of decode workers then


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    """Small pools and budgets, so that everything runs short."""
    rates = draw(st.sampled_from([(), (), (), (1.0,), (0.7, 0.3), (0.5, 0.0, 1.0)]))
    chunked = draw(st.sampled_from([True, True, True, False]))
    return EngineConfig(
        num_gpu_blocks=draw(st.integers(3, 14)),
        block_size=draw(st.integers(2, 6)),
        max_model_len=draw(st.sampled_from([None, None, 12, 30])),
        max_num_seqs=draw(st.sampled_from([1, 2, 4, None])),
        max_num_batched_tokens=draw(st.sampled_from([8, 20, None])) if chunked else None,
        prefill_schedule_interval=draw(st.sampled_from([1, 1, 3])),
        enable_prefix_caching=draw(st.sampled_from([True, True, False])),
        enable_chunked_prefill=chunked,
        preemption_mode=draw(st.sampled_from(["lifo", "fifo"])),
        aic_nextn=len(rates) or None,
        aic_nextn_accept_rates=rates,
        timing_model=draw(timings),
        dp_size=draw(st.sampled_from([1, 1, 2])),
        num_gpu_blocks_is_explicit=True,
    )


@st.composite
def traces(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Sessions of one to three turns, some clients impatient, some requests named; a third of the traces streams."""
    rows = []
    starts_ms = draw(st.lists(times_ms, min_size=1, max_size=14))
    streams = draw(st.integers(0, 2)) == 0
    for session, at_ms in enumerate(sorted(starts_ms) if streams else starts_ms):
        turns = 1 if streams else draw(st.sampled_from([1, 1, 1, 2, 3]))
        named = turns > 1 or draw(st.booleans())
        for turn in range(turns):
            n_in, n_out, hash_ids = draw(prompts(TRACE_BLOCK_SIZE))
            row: dict[str, Any] = {"input_length": n_in, "output_length": n_out, "hash_ids": hash_ids}
            if turn == 0:
                row["timestamp"] = at_ms
            else:
                row["delay"] = draw(st.sampled_from([0.0, 0.5, 4.0]))
            if named:
                row["session_id"] = f"session {session}"
            if (patience := draw(patience_ms)) < math.inf:
                row["cancel_after_ms"] = patience
            if draw(st.integers(0, 3)) == 0:
                row |= {"priority": draw(st.integers(-1, 1)), "deadline_ms": draw(st.sampled_from([0, 2.5, 20]))}
            if draw(st.integers(0, 3)) == 0:
                row["request_id"] = draw(st.sampled_from(["one of two", 'a "name","wall":{']))
            rows.append(row)
    return rows


@st.composite
def cases(draw: st.DrawFn) -> Case:
    router_mode = draw(st.sampled_from(["round_robin", "kv_router"]))
    options = ReplayOptions(
        num_workers=draw(st.integers(1, 3)),
        router_mode=router_mode,
        kv_event_lag_ms=draw(st.sampled_from([None, 0.0, 6.0])) if router_mode == "kv_router" else None,
        replay_concurrency=draw(st.sampled_from([None, None, None, 1, 3])),
        arrival_speedup_ratio=draw(st.sampled_from([1.0, 1.0, 0.3])),
        trace_block_size=TRACE_BLOCK_SIZE,
        max_sim_time_ms=draw(st.sampled_from([None, None, None, 0.0, 11.0, 40.25])),
        policy=draw(st.sampled_from(["fcfs", "fcfs", "sjf", "lpm", "priority", "edf"])),
    )
    level, batch_rows = draw(st.sampled_from(LEVELS)), draw(st.sampled_from([1, 3, 1024]))
    return Case(draw(configs()), options, draw(traces()), level, batch_rows)


@st.composite
def tier_cases(draw: st.DrawFn) -> Case:
    """The same with a host tier: few documents that push each other out of the pool, copies that end when rows come."""
    case = draw(cases())
    case.config = draw(tiered(case.config, draw(st.integers(3, 6))))
    case.options = structs.replace(
        case.options,
        num_workers=draw(st.sampled_from([1, 1, 2])),
        max_sim_time_ms=None,
        router_mode="round_robin",  # a router is refused with a tier
        kv_event_lag_ms=None,
    )
    # Prompts leave room for what is generated.
    case.rows = draw(documents(case.config.num_gpu_blocks * case.config.block_size - 3))
    return case


@st.composite
def tiered(draw: st.DrawFn, config: EngineConfig, num_blocks: int) -> EngineConfig:
    """The same engine with a pool of this size and host memory; a block is copied in 0, 10, 1 or 0.5 ms."""
    tier = HostOffloadSettings(
        num_host_blocks=draw(st.sampled_from([1, num_blocks, 10 * num_blocks, 10 * num_blocks])),
        d2h_bandwidth_gbps=draw(st.sampled_from([0.0, 0.1, 1.0, 2.0])),
        h2d_bandwidth_gbps=draw(st.sampled_from([0.0, 0.1, 1.0, 2.0])),
        latency_to_first_byte_ms=draw(st.sampled_from([0.0, 0.0, 0.5, 5.0])),
    )
    return structs.replace(
        config,
        num_gpu_blocks=num_blocks,
        max_model_len=None,
        max_num_batched_tokens=None,
        dp_size=draw(st.sampled_from([1, 1, 2])),
        enable_prefix_caching=True,
        aic_nextn=None,
        aic_nextn_accept_rates=(),
        kv_cache_bytes_per_token=1_000_000 // config.block_size,
        native_host_offload=tier,
    )


@st.composite
def documents(draw: st.DrawFn, longest: int) -> list[dict[str, Any]]:
    """Few documents that push each other out of a pool, in prompts of at most `longest` tokens."""
    rows, at_ms = [], 0.0
    for at in range(draw(st.integers(6, 16))):
        at_ms += draw(st.sampled_from([20.0, 0.0, 0.5, 1.0, 2.0, 5.0, 50.0]))
        n_in, document = draw(st.integers(longest // 2, longest)), (at + draw(st.integers(0, 1))) % 3
        ids = [1_000 * document + i for i in range(-(-n_in // TRACE_BLOCK_SIZE))]
        row = {"timestamp": at_ms, "input_length": n_in, "output_length": draw(st.integers(0, 3)), "hash_ids": ids}
        if draw(st.integers(0, 5)) == 0:
            row["cancel_after_ms"] = draw(st.sampled_from([0.0, 0.5, 1.0, 7.5]))
        rows.append(row)
    return rows


@dataclass
class Outputs:
    """All a run gives."""

    result: ReplayResult
    log: bytes
    requests: bytes
    summary: dict[str, Any]

    def bare(self) -> dict[str, Any]:
        """All of it that no clock has a say in."""
        summary = without_wall_clock(self.summary)
        summary.pop("realtime", None)
        return {
            "log": bare_lines(self.log),
            "requests": self.requests,
            "summary": summary,
            "exit_code": self.result.exit_code,
        }


def run(case: Case, folder: Path, realtime: RealtimeOptions | None = None, pace: Pace | None = None) -> Outputs:
    """One run of a case, accelerated without `realtime`."""
    trace = folder / "trace.jsonl"
    trace.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in case.rows))
    mode = "accelerated" if realtime is None else "realtime"
    names = {"events": folder / "events.jsonl", "requests": folder / "requests.jsonl", "summary": folder / "s.json"}
    options = structs.replace(case.options, mode=mode)
    in_batches = patch.object(MooncakeTrace, "batches", partialmethod(MooncakeTrace.batches, case.batch_rows))
    with virtual_time(pace), in_batches:
        pools = {} if case.prefill is None else {"prefill_config": case.prefill, "decode_config": case.config}
        config = case.config if case.prefill is None else None
        result = replay(trace, config, options, event_level=case.level, realtime=realtime, **names, **pools)
    log, requests, summary = (path.read_bytes() for path in names.values())
    return Outputs(result, log, requests, orjson.loads(summary))


def conserves(footer: dict[str, Any], outputs: Outputs) -> None:
    """Whoever arrived went somewhere, and all outputs agree where."""
    ended = {name: footer[name] for name in ("finished", "failed", "rejected", "cancelled")}
    assert footer["arrived"] == sum(ended.values()) + footer["cut"] == outputs.summary["num_requests"]
    statuses = [orjson.loads(line)["terminal_status"] for line in outputs.requests.splitlines()]
    assert sorted(statuses) == sorted(
        ["completed"] * ended["finished"] + ["failed"] * ended["failed"] + ["rejected"] * ended["rejected"]
        + ["canceled"] * ended["cancelled"]
    )  # fmt: skip
