"""Digests of an event log in blocks of events.

Decides: where a block begins (every BLOCK_EVENTS events) and what is noted of it, so that a fresh run can be compared
with a log that nobody kept, and the place of the first difference be told. A digest covers bytes; it never says what
they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from blake3 import blake3
from msgspec import Struct

from mocker_replay._core.log_lines import skip_lines

BLOCK_EVENTS = 4096
_PASS_LINE = b'"event":"pass_'


class Block(Struct, frozen=True):
    """Consecutive event lines."""

    seq: int  # of its first line
    t_ms: float | None  # of its first line
    worker: int | None  # of its first line of a pass; None where it has none
    pass_id: int | None
    digest: str

    def to_mapping(self) -> dict[str, object]:
        place = None if self.worker is None else [self.worker, self.pass_id]
        return {"seq": self.seq, "t_ms": self.t_ms, "pass": place, "digest": self.digest}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Block:
        """The inverse of `to_mapping`.

        Raises:
            ValueError, TypeError, LookupError: it is none.
        """
        place = mapping["pass"]
        worker, pass_id = (None, None) if place is None else map(int, place)
        t_ms = mapping["t_ms"]
        return cls(int(mapping["seq"]), None if t_ms is None else float(t_ms), worker, pass_id, str(mapping["digest"]))


class BlockDigester:
    """Fed with event lines in any pieces of whole lines; `close` gives the blocks."""

    def __init__(self, block_events: int = BLOCK_EVENTS) -> None:
        self._block_events = block_events
        self._blocks: list[Block] = []
        self._hash = blake3()
        self._first = b""  # line of the open block
        self._pass_line = b""
        self._num_open = 0  # lines in the open block
        self._seq = 0

    def update(self, lines: bytes) -> None:
        at = 0
        while at < len(lines):
            stop, count = skip_lines(lines, at, self._block_events - self._num_open)
            if self._num_open == 0:
                self._first = lines[at : lines.index(b"\n", at)]
            if not self._pass_line:
                self._find_pass(lines, at, stop)
            self._hash.update(memoryview(lines)[at:stop])
            self._num_open += count
            at = stop
            if self._num_open == self._block_events:
                self._close_block()

    def close(self) -> tuple[Block, ...]:
        if self._num_open:
            self._close_block()
        return tuple(self._blocks)

    def _find_pass(self, lines: bytes, at: int, stop: int) -> None:
        found = lines.find(_PASS_LINE, at, stop)
        if found >= 0:
            self._pass_line = lines[lines.rfind(b"\n", 0, found) + 1 : lines.index(b"\n", found)]

    def _close_block(self) -> None:
        place = orjson.loads(self._pass_line) if self._pass_line else {}
        t_ms = orjson.loads(self._first)["t_ms"]
        self._blocks.append(Block(self._seq, t_ms, place.get("worker"), place.get("pass"), self._hash.hexdigest()))
        self._seq += self._num_open
        self._num_open = 0
        self._hash = blake3()
        self._first = self._pass_line = b""


class BlockDifference(Struct, frozen=True):
    """The first block that is another one, as far as its digest tells."""

    index: int
    seq: int  # of its first line, and of the last one
    last_seq: int
    t_ms: float | None  # from its first line to that of the next block
    until_ms: float | None  # None: to the end of the run
    worker: int | None  # of its first pass
    pass_id: int | None
    until_pass: tuple[int, int] | None  # worker and number of the first pass of the next block

    def to_mapping(self) -> dict[str, object]:
        return {
            "block": self.index,
            "seq": self.seq,
            "last_seq": self.last_seq,
            "t_ms": self.t_ms,
            "until_ms": self.until_ms,
            "pass": None if self.worker is None else [self.worker, self.pass_id],
            "until_pass": None if self.until_pass is None else list(self.until_pass),
        }


def first_other_block(golden: Sequence[Block], fresh: Sequence[Block], num_events: int) -> BlockDifference | None:
    """Where two logs part; None if they have the same blocks.

    Args:
        num_events: of the longer log.
    """
    for index, (a, b) in enumerate(_pairs(golden, fresh)):
        if a is not None and b is not None and a.digest == b.digest:
            continue
        here = a if a is not None else b
        assert here is not None, "one of two logs goes on here"
        source = golden if a is not None else fresh
        behind = source[index + 1] if index + 1 < len(source) else None
        until_pass = None
        if behind is not None and behind.worker is not None and behind.pass_id is not None:
            until_pass = (behind.worker, behind.pass_id)
        return BlockDifference(
            index=index,
            seq=here.seq,
            last_seq=(num_events if behind is None else behind.seq) - 1,
            t_ms=here.t_ms,
            until_ms=None if behind is None else behind.t_ms,
            worker=here.worker,
            pass_id=here.pass_id,
            until_pass=until_pass,
        )
    return None


def _pairs(golden: Sequence[Block], fresh: Sequence[Block]) -> Iterator[tuple[Block | None, Block | None]]:
    for index in range(max(len(golden), len(fresh))):
        yield (
            golden[index] if index < len(golden) else None,
            fresh[index] if index < len(fresh) else None,
        )
