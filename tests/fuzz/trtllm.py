"""Random replays of the TensorRT-LLM flavour from a seed; the same seed always gives the same case.

The cases of the other makers with another engine, and outputs that the pool has to cut: what this flavour decides hangs
on the whole life of a request.
"""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

from tests.fuzz.deltas import make_delta_case
from tests.fuzz.disaggregated import make_disaggregated_case
from tests.fuzz.generate import make_case
from tests.fuzz.graphs import make_graph_case
from tests.parity.cases import Case

BACKEND = "trtllm"


def make_trtllm_case(seed: int) -> Case:
    """The case of a seed, as the parity harness takes it."""
    rng = random.Random(seed)
    make = rng.choices((make_case, make_delta_case, make_graph_case, make_disaggregated_case), (6, 1, 1, 2))[0]
    case = make(seed)
    pools = [case.config[role] for role in ("prefill", "decode")] if "prefill" in case.config else [case.config]
    for pool in pools:
        pool["engine"]["backend"] = BACKEND
        pool["engine"].pop("prefill_schedule_interval", None)
    if case.format == "mooncake":
        tokens = min(pool["engine"]["num_gpu_blocks"] * pool["engine"]["block_size"] for pool in pools)
        rows = case.rows
        if rng.random() < 0.6:
            rows = [_longer(row, tokens, rng) for row in rows]
        longest = min(tokens, *(pool["engine"].get("max_model_len") or tokens for pool in pools))
        if len(pools) == 2 and any(_input_tokens(row, case) >= longest for row in rows):
            # Of a turn that a decode worker refuses the wheel forgets the later ones; in which round of an instant one
            # follows whom a prefill worker rejects is not specified.
            _forget_sessions(rows)
            case.args.pop("replay_concurrency", None)
        case = dataclasses.replace(case, trace_text="".join(json.dumps(row) + "\n" for row in rows))
    return dataclasses.replace(case, name=f"trtllm-{seed}")


def _longer(row: dict[str, Any], pool_tokens: int, rng: random.Random) -> dict[str, Any]:
    """Now and then a row that asks for more than the pool holds."""
    if rng.random() < 0.7:
        return row
    return row | {"output_length": rng.choice((1, pool_tokens // 2, pool_tokens, pool_tokens + 1, 2 * pool_tokens))}


def _input_tokens(row: dict[str, Any], case: Case) -> int:
    tokens: int = row.get("input_length", len(row["hash_ids"]) * case.args["trace_block_size"])
    return tokens


def _forget_sessions(rows: list[dict[str, Any]]) -> None:
    latest = 0.0
    for row in rows:
        row.pop("session_id", None)
        row.pop("delay", None)
        latest = row.setdefault("timestamp", latest)
