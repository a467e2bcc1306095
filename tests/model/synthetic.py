"""Rows of a synthetic workload: seeded gaps, shared prefix groups, turns."""

from __future__ import annotations

import math
import sys
from typing import Any

from tests.model.request import ceil_div
from tests.model.sampler import ChaCha12

GROUP_SEED = 42
UNSHARED_START = 1 << 40  # hash ids from here on belong to one turn alone


def uniform(rng: ChaCha12) -> float:
    return (rng.next_u64() >> 11) * 2.0**-53


def draw_group(rng: ChaCha12, num_groups: int) -> int:
    """One number below `num_groups`, without a noticeable bias."""
    product = rng.next_u32() * num_groups
    group, low = product >> 32, product & 0xFFFFFFFF
    if low > ((1 << 32) - num_groups) % (1 << 32):
        second = (rng.next_u32() * num_groups) >> 32
        group += low + second >= (1 << 32)
    return group


def arrivals_ms(count: int, request_rate: float | None, interval_ms: float | None, seed: int) -> list[float]:
    """Sums of gaps, one after another: a multiple of the interval would round otherwise."""
    rng = ChaCha12(seed)
    times = [0.0]
    for _ in range(count - 1):
        if interval_ms is not None:
            gap = 1000.0 / (1000.0 / interval_ms) if interval_ms > 0.0 else 0.0  # taken through a rate
        else:
            assert request_rate is not None
            u = max(1.0 - uniform(rng), sys.float_info.min)
            gap = -(1000.0 / request_rate) * math.log(u)
        times.append(times[-1] + gap)
    return times


def synthetic_rows(
    input_tokens: int,
    output_tokens: int,
    request_count: int,
    *,
    block_size: int,
    request_rate: float | None = None,
    arrival_interval_ms: float | None = None,
    arrival_seed: int = 42,
    turns_per_session: int = 1,
    shared_prefix_ratio: float = 0.0,
    num_prefix_groups: int = 0,
    inter_turn_delay_ms: float = 0.0,
) -> list[dict[str, Any]]:
    """Rows for a replay whose trace block size is `block_size`; without an arrival option: for a closed loop."""
    blocks = ceil_div(input_tokens, block_size)
    shared = 0
    if num_prefix_groups > 0:
        shared = math.floor(shared_prefix_ratio * blocks + 0.5)
    groups = ChaCha12(GROUP_SEED)
    times: list[float] | None = None
    if request_rate is not None or arrival_interval_ms is not None:
        times = arrivals_ms(request_count, request_rate, arrival_interval_ms, arrival_seed)
    rows: list[dict[str, Any]] = []
    for session in range(request_count):
        group = draw_group(groups, num_prefix_groups) if shared else 0
        for turn in range(max(1, turns_per_session)):
            unshared = UNSHARED_START + len(rows) * blocks
            row: dict[str, Any] = {
                "session_id": f"session_{session}",
                "input_length": input_tokens,
                "output_length": output_tokens,
                "hash_ids": [group * blocks + k if k < shared else unshared + k for k in range(blocks)],
            }
            if turn > 0:
                row["delay"] = inter_turn_delay_ms
            elif times is not None:
                row["timestamp"] = times[session]
            rows.append(row)
    return rows
