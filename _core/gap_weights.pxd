# How often each distance between tokens occurs: what came last in a small table, the rest in a list that is folded.
from libc.stdint cimport int64_t


cdef struct Weighted:
    double gap_ms
    int64_t weight            # 0 = an empty place


cdef class GapWeights:
    cdef Weighted* _recent    # (RECENT,), owned: by the bits of the distance; what is displaced joins the list
    cdef Weighted* _listed    # (_capacity,), owned: the first _count are valid; a distance may stand there again and again
    cdef Py_ssize_t _count
    cdef Py_ssize_t _capacity

    cdef int add(self, double gap_ms, int64_t weight) except -1 nogil
    cdef int _append(self, Weighted entry) except -1 nogil
    cdef bint _repeats(self) except -1
    cdef int _fold(self) except -1
    cdef int _resize(self, Py_ssize_t capacity) except -1
