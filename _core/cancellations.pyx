"""Clients that will go away: who leaves next, and whose request ended before.

A heap by (time, order, turn) with the place of each request beside it, so that the end of a request takes its entry
out at once: memory follows the requests that live. Decides nothing: what a cancellation does is the fleet's.
"""
cimport cython
from libc.math cimport INFINITY
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc, realloc


cdef inline bint _before(Leaving* a, Leaving* b) noexcept nogil:
    if a.due_ms != b.due_ms:
        return a.due_ms < b.due_ms
    if a.order != b.order:
        return a.order < b.order
    return a.turn < b.turn


@cython.final
cdef class Cancellations:
    def __dealloc__(self):
        free(self.heap)
        free(self.places)

    def __len__(self):
        return self.count

    cdef double next_due(self) noexcept nogil:
        """When the next client leaves [ms]; INFINITY when none will."""
        return self.heap[0].due_ms if self.count > 0 else INFINITY

    cdef int add(self, Leaving* leaving) except -1 nogil:
        """Note a client; its request is not noted yet."""
        cdef Leaving added = leaving[0]
        if self.count == self.capacity:
            self._grow()
        added.slot = self._find(added.request)
        self.count += 1
        self._settle(self.count - 1, &added)
        return 0

    cdef int pop(self, Leaving* leaving) noexcept nogil:
        """Take the client out that leaves next; there is one."""
        leaving[0] = self.heap[0]
        self._remove(0)
        return 0

    cdef bint drop(self, int32_t request) noexcept nogil:
        """The request ended; whether it was noted."""
        cdef int64_t slot
        if self.count == 0:
            return False
        slot = self._find(request)
        if self.places[slot] < 0:
            return False
        self._remove(self.places[slot])
        return True

    cdef int _grow(self) except -1 nogil:
        cdef int64_t capacity = max(64, self.capacity * 2)
        cdef int64_t i
        cdef Leaving* heap = <Leaving*>realloc(self.heap, capacity * sizeof(Leaving))
        cdef int32_t* places = <int32_t*>malloc(capacity * 2 * sizeof(int32_t))
        if heap is not NULL:
            self.heap = heap
        if heap is NULL or places is NULL:
            free(places)
            with gil:
                raise MemoryError(f"{capacity} cancellations")
        free(self.places)
        self.places = places
        self.capacity = capacity
        self.mask = capacity * 2 - 1
        for i in range(self.mask + 1):
            places[i] = -1
        for i in range(self.count):
            self.heap[i].slot = self._find(self.heap[i].request)
            places[self.heap[i].slot] = <int32_t>i
        return 0

    # -- the hash: at most half full, open addressing ---------------------------------------------

    cdef int64_t _find(self, int32_t request) noexcept nogil:
        """Where the place of a request stands, or would stand."""
        cdef int64_t slot = (<uint32_t>request * <uint32_t>2654435769) & self.mask
        while self.places[slot] >= 0 and self.heap[self.places[slot]].request != request:
            slot = (slot + 1) & self.mask
        return slot

    cdef void _forget(self, int64_t slot) noexcept nogil:
        """Free an entry; those behind it that could not stand nearer to their own place move up."""
        cdef int64_t at = slot
        cdef int64_t home
        while True:
            at = (at + 1) & self.mask
            if self.places[at] < 0:
                break
            home = (<uint32_t>self.heap[self.places[at]].request * <uint32_t>2654435769) & self.mask
            if ((at - home) & self.mask) >= ((at - slot) & self.mask):
                self.places[slot] = self.places[at]
                self.heap[self.places[slot]].slot = slot
                slot = at
        self.places[slot] = -1

    # -- the heap ---------------------------------------------------------------------------------

    cdef void _remove(self, int64_t at) noexcept nogil:
        cdef Leaving last
        self._forget(self.heap[at].slot)
        self.count -= 1
        if at < self.count:
            last = self.heap[self.count]
            self._settle(at, &last)

    cdef void _put(self, int64_t at, Leaving* leaving) noexcept nogil:
        self.heap[at] = leaving[0]
        self.places[leaving.slot] = <int32_t>at

    cdef void _settle(self, int64_t at, Leaving* leaving) noexcept nogil:
        """Put an entry where it belongs; the place `at` is free for it."""
        cdef int64_t other
        while at > 0 and _before(leaving, &self.heap[(at - 1) // 2]):
            other = (at - 1) // 2
            self._put(at, &self.heap[other])
            at = other
        while True:
            other = 2 * at + 1
            if other >= self.count:
                break
            if other + 1 < self.count and _before(&self.heap[other + 1], &self.heap[other]):
                other += 1
            if not _before(&self.heap[other], leaving):
                break
            self._put(at, &self.heap[other])
            at = other
        self._put(at, leaving)
