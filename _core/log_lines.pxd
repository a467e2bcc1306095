# Lines of an event log being compared (see log_lines.pyx and docs/event-log.md).
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef extern from "line_text.h" nogil:
    uint64_t mr_mix(uint64_t hash, uint64_t word)
    uint64_t mr_hash_text(const char* text, size_t size)
    const char* mr_string_end(const char* at, const char* end)
    ptrdiff_t mr_count_byte(const char* text, ptrdiff_t size, char byte)
    int mr_read_double(const char* text, size_t size, double* value)


cdef enum LineKind:              # index into KINDS
    LINE_ARRIVAL = 0
    LINE_ADMISSION = 1
    LINE_FIRST_TOKEN = 2
    LINE_PREEMPTION = 3
    LINE_FINISH = 4              # the five ends of a request stand together
    LINE_REJECTION = 5
    LINE_CANCELLATION = 6
    LINE_FAILURE = 7
    LINE_CUT = 8
    LINE_COMMAND = 9
    LINE_PASS_START = 10
    LINE_PASS_END = 11
    LINE_TOKENS = 12
    LINE_KV_STORED = 13
    LINE_KV_REMOVED = 14
    LINE_DECISION = 15
    LINE_OTHER = 16              # none that this version writes
    NUM_LINE_KINDS = 17


cdef enum:
    MAX_DEPTH = 16               # nesting of a line that is looked into; ours have 4
    MAX_IGNORED = 64


cdef struct Ignored:             # fields that comparisons leave out
    int num_names
    int num_paths
    uint64_t[MAX_IGNORED] names  # hashes of names, at any depth
    uint64_t[MAX_IGNORED] paths  # hashes of dotted paths from the top


cdef struct LineFacts:
    LineKind kind
    uint64_t key                 # which event it is: the same in both logs, whatever the rest of the line says
    uint64_t content             # the line without `seq` and ignored fields
    uint64_t timeless            # ... and without times
    uint64_t seq                 # hash of the text of `seq`
    uint64_t request             # hash of its name, as quoted; 0 without
    const char* t_text           # text of `t_ms`; NULL without
    size_t t_size
    double last_token_ms         # NaN without
    int64_t worker               # -1 where the line has none, as all below
    int64_t pass_id
    int64_t tokens
    int64_t output_tokens


cdef struct ReadTime:            # the time read last: lines of one instant follow each other
    char[32] text
    size_t size
    double t_ms


cdef double time_of(ReadTime* last, const LineFacts* facts) noexcept nogil
cdef LineKind kind_of(const char* line, const char* end) noexcept nogil
cdef const char* line_end(const char* at, const char* stop) noexcept nogil
cdef const char* body_of(const char* line, const char* end) noexcept nogil
cdef bint scan_head(const char* line, const char* end, LineFacts* facts) noexcept nogil
cdef void scan_line(const char* line, const char* end, const Ignored* ignored, LineFacts* facts) noexcept nogil


cdef class LineRules:
    cdef Ignored ignored
    cdef bint seq_left_out       # by its name, or because the logs have different levels
    cdef bint exact              # every byte counts

    cdef bint _step(self, const char** a, const char* stop_a, const char** b, const char* stop_b,
                    Py_ssize_t* num_same) noexcept nogil
    cdef bint _same(self, const char* a, const char* end_a, const char* b, const char* end_b) noexcept nogil
