# Clients that will go away: when, and of which request.
from libc.stdint cimport int32_t, int64_t


cdef struct Leaving:
    double due_ms                # the client's patience ends [ms]
    int64_t order                # at one instant: as of arrivals
    int64_t turn
    int64_t command_id           # of its submission
    int32_t request
    int32_t worker
    int32_t rank
    int64_t slot                 # where its heap place stands in `places`


cdef class Cancellations:
    cdef Leaving* heap                   # (capacity,) binary min-heap by (due_ms, order, turn), owned
    cdef int64_t count
    cdef int64_t capacity
    cdef int32_t* places                 # (mask + 1,) open hash of requests to heap places, -1 = free, owned
    cdef int64_t mask

    cdef int add(self, Leaving* leaving) except -1 nogil
    cdef int pop(self, Leaving* leaving) noexcept nogil
    cdef bint drop(self, int32_t request) noexcept nogil
    cdef double next_due(self) noexcept nogil
    cdef int _grow(self) except -1 nogil
    cdef void _put(self, int64_t at, Leaving* leaving) noexcept nogil
    cdef int64_t _find(self, int32_t request) noexcept nogil
    cdef void _forget(self, int64_t slot) noexcept nogil
    cdef void _remove(self, int64_t at) noexcept nogil
    cdef void _settle(self, int64_t at, Leaving* leaving) noexcept nogil
