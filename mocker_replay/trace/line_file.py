"""Files of lines, one after another, that can be read more than once, in blocks, with a digest.

Decides how bytes become numbered lines, compressed ones too, and which files are no line files at all (UTF-16, an
archive, a directory, a device). Standard input and pipes are spooled into a temporary file. Never looks into a line.
"""

from __future__ import annotations

import bisect
import functools
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Final, Protocol

from blake3 import blake3
from msgspec import Struct

from mocker_replay._core.mooncake_lines import line_end
from mocker_replay.errors import UsageError
from mocker_replay.trace.decompression import DecompressionError, TextLimit, compression_of, decompressed
from mocker_replay.trace.faults import whole_file_error

READ_BYTES: Final = 256 * 1024
MAX_LINE_BYTES: Final = 64 * 1024 * 1024

# First bytes of files that people hand over by mistake, and what to do instead.
_MAGIC: Final = (
    (b"BZh", "is compressed with bzip2; unpack it first"),
    (b"\xfd7zXZ", "is compressed with xz; unpack it first"),
    (b"PK\x03\x04", "is a zip archive; unpack it first"),
    (b"\xff\xfe", "is UTF-16; a trace is UTF-8"),
    (b"\xfe\xff", "is UTF-16; a trace is UTF-8"),
)


# One file, "-" for standard input, or several that are one trace.
TracePath = str | os.PathLike[str] | Sequence[str] | Sequence[os.PathLike[str]]


class LineBlock(Struct, frozen=True, dict=True):
    """Consecutive lines, the line feed of the last one left out."""

    first_line: int  # 1-based, counted over all files
    text: bytes

    @property
    def num_lines(self) -> int:
        return self.text.count(b"\n") + 1

    @functools.cached_property
    def lines(self) -> list[bytes]:
        """Each line without its line feed."""
        return self.text.split(b"\n")


class Lines(Protocol):
    """What readers need of their input, a file or something made into lines."""

    path: str  # as given, "-" for standard input; several with a blank between
    name: str  # for people and reports
    shown_path: str  # for messages
    digest: str  # of the last complete reading

    def close(self) -> None: ...

    def blocks(self, max_lines: int) -> Iterator[LineBlock]:
        """All lines, at most `max_lines` at a time. Sets `digest` when the end is reached."""

    def locate(self, line: int) -> tuple[str, int]:
        """The file in which a line stands that was read, and its number there."""

    def head(self, size: int) -> bytes:
        """The first bytes of the text, some `size` of them."""


class LineFile:
    """One input of one or several files, each opened once; every reading starts at the front.

    The digest is that of the text: a compressed copy is the same trace, and so is a trace cut into files at line ends.
    """

    def __init__(self, paths: TracePath, limit: TextLimit | None = None) -> None:
        if isinstance(paths, str | os.PathLike):
            paths = [os.fspath(paths)]
        self.paths: list[str] = [os.fspath(path) for path in paths]
        if not self.paths:
            raise UsageError("a trace needs at least one file")
        if self.paths.count("-") > 1:
            raise UsageError("standard input can be given once only")
        self.path = " ".join(self.paths)
        self.name = _name_of(self.paths[0]) + (f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else "")
        self.shown_path = ", ".join(_shown(path) for path in self.paths)
        self.digest = ""
        self._limit = limit or TextLimit()
        self._first_lines = [1]  # of each file, as far as they were read
        with ExitStack() as stack:
            self._files = [stack.enter_context(self._opened(path)) for path in self.paths]
            self._compressions = [compression_of(os.pread(file.fileno(), 8, 0)) for file in self._files]
            for number in range(len(self._files)):
                self._require_text(number)
            stack.pop_all()

    def close(self) -> None:
        for file in self._files:
            file.close()

    def locate(self, line: int) -> tuple[str, int]:
        if line == 0:
            return self.shown_path, 0
        number = bisect.bisect_right(self._first_lines, line) - 1
        return _shown(self.paths[number]), line - self._first_lines[number] + 1

    def starts_with(self, magic: bytes) -> bool:
        """Whether any of the files does, as it is kept."""
        return any(os.pread(file.fileno(), len(magic), 0) == magic for file in self._files)

    def head(self, size: int) -> bytes:
        parts: list[bytes] = []
        for number in range(len(self._files)):
            for chunk in self._chunks(number):
                parts.append(chunk)
                size -= len(chunk)
                if size <= 0:
                    return b"".join(parts)
            if parts and not parts[-1].endswith(b"\n"):
                parts.append(b"\n")
        return b"".join(parts)

    def blocks(self, max_lines: int) -> Iterator[LineBlock]:
        hasher = blake3()
        line = 1
        for number in range(len(self._files)):
            if number >= len(self._first_lines):
                self._first_lines.append(line)
            for block in self._blocks_of(number, line, max_lines, hasher):
                yield block
                line = block.first_line + block.num_lines
        self.digest = hasher.hexdigest()

    def _blocks_of(self, number: int, line: int, max_lines: int, hasher: blake3) -> Iterator[LineBlock]:
        parts: list[bytes] = []  # of a line whose end has not been read
        num_pending = 0
        for chunk in self._chunks(number):
            hasher.update(chunk)
            cut = chunk.rfind(b"\n")
            if cut < 0:
                parts.append(chunk)
                num_pending += len(chunk)
                if num_pending > MAX_LINE_BYTES:
                    file, here = self.locate(line)
                    raise whole_file_error(file, "a line must be shorter than 64 MiB", here)
                continue
            parts.append(chunk[:cut])
            text = b"".join(parts)
            parts = [chunk[cut + 1 :]]
            num_pending = len(parts[0])
            at = 0
            while at <= len(text):
                end, num_lines = line_end(text, at, max_lines)
                yield LineBlock(line, text[at:end])
                line += num_lines
                at = end + 1
        last = b"".join(parts)
        if last:
            yield LineBlock(line, last)
            if number + 1 < len(self._files):
                hasher.update(b"\n")  # a file ends its last line

    def _chunks(self, number: int) -> Iterator[bytes]:
        """The text of one file."""
        stored = self._stored(number)
        compression = self._compressions[number]
        if compression is None:
            yield from stored
            return
        try:
            yield from decompressed(stored, compression, self._limit)
        except DecompressionError as exc:
            raise whole_file_error(_shown(self.paths[number]), str(exc)) from exc

    def _stored(self, number: int) -> Iterator[bytes]:
        """The bytes of one file as they are kept."""
        offset = 0
        while True:
            try:
                chunk = os.pread(self._files[number].fileno(), READ_BYTES, offset)
            except OSError as exc:
                rule = f"cannot be read: {exc.strerror}"
                raise whole_file_error(_shown(self.paths[number]), rule) from exc
            if not chunk:
                return
            offset += len(chunk)
            yield chunk

    def _require_text(self, number: int) -> None:
        """Refuse what is no text by its first bytes, under a compression too."""
        start = next(self._chunks(number), b"")
        shown = _shown(self.paths[number])
        for magic, rule in _MAGIC:
            if start.startswith(magic):
                raise whole_file_error(shown, rule)
        twice = compression_of(start)
        if self._compressions[number] is not None and twice is not None:
            raise whole_file_error(shown, f"is compressed twice, the inner time with {twice}; unpack it once")

    def _opened(self, path: str) -> IO[bytes]:
        if path == "-":
            return self._spooled(sys.stdin.buffer, path)
        try:
            file = open(path, "rb")  # noqa: SIM115 (closed by close())
        except (OSError, ValueError) as exc:  # a path with a NUL is a ValueError
            reason = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise whole_file_error(_shown(path), f"cannot be opened: {reason}") from exc
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISREG(mode):
            return file
        with file:
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                raise whole_file_error(_shown(path), "is a device; a trace is a file, a pipe or standard input")
            return self._spooled(file, path)  # a pipe can be read only once

    def _spooled(self, stream: IO[bytes], path: str) -> IO[bytes]:
        with ExitStack() as stack:
            try:
                spool = stack.enter_context(tempfile.TemporaryFile())
                num_bytes = 0
                while chunk := stream.read(READ_BYTES):
                    num_bytes += len(chunk)
                    if num_bytes > self._limit.max_bytes:
                        rule = f"gave more than {self._limit.gib} GiB; --max-text-gib allows more"
                        raise whole_file_error(_shown(path), rule)
                    spool.write(chunk)
                spool.flush()
            except OSError as exc:
                rule = f"cannot be kept in a temporary file: {exc.strerror}"
                raise whole_file_error(_shown(path), rule) from exc
            stack.pop_all()
        return spool


def place_of(file: Lines, line: int) -> str:
    """Where a line stands, with its file if there are several."""
    name, number = file.locate(line)
    return f"line {number}" if name == file.shown_path else f"line {number} of {name}"


def _name_of(path: str) -> str:
    return "<stdin>" if path == "-" else os.path.basename(path)


def _shown(path: str) -> str:
    return "<stdin>" if path == "-" else path
