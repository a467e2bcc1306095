"""The driver machine of one engine: a deterministic function of (stimulus, clock reading), without I/O.

Theory of operation. The machine is in one phase; a phase wants a fixed set of stimuli, in order of priority. `step_c`
takes one of them with one clock reading, appends events to `out`, and leaves the machine in the next phase. A step
that published anything wants PUBLISHED before all else, so the machine never runs ahead of its consumer. A shell
chooses the stimulus (the first wanted one that is there), waits, and owns lanes and clocks; it never decides.

`pump` and `advance` are the bulk move: they feed stimuli from the machine's own lanes to the same `step_c`, without
the GIL, while nothing from outside is due.

Modelled time is float64 ms. Three rules pick it, and only these see the clock reading: the start of a pass, the
time of a command, the time of internal work. Source: driver specification, sections 2 to 8.
"""
cimport cython
from libc.math cimport INFINITY, NAN, isfinite
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from .event_buffer cimport (
    CMD_CANCEL, CMD_IN_PASS, CMD_RESERVE_DESTINATION, CMD_SUBMIT, CMD_SUBMIT_PREFILL, CMD_SUPPRESSED, EV_COMMAND, Event,
)
from .lanes cimport lane_count, lane_find, lane_free, lane_pop, lane_push, pack_command, push_cancel_behind, result_of
from .stimulus_names cimport wanted_names
from .time_rules cimport internal_time, pass_start
from .types cimport APPLY_ACTIVE

from typing import NamedTuple

from .stimulus_names import PHASE_NAMES, STATUS_TEXTS, STIMULUS_NAMES
from .types import CommandError, LivelockError

cdef enum:
    # A lane of cancellations refilled faster than it is read must not keep a pass from ending.
    MAX_OVERDUE_CANCELS = 1024
    # Effect-free passes of no length at one engine time before the machine stops with a livelock.
    MAX_IDLE_PASSES = 1024


class DriverMisuse(RuntimeError):
    """A stimulus the machine does not want in its phase; nothing changed."""


class Step(NamedTuple):
    """What one step asks of its shell.

    events: records appended to `out` by this step. replies: (command_id, ok, text) now due; a machine that stops answers
    every command it still holds. boundary_reply: answer to BOUNDARY_APPLY or BOUNDARY_FINISH, else None. wants: names
    of the stimuli that may come next, first wins. pass_deadline_ms, internal_deadline_ms: absolute, None where
    none runs. stopped: the machine is done; error: why, or None.
    """

    events: int
    replies: tuple
    boundary_reply: object
    wants: tuple
    pass_deadline_ms: float | None
    internal_deadline_ms: float | None
    stopped: bool
    error: str | None


# -- the machine --------------------------------------------------------------------------------------

@cython.final
cdef class Machine:
    """Driver of one engine.

    Args:
        engine: the worker to drive; the machine is its only caller.
        out: where events go; the shell's consumer empties it.
    """

    def __cinit__(self, Engine engine not None, EventBuffer out not None):
        self.engine, self.out = engine, out
        self.boundary_events = EventBuffer()
        self.phase, self.stops_behind = PHASE_TURN, INT64_MAX
        self.carried_ms = self.pass_end_ms = NAN

    def __dealloc__(self):
        lane_free(&self.deferred)
        lane_free(&self.cancel_lane)
        lane_free(&self.command_lane)
        free(self.replies)

    # -- time -------------------------------------------------------------------------------------

    cdef double _advance_clock(self, double ms) noexcept nogil:
        if ms > self.engine_ms:
            self.engine_ms = ms
        return self.engine_ms

    cdef double _command_time(self, double reading_ms) noexcept nogil:
        return self._advance_clock(self.engine_ms if self.has_carried else max(self.engine_ms, reading_ms))

    cdef int _clear_carried_if_idle(self) noexcept nogil:
        if not self.engine.is_ready():
            self.has_carried, self.carried_ms = False, NAN
        return 0

    cdef int _internal_until(self, double now_ms, EventBuffer out) except -1 nogil:
        """Handle internal work round by round until none is due at `now_ms`; each round publishes its own event."""
        while self.engine.next_internal_deadline() <= now_ms:
            self.engine.process_internal_work(now_ms, out)
        return 0

    # -- transitions ------------------------------------------------------------------------------

    cdef int step_c(self, int stimulus, double reading_ms, Envelope* envelope, int64_t num_cancels,
                    int64_t num_commands) except -1 nogil:
        """One transition. The stimulus must be wanted; ST_CANCEL is taken at any time and remembered."""
        cdef Py_ssize_t before = self.out.count
        cdef int phase = self.phase
        if stimulus == ST_CANCEL:
            self.cancelled = True
            if self.publishing or phase in (PHASE_TURN, PHASE_IDLE, PHASE_IN_PASS, PHASE_AT_BOUNDARY):
                self._stop()
            return 0
        if not self.wants_mask() >> stimulus & 1:
            with gil:
                self._refuse(stimulus)
        if self.publishing:
            if stimulus == ST_PUBLISH_CLOSED:
                if not self.cancelled:
                    with gil:
                        self.failure = "the event lane has no reader"
                self._stop()
            self.publishing = False
            return 0
        if phase == PHASE_TURN:
            self._turn(reading_ms)
        elif phase == PHASE_YIELD:
            self.phase = PHASE_TURN
        elif phase == PHASE_START_PASS:
            self._start_pass(reading_ms)
        elif phase == PHASE_POST_DEFERRED:
            self._apply_deferred(reading_ms)
        elif stimulus == ST_LANE_COUNTS:
            self.left_cancels, self.left_commands = num_cancels, num_commands
            self.phase = PHASE_SNAPSHOT_CANCELS if phase == PHASE_SNAPSHOT else PHASE_POST_CANCELS
            self._skip_empty_groups()
        elif stimulus == ST_CANCELS_CLOSED or stimulus == ST_COMMANDS_CLOSED:
            self._stop()
        elif phase == PHASE_AT_BOUNDARY:
            if stimulus == ST_BOUNDARY_APPLY:
                self.boundary_events.reset()
                self._apply(envelope, reading_ms, False, self.boundary_events)
            elif stimulus == ST_BOUNDARY_FINISH:
                self.phase = PHASE_POST_PASS
            else:
                with gil:
                    self.failure = "the consumer dropped a pass boundary without finishing it"
                self._stop()
        else:
            self._take(stimulus, reading_ms, envelope)
        self.publishing = self.phase != PHASE_STOPPED and self.out.count > before
        return 0

    cdef int _take(self, int stimulus, double reading_ms, Envelope* envelope) except -1 nogil:
        """Items and timers of Idle, InPass and the groups of Snapshot and PostPass."""
        cdef double at
        if stimulus == ST_PASS_TIMER:
            self._complete()
        elif stimulus == ST_INTERNAL_TIMER:
            if self.phase == PHASE_IDLE:
                self.phase = PHASE_TURN
                self._turn(reading_ms)
            else:
                at = internal_time(reading_ms, self.engine_ms, self.engine.next_internal_deadline(), self.has_carried)
                if at == at:
                    self.engine.process_internal_work(self._advance_clock(at), self.out)
        elif stimulus == ST_LANE_EMPTY:
            if self.phase == PHASE_SNAPSHOT_CANCELS or self.phase == PHASE_POST_CANCELS:
                self.left_cancels = 0
            else:
                self.left_commands = 0
            self._skip_empty_groups()
        elif self.phase == PHASE_IN_PASS:
            if stimulus == ST_CANCEL_ITEM:
                if reading_ms >= self.pass_end_ms:
                    self.overdue_cancels += 1
                self._apply(envelope, reading_ms, True, self.out)
            elif envelope.kind == CMD_SUBMIT_PREFILL or envelope.kind == CMD_RESERVE_DESTINATION:
                self._apply(envelope, reading_ms, True, self.out)
            else:
                # It might admit or free something in the middle of a pass: keep it, read no further.
                self.accepting = False
                lane_push(&self.deferred, envelope)
        else:
            self._apply(envelope, reading_ms, False, self.out)
            if self.phase == PHASE_IDLE or self.phase == PHASE_SNAPSHOT:
                self.phase = PHASE_TURN
            elif self.phase == PHASE_SNAPSHOT_CANCELS or self.phase == PHASE_POST_CANCELS:
                self.left_cancels -= 1
                self._skip_empty_groups()
            else:
                self.left_commands -= 1
                self._skip_empty_groups()
        return 0

    cdef int _apply_deferred(self, double reading_ms) except -1 nogil:
        cdef Envelope applied
        self._apply(&self.deferred.items[self.deferred.head], reading_ms, False, self.out)
        lane_pop(&self.deferred, &applied)
        return self._skip_empty_groups()

    cdef int _skip_empty_groups(self) noexcept nogil:
        """Move on from groups of which nothing is left to take."""
        if self.phase == PHASE_SNAPSHOT_CANCELS and self.left_cancels == 0:
            self.phase = PHASE_SNAPSHOT_COMMANDS
        if self.phase == PHASE_SNAPSHOT_COMMANDS and self.left_commands == 0:
            if self.engine.is_ready():
                self.phase = PHASE_START_PASS
            else:
                self._clear_carried_if_idle()
                self.phase = PHASE_TURN
        if self.phase == PHASE_POST_CANCELS and self.left_cancels == 0:
            self.phase = PHASE_POST_DEFERRED
        if self.phase == PHASE_POST_DEFERRED and self.deferred.count == 0:
            self.phase = PHASE_POST_COMMANDS
        if self.phase == PHASE_POST_COMMANDS and self.left_commands == 0:
            self.phase = PHASE_YIELD if self.zero_duration else PHASE_TURN
        return 0

    cdef int _turn(self, double reading_ms) except -1 nogil:
        cdef double at
        self.rests = False
        if self.cancelled:
            return self._stop()
        at = internal_time(reading_ms, self.engine_ms, self.engine.next_internal_deadline(), self.has_carried)
        if at == at:
            self.engine.process_internal_work(self._advance_clock(at), self.out)
        if self.engine.is_ready():
            self.phase = PHASE_SNAPSHOT
        else:
            self._clear_carried_if_idle()
            self.phase = PHASE_IDLE
        return 0

    cdef int _start_pass(self, double reading_ms) except -1 nogil:
        cdef double start_ms = self._advance_clock(
            pass_start(reading_ms, self.engine_ms, self.has_carried, self.carried_ms))
        if self.engine.execute_pass(start_ms, self.out) == 0:
            self.has_carried, self.carried_ms = False, NAN
            self.phase = PHASE_YIELD
            return 0
        self.pass_end_ms = self.carried_ms = self.engine.pass_end_ms
        self.has_carried = self.accepting = True
        self.zero_duration = self.pass_end_ms <= start_ms
        self.overdue_cancels = 0
        self.phase = PHASE_IN_PASS
        if self.zero_duration and self.engine.pass_effect_free:
            if self.idle_passes_ms != start_ms:
                self.idle_passes = 0
            self.idle_passes_ms = start_ms
            self.idle_passes += 1
            if self.idle_passes > MAX_IDLE_PASSES:
                with gil:
                    raise LivelockError(f"worker {self.engine.worker}: {MAX_IDLE_PASSES} passes without effect at "
                                        f"{start_ms} ms; no request can progress and none is hopeless by itself")
        else:
            self.idle_passes = 0
        self.num_effects += not (self.engine.pass_effect_free or self.engine.pass_only_copies)
        return 0

    cdef int _complete(self) except -1 nogil:
        """Show the pass at its modelled end, whatever the clock says."""
        self._advance_clock(self.pass_end_ms)
        self.engine.complete_pass(self.out, self.deferred.count > 0)
        self.rests = self.zero_duration and self.engine.rests_between and not self.engine.pass_effect_free
        self._clear_carried_if_idle()
        self.phase = PHASE_AT_BOUNDARY
        return 0

    cdef int _apply(self, Envelope* envelope, double reading_ms, bint in_pass, EventBuffer out) except -1 nogil:
        """Apply one command at its time; on success it becomes an event, refused it only gets its reply."""
        cdef double at = self._advance_clock(self.engine_ms) if in_pass else self._command_time(reading_ms)
        cdef int status
        cdef bint suppressed = False
        cdef Py_ssize_t head
        cdef Event* event
        if not in_pass:
            self._internal_until(at, out)
        head = out.count
        event = out.emplace(EV_COMMAND, at, self.engine.worker, envelope.rank, envelope.request)
        event.a, event.d = envelope.kind, envelope.command_id
        if envelope.kind == CMD_SUBMIT:
            status = self.engine.submit(envelope.rank, envelope.request, envelope.n_in, envelope.n_out,
                                        envelope.hash_ids, envelope.num_hash_ids, &envelope.terms)
        elif envelope.kind == CMD_CANCEL:
            status = self.engine.cancel(envelope.rank, envelope.request, envelope.discard, at, out, &suppressed)
        else:
            status = self.engine.hand_off(envelope, at, out)
        free(envelope.hash_ids)
        envelope.hash_ids = NULL
        if status >= APPLY_ACTIVE:
            out.count = head
        else:
            event = &out.records[head]
            event.b = result_of(status)
            if envelope.kind > CMD_CANCEL:
                event.f = envelope.handoff
            event.c = (CMD_IN_PASS if in_pass else 0) | (CMD_SUPPRESSED if suppressed else 0)
            self._insert_gauges(out, head + 1, envelope.rank, at)
        if not in_pass:
            self._clear_carried_if_idle()
        self._reply(envelope.command_id, status)
        return 0

    cdef int _insert_gauges(self, EventBuffer out, Py_ssize_t at, int32_t rank, double now_ms) except -1 nogil:
        """Gauges stand directly behind their command; what else the command did moves behind them."""
        cdef Event gauges
        self.engine.publish_gauges(rank, out, now_ms, 0, False)
        gauges = out.records[out.count - 1]
        memmove(&out.records[at + 1], &out.records[at], (out.count - 1 - at) * sizeof(Event))
        out.records[at] = gauges
        return 0

    cdef int _stop(self) noexcept nogil:
        self.phase = PHASE_STOPPED
        self.half_published = self.publishing
        self.publishing = False
        return 0

    cdef int _reply(self, int64_t command_id, int64_t status) except -1 nogil:
        cdef Reply* grown
        if not self.keep_replies:
            if status >= APPLY_ACTIVE:
                with gil:
                    raise CommandError(f"command {command_id}: {STATUS_TEXTS[status]}")
            return 0
        if self.num_replies == self.reply_capacity:
            grown = <Reply*>realloc(self.replies, (self.reply_capacity * 2 + 8) * sizeof(Reply))
            if grown is NULL:
                with gil:
                    raise MemoryError("replies")
            self.replies = grown
            self.reply_capacity = self.reply_capacity * 2 + 8
        self.replies[self.num_replies].command_id = command_id
        self.replies[self.num_replies].status = status
        self.num_replies += 1
        return 0

    cdef int _refuse(self, int stimulus) except -1:
        raise DriverMisuse(f"{STIMULUS_NAMES[stimulus]} in phase {PHASE_NAMES[self.phase]}"
                           f"{' while publishing' if self.publishing else ''}")

    # -- what may come next -----------------------------------------------------------------------

    cdef uint64_t wants_mask(self) noexcept nogil:
        """Bits of the stimuli that may be given next; the order of priority is told by `wants`."""
        if self.publishing:
            return 1 << ST_PUBLISHED | 1 << ST_PUBLISH_CLOSED | 1 << ST_CANCEL
        if self.phase == PHASE_TURN:
            return 1 << ST_CANCEL | 1 << ST_GO
        if self.phase == PHASE_START_PASS or self.phase == PHASE_POST_DEFERRED:
            return 1 << ST_GO
        if self.phase == PHASE_IDLE:
            return (1 << ST_CANCEL | 1 << ST_CANCEL_ITEM | 1 << ST_CANCELS_CLOSED | 1 << ST_COMMAND_ITEM
                    | 1 << ST_COMMANDS_CLOSED | 1 << ST_INTERNAL_TIMER)
        if self.phase == PHASE_SNAPSHOT:
            # Whoever holds the start of a pass back has single commands applied before the lanes are sampled.
            return 1 << ST_LANE_COUNTS | 1 << ST_CANCEL_ITEM | 1 << ST_COMMAND_ITEM
        if self.phase == PHASE_POST_PASS:
            return 1 << ST_LANE_COUNTS
        if self.phase == PHASE_SNAPSHOT_CANCELS or self.phase == PHASE_POST_CANCELS:
            return 1 << ST_CANCEL_ITEM | 1 << ST_LANE_EMPTY
        if self.phase == PHASE_SNAPSHOT_COMMANDS or self.phase == PHASE_POST_COMMANDS:
            return 1 << ST_COMMAND_ITEM | 1 << ST_LANE_EMPTY
        if self.phase == PHASE_IN_PASS:
            # A lane that is not read is not found closed either.
            return (1 << ST_CANCEL | 1 << ST_PASS_TIMER | 1 << ST_INTERNAL_TIMER
                    | (0 if self.overdue_cancels >= MAX_OVERDUE_CANCELS else 1 << ST_CANCEL_ITEM | 1 << ST_CANCELS_CLOSED)
                    | (1 << ST_COMMAND_ITEM | 1 << ST_COMMANDS_CLOSED if self.accepting else 0))
        if self.phase == PHASE_AT_BOUNDARY:
            return 1 << ST_CANCEL | 1 << ST_BOUNDARY_APPLY | 1 << ST_BOUNDARY_FINISH | 1 << ST_BOUNDARY_DROPPED
        if self.phase == PHASE_YIELD:
            return 1 << ST_YIELDED
        return 0

    # -- the bulk move ----------------------------------------------------------------------------

    cdef int put(self, Envelope* envelope) except -1 nogil:
        """Place a command on the machine's own lane for it; the hash ids now belong to the lane."""
        return lane_push(&self.cancel_lane if envelope.kind == CMD_CANCEL else &self.command_lane, envelope)

    cdef int64_t queued_on(self, int32_t rank) noexcept nogil:
        """Submissions for a rank that wait on the lane or are deferred."""
        return lane_count(&self.deferred, rank) + lane_count(&self.command_lane, rank)

    cdef Envelope* find_waiting(self, int64_t command_id) noexcept nogil:
        """A submission not applied yet, on the lane or deferred; NULL when it was. Its ids must ascend there."""
        cdef Envelope* found = lane_find(&self.deferred, command_id)
        return lane_find(&self.command_lane, command_id) if found is NULL else found

    cdef double next_deadline(self) noexcept nogil:
        """Next time the machine moves by itself [ms]; INFINITY when only a command can move it."""
        if self.phase == PHASE_IN_PASS:
            return self.pass_end_ms
        if self.phase == PHASE_IDLE:
            return self.engine.next_internal_deadline()
        return INFINITY if self.phase == PHASE_STOPPED else self.engine_ms

    cdef int pump(self, double now_ms, bint take_timers, bint finish_boundary, bint start_passes) except -1 nogil:
        """Take stimuli in order of priority at reading `now_ms` until none is there.

        take_timers: pass ends due are taken; otherwise the pump stops at one. finish_boundary: boundaries are
        finished at once; otherwise the pump stops at one. start_passes: passes start; otherwise the pump stops before
        one, and commands are applied one by one. It also stops behind a pass of no length (`rests`) of its own.
        """
        cdef Envelope envelope
        cdef bint rested = self.rests
        while True:
            if self.publishing:
                self.step_c(ST_PUBLISHED, now_ms, NULL, 0, 0)
            elif self.phase == PHASE_TURN or self.phase == PHASE_START_PASS:
                if (self.phase == PHASE_TURN and self.rests and not rested
                        or self.engine.pass_id >= self.stops_behind and self.engine.may_start(now_ms)):
                    return 0
                self.step_c(ST_GO, now_ms, NULL, 0, 0)
                rested = False
            elif self.phase == PHASE_POST_DEFERRED:
                envelope = self.deferred.items[self.deferred.head]
                self.step_c(ST_GO, now_ms, NULL, 0, 0)
                push_cancel_behind(&self.cancel_lane, &envelope)
            elif self.phase == PHASE_YIELD:
                self.step_c(ST_YIELDED, now_ms, NULL, 0, 0)
            elif self.phase == PHASE_POST_PASS or (self.phase == PHASE_SNAPSHOT and finish_boundary and start_passes):
                self.step_c(ST_LANE_COUNTS, now_ms, NULL, self.cancel_lane.count, self.command_lane.count)
            elif self.phase == PHASE_SNAPSHOT and not finish_boundary:
                return 0                     # work that ended made it ready: what arrives at this instant comes first
            elif self.phase == PHASE_AT_BOUNDARY:
                if not finish_boundary:
                    return 0
                self.step_c(ST_BOUNDARY_FINISH, now_ms, NULL, 0, 0)
            elif self.phase == PHASE_STOPPED:
                return 0
            elif self.cancel_lane.count > 0 and self.wants_mask() >> ST_CANCEL_ITEM & 1:
                lane_pop(&self.cancel_lane, &envelope)
                self.step_c(ST_CANCEL_ITEM, now_ms, &envelope, 0, 0)
            elif self.phase == PHASE_IN_PASS and self.pass_end_ms <= now_ms:
                if not take_timers:
                    return 0
                self.step_c(ST_PASS_TIMER, now_ms, NULL, 0, 0)
            elif self.phase == PHASE_IN_PASS and self.engine.next_internal_deadline() <= now_ms:
                self.step_c(ST_INTERNAL_TIMER, now_ms, NULL, 0, 0)
            elif self.command_lane.count > 0 and self.wants_mask() >> ST_COMMAND_ITEM & 1:
                lane_pop(&self.command_lane, &envelope)
                self.step_c(ST_COMMAND_ITEM, now_ms, &envelope, 0, 0)
                if self.phase != PHASE_IN_PASS:  # where it is deferred
                    push_cancel_behind(&self.cancel_lane, &envelope)
            elif self.phase != PHASE_SNAPSHOT and self.engine.next_internal_deadline() <= now_ms:
                self.step_c(ST_INTERNAL_TIMER, now_ms, NULL, 0, 0)
            else:
                return 0

    cdef bint pass_quietly(self, double before_ms, double until_ms, Py_ssize_t max_records) except -1 nogil:
        """The transitions from one pass end to the next pass in flight, at the reading of that end, taken at once as long as
        nobody has anything to say in between (Engine.pass_quietly); False: nothing changed."""
        if (self.phase != PHASE_IN_PASS or self.publishing or self.cancelled or self.zero_duration
                or self.deferred.count > 0 or self.cancel_lane.count > 0 or self.command_lane.count > 0
                or self.engine.next_internal_deadline() < INFINITY):
            return False
        if not self.engine.pass_quietly(before_ms, until_ms, max_records, self.out):
            return False
        self._advance_clock(self.engine.pass_start_ms)
        self.pass_end_ms = self.carried_ms = self.engine.pass_end_ms
        self.accepting = True
        self.overdue_cancels = self.idle_passes = 0
        return True

    def advance(self, double now_ms, double until_ms):
        """Bulk move: take every transition due from `now_ms` to `until_ms` (INFINITY: all), boundaries finished at once.

        Returns:
            the reading of the last transitions [ms]; the machine waits for something later than `until_ms`.

        Raises:
            EngineError, LivelockError, CommandError: as the engine or a refused command; the machine has stopped.
        """
        cdef double at
        try:
            with nogil:
                while True:
                    self.pump(now_ms, True, True, True)
                    at = self.next_deadline()
                    if at > until_ms or at == INFINITY:
                        break
                    now_ms = max(now_ms, at)
        except Exception as exc:
            self._fail(exc)
            raise
        return now_ms

    # -- the step of a shell of its own -----------------------------------------------------------

    def _fail(self, exc):
        if self.failure is None:
            self.failure = f"{type(exc).__name__}: {exc}"
        self._stop()

    def enqueue(self, command):
        """Place a Command on the machine's own lane for it (bulk move only)."""
        cdef Envelope envelope
        pack_command(command, &envelope)
        self.put(&envelope)

    def step(self, str stimulus, double reading_ms, *, command=None, int64_t num_cancels=0, int64_t num_commands=0):
        """One transition.

        Args:
            stimulus: one of STIMULUS_NAMES, and one of the `wants` of the step before.
            reading_ms: clock reading [ms since the driver was made], finite and not negative.
            command: the Command of an item or of a boundary apply. num_cancels, num_commands: the sampled lane lengths.

        Returns:
            Step: what to publish, answer and wait for. A failure of the engine stops the machine and is told there.

        Raises:
            DriverMisuse: the stimulus is not wanted now. ValueError: a reading that is no time.
        """
        cdef Envelope envelope
        cdef Py_ssize_t before = self.out.count
        cdef bint was_boundary = self.phase == PHASE_AT_BOUNDARY
        cdef bint unanswered = False
        cdef int code
        if not isfinite(reading_ms) or reading_ms < 0.0:
            raise ValueError(f"clock reading must be finite and not negative, got {reading_ms}")
        if num_cancels < 0 or num_commands < 0:
            raise ValueError(f"lane lengths must not be negative, got {num_cancels} and {num_commands}")
        code = _stimulus_codes.get(stimulus, -1)
        if code < 0:
            raise DriverMisuse(f"unknown stimulus {stimulus!r}")
        _check_command(code, command)
        envelope.hash_ids = NULL
        if command is not None:
            pack_command(command, &envelope)
        self.keep_replies = True
        try:
            self.step_c(code, reading_ms, &envelope, num_cancels, num_commands)
        except DriverMisuse:
            free(envelope.hash_ids)
            raise
        except Exception as exc:
            free(envelope.hash_ids)
            unanswered = command is not None
            self._fail(exc)
        return self._answer(before, was_boundary, stimulus, command.command_id if unanswered else None)

    def _answer(self, Py_ssize_t before, bint was_boundary, str stimulus, unanswered):
        """`unanswered`: id of the command whose step failed."""
        cdef Envelope envelope
        cdef int64_t i
        replies = []
        boundary_reply = None
        if not self.publishing:
            for i in range(self.num_replies):
                status = self.replies[i].status
                if self.half_published:
                    replies.append((<uint64_t>self.replies[i].command_id, False, "stopped while publishing"))
                else:
                    replies.append((<uint64_t>self.replies[i].command_id, status < APPLY_ACTIVE, STATUS_TEXTS[status]))
            self.num_replies = 0
        if was_boundary and stimulus == "boundary_apply":
            boundary_reply = replies.pop() if unanswered is None else (unanswered, False, "stopped while applying")
        elif was_boundary and stimulus == "boundary_finish":
            boundary_reply = "finished"
        elif unanswered is not None:
            replies.append((unanswered, False, "stopped before acknowledging"))
        while self.phase == PHASE_STOPPED and lane_pop(&self.deferred, &envelope):
            free(envelope.hash_ids)
            replies.append((<uint64_t>envelope.command_id, False, "stopped before acknowledging"))
        internal_ms = self.engine.next_internal_deadline()
        # As Step(...), without the Python function that is in it; in the order of its fields.
        return tuple.__new__(Step, (
            self.out.count - before, tuple(replies), boundary_reply, self.wants(),
            self.pass_end_ms if self.phase == PHASE_IN_PASS else None, None if internal_ms == INFINITY else internal_ms,
            self.phase == PHASE_STOPPED, self.failure if self.phase == PHASE_STOPPED else None,
        ))

    def wants(self):
        """Names of the stimuli that may come next; the first one that is there must be taken."""
        return wanted_names(self.wants_mask())

    @property
    def phase_name(self):
        """Name of the phase."""
        return PHASE_NAMES[self.phase]


cdef dict _stimulus_codes = {name: code for code, name in enumerate(STIMULUS_NAMES)}


cdef int _check_command(int stimulus, object command) except -1:
    """A lane holds one kind of command, and only three stimuli carry one."""
    if (command is not None) != (stimulus in (ST_CANCEL_ITEM, ST_COMMAND_ITEM, ST_BOUNDARY_APPLY)):
        raise DriverMisuse(f"{STIMULUS_NAMES[stimulus]} {'needs a command' if command is None else 'takes no command'}")
    if stimulus in (ST_CANCEL_ITEM, ST_COMMAND_ITEM) and (command.kind == "cancel") != (stimulus == ST_CANCEL_ITEM):
        raise DriverMisuse(f"{STIMULUS_NAMES[stimulus]} does not carry a {command.kind}")
    return 0
