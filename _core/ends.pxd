# Requests that ended and whose workload has not heard of it.
from libc.stdint cimport int32_t, int64_t


cdef struct End:
    int64_t num_tokens           # of its output; -1: it did not complete
    int32_t request


cdef class Ends:
    cdef End* items                      # (capacity,), the first `count` are valid, owned
    cdef int64_t count
    cdef int64_t capacity

    cdef int note(self, int32_t request, int64_t num_tokens) except -1 nogil
