"""Write the corpus from which the fuzzer starts: small rows of every format, in every way they are kept.
Inputs called `found-...` are not made here: the fuzzer found them, each reaches lines that no smaller one does.

python -m tests.fuzz_readers.make_corpus
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.fuzz_readers.oracle import READ_AS

CORPUS: Final = Path(__file__).with_name("corpus")
SEEDS: Final[dict[str, tuple[str, ...]]] = {
    "mooncake": (
        '{"timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]}',
        '{"created_time": 7.5, "input_tokens": 5, "output_tokens": 3, "hash_ids": [1], "session_id": "a"}',
        '{"session_id": "a", "delay": 3, "output_length": 1, "hash_ids": [4], "priority": -1, "cancel_after_ms": 9}',
    ),
    "mooncake_delta": (
        '{"timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1, 2], "session_id": "a"}',
        '{"session_id": "a", "delay": 3, "output_length": 1, "input_length": 3, "hash_ids": [4], '
        '"output_token_ids": [7]}',
    ),
    "qwen": (
        '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, "output_length": 3, '
        '"type": "text", "turn": 1, "hash_ids": [1, 2]}',
        '{"chat_id": 2, "parent_chat_id": 1, "timestamp": 1, "input_length": 16, "output_length": 0, "turn": 2, '
        '"hash_ids": [1]}',
    ),
    "azure": (
        "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04,3,0",
    ),
    "azure-offset": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r", "2024-05-10 00:00:00.009930+00:00,5,1\r",
        '"2024-05-10T00:00:01Z",9,"2"\r',
    ),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "5,ChatGPT,472,18,490,Conversation log",
        "45.5,GPT-4,30,0,30,API log",
    ),
    "vllm_bench": (
        '{"model_id": "m", "request_rate": "inf", "max_concurrency": null, "input_lens": [30, 5], '
        '"output_lens": [2, 0], "start_times": [10.25, 10.5], "errors": ["", "x"]}',
    ),
    "sglang_bench": (
        '{"dataset_name": "random", "request_rate": Infinity, "input_lens": [30], "output_lens": [2], "itls": [[0.1]]}',
    ),
    "agentic_mooncake": (
        '{"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 16, "hash_id_scope": "local", '
        '"source": {"format": "x", "digest": "y"}}',
        '{"request_id": "a", "play_id": "p", "session_id": "s", "model": "m", "input_length": 5, "output_length": 2, '
        '"hash_ids": [1], "not_before_ms": 0}',
        '{"request_id": "b", "play_id": "p", "session_id": "s", "model": "m", "input_length": 20, "output_length": 1, '
        '"hash_ids": [1, 2], "not_before_ms": 3.5, "dependencies": [{"request_id": "a", "trigger": "completion", '
        '"delay_ms": 2, "relation": "sequence"}]}',
    ),
    "dynamo": (
        '{"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": 20, "request": '
        '{"request_id": "b", "output_tokens": 3, "request_received_ms": 5, "total_time_ms": 15.2, "replay": '
        '{"trace_block_size": 16, "input_length": 20, "input_sequence_hashes": [1, 2]}}}',
        '{"event": {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": 9, '
        '"request": {"request_id": "a", "output_tokens": 1, "replay": {"trace_block_size": 16, "input_length": 5, '
        '"input_sequence_hashes": [1]}}}}',
    ),
    "dynamo-agents": (
        '{"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": 9, "agent_context": '
        '{"session_id": "s"}, "request": {"request_id": "a", "output_tokens": 1, "request_received_ms": 1, '
        '"total_time_ms": 8, "replay": {"trace_block_size": 16, "input_length": 5, "input_sequence_hashes": [1]}}}',
        '{"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": 30, "agent_context": '
        '{"session_id": "c", "parent_session_id": "s"}, "request": {"request_id": "b", "output_tokens": 1, '
        '"request_received_ms": 11, "total_time_ms": 9, "replay": {"trace_block_size": 16, "input_length": 5, '
        '"input_sequence_hashes": [1], "dependencies": [{"request_id": "a", "relation": "spawn", '
        '"trigger": "completion"}]}}}',
        '{"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "event_time_unix_ms": 10, "agent_context": '
        '{"session_id": "s"}, "tool": {"tool_call_id": "t", "tool_class": "x", "claude": {"execution_mode": '
        '"blocking", "child_session_id": "c", "source_request_id": "a"}}}',
    ),
    "weka": (
        '{"id": "p", "block_size": 16, "hash_id_scope": "local", "requests": [{"type": "n", "t": 0, "model": "m", '
        '"in": 40, "out": 3, "hash_ids": [1, 2], "api_time": 1.5}, {"type": "subagent", "t": 2, "agent_id": "a", '
        '"subagent_type": "x", "status": "completed", "duration_ms": 900, "requests": [{"type": "s", "t": 2, '
        '"model": "m", "in": 5, "out": 1, "api_time": 0.5}]}, {"type": "s", "t": 3, "model": "m", "in": 60, "out": 0, '
        '"hash_ids": [1, 2, 3]}]}',
    ),
    "applied_compute_agentic": (
        '{"num_turns": 2, "input_prompt_length": 30, "assistant_response_length": [4, 5], '
        '"tool_call_output_length": [7, 0], "tool_call_latency": [0.5, 1], "final_assistant_response_length": 3}',
        '{"num_turns": 0, "input_prompt_length": 3, "assistant_response_length": [], "tool_call_output_length": [], '
        '"tool_call_latency": [], "final_assistant_response_length": 0}',
    ),
}  # fmt: skip


# Second byte of a seed: the options its format takes.
OPTIONS: Final = {
    "agentic_mooncake": 0, "dynamo": 0, "weka": 0, "applied_compute_agentic": 0x04, "mooncake_delta": 0,
}  # fmt: skip


def main() -> None:
    """Each seed read as itself and as what it is found to be, plain, compressed and in two files."""
    CORPUS.mkdir(exist_ok=True)
    for name, lines in SEEDS.items():
        trace_format = name.partition("-")[0]
        read_as = READ_AS.index(trace_format) if trace_format in READ_AS else 0
        text = "\n".join(lines).encode()
        for way, kept in enumerate(("plain", "gzip", "zstd", "two")):
            head = bytes([read_as if way % 2 else 0, OPTIONS.get(trace_format, 0x50), way | 40 << 2, 2])
            (CORPUS / f"{name}-{kept}").write_bytes(head + text)


if __name__ == "__main__":
    main()
