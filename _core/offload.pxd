# The host tier of one rank: which blocks are in host memory, in which order they go, and the two lanes of copies.
from libc.stdint cimport int32_t, int64_t

from .prefix_index cimport PrefixIndex


cdef enum:
    STORE_PRESENT = -2           # nothing of the cohort is missing
    STORE_RETRY = -3             # there is no room: nothing changed


cdef struct HostEntry:
    int32_t identity             # of `keys`
    int32_t pins                 # loads under way
    int64_t store                # ordinal of the store that will fill it; NONE = resident
    int64_t stamp                # of the last cohort it was a member of
    int32_t older                # LRU list of the resident, unpinned ones; NONE at its ends
    int32_t newer                # also the free list


cdef struct Transfer:
    int64_t number               # of stores and loads together, as in the log
    int64_t ordinal              # of stores, or of loads, alone
    double end_ms                # NaN: a store that is prepared and not submitted; in a shared tier, not known
    bint is_store
    int32_t request              # trace row it belongs to
    int32_t slot                 # of the request that loads; NONE for a store
    int64_t num_entries
    int32_t* entries             # (num_entries,), owned
    # Of a tier that ranks share.
    int32_t member               # whose copy it is
    double from_ms               # its first byte; INFINITY: a store that is prepared and not submitted
    double left_bytes            # not yet copied when its direction was last looked at
    int32_t* sources             # (num_entries,) of a store: device copies it holds, owned; NULL = none


cdef struct TransferRing:
    Transfer* items              # ring, owned; oldest first
    int64_t head
    int64_t count
    int64_t mask                 # capacity - 1; meaningless while `items` is NULL


cdef Transfer* transfer_at(TransferRing* ring, int64_t i) noexcept nogil
cdef Transfer* push_transfer(TransferRing* ring) except NULL nogil
cdef void take_transfer(TransferRing* ring, int64_t i, Transfer* out) noexcept nogil
cdef void free_ring(TransferRing* ring) noexcept nogil


cdef class HostTier:
    # Configuration; never changes.
    cdef readonly int64_t num_blocks
    cdef readonly double block_bytes
    cdef readonly double d2h_gbps        # 0 = instantaneous
    cdef readonly double h2d_gbps
    cdef readonly double latency_ms      # to the first byte
    cdef readonly PrefixIndex keys       # identities of blocks; `heads` holds the entry of each
    # Entries.
    cdef HostEntry* entries              # (entry_capacity,), owned
    cdef int32_t entry_capacity
    cdef int32_t entry_top
    cdef int32_t free_entry
    cdef readonly int64_t num_entries    # pending and resident
    cdef int32_t oldest                  # next victim
    cdef int32_t newest
    cdef int64_t stamp
    # Copies under way. Stores end in the order in which they were prepared: lane times never fall.
    cdef TransferRing stores             # submitted, then prepared
    cdef TransferRing loads
    cdef int64_t num_submitted
    cdef int64_t next_number
    cdef int64_t next_store              # ordinals
    cdef int64_t next_load
    cdef double store_tail_ms
    cdef double load_tail_ms
    cdef readonly double now_ms          # of the last tick
    # What the last store took away, as identities (their nodes may be gone).
    cdef int32_t* evicted                # (evicted_capacity,), owned
    cdef int64_t num_evicted
    cdef int64_t evicted_capacity
    cdef int32_t* cohort                 # (cohort_capacity,) scratch, owned
    cdef int64_t cohort_capacity

    cdef int32_t entry_of(self, int32_t identity) noexcept nogil
    cdef bint lacks_any(self, const int32_t* identities, int64_t n) noexcept nogil
    cdef bint is_stored_by(self, int32_t identity, int64_t ordinal) noexcept nogil
    cdef int64_t num_stored(self) noexcept nogil
    cdef int64_t load_of(self, int32_t identity) noexcept nogil
    cdef bint is_free_to_load(self, int32_t identity) noexcept nogil
    cdef bint is_pending(self, int32_t identity) noexcept nogil
    cdef int64_t prepare_store(self, const int32_t* identities, int64_t n, int32_t request) except? -1 nogil
    cdef Transfer* next_to_submit(self, double at_ms) noexcept nogil
    cdef Transfer* schedule_load(self, const int32_t* identities, int64_t n, double not_before_ms, int32_t request, int32_t slot) except? NULL nogil
    cdef int cancel_load(self, int64_t ordinal, Transfer* cancelled) except -1 nogil
    cdef double next_end_ms(self) noexcept nogil
    cdef int finish_next(self, double at_ms, Transfer* finished) except -1 nogil
    cdef int conclude(self, Transfer* done) except -1 nogil
    cdef void touch(self, int32_t identity) noexcept nogil
    cdef bint store_in_flight(self, int64_t ordinal) noexcept nogil
    cdef double store_end_ms(self, int64_t ordinal) noexcept nogil
    cdef bint copies(self) noexcept nogil
    cdef double _copy_ms(self, int64_t num_blocks, double gbps) noexcept nogil
    cdef int32_t _new_entry(self) except -1 nogil
    cdef void _evict(self, int32_t entry) noexcept nogil
    cdef int _reserve(self, int64_t n) except -1 nogil
    cdef void _link_newest(self, int32_t entry) noexcept nogil
    cdef void _unlink(self, int32_t entry) noexcept nogil
    cdef void _enter_cohort(self, int64_t n) noexcept nogil
    cdef void _unpin(self, Transfer* load) noexcept nogil
