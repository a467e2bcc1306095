"""Any stream: lines parse, `seq` is dense, and a lower level is a higher one with lines left out."""

from __future__ import annotations

import re

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_replay._core.log_encoder import LEVELS, LogEncoder
from mocker_replay.events import (
    EVENT_LEVELS,
    CommandFlag,
    CommandKind,
    CommandResult,
    LogEvent,
    TerminalReason,
    TerminalStatus,
)
from mocker_replay.log.wall import StepTaken, WallRecorder, bare_line, bare_lines, read_step, read_wall, with_wall
from tests.support.event_stream import StreamMaker

NUM_WORKERS, DP_SIZE = 3, 2

counts = st.integers(0, 2**53)
requests = st.integers(0, 200)
hashes = st.integers(0, 2**64 - 1)
times = st.one_of(st.just(0.0), st.floats(0.0, 1e9), st.integers(0, 10**12).map(lambda n: n / 1e6))
places = st.fixed_dictionaries({"worker": st.integers(0, NUM_WORKERS - 1), "rank": st.integers(0, DP_SIZE - 1)})
figures = st.none() | st.lists(counts, min_size=2, max_size=2)
pairs = st.lists(st.tuples(hashes, hashes), min_size=1, max_size=70)
seven_words = st.lists(counts, min_size=7, max_size=7)
rank_work = st.fixed_dictionaries(
    {"rank": st.integers(0, DP_SIZE - 1), "end_ms": times},
    optional={
        "admitted": st.lists(st.tuples(requests, counts, st.integers(0, 3)), max_size=20),
        "prefill": st.lists(st.tuples(requests, counts), max_size=20),
        "preempted": st.lists(st.tuples(requests, counts, counts, seven_words), max_size=5),
    },
)
fpm_values = st.lists(counts.map(float), min_size=14, max_size=14)


@st.composite
def request_records(draw: st.DrawFn, make: StreamMaker, t_ms: float, place: dict[str, int]) -> None:
    """What may stand between a rank's forward-pass record and its gauges, or outside a pass."""
    for kind in draw(st.lists(st.sampled_from(["first", "tokens", "terminal", "stored", "removed"]), max_size=5)):
        request = draw(requests)
        if kind == "first":
            make.first_token(t_ms, request, **place)
        elif kind == "tokens":
            make.tokens(t_ms, request, draw(counts), draw(counts), **place)
        elif kind == "terminal":
            ends = {"status": draw(st.sampled_from(TerminalStatus)), "reason": draw(st.sampled_from(TerminalReason))}
            make.terminal(t_ms, request, **ends, output_tokens=draw(counts), figures=draw(figures), **place)
        elif kind == "stored":
            make.kv_stored(t_ms, request, first_block=draw(counts), parent=draw(hashes), pairs=draw(pairs), **place)
        else:
            make.kv_removed(t_ms, draw(st.lists(hashes, min_size=1, max_size=70)), **place)


@st.composite
def streams(draw: st.DrawFn) -> StreamMaker:
    make = StreamMaker()
    for step in draw(st.lists(st.sampled_from(["arrival", "command", "start", "end", "records"]), max_size=12)):
        t_ms, place, request = draw(times), draw(places), draw(requests)
        worker = place["worker"]
        if step == "arrival":
            make.arrival(t_ms, request, input_tokens=draw(counts), session=draw(st.integers(-1, 5)), **place)
        elif step == "command":
            flags = draw(st.sampled_from([CommandFlag(0), CommandFlag.IN_PASS, CommandFlag(3)]))
            ask = {"kind": draw(st.sampled_from(CommandKind)), "result": draw(st.sampled_from(CommandResult))}
            make.command(t_ms, request, **ask, flags=flags, **place)
            make.gauges(t_ms, active=draw(counts), **place)
        elif step == "start":
            make.pass_start(t_ms, draw(times), ranks=draw(st.lists(rank_work, max_size=DP_SIZE)), worker=worker)
        elif step == "end":
            make.pass_end_open(t_ms, worker=worker)
            for rank in range(draw(st.integers(0, DP_SIZE))):
                make.rank_end(t_ms, tokens=draw(counts), fpm=draw(st.none() | fpm_values), worker=worker, rank=rank)
                draw(request_records(make, t_ms, {"worker": worker, "rank": rank}))
                make.gauges(t_ms, waiting=draw(counts), worker=worker, rank=rank)
            make.pass_end_close(t_ms, worker=worker)
        else:
            draw(request_records(make, t_ms, place))
    return make


def lines_of(make: StreamMaker, level: str) -> list[bytes]:
    encoder = LogEncoder(level, NUM_WORKERS, DP_SIZE)
    encoder.add_names(0, [None, "named", 'quo"ted'])
    text = encoder.encode(make.buffer)
    lines = text.split(b"\n")
    assert lines.pop() == b""
    assert encoder.counts()["events"] == len(lines)
    return lines


@given(streams())
@settings(max_examples=150, deadline=None)
def test_lines_parse_are_compact_and_numbered(make: StreamMaker) -> None:
    for level in LEVELS:
        for seq, line in enumerate(lines_of(make, level)):
            row = orjson.loads(line)
            assert row["seq"] == seq
            assert list(row)[:3] == ["seq", "t_ms", "event"]
            assert LogEvent(row["event"]) in EVENT_LEVELS
            assert orjson.dumps(row) == line


@given(streams())
@settings(max_examples=150, deadline=None)
def test_a_lower_level_is_the_higher_one_with_lines_left_out(make: StreamMaker) -> None:
    order = list(LEVELS)
    highest = lines_of(make, "kv")
    for level in LEVELS:
        kept = [
            line for line in highest if order.index(EVENT_LEVELS[orjson.loads(line)["event"]]) <= order.index(level)
        ]
        renumbered = [re.sub(rb'^\{"seq":\d+', b'{"seq":%d' % seq, line) for seq, line in enumerate(kept)]
        assert lines_of(make, level) == renumbered


readings = st.floats(0.0, allow_infinity=False, allow_nan=False)
plain_stimuli = st.sampled_from(["go", "published", "pass_timer", "yielded", "boundary_finish", "lane_empty"])
cancel_stimuli = st.sampled_from(["cancel_item", "boundary_apply"])
steps = st.tuples(st.integers(0, NUM_WORKERS - 1), plain_stimuli, readings).map(lambda taken: StepTaken(*taken)) | (
    st.tuples(st.just(0), cancel_stimuli, readings, hashes, requests, st.booleans()).map(
        lambda taken: StepTaken(*taken)
    )
)
walls = st.tuples(readings, st.lists(steps, max_size=5), st.none() | st.tuples(readings, st.lists(hashes)))
names = st.text(st.sampled_from('",\\wal{}:[]') | st.characters(codec="utf-8"), max_size=12) | st.just('","wall":{"')


@given(streams(), st.lists(names, max_size=4), st.data())
@settings(max_examples=150, deadline=None)
def test_a_line_is_the_same_without_its_wall_whatever_is_in_it(
    make: StreamMaker, named: list[str], data: st.DataObject
) -> None:
    encoder = LogEncoder("kv", NUM_WORKERS, DP_SIZE)
    encoder.add_names(0, named)
    bare = encoder.encode(make.buffer)
    lines, kept = [], []
    for line in bare.splitlines():
        if data.draw(st.booleans()):
            ms, taken, arrival = data.draw(walls)
            recorder = WallRecorder()
            for step in taken:
                recorder.step(step)
            if arrival is not None:
                recorder.arrival(*arrival)
            kept.append((ms, taken, arrival))
            line = with_wall(line, recorder.text(ms))
        else:
            kept.append(None)
        lines.append(line)
    assert bare_lines(b"".join(line + b"\n" for line in lines)) == bare
    for line, without, was in zip(lines, bare.splitlines(), kept, strict=True):
        assert bare_line(line) == without
        found, wall = read_wall(line)
        assert found == without
        assert (wall is None) == (was is None)
        if wall is not None and was is not None:
            assert was == (
                wall["ms"],
                [read_step(step) for step in wall.get("steps", [])],
                (wall["planned_ms"], wall["hash_ids"]) if "hash_ids" in wall else None,
            )
