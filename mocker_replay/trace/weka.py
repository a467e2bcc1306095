"""Weka traces: recorded trajectories of agents, one object each, lowered to a graph.

Decides how files become a graph and finds all faults in one reading: those of each object (weka_object.py), then those
between objects. Keeps the whole graph, as columns.

Source: replay specification, section 1.6.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from blake3 import blake3

from mocker_replay.trace.base import MAX_EDGES, MAX_PROMPT_BLOCKS, NestedTimestampBasis, TraceFacts
from mocker_replay.trace.decompression import TextLimit
from mocker_replay.trace.faults import FaultList, joined, whole_file_error
from mocker_replay.trace.graph import TraceGraph
from mocker_replay.trace.graph_checks import cycle_text, requests_in_cycles
from mocker_replay.trace.graph_parts import GraphParts
from mocker_replay.trace.graph_source import GraphTrace, facts_of_graph
from mocker_replay.trace.json_objects import ObjectSplitter
from mocker_replay.trace.line_file import LineFile
from mocker_replay.trace.weka_edges import TooManyEdges
from mocker_replay.trace.weka_files import WekaFile, weka_files
from mocker_replay.trace.weka_lowering import BlockIds, WekaAgent, WekaPlay, add_play
from mocker_replay.trace.weka_object import read_object
from mocker_replay.trace.weka_streams import EPSILON_S

_READ_LINES: Final = 1024
_Found = tuple[FaultList, WekaPlay]  # a faultless play, and where faults of its file go


class WekaTrace(GraphTrace):
    """One file or directory of trajectories; see GraphSource.

    Args:
        path: a `.json` file of one object, a `.jsonl` file of one or more, or a directory of such.
        nested_timestamp_basis: the clock of the requests of sub-agents.
        block_size: what the trace must say of itself; None: anything.
        limit: most text of a compressed file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        nested_timestamp_basis: NestedTimestampBasis = "auto",
        block_size: int | None = None,
        limit: TextLimit | None = None,
    ) -> None:
        super().__init__()
        self._path = os.fspath(path)
        self._basis = nested_timestamp_basis
        self._block_size = block_size
        self._limit = limit
        self._files = weka_files(self._path)

    def close(self) -> None:
        """Nothing stays open."""

    def _read(self) -> tuple[TraceGraph, TraceFacts]:
        lists = [FaultList(file.path) for file in self._files]
        hasher = blake3()
        plays: list[_Found] = []
        for file, faults in zip(self._files, lists, strict=True):
            plays += [(faults, play) for play in self._plays(file, faults, hasher)]
        if plays:
            self._check_corpus(plays)
        if any(lists):
            raise joined(lists).error()
        basis = _resolved([play for _, play in plays]) if self._basis == "auto" else self._basis
        parts, blocks = GraphParts(), BlockIds()
        num_edges = 0
        for faults, play in plays:
            try:
                num_edges += add_play(parts, play, blocks, is_relative=basis == "relative")
            except TooManyEdges:
                num_edges = MAX_EDGES + 1
            if num_edges > MAX_EDGES:
                rule = f"must not need more than {MAX_EDGES} edges, with those before it: its streams overlap too much"
                raise whole_file_error(faults.file, rule, play.line)
        graph = parts.graph(plays[0][1].block_size)
        self._check_graph(graph)
        digest = hasher.hexdigest()
        facts = facts_of_graph(
            graph,
            path=self._path,
            name=os.path.basename(self._path.rstrip("/")),
            trace_format="weka",
            digest=digest,
            source={"format": "weka", "digest": digest},
            nested_timestamp_basis=basis,
        )
        return graph, facts

    def _plays(self, file: WekaFile, faults: FaultList, hasher: blake3) -> list[WekaPlay]:
        """The faultless objects of one file."""
        found: list[WekaPlay] = []
        count = 0
        lines = LineFile(file.path, self._limit)
        try:
            for line, text in _objects(lines):
                source = f"{file.name}#{count:06d}" if file.is_stream else file.name
                if count == 1 and not file.is_stream:
                    faults.add(line, "", "must be the only object of a .json file; several need the suffix .jsonl")
                    break
                play = read_object(text, line, source, faults)
                if play is not None:
                    found.append(play)
                count += 1
            else:
                hasher.update(f"{file.name}\0{lines.digest}\n".encode(errors="surrogateescape"))
        finally:
            lines.close()
        if count == 0:
            faults.add(0, "", "must hold at least one object")
        return found

    def _check_corpus(self, plays: Sequence[_Found]) -> None:
        expected = plays[0][1].block_size if self._block_size is None else self._block_size
        whose = "of the first object" if self._block_size is None else "that was asked for"
        num_blocks = 0
        for faults, play in plays:
            if play.block_size != expected:
                faults.add(play.line, "block_size", f"must be {expected}, the one {whose}", play.block_size)
            num_blocks += sum(-(-request.input_tokens // play.block_size) for request in play.requests)
            if num_blocks > MAX_PROMPT_BLOCKS:
                faults.add(play.line, "", f"must not bring the blocks of all prompts above {MAX_PROMPT_BLOCKS}")
                return
        if self._basis == "absolute":
            _refuse_early(plays)

    def _check_graph(self, graph: TraceGraph) -> None:
        """Times that contradict each other can make requests wait for each other."""
        targets = np.repeat(np.arange(len(graph)), np.diff(graph.edge_offsets))
        circular = requests_in_cycles(len(graph), graph.edge_source, targets)
        if circular:
            names = cycle_text([graph.request_ids[request] for request in circular])
            rule = f"must not make requests wait for each other by their times and hash ids: {names}"
            raise whole_file_error(self._path, rule, int(graph.lines[circular[0]]))


def _objects(lines: LineFile) -> Iterator[tuple[int, bytes]]:
    splitter = ObjectSplitter()
    for block in lines.blocks(_READ_LINES):
        yield from splitter.feed(block)
    rest = splitter.finish()
    if rest is not None:
        yield rest


def _resolved(plays: Sequence[WekaPlay]) -> str:
    """The clock that requests of sub-agents are on, as their times show."""
    if not any(agent.end > agent.first for play in plays for agent in play.agents):
        return "not_applicable"
    return "relative" if any(True for play in plays for _ in _early(play)) else "absolute"


def _early(play: WekaPlay) -> Iterator[tuple[WekaAgent, int]]:
    """Requests of sub-agents that are dated before their sub-agent."""
    for agent in play.agents:
        for number in range(agent.first, agent.end):
            if play.requests[number].start_s + EPSILON_S < agent.start_s:
                yield agent, number


def _refuse_early(plays: Sequence[_Found]) -> None:
    for faults, play in plays:
        for agent, number in _early(play):
            request = play.requests[number]
            place = f"requests[{request.outer}].requests[{request.inner}].t"
            rule = f"must not be before the start of its sub-agent, {agent.start_s}, on an absolute clock"
            faults.add(play.line, place, rule, request.start_s)
