# Records to JSON lines (see log_encoder.pyx and docs/event-log.md).
from libc.stdint cimport int64_t

from .event_buffer cimport Event, EventBuffer
from .request_names cimport RequestNames


cdef enum LogLevel:
    LEVEL_REQUESTS = 0           # each level adds to the one before
    LEVEL_PASSES = 1
    LEVEL_TOKENS = 2
    LEVEL_KV = 3


cdef struct LogCounts:
    int64_t events               # lines written; the next `seq`
    int64_t arrived
    int64_t[4] ended             # index: TerminalStatus
    int64_t cut


cdef class LogEncoder:
    """Owns its text buffer; one encoder a log."""
    cdef int _level              # LogLevel
    cdef int _num_workers
    cdef int _dp_size
    cdef bint _with_terms        # arrivals tell what a policy may ask for
    cdef RequestNames _names
    cdef LogCounts _counts
    cdef char* _text             # (_capacity,), owned; the lines of the present call, reused by the next
    cdef size_t _used
    cdef size_t _capacity
    cdef double _t_ms            # time whose text is kept: records of one instant follow each other
    cdef char[32] _t_text
    cdef int _t_size

    cdef char* _room(self, char* end, size_t wanted) except NULL nogil
    cdef char* _open(self, Event* event, const char* kind, size_t extra) except NULL nogil
    cdef void _close(self, char* end) noexcept nogil
    cdef char* _who(self, char* out, Event* event) noexcept nogil
    cdef int _encode(self, EventBuffer events) except -1 nogil
    cdef Py_ssize_t _find_close(self, EventBuffer events, Py_ssize_t first, int kind) except -1 nogil
    cdef int _record(self, EventBuffer events, Event* event) except -1 nogil
    cdef int _command(self, Event* event, Event* gauges) except -1 nogil
    cdef int _pass_start(self, EventBuffer events, Py_ssize_t first, Py_ssize_t close) except -1 nogil
    cdef char* _rank_budget(self, char* out, EventBuffer events, Py_ssize_t first, Py_ssize_t end) except NULL nogil
    cdef char* _reason(self, char* out, EventBuffer events, Event* event) except NULL nogil
    cdef int _pass_end(self, EventBuffer events, Py_ssize_t first, Py_ssize_t close) except -1 nogil
    cdef char* _rank_list(
        self, char* out, EventBuffer events, Py_ssize_t first, Py_ssize_t end, int kind
    ) except NULL nogil
    cdef int _arrival(self, Event* event) except -1 nogil
    cdef int _admission(self, Event* event) except -1 nogil
    cdef int _first_token(self, Event* event) except -1 nogil
    cdef int _preemption(self, EventBuffer events, Event* event) except -1 nogil
    cdef int _decision(self, EventBuffer events, Event* event) except -1 nogil
    cdef int _hand_off(self, Event* event) except -1 nogil
    cdef int _host(self, Event* event) except -1 nogil
    cdef int _terminal(self, EventBuffer events, Event* event) except -1 nogil
    cdef int _cut(self, Event* event) except -1 nogil
    cdef int _tokens(self, Event* event) except -1 nogil
    cdef int _kv_stored(self, EventBuffer events, Event* event) except -1 nogil
    cdef int _kv_removed(self, EventBuffer events, Event* event) except -1 nogil
