"""The flags of `run`: names, help texts, headings. Flag names follow the field they set."""

from __future__ import annotations

from typing import Annotated

import typer

_ENGINE = "Engine (each wins over --engine-config)"
_LOAD = "Workload"
_REALTIME = "Real time (with --mode realtime)"
_TRACE = "Reading the trace"
_OUT = "Outputs"
_GOALS = "Goals"

_TRACE_HELP = "Trace, one request a line, plain, gzip or zstd; - is standard input."
Trace = Annotated[str, typer.Argument(metavar="TRACE", help=_TRACE_HELP)]
Traces = Annotated[
    list[str], typer.Argument(metavar="TRACE...", help=f"{_TRACE_HELP} Several files are one trace, in this order.")
]
EngineConfigFlag = Annotated[
    str | None,
    typer.Option(
        "--engine-config",
        metavar="FILE|JSON",
        rich_help_panel=_ENGINE,
        help='Engine settings: {"engine": {...}, "dp_size": ...} as JSON text, or a JSON or TOML file.',
    ),
]
NumGpuBlocks = Annotated[
    int | None, typer.Option(rich_help_panel=_ENGINE, help="KV blocks of a rank. [default: 16384]")
]
BlockSize = Annotated[int | None, typer.Option(rich_help_panel=_ENGINE, help="Tokens of a KV block. [default: 64]")]
MaxModelLen = Annotated[
    int | None, typer.Option(rich_help_panel=_ENGINE, help="Tokens of a request, prompt and output.")
]
MaxNumSeqs = Annotated[
    int | None, typer.Option(rich_help_panel=_ENGINE, help="Running requests of a rank. [default: 256]")
]
MaxNumBatchedTokens = Annotated[
    int | None, typer.Option(rich_help_panel=_ENGINE, help="Token budget of a pass. [default: 8192]")
]
PrefillScheduleInterval = Annotated[
    int | None, typer.Option(rich_help_panel=_ENGINE, help="Prefill cadence [passes]. [default: 1]")
]
EnablePrefixCaching = Annotated[
    bool | None,
    typer.Option(
        "--enable-prefix-caching/--no-enable-prefix-caching", rich_help_panel=_ENGINE, help="Reuse equal prefixes."
    ),
]
EnableChunkedPrefill = Annotated[
    bool | None,
    typer.Option(
        "--enable-chunked-prefill/--no-enable-chunked-prefill",
        rich_help_panel=_ENGINE,
        help="Spread a prompt over passes.",
    ),
]
SpeedupRatio = Annotated[float | None, typer.Option(rich_help_panel=_ENGINE, help="Divides all pass times.")]
DecodeSpeedupRatio = Annotated[
    float | None, typer.Option(rich_help_panel=_ENGINE, help="Divides decode times once more.")
]
DpSize = Annotated[
    int | None, typer.Option(rich_help_panel=_ENGINE, help="Attention-DP ranks of a worker. [default: 1]")
]
TensorParallelSize = Annotated[
    int | None, typer.Option(rich_help_panel=_ENGINE, help="GPUs of a rank; scales GPU hours only. [default: 1]")
]
PreemptionMode = Annotated[
    str | None, typer.Option(metavar="lifo|fifo", rich_help_panel=_ENGINE, help="Whom memory pressure hits first.")
]
AicNextn = Annotated[int | None, typer.Option(rich_help_panel=_ENGINE, help="Draft tokens of a pass (MTP), 1 to 5.")]
AicNextnAcceptRates = Annotated[
    str | None,
    typer.Option(metavar="P,P,...", rich_help_panel=_ENGINE, help="Chance of each draft, given those before it."),
]
Seed = Annotated[int | None, typer.Option(rich_help_panel=_ENGINE, help="Seed of draft acceptance (aic_mtp_seed).")]
TimingModelFlag = Annotated[
    str | None,
    typer.Option(
        "--timing-model",
        metavar="MODEL",
        rich_help_panel=_ENGINE,
        help="polynomial, JSON text, a profile FILE.npz, or MODULE:NAME of an object with prefill and decode.",
    ),
]

Mode = Annotated[
    str, typer.Option(metavar="accelerated|realtime", rich_help_panel=_LOAD, help="Jump through time, or live it.")
]
Clock = Annotated[
    str | None,
    typer.Option(
        metavar="measured|nominal",
        rich_help_panel=_REALTIME,
        help="Readings of the clock, or every event at its planned instant. [default: measured]",
    ),
]
MaxLatenessMs = Annotated[
    float | None,
    typer.Option(rich_help_panel=_REALTIME, help="Exit 1 if an arrival or a pass end came later than this."),
]
OutputBuffering = Annotated[
    str | None,
    typer.Option(
        metavar="full|N",
        rich_help_panel=_REALTIME,
        help="Unread tokens of a request before it is cancelled. [default: full]",
    ),
]
ReaderDelayMs = Annotated[
    float | None, typer.Option(rich_help_panel=_REALTIME, help="What each client waits after a token. [default: 0]")
]
NumPrefillWorkers = Annotated[
    int | None, typer.Option(rich_help_panel=_LOAD, help="Engines that only prefill; with --num-decode-workers.")
]
NumDecodeWorkers = Annotated[
    int | None, typer.Option(rich_help_panel=_LOAD, help="Engines that only decode; with --num-prefill-workers.")
]
PrefillEngineConfig = Annotated[
    str | None,
    typer.Option(
        "--prefill-engine-config",
        metavar="FILE|JSON",
        rich_help_panel=_ENGINE,
        help="Settings of prefill workers, in place of --engine-config; engine.worker_type must be prefill.",
    ),
]
DecodeEngineConfig = Annotated[
    str | None,
    typer.Option(
        "--decode-engine-config",
        metavar="FILE|JSON",
        rich_help_panel=_ENGINE,
        help="Settings of decode workers, in place of --engine-config; engine.worker_type must be decode.",
    ),
]
NumWorkers = Annotated[int, typer.Option(rich_help_panel=_LOAD, help="Identical engines behind the router.")]
RouterMode = Annotated[
    str, typer.Option(metavar="round_robin|kv_router", rich_help_panel=_LOAD, help="Who places requests, and how.")
]
PolicyFlag = Annotated[
    str,
    typer.Option(
        "--policy",
        "--scheduling-policy",
        metavar="fcfs|sjf|lpm|priority|edf|MODULE:CLASS",
        rich_help_panel=_LOAD,
        help="Order of the waiting queue, victims, vetoes, budgets, placement: docs/policies.md.",
    ),
]
PolicyOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--policy-option",
        metavar="KEY=VALUE",
        rich_help_panel=_LOAD,
        help="Argument of the policy; may be given again.",
    ),
]
KvEventLagMs = Annotated[float | None, typer.Option(rich_help_panel=_LOAD, help="Delay of the kv_router's view.")]
ReplayConcurrency = Annotated[
    int | None, typer.Option(rich_help_panel=_LOAD, help="Closed loop: sessions at a time; timestamps are ignored.")
]
ArrivalSpeedupRatio = Annotated[
    float, typer.Option(rich_help_panel=_LOAD, help="Open loop: divides arrivals and delays.")
]
ExecutionModel = Annotated[
    str | None,
    typer.Option(rich_help_panel=_LOAD, help="Graphs: name of the model that stands in for the recorded ones."),
]
AgenticLanes = Annotated[
    int | None, typer.Option(rich_help_panel=_LOAD, help="Graphs: plays at a time; each lane runs its own in turn.")
]
MaxSimTimeMs = Annotated[float | None, typer.Option(rich_help_panel=_LOAD, help="Cut the run at this modelled time.")]

TraceFormat = Annotated[
    str, typer.Option(rich_help_panel=_TRACE, help="Format of the rows; auto is the one that the first rows show.")
]
TraceBlockSize = Annotated[
    int | None,
    typer.Option(rich_help_panel=_TRACE, help="Tokens a hash id stands for. [default: 512, qwen 16, without ids 64]"),
]
TimestampUnit = Annotated[str, typer.Option(metavar="s|ms|us", rich_help_panel=_TRACE, help="Unit of the timestamps.")]
MissingTimestamps = Annotated[
    str, typer.Option(metavar="refuse|zero|previous", rich_help_panel=_TRACE, help="First turns without a timestamp.")
]
SurplusHashIds = Annotated[
    str, typer.Option(metavar="refuse|ignore", rich_help_panel=_TRACE, help="More than one hash id beyond the prompt.")
]
MissingHashIds = Annotated[
    str, typer.Option(metavar="refuse|private", rich_help_panel=_TRACE, help="Prompt blocks without a hash id.")
]
ClosedLoop = Annotated[
    bool,
    typer.Option("--closed-loop", rich_help_panel=_TRACE, help="Read as for a run with --replay-concurrency."),
]
Transforms = Annotated[
    list[str] | None,
    typer.Option(
        "--transform",
        metavar="NAME[=VALUE]",
        rich_help_panel=_TRACE,
        help="Change the rows, in the order given: window=0:60s, limit-rows=N, sample=0.1,seed=7, scale-arrivals=2, "
        "scale-delays, scale-input, scale-output, cap-gap-ms, cap-delay-ms, shuffle-ties=SEED, renumber-hash-ids, "
        "renumber-request-ids: docs/transforms.md. May be given again.",
    ),
]
EstimatePrefix = Annotated[
    str | None,
    typer.Option(
        metavar="none|RATIO:GROUPS",
        rich_help_panel=_TRACE,
        help="For a trace without hash ids: the part of each prompt that its group has in common. [default: none]",
    ),
]
FailedRows = Annotated[
    str | None,
    typer.Option(
        metavar="drop|keep|refuse",
        rich_help_panel=_TRACE,
        help="Calls that failed, where the trace tells them. [default: drop]",
    ),
]
MaxTextGib = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=_TRACE,
        help="Most text of a compressed or piped trace [GiB]. [default: 16, at most 250 times its size]",
    ),
]
WekaNestedTimestampBasis = Annotated[
    str | None,
    typer.Option(
        metavar="auto|absolute|relative",
        rich_help_panel=_TRACE,
        help="For weka: the clock of the requests of sub-agents. [default: auto]",
    ),
]
TraceSharedPrefixRatio = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=_TRACE,
        help="For applied_compute_agentic: the part of a first prompt that its group has in common.",
    ),
]
TraceNumPrefixGroups = Annotated[
    int | None,
    typer.Option(rich_help_panel=_TRACE, help="For applied_compute_agentic: groups of sessions, taken in turn."),
]

SlaTtftMs = Annotated[float | None, typer.Option(rich_help_panel=_GOALS, help="Goodput: bound on time to first token.")]
SlaItlMs = Annotated[float | None, typer.Option(rich_help_panel=_GOALS, help="Goodput: bound on a request's mean gap.")]
SlaE2eMs = Annotated[float | None, typer.Option(rich_help_panel=_GOALS, help="Goodput: bound on the whole, alone.")]

Events = Annotated[
    str | None,
    typer.Option(metavar="FILE", rich_help_panel=_OUT, help="Event log (.gz and .zst compress, - is standard output)."),
]
EventLevel = Annotated[
    str, typer.Option(metavar="requests|passes|tokens|kv", rich_help_panel=_OUT, help="How much the log tells.")
]
Requests = Annotated[
    str | None, typer.Option(metavar="FILE", rich_help_panel=_OUT, help="One JSON record a request, in trace order.")
]
Summary = Annotated[str | None, typer.Option(metavar="FILE", rich_help_panel=_OUT, help="The summary as JSON.")]
Telemetry = Annotated[str | None, typer.Option(metavar="FILE", rich_help_panel=_OUT, help="Samples as JSON lines.")]
TelemetrySampleIntervalMs = Annotated[
    float, typer.Option(rich_help_panel=_OUT, help="Modelled time between two samples.")
]
Json = Annotated[bool, typer.Option("--json", rich_help_panel=_OUT, help="Summary as JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=_OUT, help="Nothing but data and errors.")]
