"""Formats found by content: one fits, two do, none does; and a format that was declared but is plainly another."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.errors import TraceError
from mocker_replay.trace import open_trace
from mocker_replay.trace.detection import HEAD_BYTES, detect

MOONCAKE = {"timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1]}
QWEN = {"chat_id": 1, "parent_chat_id": -1, **MOONCAKE}
AGENTIC = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64, "hash_id_scope": "local"}
AGENTIC_ROW = {**MOONCAKE, "request_id": "a", "play_id": "p", "session_id": "s", "not_before_ms": 0}
WEKA = {"id": "x", "block_size": 64, "hash_id_scope": "local", "requests": [{"t": 0, "in": 1, "out": 1}]}
APPLIED = {"num_turns": 0, "input_prompt_length": 5, "assistant_response_length": [], "tool_call_latency": []}
EVENT = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": 1, "request": {}}
BENCH = {"request_throughput": 1.0, "total_input_tokens": 5}
VLLM = {"date": "x", "model_id": "m", "request_rate": 1.0, **BENCH}
SGLANG = {"backend": "sglang", "dataset_name": "random", **BENCH}
DETAILS = {"input_lens": [5], "output_lens": [3], "start_times": [0.5]}


def text_of(*rows: Any) -> bytes:
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


@pytest.mark.parametrize(
    ("rows", "candidates"),
    [
        ((MOONCAKE,), ("mooncake",)),
        (({"created_time": 1, "output_tokens": 3},), ("mooncake",)),
        ((MOONCAKE | {"session_id": "a", "delay": 4},), ("mooncake",)),
        ((b"{broken", MOONCAKE), ("mooncake",)),
        ((b"", b"  ", b"not json", MOONCAKE), ("mooncake",)),
        ((QWEN,), ("qwen",)),
        ((MOONCAKE, QWEN), ("qwen", "mooncake")),
        ((MOONCAKE | {"chat_id": 4},), ("qwen", "mooncake")),
        ((AGENTIC, AGENTIC_ROW), ("agentic_mooncake",)),
        ((AGENTIC_ROW,), ("agentic_mooncake",)),
        ((WEKA,), ("weka",)),
        ((json.dumps(WEKA, indent=2).encode(),), ("weka",)),
        ((WEKA | {"requests": [{"hash_ids": list(range(HEAD_BYTES))}]},), ("weka",)),
        ((APPLIED,), ("applied_compute_agentic",)),
        ((EVENT,), ("dynamo",)),
        (({"event": EVENT},), ("dynamo",)),
        ((VLLM | DETAILS,), ("vllm_bench",)),
        ((json.dumps(VLLM | DETAILS, indent=1).encode(),), ("vllm_bench",)),
        ((VLLM,), ("vllm_bench",)),
        ((VLLM | {"input_lens": list(range(HEAD_BYTES))},), ("vllm_bench",)),
        ((SGLANG | DETAILS,), ("sglang_bench",)),
        ((SGLANG | DETAILS | {"request_rate": float("inf")},), ("sglang_bench",)),
        ((SGLANG | VLLM | DETAILS,), ("vllm_bench", "sglang_bench")),
        ((DETAILS,), ("vllm_bench", "sglang_bench")),
        ((b"TIMESTAMP,ContextTokens,GeneratedTokens\r", b"x"), ("azure",)),
        ((b'"GeneratedTokens","TIMESTAMP","ContextTokens"',), ("azure",)),
        ((b"\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens",), ("azure",)),
        ((b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",), ("burstgpt",)),
        ((b"Timestamp,Request tokens,Response tokens,TIMESTAMP,ContextTokens,GeneratedTokens",), ("azure", "burstgpt")),
        ((b"timestamp,input_length,output_length", b"0,1,1"), ()),
        (({"prompt": "x"},), ()),
        ((b"[1, 2]",), ()),
        ((b"",), ()),
        ((b"\x00\xff\x00",), ()),
        ((b"{" * 3000,), ()),
        ((b'{"a": "\\',), ()),
    ],
)
def test_what_a_head_looks_like(rows: Any, candidates: tuple[str, ...]) -> None:
    assert detect(text_of(*rows)[:HEAD_BYTES]).candidates == candidates


def opened(tmp_path: Path, *rows: Any, name: str = "trace", **options: Any) -> Any:
    path = tmp_path / name
    path.write_bytes(text_of(*rows))
    return open_trace(path, **({"trace_format": "auto"} | options))


def test_the_name_of_a_file_does_not_matter(tmp_path: Path) -> None:
    with opened(tmp_path, QWEN | {"input_length": 4}, name="azure.csv.mooncake.gz") as source:
        assert source.scan().format == "qwen"


def test_two_formats_that_fit_are_named_with_what_settles_it(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        opened(tmp_path, b"", MOONCAKE | {"chat_id": 4})
    (fault,) = caught.value.faults
    assert (fault.line, fault.rule) == (
        2,
        "may be qwen or mooncake: --trace-format says which (seen: JSON with the fields chat_id, hash_ids, "
        "input_length, output_length, timestamp)",
    )


def test_a_format_that_nobody_knows_is_told_with_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        opened(tmp_path, b"time;tokens", b"1;2")
    rule = caught.value.faults[0].rule
    assert rule.startswith("is in no format that is known (--trace-format says which); seen: a first line")
    for name in ("mooncake", "qwen", "azure", "burstgpt", "vllm_bench", "sglang_bench", "weka", "dynamo"):
        assert f"{name} (" in rule


def test_a_text_without_rows_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="must hold at least one request"):
        opened(tmp_path, b"", b"  ")


def test_a_declared_format_that_is_plainly_another_gets_a_hint(tmp_path: Path) -> None:
    with opened(tmp_path, EVENT, trace_format="mooncake") as source, pytest.raises(TraceError) as caught:
        source.scan()
    assert caught.value.hint == "the trace is read as mooncake, but looks like dynamo (--trace-format dynamo)"
    assert str(caught.value).endswith(f"hint: {caught.value.hint}")
    with opened(tmp_path, MOONCAKE, trace_format="azure") as source, pytest.raises(TraceError) as caught:
        next(iter(source.batches()))
    assert caught.value.hint == "the trace is read as azure, but looks like mooncake (--trace-format mooncake)"


def test_a_declared_format_that_can_be_read_is_read(tmp_path: Path) -> None:
    with opened(tmp_path, QWEN, trace_format="mooncake", timestamp_unit="s") as source:
        assert source.scan().format == "mooncake"
        assert sum(map(len, source.batches())) == 1


def test_a_fault_of_a_trace_in_its_own_format_has_no_hint(tmp_path: Path) -> None:
    with opened(tmp_path, MOONCAKE | {"output_length": -1}) as source, pytest.raises(TraceError) as caught:
        source.scan()
    assert caught.value.hint == ""


def test_compressed_text_is_looked_at_too(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(text_of(QWEN), mtime=0))
    with open_trace(path, trace_format="auto") as source:
        assert source.scan().format == "qwen"
