# What a rank knows of a request with host memory: the identities of its blocks there.
from libc.stdint cimport int32_t, int64_t

from .prefix_index cimport PrefixIndex
from .sched_reads cimport Hosted, ReadingScheduler


cdef class HostedScheduler(ReadingScheduler):
    cdef PrefixIndex keys                # the tier's
    cdef int32_t* identities             # (identities_capacity,) scratch, owned
    cdef int64_t identities_capacity
    cdef int64_t num_awaiting            # of those set aside, who waits for another's load

    cdef int32_t _key_of(self, Hosted* hosted, int64_t block) noexcept nogil
    cdef int _keys(self, Hosted* hosted, int64_t first, int64_t end) except -1 nogil
    cdef void _touch_all(self, Hosted* hosted) noexcept nogil
    cdef int _number_blocks(self, int32_t slot) except -1
    cdef void _await_no_more(self, int64_t load) noexcept nogil
