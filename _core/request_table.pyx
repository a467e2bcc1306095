"""Requests owned by one rank: struct per request, slots reused, found again by trace row.

Decides nothing about scheduling; it owns the memory of each request and frees it with the request.
A pointer into `slots` holds until the next `add`.
"""
cimport cython
from libc.math cimport NAN
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from .types cimport NONE, STATUS_WAITING


cdef enum:
    FIRST_SLOTS = 64
    KEPT_SLOTS = 1024         # a table that has grown beyond is made small again when nothing is left


cdef inline uint64_t _spread(int32_t ordinal) noexcept nogil:
    return (<uint64_t>ordinal * <uint64_t>0x9E3779B97F4A7C15) >> 20


@cython.final
cdef class RequestTable:
    def __cinit__(self):
        self.free_slot = NONE
        self.bucket_mask = -1
        if self._grow() < 0:
            raise MemoryError("request table")

    def __dealloc__(self):
        cdef int32_t slot
        for slot in range(self.top):
            free(self.slots[slot].hash_ids)
            free(self.slots[slot].path)
            free(self.slots[slot].private_nodes)
            free(self.slots[slot].table)
        free(self.slots)
        free(self.buckets)

    cdef int32_t add(self, int32_t ordinal, int64_t n_in, int64_t n_out, const uint64_t* hash_ids,
                     int64_t num_hash_ids, const Terms* terms) except -1 nogil:
        """A fresh waiting request; the hash ids are copied. The caller has made sure the ordinal is not owned."""
        cdef int32_t slot = self.free_slot
        cdef Request* request
        cdef int64_t at
        if slot != NONE:
            self.free_slot = self.slots[slot].next_free
        else:
            if self.top == self.capacity:
                self._grow()
            slot = self.top
            self.top += 1
        request = &self.slots[slot]
        memset(request, 0, sizeof(Request))
        request.n_in = n_in
        request.n_out = n_out
        request.ordinal = ordinal
        request.terms = terms[0]
        request.status = STATUS_WAITING
        request.scheduled_pass = request.emit_pass = request.vetoed_pass = NONE
        request.emit_ms = request.emit_before_ms = NAN
        request.next_free = NONE
        request.arrival_number = self.num_added
        self.num_added += 1
        if num_hash_ids > 0:
            request.hash_ids = <uint64_t*>malloc(num_hash_ids * sizeof(uint64_t))
            if request.hash_ids is NULL:
                with gil:
                    raise MemoryError(f"{num_hash_ids} hash ids")
            memcpy(request.hash_ids, hash_ids, num_hash_ids * sizeof(uint64_t))
            request.num_hash_ids = num_hash_ids
        at = self._bucket(ordinal)
        self.buckets[at] = slot
        self.num_owned += 1
        return slot

    cdef int32_t find(self, int32_t ordinal) noexcept nogil:
        """Slot of the request, or NONE."""
        return self.buckets[self._bucket(ordinal)]

    cdef void remove(self, int32_t slot) noexcept nogil:
        """Forget a request and free what it owns. Its blocks and nodes have been released before."""
        cdef Request* request = &self.slots[slot]
        cdef int64_t hole = self._bucket(request.ordinal)
        cdef int64_t at = hole
        cdef int64_t home
        cdef int32_t other
        free(request.hash_ids)
        free(request.path)
        free(request.private_nodes)
        free(request.table)
        request.hash_ids = NULL
        request.path = request.private_nodes = request.table = NULL
        request.next_free = self.free_slot
        self.free_slot = slot
        self.num_owned -= 1
        self.buckets[hole] = NONE
        while True:
            at = (at + 1) & self.bucket_mask
            other = self.buckets[at]
            if other == NONE:
                return
            home = <int64_t>(_spread(self.slots[other].ordinal) & <uint64_t>self.bucket_mask)
            if ((at - home) & self.bucket_mask) >= ((at - hole) & self.bucket_mask):
                self.buckets[hole] = other
                self.buckets[at] = NONE
                hole = at

    cdef void give_back(self) noexcept nogil:
        """Keep no more memory than at first, if nothing is owned; no pointer into `slots` holds any more."""
        cdef Request* slots
        cdef int32_t* buckets
        cdef int64_t i
        if self.num_owned > 0 or self.capacity <= KEPT_SLOTS:
            return
        slots = <Request*>realloc(self.slots, FIRST_SLOTS * sizeof(Request))
        buckets = <int32_t*>realloc(self.buckets, 2 * FIRST_SLOTS * sizeof(int32_t))
        if slots is not NULL:
            self.slots = slots
        if buckets is not NULL:
            self.buckets = buckets
        for i in range(2 * FIRST_SLOTS):
            self.buckets[i] = NONE
        self.capacity, self.top, self.free_slot, self.bucket_mask = FIRST_SLOTS, 0, NONE, 2 * FIRST_SLOTS - 1

    cdef int64_t _bucket(self, int32_t ordinal) noexcept nogil:
        """Place of the ordinal in `buckets`: where it is, or the empty one where it belongs."""
        cdef int64_t at = <int64_t>(_spread(ordinal) & <uint64_t>self.bucket_mask)
        while self.buckets[at] != NONE and self.slots[self.buckets[at]].ordinal != ordinal:
            at = (at + 1) & self.bucket_mask
        return at

    cdef int _grow(self) except -1 nogil:
        """Double slots and buckets; buckets are kept at most half full."""
        cdef int64_t capacity = max(FIRST_SLOTS, <int64_t>self.capacity * 2)
        cdef Request* slots = <Request*>realloc(self.slots, capacity * sizeof(Request))
        cdef int32_t* buckets = <int32_t*>malloc(capacity * 2 * sizeof(int32_t))
        cdef int64_t i
        cdef int32_t slot
        cdef int32_t* old = self.buckets
        cdef int64_t old_mask = self.bucket_mask
        if slots is not NULL:
            self.slots = slots
        if slots is NULL or buckets is NULL:
            free(buckets)
            with gil:
                raise MemoryError(f"{capacity} requests in flight")
        self.capacity = <int32_t>capacity
        self.buckets = buckets
        self.bucket_mask = capacity * 2 - 1
        for i in range(self.bucket_mask + 1):
            buckets[i] = NONE
        for i in range(old_mask + 1):
            slot = old[i]
            if slot != NONE:
                buckets[self._bucket(self.slots[slot].ordinal)] = slot
        free(old)
        return 0
