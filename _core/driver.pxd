# The driver machine: what may happen next to one engine, and when. Sans I/O.
from libc.stdint cimport int32_t, int64_t, uint64_t

from .engine cimport Engine
from .event_buffer cimport EventBuffer
from .lanes cimport Envelope, Lane


cdef enum Phase:
    PHASE_TURN = 0               # process due internal work, then see whether the engine is ready
    PHASE_IDLE = 1
    PHASE_SNAPSHOT = 2           # both lane lengths are to be sampled, once
    PHASE_SNAPSHOT_CANCELS = 3
    PHASE_SNAPSHOT_COMMANDS = 4
    PHASE_START_PASS = 5
    PHASE_IN_PASS = 6
    PHASE_AT_BOUNDARY = 7        # the consumer owns the boundary; no lane is read
    PHASE_POST_PASS = 8
    PHASE_POST_CANCELS = 9
    PHASE_POST_DEFERRED = 10
    PHASE_POST_COMMANDS = 11
    PHASE_YIELD = 12
    PHASE_STOPPED = 13


cdef enum Stimulus:
    ST_GO = 0
    ST_CANCEL = 1                # the cancel token; level-triggered
    ST_CANCEL_ITEM = 2           # one envelope of the cancellation lane
    ST_COMMAND_ITEM = 3          # one envelope of the command lane
    ST_LANE_EMPTY = 4
    ST_CANCELS_CLOSED = 5        # the cancellation lane is empty and closed
    ST_COMMANDS_CLOSED = 6       # the same of the command lane
    ST_LANE_COUNTS = 7
    ST_PASS_TIMER = 8
    ST_INTERNAL_TIMER = 9
    ST_BOUNDARY_APPLY = 10
    ST_BOUNDARY_FINISH = 11
    ST_BOUNDARY_DROPPED = 12
    ST_PUBLISHED = 13
    ST_PUBLISH_CLOSED = 14
    ST_YIELDED = 15
    NUM_STIMULI = 16


cdef struct Reply:
    int64_t command_id
    int64_t status               # CommandStatus


cdef class Machine:
    cdef readonly Engine engine
    cdef readonly EventBuffer out        # events to publish, in order; the shell empties it
    cdef readonly EventBuffer boundary_events   # what the last BOUNDARY_APPLY returned instead of publishing
    cdef readonly int phase
    cdef bint publishing                 # events of the last step are not yet on the lane
    cdef bint half_published             # it stopped like that: their commands are not acknowledged
    cdef bint cancelled
    cdef readonly double engine_ms       # largest modelled time handed to the engine
    cdef bint has_carried
    cdef readonly double carried_ms      # end of the last pass, the intended start of the next
    cdef readonly double pass_end_ms
    cdef bint zero_duration
    cdef readonly bint rests             # a pass of no length is over: whoever moves several machines asks the others first
    cdef readonly int64_t num_effects    # passes that did more than to begin copies
    cdef int64_t stops_behind            # pass behind which the pump starts no other
    cdef bint accepting                  # mid-pass: the command lane may be read
    cdef int64_t left_cancels            # of the sampled lengths, still to take
    cdef int64_t left_commands
    cdef Lane deferred                   # taken from the command lane mid-pass, not applicable there
    cdef Lane cancel_lane                # lanes of the bulk move; a shell of its own keeps lanes elsewhere
    cdef Lane command_lane
    cdef Reply* replies                  # (reply_capacity,) of the last steps, owned
    cdef int64_t num_replies
    cdef int64_t reply_capacity
    cdef bint keep_replies               # somebody reads them
    cdef int64_t overdue_cancels         # consecutive cancellations past the pass end
    cdef int64_t idle_passes             # consecutive effect-free passes of no length at one engine time
    cdef double idle_passes_ms
    cdef object failure                  # text of a driver error, None while none

    cdef int step_c(self, int stimulus, double reading_ms, Envelope* envelope, int64_t num_cancels, int64_t num_commands) except -1 nogil
    cdef uint64_t wants_mask(self) noexcept nogil
    cdef int pump(self, double now_ms, bint take_timers, bint finish_boundary, bint start_passes) except -1 nogil
    cdef bint pass_quietly(self, double before_ms, double until_ms, Py_ssize_t max_records) except -1 nogil
    cdef double next_deadline(self) noexcept nogil
    cdef int put(self, Envelope* envelope) except -1 nogil
    cdef int64_t queued_on(self, int32_t rank) noexcept nogil
    cdef Envelope* find_waiting(self, int64_t command_id) noexcept nogil
    cdef double _advance_clock(self, double ms) noexcept nogil
    cdef double _command_time(self, double reading_ms) noexcept nogil
    cdef int _internal_until(self, double now_ms, EventBuffer out) except -1 nogil
    cdef int _clear_carried_if_idle(self) noexcept nogil
    cdef int _turn(self, double reading_ms) except -1 nogil
    cdef int _start_pass(self, double reading_ms) except -1 nogil
    cdef int _complete(self) except -1 nogil
    cdef int _apply_deferred(self, double reading_ms) except -1 nogil
    cdef int _skip_empty_groups(self) noexcept nogil
    cdef int _insert_gauges(self, EventBuffer out, Py_ssize_t at, int32_t rank, double now_ms) except -1 nogil
    cdef int _apply(self, Envelope* envelope, double reading_ms, bint in_pass, EventBuffer out) except -1 nogil
    cdef int _take(self, int stimulus, double reading_ms, Envelope* envelope) except -1 nogil
    cdef int _stop(self) noexcept nogil
    cdef int _reply(self, int64_t command_id, int64_t status) except -1 nogil
    cdef int _refuse(self, int stimulus) except -1
