# KV blocks of one rank: counts, cached copies with references, one LRU list.
from libc.stdint cimport int32_t, int64_t, uint64_t

from .prefix_index cimport PrefixIndex


cdef enum PoolStatus:
    POOL_FAILED = -1             # an exception; a value of its own, for asking whether there is one takes the GIL
    POOL_OK = 0
    POOL_EXHAUSTED = 1           # expected: the caller preempts and asks again; nothing changed


cdef struct Ring:                # of a copy under an identity that has, or had, several; unset for all others
    int32_t older                # copies of one identity: a ring, oldest (primary) first
    int32_t newer
    int32_t identity


cdef class BlockPool:
    cdef readonly PrefixIndex index
    cdef readonly int64_t num_blocks
    cdef readonly int64_t num_free       # empty blocks
    cdef readonly int64_t num_inactive   # cached, no reference
    cdef readonly int64_t num_cached     # copies under an identity, any reference count
    # By copy. The number of a copy is that of its identity (its home), or of a spare place if another copy is there.
    cdef int32_t* refs                   # (capacity,) references, 0 = in the LRU list; AWAY = no copy at this home
    cdef int32_t* lru_prev               # (capacity,) towards the next victim; NONE at the head
    cdef int32_t* lru_next               # (capacity,) also the list of unused spare places
    cdef Ring* rings                     # (capacity,) of nodes that are `doubled`, NULL until there is one
    cdef int32_t* spares                 # (node capacity,) of nodes that are `doubled`: copies in spare places
    cdef int64_t capacity
    cdef int32_t free_spare
    cdef int32_t num_spares              # copies in spare places, of which the index lends whole nodes
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
    cdef int cache_prompt(self, const int32_t* path, int64_t block, int64_t end, int32_t* table) except -1 nogil
    cdef int64_t release_cached(self, const int32_t* blocks, int64_t n) noexcept nogil
    cdef void release_private(self, int64_t n) noexcept nogil
    cdef int64_t _cache_beside(self, int32_t identity, int64_t n, int32_t* copies) except -1 nogil
    cdef int _double(self, int32_t node) except -1 nogil
    cdef int32_t _spare(self) except -1 nogil
    cdef void _give_back(self, int32_t place) noexcept nogil
    cdef void _evict(self, int64_t n) noexcept nogil
    cdef void _keep_hashes(self, int32_t victim, int64_t n) noexcept nogil
    cdef bint _leave_ring(self, int32_t copy) noexcept nogil
    cdef void _let_go(self, int32_t node, int32_t num_gone) noexcept nogil
    cdef int _make_room(self, int64_t n) except -1 nogil
    cdef int _grow(self) except -1 nogil
    cdef int _grow_removed(self, int64_t n) except -1 nogil
    cdef void _lru_remove(self, int32_t copy) noexcept nogil
    cdef int32_t _identity(self, int32_t copy) noexcept nogil
