"""The engine's settings after validation, and which of them this version can run.

Built by `load_engine_config`. Holds values; computes nothing of a simulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from mocker_replay.config import schema
from mocker_replay.config.backends import BACKENDS
from mocker_replay.config.decimals import plain_decimal
from mocker_replay.config.origin import Origin
from mocker_replay.config.rules import accept_rates, apply_rules
from mocker_replay.config.schema import DEFAULT_BLOCK_SIZE, UNBUILT
from mocker_replay.config.shape import Shaped, shape
from mocker_replay.config.timing import TimingModel
from mocker_replay.errors import ConfigError, Fault

_ONLY_WHEN_SET = ("kv_cache_bytes_per_token", "native_host_offload")
_SHARED_GBPS = 80.0  # of a shared tier for which nothing is said, as on the reference
# Beyond these nothing real lies, and the process would run out of numbers or of memory.
BLOCK_SIZE_MAX = 2**31 - 1  # tokens
DP_SIZE_MAX = 4096  # ranks a worker


class SglangSettings(Struct, frozen=True):
    """Keys of `engine.sglang`; without effect for other backends."""

    schedule_policy: str = "fifo"
    max_prefill_tokens: int = 16384
    chunked_prefill_size: int = 8192
    clip_max_new_tokens: int = 4096
    schedule_conservativeness: float = 1.0


class TrtllmSettings(Struct, frozen=True):
    """Keys of `engine.trtllm`; without effect for other backends."""

    capacity_scheduler_policy: str = "guaranteed_no_evict"


class HostOffloadSettings(Struct, frozen=True):
    """Keys of `engine.native_host_offload`: a tier of KV blocks in host memory. Bandwidths of 0 are instantaneous."""

    num_host_blocks: int
    d2h_bandwidth_gbps: float = 32.0  # device to host, 10^9 bytes/s
    h2d_bandwidth_gbps: float = 32.0
    latency_to_first_byte_ms: float = 0.0
    scope: str = "dp_rank_local"
    shared_d2h_bandwidth_gbps: float | None = None  # of all ranks together, with scope cluster_shared; None: 80
    shared_h2d_bandwidth_gbps: float | None = None
    kv_layout_id: str | None = None

    @property
    def gbps_of_all(self) -> tuple[float, float]:
        """Bandwidth of all ranks that share a tier together, to the host and back."""
        of_all = (self.shared_d2h_bandwidth_gbps, self.shared_h2d_bandwidth_gbps)
        to_host, back = (_SHARED_GBPS if gbps is None else gbps for gbps in of_all)
        return to_host, back

    def to_mapping(self) -> dict[str, object]:
        """What was set; as the reference's normaliser prints it."""
        always = ("num_host_blocks", "d2h_bandwidth_gbps", "h2d_bandwidth_gbps")
        defaults = HostOffloadSettings(self.num_host_blocks)
        values = {key: getattr(self, key) for key in schema.HOST_OFFLOAD}
        return {key: value for key, value in values.items() if key in always or value != getattr(defaults, key)}


class DynamoSettings(Struct, frozen=True):
    """Keys of `dynamo`: options of the serving frontend, kept so that its files load; without effect on a replay."""

    enable_local_indexer: bool = False
    bootstrap_port: int | None = None
    handoff_session_timeout_ms: int = 300_000
    reasoning: Mapping[str, object] | None = None
    response_replay_trace_path: str | None = None
    zmq_kv_events_port: int | None = None
    zmq_replay_port: int | None = None
    router_queue_policy: str | None = None


class EngineConfig(Struct, frozen=True):
    """Settings of one engine, flat. None of a limit means no limit."""

    backend: str = "vllm"
    num_gpu_blocks: int = 16384
    block_size: int = 64  # tokens
    max_model_len: int | None = None  # tokens
    max_num_seqs: int | None = 256
    max_num_batched_tokens: int | None = 8192  # per pass
    prefill_schedule_interval: int = 1  # passes
    prefill_decode_interval: int = 0  # passes
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    speedup_ratio: float = 1.0
    decode_speedup_ratio: float = 1.0
    aic_nextn: int | None = None  # draft tokens per pass
    aic_nextn_accept_rates: tuple[float, ...] = ()  # aic_nextn entries; entry i given that all before were accepted
    aic_mtp_seed: int = 42
    worker_type: str = "aggregated"
    preemption_mode: str = "lifo"
    emit_kv_events: bool = False
    emit_kv_token_ids: bool = False
    kv_transfer_bytes_per_token: int | None = None
    kv_cache_bytes_per_token: int | None = None
    native_host_offload: HostOffloadSettings | None = None
    kv_transfer_bandwidth: float | None = None
    kv_transfer_timing_mode: str = "full_prompt"
    timing_model: TimingModel = field(default_factory=TimingModel)
    sglang: SglangSettings = field(default_factory=SglangSettings)
    trtllm: TrtllmSettings = field(default_factory=TrtllmSettings)
    dp_size: int = 1
    tensor_parallel_size: int = 1
    startup_time: float | None = None  # seconds
    num_gpu_blocks_is_explicit: bool = False
    gpu_memory_utilization: float | None = None
    mem_fraction_static: float | None = None
    free_gpu_memory_fraction: float | None = None
    cuda_graph_reserved_bytes: int | None = None
    dynamo: DynamoSettings = field(default_factory=DynamoSettings)
    unbuilt: Mapping[str, object] = field(default_factory=dict)  # keys of features this version lacks, as given

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], source: str = "engine config") -> EngineConfig:
        """The inverse of `to_mapping`: numbers are kept as they are. For what a user wrote use `load_engine_config`.

        Raises:
            ConfigError: all that is wrong with `mapping`.
        """
        return build(shape(mapping, Origin(source)))

    def to_mapping(self) -> dict[str, object]:
        """Every setting, nested and named as the reference's normaliser prints it."""
        engine: dict[str, object] = {}
        for key in schema.ENGINE:
            if key in UNBUILT:
                if key in self.unbuilt:
                    engine[key] = self.unbuilt[key]
            elif key not in _ONLY_WHEN_SET or getattr(self, key) is not None:
                engine[key] = self._plain(key)
        top: dict[str, object] = {"engine": engine}
        top.update((key, getattr(self, key)) for key in schema.SIBLINGS)
        top["dynamo"] = _fields_of(self.dynamo, schema.DYNAMO)
        return top

    def _plain(self, key: str) -> object:
        if key == "timing_model":
            return self.timing_model.to_mapping()
        if key == "native_host_offload":
            return None if self.native_host_offload is None else self.native_host_offload.to_mapping()
        if key == "sglang":
            return _fields_of(self.sglang, schema.SGLANG)
        if key == "trtllm":
            return _fields_of(self.trtllm, schema.TRTLLM)
        if key == "aic_nextn_accept_rates":
            return ",".join(plain_decimal(rate) for rate in self.aic_nextn_accept_rates) or None
        value: object = getattr(self, key)
        return value

    def require_supported(self, role: str = "aggregated") -> None:
        """Refuse what is no valid configuration, or valid but not built.

        Args:
            role: what the workers are to be; the configuration must say so.

        Raises:
            ConfigError: names every such key.
        """
        document = self.to_mapping()
        document["engine"]["timing_model"] = self.timing_model  # type: ignore[index]  # a callback has no other form
        EngineConfig.from_mapping(document)
        faults = list(self._not_built(role))
        if faults:
            raise ConfigError.of(faults)

    @property
    def shares_tier(self) -> bool:
        """Whether its ranks share their host memory, with all other ranks that do."""
        return self.native_host_offload is not None and self.native_host_offload.scope == "cluster_shared"

    def require_policies(self, role: str = "aggregated") -> None:
        """Refuse a backend that knows no policy but first come, first served.

        Raises:
            ConfigError: names the backend.
        """
        if not BACKENDS[self.backend].takes_policies:
            rule = "runs first come, first served; policies are not built yet for it"
            raise ConfigError.of([_origin_of(role).fault("engine.backend", self.backend, rule)])

    def tier_fault(self, rule: str, role: str = "aggregated") -> Fault:
        """A fault of the scope of the host tier."""
        return _origin_of(role).fault("engine.native_host_offload.scope", "cluster_shared", rule)

    def _not_built(self, role: str) -> Iterator[Fault]:
        origin = _origin_of(role)
        if self.backend not in BACKENDS:
            rule = f"not built yet; this version runs backend {' and '.join(BACKENDS)}"
            yield origin.fault("engine.backend", self.backend, rule)
        if self.worker_type != role:
            rule = f"must be {role} for the {role} workers of a disaggregated run"
            if role == "aggregated":
                rule = "prefill and decode workers run together, each in a pool of its own; one alone is not built yet"
            yield origin.fault("engine.worker_type", self.worker_type, rule)
        if self.timing_model.type == "external" and self.timing_model.provider != "dynamo_profile":
            rule = "not built; the external provider of this version is dynamo_profile"
            yield origin.fault("engine.timing_model.provider", self.timing_model.provider, rule)
        if self.block_size > BLOCK_SIZE_MAX:
            yield origin.fault("engine.block_size", self.block_size, f"must not exceed {BLOCK_SIZE_MAX} tokens here")
        if self.dp_size > DP_SIZE_MAX:
            yield origin.fault("dp_size", self.dp_size, f"must not exceed {DP_SIZE_MAX} ranks here")
        for key, value in self.unbuilt.items():
            yield origin.fault(f"engine.{key}", value, "not built yet; leave the key out or set it to null")


def _origin_of(role: str) -> Origin:
    return Origin("engine config" if role == "aggregated" else f"{role} engine config")


def _fields_of(settings: object, keys: Mapping[str, object]) -> dict[str, object]:
    return {key: getattr(settings, key) for key in keys}


def build(shaped: Shaped) -> EngineConfig:
    """Apply the rules, then raise all faults at once or return the settings."""
    if "" not in shaped.faulty:
        apply_rules(shaped)
    if shaped.faults:
        raise ConfigError.of(shaped.faults)
    values = shaped.values
    plain: dict[str, Any] = {}
    for key in schema.ENGINE:
        if key not in UNBUILT and key not in ("sglang", "trtllm", "native_host_offload"):
            plain[key] = values[f"engine.{key}"]
    plain.update((key, values[key]) for key in schema.SIBLINGS)
    _fill(plain, shaped)
    return EngineConfig(**plain)


def _fill(plain: dict[str, Any], shaped: Shaped) -> None:
    """Defaults that depend on other keys, and the nested groups."""
    values = shaped.values
    if plain["block_size"] is None:
        plain["block_size"] = DEFAULT_BLOCK_SIZE[plain["backend"]]
    if plain["num_gpu_blocks_is_explicit"] is None:
        plain["num_gpu_blocks_is_explicit"] = "engine.num_gpu_blocks" in shaped.given
    for key in ("max_num_seqs", "max_num_batched_tokens"):
        if plain[key] == 2**64 - 1:  # how the reference itself writes "no limit"
            plain[key] = None
    plain["aic_nextn_accept_rates"] = accept_rates(values)
    plain["sglang"] = SglangSettings(**_nested(values, "engine.sglang", schema.SGLANG))
    plain["trtllm"] = TrtllmSettings(**_nested(values, "engine.trtllm", schema.TRTLLM))
    if values["engine.native_host_offload"] is not None:
        tier = _nested(values, "engine.native_host_offload", schema.HOST_OFFLOAD)
        plain["native_host_offload"] = HostOffloadSettings(**tier)
    dynamo = _nested(values, "dynamo", schema.DYNAMO)
    if dynamo["reasoning"] is not None:
        dynamo["reasoning"] = _nested(values, "dynamo.reasoning", schema.REASONING)
    plain["dynamo"] = DynamoSettings(**dynamo)
    plain["unbuilt"] = {key: values[f"engine.{key}"] for key in UNBUILT if values[f"engine.{key}"]}


def _nested(values: Mapping[str, Any], path: str, keys: Mapping[str, object]) -> dict[str, Any]:
    return {key: values[f"{path}.{key}"] for key in keys}
