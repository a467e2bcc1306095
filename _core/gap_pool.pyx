"""Inter-token gaps of completed requests, exact, without a record per token.

Decides: how gaps are kept, and which belong to the pool. Never decides a time: every time comes from its caller.

A request that emits in every pass of its rank is not named in the pass; the pass says how many requests emitted one
pass after their previous token, and the gap is the distance of two pass ends. So a rank keeps its pass ends, each with
a weight. Only completed requests belong to the pool. Therefore a live request remembers at which entry its current
uninterrupted run began, and the runs before that; when it ends in another way, the weights of its runs are reduced.

Gaps of length zero have no entry, only a common count: a request with n tokens has n - 1 gaps, so those of its gaps
that are not found in an entry were zero. (That also settles which of several passes ending at one instant held the
last token of a run: they differ by zero gaps only.)
"""
cimport cython
from libc.stdlib cimport calloc, free, realloc

import numpy as np

cdef enum:
    ANCHOR = -1


@cython.final
cdef class GapPool:
    def __cinit__(self, int32_t num_ranks):
        if num_ranks < 1:
            raise ValueError(f"a gap pool needs at least one rank, got {num_ranks}")
        self.num_ranks = num_ranks
        self._free_interruption = -1
        self._ranks = <RankGaps*>calloc(num_ranks, sizeof(RankGaps))
        if self._ranks is NULL:
            raise MemoryError(f"gap columns of {num_ranks} ranks")

    def __dealloc__(self):
        cdef int32_t rank
        if self._ranks is not NULL:
            for rank in range(self.num_ranks):
                free(self._ranks[rank].end_ms)
                free(self._ranks[rank].weight)
        free(self._ranks)
        free(self._live)
        free(self._interruptions)
        free(self._single_gaps)

    cdef int count_pass(self, int32_t rank, double end_ms, double previous_end_ms, int64_t weight,
                        int64_t burst_tokens) except -1 nogil:
        """A pass ended: `weight` requests emitted after a token of the previous pass, plus tokens beyond the first."""
        cdef RankGaps* gaps = &self._ranks[rank]
        self._num_zero_gaps += burst_tokens
        if weight == 0:
            return 0
        if not previous_end_ms <= end_ms:
            return _contradiction(b"a pass counts gaps since a pass that has not ended before it", -1, end_ms)
        if previous_end_ms == end_ms:
            self._num_zero_gaps += weight
            return 0
        if gaps.count == 0 or gaps.end_ms[gaps.count - 1] < previous_end_ms:
            _append(gaps, previous_end_ms, ANCHOR)
        elif gaps.end_ms[gaps.count - 1] != previous_end_ms:
            return _contradiction(b"the previous pass of a rank lies before one already counted", -1, end_ms)
        return _append(gaps, end_ms, <int32_t>weight)

    cdef int begin(self, Py_ssize_t request, int32_t rank) except -1 nogil:
        """First token of `request`, in the pass of `rank` that was counted last."""
        cdef LiveRun* grown
        cdef Py_ssize_t capacity
        if request >= self._live_capacity:
            capacity = max(request + 1, max(1024, self._live_capacity + self._live_capacity // 2))
            grown = <LiveRun*>realloc(self._live, capacity * sizeof(LiveRun))
            if grown is NULL:
                return _no_memory(capacity)
            self._live = grown
            for i in range(self._live_capacity, capacity):
                self._live[i].run_first = -1
                self._live[i].interruption = -1
            self._live_capacity = capacity
        if self._live[request].run_first >= 0:
            return _contradiction(b"a request has a second first token", request, 0.0)
        self._live[request].run_first = self._ranks[rank].count
        return 0

    cdef int resume(self, Py_ssize_t request, int32_t rank, double time_ms, double previous_ms) except -1 nogil:
        """A token whose predecessor, at `previous_ms`, was not in the previous pass: close that run, begin another."""
        cdef Interruption* interruption
        cdef int32_t index
        if request >= self._live_capacity or self._live[request].run_first < 0:
            return _contradiction(b"a request resumes before its first token", request, time_ms)
        index = self._new_interruption()
        interruption = &self._interruptions[index]
        interruption.gap_ms = max(0.0, time_ms - previous_ms)
        interruption.run_first = self._live[request].run_first
        interruption.run_end = _count_until(&self._ranks[rank], previous_ms)
        interruption.next = self._live[request].interruption
        self._live[request].interruption = index
        self._live[request].run_first = self._ranks[rank].count
        return 0

    cdef int settle(self, Py_ssize_t request) except -1 nogil:
        """`request` completed: its gaps across interruptions join the pool; its runs need no memory any more."""
        cdef int32_t index
        cdef Py_ssize_t capacity
        cdef double* grown
        if request >= self._live_capacity:
            return 0  # it never had a token
        index = self._live[request].interruption
        while index >= 0:
            if self._num_single_gaps == self._single_gap_capacity:
                capacity = max(256, self._single_gap_capacity * 2)
                grown = <double*>realloc(self._single_gaps, capacity * sizeof(double))
                if grown is NULL:
                    return _no_memory(capacity)
                self._single_gaps = grown
                self._single_gap_capacity = capacity
            if self._interruptions[index].gap_ms > 0.0:
                self._single_gaps[self._num_single_gaps] = self._interruptions[index].gap_ms
                self._num_single_gaps += 1
            else:
                self._num_zero_gaps += 1
            index = self._free(index)
        self._live[request].interruption = -1
        return 0

    cdef int take_back(self, Py_ssize_t request, int32_t rank, int64_t num_tokens, double last_token_ms) except -1 nogil:
        """`request` did not complete: remove what its `num_tokens` tokens have added to the pool."""
        cdef RankGaps* gaps = &self._ranks[rank]
        cdef int64_t num_found
        cdef int32_t index
        if num_tokens == 0:
            return 0
        if request >= self._live_capacity or self._live[request].run_first < 0:
            return _contradiction(b"a request has tokens but no first one", request, last_token_ms)
        num_found = _reduce(gaps, self._live[request].run_first, _count_until(gaps, last_token_ms), request)
        index = self._live[request].interruption
        while index >= 0:
            # One more for the gap across the interruption, which never joined the pool.
            num_found += 1 + _reduce(
                gaps, self._interruptions[index].run_first, self._interruptions[index].run_end, request
            )
            index = self._free(index)
        self._live[request].interruption = -1
        if num_found > num_tokens - 1 or num_tokens - 1 - num_found > self._num_zero_gaps:
            return _contradiction(b"a request has another number of tokens than its passes counted", request,
                                  last_token_ms)
        self._num_zero_gaps -= num_tokens - 1 - num_found
        return 0

    cdef int32_t _new_interruption(self) except -1 nogil:
        cdef int32_t index = self._free_interruption
        cdef int32_t capacity
        cdef Interruption* grown
        if index >= 0:
            self._free_interruption = self._interruptions[index].next
            return index
        if self._num_interruptions == self._interruption_capacity:
            capacity = max(256, self._interruption_capacity * 2)
            grown = <Interruption*>realloc(self._interruptions, capacity * sizeof(Interruption))
            if grown is NULL:
                return _no_memory(capacity)
            self._interruptions = grown
            self._interruption_capacity = capacity
        self._num_interruptions += 1
        return self._num_interruptions - 1

    cdef int32_t _free(self, int32_t index) noexcept nogil:
        """Give an interruption back; return the next older one of its request."""
        cdef int32_t older = self._interruptions[index].next
        self._interruptions[index].next = self._free_interruption
        self._free_interruption = index
        return older

    def gaps(self):
        """The pool as (values, weights): ascending distinct gaps [ms] float64, occurrences int64 (> 0).

        Gaps inside the runs of requests that are still live are part of it until these requests end.
        """
        cdef int32_t i
        cdef RankGaps* rank
        values = [np.zeros(1)]
        weights = [np.array([self._num_zero_gaps], np.int64)]
        for i in range(self.num_ranks):
            rank = &self._ranks[i]
            if rank.count == 0:
                continue
            counted = np.asarray(<int32_t[:rank.count]>rank.weight)[1:]  # entry 0 is an anchor
            kept = counted > 0
            values.append(np.diff(np.asarray(<double[:rank.count]>rank.end_ms))[kept])
            weights.append(counted[kept].astype(np.int64))
        if self._num_single_gaps:
            values.append(np.array(<double[:self._num_single_gaps]>self._single_gaps))
            weights.append(np.ones(self._num_single_gaps, np.int64))
        return _merged(np.concatenate(values), np.concatenate(weights))


def _merged(values, weights):
    """Ascending distinct values and the sums of their weights, without weights of 0."""
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    starts = np.flatnonzero(np.diff(values, prepend=-1.0))
    values, weights = values[starts], np.add.reduceat(weights, starts)
    kept = weights > 0
    return values[kept], weights[kept]


cdef int _append(RankGaps* gaps, double end_ms, int32_t weight) except -1 nogil:
    cdef Py_ssize_t capacity
    cdef void* grown
    if gaps.count == gaps.capacity:
        capacity = max(1024, gaps.capacity + gaps.capacity // 2)
        grown = realloc(gaps.end_ms, capacity * sizeof(double))
        if grown is NULL:
            return _no_memory(capacity)
        gaps.end_ms = <double*>grown
        grown = realloc(gaps.weight, capacity * sizeof(int32_t))
        if grown is NULL:
            return _no_memory(capacity)
        gaps.weight = <int32_t*>grown
        gaps.capacity = capacity
    gaps.end_ms[gaps.count] = end_ms
    gaps.weight[gaps.count] = weight
    gaps.count += 1
    return 0


cdef Py_ssize_t _count_until(const RankGaps* gaps, double time_ms) noexcept nogil:
    """Number of entries with an end of at most `time_ms`."""
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = gaps.count
    cdef Py_ssize_t middle
    while low < high:
        middle = (low + high) // 2
        if gaps.end_ms[middle] <= time_ms:
            low = middle + 1
        else:
            high = middle
    return low


cdef int64_t _reduce(RankGaps* gaps, Py_ssize_t first, Py_ssize_t end, Py_ssize_t request) except -1 nogil:
    """Take one gap out of each entry of [first, end); return how many there were."""
    cdef Py_ssize_t i
    cdef int64_t num_found = 0
    for i in range(first, end):
        if gaps.weight[i] == ANCHOR:
            continue
        if gaps.weight[i] == 0:
            return _contradiction(b"a pass counted fewer gaps than its requests had", request, gaps.end_ms[i])
        gaps.weight[i] -= 1
        num_found += 1
    return num_found


cdef int _contradiction(const char* what, Py_ssize_t request, double time_ms) except -1 nogil:
    with gil:
        raise RuntimeError(f"event records contradict each other at {time_ms} ms, request {request}: {what.decode()}")


cdef int _no_memory(Py_ssize_t n) except -1 nogil:
    with gil:
        raise MemoryError(f"{n} gap entries")
