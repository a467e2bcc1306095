"""The book of handoffs of one rank: which request is a source or a destination, and who is next in line.

A handoff is known here by one number of the caller's. Destinations that wait for blocks stand in a strict line; its
head is tried at most once in a capacity generation, that is until something was given back. Decides that, and
nothing else: blocks, queues and records are the scheduler's (`sched_handoff`). Source: handoff specification, section 2.
"""
cimport cython
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc, realloc

from .types cimport NONE


cdef inline uint64_t _spread(int64_t handoff) noexcept nogil:
    return (<uint64_t>handoff * <uint64_t>0x9E3779B97F4A7C15) >> 20


@cython.final
cdef class HandoffBook:
    def __cinit__(self):
        self.free_entry = self.head = self.tail = NONE
        self.mask = -1

    def __dealloc__(self):
        free(self.entries)
        free(self.buckets)

    cdef int32_t find(self, int64_t handoff) noexcept nogil:
        """Entry of a handoff, or NONE."""
        return NONE if self.mask < 0 else self.buckets[self._bucket(handoff)]

    cdef int32_t add(self, int64_t handoff, int32_t slot, int32_t state) except -1 nogil:
        """Enter a handoff that is not in the book; a pending one goes to the end of the line."""
        cdef int32_t entry = self.free_entry
        if entry != NONE:
            self.free_entry = self.entries[entry].after
        else:
            if self.top == self.capacity:
                self._grow()
            entry = self.top
            self.top += 1
        self.entries[entry].handoff = handoff
        self.entries[entry].slot = slot
        self.entries[entry].state = OWN_NONE
        self.entries[entry].attempted = NONE
        self.buckets[self._bucket(handoff)] = entry
        self.num_owned += 1
        self.move(entry, state)
        return entry

    cdef void move(self, int32_t entry, int32_t state) noexcept nogil:
        """Give an entry another state, with its place in the line."""
        cdef Owned* owned = &self.entries[entry]
        if owned.state == OWN_PENDING:
            if owned.before == NONE:
                self.head = owned.after
            else:
                self.entries[owned.before].after = owned.after
            if owned.after == NONE:
                self.tail = owned.before
            else:
                self.entries[owned.after].before = owned.before
        self._count(owned.state, -1)
        owned.state = state
        self._count(state, 1)
        if state == OWN_PENDING:
            owned.before, owned.after = self.tail, NONE
            if self.tail == NONE:
                self.head = entry
            else:
                self.entries[self.tail].after = entry
            self.tail = entry

    cdef void _count(self, int32_t state, int64_t sign) noexcept nogil:
        if state == OWN_SOURCE_HELD:
            self.num_held += sign
        elif state == OWN_PENDING:
            self.num_pending += sign
        elif state == OWN_RESERVED:
            self.num_reserved += sign
        elif state == OWN_ACTIVE:
            self.num_active += sign

    cdef void remove(self, int32_t entry) noexcept nogil:
        """Ownership ends."""
        cdef int64_t hole = self._bucket(self.entries[entry].handoff)
        cdef int64_t at = hole
        cdef int64_t home
        cdef int32_t other
        self.move(entry, OWN_NONE)
        self.entries[entry].after = self.free_entry
        self.free_entry = entry
        self.num_owned -= 1
        self.buckets[hole] = NONE
        while True:
            at = (at + 1) & self.mask
            other = self.buckets[at]
            if other == NONE:
                return
            home = <int64_t>(_spread(self.entries[other].handoff) & <uint64_t>self.mask)
            if ((at - home) & self.mask) >= ((at - hole) & self.mask):
                self.buckets[hole] = other
                self.buckets[at] = NONE
                hole = at

    cdef bint head_may_try(self) noexcept nogil:
        """Somebody is in line, and its head was not tried in vain since capacity last became free."""
        return self.head != NONE and self.entries[self.head].attempted != self.generation

    cdef void head_failed(self) noexcept nogil:
        self.entries[self.head].attempted = self.generation

    cdef bint waits_outside(self) noexcept nogil:
        """Something here can only be moved by a command."""
        return self.num_held + self.num_pending + self.num_reserved > 0

    cdef int64_t _bucket(self, int64_t handoff) noexcept nogil:
        cdef int64_t at = <int64_t>(_spread(handoff) & <uint64_t>self.mask)
        while self.buckets[at] != NONE and self.entries[self.buckets[at]].handoff != handoff:
            at = (at + 1) & self.mask
        return at

    cdef int _grow(self) except -1 nogil:
        """Double entries and buckets; buckets are kept at most half full."""
        cdef int64_t capacity = max(16, <int64_t>self.capacity * 2)
        cdef Owned* entries = <Owned*>realloc(self.entries, capacity * sizeof(Owned))
        cdef int32_t* buckets = <int32_t*>malloc(capacity * 2 * sizeof(int32_t))
        cdef int32_t* old = self.buckets
        cdef int64_t old_mask = self.mask
        cdef int64_t i
        if entries is not NULL:
            self.entries = entries
        if entries is NULL or buckets is NULL:
            free(buckets)
            with gil:
                raise MemoryError(f"{capacity} handoffs")
        self.capacity = <int32_t>capacity
        self.buckets = buckets
        self.mask = capacity * 2 - 1
        for i in range(self.mask + 1):
            buckets[i] = NONE
        for i in range(old_mask + 1):
            if old[i] != NONE:
                buckets[self._bucket(self.entries[old[i]].handoff)] = old[i]
        free(old)
        return 0

    def line(self):
        """Handoffs that wait for blocks, in order."""
        waiting = []
        cdef int32_t entry = self.head
        while entry != NONE:
            waiting.append(self.entries[entry].handoff)
            entry = self.entries[entry].after
        return waiting

    def check(self):
        """Compare counts and line with the entries; AssertionError on the first contradiction. O(handoffs)."""
        cdef int64_t i
        states = [self.entries[self.buckets[i]].state for i in range(self.mask + 1) if self.buckets[i] != NONE]
        assert len(states) == self.num_owned, "handoffs lost"
        counts = [states.count(state) for state in (OWN_SOURCE_HELD, OWN_PENDING, OWN_RESERVED, OWN_ACTIVE)]
        assert counts == [self.num_held, self.num_pending, self.num_reserved, self.num_active], "handoffs miscounted"
        assert len(self.line()) == self.num_pending, "the line is broken"
