"""Pages of requests in the SGLang flavour.

A request holds the pages of the tokens it has computed. The leading ones stand in the radix tree, locked for it, where
later requests find them; the others are its own until they are published. Decides what a request takes, shows and gives
back when the scheduler says so, and the same for sources and destinations of handoffs. Never decides who is scheduled.

Of the block pool of other flavours only the size is used, of their index only the geometry. Source: SGLang engine
specification, sections 3.3 and 10; handoff specification, section 2.
"""
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from .block_pool cimport BlockPool
from .event_buffer cimport EV_KV_REMOVED, EV_KV_STORED, STAGE_DESTINATION_ACTIVATED, STAGE_DESTINATION_RESERVED, TERM_COMPLETED, WANT_KV, Event
from .handoff cimport OWN_ACTIVE, OWN_RESERVED, OWN_SOURCE_HELD, OWN_SOURCE_PENDING
from .prefix_index cimport PrefixIndex
from .radix_tree cimport ROOT
from .types cimport APPLY_APPLIED, APPLY_NOOP, NONE, STATUS_MATERIALISED, STATUS_RUNNING, ceil_div


cdef class PageScheduler(HandoffScheduler):
    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.paged_capacity):
            free(self.paged[i].chain)
            free(self.paged[i].local)
        free(self.paged)

    cdef int set_pages(self, int64_t num_pages, int64_t page_size, int64_t trace_block_size, bint knows_outputs) except -1:
        """The pool, and what hash ids stand for; called once, when all that is wanted is known."""
        if knows_outputs and trace_block_size != page_size:
            raise ValueError("hash ids of outputs stand for engine blocks")
        self.block_size = page_size
        self.index = PrefixIndex(page_size, trace_block_size)
        self.index.knows_outputs = knows_outputs
        self.pool = BlockPool(self.index, num_pages)
        self.tree = RadixTree(page_size, trace_block_size, num_pages, bool(self.want & WANT_KV))
        return 0

    cdef int note_request(self, int32_t slot) except -1 nogil:
        cdef int32_t capacity = self.requests.capacity
        cdef Paged* grown
        if slot >= self.paged_capacity:
            grown = <Paged*>realloc(self.paged, capacity * sizeof(Paged))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"pages of {capacity} requests")
            memset(&grown[self.paged_capacity], 0, (capacity - self.paged_capacity) * sizeof(Paged))
            self.paged, self.paged_capacity = grown, capacity
        self.paged[slot].node = NONE
        self.paged[slot].num_published = self.paged[slot].num_hashed = 0
        self.num_too_long += self.requests.slots[slot].n_in >= self.max_model_len
        return HandoffScheduler.note_request(self, slot)

    # -- what a request holds ---------------------------------------------------------------------

    cdef int64_t pages_of(self, int64_t tokens) noexcept nogil:
        return ceil_div(tokens, self.block_size)

    cdef void keys_of(self, int32_t slot, PageKeys* keys) noexcept nogil:
        """What the pages of a request hold; with a token of its own in it, a page is nobody else's."""
        cdef Request* request = &self.requests.slots[slot]
        keys.ids, keys.owner, keys.hashes = request.hash_ids, request.arrival_number, self.paged[slot].chain
        keys.num_named = (request.n_in + (request.n_out if self.index.knows_outputs else 0)) // self.block_size

    cdef int64_t cached_pages(self, int32_t slot, int64_t num_pages) noexcept nogil:
        """Of the first so many pages of a request, those in the tree."""
        cdef PageKeys keys
        if not self.prefix_caching or num_pages <= 0:
            return 0
        self.keys_of(slot, &keys)
        return self.tree.peek(&keys, num_pages)

    cdef int64_t available(self) noexcept nogil:
        """Pages that are free or may be evicted."""
        return self.tree.num_free + self.tree.num_evictable

    cdef bint take_pages(self, int64_t num_pages) except -1 nogil:
        """Take pages for a request, evicting what is missing; all or none."""
        if num_pages > self.available():
            return False
        self.evict_for(num_pages)
        return self.tree.take(num_pages)

    cdef int evict_for(self, int64_t num_pages) except -1 nogil:
        """Evict until so many pages are free, or nothing is left to evict."""
        if num_pages <= self.tree.num_free:
            return 0
        self.tree.evict(num_pages - self.tree.num_free)
        return self._tell_removed() if self.tree.num_removed > 0 else 0

    cdef bint allocate(self, int32_t slot, int64_t start, int64_t end) except -1 nogil:
        """Pages for the tokens up to `end`, of which those before `start` are in the tree or held; False: no room."""
        cdef Request* request = &self.requests.slots[slot]
        cdef Paged* paged = &self.paged[slot]
        cdef int64_t first = start // self.block_size
        cdef int32_t node = ROOT
        cdef PageKeys keys
        if paged.node != NONE:
            if not self.take_pages(self.pages_of(end) - request.table_length):
                return False
        else:
            if first > 0:
                self.keys_of(slot, &keys)
                node = self.tree.match_and_lock(&keys, first)
            if not self.take_pages(self.pages_of(end) - first):
                self.tree.unlock(node)
                return False
            paged.node, paged.num_published = node, first
        request.computed = end
        request.table_length = self.pages_of(end)
        return True

    cdef void grow(self, int32_t slot) noexcept nogil:
        """One token more; its page is one of those taken for all that grow."""
        cdef Request* request = &self.requests.slots[slot]
        request.computed += 1
        request.table_length = self.pages_of(request.computed)

    # -- the tree ---------------------------------------------------------------------------------

    cdef int publish(self, int32_t slot) except -1 nogil:
        """Whatever pages of a request are full can be found from now on."""
        cdef Paged* paged = &self.paged[slot]
        cdef int64_t end = self.requests.slots[slot].computed // self.block_size
        cdef int64_t num_known = 0
        cdef int32_t node
        if not self.prefix_caching or end <= paged.num_published:
            return 0
        node = self.cache_until(slot, end, &num_known)
        if node != paged.node:
            self.tree.lock(node)
            self.tree.unlock(paged.node)
        self.tree.give(num_known)
        paged.node, paged.num_published = node, end
        return 0

    cdef int finish(self, int32_t slot) except -1 nogil:
        """A request is complete: its full pages stay in the tree, the others are free."""
        cdef Request* request = &self.requests.slots[slot]
        cdef Paged* paged = &self.paged[slot]
        cdef int64_t keep = min(request.n_in + request.gen, request.computed) // self.block_size
        cdef int64_t num_known = 0
        if paged.node == NONE:
            return 0
        if not self.prefix_caching:
            keep = 0
        if keep > paged.num_published:
            self.cache_until(slot, keep, &num_known)
            self.tree.give(num_known + request.table_length - keep)
            self.tree.unlock(paged.node)
            paged.node, paged.num_published, request.table_length = NONE, 0, 0
            return 0
        return self.release(slot)

    cdef int release(self, int32_t slot) noexcept nogil:
        """What a request published stays in the tree, unlocked; its other pages are free."""
        cdef Request* request = &self.requests.slots[slot]
        cdef Paged* paged = &self.paged[slot]
        if paged.node == NONE:
            return 0
        self.tree.give(request.table_length - paged.num_published)
        self.tree.unlock(paged.node)
        paged.node, paged.num_published = NONE, 0
        request.table_length = request.computed = 0
        return 0

    cdef int32_t cache_until(self, int32_t slot, int64_t end, int64_t* num_known) except -1 nogil:
        cdef Paged* paged = &self.paged[slot]
        cdef PageKeys keys
        cdef int32_t node
        if self.want & WANT_KV:
            with gil:
                self._hash_until(slot, end)
        self.keys_of(slot, &keys)
        node = self.tree.insert(paged.node, &keys, end, num_known)
        if self.want & WANT_KV and paged.num_published + num_known[0] < end:
            with gil:
                self._tell_stored(slot, paged.num_published + num_known[0], end)
        return node

    cdef void release_blocks(self, Request* request) noexcept nogil:
        self.release(<int32_t>(request - self.requests.slots))

    cdef int give_up(self, int32_t slot) except -1 nogil:
        self.num_too_long -= self.requests.slots[slot].n_in >= self.max_model_len
        return HandoffScheduler.give_up(self, slot)

    cdef int end_request(self, int32_t slot, int32_t status, int32_t reason, int64_t needed,
                         int64_t available) except -1 nogil:
        if status == TERM_COMPLETED and self.ownership_of(slot) != OWN_SOURCE_PENDING:
            self.finish(slot)
        return HandoffScheduler.end_request(self, slot, status, reason, needed, available)

    # -- cache events -----------------------------------------------------------------------------

    cdef int _hash_until(self, int32_t slot, int64_t end) except -1:
        """Hashes of the first pages of a request, each computed once."""
        cdef Request* request = &self.requests.slots[slot]
        cdef Paged* paged = &self.paged[slot]
        cdef int64_t capacity = max(end, 2 * paged.hash_capacity)
        cdef int64_t i
        cdef uint64_t* grown
        cdef uint64_t chain
        if end > paged.hash_capacity:
            grown = <uint64_t*>realloc(paged.chain, capacity * sizeof(uint64_t))
            if grown is not NULL:
                paged.chain = grown
                grown = <uint64_t*>realloc(paged.local, capacity * sizeof(uint64_t))
            if grown is NULL:
                raise MemoryError(f"hashes of {capacity} pages")
            paged.local, paged.hash_capacity = grown, capacity
        for i in range(paged.num_hashed, end):
            local = self.local_hash(request, i)
            chain = self.chain_hash(paged.chain[i - 1] if i > 0 else 0, i, local)
            paged.chain[i], paged.local[i] = chain, local
            paged.num_hashed = i + 1
        return 0

    cdef int _tell_stored(self, int32_t slot, int64_t first, int64_t end) except -1:
        cdef Paged* paged = &self.paged[slot]
        cdef Event* event = self.kv_events.emplace(
            EV_KV_STORED, self.pass_start_ms, self.worker, self.rank, self.requests.slots[slot].ordinal)
        cdef int64_t* words = self.kv_events.emplace_words(event, 2 * (end - first) + 1)
        cdef int64_t i
        event.a, event.b = end - first, first
        words[0] = <int64_t>paged.chain[first - 1] if first > 0 else 0
        for i in range(end - first):
            words[1 + 2 * i] = <int64_t>paged.chain[first + i]
            words[2 + 2 * i] = <int64_t>paged.local[first + i]
        return 0

    cdef int _tell_removed(self) except -1 nogil:
        cdef Event* event = self.kv_events.emplace(EV_KV_REMOVED, self.pass_start_ms, self.worker, self.rank, NONE)
        cdef int64_t* words = self.kv_events.emplace_words(event, self.tree.num_removed)
        cdef int64_t i
        event.a = self.tree.num_removed
        for i in range(self.tree.num_removed):
            words[i] = <int64_t>self.tree.removed[i]
        self.tree.num_removed = 0
        return 0

    # -- handoffs ---------------------------------------------------------------------------------

    cdef bint has_work(self) noexcept nogil:
        return self.num_running + self.num_waiting + self.num_aside > 0 and not self.stalled

    cdef bint holds_any(self) noexcept nogil:
        return self.num_aside > 0 or HandoffScheduler.holds_any(self)

    cdef int end_source(self, int64_t handoff, bint cancel, double now_ms, EventBuffer out) except -1 nogil:
        """A held source is complete: its pages stay in the tree."""
        cdef int32_t entry = self.handoffs.find(handoff)
        if entry != NONE and self.handoffs.entries[entry].state == OWN_SOURCE_HELD:
            self.kv_events.reset()           # what it held was shown with its pass
            self.finish(self.handoffs.entries[entry].slot)
            out.extend(self.kv_events, now_ms)
        return HandoffScheduler.end_source(self, handoff, cancel, now_ms, out)

    cdef int reserve_head(self, double now_ms, EventBuffer out) except -1 nogil:
        """As for other flavours; running requests do not keep anybody from having pages."""
        cdef int32_t entry, slot
        cdef Request* request
        cdef int64_t first
        cdef bint reserved
        if not self.handoffs.head_may_try():
            return 0
        entry = self.handoffs.head
        slot = self.handoffs.entries[entry].slot
        request = &self.requests.slots[slot]
        first = self.cached_pages(slot, request.n_in // self.block_size)
        self.kv_events.reset()
        reserved = self.allocate(slot, first * self.block_size, request.n_in)
        out.extend(self.kv_events, now_ms)
        if not reserved:
            self.handoffs.head_failed()
            return 0
        self.handoffs.move(entry, OWN_RESERVED)
        self.stalled, self.line_moved = False, True  # what the line kept out may enter
        return self._tell(out, slot, STAGE_DESTINATION_RESERVED, self.handoffs.entries[entry].handoff,
                          (request.table_length - first) * self.block_size, now_ms)

    cdef int activate(self, int64_t handoff, double now_ms, EventBuffer out) except -1 nogil:
        """The prompt has arrived: its pages can be found from now on, and the request goes before all that wait."""
        cdef int32_t entry = self.handoffs.find(handoff)
        cdef int64_t active = self.active_blocks()
        cdef int32_t slot
        if entry == NONE or self.handoffs.entries[entry].state != OWN_RESERVED:
            return APPLY_NOOP
        slot = self.handoffs.entries[entry].slot
        self.kv_events.reset()
        self.publish(slot)
        if self.active_blocks() < active:
            self.handoffs.generation += 1    # pages that another prompt had brought were given back
        out.extend(self.kv_events, now_ms)
        self._count_waiting(slot, -1)
        self.requests.slots[slot].status = STATUS_MATERIALISED
        self.handoffs.move(entry, OWN_ACTIVE)
        self.push_aside(slot)
        self.passes_without_gain = 0
        self._tell(out, slot, STAGE_DESTINATION_ACTIVATED, handoff, self.requests.slots[slot].n_in, now_ms)
        return APPLY_APPLIED

    # -- gauges and test doors --------------------------------------------------------------------

    cdef int64_t active_blocks(self) noexcept nogil:
        """All but the free ones: what is cached counts, whoever uses it."""
        return self.tree.num_pages - self.tree.num_free

    cdef int64_t inactive_blocks(self) noexcept nogil:
        return 0

    def held_by_requests(self):
        """Pages that cannot be had: their requests hold them, alone or in the tree."""
        return self.tree.num_pages - self.available()

    def check(self):
        """Compare pages and tree with what the requests hold, between two passes or commands.

        AssertionError on the first contradiction; O(nodes + requests).
        """
        cdef int64_t i, k
        cdef int32_t slot, node
        slots = [self.running[i] for i in range(self.num_running)]
        slots += [self._waiting_at(i) for i in range(self.num_aside + self.num_waiting)]
        slots += self.slots_outside()
        assert len(set(slots)) == len(slots) == self.requests.num_owned, "a request in no queue, or in two"
        private = 0
        locks = {}
        for k in range(<int64_t>len(slots)):
            slot = slots[k]
            request = &self.requests.slots[slot]
            assert (request.status == STATUS_RUNNING) == (k < self.num_running), "status and queue differ"
            if self.paged[slot].node == NONE:
                assert request.table_length == 0 and k >= self.num_running, "pages of nobody, or nobody's pages"
                continue
            assert request.table_length == self.pages_of(request.computed), "pages and tokens differ"
            assert self.tree.end_of(self.paged[slot].node) == self.paged[slot].num_published, "locked elsewhere"
            private += request.table_length - self.paged[slot].num_published
            node = self.paged[slot].node
            while node != ROOT:
                locks[node] = locks.get(node, 0) + 1
                node = self.tree.nodes[node].parent
        self.tree.check()
        self.handoffs.check()
        assert self.tree.num_pages == self.tree.num_free + self.tree.num_cached + private, "pages lost"
        assert locks == {node: held for node, *_, held, _ in self.tree.edges() if held > 0}, "locks of nobody"
