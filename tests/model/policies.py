"""Scheduling policies in the shortest readable form, for the model rank.

Each is asked about whole lists; nothing is kept between two questions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.model.request import Request

if TYPE_CHECKING:
    from tests.model.scheduler import Rank

Key = Callable[["Rank", Request], float]


@dataclass(frozen=True)
class ModelPolicy:
    """Who is tried first (lowest key), who loses its blocks (highest), who is held back, how many tokens a pass has."""

    order: Key = lambda rank, request: 0.0
    worst: Key | None = None  # of a running request; None: as preemption_mode says
    holds_back: Callable[[Rank, Request], bool] = lambda rank, request: False
    budget: Callable[[Rank], int] | None = None

    def victim(self, rank: Rank, usual: Request) -> Request:
        if self.worst is None:
            return usual
        highest = max(self.worst(rank, request) for request in rank.running)
        return [request for request in rank.running if self.worst(rank, request) == highest][-1]


def _job(rank: Rank, request: Request) -> float:
    return request.n_in + request.n_out


def _priority(rank: Rank, request: Request) -> float:
    return request.priority


def _deadline(rank: Rank, request: Request) -> float:
    return request.deadline_ms


def _match(limit: int) -> Key:
    def key(rank: Rank, request: Request) -> float:
        if len(rank.waiting) > limit or not rank.config.enable_prefix_caching:
            return 0.0
        return -rank.count_hits(request)

    return key


FCFS = ModelPolicy()
POLICIES: dict[str, ModelPolicy] = {
    "fcfs": FCFS,
    "sjf": ModelPolicy(_job, _job),
    "priority": ModelPolicy(_priority, _priority),
    "edf": ModelPolicy(_deadline, _deadline),
    "lpm": ModelPolicy(_match(128)),
    "lpm3": ModelPolicy(_match(3)),
}


def first_not_in(waiting: Sequence[Request], held_back: set[Request]) -> Request:
    """Who would be tried first without an order."""
    return next(request for request in waiting if request not in held_back)


def tried_next(keys: dict[Request, float], waiting: Sequence[Request], held_back: set[Request]) -> Request | None:
    """Lowest key, of several the one that came first."""
    left = [request for request in waiting if request not in held_back]
    return min(left, key=lambda request: (keys[request], waiting.index(request)), default=None)


def due_ms_of(arrival_ms: float, deadline_ms: float | None) -> float:
    return math.inf if deadline_ms is None else arrival_ms + deadline_ms
