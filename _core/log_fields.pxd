# Compound fields of a log line (see log_fields.pyx). Each writes at `out` and returns the end.
from libc.stdint cimport int64_t

from .event_buffer cimport Event

cdef enum:
    NUM_FPM = 14                 # words of a forward-pass record
    FPM_ROOM = 1024              # room its object needs [bytes]


cdef char* put_gauges(char* out, Event* gauges) noexcept nogil
cdef char* put_fpm(char* out, const int64_t* words) noexcept nogil
cdef char* put_reason(char* out, int64_t reason, const int64_t* figures) noexcept nogil
