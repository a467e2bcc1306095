# Transfers under way, by the time they end.
from libc.stdint cimport int64_t


cdef struct Transfer:
    double end_ms
    int64_t number               # at one time, the lowest ends first
    int64_t request


cdef class Transfers:
    cdef Transfer* heap                  # (capacity,) binary min-heap by (end_ms, number), owned
    cdef int64_t count
    cdef int64_t capacity

    cdef int add(self, double end_ms, int64_t number, int64_t request) except -1 nogil
    cdef double next_due(self) noexcept nogil
    cdef int pop(self, Transfer* ended) noexcept nogil
