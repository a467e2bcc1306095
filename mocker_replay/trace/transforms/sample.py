"""A sample of the sessions.

Decides each session by a hash of its name alone: neither other rows nor their order matter, a session is in with all
its turns or not at all, and a larger ratio keeps what a smaller one kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np
from blake3 import blake3
from msgspec import Struct

from mocker_replay.config.decimals import plain_decimal
from mocker_replay.trace.base import RowBatch
from mocker_replay.trace.transforms.rows import names_of, take
from mocker_replay.trace.transforms.step import Incoming

_HASH_BYTES: Final = 8


class Sample(Struct, frozen=True):
    """About this share of the sessions; which ones, the seed says."""

    ratio: float
    seed: int = 0

    starts_at_zero: ClassVar[bool] = False

    @property
    def text(self) -> str:
        return f"sample={plain_decimal(self.ratio)},seed={self.seed}"

    def apply(self, batches: Iterator[RowBatch], incoming: Incoming) -> Iterator[RowBatch]:
        bound = int(self.ratio * 2 ** (8 * _HASH_BYTES))
        for batch in batches:
            is_kept = [self._hash(name) < bound for name in names_of(batch)]
            yield take(batch, np.flatnonzero(is_kept))

    def _hash(self, name: str) -> int:
        """Uniform over 64 bits."""
        return int.from_bytes(blake3(f"{self.seed}:{name}".encode()).digest(length=_HASH_BYTES), "little")
