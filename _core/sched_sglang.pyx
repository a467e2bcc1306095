"""The SGLang flavour of a scheduler pass.

A pass either computes prompts or decodes. Prompts are admitted from the head of the queue while budgets of tokens last
and room is left beside what running requests may still want; a prompt over the chunk budget is cut and goes on at the
head of the queue. Where nobody can be admitted the running requests decode, and give up those with the fewest tokens
when pages run out. The whole pass is computed when it starts.

Decides: order of the queue, admission, retraction, who emits. Never decides when a pass starts or what a client sees
first. Source: SGLang engine specification, sections 4 to 6 and 9.
"""
cimport cython
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from .drafts cimport drafts_accepted, drafts_begin
from .event_buffer cimport (
    EV_ADMISSION, EV_PREEMPTION, EV_RANK_START, REASON_PROMPT_OVER_MODEL_LEN, TERM_COMPLETED, TERM_REJECTED, WANT_FPM,
    WANT_KV, WANT_PREFILL, Event,
)
from .radix_tree cimport ROOT, PageKeys
from .request_table cimport Request
from .scheduler cimport Moments, mr_u128, mr_variance
from .timing cimport TimingModel
from .types cimport NONE, STATUS_PREEMPTED, STATUS_RUNNING, STATUS_WAITING, limit_of

cdef enum:
    SORT_MAX = 128               # waiting requests beyond which the queue stays as it is
    MATCH_MIN_TOKENS = 32        # a shorter match counts as none: who begins alike waits for the first of them

cdef double RESERVED_RATIO = 0.7         # of wanted output, with a conservativeness of 1
cdef double LEAST_RATIO = 0.14           # of the ratio at first
cdef double RATIO_PASSES = 600.0         # in which it falls so far
cdef double RANKS_CONSERVATIVENESS = 0.3     # of what is set, where several ranks share a worker
cdef double RETRACTED_TOKENS = 20.0      # that everybody may generate for sure after a retraction


cdef inline void _count(Moments* moments, int64_t value) noexcept nogil:
    moments.count += 1
    moments.total += <mr_u128>value
    moments.total_sq += <mr_u128>value * <mr_u128>value


@cython.final
cdef class SglangScheduler(PageScheduler):
    """One rank of the SGLang flavour.

    Args:
        worker, rank: where this rank stands; they only label its records.
        trace_block_size: prompt tokens a trace hash id stands for.
        timing: pass-time model.
        want: bits of optional records (event_buffer.Want).
        num_ranks: of the worker; several share the chunk budget out, and keep less room for output.
        sampler_seed: seed of this rank's acceptance draws.
        block_tokens, xxh3, asks_prompt_tokens: see sched_blocks; needed only with cache events.
        knows_outputs: hash ids stand for pages and go on behind the prompt.
        free_prefill: prompt tokens that are computed take no time: a decode worker never pays for them.
        The rest as in the engine configuration; None means unlimited.
    """

    def __init__(self, int32_t worker, int32_t rank, *, num_gpu_blocks, int64_t block_size, int64_t trace_block_size,
                 TimingModel timing not None, int32_t want=0, int64_t num_ranks=1, max_num_seqs=256, max_model_len=None,
                 bint enable_prefix_caching=True, int64_t prefill_decode_interval=0, str schedule_policy="fifo",
                 max_prefill_tokens=16384, chunked_prefill_size=8192, clip_max_new_tokens=4096,
                 double schedule_conservativeness=1.0, accept_rates=(), uint64_t sampler_seed=0, block_tokens=None,
                 xxh3=None, bint asks_prompt_tokens=False, bint knows_outputs=False, bint free_prefill=False):
        if schedule_policy not in ("fifo", "lpm"):
            raise ValueError(f"unknown schedule_policy {schedule_policy!r}")
        if want & WANT_KV and (block_tokens is None or xxh3 is None):
            raise ValueError("cache events need block_tokens and xxh3")
        self.worker, self.rank, self.want, self.timing = worker, rank, want, timing
        self.max_num_seqs, self.max_model_len = limit_of(max_num_seqs), limit_of(max_model_len)
        self.prefix_caching, self.chunked_prefill = enable_prefix_caching, True
        self.kv_capacity_tokens = <uint64_t>(int(num_gpu_blocks) * block_size % (1 << 64))
        self.max_prefill_tokens = limit_of(max_prefill_tokens)
        self.chunk_tokens = limit_of(chunked_prefill_size // num_ranks)
        self.clip_tokens = limit_of(clip_max_new_tokens)
        self.decode_interval = prefill_decode_interval
        if num_ranks > 1:
            schedule_conservativeness *= RANKS_CONSERVATIVENESS
        self.ratio = self.ratio_init = RESERVED_RATIO * schedule_conservativeness
        self.ratio_min = self.ratio_init * LEAST_RATIO
        self.ratio_step = (self.ratio_init - self.ratio_min) / RATIO_PASSES
        self.free_prefill = free_prefill
        self.set_pages(min(num_gpu_blocks, INT64_MAX // 4), block_size, trace_block_size, knows_outputs)
        self._block_tokens, self._xxh3, self._uniform_hashes = block_tokens, xxh3, {}
        self.asks_prompt_tokens = asks_prompt_tokens
        drafts_begin(&self.drafts, accept_rates, sampler_seed)
        self.counts_together = True
        self.by_match = schedule_policy == "lpm" and enable_prefix_caching
        if self.by_match:
            self.matches = <Match*>malloc(SORT_MAX * sizeof(Match))
            if self.matches is NULL:
                raise MemoryError("order of the queue")

    def __dealloc__(self):
        free(self.admitted)
        free(self.ended)
        free(self.matches)

    # -- the pass ---------------------------------------------------------------------------------

    cdef int execute(self, double now_ms, bint defer_prefill) except -1 nogil:
        cdef int64_t entered = self.num_aside
        cdef int64_t i
        cdef Event* event
        self.begin_pass(now_ms)
        self.start_events.emplace(EV_RANK_START, now_ms, self.worker, self.rank, NONE)
        self.num_admitted = self.num_ended = self.num_rejected = 0
        self.retracted = self.prefilled = self.worked = False
        self.pass_end_ms = now_ms
        self.enter_activated()
        entered -= self.num_aside
        if self.interval > 0 and now_ms > self.previous_end_ms:
            # Nobody was there for a while, in which the passes without admission went by.
            self.interval, self.ratio = 0, self.ratio_init
        self.deferred = self.idle_deferred = self.interval > 0
        i = 0
        while self.idle_deferred and i < self.num_running:
            self.idle_deferred = self.remaining(self.running[i]) == 0
            i += 1
        if self.num_too_long > 0:
            self.reject_too_long()
        if self.by_match and self.num_waiting <= SORT_MAX:
            self.order_queue()
        if not self.deferred and self.handoffs.num_pending == 0 and self.num_aside == 0:
            self.admit()
        if self.num_admitted > 0:
            self.disperse()
            self.pass_end_ms = self.prefill_end_ms(now_ms)
            self.emit_first_tokens()
        else:
            self.decode(now_ms)
        self.worked = self.num_admitted > 0 or self.tokens_emitted > 0 or self.emitters > 0
        self.close_requests()
        if self.retracted:
            self.ratio = self.estimate
        elif self.num_admitted == 0 and not self.idle_deferred:
            self.ratio = max(self.ratio - self.ratio_step, self.ratio_min)
        if self.want & WANT_FPM:
            self.measure_queue()
        event = &self.start_events.records[0]
        event.a, event.b, event.x = self.num_scheduled, self.tokens_scheduled, self.pass_end_ms
        self.effect_free = (self.pass_end_ms <= now_ms and self.num_admitted == 0 and entered == 0 and not self.worked
                            and not self.retracted and not self.deferred and self.end_events.count == 0)
        if self.effect_free:
            self.stall_if_waiting()
        self.computed = True
        return 0

    cdef void group_over(self, bint prefilled, bint worked) noexcept nogil:
        """The passes of all ranks are computed: the interval begins with prompt work on any of them, else it is one shorter."""
        if self.idle_deferred and not worked:
            self.ratio = self.ratio_init
        self.idle_deferred = False
        if prefilled:
            self.interval = self.decode_interval
        elif self.interval > 0:
            self.interval = self.interval - 1 if worked or self.handoffs.top > 0 else 0

    cdef bint has_work(self) noexcept nogil:
        """With handoffs the interval goes by in passes although nobody is there: each is an occasion for those in line."""
        return PageScheduler.has_work(self) or self.interval > 0 and self.handoffs.top > 0

    cdef void stand_still(self) noexcept nogil:
        """No pass is due: the ratio has fallen as far as it falls."""
        if self.stalled and self.ratio_step > 0.0:
            self.ratio = self.ratio_min

    cdef int enter_activated(self) except -1 nogil:
        """Destinations whose prompt has come run before all that wait."""
        cdef int32_t slot
        cdef Request* request
        cdef Event* event
        while self.num_aside > 0 and self.num_running < self.max_num_seqs:
            slot = self.aside[0]
            self._take_out(slot)
            self.push_running(slot)
            request = &self.requests.slots[slot]
            request.status = STATUS_RUNNING
            event = self.start_events.emplace(EV_ADMISSION, self.pass_start_ms, self.worker, self.rank, request.ordinal)
            event.a, event.b = 0, request.num_admissions
            request.num_admissions += 1
        return 0

    cdef int reject_too_long(self) except -1 nogil:
        """Prompts that are not shorter than the longest sequence; they end with the pass."""
        cdef int64_t i = 0
        cdef int32_t slot
        while i < self.num_waiting:
            slot = self.waiting[(self.waiting_head + i) & self.waiting_mask]
            if self.requests.slots[slot].n_in < self.max_model_len:
                i += 1
            else:
                self.reject(slot, REASON_PROMPT_OVER_MODEL_LEN, True)
        return 0

    # -- the order of the queue -------------------------------------------------------------------

    cdef int order_queue(self) noexcept nogil:
        """The longest cached prefix first; of those that begin alike and find little, the first one before all others, so
        that these find what it computes. Stays so."""
        cdef int64_t pages = self.pages_of(MATCH_MIN_TOKENS)
        cdef int64_t n = self.num_waiting
        cdef int64_t i, k, length
        cdef Match match
        for i in range(n):
            match.slot = self.waiting[(self.waiting_head + i) & self.waiting_mask]
            length = self.requests.slots[match.slot].n_in + self.requests.slots[match.slot].gen
            match.tokens = self.cached_pages(match.slot, length // self.block_size) * self.block_size
            match.is_twin, match.opening = False, 0
            if match.tokens <= MATCH_MIN_TOKENS and length >= pages * self.block_size:
                match.opening = self._opening_of(match.slot, pages)
                for k in range(i):
                    if self.matches[k].opening == match.opening and self._opens_alike(self.matches[k].slot, match.slot, pages):
                        match.is_twin = True
                        break
            self.matches[i] = match
        for i in range(1, n):
            match = self.matches[i]
            k = i
            while k > 0 and (match.is_twin < self.matches[k - 1].is_twin or (
                    match.is_twin == self.matches[k - 1].is_twin and match.tokens > self.matches[k - 1].tokens)):
                self.matches[k] = self.matches[k - 1]
                k -= 1
            self.matches[k] = match
        for i in range(n):
            self.waiting[(self.waiting_head + i) & self.waiting_mask] = self.matches[i].slot
        return 0

    cdef uint64_t _opening_of(self, int32_t slot, int64_t num_pages) noexcept nogil:
        """Hash of the first pages of a request, never 0; equal where they are."""
        cdef PageKeys keys
        cdef uint64_t h = 1
        cdef int64_t page
        self.keys_of(slot, &keys)
        for page in range(num_pages):
            h = h * 31 + self.tree._spread_of(ROOT, &keys, page)
        return h | 1

    cdef bint _opens_alike(self, int32_t a, int32_t b, int64_t num_pages) noexcept nogil:
        """Whether two requests have equal first pages, all of their prompts."""
        cdef PageKeys first, second
        cdef int64_t at
        self.keys_of(a, &first)
        self.keys_of(b, &second)
        if num_pages > first.num_named or num_pages > second.num_named:
            return False
        for at in range((num_pages * self.block_size - 1) // self.index.trace_block_size + 1):
            if first.ids[at] != second.ids[at]:
                return False
        return True

    # -- admission --------------------------------------------------------------------------------

    cdef int64_t _wanted(self, int32_t slot) noexcept nogil:
        """Output asked for, as far as the longest sequence goes."""
        cdef Request* request = &self.requests.slots[slot]
        return max(min(request.n_out, self.max_model_len - request.n_in), 0)

    cdef double _reserved_tokens(self) noexcept nogil:
        """Room kept for what running requests may still want."""
        cdef double reserved = 0.0
        cdef int64_t i
        for i in range(self.num_running):
            reserved += <double>min(self.remaining(self.running[i]), self.clip_tokens) * self.ratio
        return reserved

    cdef int admit(self) except -1 nogil:
        """Strictly from the head of the queue; whoever does not fit keeps all behind it out."""
        cdef int64_t slots = self.max_num_seqs - self.num_running
        cdef int64_t inputs = self.max_prefill_tokens
        cdef int64_t chunk = self.chunk_tokens
        cdef int64_t length, start, need, take, cost, reserve
        cdef int32_t slot
        cdef double room
        if self.num_waiting == 0 or slots <= 0:
            return 0
        room = <double>(self.available() * self.block_size) - self._reserved_tokens()
        while self.num_admitted < slots and self.num_waiting > 0:
            slot = self.waiting[self.waiting_head]
            length = self.requests.slots[slot].n_in + self.requests.slots[slot].gen
            if self.paged[slot].node != NONE:
                start = self.requests.slots[slot].computed
            else:
                # Where output is to come, the last token is computed in any case.
                start = self.cached_pages(slot, (length - (self._wanted(slot) > 0)) // self.block_size) * self.block_size
            need = length - start
            take = need if need <= chunk else min(need, chunk // self.block_size * self.block_size)
            if take == 0 and (need > 0 or self.paged[slot].node != NONE):
                break
            cost = self.pages_of(take) * self.block_size
            reserve = 0 if take < need else min(self.remaining(slot), self.clip_tokens)
            if <double>cost + <double>reserve >= room or cost > inputs or cost > chunk:
                break
            if not self._admit_head(slot, start, start + take):
                break
            room -= <double>cost + <double>reserve
            inputs -= cost
            chunk -= cost
            if chunk <= 0:
                break
        return 0

    cdef int _admit_head(self, int32_t slot, int64_t start, int64_t end) except -1 nogil:
        """Take the head of the queue into the pass; 0: its pages are not to be had after all."""
        cdef bint goes_on = self.paged[slot].node != NONE
        cdef Request* request = &self.requests.slots[slot]
        cdef Admitted* grown
        cdef Event* event
        if self.num_admitted == self.admitted_capacity:
            grown = <Admitted*>realloc(self.admitted, (self.admitted_capacity * 2 + 16) * sizeof(Admitted))
            if grown is NULL:
                with gil:
                    raise MemoryError("admitted requests")
            self.admitted, self.admitted_capacity = grown, self.admitted_capacity * 2 + 16
        if not self.allocate(slot, start, end):
            return 0
        self.pop_waiting()
        self.admitted[self.num_admitted].slot = slot
        self.admitted[self.num_admitted].start, self.admitted[self.num_admitted].end = start, end
        self.num_admitted += 1
        request.scheduled_pass = self.pass_number
        # Whatever is computed is prompt work, tokens of a request that was retracted included.
        request.work_total = request.work_prompt = end - start
        request.work_prefix, request.work_terminal = start, False
        if not goes_on:
            event = self.start_events.emplace(EV_ADMISSION, self.pass_start_ms, self.worker, self.rank, request.ordinal)
            event.a, event.b = start, request.num_admissions
            request.num_admissions += 1
        if self.want & WANT_PREFILL and end > start:
            self._publish_prefill(request)
        return 1

    cdef int disperse(self) except -1 nogil:
        """Who is complete runs; the rest of a prompt that was cut goes on before all that wait."""
        cdef Admitted* one
        cdef Request* request
        cdef int64_t i
        for i in range(self.num_admitted):
            one = &self.admitted[i]
            request = &self.requests.slots[one.slot]
            self.num_scheduled += 1
            self.tokens_scheduled += one.end - one.start
            if one.end < request.n_in + request.gen:
                self.publish(one.slot)
                self.push_waiting(one.slot, True)
            else:
                request.status = STATUS_RUNNING
                self.push_running(one.slot)
        self.prefill_tokens = self.tokens_scheduled
        self.prefilled = self.prefill_tokens > 0
        return 0

    # -- passes of prompts ------------------------------------------------------------------------

    cdef double prefill_end_ms(self, double now_ms) except? -1.0 nogil:
        """The pass is charged for as many equal prompts with the mean of what there was and what there is."""
        cdef int64_t ends = 0
        cdef int64_t starts = 0
        cdef int64_t i, fresh
        self.measure_prefill()
        for i in range(self.num_admitted):
            ends += self.admitted[i].end
            starts += self.admitted[i].start
        starts = starts // self.num_admitted
        fresh = ends // self.num_admitted - starts
        if fresh <= 0 or self.free_prefill:
            return now_ms
        return now_ms + self.timing.prefill_ms(self.num_admitted, starts + fresh, starts)

    cdef int emit_first_tokens(self) except -1 nogil:
        """Each complete prompt gives a token; who wants none is complete first. All that go on have pages for theirs, or
        none of them has its token yet."""
        cdef int64_t pages = 0
        cdef int64_t first = self.num_running
        cdef int64_t i
        cdef int32_t slot
        cdef Request* request
        while first > 0 and self.requests.slots[self.running[first - 1]].scheduled_pass == self.pass_number:
            first -= 1
        for i in range(first, self.num_running):
            slot = self.running[i]
            request = &self.requests.slots[slot]
            if self.remaining(slot) == 0:
                self.note_end(slot)
            elif self.remaining(slot) > 1:
                pages += max(self.pages_of(request.n_in + request.gen + 1) - request.table_length, 0)
        self.evict_for(pages)
        if not self.tree.take(pages):
            pages = NONE
        for i in range(first, self.num_running):
            slot = self.running[i]
            request = &self.requests.slots[slot]
            if self.remaining(slot) == 1:
                request.gen += 1             # it needs no page: nobody will look for this token
                self.emit(slot, request.gen - 1, self.pass_end_ms, 0)
                self.note_end(slot)
            elif self.remaining(slot) > 1 and pages != NONE:
                request.gen += 1
                self.emit(slot, request.gen - 1, self.pass_end_ms, 0)
                self.grow(slot)
                self.publish(slot)
        return 0

    # -- passes of tokens -------------------------------------------------------------------------

    cdef int decode(self, double now_ms) except -1 nogil:
        cdef int64_t i, growth
        cdef int64_t total = 0
        cdef int64_t kept = 0
        cdef Request* request
        for i in range(self.num_running):
            if self.remaining(self.running[i]) == 0:
                self.note_end(self.running[i])
            else:
                self.running[kept] = self.running[i]
                kept += 1
        self.num_running = kept
        self.measure_decode()
        while self.num_running > 1 and self.available() < self.growth():
            self.retract()
        growth = self.growth()
        self.evict_for(growth)
        if self.num_running == 0 or growth > self.tree.num_free:
            return 0
        for i in range(self.num_running):
            request = &self.requests.slots[self.running[i]]
            request.scheduled_pass = self.pass_number
            request.work_total, request.work_prompt, request.work_terminal = 1, 0, False
            total += request.n_in + request.gen
        self.num_scheduled = self.tokens_scheduled = self.num_running
        self.pass_end_ms = now_ms + self.timing.decode_ms(self.num_running, total, self.kv_capacity_tokens)
        self.tree.take(growth)
        return self.emit_bursts(growth)

    cdef int64_t growth(self) noexcept nogil:
        """Pages for the longest burst of everybody."""
        cdef int64_t pages = 0
        cdef int64_t i
        cdef Request* request
        for i in range(self.num_running):
            request = &self.requests.slots[self.running[i]]
            pages += max(self.pages_of(request.n_in + request.gen + min(self.drafts.num + 1, self.remaining(self.running[i])))
                         - request.table_length, 0)
        return pages

    cdef int retract(self) except -1 nogil:
        """The one with the fewest tokens, the earliest of several, gives its pages up and waits again, behind all."""
        cdef int64_t at = 0
        cdef int64_t wanted = 0
        cdef int64_t generated = 0
        cdef int64_t active = self.active_blocks()
        cdef int64_t i, held
        cdef int32_t slot
        cdef Request* request
        cdef Event* event
        cdef int64_t* words
        for i in range(1, self.num_running):
            if self.requests.slots[self.running[i]].gen < self.requests.slots[self.running[at]].gen:
                at = i
        slot = self.running[at]
        request = &self.requests.slots[slot]
        held = request.table_length
        self.release(slot)
        self.num_running -= 1
        memmove(&self.running[at], &self.running[at + 1], (self.num_running - at) * sizeof(int32_t))
        # One that ran without a token yet counts as new among those that wait.
        request.status = STATUS_PREEMPTED if request.gen > 0 else STATUS_WAITING
        request.num_preemptions += 1
        self.handoffs.generation += 1
        self.push_waiting(slot, False)
        self.retracted = True
        for i in range(self.num_running):
            generated += self.requests.slots[self.running[i]].gen
            wanted += self._wanted(self.running[i])
        self.estimate = min((<double>generated + RETRACTED_TOKENS * <double>self.num_running) / (<double>wanted + 1.0), 1.0)
        event = self.start_events.emplace(EV_PREEMPTION, self.pass_start_ms, self.worker, self.rank, request.ordinal)
        event.a, event.b = request.gen, request.num_preemptions
        words = self.start_events.emplace_words(event, 7)
        words[0], words[1], words[2] = self.num_running + 1, self.num_waiting + self.num_aside - 1, active
        words[3], words[4], words[5] = self.num_running, self.num_waiting + self.num_aside, self.active_blocks()
        words[6] = held
        return 0

    cdef int emit_bursts(self, int64_t growth) except -1 nogil:
        """Everybody's accepted tokens; pages that were not needed go back."""
        cdef int64_t i, _n, accepted, before
        cdef int32_t slot
        cdef Request* request
        for i in range(self.num_running):
            slot = self.running[i]
            request = &self.requests.slots[slot]
            before = request.gen
            growth += request.table_length
            accepted = drafts_accepted(&self.drafts)
            for _n in range(min(accepted, self.remaining(slot))):
                request.gen += 1
                self.grow(slot)
                if self.remaining(slot) > 0:
                    self.publish(slot)
            growth -= request.table_length
            self.emit(slot, before, self.pass_end_ms, accepted - (request.gen - before))
            if self.remaining(slot) == 0:
                self.note_end(slot)
        self.tree.give(growth)
        return 0

    # -- ends and measures ------------------------------------------------------------------------

    cdef int note_end(self, int32_t slot) except -1 nogil:
        """A request is complete; it ends when all that is to be found of this pass can be found."""
        cdef Ended* grown
        if self.num_ended == self.ended_capacity:
            grown = <Ended*>realloc(self.ended, (self.ended_capacity * 2 + 16) * sizeof(Ended))
            if grown is NULL:
                with gil:
                    raise MemoryError("complete requests")
            self.ended, self.ended_capacity = grown, self.ended_capacity * 2 + 16
        self.ended[self.num_ended].slot, self.ended[self.num_ended].place = slot, self.end_events.count
        self.num_ended += 1
        self.requests.slots[slot].work_terminal = True
        return 0

    cdef int close_requests(self) except -1 nogil:
        """End the complete ones, then those that were refused."""
        cdef Py_ssize_t num_emissions = self.end_events.count
        cdef int32_t slot
        cdef int64_t i
        cdef int64_t kept = 0
        for i in range(self.num_running):
            if not self.requests.slots[self.running[i]].work_terminal:
                self.running[kept] = self.running[i]
                kept += 1
        self.num_running = kept
        for i in range(self.num_ended):
            slot = self.ended[i].slot
            self.end_request(slot, TERM_COMPLETED, self.completion_reason(&self.requests.slots[slot]), -1, -1)
        if self.num_ended > 0 and num_emissions > 0:
            self.pair_ends(num_emissions)
        self.num_ended = 0
        for i in range(self.num_rejected):
            self.end_request(self.rejected[2 * i], TERM_REJECTED, self.rejected[2 * i + 1],
                             self.needed_for(self.rejected[2 * i], self.rejected[2 * i + 1]),
                             self.available_for(self.rejected[2 * i + 1]))
        self.num_rejected = 0
        return 0

    cdef int pair_ends(self, Py_ssize_t num_emissions) except -1 nogil:
        """Put each end directly behind what its request emitted: there the records of other flavours stand."""
        cdef Event* records = self.end_events.records
        cdef Py_ssize_t count = self.end_events.count
        cdef Py_ssize_t end = num_emissions
        cdef Py_ssize_t kept = 0
        cdef Py_ssize_t i
        cdef Event* in_order = <Event*>malloc(count * sizeof(Event))
        if in_order is NULL:
            with gil:
                raise MemoryError("ends of a pass")
        for i in range(num_emissions + 1):
            while end < count and self.ended[end - num_emissions].place <= i:
                in_order[kept] = records[end]
                kept += 1
                end += 1
            if i < num_emissions:
                in_order[kept] = records[i]
                kept += 1
        memcpy(records, in_order, count * sizeof(Event))
        free(in_order)
        return 0

    cdef void measure_prefill(self) noexcept nogil:
        """The part of the forward-pass record about prompts: those of which something is computed."""
        cdef Moments prompts
        cdef Admitted* one
        cdef int64_t i
        cdef int64_t prefix = 0
        prompts.count = 0
        prompts.total = prompts.total_sq = 0
        for i in range(self.num_admitted):
            one = &self.admitted[i]
            if one.end > one.start:
                _count(&prompts, self.requests.slots[one.slot].n_in)
                prefix += one.start
        self.fpm[1], self.fpm[2] = <double>prompts.count, <double>self.prefill_tokens
        self.fpm[3], self.fpm[4] = mr_variance(prompts.count, prompts.total, prompts.total_sq), <double>prefix
        self.fpm[5] = self.fpm[6] = self.fpm[7] = 0.0

    cdef void measure_decode(self) noexcept nogil:
        """The same about decoding, those who have to give up included."""
        cdef Moments known
        cdef int64_t i
        known.count = 0
        known.total = known.total_sq = 0
        for i in range(self.num_running):
            _count(&known, self.requests.slots[self.running[i]].n_in + self.requests.slots[self.running[i]].gen)
        self.fpm[1] = self.fpm[2] = self.fpm[3] = self.fpm[4] = 0.0
        self.fpm[5], self.fpm[6] = <double>known.count, <double>known.total
        self.fpm[7] = mr_variance(known.count, known.total, known.total_sq)
