"""A request inside one rank: its tokens, its table of blocks, its progress."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tests.model.pool import Copy, Identity


def ceil_div(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


class Status(enum.Enum):
    WAITING = "waiting"  # never preempted yet
    RUNNING = "running"
    PREEMPTED = "preempted"


@dataclass(eq=False, slots=True)
class Entry:
    """One block of the sequence."""

    identity: Identity | None
    copy: Copy | None = None
    to_be_cached: bool = False


class Request:
    """`number` is the trace row; identities are those of the prompt blocks."""

    def __init__(
        self, number: int, n_in: int, n_out: int, identities: Sequence[Identity | None], max_model_len: int | None
    ) -> None:
        self.number = number
        self.n_in, self.n_out = n_in, n_out
        self.max_model_len = max_model_len
        self.generated = 0
        self.computed = 0
        self.alloc = 0
        self.table = [Entry(identity) for identity in identities]
        self.status = Status.WAITING
        # What a policy may ask for.
        self.priority = 0
        self.arrival_ms = 0.0
        self.deadline_ms = math.inf
        self.order_told = False  # since it began to wait

    def __repr__(self) -> str:
        return f"r{self.number}(L={self.length} computed={self.computed} alloc={self.alloc} {self.status.value})"

    @property
    def length(self) -> int:
        """L: every token known so far."""
        return self.n_in + self.generated

    @property
    def remaining(self) -> int:
        left = self.n_out - self.generated
        if self.max_model_len is not None:
            left = min(left, self.max_model_len - self.length)
        return max(0, left)

    @property
    def done(self) -> bool:
        return self.remaining == 0

    @property
    def wants_tokens(self) -> bool:
        return self.n_out > self.generated

    def generate(self, block_size: int) -> None:
        if self.length % block_size == 0:
            self.table.append(Entry(None))
        self.generated += 1
