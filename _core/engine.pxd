# One worker: ranks behind one barrier, commands, the cadence of prefill. Eager and clockless.
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint64_t

from .event_buffer cimport EventBuffer
from .lanes cimport Envelope
from .types cimport Terms


cdef class Engine:
    cdef readonly int32_t worker
    cdef readonly int32_t dp_size
    cdef readonly tuple schedulers       # keeps the ranks alive
    cdef PyObject** ranks                # (dp_size,) borrowed Scheduler pointers, owned array
    cdef int64_t prefill_schedule_interval
    cdef int64_t wave                    # group passes since the engine was last drained
    cdef bint works_behind               # a rank has background work with deadlines of its own
    cdef bint shares_tier                # a rank shares host memory with ranks of other workers
    cdef bint rests_between              # background work of its own: others go first behind a pass of no length
    cdef bint holds_internal             # background work that is due is not looked at
    cdef bint counts_together            # ranks hear of each other's passes
    cdef readonly bint in_pass
    cdef readonly bint poisoned          # a pass failed half-way; nothing works any more
    cdef readonly int64_t pass_id        # of the pass in flight or the last one; -1 before the first
    cdef readonly double pass_start_ms
    cdef readonly double pass_end_ms
    cdef bint pass_moved                 # with host memory: a rank did more than begin loads
    cdef readonly bint pass_effect_free  # no rank changed anything
    cdef bint pass_only_copies           # all that ranks did was to begin copies, and others go first behind that

    cdef bint is_ready(self) noexcept nogil
    cdef bint has_work(self) noexcept nogil
    cdef bint may_start(self, double now_ms) noexcept nogil
    cdef bint drained(self) noexcept nogil
    cdef int execute_pass(self, double now_ms, EventBuffer out) except -1 nogil
    cdef int complete_pass(self, EventBuffer out, bint held_back) except -1 nogil
    cdef bint pass_quietly(self, double before_ms, double until_ms, Py_ssize_t max_records, EventBuffer out) except -1 nogil
    cdef bint look_around(self) noexcept nogil
    cdef bint next_instant(self, double now_ms) noexcept nogil
    cdef bint nothing_moves(self, double now_ms) noexcept nogil
    cdef double next_internal_deadline(self) noexcept nogil
    cdef int process_internal_work(self, double now_ms, EventBuffer out) except -1 nogil
    cdef int submit(self, int32_t rank, int32_t request, int64_t n_in, int64_t n_out, const uint64_t* hash_ids,
                    int64_t num_hash_ids, const Terms* terms) except -1 nogil
    cdef int cancel(self, int32_t rank, int32_t request, bint discard, double now_ms, EventBuffer out, bint* suppressed) except -1 nogil
    cdef bint ends_unseen(self, int32_t rank, int32_t request) noexcept nogil
    cdef int hand_off(self, Envelope* envelope, double now_ms, EventBuffer out) except -1 nogil
    cdef int settle(self) noexcept nogil
    cdef void tell_group(self) noexcept nogil
    cdef void tell_standstill(self) noexcept nogil
    cdef int publish_gauges(self, int32_t rank, EventBuffer out, double now_ms, int64_t queued, bint telemetry_only) except -1 nogil
    cdef int publish_cuts(self, EventBuffer out, double now_ms) except -1 nogil
