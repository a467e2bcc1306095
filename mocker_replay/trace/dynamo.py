"""Dynamo request traces: events of a serving frontend in one or more files, rows or a graph.

Decides how the events of all files become one trace: their order, which requests are agents', what holds between them.
Finds all faults in one reading and keeps what it read, as columns.

Source: replay specification, section 1.8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from mocker_replay.trace.base import RowBatch, SurplusHashIds, TraceFacts
from mocker_replay.trace.dynamo_edges import edges_of_requests, plays_of
from mocker_replay.trace.dynamo_event import SCHEMA, DynamoRequest, ToolCall, read_event
from mocker_replay.trace.faults import FaultList, whole_file_error
from mocker_replay.trace.graph import TraceGraph
from mocker_replay.trace.graph_checks import cycle_text, requests_in_cycles
from mocker_replay.trace.graph_parts import GraphEdge, GraphParts, GraphRow
from mocker_replay.trace.graph_source import GraphTrace, facts_of_graph
from mocker_replay.trace.line_file import Lines

UNKNOWN_MODEL: Final = "unknown"
_READ_LINES: Final = 1024


class DynamoRules(Struct, frozen=True):
    """How the files are to be read."""

    block_size: int | None = None  # what the trace must say of itself; None: anything
    surplus_hash_ids: SurplusHashIds = "ignore"  # of rows; a graph lists exactly those it needs


class DynamoTrace(GraphTrace):
    """Some files of events; a TraceSource, and a GraphSource if agents sent the requests."""

    def __init__(self, file: Lines, rules: DynamoRules) -> None:
        super().__init__()
        self._file = file
        self._rules = rules
        self._rows: Sequence[DynamoRequest] | None = None  # None: the trace is a graph, or was not read yet

    def close(self) -> None:
        self._file.close()

    def batches(self, max_rows: int = 1024) -> Iterator[RowBatch]:
        self.scan()
        if self._rows is None:
            yield from super().batches(max_rows)
            return
        if max_rows < 1:
            raise ValueError(f"max_rows must be positive, got {max_rows}")
        for first in range(0, len(self._rows), max_rows):
            yield _row_batch(self._rows[first : first + max_rows], first, self._rows[0].start_ms)

    def _read(self) -> tuple[TraceGraph, TraceFacts]:
        faults = FaultList(self._file.shown_path, self._file.locate)
        requests, tool_calls = self._events(faults)
        if not requests and not faults:
            raise whole_file_error(self._file.shown_path, "must hold at least one request_end event")
        requests.sort(key=lambda request: request.order)
        _check_together(requests, self._rules, faults)
        is_graph = any(request.session is not None for request in requests)
        edges: list[GraphEdge] = []
        if is_graph and all(request.session is not None for request in requests):
            edges = edges_of_requests(requests, tool_calls, faults)
        if faults:
            raise faults.error()
        if not is_graph:
            self._rows = requests
            return GraphParts().graph(requests[0].block_size), self._facts_of_rows(requests)
        graph = _graph(requests, edges)
        self._refuse_cycles(graph)
        source = {"format": SCHEMA, "digest": f"requests:{len(requests)};tools:{len(tool_calls)}"}
        facts = facts_of_graph(
            graph,
            path=self._file.path,
            name=self._file.name,
            trace_format="dynamo",
            digest=self._file.digest,
            source=source,
        )
        return graph, facts

    def _events(self, faults: FaultList) -> tuple[list[DynamoRequest], list[ToolCall]]:
        requests: list[DynamoRequest] = []
        tool_calls: list[ToolCall] = []
        for block in self._file.blocks(_READ_LINES):
            for line, text in enumerate(block.lines, block.first_line):
                event = read_event(text, line, faults)
                if isinstance(event, DynamoRequest):
                    requests.append(event)
                elif event is not None:
                    tool_calls.append(event)
        return requests, tool_calls

    def _refuse_cycles(self, graph: TraceGraph) -> None:
        targets = np.repeat(np.arange(len(graph)), np.diff(graph.edge_offsets))
        circular = requests_in_cycles(len(graph), graph.edge_source, targets)
        if circular:
            names = cycle_text([graph.request_ids[request] for request in circular])
            file, line = self._file.locate(int(graph.lines[circular[0]]))
            raise whole_file_error(file, f"must not make requests wait for each other: {names}", line)

    def _facts_of_rows(self, requests: Sequence[DynamoRequest]) -> TraceFacts:
        surplus = sum(len(request.hash_ids) > _num_blocks(request) for request in requests)
        return TraceFacts(
            path=self._file.path,
            name=self._file.name,
            format="dynamo",
            num_rows=len(requests),
            digest=self._file.digest,
            is_sorted=True,
            has_sessions=False,
            is_multi_turn=False,
            num_sessions=len(requests),
            min_first_timestamp_ms=0.0,
            max_first_timestamp_ms=float(requests[-1].start_ms - requests[0].start_ms),
            total_input_tokens=sum(request.input_tokens for request in requests),
            total_output_tokens=sum(request.output_tokens for request in requests),
            has_request_ids=True,
            timestamp_unit="ms",
            trace_block_size=requests[0].block_size,
            warnings=(f"{surplus} requests have more hashes than blocks; the surplus is ignored",) if surplus else (),
        )


def _num_blocks(request: DynamoRequest) -> int:
    return -(-request.input_tokens // request.block_size)


def _check_together(requests: Sequence[DynamoRequest], rules: DynamoRules, faults: FaultList) -> None:
    """What must hold between the requests of all files: ids, block size, agents, numbers of hashes."""
    known: dict[str, DynamoRequest] = {}
    given = rules.block_size
    is_graph = any(request.session is not None for request in requests)
    for request in requests:
        first = known.setdefault(request.request_id, request)
        if first is not request:
            rule = f"must be unique, but is that of line {first.line}, too"
            faults.add(request.line, "request.request_id", rule, request.request_id)
        expected, whose = (requests[0].block_size, "of the earliest request") if given is None else (given, "given")
        if request.block_size != expected:
            rule = f"must be {expected}, the one {whose}"
            faults.add(request.line, "request.replay.trace_block_size", rule, request.block_size)
        if is_graph and request.session is None:
            rule = "must be there, since other requests have one: all requests come from agents, or none"
            faults.add(request.line, "agent_context", rule)
        _check_hashes(request, is_graph, rules, faults)


def _check_hashes(request: DynamoRequest, is_graph: bool, rules: DynamoRules, faults: FaultList) -> None:
    num_blocks, num_ids = _num_blocks(request), len(request.hash_ids)
    is_surplus = num_ids > num_blocks + 1 and rules.surplus_hash_ids == "refuse"
    if num_ids < num_blocks or (is_graph and num_ids > num_blocks) or is_surplus:
        rule = f"must hold {num_blocks} hashes for {request.input_tokens} tokens at block size {request.block_size}"
        faults.add(request.line, "request.replay.input_sequence_hashes", f"{rule}, but holds {num_ids}")


def _row_batch(requests: Sequence[DynamoRequest], first_row: int, base_ms: int) -> RowBatch:
    """Requests as rows of one turn each, in their order; times count from `base_ms`."""
    num_rows = len(requests)
    offsets = np.zeros(num_rows + 1, np.int64)
    np.cumsum([_num_blocks(request) for request in requests], out=offsets[1:])
    hash_ids = [np.frombuffer(request.hash_ids, np.uint64)[: _num_blocks(request)] for request in requests]
    surplus = any(len(request.hash_ids) > _num_blocks(request) for request in requests)
    return RowBatch(
        first_row=first_row,
        lines=np.array([request.line for request in requests], np.int64),
        timestamp_ms=np.array([float(request.start_ms - base_ms) for request in requests]),
        input_tokens=np.array([request.input_tokens for request in requests], np.int64),
        output_tokens=np.array([request.output_tokens for request in requests], np.int64),
        hash_offsets=offsets,
        hash_ids=np.concatenate(hash_ids),
        session=np.arange(first_row, first_row + num_rows, dtype=np.int64),
        turn=np.zeros(num_rows, np.int32),
        delay_ms=np.zeros(num_rows),
        session_names=[f"request_{first_row + at}" for at in range(1, num_rows + 1)],
        request_ids=[request.request_id for request in requests],
        priority=np.zeros(num_rows, np.int32),
        strict_priority=np.zeros(num_rows, np.int64),
        surplus_included=np.concatenate([np.frombuffer(r.hash_ids, np.uint64) for r in requests]) if surplus else None,
    )


def _graph(requests: Sequence[DynamoRequest], edges: Sequence[GraphEdge]) -> TraceGraph:
    """Connected requests are one play, called like its earliest root; plays are in order of their names."""
    is_root = [True] * len(requests)
    edges_into: list[list[GraphEdge]] = [[] for _ in requests]
    for edge in edges:
        is_root[edge.target] = False
        edges_into[edge.target].append(edge)
    plays = []
    for members in plays_of(len(requests), edges):
        roots = [number for number in members if is_root[number]]
        # Without a root they wait for each other, which is refused later.
        first = min(roots or members, key=lambda number: (requests[number].start_ms, requests[number].request_id))
        plays.append((f"dynamo-play:{requests[first].request_id}", members))
    parts = GraphParts()
    for play_id, members in sorted(plays, key=lambda play: play[0]):
        place = {number: at for at, number in enumerate(members)}
        rows = [_graph_row(requests[number], requests[0].start_ms, is_root[number]) for number in members]
        inner = (edge for number in members for edge in edges_into[number])
        moved = (GraphEdge(place[e.source], place[e.target], e.trigger, e.relation, e.delay_ms) for e in inner)
        parts.add(play_id, rows, moved)
    return parts.graph(requests[0].block_size)


def _graph_row(request: DynamoRequest, base_ms: int, is_root: bool) -> GraphRow:
    return GraphRow(
        request_id=request.request_id,
        line=request.line,
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        hash_ids=np.frombuffer(request.hash_ids, np.uint64),
        not_before_ms=float(request.start_ms - base_ms) if is_root else -math.inf,
        session_name=str(request.session),
        model=UNKNOWN_MODEL if request.model is None else request.model,
    )
