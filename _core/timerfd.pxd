# A timer as a file descriptor: absolute deadlines of the monotonic clock, for an event loop to watch.
from libc.stdint cimport int64_t


cdef class TimerFd:
    cdef readonly int num_attempts       # creations tried, failed ones among them
    cdef readonly bint closed
    cdef object _create                  # callable that gives a descriptor, or None for the system's own
    cdef int _fd                         # owned; -1 before the first arm and after close

    cdef int _need_descriptor(self) except -1
    cdef int _set(self, int64_t deadline_ns) except -1
