"""Settings of a run that are not the engine's: workload, workers, goals, limits.

Holds and validates values; the names are the reference's arguments.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, get_args

import msgspec
from msgspec import Struct, structs

from mocker_replay.config.origin import nearest, show
from mocker_replay.config.prefix_estimate import ESTIMATE_RULE, read_estimate
from mocker_replay.config.prefix_groups import sharing_fault
from mocker_replay.errors import Fault, UsageError

# Each known trace format, and whether this version reads it.
TRACE_FORMATS = {
    "auto": True,  # the one that the first rows show
    "mooncake": True,
    "qwen": True,
    "azure": True,
    "burstgpt": True,
    "vllm_bench": True,
    "sglang_bench": True,
    "mooncake-delta": True,
    "mooncake_delta": True,
    "agentic_mooncake": True,
    "agentic-mooncake": True,
    "weka": True,
    "applied_compute_agentic": True,
    "dynamo": True,
}
DELTA_FORMATS = ("mooncake-delta", "mooncake_delta")
# Formats whose traces are graphs of requests, and those that may be.
GRAPH_FORMATS = ("agentic_mooncake", "agentic-mooncake", "weka")
MAY_BE_GRAPH = (*GRAPH_FORMATS, "dynamo", "auto")
# Settings of single formats, and the formats that have a use for them.
_USES = {
    "agentic_lanes": MAY_BE_GRAPH,
    "weka_nested_timestamp_basis": ("weka", "auto"),
    "trace_shared_prefix_ratio": ("applied_compute_agentic", "auto"),
    "trace_num_prefix_groups": ("applied_compute_agentic", "auto"),
}
NestedTimestampBasis = Literal["auto", "absolute", "relative"]
TimestampUnit = Literal["s", "ms", "us"]
MissingTimestamps = Literal["refuse", "zero", "previous"]
SurplusHashIds = Literal["refuse", "ignore"]
MissingHashIds = Literal["refuse", "private"]
FailedRows = Literal["drop", "keep", "refuse"]
ROUTER_MODES = ("round_robin", "kv_router")
MODES = ("accelerated", "realtime")


# Field, its known values, those that are built.
_CHOICES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("mode", MODES, MODES),
    ("router_mode", ROUTER_MODES, ROUTER_MODES),
    ("trace_format", tuple(TRACE_FORMATS), tuple(name for name, built in TRACE_FORMATS.items() if built)),
    ("timestamp_unit", get_args(TimestampUnit), get_args(TimestampUnit)),
    ("missing_timestamps", get_args(MissingTimestamps), get_args(MissingTimestamps)),
    ("surplus_hash_ids", get_args(SurplusHashIds), get_args(SurplusHashIds)),
    ("missing_hash_ids", get_args(MissingHashIds), get_args(MissingHashIds)),
)
# Younger than the first logs, which must not change: they stand in no mapping unless somebody gave them.
_LEFT_OUT_IF_NONE = frozenset(
    ("execution_model", "agentic_lanes", "estimate_prefix", "failed_rows", "max_text_gib",
     "weka_nested_timestamp_basis", "trace_shared_prefix_ratio", "trace_num_prefix_groups",
     "num_prefill_workers", "num_decode_workers")
)  # fmt: skip

EXECUTION_MODEL_IS = ": the name of the one model that this engine stands for, whatever models were recorded"
NEEDS_CLOSED_LOOP = ": its sessions have no timestamps, so replay_concurrency says how many run at a time"
NO_CLOSED_LOOP = ": a graph says itself what starts when; agentic_lanes bounds the plays at a time"


class ReplayOptions(Struct, frozen=True):
    """Settings of a run; `validate` finds what is wrong with them."""

    mode: str = "accelerated"
    num_workers: int = 1
    num_prefill_workers: int | None = None  # with num_decode_workers: two pools in place of num_workers
    num_decode_workers: int | None = None
    router_mode: str = "round_robin"
    kv_event_lag_ms: float | None = None
    replay_concurrency: int | None = None  # sessions at a time; None is the open loop
    arrival_speedup_ratio: float = 1.0
    trace_format: str = "mooncake"
    trace_block_size: int | None = None  # tokens a hash id stands for; None: as the format has it
    timestamp_unit: TimestampUnit = "ms"
    missing_timestamps: MissingTimestamps = "refuse"  # a first turn without one
    surplus_hash_ids: SurplusHashIds = "ignore"  # more than one hash id beyond the prompt's blocks
    missing_hash_ids: MissingHashIds = "refuse"  # prompt blocks without a hash id
    execution_model: str | None = None  # of a graph: the model that stands in for the recorded ones
    agentic_lanes: int | None = None  # of a graph: plays at a time; None: each at its own time
    estimate_prefix: str | None = None  # none or RATIO:GROUPS, for a trace without hash ids
    failed_rows: FailedRows | None = None  # calls that failed, as the trace tells; None: drop
    max_text_gib: int | None = None  # most text of a compressed trace; None: 16, and 250 times its size
    weka_nested_timestamp_basis: NestedTimestampBasis | None = None  # clock of sub-agents; None: auto
    trace_shared_prefix_ratio: float | None = None  # of applied_compute_agentic: part of a first prompt that is shared
    trace_num_prefix_groups: int | None = None  # within each of so many groups of sessions
    max_sim_time_ms: float | None = None
    sla_ttft_ms: float | None = None
    sla_itl_ms: float | None = None
    sla_e2e_ms: float | None = None
    telemetry_sample_interval_ms: float = 1000.0
    transforms: tuple[str, ...] = ()  # of the rows, in their order; see docs/transforms.md
    policy: str = "fcfs"  # built in, MODULE:CLASS or an entry point; see mocker_replay.policies
    policy_options: Mapping[str, object] = msgspec.field(default_factory=dict)  # arguments of its class

    @property
    def is_disaggregated(self) -> bool:
        """Prefill and decode have workers of their own."""
        return self.num_prefill_workers is not None or self.num_decode_workers is not None

    def __post_init__(self) -> None:
        if isinstance(self.transforms, list):  # as a file has them
            structs.force_setattr(self, "transforms", tuple(self.transforms))

    def validate(self, name_of: Callable[[str], str] = str) -> None:
        """Refuse what cannot be, or is not built.

        Args:
            name_of: how a field is called in the message; the command line passes the flag.

        Raises:
            UsageError: all faults.
        """
        faults = []
        faulty: set[str] = set()
        for field, rule in self._faults(faulty):
            faulty.add(field)
            value = getattr(self, field)
            faults.append(Fault(name_of(field), 0, "", show(value), rule))
        if faults:
            raise UsageError.of(faults)

    def to_mapping(self) -> dict[str, object]:
        """Every option by name, in the order of the fields; those that few traces need only where they are given."""
        mapping = {
            name: value
            for name, value in structs.asdict(self).items()
            if value is not None or name not in _LEFT_OUT_IF_NONE
        }
        if not self.transforms:
            del mapping["transforms"]
        return mapping

    def _faults(self, faulty: set[str]) -> Iterator[tuple[str, str]]:
        yield from self._choices()
        yield from self._counts()
        yield from self._pools()
        yield from self._numbers()
        yield from self._policy()
        if not isinstance(self.transforms, tuple) or not all(isinstance(text, str) for text in self.transforms):
            yield "transforms", "must be a list of texts"
        yield from self._formats(faulty)
        yield from self._graphs()
        if self.trace_format in DELTA_FORMATS:
            if self.mode == "realtime":
                yield "mode", f"realtime cannot be used with trace_format {self.trace_format}"
            if self.router_mode == "kv_router":
                yield "router_mode", f"kv_router is not built for trace_format {self.trace_format}"
        if "kv_event_lag_ms" not in faulty and self.kv_event_lag_ms is not None and self.router_mode == "round_robin":
            yield "kv_event_lag_ms", "is only of use with router_mode kv_router"
        if self.sla_e2e_ms is not None and (self.sla_ttft_ms is not None or self.sla_itl_ms is not None):
            yield "sla_e2e_ms", "cannot stand together with sla_ttft_ms or sla_itl_ms"

    def _choices(self) -> Iterator[tuple[str, str]]:
        choices = get_args(FailedRows)
        if self.failed_rows is not None and self.failed_rows not in choices:
            yield "failed_rows", f"must be one of {', '.join(choices)}"
        if self.estimate_prefix is not None and read_estimate(self.estimate_prefix) is None:
            yield "estimate_prefix", ESTIMATE_RULE
        for field, known, built in _CHOICES:
            value = getattr(self, field)
            if value not in known:
                near = nearest(value, known) if isinstance(value, str) else None
                yield field, f"must be one of {', '.join(known)}" + (f"; did you mean {near}?" if near else "")
            elif value not in built:
                yield field, f"not built yet; this version knows {', '.join(built)}"

    def _formats(self, faulty: set[str]) -> Iterator[tuple[str, str]]:
        sharing = sharing_fault(self.trace_shared_prefix_ratio, self.trace_num_prefix_groups)
        if sharing is not None:
            yield sharing
        basis = self.weka_nested_timestamp_basis
        if basis is not None and basis not in get_args(NestedTimestampBasis):
            yield "weka_nested_timestamp_basis", f"must be one of {', '.join(get_args(NestedTimestampBasis))}"
        for field, formats in _USES.items():
            if getattr(self, field) is not None and field not in faulty and self.trace_format not in formats:
                yield field, f"is only of use with trace_format {', '.join(formats)}"
        if self.trace_format == "applied_compute_agentic" and self.replay_concurrency is None:
            yield "replay_concurrency", f"is required with trace_format {self.trace_format}{NEEDS_CLOSED_LOOP}"

    def _graphs(self) -> Iterator[tuple[str, str]]:
        model = self.execution_model
        if model is None:
            if self.trace_format in GRAPH_FORMATS:
                yield "execution_model", f"is required with trace_format {self.trace_format}{EXECUTION_MODEL_IS}"
        elif not isinstance(model, str) or not model.strip():
            yield "execution_model", "must be a text that is not blank"
        if self.replay_concurrency is not None and self.trace_format in GRAPH_FORMATS:
            yield "replay_concurrency", f"cannot be used with trace_format {self.trace_format}{NO_CLOSED_LOOP}"

    def _policy(self) -> Iterator[tuple[str, str]]:
        if not isinstance(self.policy, str) or not self.policy:
            yield "policy", "must be the name of a policy"
        options = self.policy_options
        if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
            yield "policy_options", "must be a mapping of names to values"
        elif not all(value is None or isinstance(value, str | int | float | bool) for value in options.values()):
            yield "policy_options", "every value must be a text, a number, true, false or null"

    def _counts(self) -> Iterator[tuple[str, str]]:
        counts = ("num_workers", "num_prefill_workers", "num_decode_workers", "replay_concurrency", "trace_block_size")
        for field in (*counts, "agentic_lanes", "max_text_gib"):
            value = getattr(self, field)
            if value is None and field != "num_workers":
                continue
            if not isinstance(value, numbers.Integral) or isinstance(value, bool):
                yield field, "must be a whole number"
            elif not 1 <= int(value) < 2**31:
                yield field, "must be from 1 to 2^31-1"

    def _pools(self) -> Iterator[tuple[str, str]]:
        if (self.num_prefill_workers is None) != (self.num_decode_workers is None):
            there, missing = ("num_decode_workers", "num_prefill_workers")
            if self.num_decode_workers is None:
                there, missing = missing, there
            yield missing, f"must stand together with {there}"
        if self.is_disaggregated and self.num_workers != 1:
            yield "num_workers", "cannot stand together with num_prefill_workers and num_decode_workers"

    def _numbers(self) -> Iterator[tuple[str, str]]:
        positive = ("arrival_speedup_ratio", "telemetry_sample_interval_ms", "sla_ttft_ms", "sla_itl_ms", "sla_e2e_ms")
        for field in (*positive, "max_sim_time_ms", "kv_event_lag_ms"):
            value = getattr(self, field)
            if value is None and field not in ("arrival_speedup_ratio", "telemetry_sample_interval_ms"):
                continue
            if not isinstance(value, numbers.Real) or isinstance(value, bool):
                yield field, "must be a number"
                continue
            value = float(value)
            if field in positive and not (math.isfinite(value) and value > 0):
                yield field, "must be finite and positive"
            elif not (math.isfinite(value) and value >= 0):
                yield field, "must be finite and non-negative"
