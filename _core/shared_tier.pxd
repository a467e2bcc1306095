# A host tier that ranks share: copies of one direction share its bandwidth.
from libc.stdint cimport int32_t, int64_t

from .offload cimport HostTier, Transfer, TransferRing


cdef struct Link:                # of one member; what HostTier says of one rank
    double d2h_gbps
    double h2d_gbps
    double latency_ms


cdef class SharedTier(HostTier):
    cdef readonly double shared_d2h_gbps     # of all together; 0 = no limit
    cdef readonly double shared_h2d_gbps
    cdef readonly int32_t num_members    # those that joined
    cdef Link* links                     # (number of members,) owned
    cdef double clock_ms
    cdef double[2] counted_ms                # until when `left_bytes` of loads, of stores are counted
    cdef double[2] end_ms                    # next end of each, if nothing else happens; NaN = to be found
    cdef TransferRing delivered              # copies that ended and whose member has not taken them
    cdef char* woken                         # (num_members,) by member: copies of others have ended, owned
    cdef double* left                        # (3, left_capacity) scratch: bytes left, share, end; owned
    cdef int64_t left_capacity

    cdef int32_t join(self) except -1
    cdef double next_of(self, int32_t member) noexcept nogil
    cdef int advance(self, double at_ms) except -1 nogil
    cdef bint copies_of(self, int32_t member) noexcept nogil
    cdef bint take(self, int32_t member, Transfer* out) noexcept nogil
    cdef bint take_wake(self, int32_t member) noexcept nogil
    cdef bint submit_of(self, int32_t member, double at_ms, Transfer* submitted) except -1 nogil
    cdef int begin_copy(self, Transfer* load, int32_t member, double at_ms) except -1 nogil
    cdef void claim_store(self, int32_t member, int32_t* sources) noexcept nogil
    cdef int _reserve_left(self, int64_t n) except -1 nogil
    cdef int _take_ended(self, bint is_store, double end_ms) except -1 nogil
    cdef double _rate(self, bint is_store, TransferRing* ring, Transfer* transfer, double now_ms) noexcept nogil
    cdef bint _step(self, bint is_store, double* now_ms, double to_ms) noexcept nogil
    cdef void _read_left(self, bint is_store) noexcept nogil
    cdef double _next_begin(self, TransferRing* ring) noexcept nogil
    cdef double _next_end(self, bint is_store) noexcept nogil
    cdef void _run_to(self, bint is_store, double to_ms) noexcept nogil
    cdef void _count(self, double at_ms) noexcept nogil
    cdef int _deliver(self, bint is_store, double end_ms) except -1 nogil
