"""Random replays with a router from a seed, and how they are compared although the wheel draws among equal costs.

The wheel's draws have no seed. Here a draw follows its: where several ranks cost the same and the wheel's is
one of them, the router takes that one. A router that finds other costs still goes elsewhere. For that, each request of
a case can be told by its lengths.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from mocker_replay.replay.router import Ties
from tests.fuzz.disaggregated import make_disaggregated_case
from tests.fuzz.generate import make_case
from tests.fuzz.sglang import make_sglang_case, make_sglang_pools_case
from tests.parity.cases import Case

Lengths = tuple[int, int]  # of prompt and wanted output [tokens]


def make_routed_case(seed: int) -> Case:
    """Workers of one kind."""
    rng = random.Random(seed)
    case = make_sglang_case(seed) if rng.random() < 0.2 else make_case(seed)
    if case.format == "synthetic":
        return case
    case.args["num_workers"] = rng.choice((1, 2, 2, 3, 4))
    return _routed(case, rng)


def make_routed_pools_case(seed: int) -> Case:
    """Prefill and decode workers of either order of a handoff."""
    rng = random.Random(seed)
    case = make_sglang_pools_case(seed) if rng.random() < 0.3 else make_disaggregated_case(seed)
    for role in ("prefill", "decode"):
        case.args[f"num_{role}_workers"] = rng.choice((1, 2, 2, 3))
    return _routed(case, rng)


def _routed(case: Case, rng: random.Random) -> Case:
    case.args["router_mode"] = "kv_router"
    if rng.random() < 0.3:
        case.args["kv_event_lag_ms"] = rng.choice((0.0, 1.0, 2.5, 10.0, 33.0))
    rows = case.rows
    _tell_apart(rows, case.args["trace_block_size"])
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return Case(case.name, case.format, case.config, text, case.args, {}, npz_arrays=case.npz_arrays)


def _tell_apart(rows: list[dict[str, Any]], trace_block_size: int) -> None:
    """No two rows of equal lengths: the output of the later one becomes a little shorter, or longer."""
    seen: set[Lengths] = set()
    for row in rows:
        n_in, n_out = lengths_of(row, trace_block_size)
        near = (n_out + step * sign for step in range(1000) for sign in (-1, 1))
        row["output_length"] = next(n for n in near if n >= 0 and (n_in, n) not in seen)
        seen.add((n_in, row["output_length"]))


def lengths_of(row: Mapping[str, Any], trace_block_size: int) -> Lengths:
    """Of prompt and wanted output."""
    return row.get("input_length", len(row.get("hash_ids", ())) * trace_block_size), row["output_length"]


def has_ties(case: Case) -> bool:
    """Whether the wheel may draw."""
    return case.args.get("router_mode") == "kv_router" and case.format == "mooncake"


def can_be_told_apart(case: Case) -> bool:
    """Whether each request has lengths of its own."""
    lengths = [lengths_of(row, case.args["trace_block_size"]) for row in case.rows]
    return len(set(lengths)) == len(lengths)


class Draws:
    """Whether a draw of the wheel was not known, so that nothing can be said of what follows from it."""

    def __init__(self) -> None:
        self.unknown = False


@contextlib.contextmanager
def following(case: Case, records: Sequence[Mapping[str, Any]]) -> Iterator[Draws]:
    """Draws among ranks of equal cost come out as in the wheel's run with these records."""
    taken = _places_taken(case, records)
    drawn, draws = Ties.pick, Draws()

    def pick(self: Ties, request: int, pool: str, costs: Sequence[float]) -> int:
        wanted = taken.get((request, pool), -1)
        if 0 <= wanted < len(costs) and costs[wanted] == min(costs):
            return wanted
        draws.unknown = draws.unknown or (wanted < 0 and costs.count(min(costs)) > 1)
        return drawn(self, request, pool, costs)

    with mock.patch.object(Ties, "pick", pick):
        yield draws


def _places_taken(case: Case, records: Sequence[Mapping[str, Any]]) -> dict[tuple[int, str], int]:
    """By row and pool, the rank that the wheel chose; of requests that had not ended nothing is known."""
    if not has_ties(case):
        return {}
    rows = {lengths_of(row, case.args["trace_block_size"]): at for at, row in enumerate(case.rows)}
    taken: dict[tuple[int, str], int] = {}
    for record in records:
        row = rows[record["input_length"], record["requested_output_length"]]
        for route in record["routing_history"]:
            taken[row, route["pool"]] = route["scheduler_id"]
    return taken
