"""Inter-token gaps of completed requests, exact, without a record per token.

Decides: how gaps are kept, and which belong to the pool. Never decides a time: every time comes from its caller.

A request that emits in every pass of its rank is not named in the pass; the pass says how many requests emitted one
pass after their previous token, and the gap is the distance of two pass ends. So a rank keeps its pass ends, each with
a weight. Only completed requests belong to the pool. Therefore a live request remembers at which entry its current
uninterrupted run began, and the runs before that; when it ends in another way, the weights of its runs are reduced.
Entries before all runs of live requests are final: they are counted by their distance, and forgotten.

Gaps of length zero have no entry, only a common count: a request with n tokens has n - 1 gaps, so those of its gaps
that are not found in an entry were zero. (That also settles which of several passes ending at one instant held the
last token of a run: they differ by zero gaps only.)
"""
cimport cython
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove

import numpy as np

from .gap_weights import merged

cdef enum:
    ANCHOR = -1
    NO_INTERRUPTION = -1
    NOT_LIVE = -2
    FIRST_ENTRIES = 64        # room of a rank at first


@cython.final
cdef class GapPool:
    def __cinit__(self, int32_t num_ranks):
        if num_ranks < 1:
            raise ValueError(f"a gap pool needs at least one rank, got {num_ranks}")
        self.num_ranks = num_ranks
        self._free_interruption = -1
        self._settled = GapWeights()
        self._ranks = <RankGaps*>calloc(num_ranks, sizeof(RankGaps))
        if self._ranks is NULL:
            raise MemoryError(f"gap columns of {num_ranks} ranks")

    def __dealloc__(self):
        cdef int32_t rank
        if self._ranks is not NULL:
            for rank in range(self.num_ranks):
                free(self._ranks[rank].end_ms)
                free(self._ranks[rank].weight)
                free(self._ranks[rank].begun)
        free(self._ranks)
        free(self._live)
        free(self._interruptions)

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
            self._append(gaps, previous_end_ms, ANCHOR)
        elif gaps.end_ms[gaps.count - 1] != previous_end_ms:
            return _contradiction(b"the previous pass of a rank lies before one already counted", -1, end_ms)
        return self._append(gaps, end_ms, <int32_t>weight)

    cdef int count_run(self, int32_t rank, const double* ends_ms, Py_ssize_t num_passes, double previous_end_ms,
                       int64_t weight) except -1 nogil:
        """Passes that ended one after another, each `weight` (> 0) times as `count_pass`."""
        cdef RankGaps* gaps = &self._ranks[rank]
        cdef Py_ssize_t i
        self.count_pass(rank, ends_ms[0], previous_end_ms, weight, 0)
        for i in range(1, num_passes):
            if gaps.count == gaps.capacity or not ends_ms[i] > ends_ms[i - 1]:
                self.count_pass(rank, ends_ms[i], ends_ms[i - 1], weight, 0)
                continue
            gaps.end_ms[gaps.count] = ends_ms[i]
            gaps.weight[gaps.count] = <int32_t>weight
            gaps.count += 1
        return 0

    cdef int reserve(self, Py_ssize_t num_requests) except -1 nogil:
        """Make room for so many requests."""
        cdef Py_ssize_t i
        if num_requests > self._live_capacity:
            self._live = <LiveRun*>_resized(self._live, num_requests, sizeof(LiveRun))
            for i in range(self._live_capacity, num_requests):
                self._live[i].interruption = NOT_LIVE
            self._live_capacity = num_requests
        return 0

    cdef int begin(self, Py_ssize_t request, int32_t rank) except -1 nogil:
        """First token of `request`, in the pass of `rank` that was counted last."""
        cdef RankGaps* gaps = &self._ranks[rank]
        if request >= self._live_capacity:
            self.reserve(max(request + 1, max(1024, self._live_capacity + self._live_capacity // 2)))
        if self._is_live(request):
            return _contradiction(b"a request has a second first token", request, 0.0)
        if gaps.begun_end == gaps.begun_capacity:
            self._first_needed(gaps)
            if gaps.begun_end - gaps.begun_first >= gaps.begun_capacity - gaps.begun_capacity // 2:
                gaps.begun_capacity = max(64, gaps.begun_capacity * 2)
                gaps.begun = <int32_t*>_resized(gaps.begun, gaps.begun_capacity, sizeof(int32_t))
            gaps.begun_end -= gaps.begun_first
            memmove(gaps.begun, &gaps.begun[gaps.begun_first], gaps.begun_end * sizeof(int32_t))
            gaps.begun_first = 0
        gaps.begun[gaps.begun_end] = <int32_t>request
        gaps.begun_end += 1
        self._live[request].run_first = gaps.base + <uint32_t>gaps.count
        self._live[request].interruption = NO_INTERRUPTION
        return 0

    cdef int resume(self, Py_ssize_t request, int32_t rank, double time_ms, double previous_ms) except -1 nogil:
        """A token whose predecessor, at `previous_ms`, was not in the previous pass: close that run, begin another."""
        cdef RankGaps* gaps = &self._ranks[rank]
        cdef Interruption* interruption
        cdef int32_t index
        if not self._is_live(request):
            return _contradiction(b"a request resumes before its first token", request, time_ms)
        index = self._new_interruption()
        interruption = &self._interruptions[index]
        interruption.gap_ms = max(0.0, time_ms - previous_ms)
        interruption.run_first = self._live[request].run_first
        interruption.run_end = gaps.base + <uint32_t>_count_until(gaps, previous_ms)
        interruption.next = self._live[request].interruption
        self._live[request].interruption = index
        self._live[request].run_first = gaps.base + <uint32_t>gaps.count
        return 0

    cdef int settle(self, Py_ssize_t request) except -1 nogil:
        """`request` completed: its gaps across interruptions join the pool; its runs need no memory any more."""
        cdef int32_t index
        if not self._is_live(request):
            return 0  # it never had a token
        index = self._live[request].interruption
        while index >= 0:
            if self._interruptions[index].gap_ms > 0.0:
                self._settled.add(self._interruptions[index].gap_ms, 1)
            else:
                self._num_zero_gaps += 1
            index = self._free(index)
        self._live[request].interruption = NOT_LIVE
        return 0

    cdef int take_back(self, Py_ssize_t request, int32_t rank, int64_t num_tokens, double last_token_ms) except -1 nogil:
        """`request` did not complete: remove what its `num_tokens` tokens have added to the pool."""
        cdef RankGaps* gaps = &self._ranks[rank]
        cdef Interruption* interruption
        cdef int64_t num_found
        cdef int32_t index
        if num_tokens == 0:
            return 0
        if not self._is_live(request):
            return _contradiction(b"a request has tokens but no first one", request, last_token_ms)
        num_found = _reduce(
            gaps, _index_of(gaps, self._live[request].run_first), _count_until(gaps, last_token_ms), request
        )
        index = self._live[request].interruption
        while index >= 0:
            interruption = &self._interruptions[index]
            # One more for the gap across the interruption, which never joined the pool.
            num_found += 1 + _reduce(
                gaps, _index_of(gaps, interruption.run_first), _index_of(gaps, interruption.run_end), request
            )
            index = self._free(index)
        self._live[request].interruption = NOT_LIVE
        if num_found > num_tokens - 1 or num_tokens - 1 - num_found > self._num_zero_gaps:
            return _contradiction(b"a request has another number of tokens than its passes counted", request,
                                  last_token_ms)
        self._num_zero_gaps -= num_tokens - 1 - num_found
        return 0

    cdef bint _is_live(self, Py_ssize_t request) noexcept nogil:
        """Whether it has had its first token, and not ended."""
        return request < self._live_capacity and self._live[request].interruption != NOT_LIVE

    cdef Py_ssize_t _first_needed(self, RankGaps* gaps) noexcept nogil:
        """Index of the first entry that a live request of the rank may be taken out of; `count` if there is none."""
        cdef LiveRun* run
        cdef uint32_t first
        cdef int32_t index
        while gaps.begun_first < gaps.begun_end and not self._is_live(gaps.begun[gaps.begun_first]):
            gaps.begun_first += 1
        if gaps.begun_first == gaps.begun_end:
            return gaps.count
        run = &self._live[gaps.begun[gaps.begun_first]]
        first = run.run_first
        index = run.interruption
        while index >= 0:
            first = self._interruptions[index].run_first
            index = self._interruptions[index].next
        return _index_of(gaps, first)

    cdef int _settle_rank(self, RankGaps* gaps) except -1 nogil:
        """Count entries by their distance where nothing can change any more, and forget them but for the last."""
        cdef Py_ssize_t end = self._first_needed(gaps)
        cdef Py_ssize_t i
        for i in range(1, end):
            if gaps.weight[i] > 0:
                self._settled.add(gaps.end_ms[i] - gaps.end_ms[i - 1], gaps.weight[i])
        if end > 1:
            # The last of them is where the next gap begins.
            gaps.count -= end - 1
            gaps.base += <uint32_t>(end - 1)
            memmove(gaps.end_ms, &gaps.end_ms[end - 1], gaps.count * sizeof(double))
            memmove(gaps.weight, &gaps.weight[end - 1], gaps.count * sizeof(int32_t))
            gaps.weight[0] = ANCHOR
        return 0

    cdef int _append(self, RankGaps* gaps, double end_ms, int32_t weight) except -1 nogil:
        if gaps.count == gaps.capacity:
            self._settle_rank(gaps)
            if gaps.count >= gaps.capacity - gaps.capacity // 2:
                gaps.capacity = max(FIRST_ENTRIES, gaps.capacity * 2)
                gaps.end_ms = <double*>_resized(gaps.end_ms, gaps.capacity, sizeof(double))
                gaps.weight = <int32_t*>_resized(gaps.weight, gaps.capacity, sizeof(int32_t))
        gaps.end_ms[gaps.count] = end_ms
        gaps.weight[gaps.count] = weight
        gaps.count += 1
        return 0

    cdef int32_t _new_interruption(self) except -1 nogil:
        cdef int32_t index = self._free_interruption
        cdef int32_t capacity
        if index >= 0:
            self._free_interruption = self._interruptions[index].next
            return index
        if self._num_interruptions == self._interruption_capacity:
            capacity = max(256, self._interruption_capacity * 2)
            self._interruptions = <Interruption*>_resized(self._interruptions, capacity, sizeof(Interruption))
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
        cdef Py_ssize_t at = 0
        for i in range(self.num_ranks):
            at += max(0, self._ranks[i].count - 1)  # entry 0 is an anchor
        values, weights = self._settled.arrays(1 + at)
        at = len(values) - 1 - at
        values[at], weights[at] = 0.0, self._num_zero_gaps
        at += 1
        for i in range(self.num_ranks):
            rank = &self._ranks[i]
            if rank.count < 2:
                continue
            end = at + rank.count - 1
            values[at:end] = np.diff(np.asarray(<double[:rank.count]>rank.end_ms))
            weights[at:end] = np.maximum(np.asarray(<int32_t[:rank.count]>rank.weight)[1:], 0)  # anchors count none
            at = end
        columns = [values, weights]
        del values, weights
        return merged(columns)


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


cdef Py_ssize_t _index_of(const RankGaps* gaps, uint32_t number) noexcept nogil:
    """Where an entry that is kept stands."""
    return <Py_ssize_t>(number - gaps.base)


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


cdef void* _resized(void* memory, Py_ssize_t n, size_t size) except NULL nogil:
    """Room for `n` entries; what there was stays where the caller has it if there is none."""
    cdef void* grown = realloc(memory, n * size)
    if grown is NULL:
        with gil:
            raise MemoryError(f"{n} gap entries")
    return grown
