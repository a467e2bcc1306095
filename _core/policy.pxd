# What a scheduling policy is asked, and what it is told. A Cython policy is a subclass; docs/policies.md shows one.
#
# Pointers are good during the call. Hooks are asked only if the flag beside them is set.
from libc.stdint cimport int32_t, int64_t

from .event_buffer cimport EventBuffer
from .request_table cimport Request


cdef enum Decision:
    DECIDE_ORDER = 0             # a request was tried before the one that came first
    DECIDE_VICTIM = 1            # another victim than preemption_mode says
    DECIDE_VETO = 2              # a request that would have been admitted is held back
    DECIDE_BUDGET = 3            # fewer tokens in this pass than max_num_batched_tokens
    DECIDE_PLACEMENT = 4         # another worker or rank than round robin
    NUM_DECISIONS = 5


cdef struct RankView:            # one rank at the moment it asks
    int32_t worker
    int32_t rank
    double now_ms                # start of the pass
    int64_t pass_number          # of this rank
    int64_t num_running          # the batch so far
    int64_t num_waiting          # preempted ones included
    int64_t block_size           # [tokens]
    int64_t num_blocks           # of the pool
    int64_t num_free_blocks      # empty, or cached and owned by nobody
    int64_t max_num_seqs         # INT64_MAX = no limit
    int64_t max_num_batched_tokens  # INT64_MAX = no limit
    int64_t budget_tokens        # left in this pass
    int64_t steps                # steady passes so far, see generated_tokens
    const Request* requests      # by slot
    const int32_t* running       # (num_running,) slots, in order of admission


cdef inline int64_t generated_tokens(const RankView* rank, const Request* request) noexcept nogil:
    """Output so far; a request that decodes steadily is not written down at each pass."""
    return request.gen_offset + rank.steps if request.steady else request.gen


cdef int record_decision(EventBuffer out, double t_ms, int32_t worker, int32_t rank, int32_t request, int decision,
                         int64_t other, int64_t value, const char* reason) except -1 nogil


cdef class SchedulingPolicy:
    # Which hooks are asked; set when the object is made.
    cdef readonly bint orders            # order_key, when a request begins to wait
    cdef readonly bint reorders          # order_key of all who wait, in every pass that could admit one
    cdef readonly bint wants_matches     # Request.match_tokens is looked up before order_key
    cdef readonly int64_t max_matches    # ... while no more than so many wait; beyond it is 0
    cdef readonly bint by_match          # order_key depends on match_tokens alone: it is asked anew only when these may differ
    cdef readonly bint chooses_victims   # choose_victim
    cdef readonly bint vetoes            # may_admit
    cdef readonly bint limits_budget     # token_budget

    cdef double order_key(self, const RankView* rank, const Request* request) except? -1.0 nogil
    cdef int64_t choose_victim(self, const RankView* rank) except -1 nogil
    cdef int may_admit(self, const RankView* rank, const Request* request) except -1 nogil
    cdef int64_t token_budget(self, const RankView* rank) except -1 nogil
    cdef const char* reason(self, int decision) except NULL nogil
