"""One logical worker: its attention-DP ranks advance behind one barrier.

A call carries the time; nothing here waits or reads a clock. A pass is executed completely when it starts and
becomes visible when it is completed; its end is the end of the slowest rank. A refused command changes nothing;
a failure inside a pass poisons the engine for good.

Source: engine specification, sections 6.1, 7 and 9; driver specification, section 1.1.
"""
from libc.math cimport INFINITY
from libc.stdlib cimport free, malloc

from .event_buffer cimport (
    EV_INTERNAL_WORK, EV_PASS_END, EV_PASS_END_CLOSE, EV_PASS_START, EV_PASS_START_CLOSE, RES_APPLIED, Event,
)
from .scheduler cimport Scheduler
from .types cimport APPLY_ACTIVE, APPLY_BAD_PROMPT, APPLY_NO_RANK, APPLY_SUBMITTED, NONE, SUBMIT_ACTIVE, SUBMIT_BAD_PROMPT

from .types import EngineError


# Attributes of a rank reached through its borrowed pointer; typed arguments keep this free of the GIL.
cdef inline void _give_back(Scheduler rank) noexcept nogil:
    rank.requests.give_back()
    rank.parked.give_back()


cdef inline double _rank_end(Scheduler rank) noexcept nogil:
    return rank.pass_end_ms


cdef inline double _rank_start(Scheduler rank) noexcept nogil:
    return rank.pass_start_ms


cdef inline bint _rank_idle(Scheduler rank) noexcept nogil:
    return rank.effect_free


cdef inline void _hold_copies(Scheduler rank) noexcept nogil:
    rank.holds_copies = True


cdef inline bint _moved(Scheduler rank) noexcept nogil:
    return rank.moved


cdef inline bint _works_behind(Scheduler rank) noexcept nogil:
    return rank.works_behind


cdef inline bint _shares_tier(Scheduler rank) noexcept nogil:
    return rank.shares_tier


cdef inline void _look_around(Scheduler rank) noexcept nogil:
    rank.looks_around = True


cdef inline bint _counts_together(Scheduler rank) noexcept nogil:
    return rank.counts_together


cdef inline bint _prefilled(Scheduler rank) noexcept nogil:
    return rank.executed and rank.prefilled


cdef inline bint _line_moved(Scheduler rank) noexcept nogil:
    return rank.line_moved


cdef inline bint _worked(Scheduler rank) noexcept nogil:
    return rank.executed and rank.worked


cdef inline bint _executed(Scheduler rank) noexcept nogil:
    return rank.executed


cdef inline void _set_wall_time(Scheduler rank, double seconds) noexcept nogil:
    rank.fpm[0] = seconds


cdef inline int _append_start(Scheduler rank, EventBuffer out, double now_ms) except -1 nogil:
    return out.extend(rank.start_events, now_ms)


cdef class Engine:
    """Ranks behind one barrier. Open to subclasses in the core only.

    Args:
        worker: number of this worker; labels its records.
        schedulers: one Scheduler a rank, in rank order.
        prefill_schedule_interval: a rank with running decodes lets prefill wait in passes whose number since
            the last drain is no multiple of it; without effect on a single rank.
    """

    def __cinit__(self, int32_t worker, schedulers, int64_t prefill_schedule_interval=1):
        cdef Py_ssize_t i
        self.worker = worker
        self.schedulers = tuple(schedulers)
        self.dp_size = <int32_t>len(self.schedulers)
        self.prefill_schedule_interval = prefill_schedule_interval
        self.pass_id = NONE
        if self.dp_size == 0:
            raise ValueError("dp_size must be positive")
        self.ranks = <PyObject**>malloc(self.dp_size * sizeof(PyObject*))
        if self.ranks is NULL:
            raise MemoryError("ranks")
        for i in range(self.dp_size):
            if not isinstance(self.schedulers[i], Scheduler):
                raise TypeError(f"rank {i} is no Scheduler")
            self.ranks[i] = <PyObject*>self.schedulers[i]
            self.works_behind = self.works_behind or _works_behind(<Scheduler>self.ranks[i])
            self.shares_tier = self.shares_tier or _shares_tier(<Scheduler>self.ranks[i])
            self.counts_together = self.counts_together or _counts_together(<Scheduler>self.ranks[i])
        self.rests_between = self.works_behind and not self.shares_tier

    def __dealloc__(self):
        free(self.ranks)

    cdef bint is_ready(self) noexcept nogil:
        return not self.in_pass and not self.poisoned and self.has_work()

    cdef bint has_work(self) noexcept nogil:
        """Whether a pass could change anything at some rank."""
        cdef int32_t i
        for i in range(self.dp_size):
            if (<Scheduler>self.ranks[i]).has_work():
                return True
        return False

    cdef bint may_start(self, double now_ms) noexcept nogil:
        """Whether a pass is due, or background work that may make one due."""
        return self.is_ready() or self.next_internal_deadline() <= now_ms

    cdef bint drained(self) noexcept nogil:
        """No rank holds any request, nor blocks for another worker."""
        cdef int32_t i
        for i in range(self.dp_size):
            if (<Scheduler>self.ranks[i]).holds_any():
                return False
        return True

    cdef int execute_pass(self, double now_ms, EventBuffer out) except -1 nogil:
        """Start a group pass; appends its start records. Returns the number of ranks that executed, 0 = nothing to do.

        Records are appended when all ranks are through: a pass that fails leaves no half group behind.
        """
        cdef int32_t i
        cdef int32_t executed = 0
        cdef bint may_defer
        cdef double end_ms = now_ms
        cdef Event* event
        if self.poisoned or self.in_pass:
            with gil:
                raise EngineError("the engine is poisoned" if self.poisoned else "a pass is in flight")
        self.poisoned = True     # until this is through: a failure half-way leaves no usable state
        self.pass_effect_free, self.pass_moved = True, False
        may_defer = self.dp_size > 1 and self.wave % self.prefill_schedule_interval != 0
        for i in range(self.dp_size):
            if not (<Scheduler>self.ranks[i]).joins():
                continue
            (<Scheduler>self.ranks[i]).execute(now_ms, may_defer and (<Scheduler>self.ranks[i]).wants_deferral())
            executed += 1
            end_ms = max(end_ms, _rank_end(<Scheduler>self.ranks[i]))
            self.pass_moved = self.pass_moved or _moved(<Scheduler>self.ranks[i])
            self.pass_effect_free = self.pass_effect_free and _rank_idle(<Scheduler>self.ranks[i])
        self.pass_only_copies = self.rests_between and not self.pass_moved and not self.pass_effect_free
        if self.counts_together and executed > 0:
            self.tell_group()
        self.poisoned = False
        if executed == 0:
            return 0
        self.pass_id += 1
        event = out.emplace(EV_PASS_START, now_ms, self.worker, NONE, NONE)
        event.a, event.b, event.c, event.x = self.pass_id, executed, self.wave, end_ms
        for i in range(self.dp_size):
            if _executed(<Scheduler>self.ranks[i]):
                _append_start(<Scheduler>self.ranks[i], out, now_ms)
        out.emplace(EV_PASS_START_CLOSE, now_ms, self.worker, NONE, NONE)
        self.in_pass = True
        self.pass_start_ms = now_ms
        self.pass_end_ms = end_ms
        self.wave += 1
        return executed

    cdef void tell_group(self) noexcept nogil:
        """Tell all ranks, idle ones too, what those that took part in this pass did."""
        cdef int32_t i
        cdef bint prefilled = False
        cdef bint worked = False
        for i in range(self.dp_size):
            prefilled = prefilled or _prefilled(<Scheduler>self.ranks[i])
            worked = worked or _worked(<Scheduler>self.ranks[i])
        for i in range(self.dp_size):
            (<Scheduler>self.ranks[i]).group_over(prefilled, worked)

    cdef void tell_standstill(self) noexcept nogil:
        """A pass had no effect: tell all ranks that they stand still, unless one of them goes on."""
        cdef int32_t i
        if not self.is_ready():
            for i in range(self.dp_size):
                (<Scheduler>self.ranks[i]).stand_still()

    cdef int complete_pass(self, EventBuffer out, bint held_back) except -1 nogil:
        """Show the effects of the pass in flight at its modelled end. `held_back`: submissions wait on a lane, so the
        engine does not count as drained (they would be in its queues if they had been handed over at once)."""
        cdef int32_t i
        cdef bint line_moved = False
        cdef Event* event
        if self.poisoned or not self.in_pass:
            with gil:
                raise EngineError("the engine is poisoned" if self.poisoned else "no pass is in flight")
        self.poisoned = True
        event = out.emplace(EV_PASS_END, self.pass_end_ms, self.worker, NONE, NONE)
        event.a, event.b = self.pass_id, self.dp_size
        for i in range(self.dp_size):
            _set_wall_time(<Scheduler>self.ranks[i], (self.pass_end_ms - self.pass_start_ms) / 1000.0)
            if self.pass_only_copies:
                _hold_copies(<Scheduler>self.ranks[i])
            (<Scheduler>self.ranks[i]).publish_end(out, self.pass_end_ms)
            line_moved = line_moved or _line_moved(<Scheduler>self.ranks[i])
        out.emplace(EV_PASS_END_CLOSE, self.pass_end_ms, self.worker, NONE, NONE)
        if not self.pass_effect_free or line_moved and not self.works_behind:
            # Siblings that wait are asked once more: the pass end they take part in is an occasion for those in line.
            for i in range(self.dp_size):
                (<Scheduler>self.ranks[i]).wake()
        self.in_pass = False
        self.poisoned = False
        if self.pass_effect_free and self.counts_together:
            self.tell_standstill()
        if not held_back:
            self.settle()
        return 0

    cdef bint pass_quietly(self, double before_ms, double until_ms, Py_ssize_t max_records, EventBuffer out) except -1 nogil:
        """Complete passes and start the next ones at their ends, as long as they are quiet (Scheduler.pass_quietly); False:
        nothing changed. Only a single rank, whose group it is, passes quietly."""
        cdef Py_ssize_t num_passes
        if self.dp_size != 1 or self.poisoned or not self.in_pass:
            return False
        self.poisoned = True
        num_passes = (<Scheduler>self.ranks[0]).pass_quietly(self.pass_end_ms, before_ms, until_ms, max_records, out)
        if num_passes > 0:
            self.pass_id += num_passes
            self.wave += num_passes
            self.pass_effect_free = False
            self.pass_start_ms = _rank_start(<Scheduler>self.ranks[0])
            self.pass_end_ms = _rank_end(<Scheduler>self.ranks[0])
        self.poisoned = False
        return num_passes > 0

    cdef bint ends_unseen(self, int32_t rank, int32_t request) noexcept nogil:
        """As Scheduler.ends_unseen."""
        return (<Scheduler>self.ranks[rank]).ends_unseen(request)

    cdef int settle(self) noexcept nogil:
        """Start the cadence anew when nothing is left."""
        cdef int32_t i
        if not self.in_pass and self.drained():
            self.wave = 0
            for i in range(self.dp_size):
                _give_back(<Scheduler>self.ranks[i])
        return 0

    cdef bint look_around(self) noexcept nogil:
        """Have ranks that stand still look again whenever anything happens, where their siblings notice; whether they do."""
        cdef int32_t i
        if not self.works_behind or self.dp_size == 1:
            return False
        for i in range(self.dp_size):
            _look_around(<Scheduler>self.ranks[i])
        return True

    cdef bint next_instant(self, double now_ms) noexcept nogil:
        """Something happens at `now_ms` on some worker; whether a rank will look again for that."""
        cdef int32_t i
        cdef bint looks = False
        for i in range(self.dp_size):
            looks = (<Scheduler>self.ranks[i]).next_instant(now_ms) or looks
        return looks

    cdef bint nothing_moves(self, double now_ms) noexcept nogil:
        """No worker moves by itself any more: whether a rank of this one will, now that it knows."""
        cdef int32_t i
        for i in range(self.dp_size):
            if (<Scheduler>self.ranks[i]).nothing_moves(now_ms):
                return True
        return False

    cdef double next_internal_deadline(self) noexcept nogil:
        """Earliest deadline of modelled background work; a pass in flight hides it."""
        cdef int32_t i
        cdef double at_ms = INFINITY
        if not self.works_behind or self.in_pass or self.poisoned or self.holds_internal:
            return INFINITY
        for i in range(self.dp_size):
            at_ms = min(at_ms, (<Scheduler>self.ranks[i]).next_internal_ms())
        return at_ms

    cdef int process_internal_work(self, double now_ms, EventBuffer out) except -1 nogil:
        """Handle background work due at `now_ms`; returns the number of ranks that had some."""
        cdef int32_t i
        cdef int32_t worked = 0
        cdef bint in_line = False
        cdef Py_ssize_t head = out.count
        if self.next_internal_deadline() > now_ms:
            return 0
        self.poisoned = True     # until this is through
        out.emplace(EV_INTERNAL_WORK, now_ms, self.worker, NONE, NONE)
        for i in range(self.dp_size):
            if (<Scheduler>self.ranks[i]).next_internal_ms() <= now_ms:
                in_line = (<Scheduler>self.ranks[i]).process_internal(now_ms, out) or in_line
                worked += 1
        if self.shares_tier and self.has_work():
            in_line = False      # a pass begins, which serves lines at its end
        for i in range(self.dp_size if in_line else 0):
            (<Scheduler>self.ranks[i]).serve_line(now_ms, out)
        out.records[head].a = worked
        self.poisoned = False
        self.settle()
        return worked

    cdef int submit(self, int32_t rank, int32_t request, int64_t n_in, int64_t n_out, const uint64_t* hash_ids,
                    int64_t num_hash_ids, const Terms* terms) except -1 nogil:
        """Queue a request on a rank; returns a CommandStatus."""
        cdef int result
        if rank < 0 or rank >= self.dp_size:
            return APPLY_NO_RANK
        result = (<Scheduler>self.ranks[rank]).submit(request, n_in, n_out, hash_ids, num_hash_ids, terms)
        if result == SUBMIT_BAD_PROMPT:
            return APPLY_BAD_PROMPT
        return APPLY_ACTIVE if result == SUBMIT_ACTIVE else APPLY_SUBMITTED

    cdef int cancel(self, int32_t rank, int32_t request, bint discard, double now_ms, EventBuffer out,
                    bint* suppressed) except -1 nogil:
        """End a request by order; returns a CommandStatus."""
        cdef int result
        suppressed[0] = False
        if rank < 0 or rank >= self.dp_size:
            return APPLY_NO_RANK
        result = (<Scheduler>self.ranks[rank]).cancel(request, discard, now_ms, out, suppressed)
        if result == RES_APPLIED and not self.in_pass:
            (<Scheduler>self.ranks[rank]).after_cancel(now_ms, out)
        self.settle()
        return result

    cdef int hand_off(self, Envelope* envelope, double now_ms, EventBuffer out) except -1 nogil:
        """Apply a command about a handoff; returns a CommandStatus. In mid-pass only what admits nothing and frees nothing."""
        cdef int result
        if envelope.rank < 0 or envelope.rank >= self.dp_size:
            return APPLY_NO_RANK
        result = (<Scheduler>self.ranks[envelope.rank]).hand_off(envelope, now_ms, self.in_pass, out)
        self.settle()
        return result

    cdef int publish_gauges(self, int32_t rank, EventBuffer out, double now_ms, int64_t queued,
                            bint telemetry_only) except -1 nogil:
        return (<Scheduler>self.ranks[rank]).publish_gauges(out, now_ms, queued, telemetry_only)

    cdef int publish_cuts(self, EventBuffer out, double now_ms) except -1 nogil:
        cdef int32_t i
        for i in range(self.dp_size):
            (<Scheduler>self.ranks[i]).publish_cuts(out, now_ms)
        return 0

    @property
    def internal_deadline_ms(self):
        """When background work is due next [ms], None where none is known. Others than this engine's own steps may move it:
        whoever has ranks look again."""
        cdef double at_ms = self.next_internal_deadline()
        return None if at_ms == INFINITY else at_ms
