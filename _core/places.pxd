# Which rank of a pool takes a request next: in turn, or where somebody else says.
from libc.stdint cimport int32_t, int64_t, uint64_t


cdef struct Seeker:              # who needs a place
    int64_t request
    int64_t n_in
    uint64_t* hash_ids           # borrowed
    int64_t num_hash_ids


cdef class Places:
    cdef int32_t num_workers[2]          # of the prefill workers, and of those that decode
    cdef int32_t dp_size[2]
    cdef int64_t next_at[2]              # whose turn it is, over all ranks of a pool
    cdef object chooser                  # None: in turn

    cdef int take(self, bint decode, double now_ms, Seeker* seeker, int32_t* worker, int32_t* rank) except -1 nogil
    cdef int _ask(self, bint decode, double now_ms, Seeker* seeker, int32_t* worker, int32_t* rank) except -1
