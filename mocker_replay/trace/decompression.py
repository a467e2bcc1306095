"""Compressed text read as a stream: gzip of several members, zstd of several frames, within limits.

Decides what is compressed (by the first bytes, never by a name), how much may come of it, and what is said of a
member that is cut short or corrupt. Memory does not grow with the text. Never opens a file and never looks into a line.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import zstandard
from msgspec import Struct

GIB: Final = 1 << 30
DEFAULT_MAX_TEXT_GIB: Final = 16
MAX_TEXT_RATIO: Final = 250  # of text to compressed bytes; a trace has some 5 to 30
MIN_SUSPECT_BYTES: Final = 256 * 1024 * 1024  # a text up to this is read whatever its ratio
GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SKIPPABLE: Final = tuple(bytes([byte]) + b"\x2a\x4d\x18" for byte in range(0x50, 0x60))  # frames of zstd without text
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS  # 16 asks zlib for the gzip format
_PIECE_BYTES: Final = 256 * 1024  # of text, at most so much at a time
# A block of zstd may repeat one byte 128 Ki times in four bytes: so small a piece makes at most 16 MiB.
_ZSTD_FEED_BYTES: Final = 512
_ZSTD_WINDOW_BYTES: Final = 128 * 1024 * 1024  # what `zstd -d` allows without being asked


class DecompressionError(Exception):
    """What is wrong with the compressed bytes, in words."""


class TextLimit(Struct, frozen=True):
    """How much text may come of one input."""

    max_text_gib: int | None = None  # None: the default, and the ratio is looked at as well

    @property
    def gib(self) -> int:
        return DEFAULT_MAX_TEXT_GIB if self.max_text_gib is None else self.max_text_gib

    @property
    def max_bytes(self) -> int:
        return self.gib * GIB

    def require(self, text_bytes: int, stored_bytes: int) -> None:
        """Refuse what is too much.

        Raises:
            DecompressionError: with the option that allows more.
        """
        if text_bytes > self.max_bytes:
            raise DecompressionError(f"holds more than {self.gib} GiB of text; --max-text-gib allows more")
        if self.max_text_gib is None and MIN_SUSPECT_BYTES < text_bytes > MAX_TEXT_RATIO * stored_bytes:
            raise DecompressionError(
                f"holds {MAX_TEXT_RATIO} times as much text as it has bytes, like a decompression bomb; "
                "--max-text-gib N reads it up to N GiB"
            )


class _Member(Protocol):
    """One gzip member or zstd frame that is being read."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def pieces(self, stored: bytes) -> Iterator[bytes]:
        """The text of some more bytes; what is left over when the member ends is its `unused_data`."""


class _GzipMember:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP_WINDOW)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def pieces(self, stored: bytes) -> Iterator[bytes]:
        while stored and not self._stream.eof:
            yield self._stream.decompress(stored, _PIECE_BYTES)
            stored = self._stream.unconsumed_tail


class _ZstdFrame:
    def __init__(self) -> None:
        self._stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj()
        self.unused_data = b""

    @property
    def eof(self) -> bool:
        return self._stream.eof

    def pieces(self, stored: bytes) -> Iterator[bytes]:
        for at in range(0, len(stored), _ZSTD_FEED_BYTES):
            end = at + _ZSTD_FEED_BYTES
            yield self._stream.decompress(stored[at:end])
            if self._stream.eof:
                self.unused_data = self._stream.unused_data + stored[end:]
                return


def compression_of(head: bytes) -> str | None:
    """`gzip` or `zstd` by the first bytes, None for anything else."""
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    return "zstd" if head.startswith((ZSTD_MAGIC, *_SKIPPABLE)) else None


def decompressed(chunks: Iterator[bytes], compression: str, limit: TextLimit) -> Iterator[bytes]:
    """The text of compressed chunks, in pieces of 256 KiB to some 16 MiB, the last one shorter.

    Raises:
        DecompressionError: a member or frame is cut short or corrupt, something else follows it, or it is too much.
    """
    waiting: list[bytes] = []
    num_waiting = 0
    for piece in _pieces(chunks, compression, limit):
        waiting.append(piece)
        num_waiting += len(piece)
        if num_waiting >= _PIECE_BYTES:
            yield b"".join(waiting)
            waiting, num_waiting = [], 0
    if num_waiting:
        yield b"".join(waiting)


def _pieces(chunks: Iterator[bytes], compression: str, limit: TextLimit) -> Iterator[bytes]:
    """The text as it comes.

    Raises:
        DecompressionError: a member or frame is cut short or corrupt, something else follows it, or it is too much.
    """
    new_member: Callable[[], _Member] = _GzipMember if compression == "gzip" else _ZstdFrame
    unit = "gzip member" if compression == "gzip" else "zstd frame"
    member: _Member | None = None
    number = num_text = num_stored = 0
    for chunk in chunks:
        num_stored += len(chunk)
        while chunk:
            if member is None:
                if number and compression == "gzip" and not (chunk := chunk.lstrip(b"\0")):
                    break  # padding that tape and block writers leave behind the last member
                number += 1
                member = new_member()
            try:
                for piece in member.pieces(chunk):
                    num_text += len(piece)
                    limit.require(num_text, num_stored)
                    yield piece
            except (zlib.error, zstandard.ZstdError) as exc:
                raise DecompressionError(_corrupt_text(unit, number, exc)) from exc
            chunk = b""
            if member.eof:
                chunk, member = member.unused_data, None
    if member is not None:
        raise DecompressionError(f"is cut short: {unit} {number} has no end")


def _corrupt_text(unit: str, number: int, exc: Exception) -> str:
    reason = str(exc).rpartition(": ")[2]
    return f"is corrupt: {unit} {number}: {reason}"
