"""Requests that ended and whose workload has not heard of it, in the order in which they ended.

Decides nothing: the fleet says who ended, the workload what follows from it.
"""
cimport cython
from libc.stdlib cimport free, realloc


@cython.final
cdef class Ends:
    def __dealloc__(self):
        free(self.items)

    def __len__(self):
        return self.count

    cdef int note(self, int32_t request, int64_t num_tokens) except -1 nogil:
        cdef End* grown
        if self.count == self.capacity:
            grown = <End*>realloc(self.items, (self.capacity * 2 + 64) * sizeof(End))
            if grown is NULL:
                with gil:
                    raise MemoryError("ended requests")
            self.items = grown
            self.capacity = self.capacity * 2 + 64
        self.items[self.count].request, self.items[self.count].num_tokens = request, num_tokens
        self.count += 1
        return 0

    def take(self):
        """(request, tokens of its output or -1) of each, which are forgotten then."""
        cdef int64_t i
        taken = [(self.items[i].request, self.items[i].num_tokens) for i in range(self.count)]
        self.count = 0
        return taken
