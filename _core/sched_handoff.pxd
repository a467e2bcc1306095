# Handing requests off: sources that are held, destinations that wait for blocks, have them, and become requests.
from libc.stdint cimport int32_t, int64_t, uint64_t

from .block_pool cimport POOL_FAILED, PoolStatus
from .event_buffer cimport EventBuffer
from .handoff cimport HandoffBook
from .lanes cimport Envelope
from .request_table cimport Request
from .sched_policy cimport PolicyScheduler
from .types cimport Terms


cdef class HandoffScheduler(PolicyScheduler):
    cdef readonly HandoffBook handoffs
    cdef bint stalled                    # the last pass changed nothing: only a command can, or a copy that ends

    cdef int32_t ownership_of(self, int32_t slot) noexcept nogil
    cdef int queue_activated(self, int32_t slot) except -1 nogil
    cdef int32_t first_materialised(self) noexcept nogil
    cdef bint gates_fresh(self) noexcept nogil
    cdef void stall_if_waiting(self) noexcept nogil
    cdef int64_t least_blocks(self, int64_t n_in, int64_t n_out) noexcept nogil
    cdef bint may_reserve(self, Request* request) except -1 nogil
    cdef PoolStatus acquire(self, int64_t num_hits, int64_t num_fresh) except POOL_FAILED nogil
    cdef bint still_read(self, int64_t num_fresh) noexcept nogil
    cdef int submit_prefill(self, Envelope* envelope) except -1 nogil
    cdef int end_source(self, int64_t handoff, bint cancel, double now_ms, EventBuffer out) except -1 nogil
    cdef int reserve(self, Envelope* envelope, double now_ms, bint in_pass, EventBuffer out) except -1 nogil
    cdef int activate(self, int64_t handoff, double now_ms, EventBuffer out) except -1 nogil
    cdef int cancel_destination(self, int64_t handoff, double now_ms, EventBuffer out) except -1 nogil
    cdef int reserve_head(self, double now_ms, EventBuffer out) except -1 nogil
    cdef int _hold(self, int32_t slot) except -1 nogil
    cdef int _forget(self, int32_t slot) except -1 nogil
    cdef int _tell(self, EventBuffer out, int32_t slot, int stage, int64_t handoff, int64_t tokens, double now_ms) except -1 nogil
