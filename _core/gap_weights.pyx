"""How often each distance between tokens occurs.

Decides how they are kept: a table of the last ones, as small as the nearest cache, adds up what repeats at once; what
it displaces is listed, and a long list is sorted and added up where that makes it shorter. So distances that never
repeat cost one entry of a list each, and a few that repeat for ever cost no memory. Never decides which distances belong
to it: gap_pool does.
"""
cimport cython
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

import numpy as np

cdef enum:
    RECENT = 1024                 # places, 16 KiB; a power of two
    LISTED_UNFOLDED = 1 << 18     # entries, 4 MiB: a list up to this length grows rather than being added up
    UNSORTED = 1 << 15            # a longer list is added up before it is copied, if that makes it shorter
    SAMPLED = RECENT // 64        # places of the table whose distances are a sample


@cython.final
cdef class GapWeights:
    def __cinit__(self):
        self._recent = <Weighted*>calloc(RECENT, sizeof(Weighted))
        if self._recent is NULL:
            raise MemoryError(f"{RECENT} gaps")

    def __dealloc__(self):
        free(self._recent)
        free(self._listed)

    cdef int add(self, double gap_ms, int64_t weight) except -1 nogil:
        """`weight` (> 0) more of the distance `gap_ms` (> 0)."""
        cdef Weighted* place = &self._recent[_place_of(gap_ms)]
        if place.gap_ms != gap_ms:
            if place.weight != 0:
                self._append(place[0])
            place.gap_ms = gap_ms
            place.weight = 0
        place.weight += weight
        return 0

    cdef int _append(self, Weighted entry) except -1 nogil:
        if self._count == self._capacity:
            with gil:
                if self._capacity >= LISTED_UNFOLDED and self._repeats():
                    self._fold()
                if 2 * self._count >= self._capacity:
                    self._resize(max(RECENT, 2 * self._capacity))
        self._listed[self._count] = entry
        self._count += 1
        return 0

    cdef bint _repeats(self) except -1:
        """Whether half of what is listed would fall away, by a sample: equal ones are in it all, or not at all."""
        cdef Py_ssize_t i
        sample = [self._listed[i].gap_ms for i in range(self._count) if _place_of(self._listed[i].gap_ms) < SAMPLED]
        return 2 * len(set(sample)) <= len(sample)

    cdef int _fold(self) except -1:
        """Add up what is listed, where it stands: the list is what memory a long run needs most."""
        cdef Py_ssize_t i
        cdef Py_ssize_t kept = 0
        # Complex numbers are pairs of doubles as well, and sort by the first; weights, read as doubles, are no NaN.
        np.asarray(<double complex[:self._count]><double complex*>self._listed).sort()
        for i in range(1, self._count):
            if self._listed[i].gap_ms == self._listed[kept].gap_ms:
                self._listed[kept].weight += self._listed[i].weight
            else:
                kept += 1
                self._listed[kept] = self._listed[i]
        self._count = kept + 1
        return 0

    cdef int _resize(self, Py_ssize_t capacity) except -1:
        cdef Weighted* listed = <Weighted*>realloc(self._listed, capacity * sizeof(Weighted))
        if listed is NULL:
            raise MemoryError(f"{capacity} gaps")
        self._listed = listed
        self._capacity = capacity
        return 0

    def arrays(self, Py_ssize_t num_more=0):
        """(values, weights) in no order: distances [ms] float64, occurrences int64 (> 0); one may stand several times.

        Behind them is room for `num_more` entries of the caller's.
        """
        cdef Py_ssize_t i
        cdef Py_ssize_t n
        if self._count > UNSORTED and self._repeats():
            self._fold()
            self._resize(self._count)
        n = self._count
        for i in range(RECENT):
            n += self._recent[i].weight != 0
        values, weights = np.empty(n + num_more), np.empty(n + num_more, np.int64)
        _fill(values, weights, 0, self._listed, self._count)
        _fill(values, weights, self._count, self._recent, RECENT)
        return values, weights

    # -- test door --------------------------------------------------------------------------------

    def put(self, const double[::1] gaps_ms not None, const int64_t[::1] weights not None):
        """Add distances one by one; how many entries there is room for in the list."""
        cdef Py_ssize_t i
        for i in range(min(gaps_ms.shape[0], weights.shape[0])):
            self.add(gaps_ms[i], weights[i])
        return self._capacity


def merged(columns):
    """Ascending distinct values and the sums of their weights, without weights of 0.

    Args:
        columns: [values, weights], emptied: each is freed as soon as it is in order.
    """
    weights, values = columns.pop(), columns.pop()
    order = np.argsort(values)
    values = values[order]
    weights = weights[order]
    del order
    is_first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:max(0, len(values) - 1)], out=is_first[1:])
    starts = np.flatnonzero(is_first)
    if len(starts) < len(values):
        values, weights = values[starts], np.add.reduceat(weights, starts)
    kept = weights > 0
    return (values, weights) if kept.all() else (values[kept], weights[kept])


cdef int _fill(object values, object weights, Py_ssize_t first, const Weighted* entries, Py_ssize_t n) except -1:
    """Write the two members of `n` entries, without the empty ones."""
    cdef double[::1] value = values
    cdef int64_t[::1] weight = weights
    cdef Py_ssize_t i
    for i in range(n):
        if entries[i].weight != 0:
            value[first] = entries[i].gap_ms
            weight[first] = entries[i].weight
            first += 1
    return 0


cdef Py_ssize_t _place_of(double gap_ms) noexcept nogil:
    """Where the distance belongs in the table."""
    cdef uint64_t bits
    memcpy(&bits, &gap_ms, sizeof(bits))
    bits ^= bits >> 32  # round figures have no low bits
    return <Py_ssize_t>((bits * <uint64_t>0x9E3779B97F4A7C15) >> 54)
