"""KV block pool of one rank: which blocks are empty, private, cached, and in which order cached ones go.

Blocks are interchangeable, so a block without identity is only counted; a *copy* exists for a block cached under an
identity. The only copy of an identity has the identity's own number, its home, so that the blocks of a node are entered
and found as a row. Where two requests have computed one block, the further copy has a spare place, and the node is
*doubled* until no such copy is left: an identity's copies then form a ring, oldest first. Look-ups see the oldest, the
primary. Copies without reference stand in one LRU list, the next victim at its head.

Decides: who may have blocks, who is evicted. Never decides who is preempted: `acquire` is all or nothing
and says POOL_EXHAUSTED. Source: engine specification, section 3.
"""
cimport cython
from libc.stdlib cimport free, realloc

from .prefix_index cimport Node
from .types cimport NONE, PRIVATE

cdef enum:
    AWAY = -1                            # the copy that was at home is gone, a further one is left


@cython.final
cdef class BlockPool:
    def __cinit__(self, PrefixIndex index, int64_t num_blocks):
        if num_blocks < 1:
            raise ValueError("num_gpu_blocks must be positive")
        self.index = index
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.free_spare = self.lru_head = self.lru_tail = NONE

    def __dealloc__(self):
        free(self.refs)
        free(self.lru_prev)
        free(self.lru_next)
        free(self.rings)
        free(self.spares)
        free(self.removed)

    cdef int64_t active(self) noexcept nogil:
        """Blocks in use by somebody: all but the empty and the unreferenced ones."""
        return self.num_blocks - self.num_free - self.num_inactive

    cdef PoolStatus acquire(self, const int32_t* hits, int64_t num_hits, int64_t num_fresh) noexcept nogil:
        """One more reference to each of `hits` (primaries of distinct identities) and `num_fresh` private blocks.

        Empty blocks go first, then the LRU head is evicted; blocks just hit are never evicted for the same call.
        """
        cdef int64_t missing = num_fresh - self.num_free
        cdef int64_t i
        cdef int64_t inactive_hits = 0
        if missing > 0:
            for i in range(num_hits):
                if self.refs[hits[i]] == 0:
                    inactive_hits += 1
            if missing > self.num_inactive - inactive_hits:
                return POOL_EXHAUSTED
        for i in range(num_hits):
            if self.refs[hits[i]] == 0:
                self._lru_remove(hits[i])
            self.refs[hits[i]] += 1
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
        cdef int32_t* refs
        cdef int32_t taken = 0
        cdef int32_t i
        self._make_room(n)
        for i in range(<int32_t>n):
            taken |= heads[i] + 1        # NONE + 1 is 0
        if taken != 0 or node.doubled:
            return self._cache_beside(identity, n, copies)
        refs = &self.refs[identity]
        for i in range(<int32_t>n):
            heads[i] = identity + i
            copies[i] = identity + i
            refs[i] = 1
        self.num_cached += n
        node.holders += <int32_t>n
        if node.watched:
            self.watch_dirty = True
        return n

    cdef int cache_prompt(self, const int32_t* path, int64_t block, int64_t end, int32_t* table) except -1 nogil:
        """Turn the private ones of the blocks block..end of a table, behind which all are private, into cached copies with
        one reference.

        `path` has the node of each row of `stride` blocks; only where the index is `aligned`.
        """
        cdef int64_t mask = self.index.stride - 1
        cdef int64_t n
        cdef int32_t identity
        cdef Node* node
        self._make_room(end - block)
        while block < end and table[block] != PRIVATE:
            block += 1
        while block < end:
            n = min(self.index.stride - (block & mask), end - block)
            identity = (path[block >> self.index.shift] << self.index.shift) + <int32_t>(block & mask)
            node = &self.index.nodes[identity >> self.index.shift]
            if n == 1 and self.index.heads[identity] == NONE and not node.doubled:
                self.index.heads[identity] = table[block] = identity
                self.refs[identity] = 1
                self.num_cached += 1
                node.holders += 1
                if node.watched:
                    self.watch_dirty = True
            else:
                self.cache(identity, n, &table[block])
            block += n
        return 0

    cdef int _make_room(self, int64_t n) except -1 nogil:
        """Room for `n` copies more."""
        if (<int64_t>self.index.node_capacity << self.index.shift) > self.capacity:
            self._grow()
        if self.keep_removed and self.num_removed + self.num_cached + n > self.removed_capacity:
            self._grow_removed(n)
        return 0

    cdef int64_t _cache_beside(self, int32_t identity, int64_t n, int32_t* copies) except -1 nogil:
        """As `cache`, where a copy of one of them may be cached already."""
        cdef int32_t node = identity >> self.index.shift
        cdef int32_t* heads = self.index.heads
        cdef int32_t num_new = 0
        cdef int32_t i, fresh, primary, newest
        cdef Node* entry
        if not self.index.nodes[node].doubled:
            self._double(node)
        for i in range(identity, identity + <int32_t>n):
            primary = heads[i]
            fresh = i
            if primary == NONE:
                heads[i] = i
                self.rings[i] = Ring(i, i, i)
                num_new += 1
            else:
                if self.refs[i] != AWAY:
                    fresh = self._spare()
                    heads = self.index.heads
                    self.spares[node] += 1
                newest = self.rings[primary].older
                self.rings[newest].newer = fresh
                self.rings[fresh] = Ring(newest, primary, i)
                self.rings[primary].older = fresh
            self.refs[fresh] = 1
            copies[i - identity] = fresh
        self.num_cached += n
        entry = &self.index.nodes[node]
        entry.doubled = self.spares[node] > 0
        if num_new > 0:
            entry.holders += num_new
            if entry.watched:
                self.watch_dirty = True
        return num_new

    cdef int _double(self, int32_t node) except -1 nogil:
        """From now on the copies of a node's identities form rings; so far each is alone, and at home."""
        cdef int32_t first = node << self.index.shift
        cdef int32_t i
        if self.rings is NULL:
            # Rings last: where they are, both are.
            self.spares = <int32_t*>_resized(self.spares, self.capacity >> self.index.shift, sizeof(int32_t))
            self.rings = <Ring*>_resized(NULL, self.capacity, sizeof(Ring))
        for i in range(first, first + self.index.stride):
            self.rings[i] = Ring(i, i, i)
        self.index.nodes[node].doubled = 1
        self.spares[node] = 0
        return 0

    cdef int32_t _spare(self) except -1 nogil:
        """A place for a copy that cannot be at home."""
        cdef int32_t place = self.free_spare
        cdef int32_t node, i
        if place == NONE:
            node = self.index.private_node(NONE)
            self.index.nodes[node].doubled = 1
            if (<int64_t>self.index.node_capacity << self.index.shift) > self.capacity:
                self._grow()
            for i in range((node + 1) << self.index.shift, node << self.index.shift, -1):
                self.lru_next[i - 1] = self.free_spare
                self.free_spare = i - 1
            place = self.free_spare
        self.free_spare = self.lru_next[place]
        self.num_spares += 1
        return place

    cdef void _give_back(self, int32_t place) noexcept nogil:
        """A spare place is free again; when all are, the index gets its nodes back."""
        cdef int32_t node
        self.lru_next[place] = self.free_spare
        self.free_spare = place
        self.num_spares -= 1
        if self.num_spares > 0:
            return
        while self.free_spare != NONE:
            if self.free_spare & (self.index.stride - 1) == 0:
                node = self.free_spare >> self.index.shift
                self.index.hold(node)
                self.index.drop(node)
            self.free_spare = self.lru_next[self.free_spare]

    cdef int64_t release_cached(self, const int32_t* blocks, int64_t n) noexcept nogil:
        """Give one reference to each of `n` table entries back, from the last to the first; PRIVATE ones, which stand behind
        all others, are passed over.

        The last reference sends a copy to the tail of the LRU list. Returns how many entries were PRIVATE.
        """
        cdef int64_t num_cached = n
        cdef int64_t num_freed = 0
        cdef int32_t tail = self.lru_tail
        cdef int32_t copy
        cdef int64_t i
        cdef int32_t* refs = self.refs
        cdef int32_t* lru_prev = self.lru_prev
        cdef int32_t* lru_next = self.lru_next
        while num_cached > 0 and blocks[num_cached - 1] == PRIVATE:
            num_cached -= 1
        for i in range(num_cached - 1, -1, -1):
            copy = blocks[i]
            refs[copy] -= 1
            if refs[copy] > 0:
                continue
            lru_prev[copy] = tail
            if tail == NONE:
                self.lru_head = copy
            else:
                lru_next[tail] = copy
            tail = copy
            num_freed += 1
        if num_freed > 0:
            lru_next[tail] = NONE
            self.lru_tail = tail
            self.num_inactive += num_freed
        return n - num_cached

    cdef void release_private(self, int64_t n) noexcept nogil:
        self.num_free += n

    cdef void _evict(self, int64_t n) noexcept nogil:
        """Drop the first `n` of the LRU list; their blocks go straight to the caller, who counts them as private."""
        cdef int32_t victim = self.lru_head
        cdef int32_t node, num_gone      # identities of `node` that vanish
        cdef int32_t shift = self.index.shift
        cdef int32_t first, following
        cdef int64_t left = n
        cdef int32_t* heads = self.index.heads
        cdef int32_t* lru_next = self.lru_next
        while left > 0:
            node = victim >> shift
            num_gone = 0
            if self.index.nodes[node].doubled:
                following = lru_next[victim]
                node = self.rings[victim].identity >> shift
                num_gone = self._leave_ring(victim)
                victim = following
                left -= 1
            else:
                first = victim
                while num_gone < left and victim >> shift == node:
                    heads[victim] = NONE
                    victim = lru_next[victim]
                    num_gone += 1
                left -= num_gone
                if self.keep_removed:
                    self._keep_hashes(first, num_gone)
            if num_gone > 0:
                self._let_go(node, num_gone)
        self.lru_head = victim
        if victim == NONE:
            self.lru_tail = NONE
        else:
            self.lru_prev[victim] = NONE
        self.num_inactive -= n
        self.num_cached -= n

    cdef void _keep_hashes(self, int32_t victim, int64_t n) noexcept nogil:
        """List the hashes of `n` identities that vanish, in the order of their copies."""
        cdef int64_t _i
        for _i in range(n):
            self.removed[self.num_removed] = self.index.hashes[victim]
            self.num_removed += 1
            victim = self.lru_next[victim]

    cdef bint _leave_ring(self, int32_t copy) noexcept nogil:
        """A copy of a doubled node goes; whether its identity vanishes."""
        cdef Ring ring = self.rings[copy]
        cdef int32_t node = ring.identity >> self.index.shift
        cdef bint alone = ring.newer == copy
        if alone:
            if self.keep_removed:
                self.removed[self.num_removed] = self.index.hashes[ring.identity]
                self.num_removed += 1
            self.index.heads[ring.identity] = NONE
        else:
            self.rings[ring.older].newer = ring.newer
            self.rings[ring.newer].older = ring.older
            if self.index.heads[ring.identity] == copy:
                self.index.heads[ring.identity] = ring.newer
        if copy == ring.identity:
            self.refs[copy] = AWAY
        else:
            self._give_back(copy)
            self.spares[node] -= 1
            self.index.nodes[node].doubled = self.spares[node] > 0
        return alone

    cdef void _let_go(self, int32_t node, int32_t num_gone) noexcept nogil:
        """So many identities of a node are visible no longer."""
        cdef Node* entry = &self.index.nodes[node]
        if entry.watched:
            self.watch_dirty = True
        entry.holders -= num_gone - 1
        self.index.drop(node)

    cdef int _grow(self) except -1 nogil:
        """Room for a copy of each identity that the index has room for."""
        cdef int64_t capacity = <int64_t>self.index.node_capacity << self.index.shift
        self.refs = <int32_t*>_resized(self.refs, capacity, sizeof(int32_t))
        self.lru_prev = <int32_t*>_resized(self.lru_prev, capacity, sizeof(int32_t))
        self.lru_next = <int32_t*>_resized(self.lru_next, capacity, sizeof(int32_t))
        if self.rings is not NULL:
            self.rings = <Ring*>_resized(self.rings, capacity, sizeof(Ring))
            self.spares = <int32_t*>_resized(self.spares, self.index.node_capacity, sizeof(int32_t))
        self.capacity = capacity
        return 0

    cdef int _grow_removed(self, int64_t n) except -1 nogil:
        """A single acquisition can evict every copy there is, so the list of hashes is as long."""
        self.removed_capacity = 2 * (self.num_removed + self.num_cached + n)
        self.removed = <uint64_t*>_resized(self.removed, self.removed_capacity, sizeof(uint64_t))
        return 0

    cdef void _lru_remove(self, int32_t copy) noexcept nogil:
        cdef int32_t before = self.lru_prev[copy]
        cdef int32_t behind = self.lru_next[copy]
        if before == NONE:
            self.lru_head = behind
        else:
            self.lru_next[before] = behind
        if behind == NONE:
            self.lru_tail = before
        else:
            self.lru_prev[behind] = before
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
        return self.refs[copy]

    cdef int32_t _identity(self, int32_t copy) noexcept nogil:
        return self.rings[copy].identity if self.index.nodes[copy >> self.index.shift].doubled else copy

    def lru_order(self):
        """Identities in eviction order, next victim first."""
        order = []
        cdef int32_t copy = self.lru_head
        while copy != NONE:
            order.append(self._identity(copy))
            copy = self.lru_next[copy]
        return order

    def check(self):
        """Walk everything and compare the counts; AssertionError on the first contradiction. O(blocks)."""
        cdef int32_t copy, node, identity
        cdef int32_t before = NONE
        spare_places = set()
        copy = self.free_spare
        while copy != NONE:
            spare_places.add(copy)
            copy = self.lru_next[copy]
        inactive = set()
        copy = self.lru_head
        while copy != NONE:
            assert self.refs[copy] == 0 and copy not in spare_places, "referenced copy in the LRU list"
            assert self.lru_prev[copy] == before, "LRU list broken"
            before = copy
            inactive.add(copy)
            copy = self.lru_next[copy]
        assert before == self.lru_tail and len(inactive) == self.num_inactive, "LRU length"
        assert 0 <= self.num_free <= self.num_blocks, "free count"
        assert self.num_free + self.num_cached <= self.num_blocks, "more blocks than there are"
        cached = 0
        in_spare_places = 0
        for identity in range(self.index.node_top << self.index.shift):
            copy = self.index.heads[identity]
            if copy == NONE:
                continue
            node = identity >> self.index.shift
            while True:
                cached += 1
                assert copy not in spare_places, "an unused place is cached"
                assert self._identity(copy) == identity, "a copy under another identity"
                assert self.refs[copy] >= 0 and (self.refs[copy] == 0) == (copy in inactive), "unreferenced copy not in the list"
                in_spare_places += copy != identity
                if not self.index.nodes[node].doubled:
                    assert copy == identity, "a copy is not at home"
                    break
                assert self.rings[self.rings[copy].newer].older == copy, "ring of copies broken"
                copy = self.rings[copy].newer
                if copy == self.index.heads[identity]:
                    break
        assert cached == self.num_cached, "copies lost"
        assert in_spare_places == self.num_spares, "spare places lost"
        assert self.num_spares > 0 or not spare_places, "unused places kept"


cdef void* _resized(void* memory, int64_t n, size_t size) except NULL nogil:
    """Room for `n` entries; what there was stays where the caller has it if there is none."""
    cdef void* grown = realloc(memory, n * size)
    if grown is NULL:
        with gil:
            raise MemoryError(f"block pool of {n} cached blocks")
    return grown
