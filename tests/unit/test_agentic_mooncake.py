"""Agentic Mooncake traces: what a reading gives, and every fault by line, field and rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mocker_replay.errors import TraceError, UsageError
from mocker_replay.trace import GraphSource, TraceGraph, open_trace
from mocker_replay.trace.graph import Relation, Trigger
from mocker_replay.trace.graph_source import graph_digest

HEADER: dict[str, Any] = {
    "schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64, "hash_id_scope": "local",
    "source": {"format": "x", "digest": "y"},
}  # fmt: skip


def request(name: str, *edges: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A legal row; None leaves a field out."""
    row = {
        "request_id": name, "play_id": "p", "session_id": "s", "model": "m", "input_length": 100, "output_length": 2,
        "hash_ids": [1, 2], "not_before_ms": 0, "dependencies": list(edges),
    } | changes  # fmt: skip
    return {key: value for key, value in row.items() if value is not ...}


def after(source: str, **changes: Any) -> dict[str, Any]:
    edge = {"request_id": source, "trigger": "completion", "delay_ms": 5, "relation": "sequence"} | changes
    return {key: value for key, value in edge.items() if value is not ...}


def read(folder: Path, *lines: Any) -> tuple[TraceGraph, GraphSource]:
    path = folder / "trace.jsonl"
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(texts) + b"\n")
    with open_trace(path, trace_format="agentic_mooncake") as source:
        assert isinstance(source, GraphSource)
        return source.graph(), source


def faults(folder: Path, *lines: Any) -> list[tuple[int, str, str]]:
    """(line, field, beginning of the rule) of each fault."""
    with pytest.raises(TraceError) as caught:
        read(folder, *lines)
    return [(fault.line, fault.field, fault.rule) for fault in caught.value.faults]


def test_requests_are_in_byte_order_of_their_ids_and_plays_by_id(tmp_path: Path) -> None:
    rows = [
        request("\u6f22", play_id="b"),
        request("a", play_id="c"),
        request("Z", play_id="a"),
        request("é", play_id="b"),
    ]
    graph, _ = read(tmp_path, HEADER, *rows)
    assert graph.request_ids == ["Z", "a", "é", "\u6f22"]
    assert graph.play_ids == ["a", "b", "c"]
    assert graph.play.tolist() == [0, 2, 1, 1]
    assert graph.lines.tolist() == [4, 3, 5, 2]


def test_ordinals_say_the_order_of_plays(tmp_path: Path) -> None:
    rows = [request(f"r{at}", play_id=play, source_play_ordinal=at) for at, play in enumerate("cab")]
    graph, _ = read(tmp_path, HEADER, *rows)
    assert graph.play_ids == ["c", "a", "b"]


def test_edges_and_figures(tmp_path: Path) -> None:
    spawned = request(
        "b", after("a", trigger="dispatch", relation="spawn", delay_ms=2.5), not_before_ms=7.5, priority=-3
    )
    joins = request("c", after("b", relation="join"), after("a"), input_tokens=64, input_length=..., hash_ids=[9])
    graph, source = read(tmp_path, HEADER, joins, spawned, request("a", recorded_api_time_ms=12, policy_class="x"))
    assert graph.edge_offsets.tolist() == [0, 0, 1, 3]
    assert graph.edge_source.tolist() == [0, 1, 0]
    assert graph.edge_trigger.tolist() == [Trigger.DISPATCH, Trigger.COMPLETION, Trigger.COMPLETION]
    assert graph.edge_relation.tolist() == [Relation.SPAWN, Relation.JOIN, Relation.SEQUENCE]
    assert graph.edge_delay_ms.tolist() == [2.5, 5.0, 5.0]
    assert graph.input_tokens.tolist() == [100, 100, 64]
    assert graph.hash_ids.tolist() == [1, 2, 1, 2, 9]
    assert graph.hash_offsets.tolist() == [0, 2, 4, 5]
    assert graph.not_before_ms.tolist() == [0.0, 7.5, 0.0]
    assert graph.priority.tolist() == [0, -3, 0]
    facts = source.scan()
    assert (facts.num_rows, facts.trace_block_size, facts.span_ms) == (3, 64, 7.5)
    assert facts.graph is not None
    assert (facts.graph.num_plays, facts.graph.num_edges, facts.graph.models) == (1, 3, ("m",))


def test_the_digest_of_a_graph_is_of_the_graph(tmp_path: Path) -> None:
    rows = [request("a"), request("b", after("a"))]
    first, source = read(tmp_path, HEADER, *rows)
    again, other = read(tmp_path, HEADER, b"", *reversed(rows))
    assert graph_digest(first) == graph_digest(again)
    assert source.scan().digest != other.scan().digest
    changed, _ = read(tmp_path, HEADER, rows[0], request("b", after("a", delay_ms=6)))
    assert graph_digest(changed) != graph_digest(first)


@pytest.mark.parametrize("number", ["0.30000000000000004", "123456789.12345678901234", "1e2", "9007199254740993"])
def test_times_are_read_as_the_reference_reads_them(tmp_path: Path, number: str) -> None:
    from mocker_replay.config.decimals import read_json_number

    row = json.dumps(request("a")).replace('"not_before_ms": 0', f'"not_before_ms": {number}')
    graph, _ = read(tmp_path, HEADER, row.encode())
    assert graph.not_before_ms.tolist() == [read_json_number(number)]


@pytest.mark.parametrize("name", ["request_id", "play_id", "session_id", "model"])
@pytest.mark.parametrize("value", [..., None, "", " \t", 3, "\ud800"])
def test_texts_are_required_and_not_blank(tmp_path: Path, name: str, value: Any) -> None:
    assert [(line, field) for line, field, _ in faults(tmp_path, HEADER, request("a", **{name: value}))] == [(2, name)]


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        ({"input_length": 0, "hash_ids": []}, "input_length", "must be an integer from 1 to"),
        ({"input_length": ...}, "input_length", "is required"),
        ({"input_length": 100.0}, "input_length", "must be an integer"),
        ({"input_length": 10**10}, "input_length", "must be an integer"),
        ({"output_length": -1}, "output_length", "must be an integer from 0 to"),
        ({"output_length": None}, "output_length", "is required"),
        ({"hash_ids": None}, "hash_ids", "is required"),
        ({"hash_ids": [1]}, "hash_ids", "must hold 2 ids for 100 tokens at block size 64, but holds 1"),
        ({"hash_ids": [1, 2, 3]}, "hash_ids", "must hold 2 ids for 100 tokens at block size 64, but holds 3"),
        ({"hash_ids": [1, 2**64]}, "hash_ids[1]", "must be an integer from 0 to"),
        ({"hash_ids": [True, 2]}, "hash_ids[0]", "must be an integer from 0 to"),
        ({"not_before_ms": -1}, "not_before_ms", "must be a finite number of at least 0"),
        ({"not_before_ms": ...}, "not_before_ms", "is required"),
        ({"not_before_ms": "0"}, "not_before_ms", "must be a finite number of at least 0"),
        ({"recorded_api_time_ms": -0.5}, "recorded_api_time_ms", "must be a finite number of at least 0"),
        ({"source_play_ordinal": -1}, "source_play_ordinal", "must be an integer from 0 to"),
        ({"output_token_ids": [7]}, "output_token_ids", "must hold output_length = 2 ids, but holds 1"),
        ({"output_token_ids": [7, 2**32]}, "output_token_ids[1]", "must be an integer from 0 to"),
        ({"priority": 2**31}, "priority", "must be an integer from"),
        ({"strict_priority": -1}, "strict_priority", "must be an integer from 0 to"),
        ({"policy_class": 1}, "policy_class", "must be a string"),
        ({"dependencies": None}, "dependencies", "must be a list"),
        ({"dependencies": {}}, "dependencies", "must be a list"),
        ({"dependencies": ["a"]}, "dependencies[0]", "must be an object"),
        ({"dependencies": [after("a", delay_ms=-1)]}, "dependencies[0].delay_ms", "must be a finite number of at"),
        ({"dependencies": [after("a", delay_ms=...)]}, "dependencies[0].delay_ms", "is required"),
        ({"dependencies": [after("a", trigger="start")]}, "dependencies[0].trigger", "must be one of dispatch"),
        ({"dependencies": [after("a", relation="Join")]}, "dependencies[0].relation", "must be one of sequence, spawn"),
        ({"dependencies": [after("a", trigger="dispatch")]}, "dependencies[0].relation", "must be spawn with trigger"),
        ({"dependencies": [after("zz")]}, "dependencies[0].request_id", "must be the id of a request of this trace"),
        ({"dependencies": [after("b")]}, "dependencies[0].request_id", "must not be the request itself"),
        ({"dependencies": [after("a"), after("o")]}, "dependencies[1].request_id", "must be of the same play, 'p'"),
    ],
)  # fmt: skip
def test_a_faulty_field_is_named(tmp_path: Path, changes: dict[str, Any], field: str, rule: str) -> None:
    [(line, found, text)] = faults(tmp_path, HEADER, request("a"), request("o", play_id="q"), request("b", **changes))
    assert (line, found) == (4, field)
    assert text.startswith(rule)


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        ({"schema": "x"}, "schema", "must be dynamo.agentic_mooncake"),
        ({"version": 1}, "version", "must be 2"),
        ({"version": 2.0}, "version", "must be 2"),
        ({"block_size": 0}, "block_size", "must be an integer from 1 to"),
        ({"block_size": ...}, "block_size", "is required"),
        ({"hash_id_scope": "global"}, "hash_id_scope", "must be local"),
        ({"source": None}, "source", "is required"),
        ({"source": "x"}, "source", "must be an object"),
        ({"source": {"format": "x", "digest": " "}}, "source.digest", "must not be blank"),
    ],
)
def test_a_faulty_header_is_named(tmp_path: Path, changes: dict[str, Any], field: str, rule: str) -> None:
    header = {key: value for key, value in (HEADER | changes).items() if value is not ...}
    [(line, found, text)] = faults(tmp_path, header, request("a"))
    assert (line, found) == (1, field)
    assert text.startswith(rule)


def test_all_faults_are_told_in_one_pass(tmp_path: Path) -> None:
    lines = [
        HEADER | {"version": 3}, b"", request("a", model=" "), b'{"request_id": "x"', request("a"),
        request("b", after("b"), after("nobody")), request("c", after("d")), request("d", after("c")),
        request("e", source_play_ordinal=0),
    ]  # fmt: skip
    found = [(line, field) for line, field, _ in faults(tmp_path, *lines)]
    # "nobody" may be the id of line 4, which could not be read.
    assert found == [
        (1, "version"), (3, "model"), (3, "source_play_ordinal"), (4, ""), (5, "request_id"),
        (6, "dependencies[0].request_id"), (7, "dependencies"),
    ]  # fmt: skip


@pytest.mark.parametrize("length", [2, 8, 9, 5_000])
def test_a_cycle_is_named_by_at_most_eight(tmp_path: Path, length: int) -> None:
    names = [f"r{at:05d}" for at in range(length)]
    chain = [request("0start"), request("zz", after(names[0]))]  # before and behind it, not in it
    chain += [
        request(name, after(names[at - 1]), *([after("0start")] if at == 0 else [])) for at, name in enumerate(names)
    ]
    [(line, field, rule)] = faults(tmp_path, HEADER, *chain)
    more = f" and {length - 8} more" if length > 8 else ""
    assert (line, field) == (4, "dependencies")
    assert rule == f"must not wait for each other: {length} requests do, {', '.join(names[:8])}{more}"


@pytest.mark.parametrize(
    ("ordinals", "line", "rule"),
    [
        ([0, None], 3, "must be given in every row or in none"),
        ([1, 2], 3, "must be below 2"),
        ([0, 0], 3, "must differ from that of play 'p0'"),
    ],
)
def test_ordinals_number_the_plays(tmp_path: Path, ordinals: list[int | None], line: int, rule: str) -> None:
    rows = [request(f"r{at}", play_id=f"p{at}", source_play_ordinal=one) for at, one in enumerate(ordinals)]
    [(found, field, text)] = faults(tmp_path, HEADER, *rows)
    assert (found, field) == (line, "source_play_ordinal")
    assert text.startswith(rule)


def test_an_ordinal_is_the_same_in_all_of_a_play(tmp_path: Path) -> None:
    rows = [request("a", source_play_ordinal=0), request("b", source_play_ordinal=1)]
    assert faults(tmp_path, HEADER, *rows) == [(3, "source_play_ordinal", "must be 0 as in line 2, the same play")]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (b"[" * 100_000 + b"]" * 100_000, "must not be nested so deeply"),
        (b'{"request_id":' * 50_000, "must not be nested so deeply"),
        (b"\xff\xfe", "must be UTF-8"),
        (b"[]", "must be one JSON object"),
        (b"null", "must be one JSON object"),
        (b'{"a": 1} {"b": 2}', "must be one JSON object"),
        (b'{"request_id": "a", "request_id": "a"}', "must not be given twice"),
        (b'{"not_before_ms": NaN}', "must be a finite number"),
        (b'{"not_before_ms": 1e999}', "must be a finite number"),
    ],
)
def test_hostile_lines_are_faults(tmp_path: Path, line: bytes, rule: str) -> None:
    assert any(text.startswith(rule) for at, _, text in faults(tmp_path, HEADER, line) if at == 2)


@pytest.mark.parametrize("lines", [[], [b"", b"  "], [HEADER], [request("a")], [b"[]"], [b"{"]])
def test_a_file_needs_a_header_and_a_request(tmp_path: Path, lines: list[Any]) -> None:
    assert len(faults(tmp_path, *lines)) == 1


def test_what_is_suspicious_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(HEADER) + "\n" + json.dumps(request("a", depends=["b"])) + "\n")
    with open_trace(path, trace_format="agentic_mooncake", trace_block_size=512) as source:
        assert source.scan().warnings == (
            "the trace block size is that of the header, 64, not 512",
            "fields that mean nothing here were ignored: depends",
        )


@pytest.mark.parametrize(
    "setting", [{"timestamp_unit": "s"}, {"missing_timestamps": "zero"}, {"missing_hash_ids": "private"}]
)
def test_settings_of_rows_are_refused(tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is of no use with trace_format agentic-mooncake"):
        open_trace(tmp_path / "trace.jsonl", trace_format="agentic-mooncake", **setting)


def test_rows_of_a_graph_are_its_requests(tmp_path: Path) -> None:
    _, source = read(tmp_path, HEADER, *(request(f"r{at}", not_before_ms=at) for at in range(5)))
    batches = list(source.batches(2))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert np.concatenate([batch.timestamp_ms for batch in batches]).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [batch.hash_ids.tolist() for batch in batches] == [[1, 2, 1, 2], [1, 2, 1, 2], [1, 2]]
