"""Agentic Mooncake (version 2): a header line, then one request of a dependency graph a line.

Decides how a file becomes a graph and finds all faults in one reading: those of each line (agentic_row.py), then those
between requests. Keeps the whole graph, as columns. Source: replay specification, section 1.5.
"""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np

from mocker_replay.trace.agentic_row import AgenticHeader, AgenticRow, read_header, read_request
from mocker_replay.trace.base import TraceFacts
from mocker_replay.trace.exact_json import is_blank
from mocker_replay.trace.faults import FaultList, whole_file_error
from mocker_replay.trace.graph import TraceGraph
from mocker_replay.trace.graph_checks import cycle_text, requests_in_cycles
from mocker_replay.trace.graph_source import GraphTrace, facts_of_graph
from mocker_replay.trace.line_file import Lines

_READ_LINES: Final = 1024
_MAX_NAMED_FIELDS: Final = 5


class AgenticMooncakeTrace(GraphTrace):
    """One agentic Mooncake file; see GraphSource.

    Args:
        given_block_size: the caller's own idea of the trace block size, which the header overrules.
    """

    def __init__(self, file: Lines, given_block_size: int | None = None) -> None:
        super().__init__()
        self._file = file
        self._given_block_size = given_block_size

    def close(self) -> None:
        self._file.close()

    def _read(self) -> tuple[TraceGraph, TraceFacts]:
        faults = FaultList(self._file.shown_path, self._file.locate)
        header, rows, is_whole = self._lines(faults)
        if header is not None and not rows and not faults:
            raise whole_file_error(self._file.shown_path, "must hold at least one request behind its header")
        if header is None or not rows:
            raise faults.error()
        by_id = _by_id(rows, faults)
        edges = _resolved(by_id, faults, is_whole=is_whole)
        _check_cycles(by_id, edges, faults)
        _check_ordinals(rows, faults)
        if faults:
            raise faults.error()
        graph = _assemble(header, by_id, edges)
        facts = facts_of_graph(
            graph,
            path=self._file.path,
            name=self._file.name,
            trace_format="agentic_mooncake",
            digest=self._file.digest,
            source=header.source,
            warnings=self._warnings(header, rows),
        )
        return graph, facts

    def _lines(self, faults: FaultList) -> tuple[AgenticHeader | None, list[AgenticRow], bool]:
        """Header, requests, and whether the id of every line is known."""
        header: AgenticHeader | None = None
        rows: list[AgenticRow] = []
        is_whole = True
        for block in self._file.blocks(_READ_LINES):
            for line, text in enumerate(block.lines, block.first_line):
                if header is None:
                    if is_blank(text):
                        continue
                    header = read_header(text, line, faults)
                    if header is None:
                        return None, [], False
                    continue
                num_faults = len(faults)
                row = read_request(text, line, header.block_size, faults)
                if row is not None:
                    rows.append(row)
                is_whole &= "request_id" not in row.faulty if row is not None else len(faults) == num_faults
        if header is None:
            raise whole_file_error(self._file.shown_path, "must hold a header and at least one request")
        return header, rows, is_whole

    def _warnings(self, header: AgenticHeader, rows: list[AgenticRow]) -> list[str]:
        found = []
        given = self._given_block_size
        if given is not None and given != header.block_size:
            found.append(f"the trace block size is that of the header, {header.block_size}, not {given}")
        unknown = sorted(set().union(*(row.unknown for row in rows)))
        if unknown:
            more = f" and {len(unknown) - _MAX_NAMED_FIELDS} more" if len(unknown) > _MAX_NAMED_FIELDS else ""
            found.append(f"fields that mean nothing here were ignored: {', '.join(unknown[:_MAX_NAMED_FIELDS])}{more}")
        return found


def _by_id(rows: list[AgenticRow], faults: FaultList) -> dict[str, AgenticRow]:
    """Requests in byte order of their ids, the first of each id."""
    known: dict[str, AgenticRow] = {}
    for row in rows:
        if "request_id" in row.faulty:
            continue
        first = known.setdefault(row.request_id, row)
        if first is not row:
            faults.add(
                row.line, "request_id", f"must be unique, but stands in line {first.line} already", row.request_id
            )
    return {name: known[name] for name in sorted(known)}  # code points sort as their UTF-8 bytes do


class _Edges:
    """Edges of the graph, request after request, as columns under construction."""

    def __init__(self) -> None:
        self.sources, self.targets = array("q"), array("q")
        self.triggers, self.relations = array("i"), array("i")
        self.delays_ms = array("d")


def _resolved(by_id: dict[str, AgenticRow], faults: FaultList, *, is_whole: bool) -> _Edges:
    """Edges between known requests; those that are none are faults.

    Args:
        is_whole: every id is known, so that one that is not does not exist.
    """
    ordinals = {name: ordinal for ordinal, name in enumerate(by_id)}
    edges = _Edges()
    for ordinal, row in enumerate(by_id.values()):
        for one in row.dependencies:
            source = by_id.get(one.source)
            place = f"{one.field}.request_id"
            if source is row:
                faults.add(row.line, place, "must not be the request itself", one.source)
            elif source is None:
                if is_whole:
                    faults.add(row.line, place, "must be the id of a request of this trace", one.source)
            elif source.play_id != row.play_id:
                if source.play_id and row.play_id:
                    rule = f"must be of the same play, {row.play_id!r}, but line {source.line} is of {source.play_id!r}"
                    faults.add(row.line, place, rule, one.source)
            else:
                edges.sources.append(ordinals[one.source])
                edges.targets.append(ordinal)
                edges.triggers.append(one.trigger)
                edges.relations.append(one.relation)
                edges.delays_ms.append(one.delay_ms)
    return edges


def _check_cycles(by_id: dict[str, AgenticRow], edges: _Edges, faults: FaultList) -> None:
    sources, targets = np.array(edges.sources, np.int64), np.array(edges.targets, np.int64)
    blocked = requests_in_cycles(len(by_id), sources, targets)
    if blocked:
        rows = list(by_id.values())
        names = [rows[ordinal].request_id for ordinal in blocked]
        rule = f"must not wait for each other: {len(names)} requests do, {cycle_text(names)}"
        faults.add(min(rows[ordinal].line for ordinal in blocked), "dependencies", rule)


def _check_ordinals(rows: list[AgenticRow], faults: FaultList) -> None:
    """`source_play_ordinal`: in all rows or none, one for each play, from 0 without a gap."""
    field = "source_play_ordinal"
    sound = [row for row in rows if field not in row.faulty and "play_id" not in row.faulty]
    given = [row for row in sound if row.source_play_ordinal is not None]
    if not given:
        return
    if len(given) < len(sound):
        line = next(row.line for row in sound if row.source_play_ordinal is None)
        faults.add(line, field, f"must be given in every row or in none, and line {given[0].line} gives it")
    first_of_play: dict[str, AgenticRow] = {}
    for row in given:
        first = first_of_play.setdefault(row.play_id, row)
        if first.source_play_ordinal != row.source_play_ordinal:
            rule = f"must be {first.source_play_ordinal} as in line {first.line}, the same play"
            faults.add(row.line, field, rule, row.source_play_ordinal)
    _check_numbering(list(first_of_play.values()), faults)


def _check_numbering(firsts: list[AgenticRow], faults: FaultList) -> None:
    """The first row of each play: its ordinals are 0 to n - 1, each once."""
    field = "source_play_ordinal"
    taken: dict[int, AgenticRow] = {}
    for row in firsts:
        ordinal = row.source_play_ordinal
        assert ordinal is not None, "only rows that give one are looked at"
        other = taken.setdefault(ordinal, row)
        if other is not row:
            faults.add(row.line, field, f"must differ from that of play {other.play_id!r}", ordinal)
        elif ordinal >= len(firsts):
            faults.add(row.line, field, f"must be below {len(firsts)}, the number of plays", ordinal)


def _assemble(header: AgenticHeader, by_id: dict[str, AgenticRow], edges: _Edges) -> TraceGraph:
    rows = list(by_id.values())
    plays = {row.play_id: row.source_play_ordinal for row in rows}
    is_numbered = None not in plays.values()
    play_ids = sorted(plays, key=lambda name: (plays[name] or 0, name) if is_numbered else (0, name))
    play_of = {name: ordinal for ordinal, name in enumerate(play_ids)}
    hash_ids = array("Q")
    for row in rows:
        hash_ids.extend(row.hash_ids)
    targets = np.array(edges.targets, np.int64)
    return TraceGraph(
        block_size=header.block_size,
        request_ids=[row.request_id for row in rows],
        lines=np.array([row.line for row in rows], np.int64),
        input_tokens=np.array([row.input_tokens for row in rows], np.int64),
        output_tokens=np.array([row.output_tokens for row in rows], np.int64),
        hash_offsets=np.concatenate(([0], np.cumsum([len(row.hash_ids) for row in rows]))).astype(np.int64),
        hash_ids=np.array(hash_ids, np.uint64),
        not_before_ms=np.array([row.not_before_ms for row in rows], np.float64),
        session_names=[row.session_id for row in rows],
        models=[row.model for row in rows],
        play=np.array([play_of[row.play_id] for row in rows], np.int64),
        play_ids=play_ids,
        edge_offsets=np.searchsorted(targets, np.arange(len(rows) + 1)).astype(np.int64),
        edge_source=np.array(edges.sources, np.int64),
        edge_trigger=np.array(edges.triggers, np.int32),
        edge_relation=np.array(edges.relations, np.int32),
        edge_delay_ms=np.array(edges.delays_ms, np.float64),
        priority=np.array([row.priority for row in rows], np.int32),
        strict_priority=np.array([row.strict_priority for row in rows], np.int64),
    )
