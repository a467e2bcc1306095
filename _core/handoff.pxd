# Who owns what of a handoff at one rank: held sources, pending, reserved and active destinations.
from libc.stdint cimport int32_t, int64_t


cdef enum Ownership:
    OWN_NONE = 0
    OWN_SOURCE_PENDING = 1       # an ordinary request that will be held when it is complete
    OWN_SOURCE_HELD = 2          # complete; its blocks are kept, it is in no queue
    OWN_PENDING = 3              # destination: accepted, in line for blocks
    OWN_RESERVED = 4             # destination: has its blocks, nobody sees them
    OWN_ACTIVE = 5               # destination: an ordinary request, its prompt is there


cdef struct Owned:
    int64_t handoff              # the caller's number
    int64_t attempted            # capacity generation in which it was last tried in vain
    int32_t slot                 # of its request
    int32_t state                # Ownership
    int32_t before               # pending: line of those that wait, NONE at its ends
    int32_t after                # free entries: the next free one


cdef class HandoffBook:
    cdef Owned* entries                  # (capacity,), owned
    cdef int32_t capacity
    cdef int32_t top
    cdef int32_t free_entry
    cdef int32_t* buckets                # (mask + 1,) entry by handoff, open addressing, owned
    cdef int64_t mask
    cdef readonly int64_t num_owned
    cdef readonly int64_t num_held
    cdef readonly int64_t num_pending
    cdef readonly int64_t num_reserved
    cdef readonly int64_t num_active
    cdef int32_t head                    # of the line
    cdef int32_t tail
    cdef readonly int64_t generation     # grows whenever capacity may have become free

    cdef int32_t find(self, int64_t handoff) noexcept nogil
    cdef int32_t add(self, int64_t handoff, int32_t slot, int32_t state) except -1 nogil
    cdef void move(self, int32_t entry, int32_t state) noexcept nogil
    cdef void remove(self, int32_t entry) noexcept nogil
    cdef bint head_may_try(self) noexcept nogil
    cdef void head_failed(self) noexcept nogil
    cdef bint waits_outside(self) noexcept nogil
    cdef void _count(self, int32_t state, int64_t sign) noexcept nogil
    cdef int64_t _bucket(self, int64_t handoff) noexcept nogil
    cdef int _grow(self) except -1 nogil
