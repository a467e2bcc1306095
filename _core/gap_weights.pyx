"""How often each distance between tokens occurs, one entry for each distinct distance.

Decides how the table is kept. Never decides which distances belong to it: gap_pool does.
"""
cimport cython
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

import numpy as np


@cython.final
cdef class GapWeights:
    def __cinit__(self):
        self._mask = -1

    def __dealloc__(self):
        free(self._places)

    cdef int add(self, double gap_ms, int64_t weight) except -1 nogil:
        """`weight` (> 0) more of the distance `gap_ms` (> 0)."""
        cdef Py_ssize_t at
        if 2 * self._count > self._mask:
            self._grow()
        at = _place_of(self._places, self._mask, gap_ms)
        if self._places[at].weight == 0:
            self._places[at].gap_ms = gap_ms
            self._count += 1
        self._places[at].weight += weight
        return 0

    cdef int _grow(self) except -1 nogil:
        cdef Py_ssize_t mask = max(63, 2 * self._mask + 1)
        cdef Weighted* places = <Weighted*>calloc(mask + 1, sizeof(Weighted))
        cdef Py_ssize_t i
        if places is NULL:
            with gil:
                raise MemoryError(f"{mask + 1} gaps")
        for i in range(self._mask + 1):
            if self._places[i].weight != 0:
                places[_place_of(places, mask, self._places[i].gap_ms)] = self._places[i]
        free(self._places)
        self._places = places
        self._mask = mask
        return 0

    def arrays(self):
        """(values, weights) in no order: distinct distances [ms] float64, occurrences int64 (> 0)."""
        values = np.empty(self._count, np.float64)
        weights = np.empty(self._count, np.int64)
        cdef double[::1] value = values
        cdef int64_t[::1] weight = weights
        cdef Py_ssize_t i
        cdef Py_ssize_t at = 0
        for i in range(self._mask + 1):
            if self._places[i].weight != 0:
                value[at] = self._places[i].gap_ms
                weight[at] = self._places[i].weight
                at += 1
        return values, weights


cdef Py_ssize_t _place_of(const Weighted* places, Py_ssize_t mask, double gap_ms) noexcept nogil:
    """Where the distance is, or the empty place where it belongs."""
    cdef uint64_t bits
    cdef Py_ssize_t at
    memcpy(&bits, &gap_ms, sizeof(bits))
    bits ^= bits >> 32  # round figures have no low bits
    at = <Py_ssize_t>((bits * <uint64_t>0x9E3779B97F4A7C15) >> 32) & mask
    while places[at].weight != 0 and places[at].gap_ms != gap_ms:
        at = (at + 1) & mask
    return at
