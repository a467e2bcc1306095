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
        "pass_start": ("admission", "preemption"),
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
        if event["event"] == above["event"] == "arrival" and above["t_ms"] > 0.0
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


# -- passes -----------------------------------------------------------------------------------------------


@breaks("pass-pair")
def end_of_another_pass(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "pass_end"))
    if event is None:
        return None
    event["pass"] += 1
    return int(event["seq"])


@breaks("pass-number")
def number_left_out(log: Log, rng: random.Random) -> int | None:
    pair = some(rng, list(pass_pairs(log)))
    if pair is None:
        return None
    for event in pair:
        event["pass"] += 1
    return int(pair[0]["seq"])


@breaks("pass-time")
def end_at_another_time(log: Log, rng: random.Random) -> int | None:
    pair = some(rng, list(pass_pairs(log)))
    if pair is None:
        return None
    start, end = pair
    start["end_ms"] = math.nextafter(start["end_ms"], math.inf)
    latest = [rank for rank in start["ranks"] if rank.get("end_ms") == end["t_ms"]]
    for rank in latest:
        rank["end_ms"] = start["end_ms"]
    return int(end["seq"])


@breaks("pass-time")
def rank_later_than_its_pass(log: Log, rng: random.Random) -> int | None:
    found = [(event, rank) for event, rank in ranks_of(log, "pass_start") if "end_ms" in rank]
    pair = some(rng, found)
    if pair is None:
        return None
    pair[1]["end_ms"] = math.nextafter(pair[0]["end_ms"], math.inf)
    return int(pair[0]["seq"])


@breaks("pass-ranks")
def ranks_in_another_order(log: Log, rng: random.Random) -> int | None:
    event = some(rng, [event for event in of_kind(log, "pass_end") if len(event["ranks"]) > 1])
    if event is None:
        return None
    event["ranks"].reverse()
    return int(event["seq"])


@breaks("wave")
def wave_off(log: Log, rng: random.Random) -> int | None:
    event = some(rng, [event for event in of_kind(log, "pass_start") if "wave" in event])
    if event is None:
        return None
    event["wave"] += 1_000  # one more is no fault where the worker may have been empty
    return int(event["seq"])


@breaks("wall-time")
def wall_time_off(log: Log, rng: random.Random) -> int | None:
    pair = some(rng, ranks_of(log, "pass_end"))
    if pair is None:
        return None
    pair[1]["fpm"]["wall_time"] = math.nextafter(pair[1]["fpm"]["wall_time"], math.inf)
    return int(pair[0]["seq"])


@breaks("pass-lists")
def list_off(log: Log, rng: random.Random) -> int | None:
    found = [(event, rank) for event, rank in ranks_of(log, "pass_start") if "admitted" in rank or "preempted" in rank]
    pair = some(rng, found)
    if pair is None:
        return None
    del pair[1]["admitted" if "admitted" in pair[1] else "preempted"]
    return int(pair[0]["seq"])


@breaks("idle-rank")
def idle_rank_with_work(log: Log, rng: random.Random) -> int | None:
    found = [
        (end, rank)
        for start, end in pass_pairs(log)
        for rank in end["ranks"]
        if rank["rank"] not in {told["rank"] for told in start["ranks"]}
    ]
    pair = some(rng, found)
    if pair is None:
        return None
    pair[1]["fpm"]["num_queued_prefill"] = 1
    return int(pair[0]["seq"])


# -- work -------------------------------------------------------------------------------------------------


def calm_passes(log: Log) -> list[tuple[Event, Event, Event, Event]]:
    """(start, its rank, end, its rank) where nobody was ever preempted on this rank and the budget is not spent."""
    budget = log.engine["max_num_batched_tokens"]
    stirred = {(event["worker"], event["rank"]): event["seq"] for event in reversed(of_kind(log, "preemption"))}
    found = []
    for start, end in pass_pairs(log):
        for told in start["ranks"]:
            since = stirred.get((start["worker"], told["rank"]), math.inf)
            if end["seq"] < since and (budget is None or told["scheduled_tokens"] < budget):
                rank = rank_in(end, told["rank"])
                assert rank is not None
                found.append((start, told, end, rank))
    return found


@breaks("prefill")
def a_prompt_token_too_many(log: Log, rng: random.Random) -> int | None:
    found = []
    for start, told, end, rank in calm_passes(log):
        emitting = {
            event["request"]
            for event in log.events[end["seq"] : group_end(log, end)]
            if event["event"] == "first_token"
        }
        entries = [entry for entry in told.get("prefill", ()) if entry[0] in emitting]
        if entries:
            found.append((start, told, rank, rng.choice(entries)))
    chosen = some(rng, found)
    if chosen is None:
        return None
    start, told, rank, entry = chosen
    entry[1] += 1
    told["scheduled_tokens"] += 1
    rank["fpm"]["sum_prefill_tokens"] += 1
    return int(start["seq"])


@breaks("batch")
def more_scheduled_than_run(log: Log, rng: random.Random) -> int | None:
    running = running_by_pass(log)
    found = [
        (start, told, rank)
        for start, told, _, rank in calm_passes(log)
        if told["scheduled_requests"] == running[start["seq"], told["rank"]]
    ]
    chosen = some(rng, found)
    if chosen is None:
        return None
    start, told, rank = chosen
    told["scheduled_requests"] += 1
    told["scheduled_tokens"] += 1
    rank["fpm"]["num_decode_requests"] += 1
    return int(start["seq"])


def running_by_pass(log: Log) -> dict[tuple[int, int], int]:
    """(seq of a pass start, rank) -> requests that run once it has admitted and preempted."""
    counts: dict[tuple[int, int], int] = {}
    for seq, running in running_by_line(log):
        counts |= {(seq, rank): len(names) for rank, names in running.items()}
    return counts


def running_by_line(log: Log) -> Iterator[tuple[int, dict[int, set[str]]]]:
    """(seq of a pass start, rank -> who runs on its worker behind its group)."""
    workers: dict[int, dict[int, set[str]]] = {}
    pending: Event | None = None
    for event in [*log.events, {"event": "end"}]:
        if pending is not None and event["event"] not in ("admission", "preemption"):
            ranks = workers.setdefault(pending["worker"], {})
            yield pending["seq"], {rank["rank"]: ranks.setdefault(rank["rank"], set()) for rank in pending["ranks"]}
            pending = None
        if event["event"] == "pass_start":
            pending = event
        elif event["event"] == "admission":
            workers.setdefault(event["worker"], {}).setdefault(event["rank"], set()).add(event["request"])
        elif event["event"] in ("preemption", *ENDS):
            workers.setdefault(event["worker"], {}).setdefault(event["rank"], set()).discard(event["request"])


@breaks("chunking")
def chunks_where_none_may_be(log: Log, rng: random.Random) -> int | None:
    if not log.engine["enable_chunked_prefill"]:
        return None
    done: dict[str, int] = {}
    lengths = {event["request"]: event["input_tokens"] for event in of_kind(log, "arrival")}
    for event in of_kind(log, "pass_start"):
        for rank in event["ranks"]:
            done |= {name: min(reused, lengths[name]) for name, reused in rank.get("admitted", ())}
            for name, tokens in rank.get("prefill", ()):
                done[name] += tokens
                if done[name] < lengths[name]:
                    log.engine["enable_chunked_prefill"] = False
                    return int(event["seq"])
    return None


@breaks("budget")
def smaller_budget(log: Log, rng: random.Random) -> int | None:
    if any(event["reason"] == "prompt_over_budget" for event in of_kind(log, "failure")):
        return None
    tokens = [(rank["scheduled_tokens"], -event["seq"]) for event, rank in ranks_of(log, "pass_start")]
    if not tokens or max(tokens)[0] < 2:
        return None
    most, seq = max(tokens)
    log.engine["max_num_batched_tokens"] = most - 1
    return -seq


@breaks("fpm-batch")
def prefix_off(log: Log, rng: random.Random) -> int | None:
    found = [(end, rank) for _, told, end, rank in calm_passes(log) if told.get("prefill")]
    pair = some(rng, found)
    if pair is None:
        return None
    pair[1]["fpm"]["sum_prefill_kv_tokens"] += 1
    return int(pair[0]["seq"])


@breaks("fpm-queue")
def queue_off(log: Log, rng: random.Random) -> int | None:
    found = [
        (end, rank) for start, end in pass_pairs(log) for told in start["ranks"] if (rank := rank_in(end, told["rank"]))
    ]
    pair = some(rng, found)
    if pair is None:
        return None
    pair[1]["fpm"]["num_queued_decode"] += 1
    return int(pair[0]["seq"])


# -- limits -----------------------------------------------------------------------------------------------


@breaks("max-seqs")
def fewer_seqs(log: Log, rng: random.Random) -> int | None:
    running: dict[tuple[int, int], set[str]] = {}
    most = 0
    at: int | None = None
    for event in log.events:
        if event["event"] == "admission":
            names = running.setdefault((event["worker"], event["rank"]), set())
            names.add(event["request"])
            if len(names) > most:
                most, at = len(names), event["seq"]
        elif event["event"] in ("preemption", *ENDS):
            running.setdefault((event["worker"], event["rank"]), set()).discard(event["request"])
    if at is None or most < 2:
        return None
    log.engine["max_num_seqs"] = most - 1
    return at


@breaks("model-len")
def shorter_model(log: Log, rng: random.Random) -> int | None:
    if log.engine["max_model_len"] is not None:
        return None
    lengths = {event["request"]: event["input_tokens"] for event in of_kind(log, "arrival")}
    ends = [event for event in of_kind(log, *ENDS, "cut") if event["output_tokens"]]
    whole = [(lengths[event["request"]] + event["output_tokens"], -event["seq"]) for event in ends]
    if not whole:
        return None
    most, seq = max(whole)
    log.engine["max_model_len"] = most - 1
    return -seq


@breaks("reuse")
def reuse_without_a_cache(log: Log, rng: random.Random) -> int | None:
    reusing = [event["seq"] for event in of_kind(log, "admission") if event["reused_tokens"]]
    if log.level == "kv" or not reusing:
        return None
    log.engine["enable_prefix_caching"] = False
    return int(reusing[0])


@breaks("pool")
def more_blocks_than_there_are(log: Log, rng: random.Random) -> int | None:
    found = [(event, rank) for event, rank in ranks_of(log, "pass_end") if is_quiet_after(log, event)]
    pair = some(rng, found)
    if pair is None:
        return None
    gauges = pair[1]["gauges"]
    gauges["inactive_blocks"] = log.engine["num_gpu_blocks"] - gauges["active_blocks"] + 1
    return int(pair[0]["seq"])


@breaks("pool")
def more_held_than_fits(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "preemption"))
    if event is None:
        return None
    event["blocks_held"] += 1_000_000
    return int(event["seq"])


# -- gauges -----------------------------------------------------------------------------------------------


@breaks("gauges")
def gauges_off(log: Log, rng: random.Random) -> int | None:
    """Of a pass end or of a command, in mid-pass too where the pass ends."""
    told = [(event, rank["gauges"]) for event, rank in ranks_of(log, "pass_end")]
    ended = {start["seq"] for start, _ in pass_pairs(log)}
    for event in of_kind(log, "command"):
        flight = in_flight_at(log, event["seq"], event["worker"])
        if "gauges" in event and (flight is None or flight["seq"] in ended):
            told.append((event, event["gauges"]))
    pair = some(rng, told)
    if pair is None:
        return None
    pair[1][rng.choice(("running", "waiting"))] += 1
    return int(pair[0]["seq"])


@breaks("gauge-blocks")
def blocks_from_nowhere(log: Log, rng: random.Random) -> int | None:
    found = []
    told: set[tuple[int, int]] = set()  # ranks whose blocks are known
    for event in log.events:
        if event["event"] == "pass_start":
            told -= {place for place in told if place[0] == event["worker"]}
        elif event["event"] == "pass_end":
            told |= {(event["worker"], rank["rank"]) for rank in event["ranks"]}
        elif event["event"] == "command" and event["kind"] == "submit":
            gauges = event["gauges"]
            room = log.engine["num_gpu_blocks"] - gauges["active_blocks"] - gauges["inactive_blocks"]
            if (event["worker"], event["rank"]) in told and room:
                found.append(event)
            told.add((event["worker"], event["rank"]))
    event = some(rng, found)
    if event is None:
        return None
    event["gauges"]["active_blocks"] += 1
    return int(event["seq"])


@breaks("preemption-gauges")
def around_off(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "preemption"))
    if event is None:
        return None
    event["after"]["waiting"] += 1
    return int(event["seq"])


# -- cache ------------------------------------------------------------------------------------------------


@breaks("kv-stored")
def stored_twice(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "kv_stored"))
    return None if event is None else insert(log, event["seq"] + 1, dict(event))


@breaks("kv-removed")
def removed_twice(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "kv_removed"))
    return None if event is None else insert(log, event["seq"] + 1, dict(event))


@breaks("kv-run")
def first_with_a_parent(log: Log, rng: random.Random) -> int | None:
    event = some(rng, [event for event in of_kind(log, "kv_stored") if event["first_block"]])
    if event is None:
        return None
    event["first_block"] = 0
    return int(event["seq"])


@breaks("kv-chain")
def content_off(log: Log, rng: random.Random) -> int | None:
    event = some(rng, of_kind(log, "kv_stored"))
    if event is None:
        return None
    event["local_hashes"][-1] ^= 1
    return int(event["seq"])


@breaks("kv-pool")
def fewer_blocks_than_stored(log: Log, rng: random.Random) -> int | None:
    if log.level != "kv":
        return None
    stored: dict[tuple[int, int], set[int]] = {}
    found = []
    for event in of_kind(log, "pass_end"):
        stored = stored_by(log, group_end(log, event))
        for rank in event["ranks"]:
            there = len(stored.get((event["worker"], rank["rank"]), ()))
            if there > rank["gauges"]["active_blocks"] and is_quiet_after(log, event):
                found.append((event, rank, there))
        if len(found) > 3:
            break
    chosen = some(rng, found)
    if chosen is None:
        return None
    event, rank, there = chosen
    rank["gauges"]["inactive_blocks"] = there - rank["gauges"]["active_blocks"] - 1
    return int(event["seq"])


def stored_by(log: Log, end: int) -> dict[tuple[int, int], set[int]]:
    """Blocks stored on each rank by the lines before `end`."""
    stored: dict[tuple[int, int], set[int]] = {}
    for event in log.events[:end]:
        if event["event"] in ("kv_stored", "kv_removed"):
            blocks = stored.setdefault((event["worker"], event["rank"]), set())
            (blocks.update if event["event"] == "kv_stored" else blocks.difference_update)(event["block_hashes"])
    return stored


# -- totals -----------------------------------------------------------------------------------------------


@breaks("footer")
def footer_off(log: Log, rng: random.Random) -> int | None:
    log.footer[rng.choice(("events", "arrived", "finished", "failed", "rejected", "cancelled", "cut"))] += 1
    return FOOTER


@breaks("digest")
def digest_of_another(log: Log, rng: random.Random) -> int | None:
    digest = log.footer["digest"]
    log.footer["digest"] = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    return FOOTER


@breaks("end-word")
def unknown_end(log: Log, rng: random.Random) -> int | None:
    log.footer["end"] = "well"
    return FOOTER


@breaks("summary")
def figure_off(log: Log, rng: random.Random) -> int | None:
    """One figure of the stored summary is another."""
    if not shows_tokens(log):
        return None
    wall = {*log.summary["wall_clock_fields"], "wall_clock_fields", "avg_accept_length"}
    names = [
        name
        for name, value in log.summary.items()
        if name not in wall and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if log.footer["cut"] == 0 and log.footer["end"] != "complete":
        names = [name for name in names if name not in ("end_ms", "decode_worker_seconds", "gpu_hours")]
    name = rng.choice(names)
    value = log.summary[name]
    log.summary[name] = value + 1 if isinstance(value, int) else value * 1.000001 + 1e-6
    return FOOTER
