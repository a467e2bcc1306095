"""What stood before the first difference: earlier lines of the request, or of the worker, it is about.

Decides: whom a line is about, and how many of its earlier lines are told. They are found by reading the log once more
up to the difference: nobody knew before whom it would be about. Never decides what differs.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from msgspec import Struct

from mocker_replay.log.compression import CHUNK_BYTES, READ_ERRORS, open_decoder
from mocker_replay.log.field_differences import FieldDifference
from mocker_replay.log.wall import bare_line

# Lists of a pass line whose items begin with, or are, the name of a request.
_NAMING_LISTS = ("admitted", "prefill", "preempted")


class History(Struct, frozen=True):
    """Earlier lines, oldest first. That of a request begins with its arrival, however much is left out behind it."""

    about: str  # such as "request r17" or "worker 0"
    num_lines: int  # there were in all
    events: tuple[dict[str, Any], ...]

    def to_mapping(self) -> dict[str, object]:
        return {"about": self.about, "lines": self.num_lines, "events": list(self.events)}


def subject_of(
    event: dict[str, Any], other: dict[str, Any] | None, fields: Sequence[FieldDifference]
) -> tuple[str, tuple[bytes, ...]]:
    """Whom a line is about, in words, and texts of which one stands in each of its lines.

    A pass line is about the request whose share of the pass differs first, else about its worker.
    """
    name = event.get("request")
    if isinstance(name, str):
        return f"request {name}", (b'"request":' + orjson.dumps(name),)
    named = next(_named(event, other, fields), None)
    if named is not None:
        return f"request {named}", (b'"request":' + orjson.dumps(named),)
    worker = event.get("worker")
    start, end = (b'"event":"pass_%s","worker":%s,' % (which, orjson.dumps(worker)) for which in (b"start", b"end"))
    return f"worker {worker}", (start, end)


def _named(event: dict[str, Any], other: dict[str, Any] | None, fields: Sequence[FieldDifference]) -> Iterator[str]:
    """Requests in the lists of a pass line, at the places where the two lines differ."""
    for field in fields:
        parts = field.field.replace("]", "").replace("[", ".").split(".")
        if len(parts) < 4 or parts[0] != "ranks" or parts[2] not in _NAMING_LISTS:
            continue
        for side in (event, other):
            try:
                item = side["ranks"][int(parts[1])][parts[2]][int(parts[3])]  # type: ignore[index]
            except (LookupError, TypeError, ValueError):
                continue
            found = item[0] if isinstance(item, list) and item else item
            if isinstance(found, str):
                yield found


def read_history(
    path: str | os.PathLike[str], about: str, texts: Sequence[bytes], stop: int, keep: int
) -> History | None:
    """Lines with one of these texts among the first `stop` bytes behind the header.

    Returns:
        None where the log cannot be read a second time: standard input, a pipe.
    """
    if not os.path.isfile(path):
        return None
    first: bytes | None = None
    newest: deque[bytes] = deque(maxlen=keep)
    num_lines = 0
    for block in _blocks(path, stop):
        for line in _lines_with(block, texts):
            first = first or line
            newest.append(line)
            num_lines += 1
    lines = list(newest)
    if first is not None and num_lines > keep > 0 and about.startswith("request "):
        lines[0] = first
    return History(about, num_lines, tuple(_events_of(lines)))


def _events_of(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """Lines that both logs have need not be lines that a run wrote: what is no event is not told."""
    for line in lines:
        try:
            event = orjson.loads(bare_line(line))
        except orjson.JSONDecodeError:
            continue
        if isinstance(event, dict):
            yield event


def _blocks(path: str | os.PathLike[str], stop: int) -> Iterator[bytes]:
    """Whole lines behind the header, up to a border between two lines."""
    with open(path, "rb", buffering=0) as file:
        stream, _ = open_decoder(file)
        rest, left, in_header = b"", stop, True
        while left > 0:
            try:
                more = stream.read1(CHUNK_BYTES)
            except (*READ_ERRORS, OSError):  # it was readable once; what was found until here is true
                return
            if not more:
                return
            if in_header:
                header, lf, more = (rest + more).partition(b"\n")
                rest, in_header = b"" if lf else header, not lf
                if in_header:
                    continue
            rest += more[:left]
            left -= min(left, len(more))
            end = rest.rfind(b"\n") + 1
            yield rest[:end]
            rest = rest[end:]


def _lines_with(block: bytes, texts: Sequence[bytes]) -> list[bytes]:
    """Lines with one of these texts, in their order."""
    starts = set()
    for text in texts:
        at = block.find(text)
        while at >= 0:
            starts.add(block.rfind(b"\n", 0, at) + 1)
            at = block.find(text, block.find(b"\n", at))
    return [block[start : block.index(b"\n", start)] for start in sorted(starts)]
