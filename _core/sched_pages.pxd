# Pages of requests in the SGLang flavour: what each holds, what of it is in the radix tree, sources and destinations.
from libc.stdint cimport int32_t, int64_t, uint64_t

from .event_buffer cimport EventBuffer
from .radix_tree cimport PageKeys, RadixTree
from .request_table cimport Request
from .sched_handoff cimport HandoffScheduler


cdef struct Paged:               # beside a Request, whose `computed` says for how many tokens it has pages
    int32_t node                 # where its pages in the tree end, NONE = it has no pages
    int64_t num_published        # of its pages, the leading ones that are in the tree
    uint64_t* chain              # (num_hashed,) chain hashes of its pages, owned; empty unless somebody reads cache events
    uint64_t* local              # (num_hashed,) hashes of what each holds, owned
    int64_t num_hashed
    int64_t hash_capacity


cdef class PageScheduler(HandoffScheduler):
    cdef readonly RadixTree tree
    cdef Paged* paged                    # (paged_capacity,) by slot, owned
    cdef int32_t paged_capacity
    cdef int64_t num_too_long            # waiting requests whose prompt is not shorter than max_model_len

    cdef int set_pages(self, int64_t num_pages, int64_t page_size, int64_t trace_block_size, bint knows_outputs) except -1
    cdef int64_t pages_of(self, int64_t tokens) noexcept nogil
    cdef void keys_of(self, int32_t slot, PageKeys* keys) noexcept nogil
    cdef int64_t cached_pages(self, int32_t slot, int64_t num_pages) noexcept nogil
    cdef int64_t available(self) noexcept nogil
    cdef bint take_pages(self, int64_t num_pages) except -1 nogil
    cdef int evict_for(self, int64_t num_pages) except -1 nogil
    cdef bint allocate(self, int32_t slot, int64_t start, int64_t end) except -1 nogil
    cdef void grow(self, int32_t slot) noexcept nogil
    cdef int publish(self, int32_t slot) except -1 nogil
    cdef int finish(self, int32_t slot) except -1 nogil
    cdef int release(self, int32_t slot) noexcept nogil
    cdef int32_t cache_until(self, int32_t slot, int64_t end, int64_t* num_known) except -1 nogil
    cdef int _hash_until(self, int32_t slot, int64_t end) except -1
    cdef int _tell_stored(self, int32_t slot, int64_t first, int64_t end) except -1
    cdef int _tell_removed(self) except -1 nogil
