"""Make the sample traces of this folder, the same bytes every time.

    python traces/make.py [FOLDER]

Plain Python, so that it can be read as the description of the traces. Every random number comes from
`random.Random(seed).random()`, whose sequence Python guarantees for all versions.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BLOCK = 512  # tokens a hash id stands for
QWEN_BLOCK = 16  # the same, in traces of that form

Row = dict[str, Any]


class Dice:
    """The distributions we need, from uniform numbers alone."""

    def __init__(self, seed: int) -> None:
        self._uniform = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._uniform() < probability

    def whole(self, low: int, high: int) -> int:
        """Evenly from low to high, both included."""
        return low + int(self._uniform() * (high - low + 1))

    def exponential(self, mean: float) -> float:
        return -mean * math.log(1.0 - self._uniform())

    def lognormal(self, median: float, sigma: float) -> float:
        """By Box and Muller."""
        normal = math.sqrt(-2.0 * math.log(1.0 - self._uniform())) * math.cos(2.0 * math.pi * self._uniform())
        return median * math.exp(sigma * normal)

    def length(self, median: float, sigma: float, low: int, high: int) -> int:
        """A number of tokens."""
        return max(low, min(high, round(self.lognormal(median, sigma))))


class Ids:
    """Hash ids never given out before."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> list[int]:
        self._next += count
        return list(range(self._next - count, self._next))


def num_blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


def tiny() -> Iterator[Row]:
    """Twelve rows with one of everything: ties, shared prefixes, a session, a zero output, a long prompt."""
    yield {"timestamp": 0, "input_length": 700, "output_length": 4, "hash_ids": [1, 2]}
    yield {"timestamp": 0, "input_length": 1100, "output_length": 3, "hash_ids": [1, 2, 3]}
    yield {"timestamp": 12, "input_length": 40, "output_length": 1, "hash_ids": [4]}
    yield {"timestamp": 12, "input_length": 512, "output_length": 0, "hash_ids": [1]}
    yield {"timestamp": 30, "input_length": 900, "output_length": 6, "hash_ids": [5, 6], "session_id": "chat"}
    yield {"timestamp": 31.5, "input_length": 1300, "output_length": 5, "hash_ids": [1, 2, 7], "request_id": "summary"}
    yield {"input_length": 1500, "output_length": 4, "hash_ids": [5, 6, 8], "session_id": "chat", "delay": 25}
    yield {"timestamp": 60, "input_length": 9000, "output_length": 2, "hash_ids": list(range(20, 38))}
    yield {"timestamp": 61, "input_length": 64, "output_length": 12, "hash_ids": [9]}
    yield {"timestamp": 61, "input_length": 65, "output_length": 11, "hash_ids": [10]}
    yield {"timestamp": 240, "input_length": 1100, "output_length": 3, "hash_ids": [1, 2, 3]}
    yield {"timestamp": 241, "input_length": 1536, "output_length": 2, "hash_ids": [5, 6, 8], "session_id": "late"}


def chat_shared_prefix() -> Iterator[Row]:
    """Single questions to four assistants, each with a system prompt of its own; the rate swells twice."""
    dice, ids = Dice(101), Ids()
    system_prompts = [ids.take(count) for count in (2, 3, 1, 5)]
    weights = (0.5, 0.8, 0.95, 1.0)  # cumulative
    now_ms = 0.0
    for _ in range(1600):
        swell = 1.0 + 0.7 * math.sin(now_ms / 300_000.0 * 4.0 * math.pi)
        now_ms += dice.exponential(190.0 / swell)
        drawn = dice.whole(1, 1000) / 1000.0
        prompt = next(p for p, weight in zip(system_prompts, weights, strict=True) if drawn <= weight)
        tokens = len(prompt) * BLOCK + dice.length(180.0, 0.9, 8, 4000)
        yield {
            "timestamp": round(now_ms),
            "input_length": tokens,
            "output_length": dice.length(160.0, 0.8, 1, 1500),
            "hash_ids": prompt + ids.take(num_blocks(tokens) - len(prompt)),
        }


def multi_turn() -> Iterator[Row]:
    """Conversations whose prompts carry the whole history; the user thinks after each answer."""
    dice, ids = Dice(202), Ids()
    system_prompt = ids.take(1)
    rows: list[tuple[float, int, Row]] = []
    start_ms = 0.0
    for session in range(180):
        start_ms += dice.exponential(1_500.0)
        tokens, blocks, at_ms, turn = BLOCK, list(system_prompt), start_ms, 0
        while True:
            tokens += dice.length(120.0, 1.0, 4, 3000)
            blocks += ids.take(num_blocks(tokens) - len(blocks))
            output = dice.length(220.0, 0.7, 1, 1200)
            row: Row = {"input_length": tokens, "output_length": output, "hash_ids": list(blocks)}
            row["session_id"] = f"conversation-{session:03d}"
            if turn == 0:
                row = {"timestamp": round(start_ms)} | row
            else:
                think_ms = round(dice.lognormal(9_000.0, 0.8))
                at_ms += think_ms + 12.0 * output  # where the row stands in the file, about when it is sent
                row["delay"] = think_ms
            rows.append((at_ms, len(rows), row))
            tokens += output  # the answer becomes part of the next prompt, in blocks of the same session
            turn += 1
            if turn == 12 or not dice.chance(0.74):
                break
    yield from (row for _, _, row in sorted(rows, key=lambda entry: entry[:2]))


def long_context_bursts() -> Iterator[Row]:
    """Every 75 seconds many people ask about a few long documents at once; a small pool cannot hold them all."""
    dice, ids = Dice(303), Ids()
    for burst in range(12):
        now_ms = 75_000.0 * burst
        documents = [ids.take(num_blocks(dice.length(9_000.0, 0.6, 3_000, 48_000))) for _ in range(dice.whole(7, 10))]
        for _ in range(dice.whole(30, 50)):
            now_ms += dice.exponential(250.0)
            document = documents[dice.whole(0, len(documents) - 1)]
            tokens = len(document) * BLOCK + dice.length(150.0, 0.8, 8, 2_000)
            yield {
                "timestamp": round(now_ms),
                "input_length": tokens,
                "output_length": dice.length(1_000.0, 0.6, 50, 4_000),
                "hash_ids": document + ids.take(num_blocks(tokens) - len(document)),
            }


def impatient_clients() -> Iterator[Row]:
    """A help desk at a rush: short answers, and two of five people leave when theirs takes too long; some ask again."""
    dice, ids = Dice(404), Ids()
    handbook = ids.take(2)
    rows: list[tuple[float, int, Row]] = []
    now_ms = 0.0
    for person in range(48):
        now_ms += dice.exponential(45.0)
        tokens = len(handbook) * BLOCK + dice.length(140.0, 0.8, 8, 2_000)
        row: Row = {"input_length": tokens, "output_length": dice.length(14.0, 0.7, 1, 60)}
        row["hash_ids"] = handbook + ids.take(num_blocks(tokens) - len(handbook))
        returns = dice.chance(0.2)
        if returns:
            row["session_id"] = f"person-{person:02d}"
        again = {"delay": 5 * dice.whole(4, 40)} | row  # the same question, whatever became of the first one
        if dice.chance(0.4):
            row["cancel_after_ms"] = 5 * dice.whole(0, 40)
        rows.append((now_ms, len(rows), {"timestamp": round(now_ms)} | row))
        if returns:
            rows.append((now_ms + 300.0, len(rows), again))
    yield from (row for _, _, row in sorted(rows, key=lambda entry: entry[:2]))


def qwen_chats() -> Iterator[Row]:
    """Chats in the form of the Qwen-Bailian traces: a follow-up names its parent and begins with its blocks."""
    dice, ids = Dice(505), Ids()
    chats: list[Row] = []
    now_s = 0.0
    for number in range(40):
        now_s += dice.exponential(1.5)
        parent = chats[dice.whole(max(0, number - 8), number - 1)] if number > 3 and dice.chance(0.4) else None
        history = parent["input_length"] + parent["output_length"] if parent else 0
        tokens = history + dice.length(90.0, 0.8, 5, 1_500)
        blocks = list(parent["hash_ids"][: parent["input_length"] // QWEN_BLOCK]) if parent else []
        row: Row = {"chat_id": 100 + number, "parent_chat_id": parent["chat_id"] if parent else -1}
        row |= {"timestamp": round(now_s, 3), "input_length": tokens, "output_length": dice.length(120.0, 0.7, 1, 900)}
        row |= {"type": "text" if dice.chance(0.8) else "search", "turn": parent["turn"] + 1 if parent else 1}
        row["hash_ids"] = blocks + ids.take(-(-tokens // QWEN_BLOCK) - len(blocks))
        chats.append(row)
        yield row


def azure_calls() -> Iterator[str]:
    """Calls in the form of the Azure LLM inference traces: a time with seven digits, and two lengths."""
    dice = Dice(606)
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    ticks = 7_129_400  # of 100 ns, after ten in the morning
    for _ in range(40):
        seconds, fraction = divmod(ticks, 10_000_000)
        clock = f"10:{seconds // 60:02}:{seconds % 60:02}.{fraction:07}"
        yield f"2026-03-02 {clock},{dice.length(900.0, 0.9, 3, 7000)},{dice.length(60.0, 0.9, 1, 800)}\r\n"
        ticks += round(dice.exponential(14_000_000.0))


def burstgpt_calls() -> Iterator[str]:
    """Calls in the form of the BurstGPT traces: whole seconds, two models, and some calls that failed."""
    dice = Dice(707)
    yield "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    now_s = 5.0
    for _ in range(40):
        inputs, outputs = dice.length(300.0, 1.0, 4, 4000), dice.length(150.0, 0.8, 1, 1200)
        if dice.chance(0.1):
            outputs = 0
        model = "ChatGPT" if dice.chance(0.8) else "GPT-4"
        log = "Conversation log" if dice.chance(0.6) else "API log"
        yield f"{round(now_s)},{model},{inputs},{outputs},{inputs + outputs},{log}\n"
        now_s += dice.exponential(3.0)


def _bench_figures(seed: int, count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What both benchmarks write: totals of a run, and an array for each figure of its requests."""
    dice = Dice(seed)
    start_s, starts = 5021.25, []
    for _ in range(count):
        starts.append(round(start_s, 6))
        start_s += dice.exponential(0.5)
    inputs = [dice.length(400.0, 0.7, 16, 3000) for _ in range(count)]
    outputs = [0 if dice.chance(0.08) else dice.length(40.0, 0.5, 1, 200) for _ in range(count)]
    errors = ["" if tokens else "Service Unavailable" for tokens in outputs]
    duration_s = start_s - starts[0]
    totals = {
        "duration": round(duration_s, 3),
        "completed": sum(map(bool, outputs)),
        "total_input_tokens": sum(inputs),
        "total_output_tokens": sum(outputs),
        "request_throughput": round(sum(map(bool, outputs)) / duration_s, 3),
    }
    return totals, {"input_lens": inputs, "output_lens": outputs, "start_times": starts, "errors": errors}


def vllm_result() -> Iterator[str]:
    """The result of a run of `vllm bench serve` with details, in one line."""
    totals, details = _bench_figures(808, 36)
    run = {"date": "20260302-101500", "endpoint_type": "openai", "model_id": "mock", "tokenizer_id": "mock"}
    run |= {"num_prompts": 36, "request_rate": 2.0, "burstiness": 1.0, "max_concurrency": None}
    yield json.dumps(run | totals | details) + "\n"


def sglang_result() -> Iterator[str]:
    """The result of a run of SGLang's bench_serving with details, in one line."""
    totals, details = _bench_figures(909, 36)
    run = {"backend": "sglang", "dataset_name": "random", "request_rate": 2.0, "max_concurrency": None}
    run |= {"random_input_len": 1024, "random_output_len": 128, "random_range_ratio": 0.0}
    yield json.dumps(run | totals | details) + "\n"


def agent_graph() -> Iterator[Row]:
    """Coding agents: each calls tools, starts helpers, and goes on when some of these have answered.

    A graph of requests (agentic Mooncake, version 2): a header, then one request a line, play after play.
    """
    dice, ids = Dice(505), Ids()
    yield {
        "schema": "dynamo.agentic_mooncake",
        "version": 2,
        "block_size": BLOCK,
        "hash_id_scope": "local",
        "source": {"format": "mocker-replay sample", "digest": "agent-graph"},
    }
    system = ids.take(4)  # one system prompt for all agents
    start_ms = 0.0
    for play in range(24):
        start_ms += dice.exponential(9_000.0)
        yield from _agent_play(f"play-{play:02d}", round(start_ms), system, dice, ids)


def _agent_play(play: str, start_ms: int, system: list[int], dice: Dice, ids: Ids) -> Iterator[Row]:
    history = system + ids.take(dice.whole(2, 8))
    before: list[Row] = []  # edges into the next step
    for step in range(dice.whole(2, 6)):
        name = f"{play}/main-{step}"
        yield _agent_request(name, play, "main", history, dice.length(220.0, 0.7, 16, 1_500), start_ms, before)
        before = [_edge(name, "completion", 50 * dice.whole(2, 60), "sequence")]  # a tool runs
        if dice.chance(0.45):
            for helper in range(dice.whole(1, 3)):
                agent = f"helper-{step}-{helper}"
                first, last = f"{play}/{agent}-0", f"{play}/{agent}-1"
                own = system + ids.take(dice.whole(1, 3))
                spawned = [_edge(name, "dispatch", 10 * dice.whole(5, 40), "spawn")]
                yield _agent_request(first, play, agent, own, dice.length(150.0, 0.6, 8, 800), start_ms, spawned)
                own += ids.take(2)
                follows = [_edge(first, "completion", 100, "sequence")]
                yield _agent_request(last, play, agent, own, dice.length(80.0, 0.6, 0, 400), start_ms, follows)
                if dice.chance(0.7):
                    before.append(_edge(last, "completion", 0, "join"))
        history = history + ids.take(dice.whole(1, 4))


def _edge(source: str, trigger: str, delay_ms: int, relation: str) -> Row:
    return {"request_id": source, "trigger": trigger, "delay_ms": delay_ms, "relation": relation}


def _agent_request(
    name: str, play: str, session: str, blocks: list[int], output: int, start_ms: int, edges: list[Row]
) -> Row:
    return {
        "request_id": name,
        "play_id": play,
        "session_id": f"{play}/{session}",
        "model": "sample",
        "input_length": len(blocks) * BLOCK - len(blocks) % 7 * 31,
        "output_length": output,
        "hash_ids": list(blocks),
        "not_before_ms": start_ms,
        "dependencies": edges,
    }


def weka_agents() -> Iterator[Row]:
    """Trajectories in the Weka form: a conversation that calls sub-agents, waits for some, and is compacted once."""
    dice, ids = Dice(606), Ids()
    for play in range(6):
        now_s, blocks = 0.0, ids.take(dice.whole(8, 20))
        requests: list[Row] = []
        for _ in range(dice.whole(4, 9)):
            blocks = [*blocks, *ids.take(dice.whole(1, 6))]
            if len(blocks) > 40:  # a compaction keeps the beginning
                blocks = blocks[: dice.whole(4, 8)] + ids.take(3)
            requests.append(_weka_request(dice, now_s, blocks))
            now_s = round(now_s + requests[-1]["api_time"] + 0.1, 3)
            if dice.chance(0.3):
                helper = [_weka_request(dice, now_s, ids.take(dice.whole(2, 6)))]
                is_awaited = dice.chance(0.6)
                agent = {
                    "type": "subagent",
                    "t": now_s,
                    "agent_id": f"helper-{len(requests)}",
                    "subagent_type": "search",
                }
                agent["status"] = "completed" if is_awaited else "async_launched"
                requests.append(agent | {"requests": helper})
                now_s = round(now_s + (helper[0]["api_time"] if is_awaited else 0.0) + dice.exponential(1.0), 3)
        yield {
            "id": f"play-{play}", "models": ["sample"], "block_size": 64, "hash_id_scope": "local",
            "requests": requests,
        }  # fmt: skip


def _weka_request(dice: Dice, start_s: float, blocks: list[int]) -> Row:
    output = dice.length(60.0, 0.6, 1, 400)
    request: Row = {"type": "s", "t": start_s, "model": "sample", "in": len(blocks) * 64 - dice.whole(0, 63)}
    return request | {"out": output, "hash_ids": list(blocks), "api_time": round(0.2 + output * 0.01, 3)}


def dynamo_frontend() -> Iterator[Row]:
    """Request-trace events of a frontend in the order in which requests ended."""
    dice, ids = Dice(707), Ids()
    system, start_ms, events = ids.take(4), 1_700_000_000_000, []
    for number in range(40):
        start_ms += round(dice.exponential(400.0))
        total_ms, output = round(200.0 + dice.exponential(900.0), 1), dice.length(80.0, 0.6, 1, 500)
        tokens = 4 * 64 + dice.length(300.0, 0.7, 10, 3_000)
        hashes = system + ids.take(-(-tokens // 64) - 4)
        replay = {"trace_block_size": 64, "input_length": tokens, "input_sequence_hashes": hashes}
        request = {"request_id": f"chat-{number}", "model": "sample", "output_tokens": output}
        request |= {"request_received_ms": start_ms, "total_time_ms": total_ms, "replay": replay}
        end_ms = start_ms + math.ceil(total_ms)
        event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": end_ms}
        events.append(event | {"request": request})
    yield from sorted(events, key=lambda event: event["event_time_unix_ms"])


def tool_sessions() -> Iterator[Row]:
    """Agents that call tools, in the Applied Compute form: a prompt that grows, and no timestamps."""
    dice = Dice(808)
    for _ in range(30):
        num_turns = dice.whole(0, 8)
        yield {
            "num_turns": num_turns,
            "input_prompt_length": dice.length(900.0, 0.6, 100, 6_000),
            "assistant_response_length": [dice.length(60.0, 0.6, 5, 400) for _ in range(num_turns)],
            "tool_call_output_length": [dice.length(250.0, 0.9, 1, 3_000) for _ in range(num_turns)],
            "tool_call_latency": [round(dice.exponential(1.5), 3) for _ in range(num_turns)],
            "final_assistant_response_length": dice.length(200.0, 0.6, 10, 900),
        }


TRACES: dict[str, Callable[[], Iterator[Row]]] = {
    "tiny.jsonl": tiny,
    "chat-shared-prefix.jsonl": chat_shared_prefix,
    "multi-turn.jsonl": multi_turn,
    "long-context-bursts.jsonl": long_context_bursts,
    "impatient-clients.jsonl": impatient_clients,
    "agent-graph.jsonl": agent_graph,
}
OTHER_FORMATS: dict[str, Callable[[], Iterator[Row] | Iterator[str]]] = {
    "formats/qwen.jsonl": qwen_chats,
    "formats/azure.csv": azure_calls,
    "formats/burstgpt.csv": burstgpt_calls,
    "formats/vllm-bench.json": vllm_result,
    "formats/sglang-bench.jsonl": sglang_result,
    "formats/weka-agents.jsonl": weka_agents,
    "formats/dynamo-frontend.jsonl": dynamo_frontend,
    "formats/tool-sessions.jsonl": tool_sessions,
}


def text_of(name: str) -> str:
    """A trace as it stands in the folder."""
    rows = (TRACES | OTHER_FORMATS)[name]()
    return "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)


def main(folder: Path) -> None:
    for name in (*TRACES, *OTHER_FORMATS):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text_of(name).encode())
        print(f"wrote {folder / name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
