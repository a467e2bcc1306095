"""An event log being read back, a block at a time.

Decides: whether a log is whole and true to its footer. Never decides what its events mean; the checker does.
A log without a footer was truncated, whatever else is right about it. What a realtime log says about the clock is
handed on and otherwise not looked at: the footer speaks of the lines without it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NoReturn

import orjson

from mocker_replay._core.log_lines import count_lines
from mocker_replay.errors import UsageError
from mocker_replay.events import EVENT_SCHEMA
from mocker_replay.log.compression import CHUNK_BYTES, READ_ERRORS, open_decoder
from mocker_replay.log.digest import EventDigest
from mocker_replay.log.wall import bare_lines

# What code that makes sense of lines raises at one that no run wrote.
BROKEN_LINE = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)

_HEADER_START = b'{"event":"header"'
_FOOTER_START = b'{"event":"footer"'


class LogError(UsageError):
    """A file that is no event log, or one that is truncated or damaged; the message says which and where."""


class UntrueFooter(LogError):
    """A log that is whole, but not what its footer says: it was changed after it was written."""


class EventLogReader:
    """One pass over a log: `header` at once, then blocks, lines or events, then `footer`.

    The footer is checked when the pass reaches it; until then nothing is known to be true of the whole.
    """

    def __init__(self, path: str | os.PathLike[str], *, check_footer: bool = True) -> None:
        """Open a log (plain, gzip or zstd; `-` is standard input) and read its header.

        Args:
            check_footer: refuse a footer that does not agree with the lines; else that is the caller's to do.

        Raises:
            LogError: no event log, another schema version, or truncated in its first line.
        """
        self.name = os.fspath(path)
        self.header: dict[str, Any] = {}
        self.footer: dict[str, Any] | None = None
        self.num_events = 0
        self._check_footer = check_footer
        self._digest = EventDigest()
        self._rest = b""  # read, and not handed on yet
        try:
            source: str | os.PathLike[str] | int = sys.stdin.fileno() if self.name == "-" else path
            self._file: io.FileIO = open(source, "rb", buffering=0, closefd=self.name != "-")  # noqa: SIM115
        except OSError as exc:
            raise LogError(f"cannot read {self.name}: {exc.strerror}") from exc
        try:
            self._open_stream()
        except BaseException:
            self.close()
            raise

    @property
    def is_realtime(self) -> bool:
        """Whether lines may carry the key `wall`."""
        return "wall" in self.header

    def blocks(self) -> Iterator[bytes]:
        """Whole event lines as they stand, many at a time; ends after the footer was read and found true.

        Raises:
            LogError: the log is truncated, damaged, or says something else than its footer.
        """
        while self.footer is None:
            end = self._rest.rfind(b"\n") + 1
            if end == 0:
                more = self._read()
                if not more:
                    self._truncated()
                self._rest += more
                continue
            block, self._rest = self._rest[:end], self._rest[end:]
            at = self._footer_position(block)
            if at < 0:
                yield self._count(block)
                continue
            if at:
                # What is yielded may be the last thing asked for: nothing else may be held by this call.
                block, self._rest = block[:at], block[at:] + self._rest
                yield self._count(block)
                continue
            self._end(block + self._rest)

    def lines(self) -> Iterator[bytes]:
        """Event lines without their LF."""
        for block in self.blocks():
            yield from block[:-1].split(b"\n")

    def events(self) -> Iterator[dict[str, Any]]:
        """Event lines as dictionaries; `seq` must be dense."""
        for seq, line in enumerate(self.lines()):
            event = self._parse(line, seq + 2)
            if event.get("seq") != seq:
                raise LogError(f"{self.name}:{seq + 2}: seq must count from 0 without a gap (got {event.get('seq')})")
            yield event

    def hexdigest(self) -> str:
        """Digest of the lines read so far."""
        return self._digest.hexdigest()

    def verify(self) -> dict[str, Any]:
        """Read to the end and return the footer, now known to be true.

        Raises:
            LogError: as `blocks`.
        """
        for _ in self.blocks():
            pass
        assert self.footer is not None, "blocks() ends with a footer or raises"
        return self.footer

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> EventLogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_stream(self) -> None:
        self._stream, compressed = open_decoder(self._file)
        self._rest = self._read()
        if not self._rest and compressed:
            self._truncated()
        if not self._rest:
            raise LogError(f"{self.name}: the file is empty, an event log begins with a header line")
        if not self._rest.startswith(_HEADER_START[: len(self._rest)]):
            raise LogError(f"{self.name}:1: an event log begins with a header line (got {_shorten(self._rest)})")
        while b"\n" not in self._rest:
            more = self._read()
            if not more:
                self._truncated()
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        self.header = self._parse(line, 1)
        schema = self.header.get("schema")
        if schema != EVENT_SCHEMA:
            raise LogError(f"{self.name}:1: schema: this version reads {EVENT_SCHEMA} (got {schema})")

    def _read(self) -> bytes:
        try:
            return self._stream.read1(CHUNK_BYTES)
        except EOFError:
            self._truncated()
        except READ_ERRORS as exc:
            raise LogError(f"{self.name}: damaged after line {self.num_events + 1}: {exc}") from exc
        except OSError as exc:
            raise LogError(f"cannot read {self.name}: {exc.strerror or exc}") from exc

    def _footer_position(self, block: bytes) -> int:
        """Where the footer begins in whole lines; -1 if it is not among them."""
        if block.startswith(_FOOTER_START):
            return 0
        return block.find(b"\n" + _FOOTER_START) + 1 or -1

    def _count(self, block: bytes) -> bytes:
        self._digest.update(bare_lines(block) if self.is_realtime else block)
        self.num_events += count_lines(block)
        return block

    def _end(self, rest: bytes) -> None:
        """Check the footer, which must be the last line."""
        line, after = rest.split(b"\n", 1)
        number = self.num_events + 2
        if after or self._read():
            raise LogError(f"{self.name}:{number + 1}: nothing may follow the footer")
        footer = self._parse(line, number)
        for field, counted in (("events", self.num_events), ("digest", self.hexdigest())):
            if self._check_footer and footer.get(field) != counted:
                raise UntrueFooter(
                    f"{self.name}:{number}: {field}: the footer must agree with the event lines, "
                    f"which give {counted} (got {footer.get(field)}); the log was changed or is damaged"
                )
        self.footer = footer

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as exc:
            raise LogError(f"{self.name}:{number}: not a JSON line: {exc} (got {_shorten(line)})") from exc
        if not isinstance(value, dict):
            raise LogError(f"{self.name}:{number}: a line must be a JSON object (got {_shorten(line)})")
        return value

    def _truncated(self) -> NoReturn:
        raise LogError(f"{self.name}: truncated after line {self.num_events + bool(self.header)}: no footer")


def broken_line(reader: EventLogReader, number: int) -> LogError:
    """The error to raise for such a line."""
    return LogError(f"{reader.name}:{number}: no run writes this line here; mocker-replay audit says more")


def _shorten(text: bytes, limit: int = 60) -> str:
    shown = text[:limit].split(b"\n", 1)[0].decode("utf-8", "backslashreplace")
    return shown + "…" if len(text) > len(shown.encode()) else shown
