"""The key `wall` of a realtime log: its form, where it stands, and what does not see it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import orjson
import pytest

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay.log.reader import EventLogReader, LogError
from mocker_replay.log.wall import (
    NO_WORKER,
    StepTaken,
    WallRecorder,
    bare_line,
    pack_step,
    read_step,
    read_wall,
    with_wall,
)
from mocker_replay.log.writer import EventLogWriter
from tests.support.event_stream import StreamMaker, sample_stream

HEADER: dict[str, Any] = {"clock": "measured", "trace": {"rows": 5}, "config": {}, "options": {}}
WALL_HEADER = {"wall": {"mode": "realtime", "clock": "measured"}}

PACKED = [
    (StepTaken(0, "go", 1.5), b'[0,"go",1.5]'),
    (StepTaken(3, "published", 10), b'[3,"published",10.0]'),
    (StepTaken(1, "lane_counts", 0.1, num_cancels=2, num_commands=7), b'[1,"lane_counts",0.1,2,7]'),
    (StepTaken(0, "command_item", 1e-7, 12, 4), b'[0,"command_item",1e-7,12,4]'),
    (StepTaken(0, "cancel_item", 5.25, 13, 4, discard=True), b'[0,"cancel_item",5.25,13,4,1]'),
    (StepTaken(2, "boundary_apply", 5.25, 2**64 - 2, 4), b'[2,"boundary_apply",5.25,18446744073709551614,4,0]'),
    (StepTaken(NO_WORKER, "settle", 5.25), b'[-1,"settle",5.25]'),
    (StepTaken(NO_WORKER, "leave", 5.25, request=4), b'[-1,"leave",5.25,4]'),
    (StepTaken(NO_WORKER, "refuse", 5.25, request=4, command_kind=5), b'[-1,"refuse",5.25,4,5]'),
]


@pytest.mark.parametrize(("taken", "text"), PACKED, ids=[taken.stimulus for taken, _ in PACKED])
def test_a_step_is_a_list_of_what_it_carries(taken: StepTaken, text: bytes) -> None:
    assert orjson.dumps(pack_step(taken)) == text
    assert read_step(orjson.loads(text)) == taken


@pytest.mark.parametrize(
    ("packed", "rule"),
    [
        ({}, "must be a list"),
        ([0, "go"], "must be a list"),
        (["0", "go", 1.0], "must begin with"),
        ([True, "go", 1.0], "must begin with"),
        ([0, 1, 1.0], "must begin with"),
        ([0, "go", "1.0"], "must begin with"),
        ([0, "go", None], "must begin with"),
        ([0, "go", 1.0, 1], "with go must carry nothing"),
        ([0, "lane_counts", 1.0, 1], "must carry num_cancels and num_commands"),
        ([0, "cancel_item", 1.0, 1, 2], "must carry command_id and request and discard"),
        ([0, "command_item", 1.0, 1, 2.5], "must carry command_id and request"),
    ],
)
def test_what_is_no_step_is_refused(packed: object, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        read_step(packed)


def test_a_recorder_says_what_waits_and_forgets_it_when_told() -> None:
    recorder = WallRecorder()
    assert recorder.text(3) == b'{"ms":3.0}'
    recorder.step(StepTaken(0, "go", 1.0))
    recorder.arrival(2, (7, 2**64 - 1))
    assert recorder.text(4.0) == (
        b'{"ms":4.0,"planned_ms":2.0,"hash_ids":[7,18446744073709551615],"steps":[[0,"go",1.0]]}'
    )
    with pytest.raises(ValueError, match="one arrival a line"):
        recorder.arrival(2.0, ())
    recorder.clear()
    recorder.arrival(5.0, ())
    assert recorder.text(6.0) == b'{"ms":6.0,"planned_ms":5.0,"hash_ids":[]}'


@pytest.mark.parametrize(
    "name",
    ['x","wall":{"ms":1.0}}', '","wall":', 'quo"te\\', "\\", "wall", '"wall":{', "ü/€", 'x\\","wall":{"ms":0.0}}'],
)
def test_a_name_is_never_taken_for_the_key(name: str) -> None:
    line = orjson.dumps({"seq": 0, "request": name, "worker": 0})
    assert read_wall(line) == (line, None)
    assert bare_line(line) == line
    long = with_wall(line, b'{"ms":1.5,"steps":[[0,"go",1.0]]}')
    assert orjson.loads(long) == orjson.loads(line) | {"wall": {"ms": 1.5, "steps": [[0, "go", 1.0]]}}
    assert bare_line(long) == line
    assert read_wall(long) == (line, {"ms": 1.5, "steps": [[0, "go", 1.0]]})


@pytest.mark.parametrize("wall", [b"1", b"[]", b"{]", b'{"ms":1.0},"more":1', b'{"ms":1.0'])
def test_what_is_no_wall_is_refused(wall: bytes) -> None:
    with pytest.raises(ValueError, match="a JSON object and the last key"):
        read_wall(with_wall(b'{"seq":0}', wall))


def write_realtime(path: Path, level: str = "kv", name: str = "a request of its own name") -> list[bool]:
    """The sample stream with a wall key wherever one may stand; whether each record gave a line."""
    writer = EventLogWriter(path, level, header=WALL_HEADER | HEADER)
    writer.add_names(2, [name])
    wrote = []
    for at, part in enumerate(groups(sample_stream())):
        wall = orjson.dumps({"ms": at + 0.125, "steps": [[0, "go", float(at)]]})
        wrote.append(writer.consume(part, (lambda text=wall: text) if at % 2 else wall))
    writer.close(wall=b'{"ms":99.5}')
    return wrote


def groups(stream: EventBuffer) -> list[EventBuffer]:
    """An arrival, a pass that ends with a rejection, a mid-pass gauge that has no line, a whole stream."""
    first, gauge, last = StreamMaker(), StreamMaker(), StreamMaker()
    first.arrival(0.0, 2)
    gauge.gauges(0.0, mid_pass=1)
    last.tokens(30.0, 2, 1, 1)
    return [first.buffer, gauge.buffer, stream, last.buffer]


def test_digest_counts_and_lines_are_those_without_the_key(tmp_path: Path) -> None:
    assert write_realtime(tmp_path / "log") == [True, False, True, True]
    writer = EventLogWriter(tmp_path / "plain", "kv", header=HEADER)
    writer.add_names(2, ["a request of its own name"])
    for part in groups(sample_stream()):
        writer.consume(part)
    footer = writer.close()
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert [bare_line(line) for line in lines] == (tmp_path / "plain").read_bytes().splitlines()
    with EventLogReader(tmp_path / "log") as log:
        assert log.is_realtime
        events = list(log.events())
        assert log.footer == footer | {"wall": {"ms": 99.5}}
    with_key = [event["seq"] for event in events if "wall" in event]
    assert with_key == [0, 1, len(events) - 1], "the first line of what was consumed at once"
    assert events[1]["wall"] == {"ms": 2.125, "steps": [[0, "go", 2.0]]}


def test_the_key_stands_last_in_the_header(tmp_path: Path) -> None:
    write_realtime(tmp_path / "log")
    header = (tmp_path / "log").read_bytes().split(b"\n", 1)[0]
    assert list(orjson.loads(header))[-1] == "wall"
    bare, wall = read_wall(header)
    assert wall == WALL_HEADER["wall"]
    assert orjson.loads(bare) == {"event": "header", "schema": "mocker-replay.events/1", "level": "kv"} | HEADER


def test_the_text_of_a_key_is_made_only_for_a_line() -> None:
    writer = EventLogWriter(io.BytesIO(), "requests", header=WALL_HEADER | HEADER)

    def never() -> bytes:
        raise AssertionError("nothing was written")

    make = StreamMaker()
    make.command(0.0, 0)
    assert not writer.consume(make.buffer, never)
    writer.abort()


@pytest.mark.parametrize("name", ["plain name", 'x","wall":{"ms":1.0}}'])
def test_a_realtime_log_that_was_changed_is_seen(tmp_path: Path, name: str) -> None:
    write_realtime(tmp_path / "log", name=name)
    data = (tmp_path / "log").read_bytes()
    assert name in orjson.loads(data.splitlines()[1])["request"]
    with EventLogReader(tmp_path / "log") as log:
        log.verify()
    (tmp_path / "log").write_bytes(data.replace(b'"input_tokens":4096', b'"input_tokens":4097', 1))
    with EventLogReader(tmp_path / "log") as log, pytest.raises(LogError, match="digest: the footer must agree"):
        log.verify()
    (tmp_path / "log").write_bytes(data.replace(b'"ms":0.125', b'"ms":0.25', 1))
    with EventLogReader(tmp_path / "log") as log:
        log.verify()
