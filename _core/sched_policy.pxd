# Who is next, who loses its blocks, how many tokens a pass has: by a policy, or first come, first served without one.
from libc.stdint cimport int32_t, int64_t

from .policy cimport RankView, SchedulingPolicy
from .request_table cimport Request
from .sched_calendar cimport CalendarScheduler


cdef class PolicyScheduler(CalendarScheduler):
    cdef SchedulingPolicy policy         # None: first come, first served
    cdef bint has_policy
    cdef RankView view                   # filled before each question
    # The waiting queue in the order of the policy. The ring `waiting` stays as it came.
    cdef int32_t* order                  # (order_capacity,) slots, last to be tried first; owned
    cdef int64_t order_capacity
    cdef int64_t num_ordered
    cdef int32_t* unordered              # (order_capacity,) slots that began to wait since, owned
    cdef int64_t num_unordered
    cdef int64_t first_number            # queue numbers of the next request that goes before all, and behind all
    cdef int64_t next_number
    cdef bint matching                   # keys of the order were made from looked-up prefixes
    # The pass being executed.
    cdef int64_t num_vetoed              # tried in this pass and held back; they stand at the end of `order`
    cdef int64_t scan_at                 # index in running of the request that is being scheduled

    cdef int set_policy(self, SchedulingPolicy policy) except -1
    cdef int64_t pass_budget(self) except -1 nogil
    cdef int tell_budget(self) except -1 nogil
    cdef int open_queue(self) except -1 nogil
    cdef int32_t candidate(self) noexcept nogil
    cdef bint any_candidate(self) noexcept nogil
    cdef int tell_order(self, int32_t slot) except -1 nogil
    cdef bint admits(self, int32_t slot) except -1 nogil
    cdef int64_t victim_at(self, int64_t usual) except -1 nogil
    cdef int check_not_stuck(self) except -1 nogil
    cdef void _look_at_rank(self) noexcept nogil
    cdef int _reserve_order(self) except -1 nogil
    cdef int _give_key(self, int32_t slot) except -1 nogil
    cdef void _insert(self, int32_t slot) noexcept nogil
    cdef int _order_anew(self) except -1 nogil
    cdef bint _must_order_anew(self) noexcept nogil
    cdef void _watch(self, Request* request, int64_t num_nodes) noexcept nogil
    cdef int64_t _place_in_ring(self, int32_t slot) noexcept nogil
    cdef int _forget_waiting(self, int32_t slot) noexcept nogil
    cdef int _decide(self, int decision, int32_t request, int32_t other, int64_t value) except -1 nogil
