# Distances between consecutive tokens, pooled over completed requests (see docs/metrics.md).
from libc.stdint cimport int32_t, int64_t, uint32_t

from .gap_weights cimport GapWeights


cdef struct RankGaps:
    # Pass ends of one rank at which gaps were counted, as far back as a live request may still be taken out of them.
    # Entry i stands for a gap of end_ms[i] - end_ms[i-1], weight[i] times; weight -1 marks an anchor (a pass end that
    # only begins the next gap). Entries are numbered from the start of the run, modulo 2**32; the first here is `base`.
    double* end_ms            # (capacity,), strictly increasing, the first `count` are valid
    int32_t* weight           # (capacity,)
    Py_ssize_t count
    Py_ssize_t capacity
    uint32_t base
    int32_t* begun            # (begun_capacity,): requests in the order of their first tokens, those that ended too
    Py_ssize_t begun_first    # the first of them that may be live
    Py_ssize_t begun_end
    Py_ssize_t begun_capacity


cdef struct Interruption:
    # One break in the emissions of a live request: the run before it, and the gap across it.
    double gap_ms
    uint32_t run_first        # numbers of the entries [run_first, run_end) of the rank's RankGaps hold the run's gaps
    uint32_t run_end
    int32_t next              # older interruption of the same request, or the next free one; -1 ends


cdef struct LiveRun:
    # What is remembered of a request until it ends.
    uint32_t run_first        # number of the first entry of its current uninterrupted run
    int32_t interruption      # newest Interruption, -1 none; -2 the request is not live


cdef class GapPool:
    cdef readonly int32_t num_ranks
    cdef RankGaps* _ranks                   # (num_ranks,), owned
    cdef GapWeights _settled                # gaps that no live request can be taken out of any more
    cdef LiveRun* _live                     # (live_capacity,), by request ordinal, owned
    cdef Py_ssize_t _live_capacity
    cdef Interruption* _interruptions       # arena, owned
    cdef int32_t _num_interruptions
    cdef int32_t _interruption_capacity
    cdef int32_t _free_interruption         # head of the free list, -1 empty
    cdef int64_t _num_zero_gaps

    # `rank` is a scheduler number: worker * dp_size + dp rank.
    cdef int count_pass(self, int32_t rank, double end_ms, double previous_end_ms, int64_t weight,
                        int64_t burst_tokens) except -1 nogil
    cdef int count_run(self, int32_t rank, const double* ends_ms, Py_ssize_t num_passes, double previous_end_ms,
                       int64_t weight) except -1 nogil
    cdef int reserve(self, Py_ssize_t num_requests) except -1 nogil
    cdef int begin(self, Py_ssize_t request, int32_t rank) except -1 nogil
    cdef int resume(self, Py_ssize_t request, int32_t rank, double time_ms, double previous_ms) except -1 nogil
    cdef int settle(self, Py_ssize_t request) except -1 nogil
    cdef int take_back(self, Py_ssize_t request, int32_t rank, int64_t num_tokens, double last_token_ms) except -1 nogil
    cdef bint _is_live(self, Py_ssize_t request) noexcept nogil
    cdef Py_ssize_t _first_needed(self, RankGaps* gaps) noexcept nogil
    cdef int _settle_rank(self, RankGaps* gaps) except -1 nogil
    cdef int _append(self, RankGaps* gaps, double end_ms, int32_t weight) except -1 nogil
    cdef int32_t _new_interruption(self) except -1 nogil
    cdef int32_t _free(self, int32_t index) noexcept nogil
