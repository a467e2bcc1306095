# Compound fields of a log line (see log_fields.pyx). Each writes at `out` and returns the end.
from libc.stdint cimport int64_t

from .event_buffer cimport Event

cdef enum:
    NUM_FPM = 14                 # words of a forward-pass record
    FPM_ROOM = 1024              # room its object needs [bytes]

# By event_buffer.CommandKind, HandoffStage and HostStep.
cdef const char* COMMAND_TEXTS[8]
cdef const char* STAGE_TEXTS[9]
cdef const char* HOST_TEXTS[9]


cdef char* put_gauges(char* out, Event* gauges) noexcept nogil
cdef char* put_fpm(char* out, const int64_t* words) noexcept nogil
cdef const char* host_text(int64_t step) noexcept nogil
cdef char* put_host(char* out, Event* event) noexcept nogil
cdef char* put_reason(char* out, int64_t reason, const int64_t* figures) noexcept nogil
