"""Random recordings of agents from a seed, in the Weka and the Dynamo format; the same seed always gives the same case.

Aims at the corners of the lowering: prefixes that almost continue, ties and overlaps within the precision of the times,
compactions after long gaps, sub-agents that are awaited or not, tool calls that name the wrong request. Some cases are
contradictory; both sides must refuse them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mocker_replay.errors import MockerReplayError
from tests.fuzz.verdict import Kind, Verdict, judge
from tests.fuzz.wheel import Wheel
from tests.parity.cases import Case
from tests.parity.runners import run_product_case

BLOCK = 64
PASSES = ((10.0, 1.0), (3.0, 7.0), (900.0, 31.0))  # how long a pass with and without prefill takes
SPEEDUPS = (1.0, 1.0, 1e9, 7.0)  # the second last leaves nothing but the edges
GAPS_S = (0, 0, 0.1, 0.3, 0.5, 1.0, 2.0, 1e-7, 5e-7)
LONG_GAPS_S = (3000, 3600, 4000, 7300)
API_TIMES_S = (0.0, 0.1, 0.5, 1.0, 2.5)

Row = dict[str, Any]


def make_weka_case(seed: int) -> Case:
    """Plays of agents in one file of objects."""
    rng = random.Random(seed)
    plays = [_play(rng, number) for number in range(rng.choice((1, 1, 1, 2, 3)))]
    return _case(rng, f"weka-{seed}", "weka", plays)


def make_dynamo_case(seed: int) -> Case:
    """Events of agents in one file."""
    return _case(random.Random(seed), f"dynamo-{seed}", "dynamo", _Events(random.Random(seed)).made())


def judge_recording(case: Case, wheel: Wheel) -> Verdict:
    """Both sides run it alike, or both refuse it."""
    verdict = judge(case, run_product_case, wheel)
    if verdict.kind is not Kind.INVALID:
        return verdict
    return Verdict(Kind.INVALID, [] if _is_refused(case) else verdict.differences)


def _is_refused(case: Case) -> bool:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        try:
            run_product_case(case, Path(folder))
        except MockerReplayError:
            return True
    return False


def _case(rng: random.Random, name: str, trace_format: str, rows: list[Row]) -> Case:
    prefill_ms, decode_ms = rng.choice(PASSES)
    timing = {"type": "fixed", "prefill_ms": prefill_ms, "decode_ms": decode_ms}
    engine = {"block_size": BLOCK, "num_gpu_blocks": 100_000, "max_num_batched_tokens": 1_000_000, "max_num_seqs": 1000}
    args: dict[str, Any] = {"trace_format": trace_format, "execution_model": "m"}
    if rng.random() < 0.3:
        args["agentic_lanes"] = rng.choice((1, 2))
    args["arrival_speedup_ratio"] = rng.choice(SPEEDUPS)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return Case(name, trace_format, {"engine": engine | {"timing_model": timing}}, text, args, {})


def _play(rng: random.Random, number: int) -> Row:
    is_relative = rng.random() < 0.3
    listed: list[Row] = []
    for request in _requests(rng, rng.choice((0.0, 0.0, 5.5)), rng.choice((1, 2, 3, 4, 6, 9, 14))):
        listed.append(request)
        while rng.random() < 0.2:
            listed.append(_sub_agent(rng, request["t"], is_relative=is_relative))
    return {
        "id": f"p{number}" if rng.random() < 0.8 else "same", "models": [], "block_size": BLOCK,
        "hash_id_scope": "local", "requests": listed,
    }  # fmt: skip


def _sub_agent(rng: random.Random, after_s: float, *, is_relative: bool) -> Row:
    start_s = round(after_s + rng.choice((0, 0.05, 0.2, 1.0)), 3)
    inner = _requests(rng, 0.0 if is_relative else start_s, rng.choice((0, 1, 1, 2, 3, 5)))
    if not is_relative:
        for request in inner:
            request["t"] = max(request["t"], start_s)
    agent = {
        "type": "subagent", "t": start_s, "agent_id": rng.choice(("a", "b", "x:y")), "subagent_type": "x",
        "status": rng.choice(("completed", "completed", "async_launched")) if inner else "async_launched",
        "requests": inner,
    }  # fmt: skip
    if rng.random() < 0.6:
        agent["duration_ms"] = rng.choice((0, 100, 500, 1000, 3000))
    return agent


def _requests(rng: random.Random, start_s: float, count: int) -> list[Row]:
    """Requests that look like a few conversations."""
    now_s = start_s
    conversations: list[list[int]] = [[]]
    found = []
    for number in range(count):
        now_s += rng.choice((*GAPS_S, rng.random() * 2)) if rng.random() < 0.97 else rng.choice(LONG_GAPS_S)
        if rng.random() < 0.05:
            now_s = max(start_s, now_s - rng.random() * 2)
        ids = _next_prompt(rng, conversations, 10 * number)
        request: Row = {"type": rng.choice("ns"), "t": round(now_s, rng.choice((1, 3, 7)))}
        request["model"] = "m" if rng.random() < 0.85 else "k"
        request["in"] = max(1, BLOCK * len(ids) + rng.choice((0, 0, -5, 7, 64, 130, -64)))
        request["out"] = rng.choice((1, 2, 5, 64, 65, 100))
        if ids or rng.random() < 0.5:
            request["hash_ids"] = ids
        if rng.random() < 0.8:
            request["api_time"] = rng.choice((*API_TIMES_S, round(rng.random() * 3, rng.choice((1, 2, 6)))))
        found.append(request)
    return found


def _next_prompt(rng: random.Random, conversations: list[list[int]], fresh: int) -> list[int]:
    number = rng.randrange(len(conversations))
    base = conversations[number]
    more = [rng.randrange(1, 8) if rng.random() < 0.3 else fresh + at for at in range(rng.randrange(0, 3))]
    kind = rng.random()
    if kind < 0.5:
        conversations[number] = base + more
        return conversations[number]
    if kind < 0.7:
        ids = base[: rng.randrange(len(base) + 1)] + more
        conversations.append(ids)
        return ids
    if kind < 0.8:
        conversations.append([fresh, *more])
        return conversations[-1]
    if kind < 0.88:
        return []
    return list(base) if kind > 0.94 else [rng.randrange(1, 4) for _ in range(rng.randrange(1, 4))]


class _Events:
    """Sessions of agents, some with parents, as a frontend would have logged them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._base_ms = rng.choice((0, 100, 1_700_000_000_000))
        self._sessions = [f"s{number}" for number in range(rng.choice((1, 2, 3, 5)))]
        self._parents = {
            child: self._sessions[rng.randrange(number)]
            for number, child in enumerate(self._sessions)
            if number and rng.random() < 0.7
        }
        self._busy_ms = dict.fromkeys(self._sessions, 0)
        self._now_ms = 0
        self._of_session: dict[str, list[str]] = {session: [] for session in self._sessions}

    def made(self) -> list[Row]:
        rng = self._rng
        events = [self._request(number) for number in range(rng.choice((1, 2, 3, 5, 8, 14, 25)))]
        events += [event for child in self._parents if (event := self._tool_call(child)) is not None]
        if rng.random() < 0.5:
            rng.shuffle(events)
        return events

    def _request(self, number: int) -> Row:
        rng = self._rng
        session = rng.choice(self._sessions)
        self._now_ms += rng.choice((0, 0, 1, 5, 10, 20))
        free_ms = self._busy_ms[session] + rng.choice((0, 0, 3, 10))
        start_ms = max(self._now_ms, free_ms) if rng.random() < 0.97 else self._now_ms
        length_ms = rng.choice((0, 0, 5, 10, 30))
        self._busy_ms[session] = max(self._busy_ms[session], start_ms + length_ms)
        tokens = rng.choice((64, 100, 128, 200))
        request: Row = {
            "request_id": rng.choice("abAB_\u00e9") + str(number), "output_tokens": rng.choice((1, 2, 5)),
            "request_received_ms": self._base_ms + start_ms,
            "total_time_ms": length_ms + rng.choice((0, 0, 0.4, 0.5, -0.4 if length_ms else 0)),
            "replay": {
                "trace_block_size": BLOCK, "input_length": tokens,
                "input_sequence_hashes": [rng.randrange(6) for _ in range(-(-tokens // BLOCK))],
            },
        }  # fmt: skip
        if rng.random() < 0.3:
            request["model"] = rng.choice("mn")
        for name, chance in (("total_time_ms", 0.1), ("request_received_ms", 0.05)):
            if rng.random() < chance:
                del request[name]
        known = [name for names in self._of_session.values() for name in names]
        if known and rng.random() < 0.25:
            request["replay"]["dependencies"] = [self._dependency(known) for _ in range(rng.choice((1, 1, 2)))]
        context = {"session_id": session}
        if session in self._parents and rng.random() < 0.9:
            context["parent_session_id"] = self._parents[session]
        self._of_session[session].append(request["request_id"])
        return _event("request_end", self._base_ms + start_ms + length_ms, context) | {"request": request}

    def _dependency(self, known: list[str]) -> Row:
        rng = self._rng
        relation = rng.choice(("sequence", "spawn", "join", "replay_barrier"))
        trigger = "dispatch" if relation == "spawn" and rng.random() < 0.6 else "completion"
        source = rng.choice(known) if rng.random() < 0.98 else "nobody"
        return {"request_id": source, "relation": relation, "trigger": trigger}

    def _tool_call(self, child: str) -> Row | None:
        rng = self._rng
        requests = self._of_session[self._parents[child]]
        if not requests or rng.random() < 0.6:
            return None
        call = {"child_session_id": child, "source_request_id": rng.choice(requests)}
        call["execution_mode"] = rng.choice(("blocking", "background"))
        if rng.random() < 0.6:
            call["consumer_request_id"] = rng.choice(requests)
        tool = {
            "tool_call_id": "t", "tool_class": "agent", "started_at_unix_ms": 1, "ended_at_unix_ms": 2, "claude": call,
        }  # fmt: skip
        context = {"session_id": self._parents[child]}
        return _event(rng.choice(("tool_end", "tool_error")), self._base_ms + 5, context) | {"tool": tool}


def _event(kind: str, time_ms: int, context: Row) -> Row:
    return {
        "schema": "dynamo.request.trace.v1",
        "event_type": kind,
        "event_time_unix_ms": time_ms,
        "agent_context": context,
    }


RECORDINGS: dict[str, Callable[[int], Case]] = {"weka": make_weka_case, "dynamo": make_dynamo_case}
