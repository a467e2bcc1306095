"""Faults planted into logs, continued: passes, their work, limits, gauges, the cache, totals."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from tests.support.planted import (
    ENDS,
    FOOTER,
    Event,
    breaks,
    group_end,
    in_flight_at,
    insert,
    is_quiet_after,
    of_kind,
    pass_pairs,
    rank_in,
    ranks_of,
    shows_tokens,
    some,
)
from tests.support.random_logs import Log

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
    if any("budget" in rank for _, rank in ranks_of(log, "pass_start")):
        return None  # of a policy: it must stay below the limit
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
