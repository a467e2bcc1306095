# The SGLang flavour: prefill passes by budgets of tokens, decode passes that retract when pages run out.
from libc.stdint cimport int32_t, int64_t, uint64_t

from .drafts cimport Drafts
from .sched_pages cimport PageScheduler


cdef struct Admitted:
    int32_t slot
    int64_t start                # tokens that were there before
    int64_t end                  # and after this pass


cdef struct Ended:
    int32_t slot
    Py_ssize_t place             # records of emissions so far: its end stands behind them


cdef struct Match:               # of a waiting request, for the order of the queue
    int32_t slot
    bint is_twin                 # one before it in the queue begins alike, and neither finds much
    int64_t tokens               # cached prefix
    uint64_t opening             # hash of the first tokens; 0 = none that count


cdef class SglangScheduler(PageScheduler):
    # Configuration; never changes.
    cdef bint free_prefill               # a decode worker: what it computes of a prompt takes no time
    cdef bint by_match                   # lpm: the longest cached prefix goes first
    cdef int64_t max_prefill_tokens      # of one pass
    cdef int64_t chunk_tokens            # of one pass; a longer prompt is cut
    cdef int64_t clip_tokens             # most output for which room is kept
    cdef int64_t decode_interval         # passes without admission after one with prompt work
    cdef double ratio_init
    cdef double ratio_min
    cdef double ratio_step
    cdef Drafts drafts
    # State.
    cdef readonly double ratio           # of the output that running requests may still want, for which room is kept
    cdef readonly int64_t interval       # passes left without admission
    # The pass being executed.
    cdef bint deferred                   # nobody is admitted: the interval
    cdef bint idle_deferred              # and nothing had to be decoded either
    cdef bint retracted
    cdef double estimate                 # the ratio after a retraction
    cdef Admitted* admitted              # (num_admitted,) in order, owned
    cdef int64_t num_admitted
    cdef int64_t admitted_capacity
    cdef Ended* ended                    # (num_ended,) requests that are complete, in order, owned
    cdef int64_t num_ended
    cdef int64_t ended_capacity
    cdef Match* matches                  # (num_waiting,) scratch, owned; NULL unless the queue is ordered

    cdef int enter_activated(self) except -1 nogil
    cdef int reject_too_long(self) except -1 nogil
    cdef int order_queue(self) noexcept nogil
    cdef uint64_t _opening_of(self, int32_t slot, int64_t num_pages) noexcept nogil
    cdef bint _opens_alike(self, int32_t a, int32_t b, int64_t num_pages) noexcept nogil
    cdef int admit(self) except -1 nogil
    cdef int _admit_head(self, int32_t slot, int64_t start, int64_t end) except -1 nogil
    cdef int64_t _wanted(self, int32_t slot) noexcept nogil
    cdef double _reserved_tokens(self) noexcept nogil
    cdef int disperse(self) except -1 nogil
    cdef double prefill_end_ms(self, double now_ms) except? -1.0 nogil
    cdef int emit_first_tokens(self) except -1 nogil
    cdef int decode(self, double now_ms) except -1 nogil
    cdef int64_t growth(self) noexcept nogil
    cdef int retract(self) except -1 nogil
    cdef int emit_bursts(self, int64_t growth) except -1 nogil
    cdef int note_end(self, int32_t slot) except -1 nogil
    cdef int close_requests(self) except -1 nogil
    cdef int pair_ends(self, Py_ssize_t num_emissions) except -1 nogil
    cdef void measure_prefill(self) noexcept nogil
    cdef void measure_decode(self) noexcept nogil
