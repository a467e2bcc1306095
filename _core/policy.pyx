"""The seam of scheduling policies, and the base of those written in Cython.

A policy answers questions of a scheduler: in which order requests wait, who loses its blocks, who may not enter yet, how
many tokens a pass may have. It never changes anything itself. The base answers as first come, first served.
"""
from libc.string cimport memcpy, memset, strlen

from .event_buffer cimport EV_DECISION, Event, EventBuffer

from .types import EngineError

cdef enum:
    MAX_REASON = 40


cdef int record_decision(EventBuffer out, double t_ms, int32_t worker, int32_t rank, int32_t request, int decision,
                         int64_t other, int64_t value, const char* reason) except -1 nogil:
    """Record a decision that differs from first come, first served; EV_DECISION says what `other` and `value` are."""
    cdef size_t length = strlen(reason)
    cdef Py_ssize_t num_words = <Py_ssize_t>(length + 7) // 8
    cdef Py_ssize_t i
    cdef Event* event
    cdef int64_t* words
    for i in range(<Py_ssize_t>length):
        if not (c'a' <= reason[i] <= c'z' or c'0' <= reason[i] <= c'9' or reason[i] == c'_'):
            num_words = 0
    if num_words == 0 or length > MAX_REASON:
        with gil:
            raise EngineError(f"the reason of a policy has 1 to {MAX_REASON} small letters, digits or _ (got {<bytes>reason!r})")
    event = out.emplace(EV_DECISION, t_ms, worker, rank, request)
    event.a, event.b, event.e, event.f = decision, other, value, <int64_t>length
    words = out.emplace_words(event, num_words)
    memset(words, 0, num_words * sizeof(int64_t))
    memcpy(words, reason, length)
    return 0


cdef class SchedulingPolicy:
    """First come, first served, as the engine does it by itself; subclasses set flags and answer.

    One object serves all ranks of a run. A subclass in Cython overrides the hooks named in policy.pxd; one that has a
    method `place(request, ranks)` also places requests, as in `mocker_replay.policies.Policy`.
    """

    cdef double order_key(self, const RankView* rank, const Request* request) except? -1.0 nogil:
        """Lower goes first; equal keys go in the order of arrival, preempted requests before all. Must not be NaN."""
        return 0.0

    cdef int64_t choose_victim(self, const RankView* rank) except -1 nogil:
        """Index in `rank.running` of the request that loses its blocks."""
        return rank.num_running - 1

    cdef int may_admit(self, const RankView* rank, const Request* request) except -1 nogil:
        """Whether a request for which there is room may enter; 0 holds it back in this pass, and the next one is tried."""
        return 1

    cdef int64_t token_budget(self, const RankView* rank) except -1 nogil:
        """Tokens of the pass that starts, from 1 to max_num_batched_tokens."""
        return rank.max_num_batched_tokens

    cdef const char* reason(self, int decision) except NULL nogil:
        """Why it decided so, in small letters, digits and _, at most 40 of them; for the event log."""
        return b"policy"
