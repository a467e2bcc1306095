"""Requests of one agent to streams: which request continues which conversation.

Decides, by hash prefixes and times alone, which requests belong to one conversation, where one was forked from another,
and which forks were only a compaction of the same one. Makes no edges.

Source: replay specification, section 1.6, rule 1.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from mocker_replay.trace.base import Float64s
from mocker_replay.trace.weka_prefixes import NO_RANK, PrefixOrder

EPSILON_S: Final = 1e-6  # recorded times this close are the same
LONG_GAP_S: Final = 3600.0  # after this a compaction must have kept
MIN_KEPT_RATIO: Final = 0.5  # of the conversation
MAX_PREAMBLE_TOKENS: Final = 64
NO_STREAM: Final = -1
NO_REQUEST: Final = -1
_NO_TAIL: Final = np.iinfo(np.int64).max  # of a list: it is no stream's tail


class AgentRequests(Struct, frozen=True):
    """Requests of one agent in the order in which they are listed."""

    start_s: Sequence[float]
    end_s: Sequence[float]
    output_tokens: Sequence[int]
    models: Sequence[str]
    hash_ids: Sequence[Sequence[int]]

    def __len__(self) -> int:
        return len(self.start_s)


class Stream(Struct):
    """One conversation; the first of several is the main one."""

    requests: list[int]  # in order of time
    fork: int  # the request it was forked from, NO_REQUEST: none


def split_streams(requests: AgentRequests) -> list[Stream]:
    """The streams of some requests, in order of their first requests."""
    order = sorted(range(len(requests)), key=lambda at: requests.start_s[at])  # stable: by (start, position)
    hashed = [at for at in order if requests.hash_ids[at]]
    preamble = _preamble(requests, order)
    splitter = _Splitter(requests)
    for at in hashed:
        if at != preamble:
            splitter.add(at)
    splitter.splice()
    streams = splitter.streams()
    if not streams:
        return [Stream(order, NO_REQUEST)] if order else []
    # What says nothing about its prompt belongs to the main stream.
    main = {*streams[0].requests, *(at for at in order if not requests.hash_ids[at] or at == preamble)}
    streams[0].requests = [at for at in order if at in main]
    return streams


def _preamble(requests: AgentRequests, order: list[int]) -> int:
    """A first request that has nothing to do with what follows; NO_REQUEST if there is none."""
    if len(order) < 2 or not requests.hash_ids[order[0]]:
        return NO_REQUEST
    first, later = order[0], order[1:]
    ids = requests.hash_ids[first]
    if any(requests.hash_ids[at][:1] == ids[:1] for at in later):
        return NO_REQUEST
    if requests.output_tokens[first] > MAX_PREAMBLE_TOKENS:
        own = set(ids)
        if any(not own.isdisjoint(requests.hash_ids[at]) for at in later):
            return NO_REQUEST
    return first


class _Splitter:
    """Streams as they grow; a stream is its number, in order of its first request."""

    def __init__(self, requests: AgentRequests) -> None:
        self._all = requests
        self._prefixes = PrefixOrder(requests.hash_ids)
        self._members: list[list[int]] = []
        self._tail: list[int] = []  # the last request with hash ids, NO_REQUEST: none yet
        self._parent: list[int] = []  # the stream it was forked from, NO_STREAM: none
        self._fork: list[int] = []  # the tail of that stream then
        self._shared: list[int] = []  # ids it has in common with that tail
        self._is_spliced: list[bool] = []
        # By rank of the tail: streams that may be continued, and all there are.
        self._ready: dict[tuple[int, str], list[tuple[int, int]]] = {}  # (stream, tail), lowest stream first
        self._ending: list[tuple[float, int, int]] = []  # (end of the tail, stream, tail), earliest first
        self._tails: list[list[tuple[int, int]]] = [[] for _ in self._prefixes.length]  # (stream, tail), lowest first
        self._first_stream = np.full(len(self._prefixes.length), _NO_TAIL, np.int64)

    def add(self, at: int) -> None:
        """The next request in order of time; it has hash ids."""
        rank = self._prefixes.rank[at]
        self._note_ended(self._all.start_s[at])
        stream = self._continued(rank, self._all.models[at])
        if stream != NO_STREAM:
            self._members[stream].append(at)
            self._set_tail(stream, at)
        else:
            self._open(at, *self._nearest(rank))
            self._set_tail(len(self._members) - 1, at)

    def _open(self, at: int, parent: int, shared: int) -> None:
        self._members.append([at])
        self._tail.append(NO_REQUEST)
        self._parent.append(parent)
        self._fork.append(NO_REQUEST if parent == NO_STREAM else self._tail[parent])
        self._shared.append(shared)
        self._is_spliced.append(False)

    def _set_tail(self, stream: int, at: int) -> None:
        before = self._tail[stream]
        self._tail[stream] = at
        rank = self._prefixes.rank[at]
        heapq.heappush(self._tails[rank], (stream, at))
        heapq.heappush(self._ending, (self._all.end_s[at], stream, at))
        for changed in (rank,) if before == NO_REQUEST else (rank, self._prefixes.rank[before]):
            first = self._first_valid(self._tails[changed])
            self._first_stream[changed] = _NO_TAIL if first == NO_STREAM else first

    def _note_ended(self, now_s: float) -> None:
        while self._ending and self._ending[0][0] <= now_s + EPSILON_S:
            _, stream, tail = heapq.heappop(self._ending)
            if self._tail[stream] == tail:
                key = (self._prefixes.rank[tail], self._all.models[tail])
                heapq.heappush(self._ready.setdefault(key, []), (stream, tail))

    def _continued(self, rank: int, model: str) -> int:
        """The stream with the longest tail that a list continues; of several the first."""
        while rank != NO_RANK:
            ready = self._ready.get((rank, model))
            if ready is not None and (stream := self._first_valid(ready)) != NO_STREAM:
                return stream
            rank = self._prefixes.prefix_of[rank]
        return NO_STREAM

    def _first_valid(self, heap: list[tuple[int, int]]) -> int:
        while heap:
            stream, tail = heap[0]
            if self._tail[stream] == tail:
                return stream
            heapq.heappop(heap)
        return NO_STREAM

    def _nearest(self, rank: int) -> tuple[int, int]:
        """The stream whose tail shares most with a list, and how much; of several the longest tail."""
        shared = np.where(self._first_stream != _NO_TAIL, self._prefixes.shared_with_all(rank), 0)
        most = int(shared.max())
        if most == 0:
            return NO_STREAM, 0
        nearest = np.flatnonzero(shared == most)
        lengths = self._prefixes.length[nearest]
        return int(self._first_stream[nearest[lengths == lengths.max()]].min()), most

    def splice(self) -> None:
        """Put streams that only continue their parent after a compaction back onto it."""
        forks = np.array(self._fork, np.int64)
        parents = np.array(self._parent, np.int64)
        shared = np.array(self._shared, np.int64)
        starts_s = np.array([self._all.start_s[members[0]] for members in self._members])
        for parent in range(len(self._members)):
            if self._is_spliced[parent]:
                continue
            while True:
                at_tail = np.flatnonzero((forks == self._tail[parent]) & (parents == parent))
                child = self._seam(parent, at_tail, shared, starts_s)
                if child == NO_STREAM:
                    break
                parents[parents == child] = parent
                self._members[parent] += self._members[child]
                self._tail[parent] = self._tail[child]
                self._is_spliced[child] = True
                parents[child] = NO_STREAM
                rest = at_tail[
                    (at_tail != child) & (starts_s[at_tail] + EPSILON_S >= self._all.start_s[self._tail[parent]])
                ]
                if len(rest):
                    in_common = self._prefixes.shared_with_all(self._prefixes.rank[self._tail[parent]])
                    now = in_common[[self._prefixes.rank[self._members[stream][0]] for stream in rest.tolist()]]
                    forks[rest[now > 0]] = self._tail[parent]
                    shared[rest[now > 0]] = now[now > 0]
        self._fork = forks.tolist()

    def _seam(self, parent: int, forks: np.ndarray, shared: np.ndarray, starts_s: Float64s) -> int:
        """The fork at the tail of a stream that continues it, NO_STREAM if none does."""
        tail = self._tail[parent]
        if tail == NO_REQUEST:
            return NO_STREAM
        end_s, model = self._all.end_s[tail], self._all.models[tail]
        length = int(self._prefixes.length[self._prefixes.rank[tail]])
        best, best_shared = NO_STREAM, 0
        for stream in forks.tolist():
            gap_s = float(starts_s[stream]) - end_s
            if self._all.models[self._members[stream][0]] != model or end_s > starts_s[stream] + EPSILON_S:
                continue
            if gap_s > LONG_GAP_S and shared[stream] / length < MIN_KEPT_RATIO:
                continue
            if shared[stream] > best_shared:
                best, best_shared = stream, int(shared[stream])
        return best

    def streams(self) -> list[Stream]:
        kept = [stream for stream, is_spliced in enumerate(self._is_spliced) if not is_spliced]
        return [Stream(self._members[stream], self._fork[stream]) for stream in kept]
