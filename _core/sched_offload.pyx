"""A host tier's part in a pass: what is stored, what is loaded, who waits for a copy, and which pass does.

Complete prompt blocks are written through to the tier when they have been computed. A waiting request whose prompt goes
on in the tier gets blocks and loads; until its copy has come in, or while somebody else's copy of what it needs is under
way, it is set aside, and those set aside go before the queue. Blocks that are still being copied out may be handed out
again; the pass that writes them ends that much later.

Decides: stores, loads, the wait of a pass. Never decides who is admitted of those who need no copy, and keeps no host
memory itself (offload). Without a tier nothing here is in the way. Source: hand-off and offload specification, 10 to 13.
"""
from libc.math cimport INFINITY, NAN
from libc.stdlib cimport free, malloc

from .block_pool cimport POOL_OK
from .event_buffer cimport EV_GAUGES, EV_HOST, HOST_EVICTED, HOST_FENCE, HOST_LOAD_CANCELLED, HOST_LOAD_COMPLETED, HOST_LOAD_RETURNED
from .event_buffer cimport HOST_LOAD_SCHEDULED, HOST_STORE_COMPLETED, HOST_STORE_PREPARED, HOST_STORE_SUBMITTED, WANT_KV, Event
from .lanes cimport Envelope
from .offload cimport STORE_PRESENT, STORE_RETRY, HostTier, Transfer, transfer_at
from .sched_hosted cimport HostedScheduler
from .sched_reads cimport Hosted
from .shared_tier cimport SharedTier
from .types cimport NONE, PRIVATE, STATUS_MATERIALISED, STATUS_WAITING, ceil_div


cdef class OffloadScheduler(HostedScheduler):
    cdef int set_tier(self, HostTier tier) except -1:
        self.tier = tier
        self.keys = None if tier is None else tier.keys
        self.has_tier = self.works_behind = tier is not None
        self.is_shared = self.shares_tier = isinstance(tier, SharedTier)
        self.fences = self.has_tier and not self.is_shared
        if self.is_shared:
            self.shared = tier
            self.member = self.shared.join()
        self.keeps_hash_ids = self.want & WANT_KV or self.has_tier
        return 0

    # -- what others do to it ---------------------------------------------------------------------

    cdef int wait_for_store(self, int32_t victim) except -1 nogil:
        """A request lost its blocks: this pass waits for its own store, and it must ask the tier again."""
        if self.fences and self.tier.store_in_flight(self.hosted[victim].store):
            self.fence = max(self.fence, self.hosted[victim].store)
        self.hosted[victim].loaded = False
        return 0

    # -- the queue --------------------------------------------------------------------------------

    cdef void open_tier_pass(self) noexcept nogil:
        self.fence = NONE
        self.aside_at = 0
        self.started_load = self.looks_again = self.gave_back = self.nudged = False
        self.may_give_back = self.is_last_resort or not self.is_shared
        self.is_last_resort = self.hopes = False
        self.num_promised = -1

    cdef int32_t next_in_turn(self, bint* is_aside) noexcept nogil:
        """Who is tried next in this pass: those set aside go before the queue; NONE when it is over."""
        cdef bint gated = self.gates_fresh()
        is_aside[0] = False
        if self.has_tier:
            if self.budget == 0:
                return NONE
            while self.aside_at < self.num_aside and (
                    self._waits_on(self.aside[self.aside_at])
                    or gated and self.requests.slots[self.aside[self.aside_at]].status != STATUS_MATERIALISED):
                self.aside_at += 1
            if self.aside_at < self.num_aside:
                is_aside[0] = True
                return self.aside[self.aside_at]
        if not self.any_candidate():
            return NONE
        return self.first_materialised() if gated else self.candidate()

    cdef int queue_activated(self, int32_t slot) except -1 nogil:
        """With a tier, who was activated goes before all who wait for blocks, behind those activated who came before."""
        cdef Request* other
        cdef int64_t at
        if not self.has_tier or self.has_policy:
            return HostedScheduler.queue_activated(self, slot)
        self.push_aside(slot)
        at = self.num_aside - 1
        while at > 0:
            other = &self.requests.slots[self.aside[at - 1]]
            if other.status == STATUS_MATERIALISED and other.arrival_number < self.requests.slots[slot].arrival_number:
                break
            self.aside[at], at = self.aside[at - 1], at - 1
        self.aside[at] = slot
        return 0

    cdef TierAnswer consult_tier(self, int32_t slot) except TIER_FAILED nogil:
        """What the tier says to a waiting request that may be admitted as far as its lengths go."""
        cdef Request* request = &self.requests.slots[slot]
        cdef Hosted* hosted = &self.hosted[slot]
        if hosted.load != NONE:
            return TIER_ASIDE
        if hosted.awaits != NONE:
            self._touch_all(hosted)      # it asks again, and waits on even if a prefill worker has brought what it needs
            return TIER_ASIDE
        if hosted.loaded:
            self.num_hits = request.table_length
            self.cap_reuse(request, request.n_out - request.gen > 0, False)
            hosted.cursor = self.cached_tokens // self.block_size     # what is reused is not offered; the rest is, also again
            # All it holds is its own: what of it is computed again needs no other block.
            self.active_cached_tokens = request.table_length * self.block_size
            self.num_promised = -1   # it may be admitted
            return TIER_LOADED
        if self.tier.store_in_flight(hosted.store):
            return TIER_ASIDE
        self.look_up(request)
        if hosted.path_length == 0:
            with gil:
                self._number_blocks(slot)
        return self._match(slot, self.num_hits)

    cdef TierAnswer _match(self, int32_t slot, int64_t base) except TIER_FAILED nogil:
        """Blocks of the tier behind those on the device."""
        cdef Hosted* hosted = &self.hosted[slot]
        cdef int64_t i
        cdef int64_t matched = 0
        cdef bint busy = False
        for i in range(base, hosted.num_keys):
            if self.tier.entry_of(self._key_of(hosted, i)) == NONE:
                break
            matched += 1
            if not busy and self._is_busy(self._key_of(hosted, i), i):
                busy = True
                if not self.is_shared:
                    hosted.awaits = self.tier.load_of(self._key_of(hosted, i))
                    self.num_awaiting += hosted.awaits != NONE
        self._touch_all(hosted)
        if matched == 0:
            return TIER_MISS
        return TIER_ASIDE if busy else self._load(slot, base, matched)

    cdef bint _is_busy(self, int32_t identity, int64_t block) noexcept nogil:
        """A block that the tier has or will have cannot be loaded now: it is not there yet, or is being loaded. Ranks that
        share the tier load the same block beside each other; a load of this rank counts until it was taken."""
        cdef Hosted* other
        cdef int64_t i
        if not self.is_shared:
            return not self.tier.is_free_to_load(identity)
        if self.tier.is_pending(identity):
            return True
        for i in range(self.num_aside if self.num_loading > 0 else 0):
            other = &self.hosted[self.aside[i]]
            if (other.load != NONE and other.base_blocks <= block < self.requests.slots[self.aside[i]].table_length
                    and self._key_of(other, block) == identity):
                return True
        return False

    cdef TierAnswer _load(self, int32_t slot, int64_t base, int64_t matched) except TIER_FAILED nogil:
        """Start a load, if there is room for all that the request knows; it holds the blocks from here on."""
        cdef Request* request = &self.requests.slots[slot]
        cdef Transfer* load
        cdef double not_before_ms = self.pass_start_ms
        cdef int64_t blocks = ceil_div(request.n_in + request.gen, self.block_size)
        cdef int64_t i
        if request.status == STATUS_WAITING and blocks > self.pool.num_blocks:
            return TIER_MISS         # it will be rejected, but it was looked up and touched as any other
        self.cap_reuse(request, request.n_out - request.gen > 0, False)
        # A load leaves room for those that began before; who needs no copy does not.
        if (blocks - self.active_cached_tokens // self.block_size
                > self.pool.num_blocks - self.pool.active() - self._promised()):
            return TIER_WAIT
        if self.acquire(base, matched) != POOL_OK:
            return TIER_WAIT
        if self.pool.num_removed > 0:
            self.publish_removed()
        self.append_blocks(request, base, matched)
        for i in range(matched if self.fences else 0):
            if self.fresh_reads[i] != NONE:
                not_before_ms = max(not_before_ms, self.tier.store_end_ms(self.fresh_reads[i]))
        self._keys(&self.hosted[slot], base, base + matched)
        load = self.tier.schedule_load(self.identities, matched, not_before_ms, request.ordinal, slot)
        self.hosted[slot].load, self.hosted[slot].base_blocks = load.ordinal, base
        self.num_loading += 1
        self.num_promised += blocks - request.table_length
        self.started_load = True
        self._tell_host(self.start_events, self.pass_start_ms, request.ordinal, HOST_LOAD_SCHEDULED, load.number, matched,
                        NAN if self.is_shared else load.end_ms)
        if self.is_shared:
            self.shared.begin_copy(load, self.member, self.pass_start_ms)
        return TIER_ASIDE

    cdef int64_t _promised(self) noexcept nogil:
        """Blocks that those set aside whose load has begun will need beyond those they hold; counted when first asked for
        in a pass, and again when one of them was admitted."""
        cdef Request* request
        cdef int64_t i
        if self.num_promised < 0:
            self.num_promised = 0
            for i in range(self.num_aside):
                if self.hosted[self.aside[i]].load != NONE or self.hosted[self.aside[i]].loaded:
                    request = &self.requests.slots[self.aside[i]]
                    self.num_promised += ceil_div(request.n_in + request.gen, self.block_size) - request.table_length
        return self.num_promised

    cdef int set_aside_for_copy(self, int32_t slot, bint is_aside) except -1 nogil:
        """It waits for a copy: those behind it are tried."""
        self.hosted[slot].asked_at = self.num_seen if self.hosted[slot].load == NONE else NONE
        if not is_aside:
            self.pop_waiting()
            self.push_aside(slot)
        self.aside_at += 1
        return 0

    cdef int64_t host_tokens(self, int32_t slot) noexcept nogil:
        """Of what its admission reuses, the tokens that came from the host."""
        cdef int64_t device = self.hosted[slot].base_blocks * self.block_size
        return max(0, self.cached_tokens - device) if self.hosted[slot].loaded else 0

    # -- the rest of a pass -----------------------------------------------------------------------

    cdef double close_schedule(self, double now_ms) except -1.0 nogil:
        """All is scheduled: offer what was computed to the tier, and say when the blocks of the pass may be written."""
        cdef int64_t i
        cdef double fence_ms
        for i in range(self.num_running):
            if self.requests.slots[self.running[i]].scheduled_pass == self.pass_number:
                self._offer(self.running[i])
        if self.fence == NONE:
            return now_ms
        fence_ms = self.tier.store_end_ms(self.fence)
        if not fence_ms > now_ms:
            return now_ms
        self._tell_host(self.start_events, now_ms, NONE, HOST_FENCE, NONE, 0, fence_ms)
        return fence_ms

    cdef int _offer(self, int32_t slot) except -1 nogil:
        """Write the complete prompt blocks of a request through, those that were computed since the last time."""
        cdef Request* request = &self.requests.slots[slot]
        cdef Hosted* hosted = &self.hosted[slot]
        cdef int64_t end = min(request.computed, request.n_in) // self.block_size
        cdef int64_t first = hosted.cursor
        cdef int64_t i, store
        if end <= first:
            return 0
        if hosted.path_length == 0:
            with gil:
                self._number_blocks(slot)
        for i in range(first, end if self.fences else first):
            if (self.tier.entry_of(self._key_of(hosted, i)) == NONE
                    and self._read_of(request, hosted, i) != NONE):
                return 0             # what stands in the block is not written yet
        self._keys(hosted, first, end)
        if self.is_shared and self.tier.lacks_any(self.identities, end - first):
            self.shared.advance(self.pass_start_ms)
        store = self.tier.prepare_store(self.identities, end - first, request.ordinal)
        if store == STORE_RETRY:
            return 0
        hosted.cursor = end
        if store == STORE_PRESENT:
            return 0
        hosted.store = store
        if self.tier.num_evicted > 0:
            self._tell_host(self.start_events, self.pass_start_ms, NONE, HOST_EVICTED, NONE, self.tier.num_evicted, NAN)
        if self.is_shared:
            self._hold_sources(slot, first, end)
        for i in range(first, end if self.fences else first):
            if self.tier.is_stored_by(self._key_of(hosted, i), store):
                if request.table[i] == PRIVATE:
                    hosted.reads[i] = store
                else:
                    self.copy_reads[request.table[i]] = store
        self._tell_host(self.start_events, self.pass_start_ms, request.ordinal, HOST_STORE_PREPARED, self.tier.next_number - 1,
                        self.tier.num_stored(), NAN)
        self._touch_all(hosted)
        return 0

    cdef int _hold_sources(self, int32_t slot, int64_t first, int64_t end) except -1 nogil:
        """Nobody can say when a copy of a shared tier ends: what it reads is held until then."""
        cdef Request* request = &self.requests.slots[slot]
        cdef Hosted* hosted = &self.hosted[slot]
        cdef int32_t* sources = <int32_t*>malloc(self.tier.num_stored() * sizeof(int32_t))
        cdef int64_t i
        cdef int64_t n = 0
        if sources is NULL:
            with gil:
                raise MemoryError(f"store of {self.tier.num_stored()} blocks")
        for i in range(first, end):
            if self.tier.is_stored_by(self._key_of(hosted, i), hosted.store):
                sources[n] = request.table[i]
                n += 1
        self.pool.acquire(sources, n, 0)
        self.shared.claim_store(self.member, sources)
        return 0

    cdef bint stands_by(self) except -1 nogil:
        """The pass could do nothing: whether that is because copies are under way, or because those came in that have
        no room for the rest of what they need."""
        cdef int32_t slot
        cdef int64_t i
        if self.tier.copies():
            self.stalled = True
            return True
        if self.num_running > 0 or self.handoffs.waits_outside():
            return False                 # blocks will be given back
        for i in range(self.num_aside - 1, -1, -1):
            slot = self.aside[i]
            if self.hosted[slot].loaded and not self.may_give_back:
                self.stalled = True          # another worker may take away what somebody waits for, and so let him in
                return True
            if self.hosted[slot].loaded:
                # Blocks wait for blocks: the last to come in gives its own back and asks again.
                self._tell_host(self.start_events, self.pass_start_ms, self.requests.slots[slot].ordinal, HOST_LOAD_RETURNED,
                                NONE, self.requests.slots[slot].table_length, NAN)
                self.release_blocks(&self.requests.slots[slot])
                self.requests.slots[slot].alloc = 0
                self.hosted[slot].loaded = False
                self.handoffs.generation += 1
                self.gave_back = True
                return True
        return False

    # -- copies that end --------------------------------------------------------------------------

    cdef double next_internal_ms(self) noexcept nogil:
        if not self.has_tier:
            return INFINITY
        if self.nudged:
            return self.nudged_ms
        return self.shared.next_of(self.member) if self.is_shared else self.tier.next_end_ms()

    cdef bint next_instant(self, double now_ms) noexcept nogil:
        """Something happens somewhere: a rank that stands still looks again, at the tier it shares or for its siblings."""
        if not (self.stalled and (self.is_shared or self.looks_around) and self.any_to_try()):
            return False
        self.nudged, self.nudged_ms = True, now_ms
        return True

    cdef bint nothing_moves(self, double now_ms) noexcept nogil:
        """Where requests that have loaded hold each other up, one of them gives its blocks back when nobody else moves; who
        hoped for what others would store does so no more."""
        cdef int64_t i
        cdef bint looks = self.hopes
        if not self.is_shared or not self.stalled:
            return False
        for i in range(self.num_aside):
            looks = looks or self.hosted[self.aside[i]].loaded
        if looks:
            self.is_last_resort = self.nudged = True
            self.nudged_ms = now_ms
        return looks

    cdef int process_internal(self, double now_ms, EventBuffer out) except -1 nogil:
        cdef int64_t seen = self.num_seen
        if self.nudged:
            self.nudged = self.stalled = False
            if self.next_internal_ms() > now_ms:
                return 0
        self.end_copies(out, now_ms)
        return self.handoffs.num_pending > 0 and self.num_seen > seen

    cdef int end_copies(self, EventBuffer out, double at_ms) except -1 nogil:
        """Copies that have ended by then: what they brought is there."""
        cdef Transfer done
        self.kv_events.reset()
        if self.is_shared:
            self.shared.advance(at_ms)
            if self.shared.take_wake(self.member):
                self._see_end()
            while self.shared.take(self.member, &done):
                self._finish(&done, out, at_ms)
        else:
            while self.tier.finish_next(at_ms, &done):
                self._finish(&done, out, at_ms)
        out.extend(self.kv_events, at_ms)
        self.kv_events.reset()
        return 0

    cdef void _see_end(self) noexcept nogil:
        """A copy has ended: whoever was told to wait may ask again, and who is first in line for blocks may try."""
        self.stalled, self.looks_again = False, True
        self.num_seen += 1
        self.handoffs.generation += 1

    cdef int _finish(self, Transfer* done, EventBuffer out, double at_ms) except -1 nogil:
        """One copy of this rank has ended."""
        self._see_end()
        free(done.entries)
        if done.sources is not NULL:
            self.pool.release_cached(done.sources, done.num_entries)
            free(done.sources)
        if not done.is_store:
            self._await_no_more(done.ordinal)
            self._activate(done.slot)
        self._tell_host(out, at_ms, done.request, HOST_STORE_COMPLETED if done.is_store else HOST_LOAD_COMPLETED,
                        done.number, done.num_entries, done.end_ms)
        return 0

    cdef int _activate(self, int32_t slot) except -1 nogil:
        """A load has come in: what the request reserved for it is cached, and it may be admitted."""
        cdef Request* request = &self.requests.slots[slot]
        cdef Hosted* hosted = &self.hosted[slot]
        self.num_loading -= 1
        hosted.load = NONE
        hosted.loaded = True
        request.alloc = min(request.table_length * self.block_size, request.n_in + request.gen)
        return self.finalise(request, hosted.base_blocks * self.block_size, request.table_length * self.block_size)

    cdef int hand_off(self, Envelope* envelope, double now_ms, bint in_pass, EventBuffer out) except -1 nogil:
        """As HostedScheduler.hand_off; copies that have ended are seen first, without serving the line for them."""
        if self.has_tier and not in_pass and not (self.is_shared and self.shared.next_of(self.member) > now_ms):
            self.end_copies(out, now_ms)
        return HostedScheduler.hand_off(self, envelope, now_ms, in_pass, out)

    cdef int publish_end(self, EventBuffer out, double end_ms) except -1 nogil:
        cdef Transfer submitted
        cdef Transfer* store
        cdef Py_ssize_t head = out.count
        HostedScheduler.publish_end(self, out, end_ms)
        if not self.has_tier:
            return 0
        if self.holds_copies:
            self.holds_copies = False
            return self._close_behind_copies(out, head, end_ms)
        self.end_copies(out, end_ms)
        if self.is_shared:
            while self.shared.submit_of(self.member, end_ms, &submitted):
                self._tell_host(out, end_ms, submitted.request, HOST_STORE_SUBMITTED, submitted.number,
                                submitted.num_entries, NAN)
        else:
            while True:
                store = self.tier.next_to_submit(end_ms)
                if store is NULL:
                    break
                self._tell_host(out, end_ms, store.request, HOST_STORE_SUBMITTED, store.number, store.num_entries, store.end_ms)
        self.end_copies(out, end_ms)
        return self._close_behind_copies(out, head, end_ms)

    cdef int _close_behind_copies(self, EventBuffer out, Py_ssize_t head, double end_ms) except -1 nogil:
        """The pass is over and its copies are seen: those in line are tried, and its gauges say what came of it."""
        cdef Py_ssize_t i
        if self._try_line(end_ms, out):
            self.publish_gauges(out, end_ms, 0, False)
            out.count -= 1
            for i in range(head, out.count):
                if out.records[i].kind == EV_GAUGES:
                    out.records[i] = out.records[out.count]
        return 0

    cdef int serve_line(self, double now_ms, EventBuffer out) except -1 nogil:
        """Copies have ended: try the head of the line."""
        return self.publish_gauges(out, now_ms, 0, False) if self._try_line(now_ms, out) else 0

    cdef bint _try_line(self, double now_ms, EventBuffer out) except -1 nogil:
        """Try the head of the line, if there is one; whether gauges may be others now: stores may have given blocks back."""
        if self.handoffs.num_pending == 0:
            return self.is_shared
        self.reserve_head(now_ms, out)
        return True

    cdef int close_pass(self, EventBuffer out, double end_ms) except -1 nogil:
        """With a tier, those in line are looked at behind the copies of the pass: they may wait for one."""
        return 0 if self.has_tier else HostedScheduler.close_pass(self, out, end_ms)

    cdef int cancel(self, int32_t ordinal, bint discard, double now_ms, EventBuffer out, bint* suppressed) except -1 nogil:
        cdef int32_t slot = self.requests.find(ordinal)
        cdef Transfer load
        load.num_entries = 0
        if self.has_tier and slot != NONE and self.hosted[slot].load != NONE:
            if self.is_shared:
                self.shared.advance(now_ms)
            self.tier.cancel_load(self.hosted[slot].load, &load)
            free(load.entries)
            self._await_no_more(load.ordinal)
            self.num_loading -= 1
            self.num_seen += 1               # whoever waited for it may ask again
            self.hosted[slot].load = NONE
        self.stalled = False
        cdef int result = HostedScheduler.cancel(self, ordinal, discard, now_ms, out, suppressed)
        if load.num_entries > 0:
            self._tell_host(out, now_ms, ordinal, HOST_LOAD_CANCELLED, load.number, load.num_entries,
                            NAN if self.is_shared else load.end_ms)
        return result

    cdef bint has_work(self) noexcept nogil:
        """Somebody runs or may be tried, and not only to find again that all must wait for copies."""
        if self.stalled:
            return False
        return (self.num_running > 0 or self.looks_again and self.num_waiting + self.num_aside > 0 or self.any_to_try())

    cdef bint any_to_try(self) noexcept nogil:
        """Whether somebody waits who does not only wait for a copy to end."""
        cdef int64_t i
        cdef int32_t slot
        if self.num_waiting > 0:
            return True
        for i in range(self.num_aside):
            slot = self.aside[i]
            if self.hosted[slot].load == NONE and self.hosted[slot].awaits == NONE and not self._waits_on(slot):
                return True
        return False

    cdef bint _waits_on(self, int32_t slot) noexcept nogil:
        """Where memory is shared: whether somebody was told to wait for a copy, and this rank has seen none end since."""
        return self.is_shared and self.hosted[slot].asked_at == self.num_seen

    cdef void wake(self) noexcept nogil:
        """As for any rank with handoffs; copies wake a rank by themselves. Those of siblings that ended with the pass are
        seen with it: they are no occasion of their own for the line."""
        if self.is_shared and self.handoffs.num_pending > 0 and self.shared.take_wake(self.member):
            self._see_end()
        if not self.has_tier or self.handoffs.num_owned > 0:
            HostedScheduler.wake(self)

    cdef bint joins(self) noexcept nogil:
        """A rank that stands still looks again when others start a pass, unless it has set aside all that wait."""
        return self.has_work() or self.has_tier and self.any_to_try()

    cdef bint holds_any(self) noexcept nogil:
        return HostedScheduler.holds_any(self) or self.num_aside > 0 or self.has_tier and self._copies()

    cdef bint _copies(self) noexcept nogil:
        """Whether a copy of this rank is under way, or has ended and was not seen."""
        return self.shared.copies_of(self.member) if self.is_shared else self.tier.copies()

    cdef int _tell_host(self, EventBuffer out, double at_ms, int32_t request, int step, int64_t number, int64_t blocks,
                        double end_ms) except -1 nogil:
        cdef Event* event = out.emplace(EV_HOST, at_ms, self.worker, self.rank, request)
        event.a, event.b, event.c, event.x = step, number, blocks, end_ms
        return 0

    def held_by_requests(self):
        """Blocks that are held by others than stores; none where nothing is left to do."""
        return self.pool.active() - len(set(self.held_sources()))

    cdef list held_sources(self):
        """Copies that stores of this rank hold."""
        cdef int64_t i, j, k
        cdef Transfer* store
        if not self.is_shared:
            return []
        held = []
        for k in range(2):
            ring = &self.shared.delivered if k else &self.shared.stores
            for i in range(ring.count):
                store = transfer_at(ring, i)
                if store.member == self.member and store.sources is not NULL:
                    held += [store.sources[j] for j in range(store.num_entries)]
        return held

    def check(self):
        """As HostedScheduler.check, and what is known of copies against the tier."""
        cdef int64_t i, j
        cdef int64_t private_blocks = 0
        cdef int64_t loading = 0
        cdef int32_t slot
        HostedScheduler.check(self)
        if not self.has_tier:
            return
        self.tier.check()
        slots = [self.running[i] for i in range(self.num_running)] + [self.aside[i] for i in range(self.num_aside)]
        slots += [self.waiting[(self.waiting_head + i) & self.waiting_mask] for i in range(self.num_waiting)]
        slots += self.slots_outside()
        paths = 0
        for slot in slots:
            loading += self.hosted[slot].load != NONE
            paths += self.hosted[slot].path_length > 0
            for j in range(self.requests.slots[slot].table_length):
                if self.requests.slots[slot].table[j] == PRIVATE:
                    private_blocks += 1
        assert loading == self.num_loading, "loads under way nobody waits for"
        awaiting = [slot for slot in slots if self.hosted[slot].awaits != NONE]
        assert len(awaiting) == self.num_awaiting, "who waits for another's load is miscounted"
        assert set(awaiting) <= {self.aside[i] for i in range(self.num_aside)}, "who waits for a load is not set aside"
        if self.is_shared:
            return                           # the rest is about what is this rank's alone
        assert loading == self.tier.loads.count, "loads under way nobody waits for"
        assert private_blocks == self.num_private, "private blocks lost"
        assert self.num_free_reads <= self.pool.num_free, "more blocks were emptied than are empty"
        assert self.tier.keys.num_holds() == paths, "paths of the tier held by nobody"
