# A host tier's part in a pass: what is stored, what is loaded, who waits for a copy and which pass does.
from libc.stdint cimport int32_t, int64_t

from .event_buffer cimport EventBuffer
from .offload cimport HostTier, Transfer
from .request_table cimport Request
from .sched_hosted cimport HostedScheduler
from .shared_tier cimport SharedTier


cdef enum TierAnswer:
    TIER_FAILED = -1             # an exception
    TIER_MISS = 0                # go on as without a tier
    TIER_LOADED = 1              # its blocks have come in: reuse and need are settled
    TIER_WAIT = 2                # no room for what it would load: nobody behind it either
    TIER_ASIDE = 3               # it waits for a copy: go on with the next one


cdef class OffloadScheduler(HostedScheduler):
    cdef SharedTier shared               # the tier, where ranks share it; else None
    cdef bint is_shared
    cdef int32_t member                  # of it
    cdef int64_t num_loading             # of those set aside
    cdef int64_t num_promised            # what `_promised` answers; -1 = to be counted
    cdef int64_t aside_at                # of those set aside, who is tried next in this pass
    cdef bint started_load               # in the pass being executed
    cdef bint may_give_back              # in the pass being executed, a request may give back what it loaded
    cdef bint is_last_resort             # the next pass may
    cdef bint hopes                      # somebody can only go on if another worker stores what it needs
    cdef bint gave_back                  # in the pass being executed, a request gave the blocks back that it had loaded
    cdef bint looks_again                # a copy has ended since the last pass
    cdef int64_t num_seen                # times at which this rank saw that a copy has ended
    cdef bint nudged                     # something happened since it stands still, and it looks around
    cdef double nudged_ms
    cdef int64_t fence                   # latest store that blocks of this pass wait for; NONE = none

    cdef int set_tier(self, HostTier tier) except -1
    cdef void open_tier_pass(self) noexcept nogil
    cdef TierAnswer consult_tier(self, int32_t slot) except TIER_FAILED nogil
    cdef TierAnswer _match(self, int32_t slot, int64_t base) except TIER_FAILED nogil
    cdef bint _is_busy(self, int32_t identity, int64_t block) noexcept nogil
    cdef TierAnswer _load(self, int32_t slot, int64_t base, int64_t matched) except TIER_FAILED nogil
    cdef int64_t _promised(self) noexcept nogil
    cdef bint any_to_try(self) noexcept nogil
    cdef bint _copies(self) noexcept nogil
    cdef bint _waits_on(self, int32_t slot) noexcept nogil
    cdef int set_aside_for_copy(self, int32_t slot, bint is_aside) except -1 nogil
    cdef int32_t next_in_turn(self, bint* is_aside) noexcept nogil
    cdef int wait_for_store(self, int32_t victim) except -1 nogil
    cdef double close_schedule(self, double now_ms) except -1.0 nogil
    cdef int _offer(self, int32_t slot) except -1 nogil
    cdef bint stands_by(self) except -1 nogil
    cdef int end_copies(self, EventBuffer out, double at_ms) except -1 nogil
    cdef void _see_end(self) noexcept nogil
    cdef int _close_behind_copies(self, EventBuffer out, Py_ssize_t head, double end_ms) except -1 nogil
    cdef bint _try_line(self, double now_ms, EventBuffer out) except -1 nogil
    cdef int _finish(self, Transfer* done, EventBuffer out, double at_ms) except -1 nogil
    cdef int _hold_sources(self, int32_t slot, int64_t first, int64_t end) except -1 nogil
    cdef int _activate(self, int32_t slot) except -1 nogil
    cdef int64_t host_tokens(self, int32_t slot) noexcept nogil
    cdef int _tell_host(self, EventBuffer out, double at_ms, int32_t request, int step, int64_t number, int64_t blocks, double end_ms) except -1 nogil
