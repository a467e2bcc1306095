"""Rows of a trace that are not due yet, the next one first: a heap by (time, order, turn).

Decides nothing: who is placed where, and when, is the fleet's. A row that is withdrawn stays in the heap until it is
the next one, and is then forgotten, so that withdrawing many costs no search.
"""
cimport cython
from libc.math cimport INFINITY
from libc.stdlib cimport free, realloc
from libc.string cimport memset


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
        free(self.withdrawn)

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

    cdef int withdraw(self, int32_t request) except -1 nogil:
        """A row that was handed over is not to arrive."""
        cdef uint8_t* grown
        cdef int64_t capacity
        if request < 0:
            with gil:
                raise ValueError(f"no row {request}")
        if request >= self.withdrawn_capacity:
            capacity = request + request // 2 + 64
            grown = <uint8_t*>realloc(self.withdrawn, capacity)
            if grown is NULL:
                with gil:
                    raise MemoryError("withdrawn rows")
            memset(grown + self.withdrawn_capacity, 0, capacity - self.withdrawn_capacity)
            self.withdrawn = grown
            self.withdrawn_capacity = capacity
        self.withdrawn[request] = 1
        self.drop_withdrawn()
        return 0

    cdef void drop_withdrawn(self) noexcept nogil:
        """The next row is one that arrives."""
        cdef Arrival gone
        while self.count > 0 and self.heap[0].request < self.withdrawn_capacity and self.withdrawn[self.heap[0].request]:
            self.take_first(&gone)
            free(gone.hash_ids)

    cdef int pop(self, Arrival* arrival) noexcept nogil:
        self.take_first(arrival)
        if self.withdrawn is not NULL:
            self.drop_withdrawn()
        return 0

    cdef void take_first(self, Arrival* arrival) noexcept nogil:
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
