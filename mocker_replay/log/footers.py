"""The footer of a log that was not read through.

Decides: when a footer can be had from the end of the file alone, which is when the file is plain. Never decides whether
it is true; reading does.
"""

from __future__ import annotations

import os
import stat
from typing import Any

import orjson

_FOOTER_START = b'{"event":"footer"'
_FIRST_TAIL_BYTES = 1 << 16
_LAST_TAIL_BYTES = 1 << 24  # the footer of a realtime log holds the steps that came after the last line


def footer_at_end(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The last line of a plain log, if it is a footer; None for anything else, for pipes and compressed files too."""
    try:
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or file.read(1) != b"{":
                return None
            return _last_line(file.fileno(), status.st_size)
    except OSError:
        return None


def _last_line(descriptor: int, size: int) -> dict[str, Any] | None:
    wanted = _FIRST_TAIL_BYTES
    while True:
        start = max(0, size - wanted)
        tail = os.pread(descriptor, size - start, start)
        if not tail.endswith(b"\n"):
            return None
        at = tail.rfind(b"\n", 0, -1)
        if at >= 0:
            return _parse(tail[at + 1 :])
        if start == 0 or wanted > _LAST_TAIL_BYTES:
            return None
        wanted *= 4


def _parse(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(_FOOTER_START):
        return None
    try:
        footer: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return footer if isinstance(footer, dict) else None
