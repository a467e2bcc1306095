"""Whole replays with prefill and decode workers: both clocks against the accelerated run, reruns, audits."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import orjson
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from mocker_replay.config import EngineConfig, RealtimeOptions, ReplayOptions, TimingModel
from mocker_replay.config.engine import HostOffloadSettings, SglangSettings
from mocker_replay.errors import ExitCode, InvariantError
from mocker_replay.log.audit.run import audit
from mocker_replay.log.wall import bare_lines, read_wall
from mocker_replay.replay.rerun import rerun
from tests.property.replays import (
    NOMINAL,
    TRACE_BLOCK_SIZE,
    Case,
    configs,
    conserves,
    documents,
    measured,
    paces,
    run,
    tiered,
    traces,
)
from tests.support.realtime_replay import Pace

many = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def without_storms(config: EngineConfig) -> EngineConfig:
    """Bursts that preempt each other take thousands of passes of no length at one instant, where they are free."""
    return structs.replace(config, aic_nextn=None, aic_nextn_accept_rates=())


@st.composite
def cases(draw: st.DrawFn) -> Case:
    decode = without_storms(structs.replace(draw(configs()), worker_type="decode"))
    prefill = structs.replace(
        without_storms(draw(configs())),
        worker_type="prefill",
        block_size=decode.block_size,
        kv_transfer_bandwidth=draw(st.sampled_from([None, 0.0, 1.0, 4.0])),
        kv_transfer_bytes_per_token=draw(st.sampled_from([None, 500_000, 1_000_000])),
        kv_transfer_timing_mode=draw(st.sampled_from(["full_prompt", "destination_missing"])),
    )
    options = ReplayOptions(
        num_prefill_workers=draw(st.integers(1, 2)),
        num_decode_workers=draw(st.integers(1, 2)),
        replay_concurrency=draw(st.sampled_from([None, None, None, 1, 3])),
        arrival_speedup_ratio=draw(st.sampled_from([1.0, 1.0, 0.3])),
        trace_block_size=TRACE_BLOCK_SIZE,
        max_sim_time_ms=draw(st.sampled_from([None, None, None, 0.0, 11.0, 40.25])),
        policy=draw(st.sampled_from(["fcfs", "fcfs", "sjf", "lpm", "priority", "edf"])),
    )
    level, batch_rows = draw(st.sampled_from(["requests", "passes", "tokens", "kv"])), draw(st.sampled_from([1, 1024]))
    return Case(decode, options, draw(traces()), level, batch_rows, prefill)


@st.composite
def tier_cases(draw: st.DrawFn) -> Case:
    """The same with host memory at either end or both. Decode workers store what arrived, and load it for those that
    were preempted: outputs go over a block there, and half of the pools hold two prompts."""
    case = draw(cases())
    assert case.prefill is not None
    num_blocks = draw(st.integers(4, 6))
    at_prefill, at_decode = draw(st.sampled_from([(True, True), (True, False), (False, True), (False, True)]))
    if at_prefill:
        case.prefill = draw(tiered(case.prefill, num_blocks))
    if at_decode:
        case.config = draw(tiered(case.config, draw(st.integers(num_blocks, 2 * num_blocks + 1))))
    case.options = structs.replace(case.options, max_sim_time_ms=None)
    case.rows = draw(documents((num_blocks - 1) * case.config.block_size))
    for row in case.rows:
        row["output_length"] += draw(st.sampled_from([0, 0, 2, 6]))
    return case


@st.composite
def sharing_cases(draw: st.DrawFn) -> Case:
    """The same where the ranks of one kind of worker share their host memory, or all ranks do."""
    case = draw(tier_cases())
    assert case.prefill is not None
    shared_gbps = draw(st.sampled_from([None, 0.0, 0.5, 1.0]))
    num_host_blocks = draw(st.integers(1, 60))
    who = draw(st.sampled_from([("prefill",), ("decode",), ("prefill", "decode")]))
    if "prefill" in who:
        case.prefill = _sharing(case.prefill, num_host_blocks, shared_gbps)
    if "decode" in who:
        case.config = _sharing(case.config, num_host_blocks, shared_gbps)
    return case


def _sharing(config: EngineConfig, num_host_blocks: int, shared_gbps: float | None) -> EngineConfig:
    tier = config.native_host_offload or HostOffloadSettings(1, 1.0, 1.0)
    tier = structs.replace(
        tier, scope="cluster_shared", kv_layout_id="one", num_host_blocks=num_host_blocks,
        shared_d2h_bandwidth_gbps=shared_gbps, shared_h2d_bandwidth_gbps=shared_gbps,
    )  # fmt: skip
    return structs.replace(
        config, native_host_offload=tier, enable_prefix_caching=True, aic_nextn=None, aic_nextn_accept_rates=(),
        kv_cache_bytes_per_token=1_000_000 // config.block_size,
    )  # fmt: skip


@st.composite
def routed_cases(draw: st.DrawFn) -> Case:
    """The same placed by cached prefixes and load, by either order of a handoff."""
    case = draw(cases())
    assert case.prefill is not None
    case.options = structs.replace(
        case.options,
        router_mode="kv_router",
        kv_event_lag_ms=draw(st.sampled_from([None, 0.0, 6.0])),
        num_prefill_workers=draw(st.integers(1, 3)),
        num_decode_workers=draw(st.integers(1, 3)),
    )
    if draw(st.sampled_from([False, False, True])):
        case.options = structs.replace(case.options, policy="fcfs")
        case.config, case.prefill = (
            structs.replace(
                pool, backend="sglang", num_gpu_blocks=64, max_num_seqs=None, max_num_batched_tokens=None,
                enable_chunked_prefill=True, prefill_schedule_interval=1,
                sglang=SglangSettings(chunked_prefill_size=4 * pool.block_size),
            )
            for pool in (case.config, case.prefill)
        )  # fmt: skip
    return case


def is_clean(log: Path) -> None:
    report = audit(log)
    assert report.exit_code == ExitCode.OK, [finding.to_mapping() for finding in report.findings[:3]]


def may_get_stuck(case: Case) -> bool:
    """Whether activated requests can stand in each other's way for ever, which ends a run (docs/handoff.md)."""
    with tempfile.TemporaryDirectory() as name:
        try:
            run(case, Path(name))
        except InvariantError:
            return True
    return False


@given(cases(), paces)
@many
def test_the_nominal_clock_gives_the_accelerated_run(case: Case, pace: Pace) -> None:
    assume(not may_get_stuck(case))
    is_the_accelerated_run(case, pace)


@given(tier_cases(), paces)
@many
def test_the_nominal_clock_gives_the_accelerated_run_with_host_tiers(case: Case, pace: Pace) -> None:
    assume(not may_get_stuck(case))
    is_the_accelerated_run(case, pace)


@given(sharing_cases())
@many
def test_memory_that_ranks_of_two_pools_share_loses_nobody(case: Case) -> None:
    assume(not may_get_stuck(case))
    with tempfile.TemporaryDirectory() as name:
        outputs = run(case, Path(name))
        is_clean(Path(name) / "events.jsonl")
        again = run(case, Path(name))
    assert again.log == outputs.log
    conserves(orjson.loads(outputs.log.splitlines()[-1]), outputs)
    (domain,) = outputs.result.summary["g2_domains"]
    assert domain["resident_blocks"] == domain["used_blocks"] <= domain["capacity_blocks"]


@given(routed_cases(), paces)
@many
def test_the_nominal_clock_gives_the_accelerated_run_with_a_router(case: Case, pace: Pace) -> None:
    assume(not may_get_stuck(case))
    is_the_accelerated_run(case, pace)


def one_and_one(
    tier: HostOffloadSettings, rows: list[dict[str, Any]], decode_ms: float, *, at_decode: bool = False, ranks: int = 1
) -> Case:
    """A prefill worker of these ranks and a decode worker, one of them with host memory; a prompt takes 1 ms, and so
    does a block of 2 tokens to travel."""
    config = EngineConfig(
        num_gpu_blocks=4, num_gpu_blocks_is_explicit=True, block_size=2, max_num_seqs=1,
        timing_model=TimingModel("fixed", 1.0, decode_ms), kv_cache_bytes_per_token=500_000,
        kv_transfer_bandwidth=1.0, kv_transfer_bytes_per_token=500_000,
    )  # fmt: skip
    prefill = structs.replace(
        config, worker_type="prefill", dp_size=ranks, native_host_offload=None if at_decode else tier
    )
    decode = structs.replace(config, worker_type="decode", native_host_offload=tier if at_decode else None)
    options = ReplayOptions(num_prefill_workers=1, num_decode_workers=1, trace_block_size=2)
    return Case(decode, options, rows, "passes", 1024, prefill)


def asking(at_ms: float, document: int, input_tokens: int, output_tokens: int) -> dict[str, Any]:
    ids = [10 * document + i for i in range(-(-input_tokens // 2))]
    return {"timestamp": at_ms, "input_length": input_tokens, "output_length": output_tokens, "hash_ids": ids}


def test_a_copy_that_ends_with_a_command_is_seen_behind_it() -> None:
    """The first prompt comes at 3 ms and is copied until 21 ms, when the second is held and its destination asked for.
    The worker is given the command, which sees the copy, and looks at its copies by itself only behind that."""
    tier = HostOffloadSettings(num_host_blocks=2, d2h_bandwidth_gbps=0.25, latency_to_first_byte_ms=10.0)
    case = one_and_one(tier, [asking(0.0, 0, 4, 0), asking(20.0, 1, 4, 0)], 0.0, at_decode=True)
    log = is_the_accelerated_run(case, Pace())
    assert log.index(b'"t_ms":21.0,"event":"command"') < log.index(b'"t_ms":21.0,"event":"store_completed"')


def test_a_rank_that_stands_still_looks_again_whenever_anything_happens_elsewhere() -> None:
    """The fourth prompt has no room beside the second, which is held until the first has been decoded. Its rank looks
    again at the end of each pass of the decode worker."""
    tier = HostOffloadSettings(num_host_blocks=1, d2h_bandwidth_gbps=0.0, h2d_bandwidth_gbps=0.0)
    rows = [asking(0.0, 0, 3, 6), asking(20.0, 1, 5, 0), asking(40.0, 2, 3, 0), asking(60.0, 3, 3, 0)]
    log = is_the_accelerated_run(one_and_one(tier, rows, 20.0, ranks=2), Pace())
    ends = [line for line in log.splitlines() if b'"event":"pass_end","worker":1' in line and b'"tokens":1' in line]
    for end in ends[2:4]:
        at = end[end.index(b'"t_ms"') : end.index(b',"event"')]
        assert at + b',"event":"pass_start","worker":0' in log


def is_the_accelerated_run(case: Case, pace: Pace) -> bytes:
    """The nominal clock gives it, on time and late, and a log that runs again; returns the bare log."""
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "events.jsonl"
        accelerated = run(case, Path(name)).bare()
        is_clean(log)
        for lateness in (None, pace):
            assert run(case, Path(name), NOMINAL, lateness).bare() == accelerated
            again = rerun(log)
            assert again.difference is None, again.difference
    whole: bytes = accelerated["log"]
    return whole


@given(cases(), paces, measured)
@many
def test_a_measured_run_runs_again_and_loses_nobody(case: Case, pace: Pace, realtime: RealtimeOptions) -> None:
    runs_again_and_loses_nobody(case, pace, realtime)


@given(tier_cases(), paces, measured)
@many
def test_a_measured_run_with_host_tiers_runs_again_and_loses_nobody(
    case: Case, pace: Pace, realtime: RealtimeOptions
) -> None:
    runs_again_and_loses_nobody(case, pace, realtime)


@given(routed_cases(), paces, measured)
@many
def test_a_measured_run_with_a_router_runs_again_and_loses_nobody(
    case: Case, pace: Pace, realtime: RealtimeOptions
) -> None:
    runs_again_and_loses_nobody(case, pace, realtime)


def runs_again_and_loses_nobody(case: Case, pace: Pace, realtime: RealtimeOptions) -> None:
    assume(not may_get_stuck(case))
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "events.jsonl"
        try:
            outputs = run(case, Path(name), realtime, pace)
        except InvariantError:  # stuck at other times than an accelerated run
            assume(False)
        again = rerun(log)
        assert again.difference is None, again.difference
        is_clean(log)
    footer = orjson.loads(read_wall(outputs.log.splitlines()[-1])[0])
    conserves(footer, outputs)
    if case.options.max_sim_time_ms is None:
        assert footer["arrived"] == len(case.rows)
    assert math.isfinite(outputs.result.facts.end_ms)


@given(
    cases() | tier_cases(), paces, measured | st.just(NOMINAL),
    st.integers(1, 10) | st.integers(10, 60) | st.integers(30, 250),
)  # fmt: skip
@many
def test_an_interrupted_run_keeps_what_was_true(case: Case, pace: Pace, realtime: RealtimeOptions, turn: int) -> None:
    assume(not may_get_stuck(case))
    pace.interrupt_turn = turn
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "events.jsonl"
        try:
            outputs = run(case, Path(name), realtime, pace)
        except InvariantError:
            assume(False)
        again = rerun(log)
        assert again.difference is None, again.difference
        is_clean(log)
        whole = run(case, Path(name)).log.splitlines() if realtime is NOMINAL else None
    lines = bare_lines(outputs.log).splitlines()
    conserves(orjson.loads(lines[-1]), outputs)
    if whole is not None:
        told = [line for line in lines[:-1] if b'"event":"cut"' not in line]
        assert told == whole[: len(told)]
