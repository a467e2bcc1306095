"""Applied Compute traces: sessions of an agent and its tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.config import ReplayOptions
from mocker_replay.errors import Fault, TraceError, UsageError
from mocker_replay.trace import RowBatch, concatenate, open_trace

SESSION: dict[str, Any] = {
    "num_turns": 2, "input_prompt_length": 10, "assistant_response_length": [3, 4], "tool_call_output_length": [1, 6],
    "tool_call_latency": [0.5, 2], "final_assistant_response_length": 5,
}  # fmt: skip
FORMAT = "applied_compute_agentic"


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def rows_of(path: Path, max_rows: int = 2, **options: Any) -> RowBatch:
    with open_trace(path, trace_format=FORMAT, trace_block_size=4, **options) as source:
        return concatenate(list(source.batches(max_rows)))


def faults_of(path: Path) -> list[Fault]:
    with open_trace(path, trace_format=FORMAT) as source, pytest.raises(TraceError) as caught:
        source.scan()
    return list(caught.value.faults)


def blocks_of(rows: RowBatch) -> list[list[int]]:
    return [rows.hash_ids[a:b].tolist() for a, b in zip(rows.hash_offsets, rows.hash_offsets[1:], strict=False)]


def test_prompts_grow_and_keep_their_blocks(tmp_path: Path) -> None:
    lists: dict[str, Any] = {name: [] for name in SESSION if type(SESSION[name]) is list}
    rows = rows_of(write(tmp_path / "a.jsonl", SESSION, "", SESSION | {"num_turns": 0} | lists))
    assert rows.input_tokens.tolist() == [10, 14, 24, 10]
    assert rows.output_tokens.tolist() == [3, 4, 5, 5]
    assert rows.delay_ms.tolist() == [0.0, 500.0, 2000.0, 0.0]
    assert (rows.session.tolist(), rows.turn.tolist()) == ([0, 0, 0, 1], [0, 1, 2, 0])
    assert rows.session_names[::3] == [f"{FORMAT}_session_1", f"{FORMAT}_session_3"]
    first, second, third, other = blocks_of(rows)
    assert (len(first), len(second), len(third)) == (3, 4, 6)
    assert third[:4] == second
    assert second[:3] == first
    assert not set(third) & set(other)


def test_groups_share_the_beginning(tmp_path: Path) -> None:
    rows = rows_of(write(tmp_path / "a.jsonl", SESSION, SESSION, SESSION), trace_shared_prefix_ratio=0.5,
                   trace_num_prefix_groups=2)  # fmt: skip
    first, second, third = blocks_of(rows)[::3]
    assert first[:2] == third[:2]  # half of three blocks, away from zero
    assert not set(first[2:]) & set(third[2:])
    assert not set(first) & set(second)


@pytest.mark.parametrize(
    ("field", "value", "at", "rule"),
    [
        ("num_turns", -1, "num_turns", "must be an integer from 0"),
        ("num_turns", 3, "assistant_response_length", "must hold num_turns = 3 values, but holds 2"),
        ("input_prompt_length", 0, "input_prompt_length", "must be an integer from 1"),
        ("assistant_response_length", [1, -1], "assistant_response_length[1]", "must be an integer from 0"),
        ("tool_call_output_length", [1, 2**31 - 1], "tool_call_output_length[1]", "must not let the prompt of turn 2"),
        ("tool_call_latency", [0.5, -1], "tool_call_latency[1]", "must be a finite number of seconds"),
        ("tool_call_latency", [0.5, None], "tool_call_latency[1]", "must be a finite number of seconds"),
        ("tool_call_latency", [1e306, 1], "tool_call_latency[0]", "must be a finite number of seconds"),
        ("tool_call_latency", 1, "tool_call_latency", "must be a list of numbers"),
        ("final_assistant_response_length", None, "final_assistant_response_length", "is required"),
    ],
)
def test_one_fault(field: str, value: Any, at: str, rule: str, tmp_path: Path) -> None:
    found = faults_of(write(tmp_path / "a.jsonl", SESSION, SESSION | {field: value}))
    assert found[0].line == 2
    assert found[0].field == at
    assert rule in found[0].rule


def test_lines_that_are_no_sessions(tmp_path: Path) -> None:
    twice = json.dumps(SESSION).replace('"num_turns": 2', '"num_turns": 2, "num_turns": 2')
    found = faults_of(write(tmp_path / "a.jsonl", "[]", "{", twice, " "))
    assert [(fault.line, fault.field) for fault in found] == [(1, ""), (2, ""), (3, "num_turns")]
    assert "at least one session" in faults_of(write(tmp_path / "b.jsonl", ""))[0].rule


def test_prompts_of_a_whole_trace_are_bounded(tmp_path: Path) -> None:
    huge = {"num_turns": 1, "input_prompt_length": 2**30, "assistant_response_length": [0],
            "tool_call_output_length": [0], "tool_call_latency": [0], "final_assistant_response_length": 0}  # fmt: skip
    trace = write(tmp_path / "a.jsonl", huge)
    source = open_trace(trace, trace_format=FORMAT, trace_block_size=1)
    with source, pytest.raises(TraceError, match="blocks of all prompts"):
        source.scan()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"trace_format": FORMAT}, "replay_concurrency: is required"),
        ({"trace_format": FORMAT, "replay_concurrency": 1, "trace_shared_prefix_ratio": 1.5,
          "trace_num_prefix_groups": 1}, "from 0 to 1"),
        ({"trace_format": FORMAT, "replay_concurrency": 1, "trace_shared_prefix_ratio": 0.5}, "without groups"),
        ({"trace_format": FORMAT, "replay_concurrency": 1, "trace_num_prefix_groups": 2}, "without a part"),
        ({"trace_num_prefix_groups": 2, "trace_shared_prefix_ratio": 0.5}, "only of use with trace_format applied"),
        ({"weka_nested_timestamp_basis": "auto"}, "only of use with trace_format weka"),
    ],
)  # fmt: skip
def test_settings_that_would_do_nothing_are_refused(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        ReplayOptions(**options).validate()
