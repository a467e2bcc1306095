"""Rows of a trace that are not due yet, the next one first: a heap by (time, order, turn).

Decides nothing: who is placed where, and when, is the fleet's. A row that is withdrawn stays in the heap until it is
the next one, and is then forgotten, so that withdrawing many costs no search.
"""
cimport cython
from libc.math cimport INFINITY
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from typing import NamedTuple


class Handed(NamedTuple):
    """A row handed to the caller's own lanes. `cancel_due_ms`: when its client leaves, inf if it stays; `arrival_ms`: when
    it arrived; `deadline_ms`: when its answer is wanted, inf if nobody said."""

    request: int             # trace row ordinal
    worker: int
    rank: int
    input_tokens: int
    output_tokens: int
    hash_ids: tuple
    due_ms: float
    cancel_due_ms: float
    priority: int
    arrival_ms: float
    deadline_ms: float


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

    cdef int push_columns(self, double[::1] due_ms, int32_t[::1] request, int64_t[::1] order, int64_t[::1] turn,
                          int64_t[::1] session, int64_t[::1] input_tokens, int64_t[::1] output_tokens,
                          int64_t[::1] hash_offsets, uint64_t[::1] hash_ids, double[::1] cancel_after_ms,
                          int64_t[::1] priority, double[::1] deadline_after_ms, int64_t[::1] play) except -1:
        """Rows in columns, as Fleet.push_rows explains them; nothing is pushed when they do not fit each other."""
        cdef Py_ssize_t i
        cdef Py_ssize_t n = due_ms.shape[0]
        cdef Arrival arrival
        if not (n == request.shape[0] == order.shape[0] == turn.shape[0] == session.shape[0] == input_tokens.shape[0]
                == output_tokens.shape[0] == hash_offsets.shape[0] - 1 and 0 <= hash_offsets[0]
                and hash_offsets[n] <= hash_ids.shape[0]
                and (cancel_after_ms is None or n == cancel_after_ms.shape[0])
                and (priority is None or n == priority.shape[0])
                and (deadline_after_ms is None or n == deadline_after_ms.shape[0]) and (play is None or n == play.shape[0])):
            raise ValueError(f"columns of rows do not fit each other: {n} times, {hash_offsets.shape[0]} offsets, "
                             f"{hash_ids.shape[0]} hash ids")
        for i in range(n):
            if not 0.0 <= due_ms[i] < INFINITY or hash_offsets[i] > hash_offsets[i + 1]:
                raise ValueError(f"row {request[i]}: due at {due_ms[i]} ms, hash ids from {hash_offsets[i]} "
                                 f"to {hash_offsets[i + 1]}")
            if cancel_after_ms is not None and not cancel_after_ms[i] >= 0.0:
                raise ValueError(f"row {request[i]}: its client leaves after {cancel_after_ms[i]} ms")
            if deadline_after_ms is not None and not deadline_after_ms[i] >= 0.0:
                raise ValueError(f"row {request[i]}: its answer is wanted after {deadline_after_ms[i]} ms")
        for i in range(n):
            arrival.due_ms, arrival.order, arrival.turn = due_ms[i], order[i], turn[i]
            arrival.n_in, arrival.n_out = input_tokens[i], output_tokens[i]
            arrival.session, arrival.request = session[i], request[i]
            arrival.cancel_after_ms = INFINITY if cancel_after_ms is None else cancel_after_ms[i]
            arrival.priority = 0 if priority is None else priority[i]
            arrival.deadline_after_ms = INFINITY if deadline_after_ms is None else deadline_after_ms[i]
            arrival.play = -1 if play is None else <int32_t>play[i]
            arrival.num_hash_ids = hash_offsets[i + 1] - hash_offsets[i]
            arrival.hash_ids = NULL
            if arrival.num_hash_ids > 0:
                arrival.hash_ids = <uint64_t*>malloc(arrival.num_hash_ids * sizeof(uint64_t))
                if arrival.hash_ids is NULL:
                    raise MemoryError("hash ids of a row")
                memcpy(arrival.hash_ids, &hash_ids[hash_offsets[i]], arrival.num_hash_ids * sizeof(uint64_t))
            self.push(&arrival)
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
