# Figures of one event log (see log_figures.pyx).
from libc.stdint cimport int32_t, int64_t, uint64_t

from .log_lines cimport NUM_LINE_KINDS, LineFacts, LineKind, ReadTime


cdef enum SampleKind:            # index into SAMPLES
    SAMPLE_TTFT = 0
    SAMPLE_TPOT = 1
    SAMPLE_ITL = 2
    SAMPLE_E2E = 3
    NUM_SAMPLE_KINDS = 4


cdef struct Samples:             # exact until there are too many, then counts of narrow buckets
    int64_t count
    double sum                   # compensated
    double lost                  # what `sum` has rounded away
    double* values               # (capacity,), owned; NULL once there are buckets
    int64_t capacity
    int64_t* buckets             # (NUM_BUCKETS,), owned; NULL until there are too many values


cdef struct Live:                # a request that has not ended
    uint64_t request             # hash of its name; 0 = free place
    double arrival_ms
    double first_token_ms
    double last_token_ms         # of the `tokens` lines
    double* gaps                 # (gap_capacity,), owned: between its tokens, to be pooled if it finishes
    int64_t num_gaps
    int64_t gap_capacity
    int64_t worker


cdef struct Place:               # the last pass line of a worker
    LineKind kind                # LINE_OTHER: none so far
    int64_t pass_id
    double t_ms


cdef bint is_counted(LineKind kind) noexcept nogil


cdef class LogFigures:
    cdef int64_t[NUM_LINE_KINDS] counts  # lines of each kind
    cdef int64_t output_tokens           # of finished requests
    cdef double duration_ms              # time of the last finish
    cdef Samples[NUM_SAMPLE_KINDS] samples
    cdef Live* live                      # (mask + 1,) open hash, owned
    cdef int64_t num_live
    cdef int64_t mask
    cdef Place* places                   # (num_places,) by worker, owned
    cdef int64_t num_places
    cdef ReadTime time

    cdef int take(self, LineKind kind, const LineFacts* facts) except -1 nogil
    cdef int _feed(self, const char* at, const char* stop) except -1 nogil
    cdef int _arrive(self, const LineFacts* facts, double t_ms) except -1 nogil
    cdef int _emit(self, Live* live, int64_t tokens, double t_ms) except -1 nogil
    cdef int _finish(self, Live* live, const LineFacts* facts, double t_ms) except -1 nogil
    cdef int _pass(self, LineKind kind, const LineFacts* facts, double t_ms) except -1 nogil
    cdef Live* _find(self, uint64_t request) noexcept nogil
    cdef void _forget(self, Live* live) noexcept nogil
    cdef int _grow(self) except -1 nogil
