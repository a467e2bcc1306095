"""The keys of an engine configuration: names, types, defaults, in the order in which they are written out.

Tables only. What a value must be beyond its type stands in `rules`; how a document is walked stands in `shape`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from msgspec import Struct


class Kind(enum.Enum):
    """Type of a value; the text completes the sentence "must be ..."."""

    COUNT = "a whole number, not negative and at most 2^64-1"
    COUNT_32 = "a whole number, not negative and at most 2^32-1"
    PORT = "a whole number, not negative and at most 65535"
    NUMBER = "a finite number"
    FLAG = "true or false"
    TEXT = "a text"
    CHOICE = "one of"
    SECTION = "a mapping"
    LIST = "a list"
    TIMING = "a mapping with a type"


INTEGER_LIMITS = {Kind.COUNT: 2**64 - 1, Kind.COUNT_32: 2**32 - 1, Kind.PORT: 2**16 - 1}


class Key(Struct, frozen=True):
    """One key of one section."""

    kind: Kind
    default: object = None
    nullable: bool = False
    choices: tuple[str, ...] = ()
    required: bool = False


def _choice(*choices: str) -> Key:
    return Key(Kind.CHOICE, choices[0], choices=choices)


_OPTIONAL_COUNT = Key(Kind.COUNT, nullable=True)
_OPTIONAL_NUMBER = Key(Kind.NUMBER, nullable=True)
_OPTIONAL_PORT = Key(Kind.PORT, nullable=True)

SGLANG: Mapping[str, Key] = {
    "schedule_policy": _choice("fifo", "lpm"),
    "max_prefill_tokens": Key(Kind.COUNT, 16384),
    "chunked_prefill_size": Key(Kind.COUNT, 8192),
    "clip_max_new_tokens": Key(Kind.COUNT, 4096),
    "schedule_conservativeness": Key(Kind.NUMBER, 1.0),
}

HOST_OFFLOAD: Mapping[str, Key] = {
    "scope": _choice("dp_rank_local", "cluster_shared"),
    "num_host_blocks": Key(Kind.COUNT, required=True),
    "d2h_bandwidth_gbps": Key(Kind.NUMBER, 32.0),
    "h2d_bandwidth_gbps": Key(Kind.NUMBER, 32.0),
    "shared_d2h_bandwidth_gbps": Key(Kind.NUMBER),
    "shared_h2d_bandwidth_gbps": Key(Kind.NUMBER),
    "latency_to_first_byte_ms": Key(Kind.NUMBER, 0.0),
    "kv_layout_id": Key(Kind.TEXT, nullable=True),
}

TRTLLM: Mapping[str, Key] = {"capacity_scheduler_policy": _choice("guaranteed_no_evict")}

ENGINE: Mapping[str, Key] = {
    "backend": _choice("vllm", "sglang", "trtllm"),
    "num_gpu_blocks": Key(Kind.COUNT, 16384),
    "block_size": Key(Kind.COUNT, nullable=True),  # the default depends on the backend
    "max_model_len": _OPTIONAL_COUNT,
    "max_num_seqs": Key(Kind.COUNT, 256, nullable=True),
    "max_num_batched_tokens": Key(Kind.COUNT, 8192, nullable=True),
    "prefill_schedule_interval": Key(Kind.COUNT, 1),
    "prefill_decode_interval": Key(Kind.COUNT, 0),
    "enable_prefix_caching": Key(Kind.FLAG, True),
    "enable_chunked_prefill": Key(Kind.FLAG, True),
    "speedup_ratio": Key(Kind.NUMBER, 1.0),
    "decode_speedup_ratio": Key(Kind.NUMBER, 1.0),
    "aic_nextn": _OPTIONAL_COUNT,
    "aic_nextn_accept_rates": Key(Kind.TEXT, nullable=True),
    "aic_mtp_seed": Key(Kind.COUNT, 42),
    "worker_type": _choice("aggregated", "prefill", "decode"),
    "preemption_mode": _choice("lifo", "fifo"),
    "emit_kv_events": Key(Kind.FLAG, False),
    "emit_kv_token_ids": Key(Kind.FLAG, False),
    "kv_transfer_bytes_per_token": _OPTIONAL_COUNT,
    "kv_cache_bytes_per_token": _OPTIONAL_COUNT,
    "kv_cache_groups": Key(Kind.LIST, ()),
    "kv_cache_capacity_bytes": _OPTIONAL_COUNT,
    "native_host_offload": Key(Kind.SECTION, nullable=True),
    "state_cache": Key(Kind.SECTION, nullable=True),
    "prefix_match_unit": _OPTIONAL_COUNT,
    "g3_offload": Key(Kind.SECTION, nullable=True),
    "kv_transfer_bandwidth": _OPTIONAL_NUMBER,
    "kv_transfer_timing_mode": _choice("full_prompt", "destination_missing"),
    "timing_model": Key(Kind.TIMING),
    "sglang": Key(Kind.SECTION),
    "trtllm": Key(Kind.SECTION),
}

# Other spellings that are accepted, and what they mean.
ENGINE_ALIASES: Mapping[str, str] = {"kv_bytes_per_token": "kv_transfer_bytes_per_token"}

# Features this version does not have. Their keys are known, so that they are refused by name and not as unknown keys.
UNBUILT: tuple[str, ...] = (
    "kv_cache_groups",
    "kv_cache_capacity_bytes",
    "state_cache",
    "prefix_match_unit",
    "g3_offload",
)

SIBLINGS: Mapping[str, Key] = {
    "dp_size": Key(Kind.COUNT_32, 1),
    "tensor_parallel_size": Key(Kind.COUNT, 1),
    "startup_time": _OPTIONAL_NUMBER,
    "num_gpu_blocks_is_explicit": Key(Kind.FLAG),
    "gpu_memory_utilization": _OPTIONAL_NUMBER,
    "mem_fraction_static": _OPTIONAL_NUMBER,
    "free_gpu_memory_fraction": _OPTIONAL_NUMBER,
    "cuda_graph_reserved_bytes": _OPTIONAL_COUNT,
}

DYNAMO: Mapping[str, Key] = {
    "enable_local_indexer": Key(Kind.FLAG, False),
    "bootstrap_port": _OPTIONAL_PORT,
    "handoff_session_timeout_ms": Key(Kind.COUNT, 300_000),
    "reasoning": Key(Kind.SECTION, nullable=True),
    "response_replay_trace_path": Key(Kind.TEXT, nullable=True),
    "zmq_kv_events_port": _OPTIONAL_PORT,
    "zmq_replay_port": _OPTIONAL_PORT,
    "router_queue_policy": Key(Kind.CHOICE, nullable=True, choices=("fcfs", "lcfs", "wspt")),
}

REASONING: Mapping[str, Key] = {
    "start_thinking_token_id": Key(Kind.COUNT_32, required=True),
    "end_thinking_token_id": Key(Kind.COUNT_32, required=True),
    "thinking_ratio": Key(Kind.NUMBER, required=True),
}

TOP_LEVEL: tuple[str, ...] = ("engine", *SIBLINGS, "dynamo")

# block_size where none is given [tokens]
DEFAULT_BLOCK_SIZE: Mapping[str, int] = {"vllm": 64, "sglang": 1, "trtllm": 32}

TIMING_TYPES: tuple[str, ...] = ("polynomial", "fixed", "external")
TIMING_PROVIDERS: tuple[str, ...] = ("dynamo_profile", "ais", "aic")

# Names of the same things elsewhere, which no likeness of spelling would find.
FOREIGN_NAMES: Mapping[str, str] = {
    "num_gpu_blocks_override": "num_gpu_blocks",
    "num_blocks": "num_gpu_blocks",
    "page_size": "block_size",
    "context_length": "max_model_len",
    "max_running_requests": "max_num_seqs",
    "max_batch_size": "max_num_seqs",
    "max_num_tokens": "max_num_batched_tokens",
    "data_parallel_size": "dp_size",
    "tp_size": "tensor_parallel_size",
    "enable_block_reuse": "enable_prefix_caching",
    "num_speculative_tokens": "aic_nextn",
    "nextn": "aic_nextn",
    "seed": "aic_mtp_seed",
    "engine_type": "backend",
}
