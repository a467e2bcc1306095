# The vLLM flavour: running first, preempt, then waiting; bursts under multi-token prediction.
from libc.stdint cimport int32_t, int64_t, uint64_t

from .drafts cimport Drafts
from .request_table cimport Request
from .sched_offload cimport OffloadScheduler


cdef enum:
    # Far above any legal chain: a rank that preempts so often without a token or an end moves in a circle.
    MAX_PASSES_WITHOUT_GAIN = 1_000_000
    # Preempting passes without a token under multi-token prediction before the victim of the next one fails.
    MAX_FRUITLESS_BURSTS = 1000
    # While a handoff may still give blocks back: so many, and for so long where time moves at all, but never more.
    MIN_FRUITLESS_BURSTS_HELD = 20_000
    MIN_FRUITLESS_HELD_MS = 1000
    MAX_FRUITLESS_BURSTS_HELD = 900_000


cdef enum Entry:                         # of the next in the queue
    ENTRY_OPEN = 0
    ENTRY_WAITS = 1
    ENTRY_PASSED_OVER = 2                # rejected, or set aside until a copy has ended


cdef class VllmScheduler(OffloadScheduler):
    cdef bint free_prefill               # a decode worker: what it has to recompute of a prompt takes no time
    cdef bint free_decode                # a prefill worker: the token that ends a prompt takes no time
    cdef bint preempt_first              # fifo: the victim is the first of running; lifo: the last
    # Multi-token prediction.
    cdef int64_t num_drafts              # 0 = off
    cdef Drafts drafts
    cdef double fruitless_since_ms       # start of the first of passes_without_gain
    # The pass being executed.
    cdef int32_t* ready                  # (ready_capacity,) slots that emit in this pass, owned
    cdef int64_t* bursts                 # (ready_capacity,) tokens of each under MTP, owned
    cdef int64_t* excess                 # (ready_capacity,) drafts accepted beyond them, owned
    cdef int64_t num_ready
    cdef int64_t ready_capacity

    cdef int run_running(self, bint defer_prefill) except -1 nogil
    cdef int run_waiting(self, bint defer_prefill) except -1 nogil
    cdef int consider(self, int32_t slot, bint is_aside, bint defer_prefill) except -1 nogil
    cdef int admit(self, int32_t slot, bint is_aside) except -1 nogil
    cdef int schedule(self, int32_t slot, bint from_waiting) except -1 nogil
    cdef int take_blocks(self, int32_t slot, int64_t num_hits, int64_t num_fresh) except -1 nogil
    cdef int32_t preempt(self, bint return_budget) except -1 nogil
    cdef int _leave_running(self, int32_t slot, int32_t status, int32_t reason, int64_t needed, int64_t available) except -1 nogil
    cdef int collect_ready(self) except -1 nogil
    cdef int finish_tokens(self, double prefill_end_ms) except -1 nogil
    cdef int finish_bursts(self, double prefill_end_ms) except -1 nogil
    cdef int64_t set_aside(self, double now_ms) except -1 nogil
    cdef bint goes_in_circles(self, double now_ms) noexcept nogil
    cdef int fail_hopeless_bursts(self) except -1 nogil
    cdef int diagnose(self) except -1 nogil
