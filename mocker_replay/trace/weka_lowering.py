"""One recorded play to a part of a graph: names, times, edges, block identities.

Decides how requests, sessions and plays are called, what is the earliest start of each request and which blocks two
requests share. What continues what is decided in weka_streams.py, what waits for what in weka_edges.py.

Source: replay specification, section 1.6, rules 4 and 5, and its paragraph on identities.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from blake3 import blake3
from msgspec import Struct

from mocker_replay.trace.base import Uint64s
from mocker_replay.trace.graph_parts import GraphEdge, GraphParts, GraphRow
from mocker_replay.trace.weka_edges import Edges, PlayRequests, SubAgent, edges_of_play
from mocker_replay.trace.weka_streams import NO_REQUEST, AgentRequests, Stream, split_streams

_DECIMALS: Final = 1e6  # of a millisecond that are kept
_DIGEST_CHARS: Final = 16


class WekaRequest(Struct, frozen=True):
    """One model call as it was recorded."""

    outer: int  # position in the list of the play
    inner: int | None  # position in the list of its sub-agent
    start_s: float  # on the clock of the play, or of its sub-agent
    api_s: float  # how long it took
    model: str
    input_tokens: int
    output_tokens: int
    hash_ids: Sequence[int]


class WekaAgent(Struct, frozen=True):
    """One sub-agent: requests `first` to `end` of its play."""

    outer: int
    start_s: float
    agent_id: str
    is_awaited: bool
    duration_ms: int | None  # None: until its last request ended
    first: int
    end: int
    parent: int  # the request of the play that spawned it


class WekaPlay(Struct, frozen=True):
    """One recorded trajectory, its requests in the order in which they are listed."""

    source: str  # names the object within its corpus
    play_id: str
    block_size: int
    line: int  # where the object begins
    requests: Sequence[WekaRequest]
    agents: Sequence[WekaAgent]


class BlockIds:
    """Identities of prompt blocks over a whole corpus: dense, private to a play or to one request."""

    def __init__(self) -> None:
        self._num_given = 0
        self._of_hash: dict[int, int] = {}

    def start_play(self) -> None:
        """Forget the hash ids: those of the next play are others."""
        self._of_hash = {}

    def of(self, request: WekaRequest, block_size: int) -> Uint64s:
        """One identity a block of the prompt, a partial last one included."""
        shared = request.hash_ids[: request.input_tokens // block_size]
        ids = [self._shared(hash_id) for hash_id in shared]
        num_private = -(-request.input_tokens // block_size) - len(ids)
        private = np.arange(self._num_given, self._num_given + num_private, dtype=np.uint64)
        self._num_given += num_private
        return np.concatenate([np.array(ids, np.uint64), private])

    def _shared(self, hash_id: int) -> int:
        known = self._of_hash.get(hash_id)
        if known is None:
            known = self._of_hash[hash_id] = self._num_given
            self._num_given += 1
        return known


def add_play(parts: GraphParts, play: WekaPlay, blocks: BlockIds, *, is_relative: bool) -> int:
    """Lower a play and put it behind those before it; how many edges it has.

    Args:
        is_relative: times of sub-agents count from their own start.

    Raises:
        TooManyEdges: more than a trace may have.
    """
    prefix = f"weka:{blake3(play.source.encode()).hexdigest()[:_DIGEST_CHARS]}"
    requests = play.requests
    times = _times(play, [_request_id(prefix, request) for request in requests], is_relative=is_relative)
    in_agent = {number for agent in play.agents for number in range(agent.first, agent.end)}
    root = _streams_of(requests, times, [number for number in range(len(requests)) if number not in in_agent])
    sub_agents = [_sub_agent(requests, times, agent) for agent in play.agents]
    sessions = dict(_session_names(f"{prefix}:session:root", root))
    for agent, found in zip(play.agents, sub_agents, strict=True):
        sessions.update(_session_names(f"{prefix}:session:subagent:{agent.outer}:{agent.agent_id}", found.streams))
    edges = edges_of_play(times, root, sub_agents)
    blocks.start_play()
    first_s = min(times.start_s)
    rows = [
        GraphRow(
            request_id=times.names[number],
            line=play.line,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            hash_ids=blocks.of(request, play.block_size),
            not_before_ms=milliseconds(times.start_s[number] - first_s),
            session_name=sessions[number],
            model=request.model,
        )
        for number, request in enumerate(requests)
    ]
    parts.add(f"{prefix}:play:{play.play_id}", rows, _graph_edges(edges))
    return len(edges.source)


def _request_id(prefix: str, request: WekaRequest) -> str:
    inner = "" if request.inner is None else f":inner:{request.inner}"
    return f"{prefix}:request:outer:{request.outer}{inner}"


def _times(play: WekaPlay, names: list[str], *, is_relative: bool) -> PlayRequests:
    """When each request started and ended on the clock of its play."""
    start_s = [request.start_s for request in play.requests]
    if is_relative:
        for agent in play.agents:
            for number in range(agent.first, agent.end):
                start_s[number] += agent.start_s
    ends_s = [start + request.api_s for start, request in zip(start_s, play.requests, strict=True)]
    return PlayRequests(start_s, ends_s, names)


def _streams_of(requests: Sequence[WekaRequest], times: PlayRequests, numbers: Sequence[int]) -> list[Stream]:
    """Streams of some requests of a play, as numbers of the play."""
    chosen = [requests[number] for number in numbers]
    agent = AgentRequests(
        start_s=[times.start_s[number] for number in numbers],
        end_s=[times.end_s[number] for number in numbers],
        output_tokens=[request.output_tokens for request in chosen],
        models=[request.model for request in chosen],
        hash_ids=[request.hash_ids for request in chosen],
    )
    return [
        Stream(
            [numbers[at] for at in stream.requests], NO_REQUEST if stream.fork == NO_REQUEST else numbers[stream.fork]
        )
        for stream in split_streams(agent)
    ]


def _sub_agent(requests: Sequence[WekaRequest], times: PlayRequests, agent: WekaAgent) -> SubAgent:
    numbers = range(agent.first, agent.end)
    if agent.duration_ms is None:
        end_s = max((times.end_s[number] for number in numbers), default=agent.start_s)
    else:
        end_s = agent.start_s + agent.duration_ms / 1000.0
    return SubAgent(agent.parent, _streams_of(requests, times, numbers), agent.is_awaited, end_s, agent.end)


def _session_names(name: str, streams: Sequence[Stream]) -> Iterator[tuple[int, str]]:
    for number, stream in enumerate(streams):
        for request in stream.requests:
            yield request, name if number == 0 else f"{name}:worker:{number - 1}"


def _graph_edges(edges: Edges) -> Iterator[GraphEdge]:
    columns = zip(edges.source, edges.target, edges.trigger, edges.relation, edges.delay_s, strict=True)
    for source, target, trigger, relation, delay_s in columns:
        yield GraphEdge(source, target, trigger, relation, milliseconds(delay_s))


def milliseconds(time_s: float) -> float:
    """Seconds as milliseconds, rounded to the sixth decimal, halves away from zero."""
    scaled = time_s * 1000.0 * _DECIMALS
    if not abs(scaled) < 2.0**52:  # no fraction is left to round
        return scaled / _DECIMALS
    whole = math.floor(abs(scaled))
    return math.copysign(whole + (abs(scaled) - whole >= 0.5), scaled) / _DECIMALS
