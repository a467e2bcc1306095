"""Page pool and radix tree of one rank in the SGLang flavour.

A page of `page_size` tokens is free, held by one request alone, or cached on one node of the tree. A node's edge is a
run of pages, and where a sequence of tokens goes from the root says which pages hold its beginning. What an edge holds is
kept as the trace's hash ids of its tokens, never page by page, and compared so: a prompt of 100 000 pages of one token
costs as much as its trace blocks. Pages with generated tokens are known to their request alone and only counted.

Decides what a sequence finds, how edges are split and joined, and which page goes next: the last page of the unlocked
leaf that was used longest ago, kept in a heap. Never decides who takes pages or gives them back; which page is taken is
nobody's matter, so they have no numbers. Source: SGLang engine specification, section 3.
"""
cimport cython
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from .types cimport NONE, ceil_div


cdef inline uint64_t _mix(uint64_t h, uint64_t key) noexcept nogil:
    """Spread one more key into a hash: multiply-xorshift rounds."""
    h = (h ^ key) * <uint64_t>0x9E3779B97F4A7C15
    h ^= h >> 29
    h *= <uint64_t>0xBF58476D1CE4E5B9
    return h ^ (h >> 32)


cdef int _reserve(uint64_t** array, int64_t* capacity, int64_t length) except -1 nogil:
    """Make room for `length` words in an owned array."""
    cdef int64_t wanted = max(length, capacity[0] + (capacity[0] >> 1) + 4)
    cdef uint64_t* grown
    if length <= capacity[0]:
        return 0
    grown = <uint64_t*>realloc(array[0], wanted * sizeof(uint64_t))
    if grown is NULL:
        with gil:
            raise MemoryError(f"an edge of {wanted} ids")
    array[0], capacity[0] = grown, wanted
    return 0


@cython.final
cdef class RadixTree:
    """Pages of one rank.

    Args:
        page_size, trace_block_size: tokens of a page, and tokens a hash id stands for.
        num_pages: of the pool.
        keeps_hashes: sequences come with a chain hash a page, and those of evicted pages are told.
    """

    def __cinit__(self, int64_t page_size, int64_t trace_block_size, int64_t num_pages, bint keeps_hashes=False):
        cdef int64_t i
        if page_size < 1 or trace_block_size < 1 or num_pages < 1:
            raise ValueError("sizes must be positive")
        self.page_size, self.trace_block_size = page_size, trace_block_size
        self.num_pages = self.num_free = num_pages
        self.keeps_hashes = keeps_hashes
        self.free_node = NONE
        self.table_mask = 255
        self.table = <int32_t*>malloc((self.table_mask + 1) * sizeof(int32_t))
        if self.table is NULL:
            raise MemoryError("radix tree")
        for i in range(self.table_mask + 1):
            self.table[i] = NONE
        self._new_node()

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.node_top):
            free(self.nodes[i].ids)
            free(self.nodes[i].hashes)
        free(self.nodes)
        free(self.table)
        free(self.candidates)
        free(self.removed)

    # -- the pool ---------------------------------------------------------------------------------

    cdef bint take(self, int64_t num_pages) noexcept nogil:
        """Take free pages; all or none."""
        if num_pages > self.num_free:
            return False
        self.num_free -= num_pages
        return True

    cdef void give(self, int64_t num_pages) noexcept nogil:
        """Give pages back that no node holds."""
        self.num_free += num_pages

    # -- looking ----------------------------------------------------------------------------------

    cdef int64_t end_of(self, int32_t node) noexcept nogil:
        """Pages from the root to the end of a node's edge."""
        return self.nodes[node].first + self.nodes[node].num_pages

    cdef int64_t peek(self, const PageKeys* keys, int64_t num_pages) noexcept nogil:
        """How many of the first pages of a sequence are cached; changes nothing."""
        cdef int64_t at = 0
        cdef int64_t n
        cdef int32_t node = ROOT
        while at < num_pages:
            node = self._child(node, keys, at)
            if node == NONE:
                break
            n = self._equal_pages(&self.nodes[node], keys, num_pages - at)
            at += n
            if n < self.nodes[node].num_pages:
                break
        return at

    cdef int32_t match_and_lock(self, const PageKeys* keys, int64_t num_pages) except -1 nogil:
        """Lock what holds as many of the first pages as are cached; the node at which they end."""
        cdef int64_t at = 0
        cdef int64_t n
        cdef int32_t node = ROOT
        cdef int32_t child
        self.clock += 1
        while at < num_pages:
            child = self._child(node, keys, at)
            if child == NONE:
                break
            n = self._equal_pages(&self.nodes[child], keys, num_pages - at)
            at += n
            if n < self.nodes[child].num_pages:
                node = self._split(child, n)     # it was not used up, so it is as old as it was
                break
            self._touch(child)
            node = child
        self.lock(node)
        return node

    cdef void lock(self, int32_t node) noexcept nogil:
        while node != ROOT:
            if self.nodes[node].num_locks == 0:
                self.num_evictable -= self.nodes[node].num_pages
                self._leave_candidates(node)
            self.nodes[node].num_locks += 1
            node = self.nodes[node].parent

    cdef void unlock(self, int32_t node) noexcept nogil:
        while node != ROOT:
            self.nodes[node].num_locks -= 1
            if self.nodes[node].num_locks == 0:
                self.num_evictable += self.nodes[node].num_pages
                if self.nodes[node].num_children == 0:
                    self._become_candidate(node)
            node = self.nodes[node].parent

    # -- caching ----------------------------------------------------------------------------------

    cdef int32_t insert(self, int32_t start, const PageKeys* keys, int64_t end, int64_t* num_known) except -1 nogil:
        """Cache the pages of a sequence from the end of `start`, which its owner has locked, up to `end`.

        Returns the node at which they end, which is not locked for them. `num_known`: how many were cached already; the
        tree does not take these from the owner.
        """
        cdef int64_t at = self.end_of(start)
        cdef int64_t n
        cdef int32_t node = start
        cdef int32_t child
        num_known[0] = 0
        if at >= end:
            return start
        self.clock += 1
        while node != ROOT:
            self._touch(node)
            node = self.nodes[node].parent
        node = start
        while at < end:
            # Nobody but its owner stands at the end of this edge: it grows.
            if node != ROOT and self.nodes[node].num_children == 0 and (
                    self.nodes[node].num_locks == 0 or (node == start and self.nodes[node].num_locks == 1)):
                self._append(node, keys, end)
                return node
            child = self._child(node, keys, at)
            if child == NONE:
                return self._new_child(node, keys, end)
            n = self._equal_pages(&self.nodes[child], keys, end - at)
            at += n
            num_known[0] += n
            if n < self.nodes[child].num_pages:
                node = self._split(child, n)
                return self._new_child(node, keys, end) if at < end else node
            self._touch(child)
            node = child
        return node

    cdef int evict(self, int64_t num_pages) except -1 nogil:
        """Free so many cached pages, or as many as nobody has locked: leaf by leaf, the longest unused first."""
        cdef RadixNode* node
        cdef int64_t n
        while num_pages > 0 and self.num_candidates > 0:
            node = &self.nodes[self.candidates[0]]
            n = min(num_pages, node.num_pages)
            if self.keeps_hashes:
                self._tell_removed(node, n)
            num_pages -= n
            self.num_free += n
            self.num_evictable -= n
            self.num_cached -= n
            if n < node.num_pages:
                self._cut(node, node.num_pages - n)
            else:
                self._remove_leaf(self.candidates[0])
        return 0

    cdef int _tell_removed(self, const RadixNode* node, int64_t num_pages) except -1 nogil:
        """The last pages of an edge go, the very last one first."""
        cdef int64_t i
        _reserve(&self.removed, &self.removed_capacity, self.num_removed + num_pages)
        for i in range(num_pages):
            self.removed[self.num_removed + i] = node.hashes[node.num_pages - 1 - i]
        self.num_removed += num_pages
        return 0

    # -- edges ------------------------------------------------------------------------------------

    cdef int64_t _equal_pages(self, const RadixNode* node, const PageKeys* keys, int64_t most) noexcept nogil:
        """How many leading pages of an edge, at most so many, hold what the sequence holds there."""
        cdef int64_t named, at, end, base
        most = min(most, node.num_pages)
        named = max(min(min(node.num_named, keys.num_named - node.first), most), 0)
        if named > 0:
            base = node.first * self.page_size // self.trace_block_size
            end = ((node.first + named) * self.page_size - 1) // self.trace_block_size + 1
            for at in range(base, end):
                if node.ids[at - base] != keys.ids[at]:
                    return max(at * self.trace_block_size // self.page_size - node.first, 0)
        if named < most and node.owner == keys.owner:
            return most
        return named

    cdef uint64_t _spread_of(self, int32_t parent, const PageKeys* keys, int64_t page) noexcept nogil:
        """Hash of a page of a sequence below a node."""
        cdef uint64_t h = _mix(0, <uint64_t>parent)
        cdef int64_t at
        if page >= keys.num_named:
            return _mix(_mix(h, 1), <uint64_t>keys.owner)
        for at in range(page * self.page_size // self.trace_block_size,
                        ((page + 1) * self.page_size - 1) // self.trace_block_size + 1):
            h = _mix(h, keys.ids[at])
        return h

    cdef int32_t _child(self, int32_t parent, const PageKeys* keys, int64_t page) noexcept nogil:
        """The child whose edge begins with this page of the sequence, or NONE."""
        cdef uint64_t spread = self._spread_of(parent, keys, page)
        cdef int32_t at = self.table[spread & <uint64_t>self.table_mask]
        while at != NONE:
            if (self.nodes[at].spread == spread and self.nodes[at].parent == parent
                    and self._equal_pages(&self.nodes[at], keys, 1) == 1):
                return at
            at = self.nodes[at].next
        return NONE

    cdef int32_t _new_child(self, int32_t parent, const PageKeys* keys, int64_t end) except -1 nogil:
        """An unlocked leaf with the pages of a sequence from the end of its parent up to `end`."""
        cdef int64_t first = self.end_of(parent)
        cdef int32_t at = self._new_node()
        cdef RadixNode* node = &self.nodes[at]
        node.parent, node.first = parent, first
        node.spread = self._spread_of(parent, keys, first)
        self._map(at)
        self._leave_candidates(parent)
        self.nodes[parent].num_children += 1
        self._append(at, keys, end)
        self._become_candidate(at)
        return at

    cdef int _append(self, int32_t at, const PageKeys* keys, int64_t end) except -1 nogil:
        """Let the edge of a leaf go on along a sequence up to `end`; its pages have just been used."""
        cdef RadixNode* node = &self.nodes[at]
        cdef int64_t more = end - node.first - node.num_pages
        cdef int64_t base = node.first * self.page_size // self.trace_block_size
        cdef int64_t named = min(end, keys.num_named) - node.first
        cdef int64_t num_ids
        if named > node.num_named:
            num_ids = ceil_div((node.first + named) * self.page_size, self.trace_block_size) - base
            _reserve(&node.ids, &node.id_capacity, num_ids)
            memcpy(&node.ids[node.num_ids], &keys.ids[base + node.num_ids], (num_ids - node.num_ids) * sizeof(uint64_t))
            node.num_named, node.num_ids = named, num_ids
        if end > keys.num_named:
            node.owner = keys.owner
        if self.keeps_hashes:
            _reserve(&node.hashes, &node.hash_capacity, node.num_pages + more)
            memcpy(&node.hashes[node.num_pages], &keys.hashes[node.first + node.num_pages], more * sizeof(uint64_t))
        node.num_pages += more
        self.num_cached += more
        if node.num_locks == 0:
            self.num_evictable += more
        self._touch(at)
        return 0

    cdef int32_t _split(self, int32_t at, int64_t num_pages) except -1 nogil:
        """Give the first pages of an edge to a node of their own above it, as used and as locked as it is."""
        cdef int32_t upper = self._new_node()
        cdef RadixNode* node = &self.nodes[at]
        cdef RadixNode* above = &self.nodes[upper]
        cdef PageKeys keys
        cdef int64_t gone, page
        above.parent, above.first, above.num_pages, above.num_named = node.parent, node.first, node.num_pages, node.num_named
        above.owner, above.num_locks, above.stamp, above.spread = node.owner, node.num_locks, node.stamp, node.spread
        above.num_children = 1
        above.num_ids = node.num_ids
        _reserve(&above.ids, &above.id_capacity, node.num_ids)
        memcpy(above.ids, node.ids, node.num_ids * sizeof(uint64_t))
        if self.keeps_hashes:
            _reserve(&above.hashes, &above.hash_capacity, num_pages)
            memcpy(above.hashes, node.hashes, num_pages * sizeof(uint64_t))
            memmove(node.hashes, &node.hashes[num_pages], (node.num_pages - num_pages) * sizeof(uint64_t))
        self._cut(above, num_pages)
        self._unmap(at)
        self._map(upper)
        # The lower part: its first page, told as if it began at the root's first token.
        page = node.first + num_pages
        gone = page * self.page_size // self.trace_block_size - node.first * self.page_size // self.trace_block_size
        node.num_named = max(node.num_named - num_pages, 0)
        node.num_ids = node.num_ids - gone if node.num_named > 0 else 0
        if node.num_ids > 0:
            memmove(node.ids, &node.ids[gone], node.num_ids * sizeof(uint64_t))
        node.parent, node.first, node.num_pages = upper, page, node.num_pages - num_pages
        keys.ids = node.ids - page * self.page_size // self.trace_block_size
        keys.num_named, keys.owner, keys.hashes = page + node.num_named, node.owner, NULL
        node.spread = self._spread_of(upper, &keys, page)
        self._map(at)
        return upper

    cdef void _cut(self, RadixNode* node, int64_t num_pages) noexcept nogil:
        """Keep the first pages of an edge only."""
        cdef int64_t base = node.first * self.page_size // self.trace_block_size
        node.num_pages = num_pages
        node.num_named = min(node.num_named, num_pages)
        node.num_ids = 0
        if node.num_named > 0:
            node.num_ids = ceil_div((node.first + node.num_named) * self.page_size, self.trace_block_size) - base
        if node.num_named == num_pages:
            node.owner = NONE

    # -- nodes ------------------------------------------------------------------------------------

    cdef int32_t _new_node(self) except -1 nogil:
        cdef int32_t at = self.free_node
        cdef int64_t capacity = max(64, <int64_t>self.node_capacity * 2)
        cdef RadixNode* nodes
        cdef int32_t* candidates
        if at != NONE:
            self.free_node = self.nodes[at].next
        else:
            if self.node_top == self.node_capacity:
                if capacity > 0x7fffffff:
                    with gil:
                        raise MemoryError("more than 2**31 cached runs of pages")
                nodes = <RadixNode*>realloc(self.nodes, capacity * sizeof(RadixNode))
                if nodes is not NULL:
                    self.nodes = nodes
                candidates = <int32_t*>realloc(self.candidates, capacity * sizeof(int32_t))
                if candidates is not NULL:
                    self.candidates = candidates
                if nodes is NULL or candidates is NULL:
                    with gil:
                        raise MemoryError(f"radix tree of {capacity} nodes")
                self.node_capacity = <int32_t>capacity
            at = self.node_top
            self.node_top += 1
        memset(&self.nodes[at], 0, sizeof(RadixNode))
        self.nodes[at].parent = self.nodes[at].next = self.nodes[at].place = NONE
        self.nodes[at].owner = NONE
        self.num_nodes += 1
        if self.num_nodes > self.table_mask:
            self._grow_table()
        return at

    cdef void _remove_leaf(self, int32_t at) noexcept nogil:
        """Forget an unlocked leaf; what is above it may be the next one."""
        cdef RadixNode* node = &self.nodes[at]
        cdef int32_t parent = node.parent
        self._leave_candidates(at)
        self._unmap(at)
        free(node.ids)
        free(node.hashes)
        node.ids = node.hashes = NULL
        node.num_pages = 0
        node.next = self.free_node
        self.free_node = at
        self.num_nodes -= 1
        self.nodes[parent].num_children -= 1
        if parent != ROOT and self.nodes[parent].num_children == 0 and self.nodes[parent].num_locks == 0:
            self._become_candidate(parent)

    cdef void _map(self, int32_t at) noexcept nogil:
        cdef int64_t slot = <int64_t>(self.nodes[at].spread & <uint64_t>self.table_mask)
        self.nodes[at].next = self.table[slot]
        self.table[slot] = at

    cdef void _unmap(self, int32_t at) noexcept nogil:
        """Take a node out of its chain."""
        cdef int32_t* link = &self.table[self.nodes[at].spread & <uint64_t>self.table_mask]
        while link[0] != at:
            link = &self.nodes[link[0]].next
        link[0] = self.nodes[at].next

    cdef int _grow_table(self) except -1 nogil:
        cdef int64_t mask = self.table_mask * 4 + 3
        cdef int64_t i
        cdef int32_t at, behind
        cdef int32_t* old = self.table
        cdef int64_t old_mask = self.table_mask
        cdef int32_t* grown = <int32_t*>malloc((mask + 1) * sizeof(int32_t))
        if grown is NULL:
            with gil:
                raise MemoryError("radix tree table")
        for i in range(mask + 1):
            grown[i] = NONE
        self.table, self.table_mask = grown, mask
        for i in range(old_mask + 1):
            at = old[i]
            while at != NONE:
                behind = self.nodes[at].next
                self._map(at)
                at = behind
        free(old)
        return 0

    # -- who goes next ----------------------------------------------------------------------------

    cdef void _touch(self, int32_t at) noexcept nogil:
        """A node is used by the operation under way."""
        self.nodes[at].stamp = self.clock
        if self.nodes[at].place != NONE:
            self._sift(self.nodes[at].place)

    cdef void _become_candidate(self, int32_t at) noexcept nogil:
        self.candidates[self.num_candidates] = at
        self.nodes[at].place = <int32_t>self.num_candidates
        self.num_candidates += 1
        self._sift(self.num_candidates - 1)

    cdef void _leave_candidates(self, int32_t at) noexcept nogil:
        """A node is no unlocked leaf any more; nothing happens to one that was none."""
        cdef int32_t place = self.nodes[at].place
        cdef int32_t last
        if place == NONE:
            return
        self.nodes[at].place = NONE
        self.num_candidates -= 1
        last = self.candidates[self.num_candidates]
        if last != at:
            self.candidates[place] = last
            self.nodes[last].place = place
            self._sift(place)

    cdef void _sift(self, int64_t place) noexcept nogil:
        """Move an entry of the heap to where its stamp belongs; no two leaves have the same one."""
        cdef int32_t at = self.candidates[place]
        cdef int64_t stamp = self.nodes[at].stamp
        cdef int64_t other
        while place > 0:
            other = (place - 1) >> 1
            if self.nodes[self.candidates[other]].stamp <= stamp:
                break
            self.candidates[place] = self.candidates[other]
            self.nodes[self.candidates[place]].place = <int32_t>place
            place = other
        while 2 * place + 1 < self.num_candidates:
            other = 2 * place + 1
            if (other + 1 < self.num_candidates
                    and self.nodes[self.candidates[other + 1]].stamp < self.nodes[self.candidates[other]].stamp):
                other += 1
            if self.nodes[self.candidates[other]].stamp >= stamp:
                break
            self.candidates[place] = self.candidates[other]
            self.nodes[self.candidates[place]].place = <int32_t>place
            place = other
        self.candidates[place] = at
        self.nodes[at].place = <int32_t>place

    # -- test doors -------------------------------------------------------------------------------

    def find(self, ids, int64_t num_named, int64_t owner, int64_t num_pages):
        """As `peek`: ids as a tuple, the pages they name, the request's number, how many pages are looked for."""
        cdef _Sequence sequence = _Sequence(ids, num_named, owner)
        return self.peek(&sequence.keys, num_pages)

    def hold(self, ids, int64_t num_named, int64_t owner, int64_t num_pages):
        """As `match_and_lock`; (node, pages up to its end)."""
        cdef _Sequence sequence = _Sequence(ids, num_named, owner)
        cdef int32_t node = self.match_and_lock(&sequence.keys, num_pages)
        return node, self.end_of(node)

    def hold_node(self, int32_t node):
        """As `lock`."""
        self.lock(node)

    def let_go(self, int32_t node):
        """As `unlock`."""
        self.unlock(node)

    def store(self, int32_t start, ids, int64_t num_named, int64_t owner, int64_t end):
        """As `insert`; (node, pages that were cached already)."""
        cdef _Sequence sequence = _Sequence(ids, num_named, owner)
        cdef int64_t num_known = 0
        cdef int32_t node = self.insert(start, &sequence.keys, end, &num_known)
        return node, num_known

    def shrink(self, int64_t num_pages):
        """As `evict`."""
        self.evict(num_pages)

    def borrow(self, int64_t num_pages):
        """As `take`."""
        return bool(self.take(num_pages))

    def give_back(self, int64_t num_pages):
        """As `give`."""
        self.give(num_pages)

    def edges(self):
        """(node, parent, first page, pages, pages with ids, owner, locks, stamp) of all nodes but the root, by node."""
        cdef int32_t i
        return [
            (i, self.nodes[i].parent, self.nodes[i].first, self.nodes[i].num_pages, self.nodes[i].num_named,
             self.nodes[i].owner, self.nodes[i].num_locks, self.nodes[i].stamp)
            for i in range(1, self.node_top) if self.nodes[i].num_pages > 0
        ]

    def check(self):
        """Compare counts, chains and heap with the nodes; AssertionError on the first contradiction. O(nodes)."""
        cdef int32_t i, at
        cdef int64_t place
        children = {}
        used = [i for i in range(1, self.node_top) if self.nodes[i].num_pages > 0]
        assert len(used) + 1 == self.num_nodes, "nodes lost"
        for i in used:
            children[self.nodes[i].parent] = children.get(self.nodes[i].parent, 0) + 1
            at = self.table[self.nodes[i].spread & <uint64_t>self.table_mask]
            while at != NONE and at != i:
                at = self.nodes[at].next
            assert at == i, "a node that nobody finds"
            assert self.nodes[i].first == self.end_of(self.nodes[i].parent), "an edge that begins elsewhere"
            assert (self.nodes[i].owner == NONE) == (self.nodes[i].num_named == self.nodes[i].num_pages), "pages of nobody"
        for i in used:
            assert self.nodes[i].num_children == children.get(i, 0), "children miscounted"
            parent = self.nodes[i].parent
            assert parent == ROOT or self.nodes[parent].num_locks >= self.nodes[i].num_locks, "locks below, none above"
            leaf = self.nodes[i].num_children == 0 and self.nodes[i].num_locks == 0
            assert (self.nodes[i].place != NONE) == leaf, "candidates are unlocked leaves"
        for place in range(self.num_candidates):
            assert self.nodes[self.candidates[place]].place == place, "a candidate elsewhere"
            above = self.nodes[self.candidates[(place - 1) // 2]].stamp if place > 0 else -1
            assert self.nodes[self.candidates[place]].stamp > above, "the heap is none"
        assert self.num_cached == sum(self.nodes[i].num_pages for i in used), "cached pages miscounted"
        free_of_locks = sum(self.nodes[i].num_pages for i in used if self.nodes[i].num_locks == 0)
        assert self.num_evictable == free_of_locks, "evictable pages miscounted"
        assert 0 <= self.num_free <= self.num_pages - self.num_cached, "pages lost"


cdef class _Sequence:
    """Keys out of Python values, for tests."""
    cdef PageKeys keys
    cdef uint64_t* ids

    def __cinit__(self, ids, int64_t num_named, int64_t owner):
        cdef Py_ssize_t i
        self.ids = <uint64_t*>malloc((len(ids) + 1) * sizeof(uint64_t))
        if self.ids is NULL:
            raise MemoryError("ids")
        for i in range(len(ids)):
            self.ids[i] = ids[i]
        self.keys.ids, self.keys.num_named, self.keys.owner, self.keys.hashes = self.ids, num_named, owner, NULL

    def __dealloc__(self):
        free(self.ids)
