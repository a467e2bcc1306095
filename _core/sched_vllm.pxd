# The vLLM flavour: running first, preempt, then waiting; bursts under multi-token prediction.
from libc.stdint cimport int32_t, int64_t, uint64_t

from .chacha cimport ChaCha12
from .request_table cimport Request
from .sched_offload cimport OffloadScheduler


cdef enum:
    MAX_DRAFTS = 5


cdef class VllmScheduler(OffloadScheduler):
    cdef bint preempt_first              # fifo: the victim is the first of running; lifo: the last
    # Multi-token prediction.
    cdef int64_t num_drafts              # 0 = off
    cdef double accept_rates[MAX_DRAFTS]
    cdef ChaCha12 sampler
    # The pass being executed.
    cdef bint preempted
    cdef int32_t* ready                  # (ready_capacity,) slots that emit in this pass, owned
    cdef int64_t* bursts                 # (ready_capacity,) tokens of each under MTP, owned
    cdef int64_t* excess                 # (ready_capacity,) drafts accepted beyond them, owned
    cdef int64_t num_ready
    cdef int64_t ready_capacity
    cdef bint capacity_bound             # the waiting queue was not empty after the last full pass

    cdef int run_running(self, bint defer_prefill) except -1 nogil
    cdef int run_waiting(self, bint defer_prefill) except -1 nogil
    cdef int admit(self, int32_t slot, bint is_aside) except -1 nogil
    cdef int schedule(self, int32_t slot, bint from_waiting) except -1 nogil
    cdef int take_blocks(self, int32_t slot, int64_t num_hits, int64_t num_fresh) except -1 nogil
    cdef int32_t preempt(self, bint return_budget) except -1 nogil
    cdef int _leave_running(self, int32_t slot, int32_t status, int32_t reason, int64_t needed, int64_t available) except -1 nogil
    cdef int collect_ready(self) except -1 nogil
    cdef int finish_tokens(self, double prefill_end_ms) except -1 nogil
    cdef int _end_steady(self) except -1 nogil
    cdef int finish_bursts(self, double prefill_end_ms) except -1 nogil
    cdef int64_t set_aside(self) except -1 nogil
    cdef int fail_hopeless_bursts(self) except -1 nogil
    cdef int64_t sample(self) noexcept nogil
    cdef int diagnose(self) except -1 nogil
    cdef int32_t completion_reason(self, Request* request) noexcept nogil
