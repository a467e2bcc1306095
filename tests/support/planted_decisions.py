"""Faults about the decisions of a policy, planted into logs; see planted.py."""

from __future__ import annotations

import random
from typing import Any

from tests.support.planted import breaks, of_kind, ranks_of, some
from tests.support.random_logs import Log

Event = dict[str, Any]


def decisions(log: Log, *kinds: str) -> list[Event]:
    return [event for event in of_kind(log, "decision") if event["kind"] in kinds]


@breaks("decision")
def chosen_instead_of_itself(log: Log, rng: random.Random) -> int | None:
    event = some(rng, decisions(log, "order", "victim"))
    if event is None:
        return None
    event["instead_of"] = event["request"]
    return int(event["seq"])


@breaks("decision")
def chosen_before_a_stranger(log: Log, rng: random.Random) -> int | None:
    event = some(rng, decisions(log, "order", "victim"))
    if event is None:
        return None
    event["instead_of"] = "nobody"
    return int(event["seq"])


@breaks("decision")
def veto_in_favour_of_one(log: Log, rng: random.Random) -> int | None:
    event = some(rng, decisions(log, "veto"))
    if event is None:
        return None
    reason = event.pop("reason")
    event |= {"instead_of": event["request"], "reason": reason}
    return int(event["seq"])


@breaks("decision")
def placement_of_round_robin(log: Log, rng: random.Random) -> int | None:
    event = some(rng, decisions(log, "placement"))
    if event is None:
        return None
    event["instead_of"] = [event["worker"], event["rank"]]
    return int(event["seq"])


@breaks("decision")
def another_victim(log: Log, rng: random.Random) -> int | None:
    """Who stood first is named, and who was chosen instead of it is preempted."""
    event = some(rng, decisions(log, "victim"))
    if event is None:
        return None
    event["request"], event["instead_of"] = event["instead_of"], event["request"]
    return int(event["seq"]) + 1


@breaks("decision")
def nobody_decides(log: Log, rng: random.Random) -> int | None:
    first = [event["seq"] for event in of_kind(log, "decision")]
    first += [event["seq"] for event, rank in ranks_of(log, "pass_start") if "budget" in rank]
    if not first:
        return None
    log.header["options"]["policy"] = "fcfs"
    return int(min(first))


@breaks("budget")
def more_than_the_policy_gave(log: Log, rng: random.Random) -> int | None:
    found = [
        (event, rank)
        for event, rank in ranks_of(log, "pass_start")
        if "budget" in rank and 2 <= rank["scheduled_tokens"] <= rank["budget"][0]
    ]
    pair = some(rng, found)
    if pair is None:
        return None
    event, rank = pair
    rank["budget"][0] = rank["scheduled_tokens"] - 1
    return int(event["seq"])
