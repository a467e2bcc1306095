"""What every scheduler flavour shares: queues, emission of tokens, records and measures of one rank.

A pass is executed completely when it starts; what becomes visible with its end waits in `end_events`.
The flavour (a subclass) decides who is scheduled and how blocks are kept, through the methods named
"the seam" in the header. Never decides when: every call carries the time.

Source: engine specification, sections 4.6, 6 and 7.
"""
from libc.math cimport INFINITY, NAN
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from .event_buffer cimport (
    EV_CUT, EV_FIRST_TOKEN, EV_FPM, EV_GAUGES, EV_RANK_END, EV_RESUMED, EV_SECOND_TOKEN, EV_TERMINAL, EV_TOKENS,
    REASON_CLIENT, RES_APPLIED, RES_NOOP, TERM_CANCELLED, WANT_FPM, WANT_TOKENS, Event,
)
from .parked_queue cimport ParkedRow
from .request_table cimport Request
from .types cimport APPLY_NO_HANDOFFS, NONE, STATUS_WAITING, SUBMIT_ACTIVE, SUBMIT_BAD_PROMPT, SUBMIT_OK

# A natively ended request leaves its last emission in its terminal record (field e) until the pass is
# published: a cancellation that discards pending output takes it back.
cdef enum:
    PACK_CONSECUTIVE = 1
    PACK_FORWARD = 2
    PACK_SHIFT = 2
    PACK_TOKENS = 0xffff
    PACK_EXCESS_SHIFT = 18


cdef inline void _add(Moments* moments, int64_t value, int sign) noexcept nogil:
    moments.count += sign
    if sign > 0:
        moments.total += <mr_u128>value
        moments.total_sq += <mr_u128>value * <mr_u128>value
    else:
        moments.total -= <mr_u128>value
        moments.total_sq -= <mr_u128>value * <mr_u128>value


cdef inline double _variance(Moments* moments) noexcept nogil:
    return mr_variance(moments.count, moments.total, moments.total_sq)


cdef class Scheduler:
    def __cinit__(self):
        self.requests = RequestTable()
        self.start_events, self.end_events, self.kv_events = EventBuffer(), EventBuffer(), EventBuffer()
        self.parked = ParkedQueue()
        self.pass_number, self.waiting_mask = NONE, 63
        self.previous_end_ms = self.before_previous_end_ms = NAN
        self.waiting = <int32_t*>malloc((self.waiting_mask + 1) * sizeof(int32_t))
        if self.waiting is NULL:
            raise MemoryError("waiting queue")

    def __dealloc__(self):
        free(self.running)
        free(self.waiting)
        free(self.aside)

    # -- the seam ---------------------------------------------------------------------------------

    cdef int execute(self, double now_ms, bint defer_prefill) except -1 nogil:
        with gil:
            raise NotImplementedError("execute")

    cdef bint wants_deferral(self) noexcept nogil:
        """Whether this rank lets prefill wait in a pass in which the group's cadence allows it."""
        return False

    cdef void group_over(self, bint prefilled, bint worked) noexcept nogil:
        """The passes of a group that `counts_together` are computed: whether any rank computed prompt tokens, or did anything."""

    cdef void stand_still(self) noexcept nogil:
        """The pass of a group that `counts_together` had no effect, and none is due."""

    cdef Py_ssize_t pass_quietly(self, double end_ms, double before_ms, double until_ms, Py_ssize_t max_records,
                                 EventBuffer out) except -1 nogil:
        """Show the pass in flight at `end_ms` by a QUIET_PASS record and compute the next one, as long as neither does what
        others have to see, a pass ends before `before_ms` and by `until_ms`, and `out` holds less than `max_records`.
        Returns the number of passes shown; 0: nothing changed."""
        return 0

    cdef int give_up(self, int32_t slot) except -1 nogil:
        """Release whatever blocks and identities the request holds; it is about to be forgotten."""
        with gil:
            raise NotImplementedError("give_up")

    cdef int detach(self, int32_t slot) except -1 nogil:
        """Write the state of a request down that the flavour only implies; it is about to be looked at."""
        return 0

    cdef int detach_all(self) except -1 nogil:
        return 0

    cdef bint covers(self, int64_t n_in, int64_t n_out, int64_t num_hash_ids) noexcept nogil:
        """Whether that many hash ids name all tokens of a prompt, where the flavour looks at them."""
        return True

    cdef int publish_unqueued_cuts(self, EventBuffer out, double now_ms) except -1 nogil:
        """Cuts of requests that a pass which failed had taken out of the queues and not ended."""
        return 0

    cdef bint has_work(self) noexcept nogil:
        """Whether a pass could change anything here."""
        return self.num_running > 0 or self.num_waiting > 0

    cdef bint joins(self) noexcept nogil:
        """Whether it takes part in a pass that another rank begins."""
        return self.has_work()

    cdef bint holds_any(self) noexcept nogil:
        """Whether anything is owned here: requests, or blocks that wait for another worker."""
        return self.num_running > 0 or self.num_waiting > 0

    cdef int note_request(self, int32_t slot) except -1 nogil:
        """A request begins to be known."""
        return 0

    cdef double next_internal_ms(self) noexcept nogil:
        """Next deadline of modelled background work [ms]; INFINITY = none."""
        return INFINITY

    cdef bint next_instant(self, double now_ms) noexcept nogil:
        """Something happens at `now_ms` on some worker; whether this rank will look again for that."""
        return False

    cdef bint nothing_moves(self, double now_ms) noexcept nogil:
        """No worker moves by itself any more: whether this rank will, now that it knows."""
        return False

    cdef int process_internal(self, double now_ms, EventBuffer out) except -1 nogil:
        """Handle background work due by `now_ms`; returns whether somebody stands in line for blocks here."""
        return 0

    cdef int serve_line(self, double now_ms, EventBuffer out) except -1 nogil:
        """Try who stands in line for blocks: background work of a rank of the group is over."""
        return 0

    cdef int hand_off(self, Envelope* envelope, double now_ms, bint in_pass, EventBuffer out) except -1 nogil:
        """Apply a command about a handoff; returns a CommandStatus. A refusal changes nothing."""
        return APPLY_NO_HANDOFFS

    cdef int after_cancel(self, double now_ms, EventBuffer out) except -1 nogil:
        """A request was cancelled outside of a pass."""
        return 0

    cdef int close_pass(self, EventBuffer out, double end_ms) except -1 nogil:
        """A pass of the group is over; what this rank does then shows behind its outputs and before its gauges."""
        return 0

    cdef int64_t active_blocks(self) noexcept nogil:
        return 0

    cdef int64_t inactive_blocks(self) noexcept nogil:
        return 0

    # -- commands ---------------------------------------------------------------------------------

    cdef int submit(self, int32_t ordinal, int64_t n_in, int64_t n_out, const uint64_t* hash_ids,
                    int64_t num_hash_ids, const Terms* terms) except -1 nogil:
        """Queue a request; returns a SubmitResult. A refusal changes nothing."""
        cdef int32_t slot
        if n_in < 0 or n_out < 0 or not self.covers(n_in, n_out, num_hash_ids):
            return SUBMIT_BAD_PROMPT
        if self.requests.find(ordinal) != NONE or self.parked.count > 0 and self.parked.holds(ordinal):
            return SUBMIT_ACTIVE
        self.passes_without_gain = 0
        if self.parks and (self.parked.count > 0 or self.num_waiting >= UNPARKED):
            if self.parked.takes(ordinal, num_hash_ids):
                self.parked.push(ordinal, n_in, n_out, hash_ids, num_hash_ids)
                _add(&self.queued, n_in, 1)
                self.num_waiting += 1
                return SUBMIT_OK
            self.unpark(self.parked.count)
        slot = self.requests.add(ordinal, n_in, n_out, hash_ids, num_hash_ids, terms)
        self.note_request(slot)
        self.push_waiting(slot, False)
        return SUBMIT_OK

    cdef int cancel(self, int32_t ordinal, bint discard, double now_ms, EventBuffer out, bint* suppressed) except -1 nogil:
        """End a request by order; returns a CommandResult. Outputs of a pass in flight may be suppressed.

        The pass in flight counts only if this rank takes part in it: else `end_events` are those of an earlier one.
        """
        cdef int result = RES_NOOP
        cdef int64_t delivered, packed
        cdef double last_ms
        cdef Request* request
        cdef Event* event
        suppressed[0] = False
        while self.parked.count > 0 and self.parked.holds(ordinal):
            self.unpark(UNPARKED)
        cdef int32_t slot = self.requests.find(ordinal)
        if slot == NONE:
            event = self._unpublished_end(ordinal) if self.executed and discard else NULL
            if event is NULL:
                return RES_NOOP
            delivered = event.b - (event.e >> PACK_SHIFT & PACK_TOKENS)
            last_ms = self._last_before(event)
            self._drop_outputs(ordinal, event.e)
            suppressed[0] = True
        else:
            result = RES_APPLIED
            self.detach(slot)
            request = &self.requests.slots[slot]
            delivered, last_ms = request.gen, request.emit_ms
            if self.executed and request.emit_pass == self.pass_number:
                delivered -= request.emit_tokens
                last_ms = request.emit_before_ms
                packed = ((request.emit_tokens << PACK_SHIFT) | (PACK_CONSECUTIVE if request.emit_consecutive else 0)
                          | (PACK_FORWARD if request.emit_forward else 0) | (request.emit_excess << PACK_EXCESS_SHIFT))
                self._drop_outputs(ordinal, packed)
                suppressed[0] = True
            self._take_out(slot)
            self.give_up(slot)
            self.requests.remove(slot)
        event = out.emplace(EV_TERMINAL, now_ms, self.worker, self.rank, ordinal)
        event.a, event.b, event.c, event.d, event.x = TERM_CANCELLED, delivered, REASON_CLIENT, -1, last_ms
        return result

    cdef int _take_out(self, int32_t slot) noexcept nogil:
        """Remove a slot from whichever queue holds it."""
        cdef int64_t i, j
        for i in range(self.num_running):
            if self.running[i] == slot:
                self.num_running -= 1
                memmove(&self.running[i], &self.running[i + 1], (self.num_running - i) * sizeof(int32_t))
                return 0
        for i in range(self.num_aside):
            if self.aside[i] == slot:
                self._count_waiting(slot, -1)
                self.num_aside -= 1
                memmove(&self.aside[i], &self.aside[i + 1], (self.num_aside - i) * sizeof(int32_t))
                return 0
        for i in range(self.num_waiting - self.parked.count):
            if self.waiting[(self.waiting_head + i) & self.waiting_mask] == slot:
                self._count_waiting(slot, -1)
                for j in range(i + 1, self.num_waiting - self.parked.count):
                    self.waiting[(self.waiting_head + j - 1) & self.waiting_mask] = self.waiting[(self.waiting_head + j) & self.waiting_mask]
                self.num_waiting -= 1
                return 0
        return 0

    cdef void wake(self) noexcept nogil:
        """A pass of the group changed something."""

    cdef bint ends_unseen(self, int32_t ordinal) noexcept nogil:
        """Whether a request has ended in the pass in flight, which nobody knows yet."""
        return self.executed and self._unpublished_end(ordinal) is not NULL

    cdef Event* _unpublished_end(self, int32_t ordinal) noexcept nogil:
        """Terminal record of a request in the pass in flight, NULL when it has none there."""
        cdef Py_ssize_t i
        for i in range(self.end_events.count):
            if self.end_events.records[i].kind == EV_TERMINAL and self.end_events.records[i].request == ordinal:
                return &self.end_events.records[i]
        return NULL

    cdef double _last_before(self, Event* terminal) noexcept nogil:
        """Time of the last token before the pass in flight, of a request that ends with it; NaN without one."""
        cdef int64_t tokens = terminal.e >> PACK_SHIFT & PACK_TOKENS
        cdef Py_ssize_t i
        if tokens == 0:
            return terminal.x
        if terminal.b == tokens:
            return NAN
        if not terminal.e & PACK_CONSECUTIVE:
            for i in range(self.end_events.count):
                if (self.end_events.records[i].kind == EV_RESUMED
                        and self.end_events.records[i].request == terminal.request):
                    return self.end_events.records[i].x
        return self.previous_end_ms

    cdef void _drop_outputs(self, int32_t ordinal, int64_t packed) noexcept nogil:
        """Take a request's records and its emission (as packed in a terminal record) out of the pass in flight."""
        cdef Event* records = self.end_events.records
        cdef Py_ssize_t i, kept = 0
        cdef int64_t tokens = packed >> PACK_SHIFT & PACK_TOKENS
        for i in range(self.end_events.count):
            if records[i].request != ordinal:
                if kept != i:
                    memcpy(&records[kept], &records[i], sizeof(Event))
                kept += 1
        self.end_events.count = kept
        if tokens > 0:
            self.tokens_emitted -= tokens
            self.emitters -= 1
            if packed & PACK_CONSECUTIVE:
                self.consecutive_emitters -= 1
            if packed & PACK_FORWARD:
                self.forwards -= 1
                self.forward_tokens -= tokens + (packed >> PACK_EXCESS_SHIFT)

    # -- a pass -----------------------------------------------------------------------------------

    cdef void begin_pass(self, double now_ms) noexcept nogil:
        self.pass_number += 1
        self.pass_start_ms = now_ms
        self.executed = True
        self.computed = False
        self.effect_free = False
        self.num_scheduled = self.tokens_scheduled = 0
        self.tokens_emitted = self.emitters = self.consecutive_emitters = 0
        self.forwards = self.forward_tokens = self.prefill_tokens = self.num_terminal = 0
        self.start_events.reset()
        self.end_events.reset()
        self.kv_events.reset()

    cdef int64_t remaining(self, int32_t slot) noexcept nogil:
        """Tokens a request may still generate."""
        cdef Request* request = &self.requests.slots[slot]
        cdef int64_t left = request.n_out - request.gen
        cdef int64_t room = self.max_model_len - request.n_in - request.gen
        if room < left:
            left = room
        return left if left > 0 else 0

    cdef int emit(self, int32_t slot, int64_t gen_before, double end_ms, int64_t excess) except -1 nogil:
        """Record the tokens a request got in this pass: gen - gen_before of them, all at its end.

        excess: drafts accepted beyond what it may generate.
        """
        cdef Request* request = &self.requests.slots[slot]
        cdef int64_t n = request.gen - gen_before
        cdef bint consecutive = request.emit_pass == self.pass_number - 1 and gen_before > 0
        cdef Event* event
        if gen_before == 0:
            self.end_events.emplace(EV_FIRST_TOKEN, end_ms, self.worker, self.rank, request.ordinal)
        elif not consecutive:
            event = self.end_events.emplace(EV_RESUMED, end_ms, self.worker, self.rank, request.ordinal)
            event.x = request.emit_ms
        if gen_before < 2 and request.gen >= 2:
            self.end_events.emplace(EV_SECOND_TOKEN, end_ms, self.worker, self.rank, request.ordinal)
        if self.want & WANT_TOKENS:
            event = self.end_events.emplace(EV_TOKENS, end_ms, self.worker, self.rank, request.ordinal)
            event.a, event.b = n, request.gen
        request.emit_pass = self.pass_number
        request.emit_tokens = n
        request.emit_before_ms = request.emit_ms
        request.emit_ms = end_ms
        request.emit_consecutive = consecutive
        request.emit_forward = request.work_prompt == 0
        request.emit_excess = excess
        if request.emit_forward:
            self.forwards += 1
            self.forward_tokens += n + excess
        self.tokens_emitted += n
        self.emitters += 1
        if consecutive:
            self.consecutive_emitters += 1
        return 0

    cdef int end_request(self, int32_t slot, int32_t status, int32_t reason, int64_t needed,
                         int64_t available) except -1 nogil:
        """Record the end of a request with this pass, release all it holds and forget it. Queues are the caller's."""
        cdef Request* request = &self.requests.slots[slot]
        cdef bint emitted_now = request.emit_pass == self.pass_number
        cdef Event* event = self.end_events.emplace(EV_TERMINAL, self.pass_start_ms, self.worker, self.rank, request.ordinal)
        cdef int64_t* words
        if needed >= 0:
            words = self.end_events.emplace_words(event, 2)
            words[0], words[1] = needed, available
            event.d = event.c
        else:
            event.d = -1
        event.a, event.b, event.c = status, request.gen, reason
        # The end of the pass is known to the group only; INFINITY stands for it until then.
        event.x = INFINITY if emitted_now else request.emit_ms
        if emitted_now:
            event.e = ((request.emit_tokens << PACK_SHIFT) | (PACK_CONSECUTIVE if request.emit_consecutive else 0)
                       | (PACK_FORWARD if request.emit_forward else 0) | (request.emit_excess << PACK_EXCESS_SHIFT))
        self.num_terminal += 1
        self.give_up(slot)
        self.requests.remove(slot)
        return 0

    cdef void measure_pass(self, Moments decode, int64_t first) noexcept nogil:
        """Forward-pass record of the pass just scheduled.

        `decode` already covers running[:first]; the rest of `running` and `waiting` are added here.
        """
        cdef Moments prefill
        cdef Request* request
        cdef int64_t i, length
        cdef int64_t computed = 0
        cdef int64_t prefix = 0
        prefill.count = 0
        prefill.total = prefill.total_sq = 0
        for i in range(first, self.num_running):
            request = &self.requests.slots[self.running[i]]
            if request.scheduled_pass != self.pass_number:
                continue
            if request.work_prompt > 0:
                _add(&prefill, request.n_in, 1)
                computed += request.work_total
                prefix += request.work_prefix
            elif not request.work_terminal:
                length = request.n_in + request.gen
                _add(&decode, length, 1)
        self.prefill_tokens = computed
        if not self.want & WANT_FPM:
            return
        self.fpm[1], self.fpm[2] = <double>prefill.count, <double>computed
        self.fpm[3], self.fpm[4] = _variance(&prefill), <double>prefix
        self.fpm[5], self.fpm[6], self.fpm[7] = <double>decode.count, <double>decode.total, _variance(&decode)
        self.measure_queue()

    cdef void measure_queue(self) noexcept nogil:
        """The part of the forward-pass record about `waiting`, as it is now."""
        self.fpm[8], self.fpm[9] = <double>self.queued.count, <double>self.queued.total
        self.fpm[10] = _variance(&self.queued)
        self.fpm[11], self.fpm[12] = <double>self.queued_decode.count, <double>self.queued_decode.total
        self.fpm[13] = _variance(&self.queued_decode)

    # -- publication ------------------------------------------------------------------------------

    cdef int publish_end(self, EventBuffer out, double end_ms) except -1 nogil:
        """Append everything this rank shows at the end of a group pass; a skipped rank shows zeros and gauges."""
        cdef Event* event
        cdef int64_t* words
        cdef Py_ssize_t i, first
        cdef bint executed = self.executed
        event = out.emplace(EV_RANK_END, end_ms, self.worker, self.rank, NONE)
        event.x = self.previous_end_ms
        if executed:
            event.a, event.b, event.c = self.tokens_emitted, self.consecutive_emitters, self.emitters
            event.d, event.e, event.f = self.prefill_tokens, self.forwards, self.forward_tokens
        if self.want & WANT_FPM:
            event = out.emplace(EV_FPM, end_ms, self.worker, self.rank, NONE)
            words = out.emplace_words(event, FPM_WIDTH)
            for i in range(FPM_WIDTH):
                (<double*>words)[i] = self.fpm[i] if executed else 0.0
            (<double*>words)[0] = self.fpm[0]
        if executed:
            out.extend(self.kv_events, end_ms)
            first = out.count
            out.extend(self.end_events, end_ms)
            for i in range(first, out.count):
                if out.records[i].kind == EV_TERMINAL:
                    out.records[i].e = 0
                    if out.records[i].x == INFINITY:
                        out.records[i].x = end_ms
            if end_ms != self.pass_end_ms:
                for i in range(self.num_steady, self.num_running):
                    if self.requests.slots[self.running[i]].emit_pass == self.pass_number:
                        self.requests.slots[self.running[i]].emit_ms = end_ms
        self.before_previous_end_ms = self.previous_end_ms
        self.previous_end_ms = end_ms
        self.executed = False
        self.close_pass(out, end_ms)
        self.publish_gauges(out, end_ms, 0, False)
        return 0

    cdef int publish_gauges(self, EventBuffer out, double now_ms, int64_t queued, bint telemetry_only) except -1 nogil:
        """Append the gauges as they are now; `queued` requests wait on a lane and count as waiting."""
        cdef Event* event = out.emplace(EV_GAUGES, now_ms, self.worker, self.rank, NONE)
        event.a, event.b = self.active_blocks(), self.inactive_blocks()
        event.c, event.d = self.num_running, self.num_waiting + self.num_aside + queued
        event.e = telemetry_only
        return 0

    cdef int publish_cuts(self, EventBuffer out, double now_ms) except -1 nogil:
        """One record per request that is still owned or whose end was not published, when a run is cut.

        The pass in flight, or one that failed, was never shown: what it gave and ended does not count.
        """
        cdef Event* event
        cdef Event* terminal
        cdef Request* request
        cdef int32_t slot
        cdef int64_t i
        self.detach_all()
        self.unpark(self.parked.count)
        for i in range(self.num_running + self.num_aside + self.num_waiting):
            slot = self.running[i] if i < self.num_running else self._waiting_at(i - self.num_running)
            request = &self.requests.slots[slot]
            event = out.emplace(EV_CUT, now_ms, self.worker, self.rank, request.ordinal)
            event.a, event.x = request.gen, request.emit_ms
            if self.executed and request.emit_pass == self.pass_number:
                event.a -= request.emit_tokens
                event.x = request.emit_before_ms
        if not self.executed:
            return 0
        for i in range(self.end_events.count):
            terminal = &self.end_events.records[i]
            if terminal.kind == EV_TERMINAL:
                event = out.emplace(EV_CUT, now_ms, self.worker, self.rank, terminal.request)
                event.a = terminal.b - (terminal.e >> PACK_SHIFT & PACK_TOKENS)
                event.x = self._last_before(terminal)
        if not self.computed:
            self.publish_unqueued_cuts(out, now_ms)
        return 0

    # -- queues -----------------------------------------------------------------------------------

    cdef int push_running(self, int32_t slot) except -1 nogil:
        cdef int32_t* grown
        if self.num_running == self.running_capacity:
            grown = <int32_t*>realloc(self.running, max(64, self.running_capacity * 2) * sizeof(int32_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{self.running_capacity * 2} running requests")
            self.running = grown
            self.running_capacity = max(64, self.running_capacity * 2)
        self.running[self.num_running] = slot
        self.num_running += 1
        self.requests.slots[slot].seniority = self.next_seniority
        self.next_seniority += 1
        return 0

    cdef int push_waiting(self, int32_t slot, bint front) except -1 nogil:
        cdef int32_t* grown
        cdef int64_t i
        cdef int64_t count = self.num_waiting - self.parked.count
        if count > self.waiting_mask:
            grown = <int32_t*>malloc((self.waiting_mask + 1) * 2 * sizeof(int32_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{count} waiting requests")
            for i in range(count):
                grown[i] = self.waiting[(self.waiting_head + i) & self.waiting_mask]
            free(self.waiting)
            self.waiting = grown
            self.waiting_head = 0
            self.waiting_mask = self.waiting_mask * 2 + 1
        self._count_waiting(slot, 1)
        if front:
            self.waiting_head = (self.waiting_head - 1) & self.waiting_mask
            self.waiting[self.waiting_head] = slot
        else:
            self.waiting[(self.waiting_head + count) & self.waiting_mask] = slot
        self.num_waiting += 1
        return 0

    cdef int unpark(self, int64_t most) except -1 nogil:
        """Make requests of the first parked ones, at most so many, and queue them. Pointers into the table end here."""
        cdef ParkedRow* row
        cdef int32_t slot
        cdef Terms untold = Terms(NAN, INFINITY, 0)     # policies ask for them, and with a policy nobody is parked
        for _ in range(min(most, self.parked.count)):
            row = self.parked.first()
            slot = self.requests.add(row.ordinal, row.n_in, row.n_out, self.parked.ids, row.num_hash_ids, &untold)
            _add(&self.queued, row.n_in, -1)
            self.parked.drop_first()
            self.num_waiting -= 1
            self.note_request(slot)
            self.push_waiting(slot, False)
        return 0

    cdef int push_aside(self, int32_t slot) except -1 nogil:
        """A request that was taken out of the queue still waits, and goes before it from now on."""
        cdef int32_t* grown
        if self.num_aside == self.aside_capacity:
            grown = <int32_t*>realloc(self.aside, max(64, self.aside_capacity * 2) * sizeof(int32_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{self.aside_capacity * 2} requests set aside")
            self.aside, self.aside_capacity = grown, max(64, self.aside_capacity * 2)
        self._count_waiting(slot, 1)
        self.aside[self.num_aside] = slot
        self.num_aside += 1
        return 0

    cdef int32_t _waiting_at(self, int64_t i) noexcept nogil:
        """Of all that wait, those set aside first."""
        if i < self.num_aside:
            return self.aside[i]
        return self.waiting[(self.waiting_head + i - self.num_aside) & self.waiting_mask]

    cdef int32_t pop_waiting(self) noexcept nogil:
        cdef int32_t slot = self.waiting[self.waiting_head]
        self._count_waiting(slot, -1)
        self.waiting_head = (self.waiting_head + 1) & self.waiting_mask
        self.num_waiting -= 1
        return slot

    cdef void _count_waiting(self, int32_t slot, int sign) noexcept nogil:
        """Keep the moments of the queue; a waiting request's lengths do not change."""
        cdef Request* request = &self.requests.slots[slot]
        if request.status == STATUS_WAITING:
            _add(&self.queued, request.n_in, sign)
        else:
            _add(&self.queued_decode, request.n_in + request.gen, sign)

    def standing(self, int64_t limit=20):
        """Who stands in the queues, for the report of a run that cannot go on; running first, at most `limit`: a list of
        (queue, request ordinal, tokens known, tokens computed, blocks held)."""
        cdef int64_t i
        cdef int32_t slot
        cdef Request* request
        rows = []
        self.detach_all()
        self.unpark(self.parked.count)
        for i in range(min(limit, self.num_running + self.num_aside + self.num_waiting)):
            slot = self.running[i] if i < self.num_running else self._waiting_at(i - self.num_running)
            request = &self.requests.slots[slot]
            rows.append(("running" if i < self.num_running else "waiting", request.ordinal,
                         request.n_in + request.gen, request.computed, request.table_length))
        return rows
