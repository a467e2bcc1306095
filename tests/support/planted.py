"""Faults planted into logs: for each rule of the audit, changes that break this rule and no other.

A fault takes a log that may be changed and a source of chance. It returns the `seq` of the line at which the rule has
to be found broken, FOOTER for the footer, or None where this log offers no place for it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.random_logs import Log

FOOTER = -1
ENDS = ("finish", "rejection", "cancellation", "failure")
Event = dict[str, Any]
Fault = Callable[[Log, random.Random], int | None]
FAULTS: dict[str, list[Fault]] = {}


def breaks(rule: str) -> Callable[[Fault], Fault]:
    """Marks a fault with the rule it breaks."""

    def mark(fault: Fault) -> Fault:
        FAULTS.setdefault(rule, []).append(fault)
        return fault

    return mark


def some(rng: random.Random, items: list[Any]) -> Any:
    return rng.choice(items) if items else None


def of_kind(log: Log, *kinds: str) -> list[Event]:
    return [event for event in log.events if event["event"] in kinds]


def shows_tokens(log: Log) -> bool:
    return log.level in ("tokens", "kv")


def group_end(log: Log, head: Event) -> int:
    """Where the lines end that belong to a pass start or pass end."""
    at = head["seq"] + 1
    members = {
        "pass_start": ("admission", "preemption", "decision"),
        "pass_end": ("kv_removed", "kv_stored", "first_token", "tokens", "finish", "rejection", "failure"),
    }[head["event"]]
    while at < len(log.events) and log.events[at]["event"] in members:
        at += 1
    return at


def is_quiet_after(log: Log, head: Event) -> bool:
    """Whether no command tells of a worker between this pass end and its next pass."""
    for event in log.events[head["seq"] + 1 :]:
        if event.get("worker") == head["worker"] and event["event"] in ("command", "pass_start"):
            return bool(event["event"] == "pass_start")
    return True


def ranks_of(log: Log, kind: str) -> list[tuple[Event, Event]]:
    """(pass line, one of its ranks)."""
    return [(event, rank) for event in of_kind(log, kind) for rank in event["ranks"]]


def pass_pairs(log: Log) -> Iterator[tuple[Event, Event]]:
    """Start and end of each pass that ended."""
    started: dict[int, Event] = {}
    for event in of_kind(log, "pass_start", "pass_end"):
        if event["event"] == "pass_start":
            started[event["worker"]] = event
        else:
            yield started.pop(event["worker"]), event


def in_flight_at(log: Log, seq: int, worker: int) -> Event | None:
    """The pass in flight on a worker just before a line."""
    for event in reversed(log.events[:seq]):
        if event.get("worker") == worker and event["event"] == "pass_start":
            return event
        if event.get("worker") == worker and event["event"] == "pass_end":
            return None
    return None


def rank_in(event: Event, number: int) -> Event | None:
    return next((rank for rank in event["ranks"] if rank["rank"] == number), None)


def is_placed(log: Log, arrival: Event) -> bool:
    """Whether a policy's decision stands behind an arrival."""
    return any(event["event"] == "decision" for event in log.events[arrival["seq"] + 1 : arrival["seq"] + 2])


def insert(log: Log, at: int, event: Event) -> int:
    log.events.insert(at, {"seq": 0} | event)
    log.recount()
    return at


# -- lines ----------------------------------------------------------------------------------------------


@breaks("form")
def unknown_key(log: Log, rng: random.Random) -> int | None:
    event = some(rng, log.events)
    if event is not None:
        event["colour"] = "red"
        return int(event["seq"])
    return None


@breaks("form")
def keys_in_another_order(log: Log, rng: random.Random) -> int | None:
    event = some(rng, log.events)
    if event is None:
        return None
    event["t_ms"] = event.pop("t_ms")
    return int(event["seq"])


@breaks("seq")
def number_twice(log: Log, rng: random.Random) -> int | None:
    if len(log.events) < 2:
        return None
    event = rng.choice(log.events[1:])
    seq = event["seq"]
    event["seq"] -= 1
    return int(seq)


@breaks("time")
def early_arrival(log: Log, rng: random.Random) -> int | None:
    found = [
        (above, event)
        for above, event in zip(log.events, log.events[1:], strict=False)
        if event["event"] == above["event"] == "arrival" and above["t_ms"] > 0.0 and not is_placed(log, event)
    ]
    pair = some(rng, found)
    if pair is None:
        return None
    pair[1]["t_ms"] = math.nextafter(pair[0]["t_ms"], 0.0)
    return int(pair[1]["seq"])


@breaks("time")
def early_submission(log: Log, rng: random.Random) -> int | None:
    found = [event for event in of_kind(log, "command") if event["kind"] == "submit" and event["t_ms"] > 0.0]
    event = some(rng, found)
    if event is None:
        return None
    event["t_ms"] = math.nextafter(event["t_ms"], 0.0)
    return int(event["seq"])


@breaks("grouping")
def member_at_another_time(log: Log, rng: random.Random) -> int | None:
    if log.level == "requests":
        return None
    event = some(rng, of_kind(log, "admission", "preemption", "kv_stored", "kv_removed"))
    if event is None:
        return None
    event["t_ms"] = math.nextafter(event["t_ms"], math.inf)
    return int(event["seq"])


@breaks("grouping")
def blocks_behind_tokens(log: Log, rng: random.Random) -> int | None:
    """The last line about blocks of a rank goes behind the first one about tokens."""
    found = [
        event["seq"]
        for event, below in zip(log.events, log.events[1:], strict=False)
        if event["event"] == "kv_stored" and below["event"] == "first_token" and event["rank"] == below["rank"]
    ]
    seq = some(rng, found)
    if seq is None:
        return None
    log.events[seq], log.events[seq + 1] = log.events[seq + 1], log.events[seq]
    log.recount()
    return int(seq) + 1


# -- the life of a request --------------------------------------------------------------------------------


@breaks("arrival")
def row_twice(log: Log, rng: random.Random) -> int | None:
    arrivals = of_kind(log, "arrival")
    if len(arrivals) < 2:
        return None
    at = rng.randrange(1, len(arrivals))
    arrivals[at]["row"] = int(rng.choice(arrivals[:at])["request"][1:])
    return int(arrivals[at]["seq"])


@breaks("arrival")
def row_beyond_the_trace(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "arrival"))
    if event is None:
        return None
    event["row"] = log.header["trace"]["rows"]
    return int(event["seq"])


@breaks("known")
def two_ends(log: Log, rng: random.Random) -> int | None:
    found = [
        event for event in of_kind(log, "finish", "rejection") if log.level != "passes" or not event["output_tokens"]
    ]
    event = some(rng, found)
    return None if event is None else insert(log, event["seq"] + 1, dict(event))


@breaks("known")
def lost_arrival(log: Log, rng: random.Random) -> int | None:
    """A request that is cut without anything having happened to it."""
    if not log.events or log.events[-1]["event"] != "cut":
        return None
    return insert(
        log, len(log.events), log.events[-1] | {"request": "nobody", "output_tokens": 0, "last_token_ms": None}
    )


@breaks("placement")
def another_rank(log: Log, rng: random.Random) -> int | None:
    kinds = {"requests": ("first_token", "finish", "admission"), "passes": ("command",)}.get(log.level, ("finish",))
    found = [event for event in of_kind(log, *kinds) if event["event"] != "command" or (event["kind"] == "submit")]
    event = some(rng, [e for e in found if log.level == "requests" or e["event"] == "command" or is_last(log, e)])
    if event is None:
        return None
    event["rank"] = log.header["config"]["dp_size"]
    return int(event["seq"])


def is_last(log: Log, event: Event) -> bool:
    """Whether the line ends its group, so that its rank is no matter of order."""
    below = log.events[event["seq"] + 1 :]
    return not below or below[0]["event"] in ("arrival", "command", "pass_start", "pass_end", "cut")


@breaks("submission")
def submitted_twice(log: Log, rng: random.Random) -> int | None:
    event = some(rng, [event for event in of_kind(log, "command") if event["kind"] == "submit"])
    return None if event is None else insert(log, event["seq"] + 1, dict(event))


@breaks("submission")
def submitted_in_a_pass(log: Log, rng: random.Random) -> int | None:
    event = some(rng, [event for event in of_kind(log, "command") if event["kind"] == "submit"])
    if event is None:
        return None
    event["in_pass"] = True
    return int(event["seq"])


@breaks("admission")
def readmission_or_not(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "admission"))
    if event is None:
        return None
    event["readmission"] = not event["readmission"]
    return int(event["seq"])


@breaks("preemption")
def preemptions_miscounted(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "preemption"))
    if event is None:
        return None
    event["preemptions"] += 1
    return int(event["seq"])


@breaks("preemption")
def generated_miscounted(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "preemption")) if shows_tokens(log) else None
    if event is None:
        return None
    event["generated_tokens"] += 1
    return int(event["seq"])


@breaks("first-token")
def first_token_twice(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "first_token"))
    if event is None:
        return None
    at = event["seq"] + 1
    return insert(log, at, dict(event))


@breaks("cancellation")
def suppressed_between_passes(log: Log, rng: random.Random) -> int | None:
    applied = [event for event in of_kind(log, "command") if event["result"] == "applied"]
    event = some(rng, [event for event in applied if not event["in_pass"]])
    if event is None:
        return None
    event["suppressed"] = True
    return int(event["seq"])


@breaks("cancellation")
def in_pass_or_not(log: Log, rng: random.Random) -> int | None:
    found = [event for event in of_kind(log, "command") if event["kind"] == "cancel" and not event["suppressed"]]
    event = some(rng, found)
    if event is None:
        return None
    event["in_pass"] = not event["in_pass"]
    return int(event["seq"])


@breaks("cancellation")
def nothing_found(log: Log, rng: random.Random) -> int | None:
    """A client leaves a request that waits, and nobody finds it."""
    event = some(rng, [event for event in of_kind(log, "command") if event["kind"] == "submit"])
    if event is None:
        return None
    left = {key: value for key, value in event.items() if key != "gauges"}
    return insert(log, event["seq"] + 1, left | {"kind": "cancel", "result": "noop", "suppressed": False})


@breaks("end")
def reason_of_another(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "finish"))
    if event is None:
        return None
    event["reason"] = "client"
    return int(event["seq"])


@breaks("end")
def figures_of_another(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "rejection"))
    if event is None:
        return None
    event["needed_blocks" if "needed_blocks" in event else "needed_tokens"] += 1
    return int(event["seq"])


@breaks("cut")
def life_after_a_cut(log: Log, rng: random.Random) -> int | None:
    """A cancellation comes too late for anything, and after the end of the run."""
    if log.level == "requests" or not of_kind(log, "cut"):
        return None
    cut = log.events[-1]
    flight = in_flight_at(log, len(log.events), cut["worker"])
    command = {
        "t_ms": cut["t_ms"] if flight is None else flight["t_ms"], "event": "command", "kind": "cancel",
        "request": "nobody", "worker": cut["worker"], "rank": cut["rank"], "in_pass": flight is not None,
        "result": "noop", "suppressed": False,
    }  # fmt: skip
    return insert(log, len(log.events), command)


@breaks("left-over")
def lost_end(log: Log, rng: random.Random) -> int | None:
    ends = [e for e in of_kind(log, "cut") if log.level != "passes" or not e["output_tokens"]]
    if log.level == "requests":
        # Who never leaves counts as running where somebody else is admitted or preempted.
        moved = max((event["seq"] for event in of_kind(log, "admission", "preemption")), default=-1)
        ends += of_kind(log, "rejection") + [event for event in of_kind(log, "finish") if event["seq"] > moved]
    event = some(rng, ends)
    if event is None:
        return None
    del log.events[event["seq"]]
    log.recount()
    return FOOTER


# -- tokens -----------------------------------------------------------------------------------------------


@breaks("token-count")
def total_off(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "tokens"))
    if event is None:
        return None
    event["total"] += 1
    return int(event["seq"])


@breaks("output-tokens")
def delivered_less(log: Log, rng: random.Random) -> int | None:
    found = [event for event in of_kind(log, "finish") if event["output_tokens"] >= 2 and log.level != "passes"]
    if shows_tokens(log):
        found += [event for event in of_kind(log, "cancellation", "cut") if event["output_tokens"] >= 2]
    event = some(rng, [event for event in found if event.get("reason") != "model_len" or shows_tokens(log)])
    if event is None:
        return None
    event["output_tokens"] -= 1
    return int(event["seq"])


@breaks("last-token")
def another_last_token(log: Log, rng: random.Random) -> int | None:
    kinds = ENDS if shows_tokens(log) else ("finish",)
    event = some(rng, [event for event in of_kind(log, *kinds) if event["last_token_ms"]])
    if event is None:
        return None
    event["last_token_ms"] = math.nextafter(event["last_token_ms"], 0.0)
    return int(event["seq"])


@breaks("pass-tokens")
def pass_tokens_off(log: Log, rng: random.Random) -> int | None:
    found = [(event, rank) for event, rank in ranks_of(log, "pass_end") if rank["fpm"]["num_prefill_requests"]]
    pair = some(rng, found) if shows_tokens(log) else None
    if pair is None:
        return None
    pair[1]["tokens"] += 1
    return int(pair[0]["seq"])


@breaks("emitted")
def a_token_for_nobody(log: Log, rng: random.Random) -> int | None:
    found = [rank for _, rank in ranks_of(log, "pass_end") if rank["tokens"]]
    rank = some(rng, found) if log.level == "passes" else None
    if rank is None:
        return None
    rank["tokens"] += 1
    return FOOTER
