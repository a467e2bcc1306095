"""The policies that come with the program, besides first come, first served, which needs none.

Each decides an order of the waiting queue and, where that says who matters least, the victim of a preemption. None
preempts a running request for one that waits. Ties go by arrival.
"""
cimport cython
from libc.math cimport INFINITY
from libc.stdint cimport int64_t

from .policy cimport DECIDE_VICTIM, RankView, SchedulingPolicy
from .request_table cimport Request


cdef inline int64_t _last_of_highest(const RankView* rank, double (*key)(const Request*) noexcept nogil) noexcept nogil:
    """Index of the running request with the highest key, of several the one admitted last."""
    cdef int64_t i
    cdef int64_t found = 0
    cdef double highest = -INFINITY
    cdef double value
    for i in range(rank.num_running):
        value = key(&rank.requests[rank.running[i]])
        if value >= highest:
            highest, found = value, i
    return found


cdef double _job_tokens(const Request* request) noexcept nogil:
    return <double>request.n_in + <double>request.n_out


cdef double _priority(const Request* request) noexcept nogil:
    return <double>request.terms.priority


@cython.final
cdef class ShortestJobFirst(SchedulingPolicy):
    """Order by prompt plus requested output [tokens]; the victim is the longest job. It knows output lengths beforehand."""

    def __init__(self):
        self.orders = self.chooses_victims = True

    cdef double order_key(self, const RankView* rank, const Request* request) except? -1.0 nogil:
        return _job_tokens(request)

    cdef int64_t choose_victim(self, const RankView* rank) except -1 nogil:
        return _last_of_highest(rank, _job_tokens)

    cdef const char* reason(self, int decision) except NULL nogil:
        return b"longest_job" if decision == DECIDE_VICTIM else b"shortest_job"


@cython.final
cdef class LongestPrefixMatch(SchedulingPolicy):
    """Order by the cached prefix, longest first, looked up anew in every pass that could admit a request.

    Args:
        max_waiting: where more requests wait than this, they go first come, first served.
    """

    def __cinit__(self, int64_t max_waiting=128):
        if max_waiting < 1:
            raise ValueError(f"max_waiting must be at least 1 (got {max_waiting})")
        self.orders = self.reorders = self.wants_matches = self.by_match = True
        self.max_matches = max_waiting

    cdef double order_key(self, const RankView* rank, const Request* request) except? -1.0 nogil:
        return -<double>request.match_tokens

    cdef const char* reason(self, int decision) except NULL nogil:
        return b"longest_prefix"


@cython.final
cdef class Priority(SchedulingPolicy):
    """Order by the `priority` of the row, lowest first; the victim is the highest, of several the one admitted last."""

    def __init__(self):
        self.orders = self.chooses_victims = True

    cdef double order_key(self, const RankView* rank, const Request* request) except? -1.0 nogil:
        return _priority(request)

    cdef int64_t choose_victim(self, const RankView* rank) except -1 nogil:
        return _last_of_highest(rank, _priority)

    cdef const char* reason(self, int decision) except NULL nogil:
        return b"priority"


@cython.final
cdef class EarliestDeadlineFirst(SchedulingPolicy):
    """Order by arrival plus `deadline_ms` of the row; rows without one come last. The victim has the latest deadline.

    Args:
        default_deadline_ms: deadline of rows that have none, from their arrival on [ms].
    """
    cdef readonly double default_deadline_ms

    def __cinit__(self, double default_deadline_ms=INFINITY):
        if not default_deadline_ms > 0.0:
            raise ValueError(f"default_deadline_ms must be positive (got {default_deadline_ms})")
        self.default_deadline_ms = default_deadline_ms
        self.orders = self.chooses_victims = True

    cdef double order_key(self, const RankView* rank, const Request* request) except? -1.0 nogil:
        return self._due_ms(request)

    cdef double _due_ms(self, const Request* request) noexcept nogil:
        if request.terms.deadline_ms == INFINITY:
            return request.terms.arrival_ms + self.default_deadline_ms
        return request.terms.deadline_ms

    cdef int64_t choose_victim(self, const RankView* rank) except -1 nogil:
        cdef int64_t i
        cdef int64_t found = 0
        cdef double latest = -INFINITY
        cdef double due_ms
        for i in range(rank.num_running):
            due_ms = self._due_ms(&rank.requests[rank.running[i]])
            if due_ms >= latest:
                latest, found = due_ms, i
        return found

    cdef const char* reason(self, int decision) except NULL nogil:
        return b"latest_deadline" if decision == DECIDE_VICTIM else b"earliest_deadline"
