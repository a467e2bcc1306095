"""One of two logs that are compared, block by block.

Decides: in which form its lines are compared: bare, and where the other log has a lower level only the lines of that,
without `seq`. Knows at any time which line of the file comes next. Never decides whether lines are the same. A log that
ends too early or that its footer denies is not refused here: what can be compared is, and what is wrong is told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from mocker_replay._core.log_lines import at_level, line_at_level, skip_lines
from mocker_replay.log.reader import EventLogReader, LogError, UntrueFooter
from mocker_replay.log.wall import bare_line, bare_lines


class LineHere(NamedTuple):
    """The line that comes next, as it stands in the file."""

    number: int  # in the file, from 1
    bare: bytes
    event: dict[str, Any]


class Side:
    """One log. `block` holds the lines to compare, from `at` on; None at the end."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a log and read its header.

        Raises:
            LogError: no event log, another schema version, or truncated in its first line.
        """
        self.log = EventLogReader(path)
        self.block: bytes | None = b""
        self.at = 0
        self.damage: str | None = None  # what is wrong with the log, as far as it was read
        self.is_cut = False  # it has no footer
        self._level: str | None = None  # where not all lines are compared
        self._blocks: Iterator[bytes] | None = None
        self._raw = b""  # the block as it stands in the file
        self._lines_before = 0  # event lines of the file before the block
        self._bytes_before = 0

    @property
    def name(self) -> str:
        return self.log.name.encode(errors="backslashreplace").decode()  # a path need not be Unicode

    @property
    def level(self) -> str:
        return str(self.log.header.get("level"))

    @property
    def footer(self) -> dict[str, Any] | None:
        """The footer without what the clock says, once the log was read to its end and found true."""
        footer = self.log.footer
        return None if footer is None else {key: value for key, value in footer.items() if key != "wall"}

    def compare_at(self, level: str) -> None:
        """Compare only lines of this level, which is lower than that of the log or the same, without `seq`."""
        self._level = level

    def fill(self) -> None:
        """Make sure that there are lines to compare, or that the log has ended."""
        while self.block is not None and self.at == len(self.block):
            self._lines_before = self.log.num_events
            self._bytes_before += len(self._raw)
            self._raw = self._next()
            self.at = 0
            self.block = self._compared(self._raw) if self._raw else None

    def rest(self) -> bytes | None:
        """What is left of the block, or the next one; None at the end."""
        self.fill()
        if self.block is None:
            return None
        rest, self.at = self.block[self.at :], len(self.block)
        return rest

    def line_here(self) -> LineHere | None:
        """The line that comes next; None at the end.

        Raises:
            LogError: it is no JSON object.
        """
        self.fill()
        if self.block is None:
            return None
        index = self.block.count(b"\n", 0, self.at)
        raw, place = line_at_level(self._raw, self._level or "kv", index)
        number, bare = self._lines_before + place + 2, bare_line(raw)
        try:
            event = orjson.loads(bare)
        except orjson.JSONDecodeError as exc:
            raise LogError(f"{self.name}:{number}: not a JSON line: {exc}") from exc
        if not isinstance(event, dict):
            raise LogError(f"{self.name}:{number}: a line must be a JSON object")
        return LineHere(number, bare, event)

    def bytes_here(self) -> int:
        """Where the line that comes next begins: bytes behind the header of the uncompressed file."""
        if self.block is None:
            return self._bytes_before
        _, place = line_at_level(self._raw, self._level or "kv", self.block.count(b"\n", 0, self.at))
        return self._bytes_before + skip_lines(self._raw, 0, place)[0]

    def close(self) -> None:
        self.log.close()

    def _next(self) -> bytes:
        """The next whole lines; nothing at the end, sound or not."""
        if self.damage is not None:
            return b""
        self._blocks = self._blocks or self.log.blocks()
        try:
            return next(self._blocks, b"")
        except LogError as exc:
            self.damage = str(exc)
            self.is_cut = not isinstance(exc, UntrueFooter)
            return b""

    def _compared(self, raw: bytes) -> bytes:
        bare = bare_lines(raw) if self.log.is_realtime else raw
        return bare if self._level is None else at_level(bare, self._level)
