"""Transfers of prompts under way, by the time they end; those that end at one time by the caller's numbers.

Decides the order alone: how long a transfer takes is the coordinator's matter, what follows from its end the caller's.
"""
cimport cython
from libc.math cimport INFINITY
from libc.stdlib cimport free, realloc


cdef inline bint _before(Transfer* a, Transfer* b) noexcept nogil:
    return a.end_ms < b.end_ms or (a.end_ms == b.end_ms and a.number < b.number)


@cython.final
cdef class Transfers:
    def __dealloc__(self):
        free(self.heap)

    cdef int add(self, double end_ms, int64_t number, int64_t request) except -1 nogil:
        cdef Transfer transfer
        cdef Transfer* grown
        cdef int64_t hole = self.count
        cdef int64_t above
        if self.count == self.capacity:
            grown = <Transfer*>realloc(self.heap, (self.capacity * 2 + 16) * sizeof(Transfer))
            if grown is NULL:
                with gil:
                    raise MemoryError("transfers")
            self.heap = grown
            self.capacity = self.capacity * 2 + 16
        transfer.end_ms, transfer.number, transfer.request = end_ms, number, request
        self.count += 1
        while hole > 0:
            above = (hole - 1) // 2
            if not _before(&transfer, &self.heap[above]):
                break
            self.heap[hole] = self.heap[above]
            hole = above
        self.heap[hole] = transfer
        return 0

    cdef double next_due(self) noexcept nogil:
        """When the next transfer ends [ms]; INFINITY when none is under way."""
        return self.heap[0].end_ms if self.count > 0 else INFINITY

    cdef int pop(self, Transfer* ended) noexcept nogil:
        """Take the next one out; there must be one."""
        cdef Transfer last
        cdef int64_t hole = 0
        cdef int64_t below
        ended[0] = self.heap[0]
        self.count -= 1
        last = self.heap[self.count]
        while True:
            below = 2 * hole + 1
            if below >= self.count:
                break
            if below + 1 < self.count and _before(&self.heap[below + 1], &self.heap[below]):
                below += 1
            if not _before(&self.heap[below], &last):
                break
            self.heap[hole] = self.heap[below]
            hole = below
        self.heap[hole] = last
        return 0
