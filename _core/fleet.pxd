# All machines of a replay under one virtual clock: the order of one instant.
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from .arrivals cimport Arrival, Arrivals
from .cancellations cimport Cancellations, Leaving
from .ends cimport Ends
from .event_buffer cimport EventBuffer


cdef enum FleetStatus:
    FLEET_DONE = 0               # nothing is left that could happen by itself
    FLEET_NEEDS_ROWS = 1         # the next instant may hold rows that were not handed over yet
    FLEET_UNTIL = 2              # the next instant lies beyond the limit
    FLEET_ENDS = 3               # requests the workload waits for ended at this instant
    FLEET_SAMPLE = 4             # a telemetry sample is due now
    FLEET_FULL = 5               # the event buffer wants to be read
    FLEET_PLACE = 6              # a row is due and the caller places it
    FLEET_MOVE = 7               # external: the caller moves the machine of `moving_worker`
    FLEET_CANCEL = 8             # external: a client leaves now, its request has not ended


cdef enum Stage:
    STAGE_PICK = 0
    STAGE_ENDS = 1
    STAGE_ARRIVALS = 2
    STAGE_RUN = 3
    STAGE_AGAIN = 4


cdef class Fleet:
    cdef readonly tuple machines
    cdef PyObject** workers              # (num_workers,) borrowed Machine pointers, owned array
    cdef readonly int32_t num_workers
    cdef readonly int32_t dp_size
    cdef readonly EventBuffer out
    cdef Arrivals arrivals               # rows handed over and not due yet
    cdef Cancellations leaving           # of requests that arrived and have not ended
    cdef int64_t next_worker             # round robin over workers
    cdef int64_t* next_rank              # (num_workers,) round robin over ranks, owned
    cdef int64_t next_command
    cdef readonly double now_ms
    cdef readonly double last_event_ms   # the last instant at which anything but a sample happened
    cdef double accounted_ms             # worker_seconds is integrated up to here
    cdef readonly double worker_seconds  # integral of provisioned workers over modelled time
    cdef readonly int64_t num_arrived
    cdef double horizon_ms               # rows due before this have all been handed over
    cdef double sample_ms                # next telemetry sample; INFINITY = none
    cdef bint telemetry
    cdef bint wake_on_end
    cdef bint external_placement
    cdef readonly bint external          # the caller's shells move the machines and own the lanes
    cdef bint quiet                      # nobody reads passes: quiet ones are taken at once
    cdef int32_t next_to_move            # external: of the current stage
    cdef readonly int32_t moving_worker  # external: after "move", who is to move
    cdef readonly bint hold_boundary     # external: and whether it stops at a pass boundary
    cdef int stage
    cdef bint first_round                # of the instant
    cdef Py_ssize_t scanned              # records of this instant already searched for ends
    cdef Ends ended                      # that the workload has to hear of

    cdef int run(self, double until_ms, Py_ssize_t max_records) except -1 nogil
    cdef int pass_quietly(self, double until_ms, Py_ssize_t max_records) except -1 nogil
    cdef double next_instant(self) noexcept nogil
    cdef int _note_event(self) noexcept nogil
    cdef int _account(self) noexcept nogil
    cdef int end_passes(self) except -1 nogil
    cdef int hand_over(self) except -1 nogil
    cdef int run_machines(self) except -1 nogil
    cdef bint tell_ends(self) except -1 nogil
    cdef int find_ends(self) except -1 nogil
    cdef bint wants_move(self, bint hold_boundary) noexcept nogil
    cdef int choose(self, int32_t* worker, int32_t* rank) noexcept nogil
    cdef int count_turn(self, int32_t worker, int32_t rank) noexcept nogil
    cdef int arrive(self, Arrival* arrival, double at_ms, int32_t worker, int32_t rank, int64_t command_id) except -1 nogil
    cdef int place(self, int32_t worker, int32_t rank) except -1 nogil
    cdef int _settle(self, int32_t* worker, int32_t* rank) except -1
    cdef int _tell_placement(self, double at_ms, int32_t request, int32_t worker, int32_t rank, bytes reason) except -1
    cdef int cancel(self, Leaving* leaving) except -1 nogil
