"""Dynamo request traces: events, what is refused, rows and graphs."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.errors import Fault, TraceError, UsageError
from mocker_replay.trace import GraphSource, open_trace


def event(name: str, start_ms: int = 100, total_ms: float = 10, session: str | None = None, **replay: Any) -> Any:
    request = {
        "request_id": name, "output_tokens": 2, "request_received_ms": start_ms, "total_time_ms": total_ms,
        "replay": {"trace_block_size": 64, "input_length": 128, "input_sequence_hashes": [1, 2], **replay},
    }  # fmt: skip
    made = {
        "schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": start_ms + 10,
        "request": request,
    }  # fmt: skip
    return made if session is None else made | {"agent_context": {"session_id": session}}


def child(name: str, start_ms: int, parent: str = "p") -> Any:
    made = event(name, start_ms, 10, "c")
    made["agent_context"]["parent_session_id"] = parent
    return made


def tool(session: str = "p", **call: Any) -> Any:
    claude = {"source_request_id": "p0", "execution_mode": "blocking", "child_session_id": "c"} | call
    return {
        "schema": "dynamo.request.trace.v1", "event_type": "tool_end", "event_time_unix_ms": 5,
        "agent_context": {"session_id": session}, "tool": {"tool_call_id": "t", "tool_class": "a", "claude": claude},
    }  # fmt: skip


def write(path: Path, *events: Any) -> Path:
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in events))
    return path


def faults_of(path: Path | list[Path], **options: Any) -> list[Fault]:
    with open_trace(path, trace_format="dynamo", **options) as source, pytest.raises(TraceError) as caught:
        source.scan()
    return list(caught.value.faults)


def changed(path: list[str], value: Any) -> Any:
    made = copy.deepcopy(event("b", 200, 10, "s"))
    place: Any = made
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return made


ONE_FAULT: list[tuple[list[str], Any, str]] = [
    (["schema"], "x", "must be dynamo.request.trace.v1"),
    (["event_type"], "zz", "must be one of request_end"),
    (["event_type"], None, "is required"),
    (["event_time_unix_ms"], 1.5, "must be an integer"),
    (["request"], None, "is required"),
    (["request"], 5, "must be an object"),
    (["agent_context"], 5, "must be an object"),
    (["agent_context", "session_id"], "", "must not be blank"),
    (["agent_context", "parent_session_id"], "nobody", "must be another session"),
    (["agent_context", "parent_session_id"], "s", "must be another session"),
    (["request", "request_id"], " ", "must not be blank"),
    (["request", "output_tokens"], None, "is required"),
    (["request", "request_received_ms"], 1.0, "must be an integer"),
    (["request", "total_time_ms"], -0.4, "of at least 0"),
    (["request", "model"], 5, "must be a string"),
    (["request", "replay"], None, "is required"),
    (["request", "replay", "trace_block_size"], 0, "must be an integer from 1"),
    (["request", "replay", "trace_block_size"], 32, "must be 64"),
    (["request", "replay", "input_length"], 0, "must be an integer from 1"),
    (["request", "replay", "input_sequence_hashes"], [1], "must hold 2 hashes"),
    (["request", "replay", "input_sequence_hashes"], [1, 2, 3], "must hold 2 hashes"),
    (["request", "replay", "input_sequence_hashes"], [1, -1], "must be an integer from 0"),
]


@pytest.mark.parametrize(("path", "value", "rule"), ONE_FAULT, ids=str)
def test_one_fault(path: list[str], value: Any, rule: str, tmp_path: Path) -> None:
    trace = write(tmp_path / "a.jsonl", event("a", 100, 10, "s"), "", changed(path, value))
    found = [fault for fault in faults_of(trace) if fault.line == (1 if path[-1] == "parent_session_id" else 3)]
    assert any(rule in fault.rule and path[-1] in fault.field for fault in found), found


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ([event("a"), event("a", 300)], "must be unique"),
        ([event("a"), event("b", 300, 10, "s")], "all requests come from agents, or none"),
        ([event("a", 100, 50, "s"), event("b", 120, 10, "s")], "must not start before 'a'"),
        ([event("p0", 100, 10, "p"), child("c0", 120), child("c1", 150, "q")], "must be 'p', as in the requests"),
        ([event("p0", 100, 10, "p"), child("c0", 120), tool(), tool()], "session of another tool call"),
        ([event("p0", 100, 10, "p"), child("c0", 120), tool(source_request_id="zz")], "must be a request of the trace"),
        ([event("p0", 100, 10, "p"), child("c0", 120), tool(consumer_request_id="c0")], "which made the call"),
        ([event("p0", 100, 10, "p"), child("c0", 120), tool(execution_mode="x")], "must be one of blocking"),
        ([event("p0", 200, 10, "p"), child("c0", 120), tool()], "said to have started its session"),
        ([event("a", 1, 1, "s"), event("b", 9, 1, "t", dependencies=[{"request_id": "zz", "relation": "join",
          "trigger": "completion"}])], "must be a request of the trace"),
        ([event("a", 1, 1, "s", dependencies=[{"request_id": "b", "relation": "join", "trigger": "completion"}]),
          event("b", 9, 1, "t")], "must not be a request that started later"),
        ([event("a", 1, 1, "s"), event("b", 9, 1, "t", dependencies=[{"request_id": "a", "relation": "join",
          "trigger": "dispatch"}])], "must be spawn with trigger dispatch"),
        ([event("p0", 100, 10, "p"), event("p1", 120, 10, "p"),
          child("c0", 120) | {"request": event("c0", 120, 0)["request"]}], "wait for each other"),
        (['{"event_type": "tool_start"}', "5"], "at least one request_end"),
        (["{"], "must be one JSON object"),
    ],
)  # fmt: skip
def test_what_holds_between_events(events: list[Any], rule: str, tmp_path: Path) -> None:
    assert any(rule in fault.rule for fault in faults_of(write(tmp_path / "a.jsonl", *events)))


def test_shards_are_one_trace_compressed_or_not(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", {"event": event("b", 300)}, "[]", event("a", 100, 2.5))
    second = tmp_path / "b.jsonl.gz"
    second.write_bytes(gzip.compress(json.dumps(event("c", 200)).encode() + b"\n") + gzip.compress(b"5\n"))
    source = open_trace([first, second], trace_format="dynamo")
    facts = source.scan()
    assert facts.graph is None
    assert (facts.num_rows, facts.span_ms, facts.trace_block_size) == (3, 200.0, 64)
    batches = list(source.batches(2))
    assert [name for batch in batches for name in batch.request_ids or ()] == ["a", "c", "b"]
    assert [t for batch in batches for t in batch.timestamp_ms.tolist()] == [0.0, 100.0, 200.0]
    assert [name for batch in batches for name in batch.session_names] == ["request_1", "request_2", "request_3"]
    source.close()
    found = faults_of([first, write(tmp_path / "c.jsonl", "", event("a"))])
    assert [(Path(fault.file).name, fault.line) for fault in found] == [("c.jsonl", 2)]


def test_surplus_hashes_of_rows(tmp_path: Path) -> None:
    trace = write(tmp_path / "a.jsonl", event("a", input_sequence_hashes=[1, 2, 3, 4]))
    source = open_trace(trace, trace_format="dynamo")
    assert "surplus is ignored" in source.scan().warnings[0]
    (batch,) = source.batches()
    assert batch.hash_ids.tolist() == [1, 2]
    assert batch.surplus_included is not None
    source.close()
    assert faults_of(trace, surplus_hash_ids="refuse")[0].field == "request.replay.input_sequence_hashes"


def test_agents_are_a_graph_in_plays(tmp_path: Path) -> None:
    events = [event("p1", 200, 10, "p"), child("c0", 120), event("x", 105, 1, "x"), event("p0", 100, 10, "p")]
    source = open_trace(write(tmp_path / "a.jsonl", *events), trace_format="dynamo")
    facts = source.scan()
    assert facts.graph is not None
    assert dict(facts.graph.source) == {"format": "dynamo.request.trace.v1", "digest": "requests:4;tools:0"}
    assert isinstance(source, GraphSource)
    graph = source.graph()
    source.close()
    assert graph.play_ids == ["dynamo-play:p0", "dynamo-play:x"]
    assert graph.request_ids == ["c0", "p0", "p1", "x"]
    assert graph.edge_offsets.tolist() == [0, 1, 1, 3, 3]
    assert graph.edge_delay_ms.tolist() == [20.0, 90.0, 70.0]
    assert graph.not_before_ms.tolist() == [float("-inf"), 0.0, float("-inf"), 5.0]


def test_settings_of_other_formats_are_refused(tmp_path: Path) -> None:
    trace = write(tmp_path / "a.jsonl", event("a"))
    for name, value in (("timestamp_unit", "s"), ("trace_num_prefix_groups", 2), ("failed_rows", "keep")):
        more = {"trace_shared_prefix_ratio": 0.5} if "groups" in name else {}
        with pytest.raises(UsageError, match="of no use"):
            open_trace(trace, trace_format="dynamo", **{name: value}, **more)
