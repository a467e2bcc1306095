"""Weka traces: what is refused, how requests are called, which files are read."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.errors import Fault, TraceError, UsageError
from mocker_replay.trace import GraphSource, TraceGraph, open_trace

REQUEST: dict[str, Any] = {"type": "s", "t": 0, "model": "m", "in": 128, "out": 2, "hash_ids": [1, 2], "api_time": 1.0}
AGENT: dict[str, Any] = {
    "type": "subagent", "t": 1.0, "agent_id": "ag", "subagent_type": "x", "status": "completed",
    "requests": [REQUEST | {"t": 1.0, "hash_ids": [5]}],
}  # fmt: skip
PLAY: dict[str, Any] = {
    "id": "tr", "models": ["m"], "block_size": 64, "hash_id_scope": "local",
    "requests": [REQUEST, AGENT, REQUEST | {"t": 3.0}],
}  # fmt: skip


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    """The play with one value replaced; ... takes it away."""
    play = copy.deepcopy(PLAY)
    place: Any = play
    for name in path[:-1]:
        place = place[name]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return play


def faults_of(path: Path, **options: Any) -> list[Fault]:
    with pytest.raises(TraceError) as caught:
        open_trace(path, trace_format="weka", **options).scan()
    return list(caught.value.faults)


def graph_of(path: Path, **options: Any) -> TraceGraph:
    source = open_trace(path, trace_format="weka", **options)
    source.scan()
    assert isinstance(source, GraphSource)
    return source.graph()


ONE_FAULT: list[tuple[list[Any], Any, str, str]] = [
    (["id"], " ", "id", "must not be blank"),
    (["id"], ..., "id", "is required"),
    (["block_size"], 0, "block_size", "must be an integer from 1"),
    (["block_size"], 64.0, "block_size", "must be an integer from 1"),
    (["hash_id_scope"], "global", "hash_id_scope", "must be local"),
    (["models"], ["z"], "requests[0].model", "must be one of the declared models"),
    (["models"], [""], "models[0]", "must be a string that is not blank"),
    (["requests"], {}, "requests", "must be a list of objects"),
    (["requests"], [], "requests", "at least one model request"),
    (["requests", 0], None, "requests[0]", "must be an object"),
    (["requests", 0, "type"], "x", "requests[0].type", "must be one of n, s, subagent"),
    (["requests", 0, "t"], -1, "requests[0].t", "of at least 0"),
    (["requests", 0, "t"], "0", "requests[0].t", "of at least 0"),
    (["requests", 2, "t"], 1e303, "requests[2].t", "finite time in milliseconds"),
    (["requests", 0, "in"], 0, "requests[0].in", "must be an integer from 1"),
    (["requests", 0, "out"], -1, "requests[0].out", "must be an integer from 0"),
    (["requests", 0, "hash_ids"], None, "requests[0].hash_ids", "must be a list of integers"),
    (["requests", 0, "hash_ids"], [1, -1], "requests[0].hash_ids[1]", "must be an integer from 0"),
    (["requests", 0, "api_time"], -1.0, "requests[0].api_time", "of at least 0"),
    (["requests", 1, "status"], "failed", "requests[1].status", "must be one of completed, async_launched"),
    (["requests", 1, "agent_id"], "", "requests[1].agent_id", "must not be blank"),
    (["requests", 1, "subagent_type"], 5, "requests[1].subagent_type", "must be a string"),
    (["requests", 1, "duration_ms"], 5.5, "requests[1].duration_ms", "must be an integer from 0"),
    (["requests", 1, "requests"], [], "requests[1].requests", "must not be empty where the parent waits"),
    (["requests", 1, "requests", 0, "type"], "subagent", "requests[1].requests[0].type", "must be one of n, s"),
    (["requests"], [AGENT], "requests[0].agent_id", "must have a request listed before it"),
    (["requests", 0, "in"], 2**31 - 1, "", "above 134217728") ,
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "field", "rule"), ONE_FAULT, ids=lambda one: str(one)[:40])
def test_one_fault(path: list[Any], value: Any, field: str, rule: str, tmp_path: Path) -> None:
    play = changed(path, value)
    if field == "":
        play["block_size"] = 1
    trace = tmp_path / "a.jsonl"
    trace.write_text(json.dumps(PLAY | {"block_size": play["block_size"]}) + "\n\n" + json.dumps(play) + "\n")
    if path == ["block_size"]:
        trace.write_text("\n\n" + json.dumps(play))
    fault = faults_of(trace)[0]
    assert (fault.file, fault.line, fault.field) == (str(trace), 3, field)
    assert rule in fault.rule


def test_all_faults_are_found_in_one_reading_over_all_files(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(json.dumps(changed(["id"], 5)) + "\n" + json.dumps(changed(["id"], 6)))
    (tmp_path / "a.json").write_text(json.dumps(changed(["requests", 0, "in"], 0)) + "\n{}")
    (tmp_path / "c.json").write_text("")
    found = faults_of(tmp_path)
    assert [(Path(fault.file).name, fault.line, fault.field) for fault in found] == [
        ("a.json", 1, "requests[0].in"), ("a.json", 2, ""), ("b.jsonl", 1, "id"), ("b.jsonl", 2, "id"),
        ("c.json", 0, ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        (b"\xef\xbb\xbf{}", 1, "must not begin with a byte-order mark"),
        (b"[{}]", 1, "must be one JSON object"),
        (json.dumps(PLAY).encode() + b"\n 5", 2, "must be one JSON object"),
        (json.dumps(PLAY).encode()[:-1], 2, "must be one JSON object"),
        (b'{\n"id":\n NaN}', 1, "must be a string"),
        (json.dumps(PLAY).encode().replace(b'"id"', b'"id": "x", "id"'), 1, "must not be given twice"),
        (json.dumps(PLAY).encode().replace(b"ag", b"\xe9"), 1, "must be UTF-8"),
    ],
)
def test_text_that_is_no_stream_of_objects(text: bytes, line: int, rule: str, tmp_path: Path) -> None:
    trace = tmp_path / "a.jsonl"
    trace.write_bytes(text)
    found = faults_of(trace)
    assert found[0].line == line
    assert rule in found[0].rule


def test_names_come_from_the_place_in_the_trace(tmp_path: Path) -> None:
    text = json.dumps(PLAY, indent=1)
    (tmp_path / "trace.jsonl").write_text(text + text)
    graph = graph_of(tmp_path / "trace.jsonl")
    assert len(graph) == 6
    first = "weka:69988d6b2fc67ddb"  # of trace.jsonl#000000
    assert graph.play_ids[0] == f"{first}:play:tr"
    assert set(graph.request_ids) > {f"{first}:request:outer:0", f"{first}:request:outer:1:inner:0"}
    assert f"{first}:session:subagent:1:ag" in graph.session_names
    assert sorted(set(graph.lines.tolist())) == [1, text.count("\n") + 1]


def test_plays_share_no_block_and_ids_that_are_missing_are_private(tmp_path: Path) -> None:
    lone = {"requests": [REQUEST, REQUEST | {"t": 5.0, "in": 130, "hash_ids": [1]}]}
    (tmp_path / "trace.jsonl").write_text(json.dumps(PLAY | lone) * 2)
    graph = graph_of(tmp_path / "trace.jsonl")
    blocks = [graph.hash_ids[a:b].tolist() for a, b in zip(graph.hash_offsets, graph.hash_offsets[1:], strict=False)]
    assert sorted(map(len, blocks)) == [2, 2, 3, 3]
    assert len({block for ids in blocks for block in ids}) == 2 * (2 + 2)


def test_files_of_a_directory_are_in_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("a/b.json", "a-b.json", "B/z.JSONL", "a.json", "readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(PLAY | {"id": name}))
    assert [name.split(":play:")[1] for name in graph_of(tmp_path).play_ids] == [
        "B/z.JSONL", "a-b.json", "a.json", "a/b.json",
    ]  # fmt: skip
    (tmp_path / "a" / "link").symlink_to(tmp_path / "a.json")
    (fault,) = faults_of(tmp_path)
    assert "must not be a symbolic link" in fault.rule


def test_other_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(json.dumps(PLAY))
    assert "must end in .json" in faults_of(tmp_path / "a.txt")[0].rule
    assert "cannot be opened" in faults_of(tmp_path / "b.json")[0].rule
    (tmp_path / "c.json").symlink_to(tmp_path / "a.txt")
    assert "symbolic link" in faults_of(tmp_path / "c.json")[0].rule
    (tmp_path / "empty").mkdir()
    assert "at least one file" in faults_of(tmp_path / "empty")[0].rule
    assert "must be a file or a directory" in faults_of(Path("-"))[0].rule
    with pytest.raises(UsageError, match="one file or one directory"):
        open_trace([tmp_path / "a.json", tmp_path / "b.json"], trace_format="weka")


def test_the_clock_of_sub_agents(tmp_path: Path) -> None:
    early = changed(["requests", 1, "requests", 0, "t"], 0.25)
    (tmp_path / "a.json").write_text(json.dumps(early))
    (fault,) = faults_of(tmp_path / "a.json", weka_nested_timestamp_basis="absolute")
    assert fault.field == "requests[1].requests[0].t"
    relative = graph_of(tmp_path / "a.json", weka_nested_timestamp_basis="relative")
    assert graph_of(tmp_path / "a.json").not_before_ms.tolist() == relative.not_before_ms.tolist() == [0, 1250, 3000]
    with pytest.raises(UsageError, match="weka_nested_timestamp_basis must be one of"):
        open_trace(tmp_path / "a.json", trace_format="weka", weka_nested_timestamp_basis="x")  # type: ignore[arg-type]


def test_block_sizes_agree(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(PLAY) + "\n" + json.dumps(PLAY | {"block_size": 32}))
    assert [(f.line, f.field) for f in faults_of(tmp_path / "a.jsonl")] == [(2, "block_size")]
    assert [f.line for f in faults_of(tmp_path / "a.jsonl", trace_block_size=16)] == [1, 2]


@pytest.mark.parametrize("num_plays", [1, 2])
def test_edges_have_a_limit(num_plays: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one play, and over all of them."""
    from mocker_replay.trace import weka, weka_edges

    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join([json.dumps(PLAY)] * num_plays))
    num_edges = len(graph_of(path).edge_source)
    for module in (weka, weka_edges):
        monkeypatch.setattr(module, "MAX_EDGES", num_edges - 1)
    (fault,) = faults_of(path)
    assert (fault.line, fault.rule.partition(",")[0]) == (num_plays, f"must not need more than {num_edges - 1} edges")
