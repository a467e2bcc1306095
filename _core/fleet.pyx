"""All machines of a replay under one virtual clock.

Decides the order of one instant T, and nothing else: (1) passes that end at T end, their boundaries held; (2) the
workload is told who ended and may hand over what becomes due; (3) everything due is placed, in the workload's total
order, and put on the lanes, and behind it the cancellations of clients that leave at T; (4) boundaries are finished in
worker order and each machine runs until it wants a later time, passes of no length included; (5) a telemetry sample is
taken; again from (2) if that ended requests that make something due. Then time jumps.

With `external` the order is the same and the moves are the caller's: its shells step the machines, one at a time,
when told to; or they run freely on a clock of their own and ask the fleet for what is due.

With handoffs the order is another one: docs/handoff.md, section 4.
The engines are reached through their driver machines alone. Source: replay through the driver, section 3; that passes
of no length end inside their worker's turn, and that a sample belongs to the first round, was seen on the reference.
"""
cimport cython
from libc.math cimport INFINITY, NAN, isfinite
from libc.stdlib cimport free, malloc

from .arrivals cimport Arrival
from .cancellations cimport Leaving
from .disaggregation cimport Disaggregation
from .driver cimport PHASE_IDLE, PHASE_IN_PASS, Machine
from .event_buffer cimport CMD_SUBMIT, EV_CUT, EV_QUIET_PASS, EV_QUIET_RUN, Event, EventBuffer
from .intake cimport Intake
from .lanes cimport Envelope, command_kind, lane_pop, make_cancel, pack_command, unpack_command
from .onlookers cimport Onlookers
from .standstill cimport effects_of, move_all, next_to_run, nothing_moves

from .arrivals import Handed

STATUS_NAMES = ("done", "needs_rows", "until", "ends", "sample", "full", "place", "move", "cancel", "settle")


cdef inline double _deadline(Machine machine) noexcept nogil:
    return machine.next_deadline()


cdef inline bint _wants_run(Machine machine) noexcept nogil:
    """Whether a machine has anything to do besides waiting for a later time."""
    if machine.phase == PHASE_IN_PASS:
        return machine.accepting and machine.command_lane.count > 0 or machine.cancel_lane.count > 0
    return machine.phase != PHASE_IDLE or machine.command_lane.count > 0 or machine.cancel_lane.count > 0


cdef inline bint _ends_now(Machine machine, double now_ms, bint passes_only) noexcept nogil:
    """Whether a pass of a machine ends, or, unless only those count, a copy to or from host memory does."""
    return machine.next_deadline() <= now_ms and (not passes_only or machine.phase == PHASE_IN_PASS)


cdef inline Envelope* _find_waiting(Machine machine, int64_t command_id) noexcept nogil:
    return machine.find_waiting(command_id)


cdef inline int64_t _queued_on(Machine machine, int32_t rank) noexcept nogil:
    return machine.queued_on(rank)


cdef inline int _publish_gauges(Machine machine, int32_t rank, EventBuffer out, double now_ms, int64_t queued) except -1 nogil:
    return machine.engine.publish_gauges(rank, out, now_ms, queued, True)


cdef inline int _publish_cuts(Machine machine, EventBuffer out, double now_ms) except -1 nogil:
    cdef Envelope envelope
    machine.engine.publish_cuts(out, now_ms)
    while lane_pop(&machine.deferred, &envelope) or lane_pop(&machine.command_lane, &envelope):
        free(envelope.hash_ids)
        out.emplace(EV_CUT, now_ms, machine.engine.worker, envelope.rank, envelope.request)
    return 0


@cython.final
cdef class Fleet(Intake):
    """Machines of one replay, workers in id order; all publish into one EventBuffer.

    Args:
        machines: one Machine a worker, all made with `out`.
        out: the ordered events of the run; the caller reads it and calls `clear_events` between calls of `advance`.
        telemetry: also record a gauge snapshot of the rank at every arrival.
        external_placement: `advance` returns "place" for every row that is due; the caller answers with `place_next`.
            Without it rows go round robin.
        wake_on_end: `advance` returns "ends" whenever requests ended, before rows of that instant are handed over.
        external: the caller's shells move the machines and own their lanes. `advance` returns "move" for the worker
            `moving_worker`, which is to run at reading `now_ms` until it has to wait (`hold_boundary`: at a pass boundary
            and behind internal work, too; `hold_start`: before a pass starts, too; without `moves_anyway` an idle machine
            moves only for commands); "place" for every row that is due, taken with `take_next`; "cancel" for every client
            that leaves, taken with `take_cancel`; "settle" when handoffs go on, see `take_command`. Shells that run freely
            call `note_now` in place of `advance`.
        directed: of an external one, its shells move only when told to, now or in the run that is done again.
        quiet: nobody reads the records of passes or gauges. Passes in which nothing but steady decode happens then leave
            one QUIET_PASS record each, or are entries of a QUIET_RUN, which say what a collector has to know. Not with handoffs, which may be due
            in between.
        handoffs: the first workers prefill, the others decode, and this brings requests from one to the other.
    """

    def __cinit__(self, machines, EventBuffer out not None, *, bint telemetry=False, bint wake_on_end=False,
                  bint external_placement=False, bint external=False, bint directed=False, bint quiet=False, Disaggregation handoffs=None):
        cdef Py_ssize_t i
        self.machines = tuple(machines)
        if not self.machines:
            raise ValueError("num_workers must be positive")
        self.out = out
        self.telemetry, self.wake_on_end = telemetry, wake_on_end
        self.external_placement, self.external, self.directed = external_placement, external, directed
        self.handoffs, self.disaggregated = handoffs, handoffs is not None
        self.quiet = quiet and not telemetry and not external and not self.disaggregated
        self.moving_worker, self.first_round = -1, True
        self.sample_ms = INFINITY
        self.workers = <PyObject**>malloc(len(self.machines) * sizeof(PyObject*))
        if self.workers is NULL:
            raise MemoryError("fleet")
        for i in range(len(self.machines)):
            if not isinstance(self.machines[i], Machine):
                raise TypeError(f"worker {i} is no Machine")
            self.workers[i] = <PyObject*>self.machines[i]
            self.shares_memory = self.shares_memory or (<Machine>self.machines[i]).engine.shares_tier
            self.any_rests = self.any_rests or (<Machine>self.machines[i]).engine.rests_between
        self.onlookers = Onlookers(self.machines, look_around=self.disaggregated and (directed or not external))
        self.open_turns(<int32_t>len(self.machines), self.machines[0].engine.dp_size)
        if self.disaggregated:
            self.handoffs.take_machines(self.machines, self.out, external, external_placement)

    def __dealloc__(self):
        free(self.workers)

    def set_sample(self, double sample_ms):
        """Time of the next telemetry sample; INFINITY: none."""
        self.sample_ms = sample_ms

    # -- time -------------------------------------------------------------------------------------

    def advance(self, double until_ms=INFINITY, Py_ssize_t max_records=65536):
        """Process instants up to and including `until_ms`.

        Returns:
            one of STATUS_NAMES: why it stopped; call again after serving it.

        Raises:
            EngineError, LivelockError, CommandError: the run cannot go on.
        """
        cdef int status
        with nogil:
            status = self.run(until_ms, max_records)
        return STATUS_NAMES[status]

    def place_next(self, int32_t worker, int32_t rank, bytes reason=None):
        """Answer to "place".

        Args:
            worker, rank: where the row goes; both -1: round robin.
            reason: the choice is a policy's, and recorded with this reason where round robin would have chosen otherwise.

        Raises:
            ValueError: no such worker or rank, or nothing is due.
        """
        self._check_row_due()
        if self.external:
            raise ValueError("an external fleet hands rows over by take_next")
        self._settle(&worker, &rank)
        cdef Arrival arrival = self.arrivals.first()[0]
        self.place(worker, rank)
        if reason is not None:
            self._tell_placement(arrival.due_ms, arrival.request, worker, rank, reason)

    def clear_events(self):
        """The caller has read the events: forget them."""
        self.find_ends()
        if self.disaggregated:
            self.handoffs.scan()
            self.handoffs.scanned = 0
        self.scanned = 0
        self.out.reset()

    def publish_cuts(self, int32_t worker=-1):
        """Append one CUT record for each request of a worker that arrived and has not ended (-1: of all workers); the
        run is over. Those on lanes of the caller's are its own to tell, by `publish_cut`."""
        cdef int32_t i
        if not -1 <= worker < self.num_workers:
            raise ValueError(f"no worker {worker}")
        if self.disaggregated:
            self.handoffs.note_ends()
        with nogil:
            for i in range(self.num_workers):
                if worker == -1 or worker == i:
                    _publish_cuts(<Machine>self.workers[i], self.out, self.last_event_ms)
        if self.disaggregated:
            self.handoffs.keep_one_cut_each(self.last_event_ms)

    # -- moves of the caller's own ----------------------------------------------------------------

    def take_next(self, int32_t worker=-1, int32_t rank=-1, double at_ms=NAN, int64_t queued=0, bytes reason=None):
        """Answer to "place" of an external fleet: the row that is due arrives, and is the caller's.

        Args:
            worker, rank: where the caller places it; both -1: round robin, as always with handoffs.
            at_ms: when it arrives [ms]; NaN: at the time it was due. Its client's patience counts from there.
            queued: with `telemetry`, submissions of that rank that wait on the caller's lane, this one not counted.
            reason: as in `place_next`.

        Raises:
            ValueError: no such worker or rank, no time, nothing is due, or the fleet moves its machines itself.
        """
        cdef Arrival arrival
        cdef int64_t i
        self._check_external()
        self._check_row_due()
        if at_ms == at_ms and not 0.0 <= at_ms < INFINITY:
            raise ValueError(f"a row cannot arrive at {at_ms} ms")
        if self.disaggregated:
            self.handoffs.first_rank(self.arrivals.first(), self.now_ms, &worker, &rank)
        else:
            self._settle(&worker, &rank)
        self.arrivals.pop(&arrival)
        at_ms = arrival.due_ms if at_ms != at_ms else at_ms
        self.arrive(&arrival, at_ms, worker, rank, -1)
        try:
            hash_ids = tuple([arrival.hash_ids[i] for i in range(arrival.num_hash_ids)])
            if self.disaggregated:
                self.handoffs.start(&arrival, at_ms, worker, rank)
                arrival.hash_ids = NULL
        finally:
            free(arrival.hash_ids)
        if reason is not None:
            self._tell_placement(at_ms, arrival.request, worker, rank, reason)
        if self.telemetry:
            _publish_gauges(<Machine>self.workers[worker], rank, self.out, self.now_ms,
                            _queued_on(<Machine>self.workers[worker], rank) + queued + 1)
        return Handed(arrival.request, worker, rank, arrival.n_in, arrival.n_out, hash_ids, arrival.due_ms,
                      at_ms + arrival.cancel_after_ms, arrival.priority, at_ms, at_ms + arrival.deadline_after_ms)

    def take_cancel(self):
        """Answer to "cancel" of an external fleet: (request, worker, rank) of the client that leaves now.

        Raises:
            ValueError: nobody leaves now, or the fleet moves its machines itself.
        """
        cdef Leaving gone
        self._check_external()
        self.find_ends()
        if self.leaving.next_due() > self.now_ms:
            raise ValueError("no cancellation is due")
        self.leaving.pop(&gone)
        if self.disaggregated:
            self.handoffs.leave(self.workers, gone.request, self.now_ms)
        return gone.request, gone.worker, gone.rank

    def take_command(self):
        """Answer to "settle" of an external fleet with handoffs; shells that run freely ask whenever anything happened.

        Returns:
            (worker, Command): what the caller gives to the shell of that worker before it asks again; under a clock that
            is told, it moves that shell so far that no pass starts. None: nothing is to be given now.

        Raises:
            ValueError: no such fleet.
        """
        cdef Envelope envelope
        cdef bint happened
        self._check_handoffs()
        self.onlookers.let_go()
        if self.handoffs.next_command(self.workers, self.now_ms, &envelope):
            if self.directed:
                self.onlookers.hold(envelope.worker)
            return envelope.worker, unpack_command(&envelope)
        happened, self.handoffs.happened = self.handoffs.happened, False
        if self.stage == STAGE_SETTLE:
            self.settled(happened)
        elif happened:
            self._note_event()
        return None

    def refuse_command(self, int32_t request, str kind):
        """The machine refused a command of `take_command`."""
        self._check_handoffs()
        self.handoffs.refused(request, command_kind(kind), self.now_ms)

    def begin_handoff(self, int32_t worker, command):
        """A request arrives that this fleet was never handed: a Command with its place, lengths, hash ids and times."""
        cdef Envelope envelope
        cdef Arrival arrival
        self._check_handoffs()
        pack_command(command, &envelope)
        arrival.request, arrival.n_in, arrival.n_out = envelope.request, envelope.n_in, envelope.n_out
        arrival.hash_ids, arrival.num_hash_ids = envelope.hash_ids, envelope.num_hash_ids
        arrival.priority = envelope.terms.priority
        arrival.deadline_after_ms = envelope.terms.deadline_ms - envelope.terms.arrival_ms
        self.handoffs.start(&arrival, envelope.terms.arrival_ms, worker, envelope.rank)

    def leave(self, int32_t request):
        """The client of a request leaves now, who is not known to leave here."""
        self._check_handoffs()
        self.handoffs.leave(self.workers, request, self.now_ms)

    def _check_handoffs(self):
        if not self.external or not self.disaggregated:
            raise ValueError("the fleet gives its commands itself, or has no handoffs")

    def note_now(self, double ms):
        """Something happens at `ms` on the clock of shells that run freely; time never goes back.

        Raises:
            ValueError: no time.
        """
        if not isfinite(ms) or ms < 0.0:
            raise ValueError(f"time must be finite and not negative, got {ms}")
        self.now_ms = max(self.now_ms, ms)
        self._note_event()

    def publish_cut(self, int32_t request, int32_t worker, int32_t rank):
        """Append the CUT record of a request that waits on a lane of the caller's; the run is over."""
        self.out.emplace(EV_CUT, self.last_event_ms, worker, rank, request)

    def _check_external(self):
        if not self.external:
            raise ValueError("the fleet moves its machines itself")

    @property
    def next_instant_ms(self):
        """When anything but a sample happens next [ms]; inf when nothing does."""
        self.find_ends()
        return self.next_instant()

    @property
    def idle(self):
        """No row is left and no machine moves by itself."""
        return self.next_instant() == INFINITY

    cdef int run(self, double until_ms, Py_ssize_t max_records) except -1 nogil:
        cdef int status
        while True:
            if self.stage == STAGE_PICK:
                status = self.pick(until_ms, max_records)
                if status != FLEET_GOES_ON:
                    return status
            if self.stage == STAGE_ENDS:
                if not self.external:
                    self.end_passes()
                elif self.wants_move(True):
                    return FLEET_MOVE
                self.stage = STAGE_SETTLE if self.disaggregated else STAGE_ARRIVALS
                if not self.disaggregated and self.tell_ends():
                    return FLEET_ENDS
            if self.stage == STAGE_SETTLE:
                if self.external:
                    return FLEET_SETTLE
                self.settled(self.handoffs.settle(self.workers, self.now_ms))
                continue
            if self.stage == STAGE_TELL:
                self.stage = STAGE_RUN
                if self.tell_ends():
                    return FLEET_ENDS
            if self.stage == STAGE_ARRIVALS:
                self.looked_last = False
                status = self.hand_over()
                if status != 0:
                    return status
                if self.disaggregated:
                    continue
            if self.stage == STAGE_RUN:
                if not self.external:
                    self.run_machines()
                elif self.wants_move(False):
                    return FLEET_MOVE
                self.find_ends()
                self.stage, self.ran = STAGE_AGAIN, True
                # The sample of time 0 is the baseline: it comes when that instant is over.
                if self.first_round and 0.0 < self.sample_ms <= self.now_ms and not self.disaggregated:
                    self._account()
                    return FLEET_SAMPLE
            if self.stage == STAGE_AGAIN:
                self.first_round = False
                if not self.disaggregated and self.tell_ends():
                    return FLEET_ENDS
                self.stage = STAGE_ARRIVALS
                if self.disaggregated or self.arrivals.next_due() <= self.now_ms:
                    continue
                if self.shares_memory and not self.looked_last:
                    self.stage, self.looked_last = STAGE_RUN, True
                    continue
            self.first_round, self.stage = True, STAGE_PICK
            if self.sample_ms <= self.now_ms:
                return FLEET_SAMPLE

    cdef int pick(self, double until_ms, Py_ssize_t max_records) except -1 nogil:
        """Go to the next instant, if there is one and nothing stands against it."""
        cdef double at
        if self.quiet:
            self.pass_quietly(until_ms, max_records)
        if self.out.count + (self.out.num_words if self.quiet else 0) >= max_records:
            return FLEET_FULL
        at = self.next_instant()
        if (at == INFINITY and self.horizon_ms == INFINITY and self.shares_memory
                and nothing_moves(self.workers, self.num_workers, self.now_ms)):
            at = self.next_instant()
        if at == INFINITY:
            return FLEET_DONE if self.horizon_ms == INFINITY else FLEET_NEEDS_ROWS
        if at >= self.horizon_ms:
            return FLEET_NEEDS_ROWS
        if at > until_ms:
            return FLEET_UNTIL
        self.only_sample = at > self.sample_ms
        if not self.only_sample:
            self.onlookers.tell(max(self.now_ms, at))
        self.now_ms, self.stage = max(self.now_ms, min(at, self.sample_ms)), STAGE_ENDS
        return FLEET_GOES_ON

    cdef int settled(self, bint happened) except -1 nogil:
        """Handoffs have gone on as far as they can: the next stage."""
        if happened:
            self._note_event()
        if self.handoffs.heard and self.ran:     # ranks that stand still look again in the round that follows, too
            self.onlookers.tell_once_more(self.now_ms)
        self.handoffs.heard = False
        if not self.ran:
            self.stage = STAGE_TELL      # rows that are due come in after passes start: so they do on the reference
            return 0
        self.ran = False     # the round is over: once more from the start while anything is left to do at this instant
        self.stage = STAGE_ENDS if self.next_deadline() <= self.now_ms or self.tell_ends() else STAGE_OVER
        return 0

    cdef double next_deadline(self) noexcept nogil:
        """When a machine next has anything to do by itself [ms]; INFINITY when none has."""
        cdef double at = INFINITY
        cdef int32_t i
        for i in range(self.num_workers):
            at = min(at, _deadline(<Machine>self.workers[i]))
        return at

    cdef int pass_quietly(self, double until_ms, Py_ssize_t max_records) except -1 nogil:
        """Take instants at which one machine's pass ends and the next starts, and nothing else is due to happen."""
        cdef double before_ms = min(min(self.arrivals.next_due(), self.leaving.next_due()),
                                    min(self.sample_ms, self.horizon_ms))
        cdef double first_ms, second_ms, at
        cdef Py_ssize_t told
        cdef Event* event
        cdef int32_t i
        cdef int32_t worker = 0
        while self.out.count + self.out.num_words < max_records:
            first_ms = second_ms = INFINITY
            for i in range(self.num_workers):
                at = _deadline(<Machine>self.workers[i])
                if at < first_ms:
                    first_ms, second_ms, worker = at, first_ms, i
                elif at < second_ms:
                    second_ms = at
            if not first_ms < min(before_ms, second_ms) or first_ms > until_ms:
                break
            told = self.out.count
            if not (<Machine>self.workers[worker]).pass_quietly(min(before_ms, second_ms), until_ms, max_records):
                break
            for told in range(told, self.out.count):
                event = &self.out.records[told]
                if event.kind == EV_QUIET_PASS:
                    self.now_ms = max(self.now_ms, event.t_ms)
                    self._note_event()
                elif event.kind == EV_QUIET_RUN:
                    for i in range(<int32_t>event.d):
                        self.now_ms = max(self.now_ms, (<double*>self.out.words)[event.c + i])
                        self._note_event()
        return 0

    cdef double next_instant(self) noexcept nogil:
        """Next time at which anything but a sample happens [ms]; INFINITY when nothing does."""
        cdef double at = min(self.arrivals.next_due(), self.leaving.next_due())
        if self.disaggregated:
            at = min(at, self.handoffs.transfers.next_due())
        return min(at, self.next_deadline())

    cdef int _note_event(self) noexcept nogil:
        """Something happens now."""
        self.last_event_ms = max(self.last_event_ms, self.now_ms)
        return self._account()

    cdef int _account(self) noexcept nogil:
        """Integrate the workers up to now, step by step as the reference does: a sample is a step, too."""
        if self.now_ms > self.accounted_ms:
            if self.disaggregated:
                self.prefill_worker_seconds += (
                    (self.now_ms - self.accounted_ms) * self.handoffs.num_prefill_workers / 1000.0)
                self.worker_seconds += (self.now_ms - self.accounted_ms) * self.handoffs.num_decode_workers / 1000.0
            else:
                self.worker_seconds += (self.now_ms - self.accounted_ms) * self.num_workers / 1000.0
            self.accounted_ms = self.now_ms
        return 0

    cdef int end_passes(self) except -1 nogil:
        cdef int32_t i
        for i in range(self.num_workers):
            if _ends_now(<Machine>self.workers[i], self.now_ms, self.disaggregated):
                self._note_event()
                (<Machine>self.workers[i]).pump(self.now_ms, True, False, not self.disaggregated)
        return 0

    cdef int hand_over(self) except -1 nogil:
        """Everything that is due goes on its lane: rows, then cancellations; the next stage. 0, or why the caller has to go on."""
        cdef int32_t worker, rank
        cdef Leaving gone
        while self.arrivals.next_due() <= self.now_ms:
            self._note_event()
            if self.external or self.external_placement:
                return FLEET_PLACE
            if self.disaggregated:
                self.handoffs.first_rank(self.arrivals.first(), self.now_ms, &worker, &rank)
            else:
                self.choose(&worker, &rank)
                self.count_turn(worker, rank)
            self.place(worker, rank)
        while self.leaving.next_due() <= self.now_ms:
            self._note_event()
            if self.external:
                return FLEET_CANCEL
            self.leaving.pop(&gone)
            if self.disaggregated:
                self.handoffs.leave(self.workers, gone.request, self.now_ms)
            else:
                self.cancel(&gone)
        self.stage = STAGE_SETTLE if self.disaggregated else STAGE_RUN
        # Rows of this instant are counted in its sample, and it sees nothing of what they do yet.
        if self.disaggregated and 0.0 < self.sample_ms <= self.now_ms:
            self._account()
            return FLEET_SAMPLE
        return 0

    cdef int cancel(self, Leaving* leaving) except -1 nogil:
        """A client leaves. Its cancellation waits for admission: it follows a submission that was not applied yet."""
        cdef Envelope envelope
        cdef Envelope* submitted = _find_waiting(<Machine>self.workers[leaving.worker], leaving.command_id)
        envelope.command_id = self.next_command
        self.next_command += 1
        if submitted is not NULL:
            submitted.cancel_id = envelope.command_id
            return 0
        make_cancel(&envelope, leaving.rank, leaving.request)
        return (<Machine>self.workers[leaving.worker]).put(&envelope)

    cdef int place(self, int32_t worker, int32_t rank) except -1 nogil:
        """The next arrival goes on the lane of a worker."""
        cdef Arrival arrival
        cdef Envelope envelope
        self.arrivals.pop(&arrival)
        if self.disaggregated:
            self.arrive(&arrival, arrival.due_ms, worker, rank, -1)
            return self.handoffs.start(&arrival, arrival.due_ms, worker, rank)
        envelope.command_id, envelope.cancel_id = self.next_command, -1
        self.next_command += 1
        self.arrive(&arrival, arrival.due_ms, worker, rank, envelope.command_id)
        envelope.kind, envelope.rank, envelope.request, envelope.discard = CMD_SUBMIT, rank, arrival.request, 0
        envelope.n_in, envelope.n_out = arrival.n_in, arrival.n_out
        envelope.hash_ids, envelope.num_hash_ids = arrival.hash_ids, arrival.num_hash_ids
        envelope.terms.priority, envelope.terms.arrival_ms = arrival.priority, arrival.due_ms
        envelope.terms.deadline_ms = arrival.due_ms + arrival.deadline_after_ms
        (<Machine>self.workers[worker]).put(&envelope)
        if self.telemetry:
            _publish_gauges(<Machine>self.workers[worker], rank, self.out, self.now_ms,
                            _queued_on(<Machine>self.workers[worker], rank))
        return 0

    cdef bint wants_move(self, bint hold_boundary) noexcept nogil:
        """Whether the caller has to move another worker in this stage; `moving_worker` is set to it."""
        cdef int32_t worker
        self.hold_boundary, self.hold_start = hold_boundary, hold_boundary and self.disaggregated
        if not hold_boundary and self.moving_worker >= 0:
            self.next_to_move = self._next_to_run(self.moving_worker)
        while self.next_to_move < self.num_workers:
            worker, self.next_to_move = self.next_to_move, self.next_to_move + 1
            if not hold_boundary or _ends_now(<Machine>self.workers[worker], self.now_ms, self.disaggregated):
                self.moves_anyway = hold_boundary or self._copy_ends(worker)
                if self.moves_anyway:
                    self._note_event()
                self.moving_worker, self.effects_before = worker, effects_of(<Machine>self.workers[worker])
                return True
        self.next_to_move, self.moving_worker = 0, -1
        return False

    cdef bint _copy_ends(self, int32_t worker) noexcept nogil:
        """With handoffs: a worker has nothing to do but to see the end of a copy, or to look again."""
        return (self.disaggregated and not _wants_run(<Machine>self.workers[worker])
                and _ends_now(<Machine>self.workers[worker], self.now_ms, False))

    cdef int run_machines(self) except -1 nogil:
        cdef int32_t i = 0
        if self.shares_memory:               # a sample is nothing that happens
            for i in range(self.num_workers if self.disaggregated else 0):
                if self._copy_ends(i):
                    self._note_event()
            return self.only_sample or move_all(self.workers, self.num_workers, self.now_ms, self.disaggregated)
        while i < self.num_workers:
            self.effects_before = effects_of(<Machine>self.workers[i])
            if self._copy_ends(i):
                self._note_event()
            elif not _wants_run(<Machine>self.workers[i]):
                i += 1
                continue
            (<Machine>self.workers[i]).pump(self.now_ms, True, True, True)
            i = self._next_to_run(i)
        return 0

    cdef int32_t _next_to_run(self, int32_t worker) noexcept nogil:
        """Who runs next after a worker did."""
        return next_to_run(self.workers, worker, self.effects_before) if self.any_rests else worker + 1
