"""`mocker-replay run`: from flags to a replay, and from its result to the screen.

It decides what goes to which stream and which exit code is returned; the replay itself is `mocker_replay.replay`.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import typer

from mocker_replay.cli import flags
from mocker_replay.cli.console import summary_console
from mocker_replay.cli.policy import OPTION_FLAG, policy_options_of, require_policy
from mocker_replay.config import EngineConfig, RealtimeOptions, ReplayOptions, load_engine_config
from mocker_replay.config.options import MODES
from mocker_replay.config.origin import nearest
from mocker_replay.errors import ConfigError, Fault, UsageError

EVENT_LEVELS = ("requests", "passes", "tokens", "kv")
TRANSFORM_FLAG = "--transform"
OUTPUTS = ("events", "requests", "summary", "telemetry")
# Flags that set a key of the engine configuration, where the name of the key is another.
_KEY_OF_FLAG = {"seed": "aic_mtp_seed"}
_REALTIME_FLAGS = ("clock", "max_lateness_ms", "output_buffering", "reader_delay_ms")
_ENGINE_FLAGS = (
    "num_gpu_blocks", "block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "prefill_schedule_interval", "enable_prefix_caching", "enable_chunked_prefill", "speedup_ratio",
    "decode_speedup_ratio", "dp_size", "tensor_parallel_size", "preemption_mode", "aic_nextn",
    "aic_nextn_accept_rates", "seed", "timing_model",
)  # fmt: skip
# What else makes a run the run it is; not where its outputs go, nor who keeps the time.
_OPTION_FLAGS = (
    "num_workers", "router_mode", "kv_event_lag_ms", "replay_concurrency", "arrival_speedup_ratio", "execution_model",
    "agentic_lanes", "max_sim_time_ms", "trace_format", "trace_block_size", "timestamp_unit", "missing_timestamps",
    "surplus_hash_ids", "missing_hash_ids", "estimate_prefix", "failed_rows", "max_text_gib",
    "weka_nested_timestamp_basis", "trace_shared_prefix_ratio", "trace_num_prefix_groups", "transform",
    "sla_ttft_ms", "sla_itl_ms", "sla_e2e_ms", "policy", "policy_option",
)  # fmt: skip
# Two pools are of `run` alone: other verbs have no place for a second configuration.
_POOL_SIZES = ("num_prefill_workers", "num_decode_workers")
RUN_SETTINGS = ("engine_config", *_ENGINE_FLAGS, *_OPTION_FLAGS)


def run(
    ctx: typer.Context,
    trace: flags.Traces,
    engine_config: flags.EngineConfigFlag = None,
    prefill_engine_config: flags.PrefillEngineConfig = None,
    decode_engine_config: flags.DecodeEngineConfig = None,
    num_gpu_blocks: flags.NumGpuBlocks = None,
    block_size: flags.BlockSize = None,
    max_model_len: flags.MaxModelLen = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    max_num_batched_tokens: flags.MaxNumBatchedTokens = None,
    prefill_schedule_interval: flags.PrefillScheduleInterval = None,
    enable_prefix_caching: flags.EnablePrefixCaching = None,
    enable_chunked_prefill: flags.EnableChunkedPrefill = None,
    speedup_ratio: flags.SpeedupRatio = None,
    decode_speedup_ratio: flags.DecodeSpeedupRatio = None,
    dp_size: flags.DpSize = None,
    tensor_parallel_size: flags.TensorParallelSize = None,
    preemption_mode: flags.PreemptionMode = None,
    aic_nextn: flags.AicNextn = None,
    aic_nextn_accept_rates: flags.AicNextnAcceptRates = None,
    seed: flags.Seed = None,
    timing_model: flags.TimingModelFlag = None,
    mode: flags.Mode = "accelerated",
    clock: flags.Clock = None,
    max_lateness_ms: flags.MaxLatenessMs = None,
    output_buffering: flags.OutputBuffering = None,
    reader_delay_ms: flags.ReaderDelayMs = None,
    num_workers: flags.NumWorkers = 1,
    num_prefill_workers: flags.NumPrefillWorkers = None,
    num_decode_workers: flags.NumDecodeWorkers = None,
    router_mode: flags.RouterMode = "round_robin",
    policy: flags.PolicyFlag = "fcfs",
    policy_option: flags.PolicyOptions = None,
    kv_event_lag_ms: flags.KvEventLagMs = None,
    replay_concurrency: flags.ReplayConcurrency = None,
    arrival_speedup_ratio: flags.ArrivalSpeedupRatio = 1.0,
    execution_model: flags.ExecutionModel = None,
    agentic_lanes: flags.AgenticLanes = None,
    max_sim_time_ms: flags.MaxSimTimeMs = None,
    trace_format: flags.TraceFormat = "auto",
    trace_block_size: flags.TraceBlockSize = None,
    timestamp_unit: flags.TimestampUnit = "ms",
    missing_timestamps: flags.MissingTimestamps = "refuse",
    surplus_hash_ids: flags.SurplusHashIds = "refuse",
    missing_hash_ids: flags.MissingHashIds = "refuse",
    estimate_prefix: flags.EstimatePrefix = None,
    failed_rows: flags.FailedRows = None,
    max_text_gib: flags.MaxTextGib = None,
    weka_nested_timestamp_basis: flags.WekaNestedTimestampBasis = None,
    trace_shared_prefix_ratio: flags.TraceSharedPrefixRatio = None,
    trace_num_prefix_groups: flags.TraceNumPrefixGroups = None,
    transform: flags.Transforms = None,
    sla_ttft_ms: flags.SlaTtftMs = None,
    sla_itl_ms: flags.SlaItlMs = None,
    sla_e2e_ms: flags.SlaE2eMs = None,
    events: flags.Events = None,
    event_level: flags.EventLevel = "passes",
    requests: flags.Requests = None,
    summary: flags.Summary = None,
    telemetry: flags.Telemetry = None,
    telemetry_sample_interval_ms: flags.TelemetrySampleIntervalMs = 1000.0,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> int:
    """Replay TRACE, as fast as it goes or at its own pace, and print a summary.

    Data goes to standard output, words for people to standard error; the printed summary moves to standard error
    when an output is "-". Exit codes: 0 done, 1 later than --max-lateness-ms, 2 bad usage, configuration or trace,
    3 engine stuck or invariant broken, 4 some requests failed or were rejected, 130 interrupted (partial results
    are kept).
    """
    return _replay_and_report(trace, ctx.params)


def _replay_and_report(traces: list[str], given: Mapping[str, Any]) -> int:
    config, options, realtime = run_settings(traces, given)
    pools = pool_settings(given, options)
    trace = traces[0] if len(traces) == 1 else traces
    outputs = _outputs(given)
    from mocker_replay.cli.progress import shown_progress
    from mocker_replay.replay import replay

    if realtime is not None:
        from mocker_replay.cli.live_view import shown_view

        with shown_view(quiet=given["quiet"]) as watch:
            result = replay(
                trace, config, options, event_level=given["event_level"], realtime=realtime, watch=watch, **outputs,
                **pools,
            )  # fmt: skip
    else:
        with shown_progress(quiet=given["quiet"]) as progress:
            result = replay(
                trace, config, options, event_level=given["event_level"], progress=progress, **outputs, **pools
            )
    if not given["quiet"]:
        from mocker_replay.report.render import render_summary

        render_summary(result.summary, result.facts, summary_console(on_stderr="-" in outputs.values()))
    if realtime is not None and result.summary["realtime"]["late"]:
        print(_lateness_text(result.summary["realtime"]), file=sys.stderr, flush=True)
    return int(result.exit_code)


def _lateness_text(told: Mapping[str, Any]) -> str:
    """Why a run that was otherwise fine is no valid measurement."""
    kinds = {"arrivals": told["arrival_lateness"], "pass ends": told["pass_end_lateness"]}
    worst = ", ".join(f"{name} at most {late['max_ms']:,.3f} ms" for name, late in kinds.items() if late is not None)
    return f"the run was late: {worst}; --max-lateness-ms allows {told['max_lateness_limit_ms']:g} ms"


def _outputs(given: Mapping[str, Any]) -> dict[str, Any]:
    """Where each output goes; `--json` is the summary on standard output."""
    places: dict[str, str | None] = {name: given[name] for name in OUTPUTS}
    if given["json"]:
        places["summary"] = "-"
    return places


def run_settings(
    trace: str | list[str], given: Mapping[str, Any]
) -> tuple[EngineConfig, ReplayOptions, RealtimeOptions | None]:
    """Engine and run settings; all faults of the command line are reported together."""
    faults = list(_output_faults([trace] if isinstance(trace, str) else trace, given))
    config = EngineConfig()
    overrides = engine_overrides(given, faults)
    try:
        if _has_pools(given):
            _refuse_engine_config(given)
            _pools_of(given, overrides)
        else:
            config = _engine_settings(given["engine_config"], overrides)
    except ConfigError as exc:
        faults += exc.faults
    except UsageError as exc:
        faults += exc.faults
    options = _replay_options(given, faults)
    realtime = None
    try:
        realtime = _realtime_settings(given)
    except UsageError as exc:
        faults += exc.faults
    if faults:
        raise UsageError.of(faults)
    return config, options, realtime


def pool_settings(given: Mapping[str, Any], options: ReplayOptions) -> dict[str, Any]:
    """Configurations of two pools, as arguments of `replay`; none where all workers are the same.

    Raises:
        UsageError, ConfigError: all that is wrong with them.
    """
    if not _has_pools(given):
        return {}
    from mocker_replay.replay.pools import Pools

    configs = _pools_of(given, engine_overrides(given, []))
    Pools.of(options, EngineConfig(), configs.get("prefill_config"), configs.get("decode_config"))
    return configs


def _has_pools(given: Mapping[str, Any]) -> bool:
    return any(given.get(flag) is not None for flag in ("prefill_engine_config", "decode_engine_config", *_POOL_SIZES))


def _refuse_engine_config(given: Mapping[str, Any]) -> None:
    if given["engine_config"] is not None:
        rule = "prefill and decode workers have --prefill-engine-config and --decode-engine-config in its place"
        raise UsageError.of([Fault("--engine-config", 0, "", given["engine_config"], rule)])


def _pools_of(given: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, EngineConfig]:
    """What the flags say of the pools; those of single keys hold for both."""
    configs: dict[str, EngineConfig] = {}
    faults: list[Fault] = []
    for role in ("prefill", "decode"):
        source = given.get(f"{role}_engine_config")
        if source is not None:
            try:
                configs[f"{role}_config"] = load_engine_config(source, overrides, override_names=override_names())
            except ConfigError as exc:
                faults += exc.faults
    if faults:
        raise ConfigError.of(faults)
    return configs


def engine_overrides(given: Mapping[str, Any], faults: list[Fault]) -> dict[str, Any]:
    """Keys of the engine configuration that flags set; a timing model that cannot be had is a fault and left out."""
    overrides = {_KEY_OF_FLAG.get(flag, flag): given[flag] for flag in _ENGINE_FLAGS if given[flag] is not None}
    try:
        _resolve_timing_model(overrides)
    except ConfigError as exc:
        faults += exc.faults
    return overrides


def override_names() -> dict[str, str]:
    """How each key that a flag sets is called in an error message."""
    return {_KEY_OF_FLAG.get(flag, flag): flag_of(flag) for flag in _ENGINE_FLAGS}


def replay_options_of(given: Mapping[str, Any], faults: list[Fault]) -> ReplayOptions:
    """Settings of the run as the flags say, not yet looked at."""
    names = [name for name in ReplayOptions.__struct_fields__ if name not in ("policy_options", "transforms")]
    values = {name: given[name] for name in names if name not in _POOL_SIZES or name in given} | {"policy_options": {}}
    try:
        values["policy_options"] = policy_options_of(given["policy_option"] or ())
    except UsageError as exc:
        faults += exc.faults
    values["transforms"] = transforms_of(given["transform"], faults)
    return ReplayOptions(**values)


def transforms_of(texts: Sequence[str] | None, faults: list[Fault]) -> tuple[str, ...]:
    """The transforms of the rows, in the order of the command line; faulty ones are told and left out."""
    if not texts:
        return ()
    from mocker_replay.trace.transforms import read_transforms

    try:
        read_transforms(texts, TRANSFORM_FLAG)
    except UsageError as exc:
        faults += exc.faults
        return ()
    return tuple(texts)


def _replay_options(given: Mapping[str, Any], faults: list[Fault]) -> ReplayOptions:
    """Settings of the run; what is wrong with them is added to `faults`."""
    known = len(faults)
    options = replay_options_of(given, faults)
    try:
        options.validate(flag_of)
        if len(faults) == known:
            require_policy(options)
    except UsageError as exc:
        faults += exc.faults
    return options


def _realtime_settings(given: Mapping[str, Any]) -> RealtimeOptions | None:
    """Settings of a realtime run, None for an accelerated one, which takes none of them."""
    values = {name: given[name] for name in _REALTIME_FLAGS if given[name] is not None}
    if given["mode"] != "realtime":
        faults = [Fault(flag_of(name), 0, "", "", "is only of use with --mode realtime") for name in values]
        if faults and given["mode"] in MODES:
            raise UsageError.of(faults)
        return None
    if str(values.get("output_buffering", "")).isdecimal():
        values["output_buffering"] = int(values["output_buffering"])
    options = RealtimeOptions(**values)
    faults = []
    try:
        options.validate(flag_of)
    except UsageError as exc:
        faults += exc.faults
    if given["telemetry"] is not None:
        rule = "is not built for --mode realtime; an accelerated run gives the samples"
        faults.append(Fault("--telemetry", 0, "", given["telemetry"], rule))
    if faults:
        raise UsageError.of(faults)
    return options


def _resolve_timing_model(overrides: dict[str, Any]) -> None:
    """Put the model in the place of its text; where that fails the other settings can still be looked at."""
    text = overrides.pop("timing_model", None)
    if text is not None:
        from mocker_replay.cli.timing_model import timing_model_of

        overrides["timing_model"] = timing_model_of(text)


def _engine_settings(source: str | None, overrides: Mapping[str, Any]) -> EngineConfig:
    config = load_engine_config(source, overrides, override_names=override_names())
    config.require_supported()
    return config


def _output_faults(traces: list[str], given: Mapping[str, Any]) -> Iterator[Fault]:
    """An unknown level, two outputs in one place, an output over the trace."""
    level = given["event_level"]
    if level not in EVENT_LEVELS:
        near = nearest(level, EVENT_LEVELS)
        rule = f"must be one of {', '.join(EVENT_LEVELS)}" + (f"; did you mean {near}?" if near else "")
        yield Fault("--event-level", 0, "", level, rule)
    if given["json"] and given["summary"] is not None:
        yield Fault("--json", 0, "", "", "--summary already says where the summary goes; leave one of them out")
    taken = {place_of(trace): "the trace" for trace in traces if trace != "-"}
    for name, place in _outputs(given).items():
        if place is None or _is_device(place):
            continue
        flag = "--json" if name == "summary" and given["json"] else flag_of(name)
        earlier = taken.setdefault(place_of(place), flag)
        if earlier != flag:
            where = "standard output" if place == "-" else place
            yield Fault(flag, 0, "", "", f"{where} is already taken by {earlier}")


def _is_device(path: str) -> bool:
    """A device or a named pipe takes several outputs without one overwriting another."""
    return path != "-" and os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def place_of(path: str) -> str:
    """The file behind a path, so that two names of one file are known as one place."""
    return path if path == "-" else os.path.realpath(path)


def with_run_settings(own: Callable[..., Any]) -> inspect.Signature:
    """Signature of a verb that makes runs: the parameters of `own`, then the settings of a run as `run` has them."""
    parameters = inspect.signature(own, eval_str=True).parameters
    settings = inspect.signature(run, eval_str=True).parameters
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    more = [settings[name] for name in RUN_SETTINGS if name not in parameters]
    required = [parameter for parameter in parameters.values() if parameter.default is inspect.Parameter.empty]
    return inspect.Signature([context, *required, *(p for p in parameters.values() if p not in required), *more])


def flag_of(field: str) -> str:
    """The flag that sets a field."""
    special = {"policy_options": OPTION_FLAG, "transforms": TRANSFORM_FLAG}
    return special.get(field, "--" + field.replace("_", "-"))
