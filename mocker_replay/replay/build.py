"""The fleet of one replay: machines of all workers over one event buffer. Never runs anything."""

from __future__ import annotations

from mocker_replay._core.disaggregation import Disaggregation
from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.fleet import Fleet
from mocker_replay._core.policy import SchedulingPolicy
from mocker_replay.config.backends import BACKENDS, handoff_order
from mocker_replay.engines import BlockTokens, build_machine, build_shared_tier, build_timing
from mocker_replay.replay.pools import Pools


def build_fleet(
    pools: Pools,
    *,
    trace_block_size: int,
    want: int,
    telemetry: bool,
    wake_on_end: bool,
    external_placement: bool = False,
    external: bool = False,
    directed: bool = False,
    quiet: bool = False,
    block_tokens: BlockTokens | None = None,
    policy: SchedulingPolicy | None = None,
    knows_outputs: bool = False,
) -> Fleet:
    """Machines of one replay, all publishing into one event buffer.

    Args:
        want: optional records somebody reads (`Want` bits of the event buffer).
        external: the caller's own shells move the machines. directed: and only when told to.
        quiet: nobody reads records of passes and gauges.
        block_tokens: generated tokens for the hashes of cache events; needed with WANT_KV.
        knows_outputs: hash ids stand for engine blocks and go on behind the prompt, for what will be generated.
        policy: asked by all ranks; None is first come, first served.

    Raises:
        ConfigError: a profile that cannot be read.
    """
    out = EventBuffer()
    timing = build_timing(pools.engine)
    prefill_timing = timing if pools.prefill is None else build_timing(pools.prefill)
    shared_tier = build_shared_tier(pools.ranks_by_config(), trace_block_size)
    machines = [
        build_machine(
            pools.config_of(worker), out, worker=worker, trace_block_size=trace_block_size, want=want,
            timing=prefill_timing if worker < pools.num_prefill_workers else timing, block_tokens=block_tokens,
            policy=policy, seed_worker=pools.number_in_pool(worker), knows_outputs=knows_outputs,
            shared_tier=shared_tier,
        )
        for worker in range(pools.num_workers)
    ]  # fmt: skip
    return Fleet(
        machines, out, telemetry=telemetry, wake_on_end=wake_on_end, external_placement=external_placement,
        external=external, directed=directed, quiet=quiet, handoffs=_handoffs(pools, out),
    )  # fmt: skip


def _handoffs(pools: Pools, out: EventBuffer) -> Disaggregation | None:
    """What brings prompts from prefill workers to decode workers; None where workers have no roles."""
    source, destination = pools.prefill, pools.engine
    if source is None:
        return None
    return Disaggregation(
        out,
        num_prefill_workers=pools.num_prefill_workers,
        num_decode_workers=pools.num_workers - pools.num_prefill_workers,
        prefill_dp_size=source.dp_size,
        decode_dp_size=destination.dp_size,
        block_size=destination.block_size,
        num_blocks=destination.num_gpu_blocks,
        max_model_len=destination.max_model_len,
        order=handoff_order(destination.backend),
        books_outputs=BACKENDS[destination.backend].books_outputs,
        timing_mode=source.kv_transfer_timing_mode,
        bytes_per_token=source.kv_transfer_bytes_per_token,
        bandwidth_gbps=source.kv_transfer_bandwidth,
    )
