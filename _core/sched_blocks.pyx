"""What the flavours on the block pool share: prefix look-up, block tables, caching, release, cache events.

Decides how a request's known tokens map to blocks of the pool. Never decides who is scheduled.
Source: engine specification, sections 2.2, 2.3, 3.4, 4.1, 4.3, 4.5.
"""
from libc.stdlib cimport free, malloc, realloc

from .event_buffer cimport EV_CUT, EV_KV_REMOVED, EV_KV_STORED, EV_PREFILL, REASON_PROMPT_OVER_MODEL_LEN, WANT_KV, WANT_PREFILL, Event, EventBuffer
from .types cimport NONE, PRIVATE, STATUS_MATERIALISED, STATUS_RUNNING, ceil_div

cdef enum:
    HASH_SEED = 1337


cdef class BlockScheduler(Scheduler):
    def __dealloc__(self):
        free(self.hit_copies)
        free(self.rejected)

    cdef int64_t active_blocks(self) noexcept nogil:
        return self.pool.active()

    cdef int64_t inactive_blocks(self) noexcept nogil:
        return self.pool.num_inactive

    cdef bint covers(self, int64_t n_in, int64_t n_out, int64_t num_hash_ids) noexcept nogil:
        cdef int64_t whole = n_in // self.index.trace_block_size
        if self.index.knows_outputs:
            return not self.prefix_caching or num_hash_ids >= (n_in + n_out) // self.block_size
        return (not self.prefix_caching or num_hash_ids > whole
                or (num_hash_ids == whole and n_in == whole * self.index.trace_block_size))

    cdef int give_up(self, int32_t slot) except -1 nogil:
        cdef Request* request = &self.requests.slots[slot]
        cdef int64_t i
        self.release_blocks(request)
        for i in range(request.num_private_nodes):
            self.index.drop(request.private_nodes[i])
        if request.path_length > 0:
            self.index.drop(request.path[request.path_length - 1])
        return 0

    # -- what cannot be ---------------------------------------------------------------------------

    cdef int64_t needed_for(self, int32_t slot, int32_t reason) noexcept nogil:
        """The figure of a prompt that no configuration of this rank holds."""
        if reason == REASON_PROMPT_OVER_MODEL_LEN:
            return self.requests.slots[slot].n_in
        return ceil_div(self.requests.slots[slot].n_in, self.block_size)

    cdef int64_t available_for(self, int32_t reason) noexcept nogil:
        return self.max_model_len if reason == REASON_PROMPT_OVER_MODEL_LEN else self.pool.num_blocks

    # -- identities -------------------------------------------------------------------------------

    cdef int intern_path(self, Request* request) except -1 nogil:
        """Nodes of the prompt's full blocks, made when the request first reaches the head of the queue."""
        cdef int64_t full = request.n_in // self.block_size
        cdef int64_t depths = 0
        cdef int32_t node = NONE
        cdef int64_t depth
        if not self.prefix_caching or full == 0 or request.path is not NULL:
            return 0
        request.full_blocks = full
        depths = ((full * self.block_size - 1) // self.index.trace_block_size + 1) * self.index.parts
        while depths > 1 and self.index.first_block(depths - 1) >= full:
            depths -= 1
        request.path = <int32_t*>malloc(depths * sizeof(int32_t))
        if request.path is NULL:
            with gil:
                raise MemoryError(f"path of {depths} nodes")
        for depth in range(depths):
            node = self.index.child(node, request.hash_ids[depth // self.index.parts])
            request.path[depth] = node
        request.path_length = depths
        self.index.hold(node)
        if not self.keeps_hash_ids and not self.index.knows_outputs:
            free(request.hash_ids)
            request.hash_ids = NULL
        return 0

    cdef int32_t identity_of(self, Request* request, int64_t block) noexcept nogil:
        """Identity of a block that has one."""
        cdef int64_t depth, at
        if block >= request.full_blocks:
            at = block - request.full_blocks
            return (request.private_nodes[at >> self.index.shift] << self.index.shift) + <int32_t>(at & (self.index.stride - 1))
        if self.index.aligned:
            return (request.path[block >> self.index.shift] << self.index.shift) + <int32_t>(block & (self.index.stride - 1))
        # The trace block that holds the block's last token, then the part of it.
        depth = (((block + 1) * self.block_size - 1) // self.index.trace_block_size) * self.index.parts
        while self.index.parts > 1 and depth + 1 < request.path_length and self.index.first_block(depth + 1) <= block:
            depth += 1
        return (request.path[depth] << self.index.shift) + <int32_t>(block - self.index.first_block(depth))

    cdef int32_t private_identity(self, Request* request, int64_t block) except -1 nogil:
        """Identity of a block with a generated token, handed out when it is first computed to its end."""
        cdef int64_t at = block - request.full_blocks
        cdef int32_t* grown
        if at == request.num_private:
            if at >> self.index.shift == request.num_private_nodes:
                # Doubling steps: a power of two is full.
                if request.num_private_nodes & (request.num_private_nodes - 1) == 0:
                    grown = <int32_t*>realloc(request.private_nodes, max(1, request.num_private_nodes * 2) * sizeof(int32_t))
                    if grown is NULL:
                        with gil:
                            raise MemoryError("identities of generated blocks")
                    request.private_nodes = grown
                request.private_nodes[request.num_private_nodes] = self._generated_node(request, block)
                self.index.hold(request.private_nodes[request.num_private_nodes])
                request.num_private_nodes += 1
            request.num_private += 1
        return self.identity_of(request, block)

    cdef int32_t _generated_node(self, Request* request, int64_t block) except -1 nogil:
        """The node of the next block with generated tokens: the request's own, or found by its id."""
        cdef int32_t parent = NONE
        if not self.index.knows_outputs:
            return self.index.private_node(NONE)
        if request.num_private_nodes > 0:
            parent = request.private_nodes[request.num_private_nodes - 1]
        elif request.path_length > 0:
            parent = request.path[request.path_length - 1]
        return self.index.child(parent, request.hash_ids[block])

    # -- look-up ----------------------------------------------------------------------------------

    cdef int look_up(self, Request* request) except -1 nogil:
        """Leading cached blocks of everything the request knows; changes nothing in the pool."""
        cdef int64_t most, depth, block, end, i
        cdef int32_t* heads
        cdef int32_t* grown
        cdef int32_t copy, base
        self.num_hits = self.num_active_hits = 0
        if not self.prefix_caching:
            return 0
        self.intern_path(request)
        most = request.full_blocks + request.num_private
        if most > self.hit_capacity:
            grown = <int32_t*>realloc(self.hit_copies, 2 * most * sizeof(int32_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"look-up of {most} blocks")
            self.hit_copies = grown
            self.hit_capacity = 2 * most
        heads = self.index.heads
        block = 0
        for depth in range(request.path_length):
            end = self.index.first_block(depth + 1)
            if end > request.full_blocks:
                end = request.full_blocks
            base = request.path[depth] << self.index.shift
            for i in range(end - block):
                copy = heads[base + i]
                if copy == NONE:
                    return 0
                self.hit_copies[self.num_hits] = copy
                self.num_hits += 1
                if self.pool.refs[copy] > 0:
                    self.num_active_hits += 1
            block = end
        for i in range(request.num_private):
            copy = heads[self.identity_of(request, request.full_blocks + i)]
            if copy == NONE:
                return 0
            self.hit_copies[self.num_hits] = copy
            self.num_hits += 1
            if self.pool.refs[copy] > 0:
                self.num_active_hits += 1
        return 0

    cdef void cap_reuse(self, Request* request, bint logits, bint speculative) noexcept nogil:
        """How much of the last look-up may be reused: at least one token is computed where logits are needed."""
        cdef int64_t length = request.n_in + request.gen
        cdef int64_t cached = min(self.num_hits * self.block_size, length)
        cdef int64_t active = min(self.num_active_hits * self.block_size, length)
        cdef int64_t cap
        if logits:
            cap = ((length - 1) // self.block_size) * self.block_size if length > 0 else 0
            cached = min(cached, cap)
            active = min(active, cap)
            if speculative and cached >= self.block_size:
                cached -= self.block_size
                active = min(active, cached)
        self.cached_tokens = cached
        self.active_cached_tokens = active

    # -- tables -----------------------------------------------------------------------------------

    cdef int64_t append_blocks(self, Request* request, int64_t num_hits, int64_t num_fresh) except -1 nogil:
        """Enter blocks just acquired: the first `num_hits` of the last look-up, then private ones."""
        cdef int64_t length = request.table_length + num_hits + num_fresh
        cdef int64_t capacity, i
        cdef int32_t* grown
        if length > request.table_capacity:
            # What its whole life needs, unless that is out of proportion to what it has.
            capacity = max(length, min(2 * length + 16, ceil_div(request.n_in + request.n_out, self.block_size)))
            grown = <int32_t*>realloc(request.table, capacity * sizeof(int32_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"block table of {capacity} blocks")
            request.table = grown
            request.table_capacity = capacity
        for i in range(num_hits):
            request.table[request.table_length + i] = self.hit_copies[i]
        for i in range(request.table_length + num_hits, length):
            request.table[i] = PRIVATE
        request.table_length = length
        return length

    cdef int finalise(self, Request* request, int64_t before, int64_t after) except -1 nogil:
        """Tokens before..after are computed: blocks that are now full enter the cache."""
        cdef int64_t block = before // self.block_size
        cdef int64_t end = after // self.block_size
        cdef int64_t stored = 0          # newly visible blocks directly before `block`, not yet told
        cdef int64_t n
        cdef int32_t identity = 0
        cdef int64_t num_new
        if not self.prefix_caching:
            return 0
        if self.index.aligned and block < request.full_blocks and not self.want & WANT_KV:
            self.pool.cache_prompt(request.path, block, min(end, request.full_blocks), request.table)
            block = min(end, request.full_blocks)
        while block < end:
            n = self.private_run(request, block, end, &identity)
            num_new = self.pool.cache(identity, n, &request.table[block]) if n > 0 else 0
            if num_new == 0 or not self.want & WANT_KV:
                if stored > 0:
                    with gil:
                        self.publish_stored(request, block - stored, stored)
                    stored = 0
                block += max(n, 1)
            else:
                stored += 1
                block += 1
        if stored > 0:
            with gil:
                self.publish_stored(request, end - stored, stored)
        return 0

    cdef int compute(self, int32_t slot, int64_t before, int64_t take, bint from_waiting) except -1 nogil:
        """Note `take` tokens of work behind the first `before`; blocks for them are held. Who comes from waiting is not told
        of here: its admission comes first."""
        cdef Request* request = &self.requests.slots[slot]
        cdef int64_t after = before + take
        cdef int64_t prompt_before = min(before, request.n_in)
        request.computed = after
        self.finalise(request, before, after)
        request.scheduled_pass = self.pass_number
        request.work_total = take
        request.work_prompt = min(after, request.n_in) - prompt_before
        request.work_prefix = prompt_before
        request.work_terminal = self.remaining(slot) == 0
        self.num_scheduled += 1
        self.tokens_scheduled += take
        self.budget -= take
        if request.work_prompt > 0:
            self.prefill_requests += 1
            self.prefill_isl_sum += prompt_before + request.work_prompt
            self.prefill_prefix_sum += prompt_before
            if self.want & WANT_PREFILL and not from_waiting:
                self._publish_prefill(request)
        return 0

    cdef int64_t private_run(self, Request* request, int64_t block, int64_t end, int32_t* identity) except -1 nogil:
        """Blocks from `block` on, before `end`, that are private and get consecutive identities of one node; 0 if it is
        cached already. One at a time for generated tokens, and when each is told."""
        cdef int64_t limit = block + 1
        cdef int64_t n = 1
        if request.table[block] != PRIVATE:
            return 0
        if block >= request.full_blocks:
            identity[0] = self.private_identity(request, block)
            return 1
        identity[0] = self.identity_of(request, block)
        if self.want & WANT_KV:
            return 1
        limit = min(min(end, request.full_blocks), self.index.node_end(block))
        while block + n < limit and request.table[block + n] == PRIVATE:
            n += 1
        return n

    cdef void release_blocks(self, Request* request) noexcept nogil:
        """Give all blocks back, from the last to the first."""
        self.pool.release_private(self.pool.release_cached(request.table, request.table_length))
        request.table_length = 0
        self.head_blocked = False

    # -- rejections and records of work -----------------------------------------------------------

    cdef int reject(self, int32_t slot, int32_t reason, bint is_aside) except -1 nogil:
        """Drop the hopeless request that is tried, of those set aside or of the queue; it ends with the pass."""
        cdef int32_t* grown
        if self.num_rejected == self.rejected_capacity:
            grown = <int32_t*>realloc(self.rejected, (self.rejected_capacity * 2 + 16) * 2 * sizeof(int32_t))
            if grown is NULL:
                with gil:
                    raise MemoryError("rejected requests")
            self.rejected = grown
            self.rejected_capacity = self.rejected_capacity * 2 + 16
        self.rejected[2 * self.num_rejected] = slot
        self.rejected[2 * self.num_rejected + 1] = reason
        self.num_rejected += 1
        if is_aside:
            self._take_out(slot)
        else:
            self.pop_waiting()
        return 0

    cdef int publish_unqueued_cuts(self, EventBuffer out, double now_ms) except -1 nogil:
        cdef int64_t i
        for i in range(self.num_rejected):
            out.emplace(EV_CUT, now_ms, self.worker, self.rank, self.requests.slots[self.rejected[2 * i]].ordinal)
        return 0

    cdef int _publish_prefill(self, Request* request) except -1 nogil:
        cdef Event* event = self.start_events.emplace(EV_PREFILL, self.pass_start_ms, self.worker, self.rank, request.ordinal)
        event.a, event.b, event.c = request.work_prompt, request.work_prefix, request.work_total
        return 0

    # -- cache events -----------------------------------------------------------------------------

    cdef int publish_removed(self) except -1 nogil:
        """One event for the identities that vanished in the last acquisition."""
        cdef Event* event
        cdef int64_t* words
        cdef Py_ssize_t i
        if self.pool.num_removed == 0:
            return 0
        event = self.kv_events.emplace(EV_KV_REMOVED, self.pass_start_ms, self.worker, self.rank, NONE)
        event.a = self.pool.num_removed
        words = self.kv_events.emplace_words(event, self.pool.num_removed)
        for i in range(self.pool.num_removed):
            words[i] = <int64_t>self.pool.removed[i]
        self.pool.num_removed = 0
        return 0

    cdef int publish_stored(self, Request* request, int64_t first_block, int64_t num_blocks) except -1:
        """One event for a run of newly visible blocks; their hashes are computed here, once per identity."""
        cdef Event* event
        cdef int64_t* words
        cdef int64_t i
        cdef uint64_t value
        chain = self.hash_of(request, first_block - 1) if first_block > 0 else 0
        hashes = [chain]
        for i in range(num_blocks):
            local = self.local_hash(request, first_block + i)
            chain = self.chain_hash(chain, first_block + i, local)
            self.index.hashes[self.identity_of(request, first_block + i)] = chain
            hashes += (chain, local)
        event = self.kv_events.emplace(EV_KV_STORED, self.pass_start_ms, self.worker, self.rank, request.ordinal)
        event.a, event.b = num_blocks, first_block
        words = self.kv_events.emplace_words(event, len(hashes))
        for i in range(len(hashes)):
            value = hashes[i]
            words[i] = <int64_t>value
        return 0

    cdef uint64_t hash_of(self, Request* request, int64_t block) except? 0:
        """Chain hash of a block that was visible before."""
        return self.index.hashes[self.identity_of(request, block)]

    cdef object chain_hash(self, uint64_t parent, int64_t block, uint64_t local):
        """Hash of a block and all before it."""
        if block == 0:
            return local
        return self._xxh3(int(parent).to_bytes(8, "little") + int(local).to_bytes(8, "little"), HASH_SEED)

    cdef object local_hash(self, Request* request, int64_t block):
        """XXH3-64 of a block's tokens as little-endian 32-bit words. A prompt token is its trace hash id, unless the
        caller knows prompts by their tokens."""
        cdef int64_t begin = block * self.block_size
        cdef int64_t end = begin + self.block_size
        cdef int64_t at = begin
        cdef int64_t upto
        cdef uint64_t key = 0
        if self.asks_prompt_tokens:
            return self._xxh3(self._block_tokens(request.ordinal, begin - request.n_in, end - request.n_in), HASH_SEED)
        parts = []
        while at < end and at < request.n_in:
            key = request.hash_ids[at // self.index.trace_block_size]
            upto = min(min((at // self.index.trace_block_size + 1) * self.index.trace_block_size, end), request.n_in)
            parts.append((key & 0xffffffff, upto - at))
            at = upto
        if len(parts) == 1 and at == end:
            known = self._uniform_hashes.get(key)
            if known is None:
                known = self._uniform_hashes[key] = self._xxh3(int(parts[0][0]).to_bytes(4, "little") * self.block_size, HASH_SEED)
            return known
        data = b"".join([int(token).to_bytes(4, "little") * count for token, count in parts])
        if at < end:
            data += self._block_tokens(request.ordinal, at - request.n_in, end - request.n_in)
        return self._xxh3(data, HASH_SEED)

    # -- test door --------------------------------------------------------------------------------

    cdef list slots_outside(self):
        """Requests in no queue that are owned here all the same."""
        return []

    cdef list held_sources(self):
        """Copies held by others than requests."""
        return []

    def check(self):
        """Compare pool, index and queues with what the requests hold, between two passes or commands.

        AssertionError on the first contradiction; O(blocks + requests).
        """
        cdef Request* request
        cdef int32_t copy
        cdef int64_t i, k
        references = {}
        holds = 0
        num_private = 0
        slots = [self.running[i] for i in range(self.num_running)]
        slots += [self._waiting_at(i) for i in range(self.num_aside + self.num_waiting - self.parked.count)]
        queued = len(slots)
        slots += self.slots_outside()
        assert len(set(slots)) == len(slots) == self.requests.num_owned, "a request in no queue, or in two"
        for k in range(<int64_t>len(slots)):
            request = &self.requests.slots[<int32_t>slots[k]]
            assert (request.status == STATUS_RUNNING) == (k < self.num_running), "status and queue differ"
            assert request.steady == (k < self.num_steady), "steady requests are no prefix of running"
            assert (k < self.num_running + self.num_aside or k >= queued or request.table_length == 0
                    or request.status == STATUS_MATERIALISED), "a waiting request holds blocks"
            holds += request.num_private_nodes + (request.path_length > 0)
            for i in range(request.table_length):
                copy = request.table[i]
                assert i == 0 or copy == PRIVATE or request.table[i - 1] != PRIVATE, "a cached block behind a private one"
                if copy == PRIVATE:
                    num_private += 1
                else:
                    references[copy] = references.get(copy, 0) + 1
        for copy in self.held_sources():
            references[copy] = references.get(copy, 0) + 1
        self.pool.check()
        self.index.check()
        assert self.pool.num_blocks == self.pool.num_free + self.pool.num_cached + num_private, "blocks lost"
        assert len(references) == self.pool.num_cached - self.pool.num_inactive, "referenced copies nobody holds"
        for copy in references:
            assert self.pool.refs[copy] == references[copy], "reference count"
        assert self.index.num_holds() == holds, "nodes held by nobody"
