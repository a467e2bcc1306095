"""Device blocks that are still being copied to the host: which store reads which block.

Such a block may be handed out again; whoever writes it has to wait until its old content has been read. So every block
goes with the store that reads it, also while it is empty, and blocks are handed out in the order of the reference.

Decides: which store reads a block that is handed out. Never decides what is stored, nor who waits (sched_offload).
Source: hand-off and offload specification, sections 10 and 12.
"""
from libc.stdlib cimport free, realloc

from .block_pool cimport POOL_EXHAUSTED, POOL_FAILED, POOL_OK, PoolStatus
from .sched_handoff cimport HandoffScheduler
from .types cimport NONE, PRIVATE


cdef class ReadingScheduler(HandoffScheduler):
    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.hosted_capacity):
            free(self.hosted[i].path)
            free(self.hosted[i].reads)
        free(self.hosted)
        free(self.copy_reads)
        free(self.free_reads)
        free(self.fresh_reads)

    cdef PoolStatus acquire(self, int64_t num_hits, int64_t num_fresh) except POOL_FAILED nogil:
        """As HandoffScheduler.acquire; `fresh_reads` then says which store still reads each private block.

        Evicted blocks come first, the last one evicted before the others, then empty ones, the last one emptied first.
        """
        cdef const int32_t* hits = self.hit_copies
        cdef int64_t missing = num_fresh - self.pool.num_free
        cdef int64_t i
        cdef int64_t inactive_hits = 0
        cdef int32_t copy
        if not self.fences:
            return self.pool.acquire(hits, num_hits, num_fresh)
        for i in range(num_hits):
            if self.pool.refs[hits[i]] == 0:
                inactive_hits += 1
        if missing > 0 and missing > self.pool.num_inactive - inactive_hits:
            return POOL_EXHAUSTED
        missing = max(missing, 0)
        self._reserve_reads(num_fresh)
        self.pool.acquire(hits, num_hits, 0)
        copy = self.pool.lru_head
        for i in range(missing - 1, -1, -1):
            self.fresh_reads[i] = self.copy_reads[copy] if copy < self.copy_reads_capacity else NONE
            copy = self.pool.lru_next[copy]
        for i in range(missing, num_fresh):
            self.fresh_reads[i] = NONE
            if self.num_free_reads > 0:
                self.num_free_reads -= 1
                self.fresh_reads[i] = self.free_reads[self.num_free_reads]
        self.pool.acquire(NULL, 0, num_fresh)
        for i in range(num_fresh):
            if not self.tier.store_in_flight(self.fresh_reads[i]):
                self.fresh_reads[i] = NONE
        self.num_private += num_fresh
        return POOL_OK

    cdef bint still_read(self, int64_t num_fresh) noexcept nogil:
        cdef int64_t i
        for i in range(num_fresh if self.fences else 0):
            if self.fresh_reads[i] != NONE:
                return True
        return False

    cdef int _reserve_reads(self, int64_t num_fresh) except -1 nogil:
        """Room for `num_fresh` blocks to be handed out and, later, to be given back."""
        cdef int64_t wanted = self.num_free_reads + self.num_private + num_fresh
        cdef int64_t* grown
        if num_fresh > self.fresh_capacity:
            grown = <int64_t*>realloc(self.fresh_reads, 2 * num_fresh * sizeof(int64_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{num_fresh} blocks")
            self.fresh_reads, self.fresh_capacity = grown, 2 * num_fresh
        if wanted > self.free_reads_capacity:
            grown = <int64_t*>realloc(self.free_reads, 2 * wanted * sizeof(int64_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{wanted} empty blocks")
            self.free_reads, self.free_reads_capacity = grown, 2 * wanted
        return 0

    cdef int64_t append_blocks(self, Request* request, int64_t num_hits, int64_t num_fresh) except -1 nogil:
        cdef int64_t length = HandoffScheduler.append_blocks(self, request, num_hits, num_fresh)
        cdef Hosted* hosted
        cdef int64_t* grown
        cdef int64_t i
        if not self.fences:
            return length
        hosted = &self.hosted[request - self.requests.slots]
        if length > hosted.reads_capacity:
            grown = <int64_t*>realloc(hosted.reads, request.table_capacity * sizeof(int64_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"block table of {request.table_capacity} blocks")
            hosted.reads, hosted.reads_capacity = grown, request.table_capacity
        for i in range(num_fresh):
            hosted.reads[length - num_fresh + i] = self.fresh_reads[i]
        return length

    cdef void release_blocks(self, Request* request) noexcept nogil:
        cdef Hosted* hosted
        cdef int64_t i
        if self.fences:
            hosted = &self.hosted[request - self.requests.slots]
            for i in range(request.table_length - 1, -1, -1):
                if request.table[i] == PRIVATE:
                    self.num_private -= 1
                    self.free_reads[self.num_free_reads] = hosted.reads[i]
                    self.num_free_reads += 1
        HandoffScheduler.release_blocks(self, request)

    cdef int finalise(self, Request* request, int64_t before, int64_t after) except -1 nogil:
        cdef Hosted* hosted
        cdef int64_t first = before // self.block_size
        cdef int64_t end = after // self.block_size
        if not self.fences:
            return HandoffScheduler.finalise(self, request, before, after)
        hosted = &self.hosted[request - self.requests.slots]
        # Blocks that are cached already keep what is known of their copy.
        while first < end and request.table[first] != PRIVATE:
            first += 1
        HandoffScheduler.finalise(self, request, before, after)
        return self._note_cached(request, hosted, first, end)

    cdef int _note_cached(self, Request* request, Hosted* hosted, int64_t first, int64_t end) except -1 nogil:
        """Blocks first..end of a table were private and are cached now: what reads them reads the copies."""
        cdef int64_t i
        cdef int64_t* grown
        if self.pool.capacity > self.copy_reads_capacity:
            grown = <int64_t*>realloc(self.copy_reads, self.pool.capacity * sizeof(int64_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"block pool of {self.pool.capacity} cached blocks")
            for i in range(self.copy_reads_capacity, self.pool.capacity):
                grown[i] = NONE
            self.copy_reads, self.copy_reads_capacity = grown, self.pool.capacity
        for i in range(first, end):
            self.copy_reads[request.table[i]] = hosted.reads[i]
        self.num_private -= end - first
        return 0

    cdef int64_t _read_of(self, Request* request, Hosted* hosted, int64_t block) noexcept nogil:
        """The store that reads a block of a table, NONE when none does any more."""
        cdef int64_t store = hosted.reads[block] if request.table[block] == PRIVATE else self.copy_reads[request.table[block]]
        return store if self.tier.store_in_flight(store) else NONE
