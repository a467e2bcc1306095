"""What the model needs of an engine configuration; it trusts its input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.model.host_tier import TierConfig
from tests.model.sampler import parse_accept_rates
from tests.model.timing import TimingModel, make_timing

UNLIMITED = 1 << 62
DEFAULT_BLOCK_SIZE = {"vllm": 64, "trtllm": 32, "sglang": 1}


@dataclass(frozen=True)
class SglangModelConfig:
    """Keys of `engine.sglang`, and the one of `engine` that only this backend has."""

    schedule_policy: str = "fifo"
    max_prefill_tokens: int = 16384
    chunked_prefill_size: int = 8192
    clip_max_new_tokens: int = 4096
    schedule_conservativeness: float = 1.0
    prefill_decode_interval: int = 0


@dataclass(frozen=True)
class ModelConfig:
    num_gpu_blocks: int
    block_size: int
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    prefill_schedule_interval: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    speedup_ratio: float
    decode_speedup_ratio: float
    nextn: int | None
    accept_rates: list[float] = field(hash=False)
    mtp_seed: int
    preemption_mode: str
    timing: TimingModel
    dp_size: int
    tensor_parallel_size: int
    tier: TierConfig | None = None
    backend: str = "vllm"
    sglang: SglangModelConfig = SglangModelConfig()

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any] | None, timing: TimingModel | None = None) -> ModelConfig:
        """The mapping users write (`{"engine": {...}, "dp_size": ...}`); `timing` replaces its timing model."""
        config = dict(config or {})
        engine: Mapping[str, Any] = config.get("engine") or {}

        def limit(key: str, default: int) -> int:
            value = engine.get(key, default)
            return UNLIMITED if value is None else int(value)

        nextn = engine.get("aic_nextn")
        backend = engine.get("backend", "vllm")
        interval = engine.get("prefill_decode_interval", 0)
        return cls(
            num_gpu_blocks=engine.get("num_gpu_blocks", 16384),
            block_size=engine.get("block_size") or DEFAULT_BLOCK_SIZE[backend],
            max_model_len=engine.get("max_model_len"),
            max_num_seqs=limit("max_num_seqs", 256),
            max_num_batched_tokens=limit("max_num_batched_tokens", 8192),
            prefill_schedule_interval=engine.get("prefill_schedule_interval", 1),
            enable_prefix_caching=engine.get("enable_prefix_caching", True),
            enable_chunked_prefill=engine.get("enable_chunked_prefill", True),
            speedup_ratio=float(engine.get("speedup_ratio", 1.0)),
            decode_speedup_ratio=float(engine.get("decode_speedup_ratio", 1.0)),
            nextn=nextn,
            accept_rates=parse_accept_rates(engine.get("aic_nextn_accept_rates"), nextn or 0),
            mtp_seed=engine.get("aic_mtp_seed", 42),
            preemption_mode=engine.get("preemption_mode", "lifo"),
            timing=timing or make_timing(engine.get("timing_model")),
            dp_size=config.get("dp_size", 1),
            tensor_parallel_size=config.get("tensor_parallel_size", 1),
            tier=TierConfig.from_engine(engine),
            backend=backend,
            sglang=SglangModelConfig(**(engine.get("sglang") or {}), prefill_decode_interval=interval),
        )
