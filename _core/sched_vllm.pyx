"""The vLLM flavour of a scheduler pass.

Running requests go first, in order of admission, and use the token budget first; a request that finds no
block preempts the newest (or oldest) running one; then the head of the waiting queue is admitted while slots,
blocks and budget allow, strictly in order. The whole pass is computed when it starts.

Decides: admission, preemption, rejection, who emits, which request can never progress. Never decides when a
pass starts or what a client sees first. Source: engine specification, sections 4, 8 and 9.3.
"""
cimport cython
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from .block_pool cimport POOL_OK, BlockPool
from .drafts cimport drafts_accepted, drafts_begin
from .event_buffer cimport (
    EV_ADMISSION, EV_PREEMPTION, EV_RANK_START, REASON_BURST_OVER_POOL, REASON_GROWTH_OVER_POOL,
    REASON_PROMPT_OVER_BUDGET, REASON_PROMPT_OVER_MODEL_LEN,
    REASON_PROMPT_OVER_POOL, TERM_COMPLETED, TERM_FAILED, TERM_REJECTED, WANT_KV, WANT_PREFILL, WANT_TOKENS, Event,
)
from .offload cimport HostTier
from .policy cimport SchedulingPolicy
from .prefix_index cimport PrefixIndex
from .sched_offload cimport TIER_ASIDE, TIER_LOADED, TIER_MISS, TIER_WAIT, OffloadScheduler, TierAnswer
from .timing cimport TimingModel
from .types cimport (
    BLOCKED, NONE, SCHEDULED, SELF_PREEMPTED, STATUS_MATERIALISED, STATUS_PREEMPTED, STATUS_RUNNING, STATUS_WAITING,
    ceil_div, limit_of,
)

from .types import EngineError, LivelockError


@cython.final
cdef class VllmScheduler(OffloadScheduler):
    """One rank of the vLLM flavour.

    Args:
        worker, rank: where this rank stands; they only label its records.
        trace_block_size: prompt tokens a trace hash id stands for.
        timing: pass-time model.
        want: bits of optional records (event_buffer.Want).
        sampler_seed: seed of this rank's acceptance draws.
        block_tokens, xxh3: see sched_blocks; needed only with cache events. asks_prompt_tokens: block_tokens knows the
            tokens of prompts, too, at positions -input_tokens to -1; otherwise they are taken from the hash ids.
        policy: who goes first, who is preempted, who may enter (sched_policy); None is first come, first served.
        tier: host memory of this rank (sched_offload); None is none. It needs prefix caching and xxh3, and no drafts.
        knows_outputs: hash ids stand for engine blocks and go on behind the prompt (prefix_index).
        free_prefill, free_decode: prompt tokens that are computed, tokens that are generated take no time: a worker with a
            role never pays for the other one, as on the reference.
        calendar: skip requests about which nothing changes (sched_calendar); False goes request by request.
        The rest as in the engine configuration; None means unlimited.
    """

    def __init__(self, int32_t worker, int32_t rank, *, num_gpu_blocks, int64_t block_size, int64_t trace_block_size,
                 TimingModel timing not None, int32_t want=0, max_num_seqs=256, max_num_batched_tokens=8192,
                 max_model_len=None, bint enable_prefix_caching=True, bint enable_chunked_prefill=True,
                 str preemption_mode="lifo", accept_rates=(), uint64_t sampler_seed=0, block_tokens=None, xxh3=None,
                 bint asks_prompt_tokens=False, SchedulingPolicy policy=None, bint calendar=True,
                 bint knows_outputs=False, bint free_prefill=False, bint free_decode=False, HostTier tier=None):
        if preemption_mode not in ("lifo", "fifo"):
            raise ValueError(f"unknown preemption_mode {preemption_mode!r}")
        self.worker, self.rank, self.want, self.timing = worker, rank, want, timing
        self.max_num_seqs = limit_of(max_num_seqs)
        self.max_num_batched_tokens = limit_of(max_num_batched_tokens)
        self.max_model_len = limit_of(max_model_len)
        self.block_size = block_size
        self.kv_capacity_tokens = <uint64_t>(int(num_gpu_blocks) * block_size % (1 << 64))
        self.prefix_caching, self.chunked_prefill = enable_prefix_caching, enable_chunked_prefill
        self.free_prefill, self.free_decode = free_prefill, free_decode
        self.preempt_first = preemption_mode == "fifo"
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
        drafts_begin(&self.drafts, accept_rates, sampler_seed)
        self.num_drafts = self.drafts.num
        self.set_policy(policy)
        if tier is not None and (not enable_prefix_caching or xxh3 is None or self.num_drafts > 0):
            raise ValueError("a host tier needs prefix caching and xxh3, and knows no drafts")
        self.set_tier(tier)
        # Records about single tokens or blocks, and copies, need every request touched in its order.
        if calendar and self.num_drafts == 0 and not self.has_tier and not want & (WANT_KV | WANT_TOKENS):
            self.enable_calendar()
        self.parks = not self.has_policy and not self.has_tier
        self.quiet_on = want == 0 and not self.has_policy and not self.has_tier

    def __dealloc__(self):
        free(self.ready)
        free(self.bursts)
        free(self.excess)

    # -- the pass ---------------------------------------------------------------------------------

    cdef int execute(self, double now_ms, bint defer_prefill) except -1 nogil:
        cdef Event* event
        cdef double end_ms = now_ms
        cdef int64_t i
        self.view.now_ms, self.view.pass_number = now_ms, self.pass_number + 1
        self.budget = self.pass_budget()
        if self.num_steady > 0 and not self.steady_step_fits():
            self.detach_all()
        self.begin_pass(now_ms)
        self.start_events.emplace(EV_RANK_START, now_ms, self.worker, self.rank, NONE)
        self.tell_budget()
        self.prefill_requests = self.prefill_isl_sum = self.prefill_prefix_sum = 0
        self.preempted = False
        self.num_rejected = 0
        if self.has_tier:
            self.open_tier_pass()
        if self.num_steady > 0:
            self.schedule_steady()
        self.run_running(defer_prefill)
        self.run_waiting(defer_prefill)
        if not defer_prefill and not self.preempted:
            self.capacity_bound = self.num_waiting > 0
        self.measure_pass(self.lengths, self.num_steady)
        if self.has_tier:
            end_ms = self.close_schedule(now_ms)
        if self.prefill_requests > 0 and not self.free_prefill:
            end_ms += self.timing.prefill_ms(self.prefill_requests, self.prefill_isl_sum // self.prefill_requests,
                                             self.prefill_prefix_sum // self.prefill_requests)
        self.collect_ready()
        if self.num_drafts > 0:
            self.finish_bursts(end_ms)
        else:
            self.finish_tokens(end_ms)
        for i in range(self.num_rejected):
            self.end_request(self.rejected[2 * i], TERM_REJECTED, self.rejected[2 * i + 1],
                             self.needed_for(self.rejected[2 * i], self.rejected[2 * i + 1]),
                             self.available_for(self.rejected[2 * i + 1]))
        self.num_rejected = 0
        if self.num_scheduled == 0 and not self.preempted and self.end_events.count == 0:
            if not self.has_tier or not self.stands_by():
                self.diagnose()
        event = &self.start_events.records[0]
        event.a, event.b, event.x = self.num_scheduled, self.tokens_scheduled, self.pass_end_ms
        self.moved = (self.pass_end_ms > now_ms or self.num_scheduled > 0 or self.preempted
                      or self.end_events.count > 0 or self.gave_back)
        self.effect_free = not self.moved and not self.started_load
        if self.effect_free:
            self.stall_if_waiting()
        self.computed = True
        if self.end_events.count > 0 or self.tokens_emitted > 0:
            self.passes_without_gain = 0
        elif self.preempted:
            if self.passes_without_gain == 0:
                self.fruitless_since_ms = now_ms
            self.passes_without_gain += 1
            if self.passes_without_gain > MAX_PASSES_WITHOUT_GAIN:
                with gil:
                    raise LivelockError(f"worker {self.worker} rank {self.rank}: {MAX_PASSES_WITHOUT_GAIN} preempting "
                                        f"passes without a token or an end; {self.num_running} running, {self.num_waiting} waiting")
        return 0

    cdef int run_running(self, bint defer_prefill) except -1 nogil:
        """Step A. The index is not adjusted when an earlier entry is preempted: that request's successor is skipped."""
        cdef int result
        cdef Request* request
        self.scan_at = self.num_steady
        while self.scan_at < self.num_running and self.budget > 0:
            request = &self.requests.slots[self.running[self.scan_at]]
            if defer_prefill and not (request.computed >= request.n_in and request.alloc >= request.n_in):
                self.scan_at += 1
                continue
            result = self.schedule(self.running[self.scan_at], False)
            if result == SCHEDULED:
                self.scan_at += 1
            elif result == BLOCKED:
                break
        return 0

    cdef int run_waiting(self, bint defer_prefill) except -1 nogil:
        """Step B: strictly in order; a head that has to wait blocks everybody behind it."""
        cdef int32_t slot
        cdef int64_t budget_before
        cdef bint is_aside
        cdef int verdict
        self.head_blocked = self.num_running >= self.max_num_seqs
        if self.preempted or self.head_blocked or self.num_waiting + self.num_aside == 0:
            return 0
        self.open_queue()
        # An admission itself may preempt: what a look-up counts as held may not be what is reused of it.
        while not self.preempted and self.num_running < self.max_num_seqs:
            self.bring_head()
            slot = self.next_in_turn(&is_aside)
            if slot == NONE:
                break
            verdict = self.consider(slot, is_aside, defer_prefill)
            if verdict == ENTRY_WAITS:
                break
            if verdict == ENTRY_PASSED_OVER:
                continue
            if not self.admits(slot):
                if is_aside:
                    self.num_vetoed -= 1     # it stands outside of the order
                    self.aside_at += 1
                continue
            budget_before = self.budget
            if self.admit(slot, is_aside) != SCHEDULED:
                break
            if self.budget == budget_before and self.budget == 0:
                break
        if self.num_running >= self.max_num_seqs:
            self.head_blocked = True
        return 0

    cdef int consider(self, int32_t slot, bint is_aside, bint defer_prefill) except -1 nogil:
        """Whether the next in turn may enter (`Entry`); what it may reuse is looked up then."""
        cdef Request* request = &self.requests.slots[slot]
        cdef int64_t length = request.n_in + request.gen
        cdef int64_t need
        cdef TierAnswer answer = TIER_MISS
        if request.n_in >= self.max_model_len:
            self.reject(slot, REASON_PROMPT_OVER_MODEL_LEN, is_aside)
            return ENTRY_PASSED_OVER
        if self.has_tier and request.status != STATUS_MATERIALISED:
            answer = self.consult_tier(slot)
            if answer == TIER_ASIDE:
                self.set_aside_for_copy(slot, is_aside)
                return ENTRY_PASSED_OVER
        if request.status == STATUS_WAITING and ceil_div(length, self.block_size) > self.pool.num_blocks:
            self.reject(slot, REASON_PROMPT_OVER_POOL, is_aside)
            return ENTRY_PASSED_OVER
        if not is_aside:
            self.tell_order(slot)
        if request.status == STATUS_MATERIALISED:
            self.cached_tokens = 0       # it has its blocks
            return ENTRY_OPEN
        if answer == TIER_WAIT:
            return ENTRY_WAITS
        if answer != TIER_LOADED:
            self.look_up(request)
            self.cap_reuse(request, request.n_out - request.gen > 0, self.num_drafts > 0)
        need = ceil_div(length, self.block_size) - self.active_cached_tokens // self.block_size
        if need > self.pool.num_blocks - self.pool.active():
            self.head_blocked = True
            return ENTRY_WAITS
        return ENTRY_WAITS if defer_prefill and length - self.cached_tokens > 1 else ENTRY_OPEN

    cdef int admit(self, int32_t slot, bint is_aside) except -1 nogil:
        """Schedule a waiting request and, if it could be, take it into running; returns a ScheduleResult."""
        cdef Request* request = &self.requests.slots[slot]
        cdef Event* event
        cdef int result = self.schedule(slot, True)
        if result != SCHEDULED:
            return result
        if self.preempted or is_aside or slot != self.candidate():
            self._take_out(slot)     # others stand before it
        else:
            self.pop_waiting()
        self.push_running(slot)
        request.status = STATUS_RUNNING
        event = self.start_events.emplace(EV_ADMISSION, self.pass_start_ms, self.worker, self.rank, request.ordinal)
        event.a, event.b = self.cached_tokens, request.num_admissions
        event.c = 1 + self.host_tokens(slot) if self.has_tier and request.num_admissions == 0 else 0
        request.num_admissions += 1
        if self.want & WANT_PREFILL and request.work_prompt > 0:
            self._publish_prefill(request)
        return SCHEDULED

    cdef int schedule(self, int32_t slot, bint from_waiting) except -1 nogil:
        """Give one request its work of this pass; returns a ScheduleResult."""
        cdef Request* request = &self.requests.slots[slot]
        cdef int64_t length = request.n_in + request.gen
        cdef int64_t reuse = 0
        cdef int64_t before, prompt_before, take, after, first, end, hits
        if request.computed == 0:
            if not from_waiting:
                self.look_up(request)
                self.cap_reuse(request, self.remaining(slot) > 0, self.num_drafts > 0)
            reuse = self.cached_tokens
        before = request.computed + reuse
        prompt_before = min(before, request.n_in)
        if not self.chunked_prefill and request.n_in - prompt_before > self.budget:
            return BLOCKED
        take = min(length - before, self.budget)
        if take == 0 and length > before:
            return BLOCKED
        after = before + take
        if after > request.alloc:
            first = ceil_div(request.alloc, self.block_size)
            end = ceil_div(after, self.block_size)
            if end > first:
                hits = reuse // self.block_size if request.table_length == 0 else 0
                if self.take_blocks(slot, hits, end - first - hits) == SELF_PREEMPTED:
                    return SELF_PREEMPTED
            request.alloc = after
        self.compute(slot, before, take, from_waiting)
        return SCHEDULED

    # -- blocks and preemption --------------------------------------------------------------------

    cdef int take_blocks(self, int32_t slot, int64_t num_hits, int64_t num_fresh) except -1 nogil:
        """Acquire blocks, preempting until they are there or the request preempted itself."""
        cdef int64_t i
        while self.acquire(num_hits, num_fresh) != POOL_OK:
            if self.num_running == 0:
                if self.is_shared:
                    return SELF_PREEMPTED    # stores hold what it counted on; nobody can give way
                with gil:
                    raise EngineError(f"request {self.requests.slots[slot].ordinal}: admitted, but the pool has no room")
            if self.preempt(True) == slot:
                return SELF_PREEMPTED
        if self.pool.num_removed > 0:
            self.publish_removed()
        self.append_blocks(&self.requests.slots[slot], num_hits, num_fresh)
        if self.fences:
            for i in range(num_fresh):
                self.fence = max(self.fence, self.fresh_reads[i])
        return SCHEDULED

    cdef int32_t preempt(self, bint return_budget) except -1 nogil:
        """Preempt the newest or oldest running request, or whom the policy chooses: blocks lost, generated tokens kept, front of the queue."""
        cdef int64_t at = self.victim_at(0 if self.preempt_first else self.num_running - 1)
        cdef int32_t slot = self.running[at]
        cdef Request* request = &self.requests.slots[slot]
        cdef int64_t running = self.num_running
        cdef int64_t waiting = self.num_waiting + self.num_aside
        cdef int64_t active = self.pool.active()
        cdef int64_t held = request.table_length
        cdef Event* event
        cdef int64_t* words
        if request.steady:
            self.leave_steady(slot, True)
        self.preempted = True
        self.num_running -= 1
        memmove(&self.running[at], &self.running[at + 1], (self.num_running - at) * sizeof(int32_t))
        request.status = STATUS_PREEMPTED
        request.computed = request.alloc = 0
        request.num_preemptions += 1
        self.handoffs.generation += 1
        self.release_blocks(request)
        if self.has_tier:
            self.wait_for_store(slot)
        self.push_waiting(slot, True)
        if request.scheduled_pass == self.pass_number:
            request.scheduled_pass = NONE
            self.num_scheduled -= 1
            if return_budget:
                self.tokens_scheduled -= request.work_total
                self.budget += request.work_total
                if request.work_prompt > 0:
                    self.prefill_requests -= 1
                    self.prefill_isl_sum -= request.work_prefix + request.work_prompt
                    self.prefill_prefix_sum -= request.work_prefix
        event = self.start_events.emplace(EV_PREEMPTION, self.pass_start_ms, self.worker, self.rank, request.ordinal)
        event.a, event.b = request.gen, request.num_preemptions
        words = self.start_events.emplace_words(event, 7)
        words[0], words[1], words[2] = running, waiting, active
        words[3], words[4], words[5] = self.num_running, self.num_waiting + self.num_aside, self.pool.active()
        words[6] = held
        return slot

    # -- tokens -----------------------------------------------------------------------------------

    cdef int collect_ready(self) except -1 nogil:
        """Requests whose known tokens are all computed; those that want no output end here, in order."""
        cdef int64_t i
        cdef int64_t kept = self.num_steady
        cdef int32_t slot
        cdef Request* request
        cdef int32_t* ready
        cdef int64_t* bursts
        cdef int64_t* excess
        if self.num_running > self.ready_capacity:
            ready = <int32_t*>realloc(self.ready, self.num_running * 2 * sizeof(int32_t))
            if ready is not NULL:
                self.ready = ready
            bursts = <int64_t*>realloc(self.bursts, self.num_running * 2 * sizeof(int64_t))
            if bursts is not NULL:
                self.bursts = bursts
            excess = <int64_t*>realloc(self.excess, self.num_running * 2 * sizeof(int64_t))
            if excess is not NULL:
                self.excess = excess
            if ready is NULL or bursts is NULL or excess is NULL:
                with gil:
                    raise MemoryError(f"{self.num_running} ready requests")
            self.ready_capacity = self.num_running * 2
        self.num_ready = 0
        for i in range(self.num_steady, self.num_running):
            slot = self.running[i]
            request = &self.requests.slots[slot]
            if request.computed == request.n_in + request.gen:
                if self.remaining(slot) == 0:
                    self.end_request(slot, TERM_COMPLETED, self.completion_reason(request), -1, -1)
                    continue
                self.ready[self.num_ready] = slot
                self.num_ready += 1
            self.running[kept] = slot
            kept += 1
        self.num_running = kept
        return 0

    cdef int finish_tokens(self, double prefill_end_ms) except -1 nogil:
        """One token for each ready request; all of them at the end of the pass."""
        cdef int64_t i
        cdef int64_t active = <int64_t>self.lengths.total
        cdef int64_t batch = self.num_steady
        cdef int32_t slot
        cdef Request* request
        cdef double end_ms = prefill_end_ms
        for i in range(self.num_ready):
            request = &self.requests.slots[self.ready[i]]
            if request.gen > 0 or request.work_prompt == 0:
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
                self._leave_running(slot, TERM_COMPLETED, self.completion_reason(request), -1, -1)
        self.join_steady()
        return 0

    cdef int _leave_running(self, int32_t slot, int32_t status, int32_t reason, int64_t needed, int64_t available) except -1 nogil:
        cdef int64_t i
        for i in range(self.num_steady, self.num_running):
            if self.running[i] == slot:
                self.num_running -= 1
                memmove(&self.running[i], &self.running[i + 1], (self.num_running - i) * sizeof(int32_t))
                break
        return self.end_request(slot, status, reason, needed, available)

    # -- multi-token prediction -------------------------------------------------------------------

    cdef int finish_bursts(self, double prefill_end_ms) except -1 nogil:
        """Bursts of accepted drafts for each ready request; slots are set aside for the longest ones first."""
        cdef int64_t i, _j, active, reserved, gen_before
        cdef int32_t slot
        cdef Request* request
        cdef double end_ms = prefill_end_ms
        reserved = self.set_aside(prefill_end_ms)
        self.measure_queue()     # with the requests preempted for the bursts, as on the reference
        active = 0
        for i in range(self.num_ready):
            request = &self.requests.slots[self.ready[i]]
            active += request.n_in + request.gen
        if self.num_ready > 0 and not self.free_decode:
            end_ms += self.timing.decode_ms(self.num_ready, active, self.kv_capacity_tokens)
        self.pass_end_ms = end_ms
        for i in range(self.num_ready):
            self.excess[i] = drafts_accepted(&self.drafts)
            self.bursts[i] = min(self.excess[i], self.remaining(self.ready[i]))
            self.excess[i] -= self.bursts[i]
        for i in range(self.num_ready):
            slot = self.ready[i]
            request = &self.requests.slots[slot]
            gen_before = request.gen
            for _j in range(self.bursts[i]):
                self.finalise(request, request.n_in + request.gen - 1, request.n_in + request.gen)
                request.gen += 1
                if request.alloc < request.n_in + request.gen:
                    if ceil_div(request.alloc, self.block_size) < ceil_div(request.n_in + request.gen, self.block_size):
                        self.append_blocks(request, 0, 1)
                        reserved -= 1
                    request.alloc = request.n_in + request.gen
            request.computed = request.n_in + request.gen - 1
            self.emit(slot, gen_before, end_ms, self.excess[i])
            if self.remaining(slot) == 0:
                self._leave_running(slot, TERM_COMPLETED, self.completion_reason(request), -1, -1)
        self.pool.release_private(reserved)
        return 0

    cdef int64_t set_aside(self, double now_ms) except -1 nogil:
        """Blocks for the longest bursts of all ready requests, preempting until they are there; returns their number.

        Requests can take the pool from each other in turns for ever (the reference does): after a long time without
        any token the victim fails instead, and the others have its blocks.
        """
        cdef int64_t i, length, needed
        cdef int32_t slot
        cdef Request* request
        while True:
            needed = 0
            for i in range(self.num_ready):
                request = &self.requests.slots[self.ready[i]]
                length = request.n_in + request.gen
                needed += (ceil_div(length + min(self.num_drafts + 1, self.remaining(self.ready[i])), self.block_size)
                           - ceil_div(length, self.block_size))
            if self.num_ready == 0 or self.pool.acquire(NULL, 0, needed) == POOL_OK:
                break
            if self.fail_hopeless_bursts() == 0:
                if self.goes_in_circles(now_ms):
                    self._leave_running(self.running[0 if self.preempt_first else self.num_running - 1], TERM_FAILED,
                                        REASON_BURST_OVER_POOL, self.pool.active() + needed, self.pool.num_blocks)
                else:
                    self.preempt(False)
            self.num_ready = 0
            for i in range(self.num_running):
                slot = self.running[i]
                request = &self.requests.slots[slot]
                if request.computed == request.n_in + request.gen and self.remaining(slot) > 0:
                    self.ready[self.num_ready] = slot
                    self.num_ready += 1
        if self.pool.num_removed > 0:
            self.publish_removed()
        return needed

    cdef bint goes_in_circles(self, double now_ms) noexcept nogil:
        """Whether requests have preempted each other for too long. What a transfer takes has nothing to do with passes."""
        cdef double elapsed_ms = now_ms - self.fruitless_since_ms
        if not self.handoffs.waits_outside():
            return self.passes_without_gain >= MAX_FRUITLESS_BURSTS
        if self.passes_without_gain < MIN_FRUITLESS_BURSTS_HELD:
            return False
        return (elapsed_ms == 0.0 or elapsed_ms >= MIN_FRUITLESS_HELD_MS
                or self.passes_without_gain >= MAX_FRUITLESS_BURSTS_HELD)

    cdef int fail_hopeless_bursts(self) except -1 nogil:
        """End ready requests whose burst would not fit into an empty pool; the reference runs for ever on them."""
        cdef int64_t i, length, blocks
        cdef int failed = 0
        cdef Request* request
        for i in range(self.num_ready):
            request = &self.requests.slots[self.ready[i]]
            length = request.n_in + request.gen
            blocks = ceil_div(length + min(self.num_drafts + 1, self.remaining(self.ready[i])), self.block_size)
            if blocks > self.pool.num_blocks:
                self._leave_running(self.ready[i], TERM_FAILED, REASON_BURST_OVER_POOL, blocks, self.pool.num_blocks)
                failed += 1
        return failed

    # -- cadence and dead ends --------------------------------------------------------------------

    cdef bint wants_deferral(self) noexcept nogil:
        """Prefill may wait while something decodes, unless the last full pass left requests waiting."""
        cdef int64_t i
        cdef Request* request
        if self.capacity_bound:
            return False
        if self.num_steady > 0:
            return True
        for i in range(self.num_running):
            request = &self.requests.slots[self.running[i]]
            if request.computed >= request.n_in and request.alloc >= request.n_in:
                return True
        return False

    cdef int diagnose(self) except -1 nogil:
        """A pass without any effect: end the head if it could not progress even in an empty pool."""
        cdef int32_t slot
        cdef Request* request
        cdef int64_t blocks
        if self.num_waiting + self.num_aside == 0 or self.num_running > 0 or self.gates_fresh():
            return 0
        self.bring_head()
        if not self.handoffs.waits_outside():
            self.check_not_stuck()
        if self.num_aside == 0 and not self.any_candidate():
            return 0
        slot = self.aside[0] if self.num_aside > 0 else self.candidate()
        request = &self.requests.slots[slot]
        blocks = ceil_div(request.n_in + request.gen, self.block_size)
        if blocks > self.pool.num_blocks:
            self._take_out(slot)
            self.end_request(slot, TERM_FAILED, REASON_GROWTH_OVER_POOL, blocks, self.pool.num_blocks)
        elif (not self.chunked_prefill and request.n_in - request.computed > self.max_num_batched_tokens
                and not self.handoffs.waits_outside()):
            # What handoffs still bring or give back may be the room, or the prefix, with which the rest fits the budget; so may
            # what another worker stores in memory that they share.
            if self.is_shared and not self.may_give_back:
                self.stalled = self.hopes = True
                return 0
            self._take_out(slot)
            self.end_request(slot, TERM_FAILED, REASON_PROMPT_OVER_BUDGET, request.n_in, self.max_num_batched_tokens)
        return 0
