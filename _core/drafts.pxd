# Multi-token prediction: how many draft tokens of a request are accepted.
from libc.stdint cimport int64_t, uint64_t

from .chacha cimport ChaCha12


cdef enum:
    MAX_DRAFTS = 5


cdef struct Drafts:
    int64_t num                  # drafts a pass; 0 = off
    double rates[MAX_DRAFTS]     # (num,) of draft i, given that all before it were accepted
    ChaCha12 stream              # one of each rank


cdef int drafts_begin(Drafts* drafts, object accept_rates, uint64_t seed) except -1
cdef int64_t drafts_accepted(Drafts* drafts) noexcept nogil
