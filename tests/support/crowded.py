"""Random runs in which there is always somebody to choose: more requests than there is room for."""

from __future__ import annotations

import random
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
from msgspec import structs

from mocker_replay.config import EngineConfig, ReplayOptions, TimingModel
from mocker_replay.replay import replay
from tests.property.replays import TRACE_BLOCK_SIZE, Case
from tests.support.policies import OddJobs
from tests.support.random_logs import Log, read_log


def crowded(seed: int) -> Case:
    """More requests than there is room for, with prefixes in common, priorities and deadlines."""
    draw = random.Random(seed)
    block_size = draw.choice((2, 3, 4))
    num_blocks = draw.randint(6, 14)
    chunked = draw.random() < 0.8
    rates = (0.7, 0.4) if draw.random() < 0.15 else ()
    config = EngineConfig(
        num_gpu_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=draw.choice((1, 2, 3, 4, None)),
        max_num_batched_tokens=draw.choice((6, 12, 30)) if chunked else None,
        max_model_len=draw.choice((None, None, 40)),
        enable_prefix_caching=draw.random() < 0.8,
        enable_chunked_prefill=chunked,
        preemption_mode=draw.choice(("lifo", "fifo")),
        prefill_schedule_interval=draw.choice((1, 1, 2)),
        dp_size=draw.choice((1, 1, 1, 2)),
        aic_nextn=len(rates) or None,
        aic_nextn_accept_rates=rates,
        timing_model=TimingModel("fixed", draw.choice((1.0, 2.5)), draw.choice((0.5, 1.0))),
        num_gpu_blocks_is_explicit=True,
    )
    rows = []
    for _ in range(draw.randint(4, 24)):
        n_in = draw.randint(1, min(24, num_blocks * block_size - 2))
        prefix = draw.randrange(3)
        blocks = -(-n_in // TRACE_BLOCK_SIZE)
        shared = draw.randint(0, blocks)
        row: dict[str, Any] = {
            "timestamp": draw.choice((0, 0, 1, 2.5, draw.randint(0, 30))),
            "input_length": n_in,
            "output_length": draw.randint(0, 14),
            "hash_ids": [100 * prefix + i if i < shared else draw.randrange(10**6, 10**9) for i in range(blocks)],
        }
        if draw.random() < 0.6:
            row["priority"] = draw.randint(-2, 2)
        if draw.random() < 0.6:
            row["deadline_ms"] = draw.choice((0.0, 5.0, 17.5, 40.0))
        if draw.random() < 0.1:
            row["cancel_after_ms"] = draw.choice((0, 3, 12.5))
        rows.append(row)
    options = ReplayOptions(
        num_workers=draw.choice((1, 1, 2)),
        replay_concurrency=draw.choice((None, None, None, 5)),
        trace_block_size=TRACE_BLOCK_SIZE,
        max_sim_time_ms=draw.choice((None, None, None, 30.25)),
    )
    return Case(config, options, rows, "passes", 1024)


@lru_cache(maxsize=256)
def crowded_log(seed: int, level: str) -> Log:
    """The log of such a run under a policy that departs in every way. Not to be changed: `copy` it."""
    case = crowded(seed)
    config = structs.replace(case.config, enable_chunked_prefill=True)  # small budgets would keep a prompt out
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "trace.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in case.rows))
        result = replay(
            folder / "trace.jsonl",
            config,
            case.options,
            events=folder / "log.jsonl",
            event_level=level,
            policy=OddJobs(),
        )
        return read_log((folder / "log.jsonl").read_bytes(), result.summary)
