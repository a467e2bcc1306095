# All machines of a replay under one virtual clock: the order of one instant.
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from .cancellations cimport Leaving
from .disaggregation cimport Disaggregation
from .intake cimport Intake
from .onlookers cimport Onlookers


cdef enum FleetStatus:
    FLEET_GOES_ON = -2           # inside: no reason to stop
    FLEET_DONE = 0               # nothing is left that could happen by itself
    FLEET_NEEDS_ROWS = 1         # the next instant may hold rows that were not handed over yet
    FLEET_UNTIL = 2              # the next instant lies beyond the limit
    FLEET_ENDS = 3               # requests the workload waits for ended at this instant
    FLEET_SAMPLE = 4             # a telemetry sample is due now
    FLEET_FULL = 5               # the event buffer wants to be read
    FLEET_PLACE = 6              # a row is due and the caller places it
    FLEET_MOVE = 7               # external: the caller moves the machine of `moving_worker`
    FLEET_CANCEL = 8             # external: a client leaves now, its request has not ended
    FLEET_SETTLE = 9             # external: handoffs go on, the caller gives the command that is due


cdef enum Stage:
    STAGE_PICK = 0
    STAGE_ENDS = 1
    STAGE_ARRIVALS = 2
    STAGE_RUN = 3
    STAGE_AGAIN = 4
    STAGE_SETTLE = 5             # disaggregated: facts, transfers and commands until nothing is left
    STAGE_TELL = 7               # disaggregated: who has ended so far
    STAGE_OVER = 6               # disaggregated: nothing is left to do at this instant


cdef class Fleet(Intake):
    cdef readonly tuple machines
    cdef PyObject** workers              # (num_workers,) borrowed Machine pointers, owned array
    cdef int64_t next_command
    cdef readonly double last_event_ms   # the last instant at which anything but a sample happened
    cdef double accounted_ms             # worker_seconds is integrated up to here
    cdef readonly double worker_seconds  # integral of provisioned workers over modelled time; disaggregated: of decode
    cdef readonly double prefill_worker_seconds   # disaggregated: of prefill workers
    cdef readonly Disaggregation handoffs    # None: all workers are the same
    cdef bint disaggregated
    cdef bint ran                        # disaggregated: passes were started in this round
    cdef double sample_ms                # next telemetry sample; INFINITY = none
    cdef readonly Onlookers onlookers    # ranks that stand still look again whenever anything happens
    cdef bint shares_memory              # workers share host memory: all move by turns (standstill)
    cdef bint only_sample                # nothing but a sample is due at this instant
    cdef bint looked_last                # they did behind the last arrivals of the instant, too
    cdef bint telemetry
    cdef bint external_placement
    cdef readonly bint external          # the caller's shells move the machines and own the lanes
    cdef readonly bint directed          # and only when told to
    cdef bint quiet                      # nobody reads passes: quiet ones are taken at once
    cdef int32_t next_to_move            # external: of the current stage
    cdef readonly int32_t moving_worker  # external: after "move", who is to move
    cdef readonly bint hold_boundary     # external: and whether it stops at a pass boundary
    cdef readonly bint hold_start        # external: and whether it stops before a pass starts
    cdef readonly bint moves_anyway      # external: also where it is idle and nothing is on its lanes
    cdef bint any_rests                  # machines may stop behind a pass of no length
    cdef int64_t effects_before          # of the worker that moves, before it did
    cdef int stage
    cdef bint first_round                # of the instant

    cdef int run(self, double until_ms, Py_ssize_t max_records) except -1 nogil
    cdef int pick(self, double until_ms, Py_ssize_t max_records) except -1 nogil
    cdef int pass_quietly(self, double until_ms, Py_ssize_t max_records) except -1 nogil
    cdef double next_instant(self) noexcept nogil
    cdef int _note_event(self) noexcept nogil
    cdef int _account(self) noexcept nogil
    cdef int end_passes(self) except -1 nogil
    cdef int hand_over(self) except -1 nogil
    cdef bint _copy_ends(self, int32_t worker) noexcept nogil
    cdef int run_machines(self) except -1 nogil
    cdef int32_t _next_to_run(self, int32_t worker) noexcept nogil
    cdef int settled(self, bint happened) except -1 nogil
    cdef double next_deadline(self) noexcept nogil
    cdef bint wants_move(self, bint hold_boundary) noexcept nogil
    cdef int place(self, int32_t worker, int32_t rank) except -1 nogil
    cdef int cancel(self, Leaving* leaving) except -1 nogil
