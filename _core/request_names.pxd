# How a request is called in a log, as ready JSON text (see request_names.pyx).
from libc.stdint cimport int32_t, int64_t


cdef class RequestNames:
    """Escaped names in one arena; a row without one is called r<row>."""
    cdef char* arena             # (arena_capacity,), owned; quoted names one after another
    cdef int64_t* starts         # (row_capacity,), owned; where the name of a row begins in the arena
    cdef int64_t* sizes          # (row_capacity,), owned; its bytes, 0 = none
    cdef Py_ssize_t num_rows     # rows known; beyond them every row is called r<row>
    cdef Py_ssize_t row_capacity
    cdef Py_ssize_t arena_used
    cdef Py_ssize_t arena_capacity
    cdef Py_ssize_t longest      # room that any name needs at most [bytes]

    cdef char* write(self, int32_t request, char* out) noexcept nogil
    cdef bint has(self, int32_t request) noexcept nogil
    cdef int _reserve(self, Py_ssize_t rows, Py_ssize_t num_bytes) except -1
