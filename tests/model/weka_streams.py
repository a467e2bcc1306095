"""Streams of one agent the slow way: every list is compared with every other one, every time.

Source: replay specification, section 1.6, rule 1; where it says nothing, what the reference answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

EPSILON_S = 1e-6


@dataclass
class Request:
    start_s: float
    end_s: float
    output_tokens: int
    model: str
    ids: list[int]


@dataclass
class ModelStream:
    requests: list[int]
    tail: int
    parent: ModelStream | None = None
    fork: int | None = None
    shared: int = 0
    children: list[ModelStream] = field(default_factory=list)


def num_common(left: list[int], right: list[int]) -> int:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


def split(requests: list[Request]) -> list[tuple[list[int], int | None]]:
    """Requests of each stream in order, and the request it was forked from."""
    order = sorted(range(len(requests)), key=lambda at: (requests[at].start_s, at))
    aside = _set_aside(requests, order)
    streams: list[ModelStream] = []
    for at in order:
        if requests[at].ids and at != aside:
            _place(requests, streams, at)
    for parent in list(streams):
        if parent in streams:
            while _splice_one(requests, streams, parent):
                pass
    if not streams:
        return [(order, None)] if order else []
    loose = {at for at in order if not requests[at].ids or at == aside}
    main = loose | set(streams[0].requests)
    streams[0].requests = [at for at in order if at in main]
    return [(stream.requests, stream.fork) for stream in streams]


def _set_aside(requests: list[Request], order: list[int]) -> int | None:
    if len(order) < 2:
        return None
    first, later = requests[order[0]], [requests[at] for at in order[1:]]
    if not first.ids or any(num_common(first.ids, other.ids) for other in later):
        return None
    occurs = any(one in other.ids for other in later for one in first.ids)
    return order[0] if first.output_tokens <= 64 or not occurs else None


def _place(requests: list[Request], streams: list[ModelStream], at: int) -> None:
    new = requests[at]
    continued = [
        stream
        for stream in streams
        if new.ids[: len(requests[stream.tail].ids)] == requests[stream.tail].ids
        and requests[stream.tail].model == new.model
        and requests[stream.tail].end_s <= new.start_s + EPSILON_S
    ]
    if continued:
        stream = max(continued, key=lambda stream: len(requests[stream.tail].ids))
        stream.requests.append(at)
        stream.tail = at
        return
    made = ModelStream([at], at)
    near = [stream for stream in streams if num_common(requests[stream.tail].ids, new.ids)]
    if near:
        made.parent = max(
            near, key=lambda one: (num_common(requests[one.tail].ids, new.ids), len(requests[one.tail].ids))
        )
        made.fork = made.parent.tail
        made.shared = num_common(requests[made.fork].ids, new.ids)
    streams.append(made)


def _splice_one(requests: list[Request], streams: list[ModelStream], parent: ModelStream) -> bool:
    tail = requests[parent.tail]
    at_tail = [one for one in streams if one.parent is parent and one.fork == parent.tail]
    seams = []
    for one in at_tail:
        first = requests[one.requests[0]]
        gap_s = first.start_s - tail.end_s
        fits = first.model == tail.model and tail.end_s <= first.start_s + EPSILON_S
        if fits and not (gap_s > 3600.0 and one.shared / len(tail.ids) < 0.5):
            seams.append(one)
    if not seams:
        return False
    child = max(seams, key=lambda one: one.shared)  # of several the first
    streams.remove(child)
    parent.requests += child.requests
    parent.tail = child.tail
    for one in streams:
        if one.parent is child:
            one.parent = parent
    for one in at_tail:
        first = requests[one.requests[0]]
        shared = num_common(requests[parent.tail].ids, first.ids)
        if one is not child and shared and requests[parent.tail].start_s <= first.start_s + EPSILON_S:
            one.fork, one.shared = parent.tail, shared
    return True
