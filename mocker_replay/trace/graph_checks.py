"""What must hold between the requests of a graph: known sources, plays of their own, no cycles.

Decides nothing about single requests and never knows a format. Linear in requests and edges, and no recursion: a trace
may be one chain of a million requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from mocker_replay.trace.base import Int64s

MAX_NAMED: Final = 8  # requests of a cycle that are named


def requests_in_cycles(num_requests: int, sources: Int64s, targets: Int64s) -> list[int]:
    """Requests that lie on a cycle or between two of them, in order; empty for an acyclic graph.

    Args:
        sources, targets: (m,) ordinals of the requests each edge leaves and enters.
    """
    left = _without_ends(num_requests, sources, targets, list(range(num_requests)))
    if left:
        left = _without_ends(num_requests, targets, sources, left)
    return left


def cycle_text(request_ids: Sequence[str]) -> str:
    """The requests of a cycle as a message names them."""
    named = ", ".join(request_ids[:MAX_NAMED])
    return named if len(request_ids) <= MAX_NAMED else f"{named} and {len(request_ids) - MAX_NAMED} more"


def _without_ends(num_requests: int, sources: Int64s, targets: Int64s, among: list[int]) -> list[int]:
    """Those of `among` that remain when requests nobody of them points to are taken away again and again."""
    is_left = np.zeros(num_requests, bool)
    is_left[among] = True
    inside = is_left[sources] & is_left[targets]
    sources, targets = sources[inside], targets[inside]
    order = np.argsort(sources, kind="stable")
    followers = targets[order].tolist()
    first = np.searchsorted(sources[order], np.arange(num_requests + 1)).tolist()
    num_before = np.bincount(targets, minlength=num_requests).tolist()
    free = [request for request in among if num_before[request] == 0]
    while free:
        request = free.pop()
        is_left[request] = False
        for follower in followers[first[request] : first[request + 1]]:
            num_before[follower] -= 1
            if num_before[follower] == 0:
                free.append(follower)
    return np.flatnonzero(is_left).tolist()
