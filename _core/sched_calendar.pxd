# Steady decode: what gets one token in every pass is not touched in every pass.
from libc.stdint cimport int32_t, int64_t

from .request_table cimport Request
from .sched_blocks cimport BlockScheduler
from .scheduler cimport Moments


cdef class CalendarScheduler(BlockScheduler):
    cdef bint calendar_on                # the flavour and the wanted records allow it
    cdef int64_t steps                   # steady passes so far
    cdef Moments lengths                 # of the steady requests' known tokens, before this pass's token
    cdef int64_t ring_size               # steps the two calendars reach ahead = block_size
    cdef int64_t ring_at                 # steps mod ring_size
    cdef int32_t* phases                 # (ring_size,) requests by (length - steps) mod block_size, owned
    cdef int32_t* ends                   # (ring_size,) requests by the step of their last token, owned
    cdef int32_t* leaving                # (leaving_capacity,) slots that end with this step, owned
    cdef int64_t num_leaving
    cdef int64_t leaving_capacity
    cdef int32_t* fresh                  # (fresh_capacity,) slots that joined behind their first token, in order, owned
    cdef int64_t num_fresh               # of those whose second token is still to come
    cdef int64_t fresh_capacity

    cdef bint quiet_on                   # nothing forbids quiet passes: no record of passes is wanted, no policy is asked
    # The pass being executed, in so far as it is no steady decode.
    cdef bint preempted
    cdef bint capacity_bound             # the waiting queue was not empty after the last full pass

    cdef int enable_calendar(self) except -1
    cdef bint steady_step_fits(self) noexcept nogil
    cdef int schedule_steady(self) except -1 nogil
    cdef int emit_steady(self) except -1 nogil
    cdef void _step(self) noexcept nogil
    cdef bint _nobody_is_due(self) noexcept nogil
    cdef int _end_steady(self) except -1 nogil
    cdef int _add_fresh(self, int32_t slot) except -1 nogil
    cdef void _drop_fresh(self, int32_t slot) noexcept nogil
    cdef int64_t _tell_seconds(self, int64_t first, int64_t seniority) except -1 nogil
    cdef int32_t completion_reason(self, Request* request) noexcept nogil
    cdef int join_steady(self) except -1 nogil
    cdef int leave_steady(self, int32_t slot, bint in_step) noexcept nogil
    cdef int64_t _phase_of(self, Request* request) noexcept nogil
    cdef void _unlink_end(self, int32_t slot) noexcept nogil
