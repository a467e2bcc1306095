# KV blocks of one rank: counts, cached copies with references, one LRU list.
from libc.stdint cimport int32_t, int64_t, uint64_t

from .prefix_index cimport PrefixIndex


cdef enum PoolStatus:
    POOL_OK = 0
    POOL_EXHAUSTED = 1           # expected: the caller preempts and asks again; nothing changed


cdef struct Copy:
    int32_t ref_count            # 0 = in the LRU list
    int32_t identity             # node * stride + index, see prefix_index
    int32_t lru_prev             # towards the next victim; NONE at the head
    int32_t lru_next
    int32_t older                # copies of one identity: a ring, oldest (primary) first
    int32_t newer


cdef class BlockPool:
    cdef readonly PrefixIndex index
    cdef readonly int64_t num_blocks
    cdef readonly int64_t num_free       # empty blocks
    cdef readonly int64_t num_inactive   # cached, no reference
    cdef readonly int64_t num_cached     # copies under an identity, any reference count
    cdef Copy* copies                    # (copy_capacity,), owned
    cdef int32_t copy_capacity
    cdef int32_t copy_top
    cdef int32_t free_copy               # free list through lru_next
    cdef int32_t lru_head                # next victim
    cdef int32_t lru_tail
    cdef bint watch_dirty                # what a look-up of a watched identity finds changed since it was last cleared
    cdef bint keep_removed               # list the hashes of identities that vanish
    cdef uint64_t* removed               # (removed_capacity,) hashes in eviction order
    cdef Py_ssize_t num_removed
    cdef Py_ssize_t removed_capacity

    cdef int64_t active(self) noexcept nogil
    cdef PoolStatus acquire(self, const int32_t* hits, int64_t num_hits, int64_t num_fresh) noexcept nogil
    cdef int64_t cache(self, int32_t identity, int64_t n, int32_t* copies) except -1 nogil
    cdef int64_t release_cached(self, const int32_t* blocks, int64_t n) noexcept nogil
    cdef void release_private(self, int64_t n) noexcept nogil
    cdef void _evict(self, int64_t n) noexcept nogil
    cdef void _let_go(self, int32_t node, int32_t num_gone) noexcept nogil
    cdef int _grow(self, int64_t least) except -1 nogil
    cdef void _lru_remove(self, int32_t copy) noexcept nogil
