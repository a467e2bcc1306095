"""From settings to one machine: a driver over an engine, one scheduler a rank.

Decides how configuration keys map to arguments of the core. Never runs anything.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mocker_replay._core.driver import Machine
from mocker_replay._core.engine import Engine
from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.offload import HostTier
from mocker_replay._core.policy import SchedulingPolicy
from mocker_replay._core.sched_vllm import VllmScheduler
from mocker_replay._core.scheduler import Scheduler
from mocker_replay._core.shared_tier import SharedTier
from mocker_replay._core.timing import TimingModel
from mocker_replay.config import EngineConfig
from mocker_replay.errors import ConfigError

COUNT_MAX = 2**63 - 1  # of passes, or of tokens in a pool; a run that counts further never ends
BlockTokens = Callable[[int, int, int], bytes]


def build_timing(config: EngineConfig) -> TimingModel:
    """The pass-time model of one rank.

    Raises:
        ConfigError: a profile that cannot be read or breaks a rule.
    """
    model = config.timing_model
    timing = partial(TimingModel, speedup_ratio=config.speedup_ratio, decode_speedup_ratio=config.decode_speedup_ratio)
    if model.type == "fixed":
        assert model.prefill_ms is not None
        assert model.decode_ms is not None
        return timing("fixed", prefill_ms=model.prefill_ms, decode_ms=model.decode_ms)
    if model.type == "callback":
        return timing("callback", callback=model.callable)
    if model.type == "external":
        return timing("profile", arrays=_load_profile(str(model.path)))
    return timing("polynomial")


def _load_profile(path: str) -> dict[str, Any]:
    import numpy as np

    try:
        with np.load(Path(path), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as exc:
        raise ConfigError(f"engine.timing_model.config.path: Failed to open NPZ file {path}: {exc}") from None
    try:
        TimingModel("profile", arrays=arrays)
    except ValueError as exc:
        raise ConfigError(f"engine.timing_model.config.path: {path}: {exc}") from None
    return arrays


def build_shared_tier(sharers: Sequence[tuple[EngineConfig, int]], trace_block_size: int) -> SharedTier | None:
    """The host tier of the ranks that share one, None where none does.

    Args:
        sharers: configurations that may share it, in the order of their workers, each with the number of its ranks;
            those that do agree on it.
    """
    sharers = [(config, num_ranks) for config, num_ranks in sharers if config.shares_tier]
    if not sharers:
        return None
    config, offload = sharers[0][0], sharers[0][0].native_host_offload
    assert offload is not None, "who shares a tier has one"
    assert config.kv_cache_bytes_per_token is not None, "a tier needs the size of a block"
    tier = SharedTier(
        min(offload.num_host_blocks, COUNT_MAX),
        float(config.block_size * config.kv_cache_bytes_per_token),
        offload.d2h_bandwidth_gbps,
        offload.h2d_bandwidth_gbps,
        offload.latency_to_first_byte_ms,
        config.block_size,
        trace_block_size,
        *offload.gbps_of_all,
        sum(num_ranks for _, num_ranks in sharers),
    )
    member = 0
    for config, num_ranks in sharers:
        link = config.native_host_offload
        assert link is not None, "who shares a tier has one"
        for _ in range(num_ranks):
            tier.set_link(member, link.d2h_bandwidth_gbps, link.h2d_bandwidth_gbps, link.latency_to_first_byte_ms)
            member += 1
    return tier


def build_tier(config: EngineConfig, trace_block_size: int) -> HostTier | None:
    """The host tier of one rank, None where none is set."""
    offload = config.native_host_offload
    if offload is None:
        return None
    assert config.kv_cache_bytes_per_token is not None, "a tier needs the size of a block"
    return HostTier(
        min(offload.num_host_blocks, COUNT_MAX),
        float(config.block_size * config.kv_cache_bytes_per_token),
        offload.d2h_bandwidth_gbps,
        offload.h2d_bandwidth_gbps,
        offload.latency_to_first_byte_ms,
        config.block_size,
        trace_block_size,
    )


def _xxh3() -> Callable[..., int]:
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest


class RankParts(NamedTuple):
    """What the ranks of a worker are made of beside their configuration."""

    trace_block_size: int
    timing: TimingModel
    want: int
    block_tokens: BlockTokens | None
    asks_prompt_tokens: bool
    policy: SchedulingPolicy | None
    knows_outputs: bool
    shared_tier: SharedTier | None

    def xxh3(self, config: EngineConfig) -> Callable[..., int] | None:
        """The hash of cache events and host tiers, where there are any."""
        return _xxh3() if self.block_tokens is not None or config.native_host_offload is not None else None


def _num_blocks(config: EngineConfig) -> int:
    return min(config.num_gpu_blocks, COUNT_MAX // config.block_size)


def _vllm_rank(config: EngineConfig, worker: int, rank: int, sampler_seed: int, parts: RankParts) -> Scheduler:
    return VllmScheduler(
        worker,
        rank,
        num_gpu_blocks=_num_blocks(config),
        block_size=config.block_size,
        trace_block_size=parts.trace_block_size,
        timing=parts.timing,
        want=parts.want,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        enable_prefix_caching=config.enable_prefix_caching,
        enable_chunked_prefill=config.enable_chunked_prefill,
        preemption_mode=config.preemption_mode,
        accept_rates=config.aic_nextn_accept_rates,
        sampler_seed=sampler_seed,
        block_tokens=parts.block_tokens,
        asks_prompt_tokens=parts.asks_prompt_tokens,
        xxh3=parts.xxh3(config),
        policy=parts.policy,
        knows_outputs=parts.knows_outputs,
        free_prefill=config.worker_type == "decode",
        free_decode=config.worker_type == "prefill",
        tier=parts.shared_tier if config.shares_tier else build_tier(config, parts.trace_block_size),
    )


def _trtllm_rank(config: EngineConfig, worker: int, rank: int, sampler_seed: int, parts: RankParts) -> Scheduler:
    from mocker_replay._core.sched_trtllm import TrtllmScheduler

    return TrtllmScheduler(
        worker,
        rank,
        num_gpu_blocks=_num_blocks(config),
        block_size=config.block_size,
        trace_block_size=parts.trace_block_size,
        timing=parts.timing,
        want=parts.want,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        enable_prefix_caching=config.enable_prefix_caching,
        enable_chunked_prefill=config.enable_chunked_prefill,
        accept_rates=config.aic_nextn_accept_rates,
        sampler_seed=sampler_seed,
        block_tokens=parts.block_tokens,
        asks_prompt_tokens=parts.asks_prompt_tokens,
        xxh3=parts.xxh3(config),
        knows_outputs=parts.knows_outputs,
        free_prefill=config.worker_type == "decode",
        free_decode=config.worker_type == "prefill",
    )


def _sglang_rank(config: EngineConfig, worker: int, rank: int, sampler_seed: int, parts: RankParts) -> Scheduler:
    from mocker_replay._core.sched_sglang import SglangScheduler

    settings = config.sglang
    return SglangScheduler(
        worker,
        rank,
        num_gpu_blocks=_num_blocks(config),
        block_size=config.block_size,
        trace_block_size=parts.trace_block_size,
        timing=parts.timing,
        want=parts.want,
        num_ranks=config.dp_size,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        enable_prefix_caching=config.enable_prefix_caching,
        prefill_decode_interval=min(config.prefill_decode_interval, COUNT_MAX),
        schedule_policy=settings.schedule_policy,
        max_prefill_tokens=settings.max_prefill_tokens,
        chunked_prefill_size=settings.chunked_prefill_size,
        clip_max_new_tokens=settings.clip_max_new_tokens,
        schedule_conservativeness=settings.schedule_conservativeness,
        accept_rates=config.aic_nextn_accept_rates,
        sampler_seed=sampler_seed,
        block_tokens=parts.block_tokens,
        asks_prompt_tokens=parts.asks_prompt_tokens,
        xxh3=parts.xxh3(config),
        knows_outputs=parts.knows_outputs,
        free_prefill=config.worker_type == "decode",
    )


BuildRank = Callable[[EngineConfig, int, int, int, RankParts], Scheduler]
# One rank of each backend that is built (config.backends): configuration, worker, rank, seed of its draws, parts.
_BUILD_RANK: Mapping[str, BuildRank] = {
    "vllm": _vllm_rank,
    "trtllm": _trtllm_rank,
    "sglang": _sglang_rank,
}


def build_machine(
    config: EngineConfig,
    out: EventBuffer,
    *,
    worker: int,
    trace_block_size: int,
    want: int,
    timing: TimingModel | None = None,
    block_tokens: BlockTokens | None = None,
    asks_prompt_tokens: bool = False,
    policy: SchedulingPolicy | None = None,
    knows_outputs: bool = False,
    seed_worker: int | None = None,
    shared_tier: SharedTier | None = None,
) -> Machine:
    """The machine of one worker, with a scheduler for each of its ranks, publishing into `out`.

    Args:
        trace_block_size: tokens a block identity of a prompt stands for.
        want: optional records somebody reads (`Want` bits of the event buffer).
        timing: pass-time model, where several workers share one.
        block_tokens: generated tokens for the hashes of cache events; needed with WANT_KV. asks_prompt_tokens: it knows
            those of prompts, too, at positions below 0.
        knows_outputs: hash ids stand for engine blocks and go on behind the prompt, for what will be generated.
        policy: who goes first, who is preempted, who may enter; None is first come, first served.
        shared_tier: the host tier that ranks share, for those that do.
        seed_worker: number of the worker among those of its kind, where that is not `worker`; seeds are made from it.

    Raises:
        ConfigError: not supported, or a profile that cannot be read.
    """
    config.require_supported(config.worker_type)
    assert shared_tier is not None or not config.shares_tier, "a shared tier is built for all machines together"
    if policy is not None:
        config.require_policies(config.worker_type)
    parts = RankParts(
        trace_block_size, timing or build_timing(config), want, block_tokens, asks_prompt_tokens, policy, knows_outputs,
        shared_tier,
    )  # fmt: skip
    first_seed = config.aic_mtp_seed + (worker if seed_worker is None else seed_worker) * config.dp_size
    ranks = [
        _BUILD_RANK[config.backend](config, worker, rank, (first_seed + rank) % 2**64, parts)
        for rank in range(config.dp_size)
    ]
    return Machine(Engine(worker, ranks, min(config.prefill_schedule_interval, COUNT_MAX)), out)
