# Rows on their way into a fleet: those not due yet, whose turn it is, clients who leave, who ended.
from libc.stdint cimport int32_t, int64_t

from .arrivals cimport Arrival, Arrivals
from .cancellations cimport Cancellations
from .ends cimport Ends
from .event_buffer cimport EventBuffer


cdef class Intake:
    cdef readonly EventBuffer out
    cdef readonly int32_t num_workers
    cdef readonly int32_t dp_size
    cdef Arrivals arrivals               # rows handed over and not due yet
    cdef Cancellations leaving           # of requests that arrived and have not ended
    cdef Ends ended                      # that the workload has to hear of
    cdef int64_t next_worker             # round robin over workers
    cdef int64_t* next_rank              # (num_workers,) round robin over ranks, owned
    cdef readonly double now_ms
    cdef readonly int64_t num_arrived
    cdef double horizon_ms               # rows due before this have all been handed over
    cdef bint wake_on_end                # the workload waits for ends
    cdef Py_ssize_t scanned              # records already searched for ends

    cdef int open_turns(self, int32_t num_workers, int32_t dp_size) except -1
    cdef int choose(self, int32_t* worker, int32_t* rank) noexcept nogil
    cdef int count_turn(self, int32_t worker, int32_t rank) noexcept nogil
    cdef int arrive(self, Arrival* arrival, double at_ms, int32_t worker, int32_t rank, int64_t command_id) except -1 nogil
    cdef bint tell_ends(self) except -1 nogil
    cdef int find_ends(self) except -1 nogil
    cdef int _settle(self, int32_t* worker, int32_t* rank) except -1
    cdef int _tell_placement(self, double at_ms, int32_t request, int32_t worker, int32_t rank, bytes reason) except -1
