"""A file of lines that can be read more than once, in blocks, with a digest.

Decides how bytes become numbered lines, and which files are no line files at all (compressed, UTF-16, a
directory). Standard input and pipes are spooled into a temporary file. Never looks into a line.
"""

from __future__ import annotations

import functools
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Final

from blake3 import blake3

from mocker_replay._core.mooncake_lines import line_end
from mocker_replay.trace.faults import whole_file_error

READ_BYTES: Final = 256 * 1024
MAX_LINE_BYTES: Final = 64 * 1024 * 1024

# First bytes of files that people hand over by mistake, and what to do instead.
_MAGIC: Final = (
    (b"\x1f\x8b", "is compressed with gzip; unpack it: gzip -dc FILE | mocker-replay ... -"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd; unpack it: zstd -dc FILE | mocker-replay ... -"),
    (b"BZh", "is compressed with bzip2; unpack it first"),
    (b"\xfd7zXZ", "is compressed with xz; unpack it first"),
    (b"PK\x03\x04", "is a zip archive; unpack it first"),
    (b"\xff\xfe", "is UTF-16; a trace is UTF-8"),
    (b"\xfe\xff", "is UTF-16; a trace is UTF-8"),
)


@dataclass(frozen=True)
class LineBlock:
    """Consecutive lines, the line feed of the last one left out."""

    first_line: int  # 1-based
    text: bytes

    @functools.cached_property
    def lines(self) -> list[bytes]:
        """Each line without its line feed."""
        return self.text.split(b"\n")


class LineFile:
    """One input, opened once; every reading starts at the front."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.name = "<stdin>" if self.path == "-" else os.path.basename(self.path)
        self.shown_path = "<stdin>" if self.path == "-" else self.path
        self.digest = ""  # of the last complete reading
        self._file = self._open()
        head = os.pread(self._file.fileno(), 8, 0)
        for magic, rule in _MAGIC:
            if head.startswith(magic):
                self.close()
                raise whole_file_error(self.shown_path, rule)

    def close(self) -> None:
        self._file.close()

    def blocks(self, max_lines: int) -> Iterator[LineBlock]:
        """All lines, at most `max_lines` at a time. Sets `digest` when the end is reached."""
        hasher = blake3()
        parts: list[bytes] = []  # of a line whose end has not been read
        num_pending = 0
        line = 1
        for chunk in self._chunks():
            hasher.update(chunk)
            cut = chunk.rfind(b"\n")
            if cut < 0:
                parts.append(chunk)
                num_pending += len(chunk)
                if num_pending > MAX_LINE_BYTES:
                    raise whole_file_error(self.shown_path, "a line must be shorter than 64 MiB", line)
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
        self.digest = hasher.hexdigest()

    def _chunks(self) -> Iterator[bytes]:
        offset = 0
        while True:
            try:
                chunk = os.pread(self._file.fileno(), READ_BYTES, offset)
            except OSError as exc:
                raise whole_file_error(self.shown_path, f"cannot be read: {exc.strerror}") from exc
            if not chunk:
                return
            offset += len(chunk)
            yield chunk

    def _open(self) -> IO[bytes]:
        if self.path == "-":
            return self._spooled(sys.stdin.buffer)
        try:
            file = open(self.path, "rb")  # noqa: SIM115 (closed by close())
        except OSError as exc:
            raise whole_file_error(self.shown_path, f"cannot be opened: {exc.strerror}") from exc
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        with file:  # a pipe can be read only once
            return self._spooled(file)

    def _spooled(self, stream: IO[bytes]) -> IO[bytes]:
        try:
            spool = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close())
            shutil.copyfileobj(stream, spool, READ_BYTES)
            spool.flush()
        except OSError as exc:
            raise whole_file_error(self.shown_path, f"cannot be kept in a temporary file: {exc.strerror}") from exc
        return spool
