"""Random graphs of requests from a seed; the same seed always gives the same case.

Aims at the corners: ties at one instant, chains of dispatches, joins and diamonds, edges given twice, plays that fail
while others run, lanes, floors that come late. Every graph is valid; ids tell nothing of who waits for whom.
"""

from __future__ import annotations

import json
import random
from typing import Any

from tests.fuzz.generate import Draft
from tests.parity.cases import Case

DELAYS_MS = (0, 0, 0, 1, 2.5, 10, 10.0, 33.333, 1.0 / 3.0)
FLOORS_MS = (0, 0, 5, 10, 11, 12.5, 20, 21.7, 100)
RELATIONS = ("sequence", "spawn", "join", "replay_barrier")
LETTERS = "abcABC019_~\u00e9\u6f22\U0001f600"


def make_graph_case(seed: int) -> Case:
    """The case of a seed, as the parity harness takes it."""
    draft = Draft(seed)
    rng = draft.rng
    engine = draft.engine()
    config: dict[str, Any] = {"engine": engine}
    dp_size = rng.choice((1, 1, 1, 2, 3))
    if dp_size > 1:
        config["dp_size"] = dp_size
    rows = _rows(draft)
    args = draft.args(dp_size)
    for name in ("trace_block_size", "replay_concurrency"):
        args.pop(name, None)
    args |= {"trace_format": "agentic_mooncake", "execution_model": "m"}
    if rng.random() < 0.4:
        args["agentic_lanes"] = rng.choice((1, 1, 2, 3, 50))
    npz = draft.profile() if draft.profiled else {}
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return Case(f"graph-{seed}", "agentic_mooncake", config, text, args, {}, npz_arrays=npz)


def _rows(draft: Draft) -> list[dict[str, Any]]:
    """Header and requests, the latter shuffled."""
    rng = draft.rng
    header = {
        "schema": "dynamo.agentic_mooncake", "version": 2, "block_size": draft.trace_block_size,
        "hash_id_scope": "local", "source": {"format": "fuzz", "digest": str(draft.seed)},
    }  # fmt: skip
    num_plays = rng.choice((1, 1, 2, 3, 5, 8))
    plays = [f"{rng.choice(LETTERS)}{play}" for play in range(num_plays)]
    ordinals = rng.sample(range(num_plays), num_plays) if rng.random() < 0.3 else None
    names = _names(rng, draft.num_rows)
    floors = rng.choice((FLOORS_MS, (0,), (7, 7.0), tuple(round(rng.uniform(0, 200), 3) for _ in range(5))))
    documents = [[rng.getrandbits(64) for _ in range(200)] for _ in range(rng.choice((1, 2, 4)))]
    made: dict[int, list[str]] = {}  # by play, in an order in which they could run
    rows = []
    for name in names:
        play = rng.randrange(num_plays)
        before = made.setdefault(play, [])
        row = _request(draft, documents) | {
            "request_id": name, "play_id": plays[play], "session_id": f"s{rng.randrange(4)}",
            "model": rng.choice(("m", "n")), "not_before_ms": rng.choice(floors),
        }  # fmt: skip
        dependencies = _dependencies(rng, before)
        if dependencies or rng.random() < 0.5:
            row["dependencies"] = dependencies
        before.append(name)
        rows.append((play, row))
    if ordinals is not None and len(made) == num_plays:
        for play, row in rows:
            row["source_play_ordinal"] = ordinals[play]
    shuffled = [row for _, row in rows]
    rng.shuffle(shuffled)
    return [header, *shuffled]


def _names(rng: random.Random, count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 4)))] = None
    return list(names)


def _request(draft: Draft, documents: list[list[int]]) -> dict[str, Any]:
    rng = draft.rng
    longest = draft.max_blocks_a_request * draft.block_size
    n_in = rng.choice((rng.randint(1, longest), longest, draft.block_size))
    n_out = rng.choice((0, 0, 1, 2, rng.randint(1, 10), rng.randint(1, longest)))
    if rng.random() < 0.06:
        n_in = (draft.num_blocks + 1) * draft.block_size  # over the pool: rejected
    elif draft.spare_impossible:
        room = draft.num_blocks * draft.block_size
        n_in = min(n_in, room)
        n_out = min(n_out, max(0, room - n_in))
    needed = -(-n_in // draft.trace_block_size)
    document = rng.choice(documents)
    shared = rng.choice((0, rng.randint(0, needed), needed))
    ids = [document[at % 200] if at < shared else rng.getrandbits(62) for at in range(needed)]
    return {"input_length": n_in, "output_length": n_out, "hash_ids": ids}


def _dependencies(rng: random.Random, before: list[str]) -> list[dict[str, Any]]:
    if not before or rng.random() < 0.2:
        return []
    sources = rng.choices(before, k=rng.choice((1, 1, 1, 2, 2, 3, 5)))
    if rng.random() < 0.4:
        sources[0] = before[-1]
    edges = []
    for source in sources:
        is_dispatch = rng.random() < 0.4
        edges.append(
            {
                "request_id": source,
                "trigger": "dispatch" if is_dispatch else "completion",
                "delay_ms": rng.choice(DELAYS_MS),
                "relation": "spawn" if is_dispatch else rng.choice(RELATIONS),
            }
        )
    return edges
