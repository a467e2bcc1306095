"""The fleet of one replay: machines of all workers over one event buffer. Never runs anything."""

from __future__ import annotations

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.fleet import Fleet
from mocker_replay._core.policy import SchedulingPolicy
from mocker_replay.config import EngineConfig
from mocker_replay.engines import BlockTokens, build_machine, build_timing


def build_fleet(
    config: EngineConfig,
    *,
    num_workers: int,
    trace_block_size: int,
    want: int,
    telemetry: bool,
    wake_on_end: bool,
    external_placement: bool = False,
    external: bool = False,
    quiet: bool = False,
    block_tokens: BlockTokens | None = None,
    policy: SchedulingPolicy | None = None,
    knows_outputs: bool = False,
) -> Fleet:
    """Machines of one replay, all publishing into one event buffer.

    Args:
        want: optional records somebody reads (`Want` bits of the event buffer).
        external: the caller's own shells move the machines. quiet: nobody reads records of passes and gauges.
        block_tokens: generated tokens for the hashes of cache events; needed with WANT_KV.
        knows_outputs: hash ids stand for engine blocks and go on behind the prompt, for what will be generated.
        policy: asked by all ranks; None is first come, first served.

    Raises:
        ConfigError: not supported, or a profile that cannot be read.
    """
    config.require_supported()
    out = EventBuffer()
    timing = build_timing(config)
    machines = [
        build_machine(
            config, out, worker=worker, trace_block_size=trace_block_size, want=want, timing=timing,
            block_tokens=block_tokens, policy=policy, knows_outputs=knows_outputs,
        )
        for worker in range(num_workers)
    ]  # fmt: skip
    return Fleet(
        machines, out, telemetry=telemetry, wake_on_end=wake_on_end, external_placement=external_placement,
        external=external, quiet=quiet,
    )  # fmt: skip
