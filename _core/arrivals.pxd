# Rows of a trace that are not due yet.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t


cdef struct Arrival:
    double due_ms
    int64_t order                # at one instant: session order, then turn
    int64_t turn
    int64_t n_in
    int64_t n_out
    uint64_t* hash_ids           # owned by the heap until handed over
    int64_t num_hash_ids
    int64_t session              # reported with the arrival, -1 = none
    int64_t priority
    double deadline_after_ms     # when its answer is wanted, from its arrival on [ms]; INFINITY = nobody said
    double cancel_after_ms       # the client's patience from its arrival on [ms]; INFINITY = it stays
    int32_t request
    int32_t play                 # of a graph, reported with the arrival; -1 = none


cdef class Arrivals:
    cdef Arrival* heap                   # (capacity,) binary min-heap by (due_ms, order, turn), owned
    cdef int64_t count
    cdef int64_t capacity
    cdef uint8_t* withdrawn              # (withdrawn_capacity,) by request: 1 = never arrives, owned
    cdef int64_t withdrawn_capacity

    cdef double next_due(self) noexcept nogil
    cdef int push(self, Arrival* arrival) except -1 nogil
    cdef int push_columns(self, double[::1] due_ms, int32_t[::1] request, int64_t[::1] order, int64_t[::1] turn,
                          int64_t[::1] session, int64_t[::1] input_tokens, int64_t[::1] output_tokens,
                          int64_t[::1] hash_offsets, uint64_t[::1] hash_ids, double[::1] cancel_after_ms,
                          int64_t[::1] priority, double[::1] deadline_after_ms, int64_t[::1] play) except -1
    cdef int pop(self, Arrival* arrival) noexcept nogil
    cdef int withdraw(self, int32_t request) except -1 nogil
    cdef void drop_withdrawn(self) noexcept nogil
    cdef void take_first(self, Arrival* arrival) noexcept nogil
