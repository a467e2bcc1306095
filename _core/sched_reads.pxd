# Device blocks that are still being copied to the host, and what is known of a request in a tier.
from libc.stdint cimport int32_t, int64_t

from .block_pool cimport POOL_FAILED, PoolStatus
from .offload cimport HostTier
from .request_table cimport Request
from .sched_handoff cimport HandoffScheduler


cdef struct Hosted:
    int32_t* path                # (path_length,) nodes of its complete prompt blocks in the tier's index, owned
    int64_t path_length
    int64_t num_keys             # complete prompt blocks
    int64_t cursor               # of them, those offered to the tier
    int64_t store                # ordinal of its latest store; NONE = none yet
    int64_t load                 # ordinal of its load; NONE = none under way
    int64_t awaits               # ordinal of another's load under way for which it was set aside; NONE = none
    int64_t asked_at             # ends this rank had seen when it was last told to wait for a copy; NONE = it need not
    int64_t base_blocks          # of its table, those it found on the device when it loaded
    bint loaded                  # the load has come in, and it was not preempted since
    int64_t* reads               # (reads_capacity,) by table entry: the store that still reads a private block, or NONE
    int64_t reads_capacity


cdef class ReadingScheduler(HandoffScheduler):
    cdef readonly HostTier tier          # None: nothing here is in the way
    cdef bint has_tier
    cdef bint fences                     # blocks that are being copied out may be handed out: the tier is this rank's own
    cdef Hosted* hosted                  # (hosted_capacity,) by slot, owned
    cdef int32_t hosted_capacity
    cdef int64_t* copy_reads             # (copy_reads_capacity,) by cached copy: the store that reads it, or NONE
    cdef int32_t copy_reads_capacity
    cdef int64_t* free_reads             # (free_reads_capacity,) of the blocks that were emptied, the last one last; owned
    cdef int64_t num_free_reads
    cdef int64_t free_reads_capacity
    cdef int64_t num_private             # private blocks in tables
    cdef int64_t* fresh_reads            # (fresh_capacity,) of the blocks acquired last, owned
    cdef int64_t fresh_capacity

    cdef int _reserve_reads(self, int64_t num_fresh) except -1 nogil
    cdef int _note_cached(self, Request* request, Hosted* hosted, int64_t first, int64_t end) except -1 nogil
    cdef int64_t _read_of(self, Request* request, Hosted* hosted, int64_t block) noexcept nogil
