# Workers that look at host memory beside their own passes and copies, or must not look for now.
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t


cdef class Onlookers:
    cdef tuple machines                  # keeps them alive
    cdef PyObject** workers              # (num_workers,) borrowed Machine pointers, owned array
    cdef int32_t num_workers
    cdef bint any                        # somebody would look again
    cdef double told_ms                  # the last instant they were told of
    cdef bint told                       # somebody looks again since the caller asked
    cdef readonly int32_t held_worker    # does not look at its copies; -1 = none

    cdef int tell(self, double now_ms) noexcept nogil
    cdef int tell_once_more(self, double now_ms) noexcept nogil
    cdef int hold(self, int32_t worker) noexcept nogil
    cdef int let_go(self) noexcept nogil
