"""A graph of requests written as agentic_mooncake version 2."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from msgspec import structs

from mocker_replay.trace.agentic_writer import agentic_lines
from mocker_replay.trace.graph import Relation, TraceGraph, Trigger


def graph(**changes: Any) -> TraceGraph:
    """Two plays: `b` spawns `c` and is followed by `d`, which waits for `c` as well; `a` is alone."""
    made = TraceGraph(
        block_size=16,
        request_ids=["a", "b", "c", "d"],
        lines=np.arange(2, 6),
        input_tokens=np.array([16, 20, 5, 33]),
        output_tokens=np.array([1, 0, 7, 2]),
        hash_offsets=np.array([0, 1, 3, 4, 7]),
        hash_ids=np.array([9, 1, 2, 2**64 - 1, 1, 2, 3], np.uint64),
        not_before_ms=np.array([250.0, 100.5, -np.inf, 100.5]),
        session_names=["solo", "root", "root:worker", "root"],
        models=["m", "m", None, ""],
        play=np.array([1, 0, 0, 0]),
        play_ids=["second by name", "first by name"],
        edge_offsets=np.array([0, 0, 0, 1, 3]),
        edge_source=np.array([1, 1, 2]),
        edge_trigger=np.array([Trigger.DISPATCH, Trigger.COMPLETION, Trigger.COMPLETION], np.int32),
        edge_relation=np.array([Relation.SPAWN, Relation.SEQUENCE, Relation.JOIN], np.int32),
        edge_delay_ms=np.array([0.25, 1500.0, 0.0]),
        priority=np.array([0, 0, -2, 0], np.int32),
        strict_priority=np.array([0, 3, 0, 0]),
    )
    return structs.replace(made, **changes)


def lines(made: TraceGraph) -> list[bytes]:
    return list(agentic_lines(made, source_format="weka", source_digest="abc"))


def rows(made: TraceGraph) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(made)[1:]]


def test_the_file_to_the_byte() -> None:
    assert b"".join(lines(graph())).decode() == (
        '{"schema":"dynamo.agentic_mooncake","version":2,"block_size":16,"hash_id_scope":"local",'
        '"source":{"format":"weka","digest":"abc"}}\n'
        '{"request_id":"a","play_id":"first by name","session_id":"solo","model":"m","input_length":16,'
        '"output_length":1,"hash_ids":[9],"not_before_ms":250,"source_play_ordinal":1}\n'
        '{"request_id":"b","play_id":"second by name","session_id":"root","model":"m","input_length":20,'
        '"output_length":0,"hash_ids":[1,2],"not_before_ms":100.5,"source_play_ordinal":0,"strict_priority":3}\n'
        '{"request_id":"c","play_id":"second by name","session_id":"root:worker","model":"unknown","input_length":5,'
        '"output_length":7,"hash_ids":[18446744073709551615],"not_before_ms":100.5,"dependencies":[{"request_id":"b",'
        '"trigger":"dispatch","delay_ms":0.25,"relation":"spawn"}],"source_play_ordinal":0,"priority":-2}\n'
        '{"request_id":"d","play_id":"second by name","session_id":"root","model":"unknown","input_length":33,'
        '"output_length":2,"hash_ids":[1,2,3],"not_before_ms":100.5,"dependencies":[{"request_id":"b",'
        '"trigger":"completion","delay_ms":1500,"relation":"sequence"},{"request_id":"c","trigger":"completion",'
        '"delay_ms":0,"relation":"join"}],"source_play_ordinal":0}\n'
    )


def test_no_floor_is_below_zero_and_the_start_of_the_trace_stays() -> None:
    floors = [row["not_before_ms"] for row in rows(graph(not_before_ms=np.array([-5.0, 3.0, -np.inf, 0.0])))]
    assert floors == [0, 8, 0, 5]
    floors = [row["not_before_ms"] for row in rows(graph(not_before_ms=np.array([7.0, 3.5, -np.inf, -np.inf])))]
    assert floors == [7, 3.5, 3.5, 3.5]
    assert [row["not_before_ms"] for row in rows(graph(not_before_ms=np.full(4, -np.inf)))] == [0, 0, 0, 0]


def test_there_is_one_id_a_block_and_edges_name_requests_of_the_play() -> None:
    for row in rows(graph()):
        assert len(row["hash_ids"]) == -(-row["input_length"] // 16)
        for edge in row.get("dependencies", ()):
            assert {r["play_id"] for r in rows(graph()) if r["request_id"] == edge["request_id"]} == {row["play_id"]}
