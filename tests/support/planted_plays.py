"""Faults about plays of a graph, planted into logs; see planted.py."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from tests.support.planted import ENDS, FOOTER, breaks, of_kind, some
from tests.support.random_logs import Log

Event = dict[str, Any]


def plays_of(log: Log) -> int | None:
    plays: int | None = log.header["trace"].get("plays")
    return plays


def with_play(event: Event, play: int | None) -> None:
    """Tell another play, at the place of its key."""
    row = event.pop("row", None)
    terms = {key: event.pop(key) for key in ("priority", "deadline_ms") if key in event}
    event.pop("play", None)
    if play is not None:
        event["play"] = play
    event |= terms
    if row is not None:
        event["row"] = row


@breaks("play")
def no_such_play(log: Log, rng: random.Random) -> int | None:
    event, plays = some(rng, of_kind(log, "arrival")), plays_of(log)
    if event is None or plays is None:
        return None
    with_play(event, plays + rng.randrange(3))
    return int(event["seq"]) if is_left_alone(log, event) else None


@breaks("play")
def no_play_told(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "arrival"))
    if event is None or plays_of(log) is None or not is_left_alone(log, event):
        return None
    with_play(event, None)
    return int(event["seq"])


@breaks("play")
def play_of_no_graph(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "arrival"))
    if event is None or plays_of(log) is not None:
        return None
    with_play(event, rng.randrange(3))
    return int(event["seq"])


@breaks("play")
def play_that_has_failed(log: Log, rng: random.Random) -> int | None:
    if plays_of(log) is None or log.header["options"].get("agentic_lanes") is not None:
        return None
    places = []
    for event in of_kind(log, "arrival"):
        failed = [play for play, seq in failures(log) if seq < event["seq"]]
        if failed and is_left_alone(log, event):
            places.append((event, failed))
    if not places:
        return None
    event, failed = rng.choice(places)
    with_play(event, rng.choice(failed))
    return int(event["seq"])


@breaks("lanes")
def one_lane_less(log: Log, rng: random.Random) -> int | None:
    if plays_of(log) is None:
        return None
    running: Counter[int] = Counter()
    most, first_seq = 0, 0
    of_request: dict[str, int] = {}
    for event in of_kind(log, "arrival", *ENDS):
        if event["event"] == "arrival":
            of_request[event["request"]] = event["play"]
            running[event["play"]] += 1
            if len(+running) > most:
                most, first_seq = len(+running), event["seq"]
        else:
            running[of_request[event["request"]]] -= 1
    if most < 2:
        return None
    log.header["options"]["agentic_lanes"] = most - 1
    return int(first_seq)


@breaks("skipped")
def one_more_skipped(log: Log, rng: random.Random) -> int | None:
    if plays_of(log) is None or log.footer["end"] != "complete":
        return None
    log.footer["skipped"] += 1
    return FOOTER


@breaks("skipped")
def skipped_without_a_failure(log: Log, rng: random.Random) -> int | None:
    if plays_of(log) is None or failures(log):
        return None
    log.footer["skipped"] = log.header["trace"]["rows"] - log.footer["arrived"]
    return FOOTER if log.footer["skipped"] else None


def failures(log: Log) -> list[tuple[int, int]]:
    """(play, seq) of each request of a graph that did not finish."""
    of_request = {event["request"]: event["play"] for event in of_kind(log, "arrival") if "play" in event}
    bad = of_kind(log, *(kind for kind in ENDS if kind != "finish"))
    return [(of_request[event["request"]], event["seq"]) for event in bad if event["request"] in of_request]


def is_left_alone(log: Log, arrival: Event) -> bool:
    """Whether nothing else follows from the play of an arrival: it is no failure that explains who was skipped."""
    bad = [event["request"] for event in of_kind(log, *(kind for kind in ENDS if kind != "finish"))]
    return arrival["request"] not in bad
