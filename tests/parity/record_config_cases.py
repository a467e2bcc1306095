"""Ask the reference about configurations and write its answers down as `config_cases.json`.

Run with an interpreter that has `ai-dynamo-runtime==1.6.1` (`pip install '.[peer]'`). The test that reads the file
needs no reference.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

STRICTER = "ours is stricter: a document nobody writes on purpose is refused"

# Single configurations, as the text of `{"engine": {...}}`.
ENGINE = r"""
{}
{"block_size": null} | {"block_size": 2} | {"block_size": 18446744073709551615} | {"block_size": 0}
{"block_size": 1}
{"block_size": 2.0} | {"block_size": "3"} | {"block_size": true} | {"block_size": -1} | {"block_size": []}
{"block_size": 18446744073709551616} | {"block_size": 1e2} | {"block_size": {}} | {"block_sizes": 64}
{"num_gpu_blocks": 16384} | {"num_gpu_blocks": 5} | {"num_gpu_blocks": null} | {"num_gpu_blocks": 0}
{"num_gpu_blocks": 1152921504606846976} | {"num_gpu_block": 5}
{"max_num_seqs": null} | {"max_num_seqs": 0} | {"max_num_seqs": 7} | {"max_num_seqs": 18446744073709551615}
{"max_num_batched_tokens": null} | {"max_num_batched_tokens": 0} | {"max_num_batched_tokens": 18446744073709551615}
{"max_model_len": 0} | {"max_model_len": 4096} | {"max_model_len": null} | {"max_model_len": 18446744073709551615}
{"prefill_schedule_interval": 0} | {"prefill_schedule_interval": 3} | {"prefill_schedule_interval": null}
{"prefill_decode_interval": 2} | {"prefill_decode_interval": 0} | {"prefill_decode_interval": null}
{"enable_prefix_caching": false} | {"enable_prefix_caching": 1} | {"enable_prefix_caching": null}
{"enable_chunked_prefill": false} | {"enable_chunked_prefill": "true"} | {"enable_chunked_prefill": []}
{"speedup_ratio": 2} | {"speedup_ratio": 0} | {"speedup_ratio": -0.0} | {"speedup_ratio": -1} | {"speedup_ratio": "2"}
{"speedup_ratio": null} | {"speedup_ratio": true} | {"speedup_ratio": 18446744073709551617}
{"speedup_ratio": 1e308, "decode_speedup_ratio": 1e-320} | {"decode_speedup_ratio": -1e-9}
{"speedup_ratio": 123.45678901234567} | {"speedup_ratio": 3.141592653589793238462643383279502884}
{"decode_speedup_ratio": 0.00014568301934526718} | {"decode_speedup_ratio": 1234567.1234567891}
{"decode_speedup_ratio": 98765432109876543210.125e-13}
{"aic_nextn": 0} | {"aic_nextn": 6} | {"aic_nextn": 1} | {"aic_nextn": 3} | {"aic_nextn": 5} | {"aic_nextn": 2.0}
{"aic_nextn": 3, "aic_nextn_accept_rates": ""} | {"aic_nextn": 3, "aic_nextn_accept_rates": "  "}
{"aic_nextn": 3, "aic_nextn_accept_rates": "1"} | {"aic_nextn": 3, "aic_nextn_accept_rates": "1,"}
{"aic_nextn": 3, "aic_nextn_accept_rates": "1,,0.5"} | {"aic_nextn": 1, "aic_nextn_accept_rates": "1, 0.5 ,0.25"}
{"aic_nextn": 1, "aic_nextn_accept_rates": "1, 0.5 ,1.25"} | {"aic_nextn": 1, "aic_nextn_accept_rates": "1, nan"}
{"aic_nextn": 2, "aic_nextn_accept_rates": "1, Infinity"} | {"aic_nextn": 1, "aic_nextn_accept_rates": "-1"}
{"aic_nextn": 3, "aic_nextn_accept_rates": "-0.0,1e-3,1e-20"}
{"aic_nextn": 3, "aic_nextn_accept_rates": ".5,5.e-1,+0.5"}
{"aic_nextn": 3, "aic_nextn_accept_rates": "0x1"} | {"aic_nextn": 3, "aic_nextn_accept_rates": "1_0"}
{"aic_nextn": 3, "aic_nextn_accept_rates": "0.30000000000000004,1e-7,0.1e-10"}
{"aic_nextn": 2, "aic_nextn_accept_rates": "1.0000000000000002"} | {"aic_nextn": 2, "aic_nextn_accept_rates": "2,a"}
{"aic_nextn": 2, "aic_nextn_accept_rates": "1e400, 1"} | {"aic_nextn": 2, "aic_nextn_accept_rates": "1e-320, 1"}
{"aic_nextn": 3, "aic_nextn_accept_rates": [1]} | {"aic_nextn": 3, "aic_nextn_accept_rates": 1}
{"aic_nextn_accept_rates": ""} | {"aic_nextn_accept_rates": "a"} | {"aic_nextn_accept_rates": null}
{"aic_nextn": 3, "decode_speedup_ratio": 2} | {"aic_nextn": 2, "decode_speedup_ratio": 1}
{"aic_nextn": 2, "speedup_ratio": 2}
{"aic_mtp_seed": 18446744073709551615} | {"aic_mtp_seed": null} | {"aic_mtp_seed": -1}
{"worker_type": "decode"} | {"worker_type": "Decode"} | {"worker_type": null} | {"backend": "VLLM"} | {"backend": 1}
{"preemption_mode": "fifo"} | {"preemption_mode": "FIFO"} | {"kv_transfer_timing_mode": "destination_missing"}
{"kv_transfer_timing_mode": "x"} | {"emit_kv_events": true} | {"emit_kv_token_ids": true}
{"emit_kv_token_ids": true, "emit_kv_events": true} | {"kv_bytes_per_token": 5} | {"kv_bytes_per_token": -2}
{"kv_bytes_per_token": 5, "kv_transfer_bytes_per_token": 6} | {"kv_transfer_bytes_per_token": 0}
{"kv_cache_bytes_per_token": 0} | {"kv_cache_bytes_per_token": 4} | {"kv_cache_bytes_per_token": null}
{"kv_transfer_bandwidth": -1} | {"kv_transfer_bandwidth": 3} | {"kv_transfer_bandwidth": null}
{"timing_model": null} | {"timing_model": "polynomial"} | {"timing_model": {}} | {"timing_model": {"type": "x"}}
{"timing_model": {"type": 1}} | {"timing_model": {"type": "Fixed"}} | {"timing_model": {"type": "polynomial", "x": 1}}
{"timing_model": {"type": "fixed"}} | {"timing_model": {"type": "fixed", "decode_ms": 1}}
{"timing_model": {"type": "fixed", "prefill_ms": 10, "decode_ms": 1, "x": 2}}
{"timing_model": {"type": "fixed", "prefill_ms": -10, "decode_ms": -1}}
{"timing_model": {"type": "fixed", "prefill_ms": 10, "decode_ms": -1}}
{"timing_model": {"type": "fixed", "prefill_ms": null, "decode_ms": -1}}
{"timing_model": {"type": "fixed", "decode_ms": true, "prefill_ms": "x"}}
{"timing_model": {"type": "fixed", "prefill_ms": -0.0, "decode_ms": 0}}
{"timing_model": {"type": "fixed", "prefill_ms": 123.45678901234567, "decode_ms": 0.1234567890123456789}}
{"timing_model": {"type": "external"}} | {"timing_model": {"type": "external", "provider": " "}}
{"timing_model": {"type": "external", "provider": "x"}} | {"timing_model": {"type": "external", "provider": 5}}
{"timing_model": {"type": "external", "provider": "dynamo_profile"}}
{"timing_model": {"type": "external", "provider": "dynamo_profile", "config": {}}}
{"timing_model": {"type": "external", "provider": "dynamo_profile", "config": {"path": 1}}}
{"timing_model": {"type": "external", "provider": "dynamo_profile", "config": {"path": "a", "y": 1}}}
{"timing_model": {"type": "external", "provider": "dynamo_profile", "config": {"path": "no-such-file.npz"}}}
{"sglang": null} | {"sglang": []} | {"sglang": {"schedule_policy": "lpm"}} | {"sglang": {"schedule_policy": "fcfs"}}
{"sglang": {"max_prefill_tokens": 0}} | {"sglang": {"max_prefill_tokens": 1.5}} | {"sglang": {"bogus": 2}}
{"sglang": {"schedule_conservativeness": 2}} | {"sglang": {"schedule_conservativeness": null}}
{"trtllm": null} | {"trtllm": {"x": 1}} | {"trtllm": {"capacity_scheduler_policy": "max_utilization"}}
{"backend": "sglang"} | {"backend": "sglang", "block_size": null} | {"backend": "trtllm"}
{"backend": "sglang", "block_size": 3} | {"backend": "sglang", "block_size": 1}
{"backend": "trtllm", "block_size": 1}
{"backend": "sglang", "enable_chunked_prefill": false} | {"backend": "sglang", "prefill_schedule_interval": 2}
{"backend": "sglang", "prefill_decode_interval": 2} | {"backend": "trtllm", "prefill_schedule_interval": 2}
{"backend": "trtllm", "prefill_decode_interval": 2} | {"backend": "sglang", "preemption_mode": "fifo"}
{"backend": "sglang", "sglang": {"clip_max_new_tokens": 0, "schedule_conservativeness": 0}}
{"backend": "sglang", "block_size": 3, "sglang": {"schedule_conservativeness": -1}}
{"backend": "sglang", "sglang": {"max_prefill_tokens": 0, "chunked_prefill_size": 0}}
{"backend": "sglang", "sglang": {"chunked_prefill_size": 0, "schedule_conservativeness": -1}}
{"kv_cache_groups": []} | {"kv_cache_groups": null} | {"kv_cache_capacity_bytes": 100}
{"kv_cache_capacity_bytes": null}
{"native_host_offload": null} | {"g3_offload": null} | {"state_cache": null} | {"prefix_match_unit": null}
{"bogus": 1} | {"Backend": "vllm"} | {"max_prefill_tokens": 5} | {"block_size": "x", "bogus": 1}
{"bogus": 1, "block_size": "x"}
"""

# Whole documents.
TOP = r"""
[] | {"engine": []} | {"engine": null} | {"engine": 1} | {"bogus": 1} | {"": 1} | {"num_gpu_blocks": 5}
{"dp_size": 0} | {"dp_size": 4294967295} | {"dp_size": 4294967296} | {"dp_size": null} | {"dp_size": 1.0}
{"dp_size": 2}
{"tensor_parallel_size": 0} | {"tensor_parallel_size": 8} | {"tensor_parallel_size": 4294967296}
{"startup_time": -1} | {"startup_time": 3} | {"startup_time": null} | {"startup_time": "1"}
{"num_gpu_blocks_is_explicit": true} | {"num_gpu_blocks_is_explicit": null}
{"num_gpu_blocks_is_explicit": false, "engine": {"num_gpu_blocks": 5}}
{"gpu_memory_utilization": 1} | {"gpu_memory_utilization": -5} | {"gpu_memory_utilization": "x"}
{"mem_fraction_static": 0.5} | {"mem_fraction_static": 2} | {"free_gpu_memory_fraction": -0.5}
{"cuda_graph_reserved_bytes": 1} | {"cuda_graph_reserved_bytes": -1}
{"dynamo": null} | {"dynamo": []} | {"dynamo": {"bogus": 1}} | {"dynamo": {"handoff_session_timeout_ms": 0}}
{"dynamo": {"enable_local_indexer": true, "bootstrap_port": 80, "router_queue_policy": "lcfs"}}
{"dynamo": {"zmq_replay_port": 65535}}
{"dynamo": {"bootstrap_port": 70000}} | {"dynamo": {"router_queue_policy": "x"}}
{"dynamo": {"enable_local_indexer": null}}
{"dynamo": {"response_replay_trace_path": "x"}} | {"dynamo": {"response_replay_trace_path": 5}}
{"dynamo": {"reasoning": {"start_thinking_token_id": 1}}} | {"dynamo": {"reasoning": {}}}
{"dynamo": {"reasoning": {"start_thinking_token_id": 1, "end_thinking_token_id": 2, "thinking_ratio": 0.5, "x": 1}}}
{"dynamo": {"reasoning": {"start_thinking_token_id": 1, "end_thinking_token_id": 2, "thinking_ratio": 5}}}
{"engine": {"block_size": 0}, "bogus": 1} | {"bogus": 1, "engine": {"block_size": "x"}}
{"engine": {"block_size": "x"}, "bogus": 1}
{"dp_size": "x", "dynamo": {"bogus": 1}} | {"dp_size": "x", "engine": {"block_size": "x"}}
"""

STRICTER_ONES = r"""
{"engine": ["vllm", 100]} | {"engine": {"block_size": 4, "block_size": 5}} | {"engine": {"backend": {"vllm": null}}}
{"engine": {"timing_model": ["polynomial"]}} | {"dp_size": 2, "dp_size": 3}
"""

# One fault each, in the order in which the reference looks; every neighbouring pair and some far ones are asked for.
ORDER: list[dict[str, Any]] = [
    {"dynamo": {"bogus": 1}},
    {"engine": {"worker_type": "x"}},
    {"engine": {"num_gpu_blocks": 0}},
    {"engine": {"block_size": 0}},
    {"engine": {"max_num_seqs": 0}},
    {"engine": {"max_num_batched_tokens": 0}},
    {"engine": {"prefill_schedule_interval": 0}},
    {"engine": {"prefill_decode_interval": 2}},
    {"engine": {"max_model_len": 0}},
    {"engine": {"speedup_ratio": -1}},
    {"engine": {"decode_speedup_ratio": -1}},
    {"engine": {"aic_nextn": 9}},
    {"engine": {"aic_nextn": 2, "aic_nextn_accept_rates": "a"}},
    {"engine": {"aic_nextn": 2, "decode_speedup_ratio": 2}},
    {"engine": {"emit_kv_token_ids": True}},
    {"engine": {"kv_transfer_bytes_per_token": 0}},
    {"engine": {"kv_cache_bytes_per_token": 0}},
    {"engine": {"kv_cache_capacity_bytes": 5}},
    {"engine": {"kv_transfer_bandwidth": -1}},
    {"engine": {"timing_model": {"type": "fixed", "prefill_ms": 1, "decode_ms": -1}}},
    {"dp_size": 0},
    {"tensor_parallel_size": 0},
    {"startup_time": -1},
    {"gpu_memory_utilization": 2},
    {"mem_fraction_static": 2},
    {"free_gpu_memory_fraction": 2},
    {"engine": {"timing_model": {"type": "external", "provider": "x"}}},
    {"dynamo": {"handoff_session_timeout_ms": 0}},
]

# Where the reference's message does not begin with the name of the key.
FIELDS = {
    "vLLM/TRT-LLM block_size": "engine.block_size",
    "fixed prefill latency": "engine.timing_model.prefill_ms",
    "fixed decode latency": "engine.timing_model.decode_ms",
    "timing provider": "engine.timing_model.provider",
    "unsupported external timing provider": "engine.timing_model.provider",
    "invalid aic_nextn_accept_rates": "engine.aic_nextn_accept_rates",
    "Failed to open NPZ file": "engine.timing_model.config.path",
    "invalid type: null, expected struct Profile": "engine.timing_model.config",
    "missing field `path`": "engine.timing_model.config",
    "path: ": "engine.timing_model.config.path",
    "y: ": "engine.timing_model.config.y",
    "invalid type: null, expected struct MockerRuntimeOptions": "dynamo",
    "Mocker config must be an object": "",
    "thinking_ratio: ": "dynamo.reasoning.thinking_ratio",
}


def split(block: str) -> list[str]:
    return [part.strip() for line in block.strip().splitlines() for part in line.split(" | ")]


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    both = {**first, **second}
    for key in first.keys() & second.keys():
        if isinstance(first[key], dict):
            both[key] = {**second[key], **first[key]}
    return both


def pairs() -> list[str]:
    near = [(n, n + 1) for n in range(len(ORDER) - 1)]
    far = [(n, m) for n, m in itertools.combinations(range(len(ORDER)), 2) if m - n > 1 and (n * 31 + m) % 9 == 0]
    return [json.dumps(merged(ORDER[m], ORDER[n])) for n, m in near + far]


def field_of(message: str, keys: dict[str, str]) -> str:
    prefix = "invalid engine launch config: "
    if message.startswith(prefix):
        return message.removeprefix(prefix).split(": ")[0]
    for start, field in FIELDS.items():
        if message.startswith(start):
            return field
    word = message.split()[0].rstrip(":").split("[")[0]
    if ": " in message and message.split(": ")[0] == word and word.split(".")[0] not in keys:
        return f"dynamo.{word}"
    return keys.get(word, f"dynamo.{word}" if ": " in message else word)


def changes(base: Any, other: Any, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in sorted({*base, *other}):
        old, new = base.get(key), other.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found.update(changes(old, new, f"{path}{key}."))
        elif old != new or type(old) is not type(new):
            found[path + key] = new
    return found


def main() -> None:
    import dynamo._core as reference  # type: ignore[import-not-found]

    base = reference._normalize_mocker_config("{}")
    keys = {key: f"engine.{key}" for key in base["engine"]} | {key: key for key in base}
    keys |= {"kv_cache_bytes_per_token": "engine.kv_cache_bytes_per_token"}
    keys |= {"kv_cache_capacity_bytes": "engine.kv_cache_capacity_bytes"}
    keys |= {f"sglang.{key}": f"engine.sglang.{key}" for key in base["engine"]["sglang"]}
    keys |= {"enable_chunked_prefill=false": "engine.enable_chunked_prefill"}
    keys |= {key: f"dynamo.{key}" for key in base["dynamo"]}
    cases: list[dict[str, Any]] = []
    texts = [(f'{{"engine": {text}}}', "") for text in split(ENGINE)] + [(text, "") for text in split(TOP)]
    texts += [(text, "") for text in pairs()] + [(text, STRICTER) for text in split(STRICTER_ONES)]
    for text, differs in texts:
        case: dict[str, Any] = {"text": text}
        try:
            case["changes"] = changes(base, reference._normalize_mocker_config(text))
        except ValueError as exc:
            case["error"] = str(exc).split(", expected one of")[0]
            case["field"] = field_of(str(exc), keys)
        if differs:
            case["differs"] = differs
        cases.append(case)
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    text = f'{{"reference": "ai-dynamo-runtime 1.6.1",\n "defaults": {json.dumps(base)},\n "cases": [\n{lines}\n]}}\n'
    Path(__file__).with_name("config_cases.json").write_text(text, encoding="utf-8")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
