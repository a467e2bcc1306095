"""`replay()`: a trace through the driver to a result, jumping through time or living it.

Decides what is refused before anything runs, and who opens and closes what.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from mocker_replay._core.types import CommandError, EngineError
from mocker_replay.config import EngineConfig, RealtimeOptions, ReplayOptions, load_engine_config
from mocker_replay.config.options import DELTA_FORMATS
from mocker_replay.errors import ConfigError, InvariantError, UsageError
from mocker_replay.log.compression import Sink
from mocker_replay.policies import LoadedPolicy, Policy, load_policy, ready
from mocker_replay.replay.accelerated import AcceleratedRun, Progress
from mocker_replay.replay.books import RunBooks
from mocker_replay.replay.graph_facts import require_settings
from mocker_replay.replay.interrupt import InterruptFlag
from mocker_replay.replay.pools import Pools
from mocker_replay.replay.result import ReplayResult
from mocker_replay.replay.sinks import Sinks
from mocker_replay.trace import TraceFacts, TracePath, TraceSource, open_trace

if TYPE_CHECKING:
    from mocker_replay._core.policy import SchedulingPolicy
    from mocker_replay.replay.realtime import Observe
    from mocker_replay.replay.realtime_view import Watch

# Far beyond any fleet; each rank costs memory before the first request.
_MAX_RANKS = 65_536


def replay(
    trace: TracePath | TraceSource,
    config: EngineConfig | Mapping[str, object] | None = None,
    options: ReplayOptions | None = None,
    *,
    events: str | os.PathLike[str] | Sink | None = None,
    event_level: str = "passes",
    requests: str | os.PathLike[str] | None = None,
    summary: str | os.PathLike[str] | None = None,
    telemetry: str | os.PathLike[str] | bool | None = None,
    progress: Progress | None = None,
    realtime: RealtimeOptions | None = None,
    watch: Watch | None = None,
    observe: Observe | None = None,
    policy: Policy | SchedulingPolicy | None = None,
    prefill_config: EngineConfig | Mapping[str, object] | None = None,
    decode_config: EngineConfig | Mapping[str, object] | None = None,
) -> ReplayResult:
    """Replay a trace, in virtual time or at its own pace (`options.mode`).

    Args:
        trace: path of a trace, "-" for standard input, a list of paths that are one trace, or an opened TraceSource.
        config: engine configuration, as EngineConfig or as the reference's mapping.
        options: settings of the run.
        events, requests, summary, telemetry: files to write, "-" for standard output. `telemetry=True` samples
            without writing. `events` may be a sink of the caller's own, which gets the log uncompressed.
        event_level: requests, passes, tokens or kv; each holds the one before.
        progress: called a few times a second of an accelerated run with (rows handed over, rows in all, modelled
            time [ms]).
        realtime: settings of a realtime run; it runs an event loop of its own.
        watch: called a few times a second of a realtime run with a RealtimeView.
        observe: called in the loop of a realtime run whenever a client reads a token, with (row, Signal, measured time
            [ms]); clients then read token by token, which costs each of them a turn of the loop.
        policy: an object of the caller's own, in place of the one that `options.policy` names.
        prefill_config, decode_config: of the two pools that `options` may ask for; `config` is not looked at then.

    Raises:
        ConfigError, UsageError, TraceError: refused before anything runs; nothing is written.
        InvariantError: the run could not go on; outputs were closed and marked as cut.
        OutputError: an output cannot be written; no file that looks whole is left.
        KeyboardInterrupt: the second Ctrl-C; the first one ends the run orderly and marks it as cut.
    """
    options = options or ReplayOptions()
    options.validate()
    pools = _pools(options, config, prefill_config, decode_config)
    realtime = _realtime_options(options, realtime, telemetry)
    options, loaded = _with_policy(options, policy)
    source = trace_source(trace, options)
    try:
        facts = source.scan()
        options = _in_its_format(options, facts)
        _refuse_of_pools(pools, realtime, loaded, options, facts)
        sinks = Sinks(
            pools, options, facts, events=events, event_level=event_level, requests=requests, summary=summary,
            telemetry=telemetry, realtime=realtime,
        )  # fmt: skip
        # From the first output on an interrupt ends the run orderly, until all of them are whole.
        with InterruptFlag() as interrupt, sinks:
            run: RunBooks
            if realtime is None:
                run = AcceleratedRun(pools, options, facts, source, sinks, loaded, progress)
            else:
                from mocker_replay.replay.realtime import RealtimeRun

                run = RealtimeRun(pools, options, facts, source, sinks, loaded, realtime, watch, observe)
            result = run.result(interrupt)
    finally:
        if source is not trace:
            source.close()
    return _unless_failed(run, result)


def _unless_failed(run: RunBooks, result: ReplayResult) -> ReplayResult:
    if run.failure is not None:
        raise InvariantError(_stop_text(run, result.facts.end_ms)) from run.failure
    return result


def _stop_text(run: RunBooks, end_ms: float) -> str:
    assert run.failure is not None
    return f"the run stopped at {end_ms} ms: {_text_of(run.failure)}{run.standing()}"


def _in_its_format(options: ReplayOptions, facts: TraceFacts) -> ReplayOptions:
    """What was run is what the trace was found to be: a log says no `auto`."""
    require_settings(options, facts)
    return structs.replace(options, trace_format=facts.format) if options.trace_format == "auto" else options


def _pools(options: ReplayOptions, *configs: EngineConfig | Mapping[str, object] | None) -> Pools:
    pools = Pools.of(
        options,
        *(
            config if config is None or isinstance(config, EngineConfig) else load_engine_config(config)
            for config in configs
        ),
    )
    if pools.num_ranks > _MAX_RANKS:
        raise UsageError(f"num_workers times dp_size must not exceed {_MAX_RANKS} ranks (got {pools.num_ranks})")
    return pools


def _refuse_of_pools(
    pools: Pools, realtime: RealtimeOptions | None, policy: LoadedPolicy, options: ReplayOptions, facts: TraceFacts
) -> None:
    """What is not built for all kinds of workers."""
    if pools.has_tier and options.router_mode != "round_robin":
        raise UsageError(f"router_mode {options.router_mode} is not built yet with native_host_offload")
    if realtime is not None and pools.shares_tier:
        rule = "not built yet for mode realtime; run it accelerated"
        raise ConfigError.of(
            [config.tier_fault(rule, config.worker_type) for config, _ in pools.ranks_by_config() if config.shares_tier]
        )
    if policy.scheduling is not None:
        pools.engine.require_policies("aggregated" if pools.prefill is None else "decode")
    if pools.prefill is None:
        return
    if facts.graph is not None or options.trace_format in DELTA_FORMATS:
        raise UsageError(f"trace_format {options.trace_format} is not built yet for prefill and decode workers")
    if policy.placing is not None:
        raise UsageError(f"policy {policy.name} places requests, which is not built yet for prefill and decode workers")


def _with_policy(
    options: ReplayOptions, policy: Policy | SchedulingPolicy | None
) -> tuple[ReplayOptions, LoadedPolicy]:
    """The policy of a run, and the options that name it."""
    loaded = load_policy(options.policy, options.policy_options) if policy is None else ready(policy)
    if policy is not None:
        options = structs.replace(options, policy=loaded.name, policy_options={})
    if loaded.placing is not None and options.router_mode != "round_robin":
        raise UsageError(
            f"policy {loaded.name} places requests itself: it cannot stand beside router_mode {options.router_mode}"
        )
    return options, loaded


def _realtime_options(options: ReplayOptions, given: RealtimeOptions | None, telemetry: Any) -> RealtimeOptions | None:
    """Settings of a realtime run; None for an accelerated one."""
    if options.mode != "realtime":
        if given is not None:
            raise UsageError("settings of a realtime run need mode realtime")
        return None
    realtime = given or RealtimeOptions()
    realtime.validate()
    if telemetry is not None and telemetry is not False:
        raise UsageError("telemetry is not built for mode realtime; an accelerated run gives the samples")
    _require_no_running_loop()
    return realtime


def _require_no_running_loop() -> None:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "a realtime replay runs an event loop of its own; from a running one call it in a thread: "
        "await asyncio.to_thread(replay, ...)"
    )


def trace_source(trace: TracePath | TraceSource, options: ReplayOptions) -> TraceSource:
    """The trace as these options read it; one that is open already stays as it is."""
    if not isinstance(trace, str | os.PathLike | Sequence):
        return trace
    source = open_trace(
        trace,
        trace_format=options.trace_format,
        trace_block_size=options.trace_block_size,
        timestamp_unit=options.timestamp_unit,
        closed_loop=options.replay_concurrency is not None,
        missing_timestamps=options.missing_timestamps,
        surplus_hash_ids=options.surplus_hash_ids,
        missing_hash_ids=options.missing_hash_ids,
        estimate_prefix=options.estimate_prefix,
        failed_rows=options.failed_rows,
        max_text_gib=options.max_text_gib,
        weka_nested_timestamp_basis=options.weka_nested_timestamp_basis,
        trace_shared_prefix_ratio=options.trace_shared_prefix_ratio,
        trace_num_prefix_groups=options.trace_num_prefix_groups,
    )
    if not options.transforms:
        return source
    from mocker_replay.trace.transforms import transformed

    return transformed(source, options.transforms)


def _text_of(failure: Exception) -> str:
    """The core's own errors speak for themselves; a user's model is named by its exception."""
    return str(failure) if isinstance(failure, EngineError | CommandError | InvariantError) else repr(failure)
