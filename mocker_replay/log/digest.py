"""The digest of an event log.

Decides: which bytes it covers. These are the event lines alone, uncompressed: every byte after the LF that ends
the header up to and including the LF before the footer; for a log without events, the empty string. Header and
footer are left out, so that the same events under another name, configuration text or clock have the same digest.
"""

from __future__ import annotations

from blake3 import blake3


class EventDigest:
    """BLAKE3 over event lines, fed in any pieces."""

    def __init__(self) -> None:
        self._hash = blake3()

    def update(self, lines: bytes | memoryview) -> None:
        self._hash.update(lines)

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        return self._hash.hexdigest()
