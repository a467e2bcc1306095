# How a request is called in a log, as ready JSON text (see request_names.pyx).
from libc.stdint cimport int32_t, int64_t


cdef class RequestNames:
    """Escaped names in one arena; a row without one is called r<row>."""
    cdef char* arena             # (arena_capacity,), owned; quoted names one after another
    cdef int64_t* offsets        # (row_capacity + 1,), owned; name of row i is arena[offsets[i]:offsets[i + 1]], empty = none
    cdef Py_ssize_t num_rows     # rows registered; beyond them every row is called r<row>
    cdef Py_ssize_t row_capacity
    cdef Py_ssize_t arena_capacity
    cdef Py_ssize_t longest      # room that any name needs at most [bytes]

    cdef char* write(self, int32_t request, char* out) noexcept nogil
    cdef bint has(self, int32_t request) noexcept nogil
    cdef int _reserve(self, Py_ssize_t rows, Py_ssize_t arena) except -1
