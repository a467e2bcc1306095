"""A graph of requests as `agentic_mooncake` version 2, in one canonical form.

Decides order and presence of fields, so that the file replays as the graph would and the same graph gives the same
bytes. Never opens a file and never checks a graph. Source: replay specification, section 1.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import orjson

from mocker_replay.trace.decimals import write_number
from mocker_replay.trace.graph import Relation, TraceGraph, Trigger

SCHEMA: Final = "dynamo.agentic_mooncake"
VERSION: Final = 2
NO_MODEL: Final = "unknown"  # where the trace names none; the format must have one, and it changes nothing


def agentic_lines(graph: TraceGraph, *, source_format: str, source_digest: str) -> Iterator[bytes]:
    """The header and one line for each request, in byte order of the ids.

    Args:
        source_format, source_digest: where the graph comes from, for the header; neither is blank.
    """
    yield _line(
        {
            "schema": SCHEMA,
            "version": VERSION,
            "block_size": graph.block_size,
            "hash_id_scope": "local",
            "source": {"format": source_format, "digest": source_digest},
        }
    )
    floors_ms = _floors_ms(graph)
    offsets, ids = graph.hash_offsets.tolist(), graph.hash_ids.tolist()
    for at, request_id in enumerate(graph.request_ids):
        play = int(graph.play[at])
        row: dict[str, object] = {
            "request_id": request_id,
            "play_id": graph.play_ids[play],
            "session_id": graph.session_names[at],
            "model": graph.models[at] or NO_MODEL,
            "input_length": int(graph.input_tokens[at]),
            "output_length": int(graph.output_tokens[at]),
            "hash_ids": ids[offsets[at] : offsets[at + 1]],
            "not_before_ms": _number(floors_ms[at]),
        }
        dependencies = _dependencies(graph, at)
        if dependencies:
            row["dependencies"] = dependencies
        row["source_play_ordinal"] = play
        if graph.priority[at]:
            row["priority"] = int(graph.priority[at])
        if graph.strict_priority[at]:
            row["strict_priority"] = int(graph.strict_priority[at])
        yield _line(row)


def _floors_ms(graph: TraceGraph) -> list[float]:
    """Earliest starts that are no less than 0.

    A request without a floor of its own gets the lowest one of all: its dependencies never fire before that, and the
    start of the trace stays where it is. A clock that begins below 0 is moved up to it.
    """
    has_floor = np.isfinite(graph.not_before_ms)
    lowest_ms = float(graph.not_before_ms[has_floor].min(initial=math.inf))
    if math.isinf(lowest_ms):
        lowest_ms = 0.0
    floors_ms = np.where(has_floor, graph.not_before_ms, lowest_ms)
    return (floors_ms - min(lowest_ms, 0.0)).tolist()  # type: ignore[no-any-return]


def _dependencies(graph: TraceGraph, at: int) -> list[dict[str, object]]:
    """The edges into a request, in the order of the graph."""
    return [
        {
            "request_id": graph.request_ids[int(graph.edge_source[edge])],
            "trigger": Trigger(graph.edge_trigger[edge]).name.lower(),
            "delay_ms": _number(float(graph.edge_delay_ms[edge])),
            "relation": Relation(graph.edge_relation[edge]).name.lower(),
        }
        for edge in range(int(graph.edge_offsets[at]), int(graph.edge_offsets[at + 1]))
    ]


def _number(value: float) -> orjson.Fragment:
    return orjson.Fragment(write_number(value))


def _line(row: dict[str, object]) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
