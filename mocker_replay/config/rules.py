"""What settings of the right type must fulfil, in the order in which the reference looks.

The order decides which fault is named first; all are listed. A rule is left out where a value it needs has the
wrong type already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from mocker_replay.config.decimals import plain_decimal, read_plain_float
from mocker_replay.config.schema import DEFAULT_BLOCK_SIZE
from mocker_replay.config.shape import Shaped
from mocker_replay.config.timing import TimingModel, provider_faults

Values = Mapping[str, Any]
NEXTN_MAX = 5
_DEFAULT_ACCEPT_RATES = (0.85, 0.3, 0.0, 0.0, 0.0)
_POSITIVE = "must be positive"
_NON_NEGATIVE = "must be finite and non-negative"


class Rule(Struct, frozen=True):
    """`broken` says what must hold, or None when it holds."""

    path: str
    broken: Callable[[Values], str | None]
    needs: tuple[str, ...] = ()  # other paths that must have a sound type


def _positive(path: str) -> Rule:
    return Rule(path, lambda v: _POSITIVE if v[path] is not None and v[path] < 1 else None)


def _non_negative(path: str) -> Rule:
    return Rule(path, lambda v: _NON_NEGATIVE if v[path] is not None and not v[path] >= 0.0 else None)


def _fraction(path: str) -> Rule:
    return Rule(path, lambda v: "must be in [0, 1]" if v[path] is not None and not 0.0 <= v[path] <= 1.0 else None)


def _only_sglang(values: Values, broken: bool, rule: str) -> str | None:
    return rule if values["engine.backend"] == "sglang" and broken else None


def _block_size_at_least_two(v: Values) -> str | None:
    broken = v["engine.block_size"] == 1 and v["engine.backend"] != "sglang"
    return "must be at least two with backend vllm or trtllm" if broken else None


def _schedule_interval(v: Values) -> str | None:
    if v["engine.prefill_schedule_interval"] > 1 and v["engine.backend"] != "vllm":
        return "is supported only with backend vllm; with backend sglang use prefill_decode_interval"
    return None


def _decode_interval(v: Values) -> str | None:
    broken = v["engine.prefill_decode_interval"] != 0 and v["engine.backend"] != "sglang"
    return "is supported only with backend sglang" if broken else None


def _nextn_range(v: Values) -> str | None:
    nextn = v["engine.aic_nextn"]
    return f"must be from 1 to {NEXTN_MAX}" if nextn is not None and not 1 <= nextn <= NEXTN_MAX else None


def _rates_need_nextn(v: Values) -> str | None:
    lost = v["engine.aic_nextn"] is None and v["engine.aic_nextn_accept_rates"] is not None
    return "requires aic_nextn" if lost else None


def _rates_text(v: Values) -> str | None:
    if v["engine.aic_nextn"] is None:
        return None
    bad = [entry for entry in _rate_entries(v) if read_plain_float(entry) is None]
    return f"must be a comma list of numbers; not one: {', '.join(repr(entry) for entry in bad)}" if bad else None


def _rates_range(v: Values) -> str | None:
    if v["engine.aic_nextn"] is None:
        return None
    rates = [read_plain_float(entry) for entry in _rate_entries(v)]
    bad = [(n, rate) for n, rate in enumerate(rates) if rate is not None and not 0.0 <= rate <= 1.0]
    if not bad:
        return None
    return f"must be finite and in [0, 1]; not so: {', '.join(f'entry {n} = {plain_decimal(rate)}' for n, rate in bad)}"


def _rate_entries(v: Values) -> list[str]:
    text = v["engine.aic_nextn_accept_rates"]
    if text is None or not text.strip():
        return []
    return [entry.strip() for entry in text.split(",")]


def accept_rates(v: Values) -> tuple[float, ...]:
    """The final list: cut or filled with zeros to `aic_nextn` entries; empty without speculation."""
    nextn = v["engine.aic_nextn"]
    if nextn is None:
        return ()
    entries = _rate_entries(v)
    rates = [rate for entry in entries if (rate := read_plain_float(entry)) is not None] or [*_DEFAULT_ACCEPT_RATES]
    return tuple((rates + [0.0] * nextn)[:nextn])


def _nextn_without_speedup(v: Values) -> str | None:
    if v["engine.aic_nextn"] is not None and v["engine.decode_speedup_ratio"] != 1.0:
        return "requires decode_speedup_ratio = 1.0, because accepted drafts are what speeds decoding up"
    return None


def _chunking_with_sglang(v: Values) -> str | None:
    return _only_sglang(v, not v["engine.enable_chunked_prefill"], "must be true with backend sglang")


def _chunk_divides(v: Values) -> str | None:
    size, block = v["engine.sglang.chunked_prefill_size"], v["engine.block_size"]
    broken = size > 0 and block is not None and block > 0 and size % block != 0
    return _only_sglang(v, broken, f"must be divisible by block_size ({block})")


def _chunk_for_each_rank(v: Values) -> str | None:
    size, ranks = v["engine.sglang.chunked_prefill_size"], v["dp_size"]
    return _only_sglang(v, 0 < size < ranks, f"must not be below dp_size ({ranks}): ranks share it out")


def _token_ids_need_events(v: Values) -> str | None:
    broken = v["engine.emit_kv_token_ids"] and not v["engine.emit_kv_events"]
    return "requires emit_kv_events" if broken else None


def _capacity_needs_groups(v: Values) -> str | None:
    broken = v["engine.kv_cache_capacity_bytes"] is not None and not v["engine.kv_cache_groups"]
    return "requires kv_cache_groups" if broken else None


_TIER = "engine.native_host_offload"
BYTES_MAX = 2**64 - 1


def _tier_layout(v: Values) -> str | None:
    shared = v[f"{_TIER}.scope"] == "cluster_shared"
    broken = shared and not (v[f"{_TIER}.kv_layout_id"] or "").strip()
    return "must not be empty with scope cluster_shared" if broken else None


def _tier_bytes(v: Values) -> str | None:
    per_token, block_size = v["engine.kv_cache_bytes_per_token"], v["engine.block_size"]
    if per_token is None:
        return "requires kv_cache_bytes_per_token, which says how large a block is"
    block = per_token * (DEFAULT_BLOCK_SIZE["vllm"] if block_size is None else block_size)
    over = block * v[f"{_TIER}.num_host_blocks"] > BYTES_MAX
    return "must not hold more than 2^64-1 bytes" if over else None


HOST_TIER_RULES: tuple[Rule, ...] = (
    _positive(f"{_TIER}.num_host_blocks"),
    *(
        _non_negative(f"{_TIER}.{key}")
        for key in (
            "d2h_bandwidth_gbps",
            "h2d_bandwidth_gbps",
            "shared_d2h_bandwidth_gbps",
            "shared_h2d_bandwidth_gbps",
            "latency_to_first_byte_ms",
        )
    ),
    Rule(f"{_TIER}.kv_layout_id", _tier_layout, (f"{_TIER}.scope",)),
    Rule(
        _TIER,
        lambda v: "is supported only with backend vllm" if v["engine.backend"] != "vllm" else None,
        ("engine.backend",),
    ),
    Rule(
        _TIER,
        lambda v: None if v["engine.enable_prefix_caching"] else "requires enable_prefix_caching = true",
        ("engine.enable_prefix_caching",),
    ),
    Rule(
        _TIER,
        lambda v: "cannot stand together with aic_nextn" if v["engine.aic_nextn"] is not None else None,
        ("engine.aic_nextn",),
    ),
    Rule(_TIER, _tier_bytes, ("engine.kv_cache_bytes_per_token", "engine.block_size", f"{_TIER}.num_host_blocks")),
)

_BACKEND = ("engine.backend",)
_NEXTN = ("engine.aic_nextn",)
_MAX_PREFILL = "engine.sglang.max_prefill_tokens"
_CHUNK = "engine.sglang.chunked_prefill_size"
_CONSERVATIVENESS = "engine.sglang.schedule_conservativeness"

BEFORE_TIMING: tuple[Rule, ...] = (
    _positive("engine.num_gpu_blocks"),
    _positive("engine.block_size"),
    Rule("engine.block_size", _block_size_at_least_two, _BACKEND),
    _positive("engine.max_num_seqs"),
    _positive("engine.max_num_batched_tokens"),
    _positive("engine.prefill_schedule_interval"),
    Rule("engine.prefill_schedule_interval", _schedule_interval, _BACKEND),
    Rule("engine.prefill_decode_interval", _decode_interval, _BACKEND),
    _positive("engine.max_model_len"),
    _non_negative("engine.speedup_ratio"),
    _non_negative("engine.decode_speedup_ratio"),
    Rule("engine.aic_nextn", _nextn_range),
    Rule("engine.aic_nextn_accept_rates", _rates_text, _NEXTN),
    Rule("engine.aic_nextn_accept_rates", _rates_range, _NEXTN),
    Rule("engine.aic_nextn", _nextn_without_speedup, ("engine.decode_speedup_ratio",)),
    Rule("engine.aic_nextn_accept_rates", _rates_need_nextn, _NEXTN),
    Rule("engine.enable_chunked_prefill", _chunking_with_sglang, _BACKEND),
    Rule(_MAX_PREFILL, lambda v: _only_sglang(v, v[_MAX_PREFILL] < 1, _POSITIVE), _BACKEND),
    Rule(_CHUNK, lambda v: _only_sglang(v, v[_CHUNK] < 1, _POSITIVE), _BACKEND),
    Rule(_CONSERVATIVENESS, lambda v: _only_sglang(v, v[_CONSERVATIVENESS] < 0.0, _NON_NEGATIVE), _BACKEND),
    Rule(_CHUNK, _chunk_divides, ("engine.backend", "engine.block_size")),
    Rule("engine.emit_kv_token_ids", _token_ids_need_events, ("engine.emit_kv_events",)),
    _positive("engine.kv_transfer_bytes_per_token"),
    _positive("engine.kv_cache_bytes_per_token"),
    Rule("engine.kv_cache_capacity_bytes", _capacity_needs_groups, ("engine.kv_cache_groups",)),
    _non_negative("engine.kv_transfer_bandwidth"),
)

AFTER_TIMING: tuple[Rule, ...] = (
    _positive("dp_size"),
    _positive("tensor_parallel_size"),
    Rule(_CHUNK, _chunk_for_each_rank, ("engine.backend", "dp_size")),
    Rule("tensor_parallel_size", lambda v: "must be below 2^32" if v["tensor_parallel_size"] >= 2**32 else None),
    _non_negative("startup_time"),
    _fraction("gpu_memory_utilization"),
    _fraction("mem_fraction_static"),
    _fraction("free_gpu_memory_fraction"),
)


def apply_rules(shaped: Shaped) -> None:
    """Add to `shaped` what its values break, in order."""
    _apply(shaped, BEFORE_TIMING)
    if shaped.values[_TIER] is not None:
        _apply(shaped, HOST_TIER_RULES)
    timing = "engine.timing_model"
    model = shaped.values[timing]
    assert isinstance(model, TimingModel), "the first look leaves a model there"
    sound = timing not in shaped.faulty
    if sound:
        _refuse_all(shaped, timing, _figure_faults(model))
    _apply(shaped, AFTER_TIMING)
    if sound and model.type == "external" and (model.provider or "").strip():
        _refuse_all(shaped, timing, provider_faults(model))
    _apply(shaped, (_positive("dynamo.handoff_session_timeout_ms"),))
    if shaped.values["dynamo.reasoning"] is not None:
        _apply(shaped, (_fraction("dynamo.reasoning.thinking_ratio"),))


def _apply(shaped: Shaped, rules: tuple[Rule, ...]) -> None:
    for rule in rules:
        if rule.path in shaped.faulty or any(need in shaped.faulty for need in rule.needs):
            continue
        text = rule.broken(shaped.values)
        if text is not None:
            shaped.faults.append(shaped.origin.fault(rule.path, shaped.values[rule.path], text))


def _refuse_all(shaped: Shaped, path: str, faults: Iterator[tuple[str, object, str]]) -> None:
    for key, value, rule in faults:
        shaped.faults.append(shaped.origin.fault(f"{path}.{key}", value, rule))


def _figure_faults(model: TimingModel) -> Iterator[tuple[str, object, str]]:
    if model.type == "fixed":
        for key, figure in (("prefill_ms", model.prefill_ms), ("decode_ms", model.decode_ms)):
            if figure is None or not (math.isfinite(figure) and figure >= 0.0):
                yield key, figure, _NON_NEGATIVE
    elif model.type == "external" and not (model.provider or "").strip():
        yield "provider", model.provider, "must not be empty"
    elif model.type == "callback":
        for name in ("prefill", "decode"):
            if not callable(getattr(model.callable, name, None)):
                yield "callable", type(model.callable).__name__, f"must have a method {name}"
    elif model.type not in ("polynomial", "external"):
        yield "type", model.type, "must be polynomial, fixed, external or callback"
