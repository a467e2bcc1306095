"""Event logs to compare: of real runs from a seed, cut from such, and written by a generator; and planted mutations."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from mocker_replay.config import ReplayOptions
from mocker_replay.events import EVENT_SCHEMA
from mocker_replay.log.digest import EventDigest
from mocker_replay.log.reader import EventLogReader
from mocker_replay.replay import replay

LEVELS = ("requests", "passes", "tokens", "kv")
_ENDS = {"finish": "finished", "failure": "failed", "rejection": "rejected", "cancellation": "cancelled", "cut": "cut"}


class Run(NamedTuple):
    """What a replay takes."""

    rows: list[dict[str, Any]]
    config: dict[str, Any]
    options: ReplayOptions
    level: str


def random_run(seed: int, *, level: str | None = None) -> Run:
    """A small run in which much happens: preemptions, rejections, cancellations, several workers."""
    rng = random.Random(seed)
    trace_block_size = rng.choice([4, 8])
    rows = []
    at_ms = 0.0
    for row in range(rng.randint(3, 25)):
        at_ms += rng.choice([0.0, 0.5, 3.0, 20.0])
        length = rng.randint(1, 40)
        family, shared = rng.randint(0, 2), rng.randint(0, 4)
        count = -(-length // trace_block_size)
        ids = [family * 1000 + i if i < shared else 10_000 + row * 100 + i for i in range(count)]
        fields: dict[str, Any] = {"timestamp": at_ms, "input_length": length, "output_length": rng.randint(1, 15)}
        fields["hash_ids"] = ids
        if rng.random() < 0.2:
            fields["cancel_after_ms"] = rng.choice([0.0, 2.5, 40.0])
        if rng.random() < 0.2:
            fields["request_id"] = rng.choice(['a "quoted" name', "näme", "tab\there", "x" * 30]) + str(row)
        rows.append(fields)
    engine = {
        "block_size": trace_block_size,
        "num_gpu_blocks": rng.randint(6, 30),
        "max_num_seqs": rng.choice([2, 4, 8]),
        "max_num_batched_tokens": rng.choice([8, 20, 100]),
        "timing_model": rng.choice(
            [{"type": "fixed", "prefill_ms": 3.0, "decode_ms": 1.0}, {"type": "polynomial"}]
        ),
    }  # fmt: skip
    config = {"engine": engine, "dp_size": rng.choice([1, 1, 2])}
    options = ReplayOptions(num_workers=rng.choice([1, 1, 2, 3]), trace_block_size=trace_block_size)
    return Run(rows, config, options, level or rng.choice(LEVELS))


def record(run: Run, folder: Path, name: str = "run.jsonl", **changes: Any) -> Path:
    """Write the log of a run."""
    trace = folder / f"{name}.trace"
    trace.write_text("".join(f"{json.dumps(row)}\n" for row in run.rows), encoding="utf-8")
    log = folder / name
    replay(trace, changes.get("config", run.config), run.options, events=log, event_level=run.level)
    return log


class LogText(NamedTuple):
    """A log in pieces: lines without their LF."""

    header: bytes
    lines: list[bytes]
    footer: bytes


def read_log(path: Path) -> LogText:
    with EventLogReader(path) as log:
        lines = list(log.lines())
        assert log.footer is not None
        return LogText(orjson.dumps(log.header), lines, orjson.dumps(log.footer))


def write_log(path: Path, log: LogText) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in (log.header, *log.lines, log.footer)))
    return path


def with_footer(header: bytes, lines: Sequence[bytes], end: str = "complete") -> LogText:
    """A log of these lines, numbered anew, with a footer that is true of them."""
    numbered = [renumbered(line, seq) for seq, line in enumerate(lines)]
    digest = EventDigest()
    counts = dict.fromkeys(("arrived", *_ENDS.values()), 0)
    for line in numbered:
        digest.update(line + b"\n")
        kind = orjson.loads(line).get("event")
        if kind == "arrival":
            counts["arrived"] += 1
        elif kind in _ENDS:
            counts[_ENDS[kind]] += 1
    footer = {"event": "footer", "events": len(numbered), **counts, "end": end, "digest": digest.hexdigest()}
    return LogText(header, numbered, orjson.dumps(footer))


def renumbered(line: bytes, seq: int) -> bytes:
    """The line with another `seq`."""
    assert line.startswith(b'{"seq":')
    return b'{"seq":%d%s' % (seq, line[line.index(b",") :])


def body(line: bytes) -> bytes:
    """The line without its `seq`."""
    return line[line.index(b",") :]


def pieces(log: LogText, count: int, rng: random.Random) -> Iterator[LogText]:
    """Logs of stretches of another one; where they begin in the middle, lines stand whose arrival is not there."""
    for _ in range(count):
        first = rng.randrange(len(log.lines))
        length = rng.randint(1, 300)
        yield with_footer(log.header, log.lines[first : first + length])


def generated_log(seed: int, *, num_events: int = 120, num_live: int = 6) -> LogText:
    """A log that no engine wrote: requests that arrive, emit and end, at level tokens."""
    header = orjson.dumps(
        {
            "event": "header", "schema": EVENT_SCHEMA, "level": "tokens", "clock": "virtual",
            "trace": {"rows": 1, "digest": f"{seed:x}"}, "config": {"engine": {}}, "options": {"num_workers": 1},
        }
    )  # fmt: skip
    return with_footer(header, [line[:-1] for line in generated_lines(seed, num_events, num_live)])


def generated_lines(seed: int, num_events: int, num_live: int) -> Iterator[bytes]:
    """At least `num_events` lines with their LF, as many more as end all requests."""
    rng = random.Random(seed)
    seq, t_ms, number, pass_id = 0, 0.0, 0, 0
    live: dict[int, list[int]] = {}  # request -> tokens wanted, tokens so far

    def line(rest: bytes) -> bytes:
        nonlocal seq
        seq += 1
        return b'{"seq":%d,"t_ms":%s,%s}\n' % (seq - 1, orjson.dumps(t_ms), rest)

    while seq < num_events or live:
        while len(live) < num_live and seq < num_events:
            live[number] = [rng.randint(1, 60), 0]
            who = b'"request":"r%d","worker":0,"rank":0' % number
            yield line(b'"event":"arrival",%s,"input_tokens":%d,"output_tokens":%d' % (who, 64, live[number][0]))
            yield line(b'"event":"admission",%s,"reused_tokens":0,"readmission":false' % who)
            number += 1
        end_ms = t_ms + rng.choice([8.25, 10.5])
        ranks = b'[{"rank":0,"scheduled_requests":%d,"scheduled_tokens":%d}]' % (len(live), len(live))
        yield line(
            b'"event":"pass_start","worker":0,"pass":%d,"end_ms":%s,"ranks":%s' % (pass_id, orjson.dumps(end_ms), ranks)
        )
        t_ms = end_ms
        yield line(b'"event":"pass_end","worker":0,"pass":%d,"ranks":[{"rank":0,"tokens":%d}]' % (pass_id, len(live)))
        pass_id += 1
        for request in list(live):
            wanted, so_far = live[request]
            live[request][1] = so_far + 1
            who = b'"request":"r%d","worker":0,"rank":0' % request
            if so_far == 0:
                yield line(b'"event":"first_token",%s' % who)
            yield line(b'"event":"tokens","request":"r%d","tokens":1,"total":%d' % (request, so_far + 1))
            if so_far + 1 == wanted:
                del live[request]
                tail = b'"output_tokens":%d,"last_token_ms":%s,"reason":"output_length"' % (wanted, orjson.dumps(t_ms))
                yield line(b'"event":"finish",%s,%s' % (who, tail))


class Mutated(NamedTuple):
    """A log with one planted mutation: at this `seq` it first differs."""

    kind: str
    seq: int
    data: bytes
    footer_is_true: bool


MUTATIONS = ("value", "order", "missing", "extra", "cut")


def mutate(log: LogText, kind: str, rng: random.Random) -> Mutated | None:
    """Plant one mutation; None where the log has no room for one of this kind."""
    lines = list(log.lines)
    at = rng.randrange(len(lines))
    if kind == "cut":
        text = b"".join(line + b"\n" for line in (log.header, *lines[:at]))
        return Mutated(kind, at, text + lines[at][: rng.randrange(len(lines[at]))], False)
    if kind == "value":
        lines[at] = with_other_value(lines[at], rng)
    elif kind == "order":
        if at + 1 == len(lines) or body(lines[at]) == body(lines[at + 1]):
            return None
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
    elif kind == "missing":
        if at + 1 < len(lines) and body(lines[at]) == body(lines[at + 1]):
            return None
        del lines[at]
    elif kind == "extra":
        added = lines[rng.randrange(len(lines))]
        if body(added) == body(lines[at]):
            return None
        lines.insert(at, added)
    true = rng.random() < 0.5
    new = with_footer(log.header, lines)
    if not true:  # as a hand would change a file
        new = LogText(log.header, new.lines if kind != "value" else lines, log.footer)
    return Mutated(kind, at, b"".join(line + b"\n" for line in (new.header, *new.lines, new.footer)), true)


def with_other_value(line: bytes, rng: random.Random) -> bytes:
    """One value of the line, at any depth, is another one; `seq` stays."""
    event = orjson.loads(line)
    places = [place for place in _places(event) if place[1] != "seq"]
    holder, key = rng.choice(places)
    old = holder[key]
    if isinstance(old, bool):
        new: object = not old
    elif isinstance(old, int):
        new = old + rng.choice([1, 2, 1000])
    elif isinstance(old, float):
        new = old + rng.choice([1.0, 0.125])
    elif isinstance(old, str):
        new = "preemption" if key == "event" and old != "preemption" else old + "x"
    else:
        new = 7
    holder[key] = new
    return orjson.dumps(event)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each scalar below a value, as its holder and key."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict | list):
            yield from _places(item)
        else:
            yield value, key
