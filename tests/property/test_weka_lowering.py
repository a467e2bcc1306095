"""Streams, barriers and objects of Weka traces against slow models."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mocker_replay.trace.graph import Relation, Trigger
from mocker_replay.trace.json_objects import ObjectSplitter
from mocker_replay.trace.line_file import LineBlock
from mocker_replay.trace.weka_edges import PlayRequests, edges_of_play
from mocker_replay.trace.weka_prefixes import PrefixOrder
from mocker_replay.trace.weka_streams import EPSILON_S, AgentRequests, Stream, split_streams
from tests.model.weka_streams import Request, num_common, split

TIMES_S = st.sampled_from((0.0, 0.5, 0.5000004, 0.5000012, 1.0, 1.5, 2.0, 4000.0, 9000.0))
LENGTHS_S = st.sampled_from((0.0, 4e-7, 0.5, 1.0, 3.0))
IDS = st.lists(st.integers(0, 2), max_size=6)
LONG_IDS = st.builds(lambda base, more: [0, 1, 2, 1, 0][:base] + more, st.integers(0, 5), IDS)


@st.composite
def requests(draw: Any) -> list[Request]:
    found = []
    for _ in range(draw(st.integers(1, 9))):
        start_s = draw(TIMES_S)
        model = draw(st.sampled_from("mmmk"))
        tokens = draw(st.sampled_from((1, 64, 65)))
        found.append(Request(start_s, start_s + draw(LENGTHS_S), tokens, model, draw(LONG_IDS)))
    return found


def as_agent(found: list[Request]) -> AgentRequests:
    return AgentRequests(
        [one.start_s for one in found],
        [one.end_s for one in found],
        [one.output_tokens for one in found],
        [one.model for one in found],
        [one.ids for one in found],
    )


@given(st.lists(LONG_IDS, max_size=12))
def test_prefixes_are_those_of_comparing_lists(lists: list[list[int]]) -> None:
    order = PrefixOrder(lists)
    for ids, rank in zip(lists, order.rank, strict=True):
        assert (rank == -1) == (not ids)
        if not ids:
            continue
        assert order.length[rank] == len(ids)
        shared = order.shared_with_all(rank)
        proper = [other for other in lists if other and len(other) < len(ids) and ids[: len(other)] == other]
        nearest = order.prefix_of[rank]
        assert (nearest == -1) == (not proper)
        assert nearest == -1 or order.length[nearest] == max(map(len, proper))
        for other, other_rank in zip(lists, order.rank, strict=True):
            if other:
                assert shared[other_rank] == num_common(ids, other)


@given(requests())
def test_streams_are_those_of_the_slow_model(found: list[Request]) -> None:
    streams = split_streams(as_agent(found))
    assert [(s.requests, None if s.fork < 0 else s.fork) for s in streams] == split(found)
    assert sorted(at for s in streams for at in s.requests) == list(range(len(found)))


@given(requests())
def test_barriers_imply_what_the_rule_asks_for(found: list[Request]) -> None:
    """Every pair of the unreduced rule is implied by completions, and no barrier is beyond it."""
    streams = split_streams(as_agent(found))
    names = [str(at) for at in range(len(found))]
    edges = edges_of_play(PlayRequests([o.start_s for o in found], [o.end_s for o in found], names), streams, [])
    asked = {(source, target) for target in range(len(found)) for source in _finished_before(found, streams, target)}
    barriers = {
        (source, target)
        for source, target, relation in zip(edges.source, edges.target, edges.relation, strict=True)
        if relation is Relation.REPLAY_BARRIER
    }
    assert barriers <= asked
    known: dict[int, set[int]] = {}  # completed when a request starts
    completions = [
        (s, t) for s, t, trigger in zip(edges.source, edges.target, edges.trigger, strict=True)
        if trigger is Trigger.COMPLETION
    ]  # fmt: skip
    for _ in found:
        for source, target in completions:
            known.setdefault(target, set()).update({source} | known.get(source, set()))
    assert all(source in known.get(target, set()) for source, target in asked)


def _finished_before(found: list[Request], streams: list[Stream], target: int) -> list[int]:
    """Of each other stream the request that ended last, of those that started before and had ended."""
    now_s = found[target].start_s
    latest = []
    for stream in streams:
        if target in stream.requests:
            continue
        done = [at for at in stream.requests if found[at].start_s < now_s and found[at].end_s <= now_s + EPSILON_S]
        if done:
            latest.append(max(done, key=lambda at: (found[at].end_s, found[at].start_s, str(at))))
    return latest


@given(requests())
def test_requests_of_a_stream_follow_each_other(found: list[Request]) -> None:
    streams = split_streams(as_agent(found))
    names = [str(at) for at in range(len(found))]
    edges = edges_of_play(PlayRequests([o.start_s for o in found], [o.end_s for o in found], names), streams, [])
    pairs = set(zip(edges.source, edges.target, strict=True))
    assert all(pair in pairs for stream in streams for pair in pairwise(stream.requests))
    targets = set(edges.target)
    assert all(stream.requests[0] in targets for stream in streams[1:])
    assert all(delay_s >= 0.0 for delay_s in edges.delay_s)


JSON = st.recursive(
    st.none() | st.integers(0, 9) | st.text('ab"\\{}[]:,\n\u00e9', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"{}\\', max_size=3), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text('a"{', max_size=3), JSON, max_size=3), max_size=5)


@given(
    OBJECTS, st.lists(st.sampled_from(("", " ", "\n", "\n\n", "\t\r\n")), min_size=6), st.booleans(), st.integers(1, 4)
)
def test_a_stream_of_objects_is_cut_as_a_parser_cuts_it(
    objects: list[dict[str, Any]], gaps: list[str], is_indented: bool, lines_a_block: int
) -> None:
    text = gaps[0]
    for made, gap in zip(objects, gaps[1:], strict=False):
        text += json.dumps(made, indent=1 if is_indented else None) + gap
    lines = text.encode().split(b"\n")
    splitter = ObjectSplitter()
    found = []
    for first in range(0, len(lines), lines_a_block):
        found += splitter.feed(LineBlock(first + 1, b"\n".join(lines[first : first + lines_a_block])))
    assert splitter.finish() is None
    assert [json.loads(part) for _, part in found] == objects[: len(gaps) - 1]
    for line, part in found:
        assert part.split(b"\n")[0] in lines[line - 1]
