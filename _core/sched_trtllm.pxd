# The TensorRT-LLM flavour: every admitted request has its whole life booked; nothing is ever preempted.
from libc.stdint cimport int32_t, int64_t, uint64_t

from .drafts cimport Drafts
from .request_table cimport Request
from .sched_handoff cimport HandoffScheduler


cdef class TrtllmScheduler(HandoffScheduler):
    cdef bint free_prefill               # a decode worker: what it computes of a prompt takes no time
    cdef bint free_decode                # a prefill worker: the token that ends a prompt takes no time
    cdef int64_t pool_tokens             # num_gpu_blocks * block_size
    cdef readonly int64_t num_booked     # blocks that running requests do not hold yet and may still ask for
    # Multi-token prediction.
    cdef Drafts drafts
    # The pass being executed.
    cdef int32_t* ready                  # (ready_capacity,) slots that emit in this pass, owned
    cdef int64_t num_ready
    cdef int64_t ready_capacity

    cdef int64_t most_output(self, int64_t n_in, int64_t n_out) noexcept nogil
    cdef int64_t full_need(self, Request* request) noexcept nogil
    cdef int64_t headroom(self) noexcept nogil
    cdef int run_running(self) except -1 nogil
    cdef int run_waiting(self) except -1 nogil
    cdef bint has_room(self, Request* request) except -1 nogil
    cdef int admit(self, int32_t slot) except -1 nogil
    cdef int schedule(self, int32_t slot, bint from_waiting) except -1 nogil
    cdef int take_blocks(self, Request* request, int64_t num_hits, int64_t num_fresh) except -1 nogil
    cdef int collect_ready(self) except -1 nogil
    cdef int finish_tokens(self, double prefill_end_ms) except -1 nogil
    cdef int finish_bursts(self, double prefill_end_ms) except -1 nogil
    cdef int64_t set_aside(self) except -1 nogil
    cdef int leave_running(self, int32_t slot) except -1 nogil
    cdef int diagnose(self) except -1 nogil
