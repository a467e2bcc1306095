"""Handing requests off: what the scheduler of a rank does for the source and for the destination of a handoff.

A source is an ordinary request that is held when it is complete: it leaves the queues and keeps its blocks until it is
released. A destination stands in line for the blocks of its prompt, has them unseen while the transfer goes on, and
becomes an ordinary waiting request, with nothing left to compute, when it is activated. Decides who owns which
blocks when; who comes first in the line is the book's matter (`handoff`). Never decides when anything is asked for.

One place in line is tried a call, at the occasions of the specification only: callers rely on who is reserved when.
Source: handoff specification, section 2.
"""
from .block_pool cimport POOL_FAILED, POOL_OK
from .event_buffer cimport (
    CMD_ACTIVATE_DESTINATION, CMD_CANCEL_SOURCE, CMD_RELEASE_SOURCE, CMD_RESERVE_DESTINATION,
    CMD_SUBMIT_PREFILL, EV_HANDOFF, RES_NOOP, STAGE_DESTINATION_ACCEPTED, STAGE_DESTINATION_ACTIVATED, STAGE_DESTINATION_CANCELLED,
    STAGE_DESTINATION_RESERVED, STAGE_SOURCE_CANCELLED, STAGE_SOURCE_HELD, STAGE_SOURCE_RELEASED, TERM_COMPLETED, Event,
)
from .handoff cimport OWN_ACTIVE, OWN_NONE, OWN_PENDING, OWN_RESERVED, OWN_SOURCE_HELD, OWN_SOURCE_PENDING
from .request_table cimport Request
from .types cimport (
    APPLY_ACCEPTED, APPLY_ACTIVE, APPLY_APPLIED, APPLY_BAD_PROMPT, APPLY_NOOP, APPLY_OVER_MODEL_LEN, APPLY_OVER_POOL,
    APPLY_SUBMITTED, NONE, STATUS_MATERIALISED, STATUS_OUTSIDE, SUBMIT_BAD_PROMPT, SUBMIT_OK, ceil_div,
)


cdef class HandoffScheduler(PolicyScheduler):
    def __cinit__(self):
        self.handoffs = HandoffBook()

    cdef int32_t ownership_of(self, int32_t slot) noexcept nogil:
        """What a request is in a handoff (`Ownership`)."""
        cdef int32_t owned = self.requests.slots[slot].owned
        return OWN_NONE if owned == 0 else self.handoffs.entries[owned - 1].state

    cdef bint gates_fresh(self) noexcept nogil:
        """While somebody is in line for blocks, only who has them may enter: others would take what the head waits for."""
        return self.handoffs.num_pending > 0

    cdef int32_t first_materialised(self) noexcept nogil:
        """Of those that wait and have their blocks, who came to this rank first; NONE when nobody does."""
        cdef int64_t i
        cdef int32_t slot
        cdef int32_t first = NONE
        for i in range(self.num_waiting):
            slot = self.waiting[(self.waiting_head + i) & self.waiting_mask]
            if self.requests.slots[slot].status == STATUS_MATERIALISED and (
                    first == NONE
                    or self.requests.slots[slot].arrival_number < self.requests.slots[first].arrival_number):
                first = slot
        return first

    # -- readiness --------------------------------------------------------------------------------

    cdef bint has_work(self) noexcept nogil:
        return (self.num_running > 0 or self.num_waiting > 0) and not self.stalled

    cdef bint holds_any(self) noexcept nogil:
        return self.num_running > 0 or self.num_waiting > 0 or self.handoffs.num_owned > 0

    cdef void stall_if_waiting(self) noexcept nogil:
        """A pass had no effect: where handoffs may bring something that changes that, no other pass is due until they do."""
        self.stalled = self.stalled or self.handoffs.num_owned > 0

    cdef int64_t least_blocks(self, int64_t n_in, int64_t n_out) noexcept nogil:
        """Blocks without which a destination can never be reserved."""
        return ceil_div(n_in, self.block_size)

    cdef bint may_reserve(self, Request* request) except -1 nogil:
        """Whether a destination may have blocks for its prompt, if there are any; those that need not be sent to it are
        looked up."""
        self.look_up(request)
        return True

    cdef PoolStatus acquire(self, int64_t num_hits, int64_t num_fresh) except POOL_FAILED nogil:
        """Hold the first blocks that the last look-up found, and private ones."""
        return self.pool.acquire(self.hit_copies, num_hits, num_fresh)

    cdef bint still_read(self, int64_t num_fresh) noexcept nogil:
        """Whether somebody still reads one of the private blocks that were acquired last: nothing may arrive in them."""
        return False

    cdef void wake(self) noexcept nogil:
        self.stalled = False

    # -- commands ---------------------------------------------------------------------------------

    cdef int submit(self, int32_t ordinal, int64_t n_in, int64_t n_out, const uint64_t* hash_ids,
                    int64_t num_hash_ids, const Terms* terms) except -1 nogil:
        cdef int result = PolicyScheduler.submit(self, ordinal, n_in, n_out, hash_ids, num_hash_ids, terms)
        if result == SUBMIT_OK:
            self.stalled = False
        return result

    cdef int cancel(self, int32_t ordinal, bint discard, double now_ms, EventBuffer out, bint* suppressed) except -1 nogil:
        """As for any request; a held source, or a destination that is not active, is no request."""
        cdef int32_t slot = self.requests.find(ordinal)
        suppressed[0] = False
        if slot != NONE and self.requests.slots[slot].status == STATUS_OUTSIDE:
            return RES_NOOP
        self.stalled = False
        return PolicyScheduler.cancel(self, ordinal, discard, now_ms, out, suppressed)

    cdef int hand_off(self, Envelope* envelope, double now_ms, bint in_pass, EventBuffer out) except -1 nogil:
        cdef int status
        if self.parks:
            self.unpark(self.parked.count)   # from now on commands and lines for blocks may mean anybody
            self.parks = False
        if envelope.kind == CMD_SUBMIT_PREFILL:
            return self.submit_prefill(envelope)
        if envelope.kind == CMD_RESERVE_DESTINATION:
            return self.reserve(envelope, now_ms, in_pass, out)
        if envelope.kind == CMD_RELEASE_SOURCE or envelope.kind == CMD_CANCEL_SOURCE:
            status = self.end_source(envelope.handoff, envelope.kind == CMD_CANCEL_SOURCE, now_ms, out)
        elif envelope.kind == CMD_ACTIVATE_DESTINATION:
            status = self.activate(envelope.handoff, now_ms, out)
        else:
            status = self.cancel_destination(envelope.handoff, now_ms, out)
        if status == APPLY_APPLIED:
            self.stalled = False
            self.reserve_head(now_ms, out)
        return status

    cdef int after_cancel(self, double now_ms, EventBuffer out) except -1 nogil:
        return self.reserve_head(now_ms, out)

    # -- sources ----------------------------------------------------------------------------------

    cdef int submit_prefill(self, Envelope* envelope) except -1 nogil:
        """Queue a request that will be held with its one token, or without any where none is wanted."""
        cdef int32_t slot
        cdef int result
        if self.handoffs.find(envelope.handoff) != NONE:
            return APPLY_ACTIVE
        result = self.submit(envelope.request, envelope.n_in, min(envelope.n_out, 1), envelope.hash_ids, envelope.num_hash_ids, &envelope.terms)
        if result != SUBMIT_OK:
            return APPLY_BAD_PROMPT if result == SUBMIT_BAD_PROMPT else APPLY_ACTIVE
        slot = self.requests.find(envelope.request)
        self.requests.slots[slot].owned = self.handoffs.add(envelope.handoff, slot, OWN_SOURCE_PENDING) + 1
        return APPLY_SUBMITTED

    cdef int emit(self, int32_t slot, int64_t gen_before, double end_ms, int64_t excess) except -1 nogil:
        """A source's token is nobody's: all that clients see comes from the destination."""
        if self.requests.slots[slot].owned != 0 and self.ownership_of(slot) == OWN_SOURCE_PENDING:
            return 0
        return PolicyScheduler.emit(self, slot, gen_before, end_ms, excess)

    cdef int end_request(self, int32_t slot, int32_t status, int32_t reason, int64_t needed,
                         int64_t available) except -1 nogil:
        if (self.requests.slots[slot].owned != 0 and status == TERM_COMPLETED
                and self.ownership_of(slot) == OWN_SOURCE_PENDING):
            return self._hold(slot)
        return PolicyScheduler.end_request(self, slot, status, reason, needed, available)

    cdef int _hold(self, int32_t slot) except -1 nogil:
        """A source is complete: it has no slot any more, which may be what the head of the line waits for."""
        cdef Request* request = &self.requests.slots[slot]
        cdef int32_t entry = request.owned - 1
        self.handoffs.move(entry, OWN_SOURCE_HELD)
        self.handoffs.generation += 1
        request.status = STATUS_OUTSIDE
        return self._tell(self.end_events, slot, STAGE_SOURCE_HELD, self.handoffs.entries[entry].handoff, request.n_in,
                          self.pass_start_ms)

    cdef int end_source(self, int64_t handoff, bint cancel, double now_ms, EventBuffer out) except -1 nogil:
        """Release or cancel a source; returns a CommandStatus. A pending one that is released goes on as any request."""
        cdef int32_t entry = self.handoffs.find(handoff)
        cdef int32_t state = OWN_NONE if entry == NONE else self.handoffs.entries[entry].state
        cdef int32_t slot
        if state != OWN_SOURCE_PENDING and state != OWN_SOURCE_HELD:
            return APPLY_NOOP
        slot = self.handoffs.entries[entry].slot
        self._tell(out, slot, STAGE_SOURCE_CANCELLED if cancel else STAGE_SOURCE_RELEASED, handoff,
                   self.requests.slots[slot].n_in, now_ms)
        if state == OWN_SOURCE_PENDING and not cancel:
            self.handoffs.remove(entry)
            self.requests.slots[slot].owned = 0
            return APPLY_APPLIED
        if state == OWN_SOURCE_PENDING:
            self._take_out(slot)
        self._forget(slot)
        return APPLY_APPLIED

    # -- destinations -----------------------------------------------------------------------------

    cdef int reserve(self, Envelope* envelope, double now_ms, bint in_pass, EventBuffer out) except -1 nogil:
        """Accept a destination at the end of the line; outside of a pass the head of the line is tried then."""
        cdef int32_t slot
        if (envelope.n_in < 0 or envelope.n_out < 0
                or not self.covers(envelope.n_in, envelope.n_out, envelope.num_hash_ids)):
            return APPLY_BAD_PROMPT
        if self.requests.find(envelope.request) != NONE or self.handoffs.find(envelope.handoff) != NONE:
            return APPLY_ACTIVE
        if envelope.n_in >= self.max_model_len:
            return APPLY_OVER_MODEL_LEN
        if self.least_blocks(envelope.n_in, envelope.n_out) > self.pool.num_blocks:
            return APPLY_OVER_POOL
        slot = self.requests.add(envelope.request, envelope.n_in, envelope.n_out, envelope.hash_ids,
                                 envelope.num_hash_ids, &envelope.terms)
        self.note_request(slot)
        self.requests.slots[slot].status = STATUS_OUTSIDE
        self.requests.slots[slot].owned = self.handoffs.add(envelope.handoff, slot, OWN_PENDING) + 1
        self._count_waiting(slot, 1)     # among those that decode next, as it will be in the queue
        self._tell(out, slot, STAGE_DESTINATION_ACCEPTED, envelope.handoff, envelope.n_in, now_ms)
        self.stalled = False
        if not in_pass:
            self.reserve_head(now_ms, out)
        return APPLY_ACCEPTED

    cdef int reserve_head(self, double now_ms, EventBuffer out) except -1 nogil:
        """Try the head of the line, once: it gets the blocks of its prompt, or is marked as tried. Never in mid-pass.

        Blocks whose old content is still being read are given back: they are empty from then on.
        """
        cdef Request* request
        cdef int64_t blocks, hits
        cdef int32_t entry
        if not self.handoffs.head_may_try():
            return 0
        entry = self.handoffs.head
        request = &self.requests.slots[self.handoffs.entries[entry].slot]
        if self.num_running >= self.max_num_seqs or not self.may_reserve(request):
            self.handoffs.head_failed()
            return 0
        blocks = ceil_div(request.n_in, self.block_size)
        hits = self.num_hits
        if self.acquire(hits, blocks - hits) != POOL_OK:
            self.handoffs.head_failed()
            return 0
        self.kv_events.reset()           # what it held was shown with its pass
        self.publish_removed()
        out.extend(self.kv_events, now_ms)
        self.append_blocks(request, hits, blocks - hits)
        if self.still_read(blocks - hits):
            self.release_blocks(request)
            self.handoffs.head_failed()
            return 0
        self.handoffs.move(entry, OWN_RESERVED)
        self.stalled, self.line_moved = False, True  # what the line kept out may enter
        return self._tell(out, self.handoffs.entries[entry].slot, STAGE_DESTINATION_RESERVED,
                          self.handoffs.entries[entry].handoff, (blocks - hits) * self.block_size, now_ms)

    cdef int activate(self, int64_t handoff, double now_ms, EventBuffer out) except -1 nogil:
        """The prompt has arrived: its blocks can be found from now on, and the request waits like any other."""
        cdef int32_t entry = self.handoffs.find(handoff)
        cdef int32_t slot
        cdef Request* request
        if entry == NONE or self.handoffs.entries[entry].state != OWN_RESERVED:
            return APPLY_NOOP
        slot = self.handoffs.entries[entry].slot
        request = &self.requests.slots[slot]
        self.kv_events.reset()
        self.finalise(request, 0, request.n_in)
        out.extend(self.kv_events, now_ms)
        request.computed = request.alloc = request.n_in
        self._count_waiting(slot, -1)
        request.status = STATUS_MATERIALISED
        self.handoffs.move(entry, OWN_ACTIVE)
        self.queue_activated(slot)
        self.passes_without_gain = 0
        self._tell(out, slot, STAGE_DESTINATION_ACTIVATED, handoff, request.n_in, now_ms)
        return APPLY_APPLIED

    cdef int queue_activated(self, int32_t slot) except -1 nogil:
        """Begin to wait before the first who came to this rank later, whoever was activated or preempted first; where
        a policy orders the queue, behind all."""
        cdef int64_t number = self.requests.slots[slot].arrival_number
        cdef int64_t at = 0
        cdef int64_t i
        while (at < self.num_waiting and self.requests.slots[
                self.waiting[(self.waiting_head + at) & self.waiting_mask]].arrival_number < number):
            at += 1
        self.push_waiting(slot, False)
        if self.has_policy:
            return 0
        for i in range(self.num_waiting - 1, at, -1):
            self.waiting[(self.waiting_head + i) & self.waiting_mask] = (
                self.waiting[(self.waiting_head + i - 1) & self.waiting_mask])
        self.waiting[(self.waiting_head + at) & self.waiting_mask] = slot
        return 0

    cdef int cancel_destination(self, int64_t handoff, double now_ms, EventBuffer out) except -1 nogil:
        """End a destination, whatever it is by now."""
        cdef int32_t entry = self.handoffs.find(handoff)
        cdef int32_t state = OWN_NONE if entry == NONE else self.handoffs.entries[entry].state
        cdef int32_t slot
        if state != OWN_PENDING and state != OWN_RESERVED and state != OWN_ACTIVE:
            return APPLY_NOOP
        slot = self.handoffs.entries[entry].slot
        if state == OWN_ACTIVE:
            self.detach(slot)
            self._take_out(slot)
        else:
            self._count_waiting(slot, -1)
        self._tell(out, slot, STAGE_DESTINATION_CANCELLED, handoff, self.requests.slots[slot].gen, now_ms)
        self._forget(slot)
        return APPLY_APPLIED

    # -- both -------------------------------------------------------------------------------------

    cdef int give_up(self, int32_t slot) except -1 nogil:
        """Whoever ends gives something back: blocks, a place among the running, its place in the line."""
        cdef int32_t owned = self.requests.slots[slot].owned
        if owned != 0:
            self.handoffs.remove(owned - 1)
        self.handoffs.generation += 1
        return PolicyScheduler.give_up(self, slot)

    cdef int _forget(self, int32_t slot) except -1 nogil:
        self.give_up(slot)
        self.requests.remove(slot)
        return 0

    cdef int _tell(self, EventBuffer out, int32_t slot, int stage, int64_t handoff, int64_t tokens, double now_ms) except -1 nogil:
        cdef Event* event = out.emplace(EV_HANDOFF, now_ms, self.worker, self.rank, self.requests.slots[slot].ordinal)
        event.a, event.b, event.f = stage, tokens, handoff
        return 0

    # -- publication ------------------------------------------------------------------------------

    cdef int close_pass(self, EventBuffer out, double end_ms) except -1 nogil:
        self.line_moved = False
        return self.reserve_head(end_ms, out) if self.handoffs.num_pending > 0 else 0

    cdef int publish_gauges(self, EventBuffer out, double now_ms, int64_t queued, bint telemetry_only) except -1 nogil:
        """Destinations that are not active wait, too."""
        return PolicyScheduler.publish_gauges(
            self, out, now_ms, queued + self.handoffs.num_pending + self.handoffs.num_reserved, telemetry_only)

    def standing(self, int64_t limit=20):
        """As Scheduler.standing, and who is owned here outside of the queues."""
        cdef int32_t slot
        rows = PolicyScheduler.standing(self, limit)
        for slot in self.slots_outside()[:max(0, limit - len(rows))]:
            request = &self.requests.slots[slot]
            rows.append((OWNERSHIP_NAMES[self.ownership_of(slot)], request.ordinal, request.n_in + request.gen,
                         request.n_in if self.ownership_of(slot) == OWN_SOURCE_HELD else 0, request.table_length))
        return rows

    # -- test door --------------------------------------------------------------------------------

    cdef list slots_outside(self):
        cdef int32_t i
        return [self.handoffs.entries[i].slot for i in range(self.handoffs.top)
                if self.handoffs.entries[i].state in (OWN_SOURCE_HELD, OWN_PENDING, OWN_RESERVED)]

    def ownership(self):
        """(handoff, request ordinal, state, blocks held) of everything owned here, by handoff."""
        cdef int32_t i
        owned = []
        for i in range(self.handoffs.top):
            entry = self.handoffs.entries[i]
            if entry.state != OWN_NONE:
                request = &self.requests.slots[entry.slot]
                owned.append((entry.handoff, request.ordinal, OWNERSHIP_NAMES[entry.state], request.table_length))
        return sorted(owned)

    def check(self):
        """As PolicyScheduler.check, and the book against the requests."""
        cdef int32_t i
        PolicyScheduler.check(self)
        self.handoffs.check()
        for i in range(self.handoffs.top):
            if self.handoffs.entries[i].state != OWN_NONE:
                request = &self.requests.slots[self.handoffs.entries[i].slot]
                assert request.owned == i + 1, "a handoff of another request"
                outside = self.handoffs.entries[i].state in (OWN_SOURCE_HELD, OWN_PENDING, OWN_RESERVED)
                assert (request.status == STATUS_OUTSIDE) == outside, "status and ownership differ"


OWNERSHIP_NAMES = ("none", "source pending", "source held", "pending", "reserved", "active")
