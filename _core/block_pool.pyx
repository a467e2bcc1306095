"""KV block pool of one rank: which blocks are empty, private, cached, and in which order cached ones go.

Blocks are interchangeable, so a block without identity is only counted; a *copy* record exists for a block
cached under an identity. An identity's copies form a ring, oldest first; look-ups see the oldest, the
primary. Copies without reference stand in one LRU list, the next victim at its head.

Decides: who may have blocks, who is evicted. Never decides who is preempted: `acquire` is all or nothing
and says POOL_EXHAUSTED. Source: engine specification, section 3.
"""
cimport cython
from libc.stdlib cimport free, realloc

from .types cimport NONE


@cython.final
cdef class BlockPool:
    def __cinit__(self, PrefixIndex index, int64_t num_blocks):
        if num_blocks < 1:
            raise ValueError("num_gpu_blocks must be positive")
        self.index = index
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.free_copy = self.lru_head = self.lru_tail = NONE

    def __dealloc__(self):
        free(self.copies)
        free(self.removed)

    cdef int64_t active(self) noexcept nogil:
        """Blocks in use by somebody: all but the empty and the unreferenced ones."""
        return self.num_blocks - self.num_free - self.num_inactive

    cdef PoolStatus acquire(self, const int32_t* hits, int64_t num_hits, int64_t num_fresh) noexcept nogil:
        """One more reference to each of `hits` (primaries of distinct identities) and `num_fresh` private blocks.

        Empty blocks go first, then the LRU head is evicted; blocks just hit are never evicted for the same call.
        """
        cdef int64_t missing = num_fresh - self.num_free
        cdef int64_t i, _i
        cdef int64_t inactive_hits = 0
        cdef Copy* copy
        if missing > 0:
            for i in range(num_hits):
                if self.copies[hits[i]].ref_count == 0:
                    inactive_hits += 1
            if missing > self.num_inactive - inactive_hits:
                return POOL_EXHAUSTED
        for i in range(num_hits):
            copy = &self.copies[hits[i]]
            if copy.ref_count == 0:
                self._lru_remove(hits[i])
            copy.ref_count += 1
        if missing > 0:
            self.num_free -= num_fresh - missing
            for _i in range(missing):
                self._evict()
        else:
            self.num_free -= num_fresh
        return POOL_OK

    cdef bint cache(self, int32_t identity, int32_t* copy) except -1 nogil:
        """Turn a private block into a cached copy with one reference; True when the identity was not visible before."""
        cdef int32_t fresh = self._new_copy()
        cdef int32_t primary = self.index.heads[identity]
        cdef int32_t newest
        copy[0] = fresh
        self.copies[fresh].identity = identity
        self.copies[fresh].ref_count = 1
        self.num_cached += 1
        if primary == NONE:
            self.copies[fresh].older = self.copies[fresh].newer = fresh
            self.index.heads[identity] = fresh
            self.index.hold(identity >> self.index.shift)
            self._touch(identity)
            return True
        newest = self.copies[primary].older
        self.copies[newest].newer = fresh
        self.copies[fresh].older = newest
        self.copies[fresh].newer = primary
        self.copies[primary].older = fresh
        return False

    cdef void release_cached(self, int32_t copy) noexcept nogil:
        """Give one reference back; the last one sends the copy to the tail of the LRU list."""
        cdef Copy* entry = &self.copies[copy]
        entry.ref_count -= 1
        if entry.ref_count > 0:
            return
        entry.lru_prev = self.lru_tail
        entry.lru_next = NONE
        if self.lru_tail == NONE:
            self.lru_head = copy
        else:
            self.copies[self.lru_tail].lru_next = copy
        self.lru_tail = copy
        self.num_inactive += 1

    cdef void release_private(self, int64_t n) noexcept nogil:
        self.num_free += n

    cdef void _evict(self) noexcept nogil:
        """Drop the LRU head; its block goes straight to the caller, who counts it as private."""
        cdef int32_t victim = self.lru_head
        cdef Copy* entry = &self.copies[victim]
        cdef int32_t identity = entry.identity
        self._lru_remove(victim)
        if entry.newer == victim:
            if self.keep_removed:
                self.removed[self.num_removed] = self.index.hashes[identity]
                self.num_removed += 1
            self._touch(identity)
            self.index.heads[identity] = NONE
            self.index.drop(identity >> self.index.shift)
        else:
            self.copies[entry.older].newer = entry.newer
            self.copies[entry.newer].older = entry.older
            if self.index.heads[identity] == victim:
                self.index.heads[identity] = entry.newer
        entry.lru_next = self.free_copy
        entry.identity = NONE
        self.free_copy = victim
        self.num_cached -= 1

    cdef int32_t _new_copy(self) except -1 nogil:
        cdef int32_t copy = self.free_copy
        cdef int64_t capacity
        cdef Copy* copies
        cdef uint64_t* removed
        if copy != NONE:
            self.free_copy = self.copies[copy].lru_next
            return copy
        if self.copy_top == self.copy_capacity:
            capacity = max(256, <int64_t>self.copy_capacity * 2)
            if capacity > 0x7fffffff:
                with gil:
                    raise MemoryError("more than 2**31 cached blocks")
            copies = <Copy*>realloc(self.copies, capacity * sizeof(Copy))
            if copies is not NULL:
                self.copies = copies
            # A single acquisition can evict every copy there is, so the list of hashes is as long.
            removed = <uint64_t*>realloc(self.removed, capacity * sizeof(uint64_t)) if self.keep_removed else NULL
            if removed is not NULL:
                self.removed = removed
            if copies is NULL or (self.keep_removed and removed is NULL):
                with gil:
                    raise MemoryError(f"block pool of {capacity} cached blocks")
            self.copy_capacity = <int32_t>capacity
        copy = self.copy_top
        self.copy_top += 1
        return copy

    cdef void _lru_remove(self, int32_t copy) noexcept nogil:
        cdef Copy* entry = &self.copies[copy]
        if entry.lru_prev == NONE:
            self.lru_head = entry.lru_next
        else:
            self.copies[entry.lru_prev].lru_next = entry.lru_next
        if entry.lru_next == NONE:
            self.lru_tail = entry.lru_prev
        else:
            self.copies[entry.lru_next].lru_prev = entry.lru_prev
        self.num_inactive -= 1

    cdef void _touch(self, int32_t identity) noexcept nogil:
        """This identity became visible, or is no longer."""
        if self.index.nodes[identity >> self.index.shift].watched:
            self.watch_dirty = True

    def num_active(self):
        """Blocks in use by somebody."""
        return self.active()

    def py_acquire(self, hits, int64_t num_fresh):
        """Test door: acquire; False when exhausted."""
        cdef int32_t[::1] view
        import array
        raw = array.array("i", hits)
        if len(raw) == 0:
            return self.acquire(NULL, 0, num_fresh) == POOL_OK
        view = raw
        return self.acquire(&view[0], len(raw), num_fresh) == POOL_OK

    def py_cache(self, int32_t identity):
        """Test door: cache a private block; (copy, newly visible)."""
        cdef int32_t copy
        cdef bint fresh = self.cache(identity, &copy)
        return copy, fresh

    def py_release(self, copies, int64_t num_private=0):
        """Test door: release cached copies in the given order, then private blocks."""
        for copy in copies:
            self.release_cached(copy)
        self.release_private(num_private)

    def primary(self, int32_t identity):
        """Test door: the copy a look-up sees, or -1."""
        return self.index.heads[identity]

    def ref_count(self, int32_t copy):
        """Test door: references of a copy."""
        return self.copies[copy].ref_count

    def lru_order(self):
        """Identities in eviction order, next victim first."""
        order = []
        cdef int32_t copy = self.lru_head
        while copy != NONE:
            order.append(self.copies[copy].identity)
            copy = self.copies[copy].lru_next
        return order

    def check(self):
        """Walk everything and compare the counts; AssertionError on the first contradiction. O(blocks)."""
        cdef int32_t copy, before = NONE
        free_copies = set()
        copy = self.free_copy
        while copy != NONE:
            free_copies.add(copy)
            copy = self.copies[copy].lru_next
        assert self.copy_top - len(free_copies) == self.num_cached, "copies lost"
        waiting = 0
        copy = self.lru_head
        while copy != NONE:
            assert self.copies[copy].ref_count == 0 and copy not in free_copies, "referenced copy in the LRU list"
            assert self.copies[copy].lru_prev == before, "LRU list broken"
            before = copy
            waiting += 1
            copy = self.copies[copy].lru_next
        assert before == self.lru_tail and waiting == self.num_inactive, "LRU length"
        assert 0 <= self.num_free <= self.num_blocks, "free count"
        assert self.num_free + self.num_cached <= self.num_blocks, "more blocks than there are"
        for copy in range(self.copy_top):
            if copy in free_copies:
                continue
            assert self.copies[self.copies[copy].newer].older == copy, "ring of copies broken"
            assert self.index.heads[self.copies[copy].identity] != NONE, "cached identity not visible"
