"""Random `mooncake-delta` traces from a seed: sessions whose histories share prefixes, outputs included.

Outputs are authored in a tiny alphabet that hash ids share, so that answers of one session equal prompts of another.
"""

from __future__ import annotations

import json
from typing import Any

from tests.fuzz.generate import Draft
from tests.parity.cases import Case


def make_delta_case(seed: int) -> Case:
    """The case of a seed, as the parity harness takes it."""
    draft = Draft(seed)
    rng = draft.rng
    draft.num_blocks *= rng.choice((2, 4, 8))  # histories grow
    draft.spare_impossible = True
    config: dict[str, Any] = {"engine": draft.engine()}
    dp_size = rng.choice((1, 1, 1, 2))
    if dp_size > 1:
        config["dp_size"] = dp_size
    rows = _rows(draft)
    args = draft.args(dp_size)
    args.pop("router_mode", None)
    args |= {"trace_format": "mooncake-delta", "trace_block_size": draft.trace_block_size}
    if "replay_concurrency" in args:
        for row in rows:
            if row.get("timestamp", 0) < 0:
                row["timestamp"] = 0
    npz = draft.profile() if draft.profiled else {}
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return Case(f"delta-{seed}", "mooncake-delta", config, text, args, {}, npz_arrays=npz)


def _rows(draft: Draft) -> list[dict[str, Any]]:
    rng = draft.rng
    rows = draft.rows()
    num_sessions = rng.choice((1, 2, 3, 5))
    openings = [[rng.randrange(4) for _ in range(3)] for _ in range(2)]
    begun: set[str] = set()
    for row in rows:
        name = f"s{rng.randrange(num_sessions)}"
        row["session_id"] = name
        n_in = rng.choice((1, draft.block_size, rng.randint(1, 2 * draft.block_size)))
        row["input_length"], row["output_length"] = n_in, rng.choice((0, 1, 2, 5, rng.randint(0, 2 * draft.block_size)))
        needed = -(-n_in // draft.trace_block_size)
        ids = openings[rng.randrange(2)] if rng.random() < 0.7 else [rng.randrange(6) for _ in range(3)]
        row["hash_ids"] = [ids[at % 3] for at in range(needed + rng.choice((0, 0, 1)))]
        for key in ("delay", "delay_ms"):
            row.pop(key, None)
        if name in begun:
            row.pop("timestamp", None)
            row["delay"] = rng.choice((0, 1, 2.5))
        else:
            row.setdefault("timestamp", 5)
        begun.add(name)
        if rng.random() < 0.7:
            row["output_token_ids"] = [rng.choice((0, 0, 0, 1)) for _ in range(row["output_length"])]
    return rows
