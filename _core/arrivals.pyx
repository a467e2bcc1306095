"""Rows of a trace that are not due yet, the next one first: a heap by (time, order, turn).

Decides nothing: who is placed where, and when, is the fleet's.
"""
cimport cython
from libc.math cimport INFINITY
from libc.stdlib cimport free, realloc


cdef inline bint _before(Arrival* a, Arrival* b) noexcept nogil:
    if a.due_ms != b.due_ms:
        return a.due_ms < b.due_ms
    if a.order != b.order:
        return a.order < b.order
    return a.turn < b.turn


@cython.final
cdef class Arrivals:
    def __dealloc__(self):
        cdef int64_t i
        for i in range(self.count):
            free(self.heap[i].hash_ids)
        free(self.heap)

    def __len__(self):
        return self.count

    cdef double next_due(self) noexcept nogil:
        """When the next row arrives [ms]; INFINITY when none is known."""
        return self.heap[0].due_ms if self.count > 0 else INFINITY

    cdef int push(self, Arrival* arrival) except -1 nogil:
        cdef Arrival* grown
        cdef int64_t at, parent
        if self.count == self.capacity:
            grown = <Arrival*>realloc(self.heap, (self.capacity * 2 + 64) * sizeof(Arrival))
            if grown is NULL:
                free(arrival.hash_ids)
                with gil:
                    raise MemoryError("arrivals")
            self.heap = grown
            self.capacity = self.capacity * 2 + 64
        at = self.count
        self.count += 1
        while at > 0:
            parent = (at - 1) // 2
            if not _before(arrival, &self.heap[parent]):
                break
            self.heap[at] = self.heap[parent]
            at = parent
        self.heap[at] = arrival[0]
        return 0

    cdef int pop(self, Arrival* arrival) noexcept nogil:
        cdef Arrival last
        cdef int64_t at = 0
        cdef int64_t child
        arrival[0] = self.heap[0]
        self.count -= 1
        last = self.heap[self.count]
        while True:
            child = 2 * at + 1
            if child >= self.count:
                break
            if child + 1 < self.count and _before(&self.heap[child + 1], &self.heap[child]):
                child += 1
            if not _before(&self.heap[child], &last):
                break
            self.heap[at] = self.heap[child]
            at = child
        if self.count > 0:
            self.heap[at] = last
        return 0
