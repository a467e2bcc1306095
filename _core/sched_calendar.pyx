"""Steady decode: a request that decodes without interruption is touched only when something about it changes.

While a request gets exactly one token in every pass of its rank, everything about it follows from the number of
passes: its length, its last emission, the pass in which it needs its next block, fills one, and ends. Such requests
form a prefix of `running`. A pass looks at two calendars of `block_size` entries: requests by block phase
((length - steps) mod block_size: who needs a block now, who fills one now), and requests by their last step, entered
at the last block boundary before it. Everybody else is not touched.

Whenever a pass is not of this kind (too little budget, a block that can only be had by preemption) all requests
leave first and the pass goes request by request; results are the same, as tests hold (`calendar=False`).
"""
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memmove

from .block_pool cimport POOL_OK
from .event_buffer cimport EV_QUIET_PASS, EV_QUIET_RUN, EV_SECOND_TOKEN, REASON_MODEL_LEN, REASON_OUTPUT_LENGTH, TERM_COMPLETED, Event, EventBuffer
from .types cimport INT64_MAX, NONE

from .types import EngineError

cdef enum:
    MAX_RING = 65536


cdef int _by_first(const void* a, const void* b) noexcept nogil:
    cdef int64_t x = (<const int64_t*>a)[0]
    cdef int64_t y = (<const int64_t*>b)[0]
    return (x > y) - (x < y)


cdef inline int64_t _on_ring(int64_t at, int64_t size) noexcept nogil:
    """Place in a ring of a number at most one round away from it."""
    return at + size if at < 0 else at - size if at >= size else at


cdef class CalendarScheduler(BlockScheduler):
    def __dealloc__(self):
        free(self.phases)
        free(self.ends)
        free(self.leaving)
        free(self.fresh)

    cdef int enable_calendar(self) except -1:
        """Allow steady decoding; needs `block_size` to be set."""
        cdef int64_t i
        if self.block_size > MAX_RING:
            return 0
        self.ring_size = self.block_size
        self.phases = <int32_t*>malloc(self.ring_size * sizeof(int32_t))
        self.ends = <int32_t*>malloc(self.ring_size * sizeof(int32_t))
        if self.phases is NULL or self.ends is NULL:
            raise MemoryError("decode calendar")
        for i in range(self.ring_size):
            self.phases[i] = self.ends[i] = NONE
        self.calendar_on = True
        return 0

    cdef int64_t _phase_of(self, Request* request) noexcept nogil:
        """(length - steps) mod block_size; constant while steady."""
        return (request.n_in + request.gen_offset) % self.ring_size if request.n_in + request.gen_offset >= 0 else (
            self.ring_size - 1 - (-(request.n_in + request.gen_offset) - 1) % self.ring_size)

    # -- a pass -----------------------------------------------------------------------------------

    cdef bint steady_step_fits(self) noexcept nogil:
        """Whether every steady request can have its token: budget, and blocks without a preemption."""
        cdef int64_t needed = 0
        cdef int32_t slot
        if self.num_steady > self.budget:
            return False
        if self.pool.num_free + self.pool.num_inactive >= self.num_steady:
            return True
        slot = self.phases[_on_ring(1 - self.ring_at, self.ring_size)]
        while slot != NONE:
            needed += 1
            slot = self.requests.slots[slot].phase_next
        return needed <= self.pool.num_free + self.pool.num_inactive

    cdef int schedule_steady(self) except -1 nogil:
        """One token of work for every steady request: those at a block boundary take or fill a block."""
        cdef int32_t slot = self.phases[_on_ring(1 - self.ring_at, self.ring_size)]
        cdef Request* request
        cdef int64_t length
        while slot != NONE:
            request = &self.requests.slots[slot]
            if self.pool.acquire(NULL, 0, 1) != POOL_OK:
                with gil:
                    raise EngineError("a steady step was started without room for its blocks")
            self.append_blocks(request, 0, 1)
            if request.last_step - self.steps < self.ring_size:
                request.end_next = self.ends[request.last_step % self.ring_size]
                self.ends[request.last_step % self.ring_size] = slot
            slot = request.phase_next
        if self.prefix_caching:
            slot = self.phases[_on_ring(-self.ring_at, self.ring_size)]
            while slot != NONE:
                request = &self.requests.slots[slot]
                length = request.n_in + request.gen_offset + self.steps
                self.finalise(request, length - 1, length)
                slot = request.phase_next
        self.num_scheduled += self.num_steady
        self.tokens_scheduled += self.num_steady
        self.budget -= self.num_steady
        return 0

    cdef int emit_steady(self) except -1 nogil:
        """The token of this step for every steady request; `leaving` lists those whose last one it was, in order."""
        cdef int64_t n = self.num_steady
        cdef int32_t slot = self.ends[self.ring_at]
        cdef int64_t* keys
        cdef int32_t* grown
        cdef int64_t i
        self.num_leaving = 0
        while slot != NONE:
            if self.num_leaving == self.leaving_capacity:
                # Twice the room of an int64 each: seniority and slot are sorted together below.
                grown = <int32_t*>realloc(self.leaving, (self.leaving_capacity * 2 + 16) * 4 * sizeof(int32_t))
                if grown is NULL:
                    with gil:
                        raise MemoryError("ending requests")
                self.leaving = grown
                self.leaving_capacity = self.leaving_capacity * 2 + 16
            keys = <int64_t*>self.leaving
            keys[2 * self.num_leaving] = self.requests.slots[slot].seniority
            keys[2 * self.num_leaving + 1] = slot
            self.num_leaving += 1
            slot = self.requests.slots[slot].end_next
        if self.num_leaving > 0:
            keys = <int64_t*>self.leaving
            qsort(keys, self.num_leaving, 2 * sizeof(int64_t), _by_first)
            for i in range(self.num_leaving):
                self.leaving[i] = <int32_t>keys[2 * i + 1]
        self.ends[self.ring_at] = NONE
        self.tokens_emitted += n
        self.emitters += n
        self.consecutive_emitters += n
        self.forwards += n
        self.forward_tokens += n
        self._step()
        if self.num_leaving == 0 and self.num_fresh > 0:
            self._tell_seconds(0, INT64_MAX)
            self.num_fresh = 0
        return 0

    cdef int _add_fresh(self, int32_t slot) except -1 nogil:
        """A request that joins has had one token so far."""
        cdef int32_t* grown
        if self.num_fresh == self.fresh_capacity:
            grown = <int32_t*>realloc(self.fresh, (self.fresh_capacity * 2 + 16) * sizeof(int32_t))
            if grown is NULL:
                with gil:
                    raise MemoryError("requests that join")
            self.fresh = grown
            self.fresh_capacity = self.fresh_capacity * 2 + 16
        self.fresh[self.num_fresh] = slot
        self.num_fresh += 1
        return 0

    cdef void _drop_fresh(self, int32_t slot) noexcept nogil:
        """A request leaves before its second token."""
        cdef int64_t i
        cdef int64_t kept = 0
        for i in range(self.num_fresh):
            if self.fresh[i] != slot:
                self.fresh[kept] = self.fresh[i]
                kept += 1
        self.num_fresh = kept

    cdef int64_t _tell_seconds(self, int64_t first, int64_t seniority) except -1 nogil:
        """Record the second token of those from `first` on who stand no further behind; returns the first who does."""
        cdef Request* request
        while first < self.num_fresh:
            request = &self.requests.slots[self.fresh[first]]
            if request.seniority > seniority:
                break
            self.end_events.emplace(EV_SECOND_TOKEN, self.pass_end_ms, self.worker, self.rank, request.ordinal)
            first += 1
        return first

    cdef void _step(self) noexcept nogil:
        """Every steady request is one token longer."""
        self.lengths.total_sq += 2 * self.lengths.total + self.num_steady
        self.lengths.total += self.num_steady
        self.steps += 1
        self.ring_at = _on_ring(self.ring_at + 1, self.ring_size)

    cdef bint _nobody_is_due(self) noexcept nogil:
        """In the next step no steady request takes a block, fills one or ends."""
        return (self.phases[_on_ring(1 - self.ring_at, self.ring_size)] == NONE
                and self.phases[_on_ring(-self.ring_at, self.ring_size)] == NONE and self.ends[self.ring_at] == NONE)

    cdef int _end_steady(self) except -1 nogil:
        """End the steady requests that have got their last token, in order of running."""
        cdef int64_t i, at, upto
        cdef int64_t kept = 0
        for i in range(self.num_leaving):
            self.leave_steady(self.leaving[i], False)
        # Both lists are in order of seniority.
        at = 0
        for i in range(self.num_leaving):
            upto = at
            while self.running[upto] != self.leaving[i]:
                upto += 1
            if kept != at:
                memmove(&self.running[kept], &self.running[at], (upto - at) * sizeof(int32_t))
            kept += upto - at
            at = upto + 1
        memmove(&self.running[kept], &self.running[at], (self.num_running - at) * sizeof(int32_t))
        self.num_running -= self.num_leaving
        at = 0
        for i in range(self.num_leaving):
            at = self._tell_seconds(at, self.requests.slots[self.leaving[i]].seniority)
            self.end_request(self.leaving[i], TERM_COMPLETED,
                             self.completion_reason(&self.requests.slots[self.leaving[i]]), -1, -1)
        self._tell_seconds(at, INT64_MAX)
        self.num_fresh = 0
        return 0

    cdef int32_t completion_reason(self, Request* request) noexcept nogil:
        return REASON_OUTPUT_LENGTH if request.gen >= request.n_out else REASON_MODEL_LEN

    # -- quiet passes -----------------------------------------------------------------------------

    cdef Py_ssize_t pass_quietly(self, double end_ms, double before_ms, double until_ms, Py_ssize_t max_records,
                                 EventBuffer out) except -1 nogil:
        """End passes in flight and compute the next ones as long as both are steady decode and nothing else.

        The next pass is as the flavour's `execute` would have it: all requests that run are steady, and nobody can be
        admitted. A head that was blocked stays so, since decoding takes blocks and gives none back, and what it evicts is
        at most what the head could have reused.
        """
        cdef double duration_ms
        cdef Event* event
        cdef bint is_plain
        cdef Py_ssize_t num_passes = 0
        cdef Py_ssize_t run = 0          # where the passes behind the first are told
        while end_ms < before_ms and end_ms <= until_ms and out.count + out.num_words < max_records:
            if (self.num_steady == 0 or self.num_steady != self.num_running or self.num_terminal > 0
                    or not self.quiet_on or self.num_waiting > 0 and not self.head_blocked):
                break
            duration_ms = self.timing.decode_or_nan(self.num_steady, <int64_t>self.lengths.total, self.kv_capacity_tokens)
            if not end_ms + duration_ms > end_ms:     # nor is NaN
                break
            # Behind another pass like it; what was scheduled and emitted is as there.
            is_plain = num_passes > 0 and self._nobody_is_due()
            if not is_plain:
                self.budget = self.max_num_batched_tokens
                if not self.steady_step_fits():
                    break
            if num_passes == 0:
                event = out.emplace(EV_QUIET_PASS, end_ms, self.worker, self.rank, NONE)
                event.x = self.previous_end_ms
                event.a, event.b, event.c = self.tokens_emitted, self.consecutive_emitters, self.emitters
                event.d, event.e, event.f = self.prefill_tokens, self.forwards, self.forward_tokens
            else:
                if num_passes == 1:
                    run = out.count
                    event = out.emplace(EV_QUIET_RUN, end_ms, self.worker, self.rank, NONE)
                    event.x, event.a = self.previous_end_ms, self.num_steady
                    out.emplace_words(event, 0)
                out.append_time(run, end_ms)
            if self.end_events.count > 0:
                out.extend(self.end_events, end_ms)
                self.end_events.reset()
            self.before_previous_end_ms = self.previous_end_ms
            self.previous_end_ms = end_ms
            if is_plain:
                self.pass_number += 1
                self.pass_start_ms = end_ms
                self.pass_end_ms = end_ms = end_ms + duration_ms
                self._step()
            else:
                self.begin_pass(end_ms)
                self.schedule_steady()
                self.pass_end_ms = end_ms = end_ms + duration_ms
                self.emit_steady()
                if self.num_leaving > 0:
                    self._end_steady()
            num_passes += 1
        if num_passes > 0:
            self.preempted = False
            self.capacity_bound = self.num_waiting > 0
            self.computed = True
            self.passes_without_gain = 0
        return num_passes

    # -- joining and leaving ----------------------------------------------------------------------

    cdef int join_steady(self) except -1 nogil:
        """Take the requests behind the steady prefix in that got a token in this pass and will go on."""
        cdef Request* request
        cdef int32_t slot
        cdef int64_t phase, length, left, boundary
        if not self.calendar_on or self.num_running > self.max_num_batched_tokens:
            return 0
        while self.num_steady < self.num_running:
            slot = self.running[self.num_steady]
            request = &self.requests.slots[slot]
            length = request.n_in + request.gen
            if (request.emit_pass != self.pass_number or request.gen < 1 or request.computed != length - 1
                    or request.alloc != length - 1):
                return 0
            left = self.remaining(slot)
            if request.gen == 1:
                self._add_fresh(slot)
            request.steady = 1
            request.gen_offset = request.gen - self.steps
            request.joined_step = self.steps
            request.last_step = self.steps + left - 1
            phase = self._phase_of(request)
            request.phase_prev = NONE
            request.phase_next = self.phases[phase]
            if request.phase_next != NONE:
                self.requests.slots[request.phase_next].phase_prev = slot
            self.phases[phase] = slot
            # Whoever meets a block boundary before its end is entered there.
            boundary = (self.ring_size - (length - 1) % self.ring_size) % self.ring_size
            request.end_next = NONE
            if left - 1 < boundary:
                request.end_next = self.ends[request.last_step % self.ring_size]
                self.ends[request.last_step % self.ring_size] = slot
            self.lengths.count += 1
            self.lengths.total += length
            self.lengths.total_sq += length * length
            self.num_steady += 1
        return 0

    cdef int leave_steady(self, int32_t slot, bint in_step) noexcept nogil:
        """Write down what is implied and take a request out of the calendars; `running` is the caller's.

        in_step: its work of the pass being executed is scheduled, its token not yet given.
        """
        cdef Request* request = &self.requests.slots[slot]
        cdef int64_t length
        request.gen = request.gen_offset + self.steps
        length = request.n_in + request.gen
        request.computed = request.alloc = length if in_step else length - 1
        request.scheduled_pass = self.pass_number if in_step else NONE
        request.work_total = 1
        request.work_prompt = 0
        request.work_prefix = request.n_in
        request.work_terminal = 0
        if self.steps > request.joined_step:
            request.emit_tokens = 1
            request.emit_consecutive = request.emit_forward = 1
            request.emit_excess = 0
            request.emit_pass = self.pass_number - 1 if in_step else self.pass_number
            request.emit_before_ms = self.previous_end_ms if self.executed and not in_step else self.before_previous_end_ms
        # The published end of a group pass may be later than this rank's own.
        request.emit_ms = self.pass_end_ms if self.executed and not in_step else self.previous_end_ms
        if request.phase_prev == NONE:
            self.phases[self._phase_of(request)] = request.phase_next
        else:
            self.requests.slots[request.phase_prev].phase_next = request.phase_next
        if request.phase_next != NONE:
            self.requests.slots[request.phase_next].phase_prev = request.phase_prev
        self._unlink_end(slot)
        request.steady = 0
        if in_step:
            self._drop_fresh(slot)
        self.lengths.count -= 1
        self.lengths.total -= length
        self.lengths.total_sq -= length * length
        self.num_steady -= 1
        return 0

    cdef void _unlink_end(self, int32_t slot) noexcept nogil:
        """Take a request out of the calendar of ends, if it is in it."""
        cdef int64_t at = self.requests.slots[slot].last_step % self.ring_size
        cdef int32_t other = self.ends[at]
        if other == slot:
            self.ends[at] = self.requests.slots[slot].end_next
            return
        while other != NONE:
            if self.requests.slots[other].end_next == slot:
                self.requests.slots[other].end_next = self.requests.slots[slot].end_next
                return
            other = self.requests.slots[other].end_next

    cdef int detach(self, int32_t slot) except -1 nogil:
        """A steady request leaves the prefix by name: so must those behind it."""
        if self.requests.slots[slot].steady:
            self.detach_all()
        return 0

    cdef int detach_all(self) except -1 nogil:
        """All of them leave; after a failure in mid-pass the work of that pass is scheduled and its tokens are not given."""
        cdef int64_t i
        cdef int64_t n = self.num_steady
        self.num_fresh = 0
        for i in range(n):
            self.leave_steady(self.running[i], self.executed and not self.computed)
        return 0
