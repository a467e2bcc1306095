# Two event logs, line beside line (see log_aligner.pyx).
from libc.stdint cimport int32_t, int64_t, uint64_t

from .log_figures cimport LogFigures
from .log_lines cimport NUM_LINE_KINDS, LineFacts, LineKind, LineRules


cdef enum PairClass:             # index into CLASSES
    PAIR_SAME = 0
    PAIR_REORDERED = 1
    PAIR_MOVED = 2
    PAIR_CHANGED = 3
    PAIR_MISSING = 4             # only the first log has it
    PAIR_EXTRA = 5               # only the second one has it
    NUM_PAIR_CLASSES = 6


cdef struct Waiting:             # a line whose partner was not read yet
    uint64_t key
    uint64_t content
    uint64_t timeless
    int64_t index                # line of its log, from 0
    int64_t num_arrivals         # of its log, up to and with this line
    double t_ms
    LineKind kind
    int32_t bucket               # -1: no line waits here any more
    int32_t before               # lines of the same bucket, the older ones before
    int32_t behind


cdef struct Side:
    const char* at               # of the present block, which `_block_*` keeps
    const char* stop
    bint ended
    bint is_scanned              # `head` is that of the line at `at`
    const char* line_end
    LineFacts head
    double head_ms
    int64_t index                # of the line at `at`
    int64_t num_arrivals         # read so far
    int64_t settled_arrivals     # ... up to and with the last one that has found its partner
    int64_t spine                # index of the last line in order: those behind it that pair up are in order, too
    Waiting* ring                # (window,), owned; places are taken in order
    int64_t first                # oldest place that is taken, of all ever taken
    int64_t next
    int64_t num_waiting
    int32_t* heads               # (num_buckets,) oldest line of each bucket, -1 = none; owned
    int32_t* tails               # (num_buckets,) newest; owned
    int64_t num_given_up


cdef class Aligner:
    cdef Side[2] _sides
    cdef LineRules _rules
    cdef LogFigures _figures_a
    cdef LogFigures _figures_b
    cdef bytes _block_a
    cdef bytes _block_b
    cdef readonly int64_t window
    cdef int64_t _bucket_mask
    cdef int64_t[NUM_LINE_KINDS][NUM_PAIR_CLASSES] _counts
    cdef int[2] _first_class     # PairClass of the first line of each log, -1 = not known yet
    cdef double _earlier_ms
    cdef double _later_ms

    cdef int _run(self) except -1 nogil
    cdef int _in_step(self) except -1 nogil
    cdef void _scan(self, Side* side, LogFigures figures) noexcept nogil
    cdef int _take(self, int which) except -1 nogil
    cdef int64_t _partner(self, Side* other, const LineFacts* facts) noexcept nogil
    cdef void _settle(self, int which, Waiting* partner) noexcept nogil
    cdef void _wait(self, int which) noexcept nogil
    cdef void _give_up(self, int which, int64_t place) noexcept nogil
    cdef void _unlink(self, Side* side, int64_t place) noexcept nogil
    cdef void _note(self, int which, int64_t index, LineKind kind, int found) noexcept nogil
