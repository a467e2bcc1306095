# Per-request records as JSON lines (see record_lines.pyx).
from libc.stdint cimport int8_t, int32_t, int64_t


cdef enum:                               # in the order of TIMES
    ARRIVAL = 0
    FIRST_ADMIT = 1
    TERMINAL = 2
    FIRST_TOKEN = 3
    LAST_TOKEN = 4
    TTFT = 5
    TTST = 6
    E2E = 7
    TPOT = 8
    NUM_TIMES = 9


cdef enum:                               # in the order of COUNTS
    INPUT = 0
    REQUESTED = 1
    OUTPUT = 2
    REUSED_MAX = 3
    REUSED_FIRST = 4
    NUM_COUNTS = 5


cdef enum:                               # in the order of SMALLS
    ADMISSIONS = 0
    PREEMPTIONS = 1
    WORKER = 2
    RANK = 3
    SESSION = 4
    TURN = 5
    NUM_SMALLS = 6


cdef class RecordLines:
    cdef int64_t first_row
    cdef int64_t dp_size
    cdef Py_ssize_t num_rows
    cdef list names                      # (num_rows,) JSON text each
    cdef list uuids                      # (num_rows,) JSON text each
    cdef list sessions                   # JSON text by session ordinal, or None
    cdef list times                      # (NUM_TIMES,) arrays that keep the pointers below alive
    cdef list counts
    cdef list smalls
    cdef const int8_t[::1] status
    cdef const double* time[NUM_TIMES]   # borrowed; NaN = absent
    cdef const int64_t* count[NUM_COUNTS]
    cdef const int32_t* small[NUM_SMALLS]

    cdef bint _is_plain(self, Py_ssize_t at)
    cdef char* _line(self, Py_ssize_t at, char* out)
