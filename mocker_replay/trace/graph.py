"""A trace as a graph of requests: what every graph format is lowered to.

Decides the columns a graph replay works with, their units and the order of the requests. Never reads a file and never
knows a format. Source: replay specification, section 1.5.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from mocker_replay.trace.base import Float64s, Int32s, Int64s, Uint64s


class Trigger(enum.IntEnum):
    """What of the source request fires an edge."""

    DISPATCH = 0
    COMPLETION = 1


class Relation(enum.IntEnum):
    """Why the edge is there; it never changes a time."""

    SEQUENCE = 0
    SPAWN = 1
    JOIN = 2
    REPLAY_BARRIER = 3


class TraceGraph(Struct, frozen=True):
    """n requests in byte order of their ids, m edges and p plays in play order. Times are not normalised.

    Every play is acyclic and its edges stay inside it; whoever makes a graph has checked that.
    """

    block_size: int  # prompt tokens a hash id stands for
    request_ids: list[str]  # n, unique, sorted by their UTF-8 bytes
    lines: Int64s  # (n,) 1-based line in the file, for messages; 0 where there is none
    input_tokens: Int64s  # (n,), positive
    output_tokens: Int64s  # (n,)
    hash_offsets: Int64s  # (n + 1,); request i owns hash_ids[hash_offsets[i]:hash_offsets[i + 1]]
    hash_ids: Uint64s  # exactly ceil(input_tokens / block_size) a request
    not_before_ms: Float64s  # (n,) earliest start on the trace clock; -inf: no floor of its own
    session_names: list[str]  # n, the conversation each request belongs to
    models: list[str | None]  # n, provenance only
    play: Int64s  # (n,) ordinal of the request's play, 0 to p - 1
    play_ids: list[str]  # p, in play order
    edge_offsets: Int64s  # (n + 1,); the edges into request i are edge_offsets[i] to edge_offsets[i + 1]
    edge_source: Int64s  # (m,) ordinal of the request that fires the edge
    edge_trigger: Int32s  # (m,) Trigger
    edge_relation: Int32s  # (m,) Relation
    edge_delay_ms: Float64s  # (m,) from the firing on, not negative
    priority: Int32s  # (n,)
    strict_priority: Int64s  # (n,)

    def __len__(self) -> int:
        return len(self.request_ids)
