# How often each distance between tokens occurs: one entry for each distinct distance.
from libc.stdint cimport int64_t


cdef struct Weighted:
    double gap_ms             # 0.0 = an empty place
    int64_t weight


cdef class GapWeights:
    cdef Weighted* _places    # (mask + 1,), owned: open addressing, at most half full
    cdef Py_ssize_t _mask     # -1 before the first distance
    cdef Py_ssize_t _count

    cdef int add(self, double gap_ms, int64_t weight) except -1 nogil
    cdef int _grow(self) except -1 nogil
