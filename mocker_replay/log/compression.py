"""Compression of event logs: by suffix when written, by content when read.

Decides: formats, levels and block sizes, all fixed, so that the same lines give the same bytes. Never decides
where the bytes go, nor whether a log is whole (the footer does).
"""

from __future__ import annotations

import gzip
import io
import zlib
from typing import IO, Protocol, cast

import zstandard

GZIP_LEVEL = 6
ZSTD_LEVEL = 3
CHUNK_BYTES = 1 << 20
_GZIP_WINDOW = 16 + zlib.MAX_WBITS  # 16 asks zlib for the gzip format
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

# What a broken or shortened stream raises while it is read.
READ_ERRORS = (EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile)


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: bytes, /) -> int: ...

    def flush(self) -> None: ...


class Source(Protocol):
    """Where bytes come from."""

    def read1(self, size: int, /) -> bytes:
        """Up to `size` bytes, what is at hand; empty only at the end."""


class _Compressor(Protocol):
    """What zlib and zstandard have in common."""

    def compress(self, data: memoryview, /) -> bytes: ...

    def flush(self) -> bytes: ...


class Encoder:
    """Lines in, compressed bytes out to a sink that stays the caller's.

    The compressor is fed pieces of one size: what it makes must not depend on how lines were batched.
    """

    def __init__(self, sink: Sink, compressor: _Compressor | None) -> None:
        self._sink = sink
        self._compressor = compressor
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        if self._compressor is None:
            self._sink.write(data)
            return
        self._waiting += data
        whole = len(self._waiting) // CHUNK_BYTES * CHUNK_BYTES
        if whole:
            with memoryview(self._waiting) as waiting:
                for start in range(0, whole, CHUNK_BYTES):
                    self._sink.write(self._compressor.compress(waiting[start : start + CHUNK_BYTES]))
            del self._waiting[:whole]

    def close(self) -> None:
        """End the stream."""
        if self._compressor is not None:
            with memoryview(self._waiting) as waiting:
                self._sink.write(self._compressor.compress(waiting))
            self._waiting.clear()
            self._sink.write(self._compressor.flush())
        self._sink.flush()


def open_encoder(sink: Sink, name: str) -> Encoder:
    """Compress what goes to `sink` if `name` ends in .gz or .zst."""
    if name.endswith(".gz"):
        return Encoder(sink, zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW))  # its header holds no time
    if name.endswith(".zst"):
        return Encoder(sink, zstandard.ZstdCompressor(ZSTD_LEVEL, write_checksum=True).compressobj())
    return Encoder(sink, None)


def open_decoder(source: io.RawIOBase) -> tuple[Source, bool]:
    """The uncompressed bytes of `source`, whatever its name says, and whether they were compressed."""
    buffered = io.BufferedReader(source, CHUNK_BYTES)
    magic = buffered.peek(4)[:4]
    if magic.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=buffered), True
    if magic == _ZSTD_MAGIC:
        # The library's reader bounds memory but takes a frame that does not end for a short one; the footer tells.
        stream = zstandard.ZstdDecompressor().stream_reader(
            cast(IO[bytes], buffered), CHUNK_BYTES, read_across_frames=True
        )
        return cast(Source, stream), True
    return buffered, False
