"""The TensorRT-LLM flavour of a scheduler pass: capacity policy guaranteed_no_evict.

Whoever is admitted has room for its whole life: the blocks of its prompt and of all it may generate are booked, so
nobody is ever preempted. Running requests go first, in order of admission; then the head of the waiting queue is
admitted while slots, bookings and budget allow, strictly in order. What a request may generate is cut at submission to
what the pool holds.

Decides: admission, rejection, who emits, which request can never progress. Never decides when a pass starts or what a
client sees first. Source: engine specification of this flavour, sections 2, 4 and 8.
"""
cimport cython
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from .block_pool cimport POOL_OK, BlockPool
from .drafts cimport drafts_accepted, drafts_begin
from .event_buffer cimport (
    EV_ADMISSION, EV_RANK_START, REASON_POOL_LEN, REASON_PROMPT_OVER_BUDGET, REASON_PROMPT_OVER_MODEL_LEN,
    REASON_PROMPT_OVER_POOL, TERM_COMPLETED, TERM_FAILED, TERM_REJECTED, WANT_KV, WANT_PREFILL, WANT_TOKENS, Event,
)
from .handoff cimport OWN_ACTIVE, OWN_RESERVED
from .prefix_index cimport PrefixIndex
from .timing cimport TimingModel
from .types cimport (
    BLOCKED, NONE, SCHEDULED, STATUS_MATERIALISED, STATUS_RUNNING, ceil_div, limit_of,
)

from .types import EngineError


@cython.final
cdef class TrtllmScheduler(HandoffScheduler):
    """One rank of the TensorRT-LLM flavour.

    Args:
        worker, rank: where this rank stands; they only label its records.
        trace_block_size: prompt tokens a trace hash id stands for.
        timing: pass-time model.
        want: bits of optional records (event_buffer.Want).
        sampler_seed: seed of this rank's acceptance draws.
        block_tokens, xxh3: see sched_blocks; needed only with cache events. asks_prompt_tokens: block_tokens knows the
            tokens of prompts, too, at positions -input_tokens to -1; otherwise they are taken from the hash ids.
        knows_outputs: hash ids stand for engine blocks and go on behind the prompt (prefix_index).
        free_prefill, free_decode: prompt tokens that are computed, tokens that are generated take no time: a worker with a
            role never pays for the other one, as on the reference.
        calendar: skip requests about which nothing changes (sched_calendar); False goes request by request.
        The rest as in the engine configuration; None means unlimited.
    """

    def __init__(self, int32_t worker, int32_t rank, *, num_gpu_blocks, int64_t block_size, int64_t trace_block_size,
                 TimingModel timing not None, int32_t want=0, max_num_seqs=256, max_num_batched_tokens=8192,
                 max_model_len=None, bint enable_prefix_caching=True, bint enable_chunked_prefill=True,
                 accept_rates=(), uint64_t sampler_seed=0, block_tokens=None, xxh3=None, bint asks_prompt_tokens=False,
                 bint calendar=True, bint knows_outputs=False, bint free_prefill=False, bint free_decode=False):
        self.worker, self.rank, self.want, self.timing = worker, rank, want, timing
        self.max_num_seqs = limit_of(max_num_seqs)
        self.max_num_batched_tokens = limit_of(max_num_batched_tokens)
        self.max_model_len = limit_of(max_model_len)
        self.block_size = block_size
        self.pool_tokens = min(num_gpu_blocks, INT64_MAX // 4 // block_size) * block_size
        self.kv_capacity_tokens = <uint64_t>(int(num_gpu_blocks) * block_size % (1 << 64))
        self.prefix_caching, self.chunked_prefill = enable_prefix_caching, enable_chunked_prefill
        self.free_prefill, self.free_decode = free_prefill, free_decode
        if knows_outputs and trace_block_size != block_size:
            raise ValueError("hash ids of outputs stand for engine blocks")
        self.index = PrefixIndex(block_size, trace_block_size)
        self.index.knows_outputs = knows_outputs
        self.pool = BlockPool(self.index, min(num_gpu_blocks, INT64_MAX // 4))
        if want & WANT_KV:
            if block_tokens is None or xxh3 is None:
                raise ValueError("cache events need block_tokens and xxh3")
            self.index.track_hashes()
            self.pool.keep_removed = True
        self._block_tokens, self._xxh3, self._uniform_hashes = block_tokens, xxh3, {}
        self.asks_prompt_tokens = asks_prompt_tokens
        self.keeps_hash_ids = bool(want & WANT_KV)
        drafts_begin(&self.drafts, accept_rates, sampler_seed)
        # Records about single tokens or blocks need every request touched in its order.
        if calendar and self.drafts.num == 0 and not want & (WANT_KV | WANT_TOKENS):
            self.enable_calendar()
        self.quiet_on = want == 0

    def __dealloc__(self):
        free(self.ready)

    # -- bookings ---------------------------------------------------------------------------------

    cdef int64_t most_output(self, int64_t n_in, int64_t n_out) noexcept nogil:
        """Tokens a request generates in all: what was asked for, as far as the pool and the model length reach."""
        if n_in < self.pool_tokens:
            n_out = min(n_out, self.pool_tokens - n_in)
        return max(min(n_out, self.max_model_len - n_in), 0)

    cdef int64_t full_need(self, Request* request) noexcept nogil:
        """Blocks of its whole life; the last token counts although it is never computed."""
        return self.least_blocks(request.n_in, request.n_out)

    cdef int64_t headroom(self) noexcept nogil:
        """Blocks that nobody holds and nobody who was let in may still ask for."""
        cdef int64_t room = self.pool.num_blocks - self.pool.active() - self.num_booked
        cdef int32_t i, state
        cdef Request* request
        if self.handoffs.num_reserved + self.handoffs.num_active > 0:
            # Destinations have their prompt and are promised the rest; once they run it is booked.
            for i in range(self.handoffs.top):
                state = self.handoffs.entries[i].state
                if state != OWN_RESERVED and state != OWN_ACTIVE:
                    continue
                request = &self.requests.slots[self.handoffs.entries[i].slot]
                if request.status != STATUS_RUNNING:
                    room -= self.full_need(request) - request.table_length
        return max(room, 0)

    cdef int64_t least_blocks(self, int64_t n_in, int64_t n_out) noexcept nogil:
        return ceil_div(n_in + self.most_output(n_in, n_out), self.block_size)

    cdef bint may_reserve(self, Request* request) except -1 nogil:
        """A destination has its whole life booked, too, and gets blocks of its own, whatever of its prompt is cached."""
        self.intern_path(request)
        self.num_hits = self.num_active_hits = 0
        return self.full_need(request) <= self.headroom()

    cdef int64_t append_blocks(self, Request* request, int64_t num_hits, int64_t num_fresh) except -1 nogil:
        if request.status == STATUS_RUNNING:
            self.num_booked -= num_hits + num_fresh
        return HandoffScheduler.append_blocks(self, request, num_hits, num_fresh)

    cdef void release_blocks(self, Request* request) noexcept nogil:
        if request.status == STATUS_RUNNING:
            self.num_booked -= self.full_need(request) - request.table_length
        HandoffScheduler.release_blocks(self, request)

    cdef int _hold(self, int32_t slot) except -1 nogil:
        """A held source keeps its blocks and asks for no more."""
        cdef Request* request = &self.requests.slots[slot]
        self.num_booked -= self.full_need(request) - request.table_length
        self.head_blocked = False
        return HandoffScheduler._hold(self, slot)

    cdef int64_t remaining(self, int32_t slot) noexcept nogil:
        cdef Request* request = &self.requests.slots[slot]
        return self.most_output(request.n_in, request.n_out) - request.gen

    cdef int32_t completion_reason(self, Request* request) noexcept nogil:
        if request.gen < request.n_out and request.n_in + request.gen < self.max_model_len:
            return REASON_POOL_LEN
        return HandoffScheduler.completion_reason(self, request)

    cdef int64_t needed_for(self, int32_t slot, int32_t reason) noexcept nogil:
        if reason == REASON_PROMPT_OVER_POOL:
            return self.full_need(&self.requests.slots[slot])
        return HandoffScheduler.needed_for(self, slot, reason)

    # -- the pass ---------------------------------------------------------------------------------

    cdef int execute(self, double now_ms, bint defer_prefill) except -1 nogil:
        cdef Event* event
        cdef double end_ms = now_ms
        cdef int64_t i
        self.budget = self.max_num_batched_tokens
        if self.num_steady > 0 and not self.steady_step_fits():
            self.detach_all()
        self.begin_pass(now_ms)
        self.start_events.emplace(EV_RANK_START, now_ms, self.worker, self.rank, NONE)
        self.prefill_requests = self.prefill_isl_sum = self.prefill_prefix_sum = 0
        self.num_rejected = 0
        if self.num_steady > 0:
            self.schedule_steady()
        self.run_running()
        self.run_waiting()
        self.measure_pass(self.lengths, self.num_steady)
        if self.prefill_requests > 0 and not self.free_prefill:
            end_ms += self.timing.prefill_ms(self.prefill_requests, self.prefill_isl_sum // self.prefill_requests,
                                             self.prefill_prefix_sum // self.prefill_requests)
        self.collect_ready()
        if self.drafts.num > 0:
            self.finish_bursts(end_ms)
        else:
            self.finish_tokens(end_ms)
        for i in range(self.num_rejected):
            self.end_request(self.rejected[2 * i], TERM_REJECTED, self.rejected[2 * i + 1],
                             self.needed_for(self.rejected[2 * i], self.rejected[2 * i + 1]),
                             self.available_for(self.rejected[2 * i + 1]))
        self.num_rejected = 0
        if self.num_scheduled == 0 and self.end_events.count == 0:
            self.diagnose()
        event = &self.start_events.records[0]
        event.a, event.b, event.x = self.num_scheduled, self.tokens_scheduled, self.pass_end_ms
        self.effect_free = self.pass_end_ms <= now_ms and self.num_scheduled == 0 and self.end_events.count == 0
        if self.effect_free:
            self.stall_if_waiting()
        self.computed = True
        return 0

    cdef int run_running(self) except -1 nogil:
        cdef int64_t at = self.num_steady
        while at < self.num_running and self.budget > 0:
            if self.schedule(self.running[at], False) != SCHEDULED:
                break
            at += 1
        return 0

    cdef int run_waiting(self) except -1 nogil:
        """Strictly in order; a head that has to wait blocks everybody behind it, hopeless ones too."""
        cdef int32_t slot
        cdef int64_t budget_before
        cdef Request* request
        self.head_blocked = self.num_running >= self.max_num_seqs
        while self.num_waiting > 0 and self.num_running < self.max_num_seqs:
            slot = self.first_materialised() if self.gates_fresh() else self.waiting[self.waiting_head]
            if slot == NONE:
                break
            request = &self.requests.slots[slot]
            if request.status != STATUS_MATERIALISED:
                if request.n_in >= self.max_model_len:
                    self.reject(slot, REASON_PROMPT_OVER_MODEL_LEN, False)
                    continue
                if self.full_need(request) > self.pool.num_blocks:
                    self.reject(slot, REASON_PROMPT_OVER_POOL, False)
                    continue
            if not self.has_room(request):
                # Decoding changes nothing about it: a block that is taken was booked, and what is evicted nobody has in
                # use, nor another copy of it. Where outputs are known, others can come to share more of its prompt.
                self.head_blocked = not self.index.knows_outputs
                break
            budget_before = self.budget
            if self.admit(slot) != SCHEDULED:
                break
            if self.budget == budget_before and self.budget == 0:
                break
        if self.num_running >= self.max_num_seqs:
            self.head_blocked = True
        return 0

    cdef bint has_room(self, Request* request) except -1 nogil:
        """Whether a whole life more can be booked; what the request may reuse is looked up then."""
        cdef int64_t need
        self.num_hits = self.cached_tokens = 0
        if request.status == STATUS_MATERIALISED:
            return True          # it has its blocks, and the rest is promised
        self.look_up(request)
        self.cached_tokens = self.num_hits * self.block_size
        # A block that nobody uses has to be paid for like an empty one.
        need = self.full_need(request) - self.num_active_hits
        return need <= self.headroom()

    cdef int admit(self, int32_t slot) except -1 nogil:
        """Schedule a waiting request and, if it could be, take it into running; returns a ScheduleResult."""
        cdef Request* request = &self.requests.slots[slot]
        cdef Event* event
        if self.schedule(slot, True) != SCHEDULED:
            return BLOCKED
        if slot == self.waiting[self.waiting_head]:
            self.pop_waiting()
        else:
            self._take_out(slot)     # others stand before it
        self.push_running(slot)
        request.status = STATUS_RUNNING
        self.num_booked += self.full_need(request) - request.table_length
        event = self.start_events.emplace(EV_ADMISSION, self.pass_start_ms, self.worker, self.rank, request.ordinal)
        event.a, event.b = self.cached_tokens, request.num_admissions
        request.num_admissions += 1
        if self.want & WANT_PREFILL and request.work_prompt > 0:
            self._publish_prefill(request)
        return SCHEDULED

    cdef int schedule(self, int32_t slot, bint from_waiting) except -1 nogil:
        """Give one request its work of this pass; returns a ScheduleResult."""
        cdef Request* request = &self.requests.slots[slot]
        cdef int64_t length = request.n_in + request.gen
        cdef int64_t hits = self.num_hits if from_waiting else 0
        cdef int64_t before = request.computed + hits * self.block_size
        cdef int64_t prompt_before = min(before, request.n_in)
        cdef int64_t take = min(length - before, self.budget)
        cdef int64_t after = before + take
        cdef int64_t missing
        if not self.chunked_prefill and request.n_in - prompt_before > self.budget or take == 0 and length > before:
            return BLOCKED
        if after > request.alloc:
            missing = ceil_div(after, self.block_size) - ceil_div(request.alloc, self.block_size)
            if missing > 0:
                self.take_blocks(request, hits, missing - hits)
            request.alloc = after
        self.compute(slot, before, take, from_waiting)
        return SCHEDULED

    cdef int take_blocks(self, Request* request, int64_t num_hits, int64_t num_fresh) except -1 nogil:
        """Acquire blocks that are booked."""
        if self.acquire(num_hits, num_fresh) != POOL_OK:
            with gil:
                raise EngineError(f"request {request.ordinal}: {num_fresh} blocks are booked, but the pool has no room")
        if self.pool.num_removed > 0:
            self.publish_removed()
        self.append_blocks(request, num_hits, num_fresh)
        return 0

    # -- tokens -----------------------------------------------------------------------------------

    cdef int collect_ready(self) except -1 nogil:
        """Requests whose known tokens are all computed; those that want no output end here, in order."""
        cdef int64_t i
        cdef int64_t kept = self.num_steady
        cdef int32_t slot
        cdef int32_t* ready
        if self.num_running > self.ready_capacity:
            ready = <int32_t*>realloc(self.ready, self.num_running * 2 * sizeof(int32_t))
            if ready is NULL:
                with gil:
                    raise MemoryError(f"{self.num_running} ready requests")
            self.ready = ready
            self.ready_capacity = self.num_running * 2
        self.num_ready = 0
        for i in range(self.num_steady, self.num_running):
            slot = self.running[i]
            if self.requests.slots[slot].computed == self.requests.slots[slot].n_in + self.requests.slots[slot].gen:
                if self.remaining(slot) == 0:
                    self.end_request(slot, TERM_COMPLETED, self.completion_reason(&self.requests.slots[slot]), -1, -1)
                    continue
                self.ready[self.num_ready] = slot
                self.num_ready += 1
            self.running[kept] = slot
            kept += 1
        self.num_running = kept
        return 0

    cdef int finish_tokens(self, double prefill_end_ms) except -1 nogil:
        """One token for each ready request, all of them at the end of the pass."""
        cdef int64_t i
        cdef int64_t active = <int64_t>self.lengths.total
        cdef int64_t batch = self.num_steady
        cdef int32_t slot
        cdef Request* request
        cdef double end_ms = prefill_end_ms
        for i in range(self.num_ready):
            request = &self.requests.slots[self.ready[i]]
            if request.work_prompt == 0:     # the end of a prompt brings its token along
                batch += 1
                active += request.n_in + request.gen
        if batch > 0 and not self.free_decode:
            end_ms += self.timing.decode_ms(batch, active, self.kv_capacity_tokens)
        self.pass_end_ms = end_ms
        if self.num_steady > 0:
            self.emit_steady()
            if self.num_leaving > 0:
                self._end_steady()
        for i in range(self.num_ready):
            slot = self.ready[i]
            request = &self.requests.slots[slot]
            request.gen += 1
            self.emit(slot, request.gen - 1, end_ms, 0)
            if self.remaining(slot) == 0:
                self.leave_running(slot)
        self.join_steady()
        return 0

    cdef int leave_running(self, int32_t slot) except -1 nogil:
        """A running request has all its tokens."""
        cdef int64_t i
        for i in range(self.num_steady, self.num_running):
            if self.running[i] == slot:
                self.num_running -= 1
                memmove(&self.running[i], &self.running[i + 1], (self.num_running - i) * sizeof(int32_t))
                break
        return self.end_request(slot, TERM_COMPLETED, self.completion_reason(&self.requests.slots[slot]), -1, -1)

    cdef int finish_bursts(self, double prefill_end_ms) except -1 nogil:
        """Bursts of accepted drafts for each ready request; whoever ended its prompt in this pass is one of them."""
        cdef int64_t i, _j, active, reserved, gen_before, accepted, burst
        cdef int32_t slot
        cdef Request* request
        cdef double end_ms = prefill_end_ms
        reserved = self.set_aside()
        active = 0
        for i in range(self.num_ready):
            request = &self.requests.slots[self.ready[i]]
            active += request.n_in + request.gen
        if self.num_ready > 0 and not self.free_decode:
            end_ms += self.timing.decode_ms(self.num_ready, active, self.kv_capacity_tokens)
        self.pass_end_ms = end_ms
        for i in range(self.num_ready):
            slot = self.ready[i]
            request = &self.requests.slots[slot]
            gen_before = request.gen
            accepted = drafts_accepted(&self.drafts)
            burst = min(accepted, self.remaining(slot))
            for _j in range(burst):
                self.finalise(request, request.n_in + request.gen - 1, request.n_in + request.gen)
                request.gen += 1
                if ceil_div(request.alloc, self.block_size) < ceil_div(request.n_in + request.gen, self.block_size):
                    self.append_blocks(request, 0, 1)
                    reserved -= 1
                request.alloc = request.n_in + request.gen
            request.computed = request.n_in + request.gen - 1
            self.emit(slot, gen_before, end_ms, accepted - burst)
            if self.remaining(slot) == 0:
                self.leave_running(slot)
        self.pool.release_private(reserved)
        return 0

    cdef int64_t set_aside(self) except -1 nogil:
        """Blocks for the longest bursts of all ready requests, out of what is booked for them; returns their number."""
        cdef int64_t i, length
        cdef int64_t needed = 0
        cdef Request* request
        for i in range(self.num_ready):
            request = &self.requests.slots[self.ready[i]]
            length = request.n_in + request.gen
            needed += (ceil_div(length + min(self.drafts.num + 1, self.remaining(self.ready[i])), self.block_size)
                       - ceil_div(length, self.block_size))
        if self.pool.acquire(NULL, 0, needed) != POOL_OK:
            with gil:
                raise EngineError(f"worker {self.worker} rank {self.rank}: {needed} blocks are booked, but the pool has no room")
        if self.pool.num_removed > 0:
            self.publish_removed()
        return needed

    # -- dead ends --------------------------------------------------------------------------------

    cdef int diagnose(self) except -1 nogil:
        """A pass without any effect: end the head if its prompt can never be computed in one piece."""
        cdef int32_t slot
        cdef Request* request
        if self.num_waiting == 0 or self.num_running > 0 or self.gates_fresh() or self.chunked_prefill:
            return 0
        slot = self.waiting[self.waiting_head]
        request = &self.requests.slots[slot]
        if request.n_in > self.max_num_batched_tokens:
            self.pop_waiting()
            self.end_request(slot, TERM_FAILED, REASON_PROMPT_OVER_BUDGET, request.n_in, self.max_num_batched_tokens)
        return 0

    # -- test door --------------------------------------------------------------------------------

    def check(self):
        """As HandoffScheduler.check, and the bookings against the requests."""
        cdef int64_t i
        cdef int64_t booked = 0
        cdef Request* request
        HandoffScheduler.check(self)
        for i in range(self.num_running):
            request = &self.requests.slots[self.running[i]]
            assert self.full_need(request) >= request.table_length, "a request holds more than was booked for it"
            booked += self.full_need(request) - request.table_length
        assert booked == self.num_booked, "bookings"
        assert self.pool.active() + self.num_booked <= self.pool.num_blocks, "booked more than there is"
