# What every scheduler flavour shares: queues, emission, records of one rank.
from libc.stdint cimport int32_t, int64_t, uint64_t

from .event_buffer cimport Event, EventBuffer
from .lanes cimport Envelope
from .parked_queue cimport ParkedQueue
from .request_table cimport RequestTable
from .timing cimport TimingModel
from .types cimport Terms


cdef extern from "ns_rounding.h" nogil:
    ctypedef unsigned long long mr_u128     # really unsigned __int128; C computes at full width
    double mr_variance(int64_t k, mr_u128 sum, mr_u128 sum_sq)


cdef enum:
    FPM_WIDTH = 14
    UNPARKED = 8    # waiting requests beyond so many are parked, and so many come back at a time


cdef struct Moments:
    int64_t count
    mr_u128 total
    mr_u128 total_sq


cdef class Scheduler:
    # Configuration; never changes.
    cdef readonly int32_t worker
    cdef readonly int32_t rank
    cdef int32_t want                    # Want bits: which optional records somebody reads
    cdef int64_t max_num_seqs            # INT64_MAX = no limit
    cdef int64_t max_num_batched_tokens  # INT64_MAX = no limit
    cdef int64_t max_model_len           # INT64_MAX = no limit
    cdef TimingModel timing
    # Requests and queues.
    cdef RequestTable requests
    cdef int32_t* running                # (running_capacity,) slots in order of admission, owned
    cdef int64_t num_running
    cdef int64_t running_capacity
    cdef readonly int64_t num_steady     # running[:num_steady] are kept by a calendar; see detach
    cdef int32_t* waiting                # ring of slots, owned
    cdef int64_t waiting_head
    cdef int64_t num_waiting             # the parked ones included
    cdef int64_t waiting_mask
    cdef bint parks                      # those behind the first few are parked until it is their turn
    cdef ParkedQueue parked              # the end of the queue, not in the ring
    cdef int32_t* aside                  # (aside_capacity,) waiting requests that go before the queue, owned (sched_offload)
    cdef int64_t num_aside
    cdef int64_t aside_capacity
    cdef bint works_behind               # it has background work with deadlines of its own
    cdef bint shares_tier                # and with other ranks
    cdef bint looks_around               # while it stands still it looks again whenever anything happens
    cdef bint counts_together            # it hears of the passes of the other ranks, see group_over
    cdef Moments queued                  # prompt lengths of requests that were never preempted
    cdef Moments queued_decode           # known lengths of preempted ones
    cdef int64_t next_seniority
    # The pass being executed, or the last one.
    cdef readonly int64_t pass_number    # of this rank, dense; NONE before the first
    cdef double pass_start_ms
    cdef readonly double pass_end_ms     # end of this rank's part
    cdef double previous_end_ms          # published end of the pass before; NaN at first
    cdef double before_previous_end_ms   # and of the one before that
    cdef bint executed                   # this rank took part in the group pass in flight (or in one that failed)
    cdef bint computed                   # that pass is computed to its end: tokens are given
    cdef bint effect_free                # it changed nothing
    cdef bint line_moved                 # behind it somebody in line for blocks got them
    cdef bint moved                      # it did more than begin loads, where a rank has host memory
    cdef bint holds_copies               # its group did no more than that: copies that end now are seen behind the pass
    cdef bint prefilled                  # it computed tokens of prompts; kept by flavours that count together
    cdef bint worked                     # it admitted somebody or gave tokens; the same
    cdef bint head_blocked               # it left a head of waiting that cannot be admitted until a request leaves
    cdef int64_t num_scheduled
    cdef int64_t tokens_scheduled
    cdef int64_t tokens_emitted
    cdef int64_t emitters
    cdef int64_t consecutive_emitters
    cdef int64_t num_terminal            # requests that end with it
    cdef int64_t forwards                # requests that emitted without prompt work
    cdef int64_t forward_tokens          # tokens accepted for them, beyond their length too
    cdef int64_t prefill_tokens
    cdef int64_t passes_without_gain     # consecutive passes that neither emitted nor ended anything
    cdef double fpm[FPM_WIDTH]
    # Records: start effects, effects that become visible with the end, cache events of the pass.
    cdef EventBuffer start_events
    cdef EventBuffer end_events
    cdef EventBuffer kv_events

    # The seam: what a flavour decides.
    cdef int execute(self, double now_ms, bint defer_prefill) except -1 nogil
    cdef bint wants_deferral(self) noexcept nogil
    cdef void group_over(self, bint prefilled, bint worked) noexcept nogil
    cdef void stand_still(self) noexcept nogil
    cdef Py_ssize_t pass_quietly(self, double end_ms, double before_ms, double until_ms, Py_ssize_t max_records,
                                 EventBuffer out) except -1 nogil
    cdef int give_up(self, int32_t slot) except -1 nogil
    cdef int detach(self, int32_t slot) except -1 nogil
    cdef int detach_all(self) except -1 nogil
    cdef bint covers(self, int64_t n_in, int64_t n_out, int64_t num_hash_ids) noexcept nogil
    cdef int publish_unqueued_cuts(self, EventBuffer out, double now_ms) except -1 nogil
    cdef double next_internal_ms(self) noexcept nogil
    cdef bint next_instant(self, double now_ms) noexcept nogil
    cdef bint nothing_moves(self, double now_ms) noexcept nogil
    cdef int process_internal(self, double now_ms, EventBuffer out) except -1 nogil
    cdef int serve_line(self, double now_ms, EventBuffer out) except -1 nogil
    cdef int note_request(self, int32_t slot) except -1 nogil
    cdef bint has_work(self) noexcept nogil
    cdef bint joins(self) noexcept nogil
    cdef bint holds_any(self) noexcept nogil
    cdef void wake(self) noexcept nogil
    cdef bint ends_unseen(self, int32_t ordinal) noexcept nogil
    cdef int hand_off(self, Envelope* envelope, double now_ms, bint in_pass, EventBuffer out) except -1 nogil
    cdef int after_cancel(self, double now_ms, EventBuffer out) except -1 nogil
    cdef int close_pass(self, EventBuffer out, double end_ms) except -1 nogil
    cdef int64_t active_blocks(self) noexcept nogil
    cdef int64_t inactive_blocks(self) noexcept nogil
    # Shared.
    cdef int submit(self, int32_t ordinal, int64_t n_in, int64_t n_out, const uint64_t* hash_ids, int64_t num_hash_ids, const Terms* terms) except -1 nogil
    cdef int cancel(self, int32_t ordinal, bint discard, double now_ms, EventBuffer out, bint* suppressed) except -1 nogil
    cdef int publish_end(self, EventBuffer out, double end_ms) except -1 nogil
    cdef int publish_gauges(self, EventBuffer out, double now_ms, int64_t queued, bint telemetry_only) except -1 nogil
    cdef int publish_cuts(self, EventBuffer out, double now_ms) except -1 nogil
    cdef void begin_pass(self, double now_ms) noexcept nogil
    cdef int64_t remaining(self, int32_t slot) noexcept nogil
    cdef int emit(self, int32_t slot, int64_t gen_before, double end_ms, int64_t excess) except -1 nogil
    cdef int end_request(self, int32_t slot, int32_t status, int32_t reason, int64_t needed, int64_t available) except -1 nogil
    cdef void measure_pass(self, Moments decode, int64_t first) noexcept nogil
    cdef void measure_queue(self) noexcept nogil
    cdef void _count_waiting(self, int32_t slot, int sign) noexcept nogil
    cdef int push_running(self, int32_t slot) except -1 nogil
    cdef int push_waiting(self, int32_t slot, bint front) except -1 nogil
    cdef int32_t pop_waiting(self) noexcept nogil
    # Of a queue that has anybody, somebody stands in the ring.
    cdef inline int bring_head(self) except -1 nogil:
        return self.unpark(UNPARKED) if self.num_waiting == self.parked.count and self.parked.count > 0 else 0
    cdef int unpark(self, int64_t most) except -1 nogil
    cdef int push_aside(self, int32_t slot) except -1 nogil
    cdef int32_t _waiting_at(self, int64_t i) noexcept nogil
    cdef int _take_out(self, int32_t slot) noexcept nogil
    cdef Event* _unpublished_end(self, int32_t ordinal) noexcept nogil
    cdef double _last_before(self, Event* terminal) noexcept nogil
    cdef void _drop_outputs(self, int32_t ordinal, int64_t packed) noexcept nogil
