# Pages of one rank in the SGLang flavour: how many are free, and a radix tree of those that are cached.
from libc.stdint cimport int32_t, int64_t, uint64_t


cdef enum:
    ROOT = 0                     # node of the empty sequence: never locked, never evicted


cdef struct PageKeys:            # what the pages of one sequence hold, from its first token on; borrowed
    const uint64_t* ids          # trace hash ids
    int64_t num_named            # leading pages that these name [pages]; nobody but `owner` has those behind
    int64_t owner                # number of a request
    const uint64_t* hashes       # chain hash of each page; NULL unless the tree keeps them


cdef struct RadixNode:
    int32_t parent
    int32_t num_children
    int32_t next                 # behind it in its chain of `table`, or in the list of unused nodes
    int32_t place                # in `candidates`, NONE = none of them
    int64_t first                # page of the sequence with which its edge begins
    int64_t num_pages            # of its edge; 0 = unused, or the root
    int64_t num_named            # of them, the leading ones that `ids` name
    int64_t owner                # of the others; NONE where there are none
    int64_t num_locks            # requests at or below it
    int64_t stamp                # operation that used it last
    uint64_t spread              # hash of parent and first page
    uint64_t* ids                # (num_ids,) trace hash ids from that of the edge's first token on, owned
    int64_t num_ids
    int64_t id_capacity
    uint64_t* hashes             # (num_pages,) chain hashes, owned; NULL unless wanted
    int64_t hash_capacity


cdef class RadixTree:
    cdef readonly int64_t page_size          # [tokens]
    cdef readonly int64_t trace_block_size   # [tokens] a trace hash id stands for
    cdef readonly int64_t num_pages          # of the pool
    cdef readonly int64_t num_free           # held by nobody
    cdef readonly int64_t num_evictable      # on nodes without locks
    cdef readonly int64_t num_cached         # on nodes
    cdef readonly int32_t num_nodes          # in use, the root included
    cdef RadixNode* nodes                    # (node_capacity,), owned
    cdef int32_t node_capacity
    cdef int32_t node_top                    # nodes ever handed out
    cdef int32_t free_node
    cdef int32_t* table                      # (table_mask + 1,): chains of nodes by parent and first page, owned
    cdef int64_t table_mask
    cdef int32_t* candidates                 # (num_candidates,) heap by stamp of unlocked leaves, owned; fits all nodes
    cdef int64_t num_candidates
    cdef int64_t clock                       # operations so far
    cdef bint keeps_hashes
    cdef uint64_t* removed                   # (num_removed,) hashes of pages evicted since it was last emptied, owned
    cdef int64_t num_removed
    cdef int64_t removed_capacity

    cdef int64_t peek(self, const PageKeys* keys, int64_t num_pages) noexcept nogil
    cdef int32_t match_and_lock(self, const PageKeys* keys, int64_t num_pages) except -1 nogil
    cdef void lock(self, int32_t node) noexcept nogil
    cdef void unlock(self, int32_t node) noexcept nogil
    cdef int32_t insert(self, int32_t start, const PageKeys* keys, int64_t end, int64_t* num_known) except -1 nogil
    cdef int evict(self, int64_t num_pages) except -1 nogil
    cdef bint take(self, int64_t num_pages) noexcept nogil
    cdef void give(self, int64_t num_pages) noexcept nogil
    cdef int64_t end_of(self, int32_t node) noexcept nogil
    cdef int64_t _equal_pages(self, const RadixNode* node, const PageKeys* keys, int64_t most) noexcept nogil
    cdef uint64_t _spread_of(self, int32_t parent, const PageKeys* keys, int64_t page) noexcept nogil
    cdef int32_t _child(self, int32_t parent, const PageKeys* keys, int64_t page) noexcept nogil
    cdef int32_t _new_child(self, int32_t parent, const PageKeys* keys, int64_t end) except -1 nogil
    cdef int _append(self, int32_t at, const PageKeys* keys, int64_t end) except -1 nogil
    cdef int32_t _split(self, int32_t at, int64_t num_pages) except -1 nogil
    cdef void _cut(self, RadixNode* node, int64_t num_pages) noexcept nogil
    cdef int _tell_removed(self, const RadixNode* node, int64_t num_pages) except -1 nogil
    cdef void _remove_leaf(self, int32_t at) noexcept nogil
    cdef int32_t _new_node(self) except -1 nogil
    cdef int _grow_table(self) except -1 nogil
    cdef void _map(self, int32_t at) noexcept nogil
    cdef void _unmap(self, int32_t at) noexcept nogil
    cdef void _touch(self, int32_t at) noexcept nogil
    cdef void _become_candidate(self, int32_t at) noexcept nogil
    cdef void _leave_candidates(self, int32_t at) noexcept nogil
    cdef void _sift(self, int64_t place) noexcept nogil
