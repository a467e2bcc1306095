"""KV block pool of one rank: which blocks are empty, private, cached, and in which order cached ones go.

Blocks are interchangeable, so a block without identity is only counted; a *copy* record exists for a block
cached under an identity. An identity's copies form a ring, oldest first; look-ups see the oldest, the
primary. Copies without reference stand in one LRU list, the next victim at its head.

Decides: who may have blocks, who is evicted. Never decides who is preempted: `acquire` is all or nothing
and says POOL_EXHAUSTED. Source: engine specification, section 3.
"""
cimport cython
from libc.stdlib cimport free, realloc

from .prefix_index cimport Node
from .types cimport NONE, PRIVATE


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
            self._evict(missing)
        else:
            self.num_free -= num_fresh
        return POOL_OK

    cdef int64_t cache(self, int32_t identity, int64_t n, int32_t* copies) except -1 nogil:
        """Turn `n` private blocks into cached copies with one reference, of consecutive identities of one node.

        `copies` gets the copy of each. Returns how many of the identities were not visible before.
        """
        cdef Node* node = &self.index.nodes[identity >> self.index.shift]
        cdef int32_t* heads = &self.index.heads[identity]
        cdef int32_t i
        cdef int32_t num_new = 0
        cdef int32_t fresh, primary, newest, free_copy
        cdef Copy* entries
        cdef Copy* entry
        if self.num_cached + n > self.copy_capacity:
            self._grow(self.num_cached + n)
        entries = self.copies
        free_copy = self.free_copy
        for i in range(<int32_t>n):
            fresh = free_copy
            if fresh == NONE:
                fresh = self.copy_top
                self.copy_top += 1
                entry = &entries[fresh]
            else:
                entry = &entries[fresh]
                free_copy = entry.lru_next
            entry.identity = identity + i
            entry.ref_count = 1
            copies[i] = fresh
            primary = heads[i]
            if primary == NONE:
                entry.older = entry.newer = fresh
                heads[i] = fresh
                num_new += 1
                continue
            newest = entries[primary].older
            entries[newest].newer = fresh
            entry.older = newest
            entry.newer = primary
            entries[primary].older = fresh
        self.free_copy = free_copy
        self.num_cached += n
        if num_new > 0:
            node.holders += num_new
            if node.watched:
                self.watch_dirty = True
        return num_new

    cdef int64_t release_cached(self, const int32_t* blocks, int64_t n) noexcept nogil:
        """Give one reference to each of `n` table entries back, from the last to the first; PRIVATE ones are passed over.

        The last reference sends a copy to the tail of the LRU list. Returns how many entries were PRIVATE.
        """
        cdef int64_t i
        cdef int64_t num_private = 0
        cdef int64_t num_freed = 0
        cdef int32_t tail = self.lru_tail
        cdef int32_t copy
        cdef Copy* entries = self.copies
        cdef Copy* entry
        for i in range(n - 1, -1, -1):
            copy = blocks[i]
            if copy == PRIVATE:
                num_private += 1
                continue
            entry = &entries[copy]
            entry.ref_count -= 1
            if entry.ref_count > 0:
                continue
            entry.lru_prev = tail
            entry.lru_next = NONE
            if tail == NONE:
                self.lru_head = copy
            else:
                entries[tail].lru_next = copy
            tail = copy
            num_freed += 1
        self.lru_tail = tail
        self.num_inactive += num_freed
        return num_private

    cdef void release_private(self, int64_t n) noexcept nogil:
        self.num_free += n

    cdef void _evict(self, int64_t n) noexcept nogil:
        """Drop the first `n` of the LRU list; their blocks go straight to the caller, who counts them as private."""
        cdef int32_t victim = self.lru_head
        cdef int32_t node = NONE
        cdef int32_t num_gone = 0        # identities of `node` that vanished and still hold it
        cdef int32_t shift = self.index.shift
        cdef int32_t free_copy = self.free_copy
        cdef int32_t identity, following
        cdef int64_t _i
        cdef int32_t* heads = self.index.heads
        cdef Copy* entries = self.copies
        cdef Copy* entry
        for _i in range(n):
            entry = &entries[victim]
            identity = entry.identity
            following = entry.lru_next
            if entry.newer == victim:
                if self.keep_removed:
                    self.removed[self.num_removed] = self.index.hashes[identity]
                    self.num_removed += 1
                heads[identity] = NONE
                if identity >> shift != node:
                    if num_gone > 0:
                        self._let_go(node, num_gone)
                    node = identity >> shift
                    num_gone = 0
                num_gone += 1
            else:
                entries[entry.older].newer = entry.newer
                entries[entry.newer].older = entry.older
                if heads[identity] == victim:
                    heads[identity] = entry.newer
            entry.lru_next = free_copy
            entry.identity = NONE
            free_copy = victim
            victim = following
        self.free_copy = free_copy
        self.lru_head = victim
        if victim == NONE:
            self.lru_tail = NONE
        else:
            self.copies[victim].lru_prev = NONE
        self.num_inactive -= n
        self.num_cached -= n
        if num_gone > 0:
            self._let_go(node, num_gone)

    cdef void _let_go(self, int32_t node, int32_t num_gone) noexcept nogil:
        """So many identities of a node are visible no longer."""
        cdef Node* entry = &self.index.nodes[node]
        if entry.watched:
            self.watch_dirty = True
        entry.holders -= num_gone - 1
        self.index.drop(node)

    cdef int _grow(self, int64_t least) except -1 nogil:
        """Room for `least` copies."""
        cdef int64_t capacity = max(max(256, least), <int64_t>self.copy_capacity * 2)
        cdef Copy* copies
        cdef uint64_t* removed
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
        return 0

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
        cdef bint fresh = self.cache(identity, 1, &copy)
        return copy, fresh

    def py_release(self, copies, int64_t num_private=0):
        """Test door: release cached copies in the given order, then private blocks."""
        cdef int32_t block
        for copy in copies:
            block = copy
            self.release_cached(&block, 1)
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
