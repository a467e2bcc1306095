# Envelopes of the control lanes and a growable ring of them.
from libc.stdint cimport int32_t, int64_t, uint64_t

from .types cimport Terms


cdef struct Envelope:
    int64_t command_id
    int32_t kind                 # CommandKind
    int32_t rank
    int32_t request
    int32_t discard              # cancel: also drop outputs of the pass in flight
    int32_t worker               # whom a fleet sends it to; no machine looks at it
    int64_t handoff              # the caller's number, of a command about a handoff
    int64_t n_in
    int64_t n_out
    uint64_t* hash_ids           # owned by whoever holds the envelope; NULL after it is applied
    int64_t num_hash_ids
    Terms terms                  # submit, prefill, reservation
    int64_t cancel_id            # submit: its client has gone, this cancellation follows directly; -1 = none


cdef struct Lane:
    Envelope* items              # ring, owned
    int64_t head
    int64_t count
    int64_t mask                 # capacity - 1; meaningless while `items` is NULL


cdef int lane_push(Lane* lane, Envelope* envelope) except -1 nogil
cdef int result_of(int status) noexcept nogil
cdef int32_t command_kind(object name) except -1
cdef int64_t lane_count(Lane* lane, int32_t rank) noexcept nogil
cdef Envelope* lane_find(Lane* lane, int64_t command_id) noexcept nogil
cdef int lane_pop(Lane* lane, Envelope* envelope) noexcept nogil
cdef void make_cancel(Envelope* envelope, int32_t rank, int32_t request) noexcept nogil
cdef int push_cancel_behind(Lane* cancel_lane, Envelope* submitted) except -1 nogil
cdef void lane_free(Lane* lane) noexcept nogil
cdef int pack_command(object command, Envelope* envelope) except -1
cdef object unpack_command(Envelope* envelope)
