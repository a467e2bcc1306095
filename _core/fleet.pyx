"""All machines of a replay under one virtual clock.

Decides the order of one instant T, and nothing else: (1) passes that end at T end, their boundaries held; (2) the
workload is told who ended and may hand over what becomes due; (3) everything due is placed, in the workload's total
order, and put on the lanes, and behind it the cancellations of clients that leave at T; (4) boundaries are finished in
worker order and each machine runs until it wants a later time, passes of no length included; (5) a telemetry sample is
taken; again from (2) if that ended requests that make something due. Then time jumps.

With `external` the order is the same and the moves are the caller's: its shells step the machines, one at a time,
when told to; or they run freely on a clock of their own and ask the fleet for what is due.

The engines are reached through their driver machines alone. Source: replay through the driver, section 3; that passes
of no length end inside their worker's turn, and that a sample belongs to the first round, was seen on the reference.
"""
cimport cython
from libc.math cimport INFINITY, NAN, isfinite
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from .driver cimport PHASE_IDLE, PHASE_IN_PASS, Machine
from .event_buffer cimport CMD_CANCEL, CMD_SUBMIT, EV_ARRIVAL, EV_CUT, EV_TERMINAL, Event
from .lanes cimport Envelope, lane_pop
from .policy cimport DECIDE_PLACEMENT, record_decision

from typing import NamedTuple

STATUS_NAMES = ("done", "needs_rows", "until", "ends", "sample", "full", "place", "move", "cancel")


class Handed(NamedTuple):
    """A row handed to the caller's own lanes. `cancel_due_ms`: when its client leaves, inf if it stays; `arrival_ms`: when
    it arrived; `deadline_ms`: when its answer is wanted, inf if nobody said."""

    request: int             # trace row ordinal
    worker: int
    rank: int
    input_tokens: int
    output_tokens: int
    hash_ids: tuple
    due_ms: float
    cancel_due_ms: float
    priority: int
    arrival_ms: float
    deadline_ms: float


cdef inline double _deadline(Machine machine) noexcept nogil:
    return machine.next_deadline()


cdef inline bint _wants_run(Machine machine) noexcept nogil:
    """Whether a machine has anything to do besides waiting for a later time."""
    if machine.phase == PHASE_IN_PASS:
        return machine.accepting and machine.command_lane.count > 0 or machine.cancel_lane.count > 0
    return machine.phase != PHASE_IDLE or machine.command_lane.count > 0 or machine.cancel_lane.count > 0


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
cdef class Fleet:
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
            and behind internal work, too); "place" for every row that is due, taken with `take_next`; "cancel" for every
            client that leaves, taken with `take_cancel`. Shells that run freely call `note_now` in place of `advance`.
    """

    def __cinit__(self, machines, EventBuffer out not None, *, bint telemetry=False, bint wake_on_end=False,
                  bint external_placement=False, bint external=False):
        cdef Py_ssize_t i
        self.machines = tuple(machines)
        self.num_workers = <int32_t>len(self.machines)
        if self.num_workers == 0:
            raise ValueError("num_workers must be positive")
        self.out = out
        self.telemetry, self.wake_on_end = telemetry, wake_on_end
        self.external_placement, self.external = external_placement, external
        self.arrivals = Arrivals()
        self.leaving = Cancellations()
        self.moving_worker = -1
        self.horizon_ms = 0.0
        self.first_round = True
        self.sample_ms = INFINITY
        self.workers = <PyObject**>malloc(self.num_workers * sizeof(PyObject*))
        self.next_rank = <int64_t*>calloc(self.num_workers, sizeof(int64_t))
        if self.workers is NULL or self.next_rank is NULL:
            raise MemoryError("fleet")
        for i in range(self.num_workers):
            if not isinstance(self.machines[i], Machine):
                raise TypeError(f"worker {i} is no Machine")
            self.workers[i] = <PyObject*>self.machines[i]
        self.dp_size = self.machines[0].engine.dp_size

    def __dealloc__(self):
        free(self.workers)
        free(self.next_rank)
        free(self.ended)

    # -- rows -------------------------------------------------------------------------------------

    def push_rows(self, double[::1] due_ms, int32_t[::1] request, int64_t[::1] order, int64_t[::1] turn,
                  int64_t[::1] session, int64_t[::1] input_tokens, int64_t[::1] output_tokens,
                  int64_t[::1] hash_offsets, uint64_t[::1] hash_ids, double[::1] cancel_after_ms=None,
                  int64_t[::1] priority=None, double[::1] deadline_after_ms=None):
        """Hand rows over, in any order; each enters at its time.

        Args:
            due_ms: (n,) arrival times on the run's clock [ms], none before `now_ms`.
            request: (n,) trace row ordinals. order, turn: (n,) total order at one instant.
            session: (n,) session ordinals to report, -1 = none. input_tokens, output_tokens: (n,) lengths.
            hash_offsets: (n + 1,) row i owns hash_ids[hash_offsets[i]:hash_offsets[i + 1]].
            cancel_after_ms: (n,) patience of each client from its arrival on [ms], INFINITY = it stays; None: all stay.
            priority: (n,) for the policy, lower goes first; None: all 0.
            deadline_after_ms: (n,) when the answer is wanted, from the arrival on [ms], INFINITY = nobody said; None: all.

        Raises:
            ValueError: columns that do not fit each other, or a time that is none; nothing was handed over.
        """
        cdef Py_ssize_t i
        cdef Py_ssize_t n = due_ms.shape[0]
        cdef Arrival arrival
        if not (n == request.shape[0] == order.shape[0] == turn.shape[0] == session.shape[0] == input_tokens.shape[0]
                == output_tokens.shape[0] == hash_offsets.shape[0] - 1 and 0 <= hash_offsets[0]
                and hash_offsets[n] <= hash_ids.shape[0]
                and (cancel_after_ms is None or n == cancel_after_ms.shape[0])
                and (priority is None or n == priority.shape[0])
                and (deadline_after_ms is None or n == deadline_after_ms.shape[0])):
            raise ValueError(f"columns of rows do not fit each other: {n} times, {hash_offsets.shape[0]} offsets, "
                             f"{hash_ids.shape[0]} hash ids")
        for i in range(n):
            if not 0.0 <= due_ms[i] < INFINITY or hash_offsets[i] > hash_offsets[i + 1]:
                raise ValueError(f"row {request[i]}: due at {due_ms[i]} ms, hash ids from {hash_offsets[i]} "
                                 f"to {hash_offsets[i + 1]}")
            if cancel_after_ms is not None and not cancel_after_ms[i] >= 0.0:
                raise ValueError(f"row {request[i]}: its client leaves after {cancel_after_ms[i]} ms")
            if deadline_after_ms is not None and not deadline_after_ms[i] >= 0.0:
                raise ValueError(f"row {request[i]}: its answer is wanted after {deadline_after_ms[i]} ms")
        for i in range(n):
            arrival.due_ms, arrival.order, arrival.turn = due_ms[i], order[i], turn[i]
            arrival.n_in, arrival.n_out = input_tokens[i], output_tokens[i]
            arrival.session, arrival.request = session[i], request[i]
            arrival.cancel_after_ms = INFINITY if cancel_after_ms is None else cancel_after_ms[i]
            arrival.priority = 0 if priority is None else priority[i]
            arrival.deadline_after_ms = INFINITY if deadline_after_ms is None else deadline_after_ms[i]
            arrival.num_hash_ids = hash_offsets[i + 1] - hash_offsets[i]
            arrival.hash_ids = NULL
            if arrival.num_hash_ids > 0:
                arrival.hash_ids = <uint64_t*>malloc(arrival.num_hash_ids * sizeof(uint64_t))
                if arrival.hash_ids is NULL:
                    raise MemoryError("hash ids of a row")
                memcpy(arrival.hash_ids, &hash_ids[hash_offsets[i]], arrival.num_hash_ids * sizeof(uint64_t))
            self.arrivals.push(&arrival)

    def set_horizon(self, double horizon_ms):
        """All rows due before `horizon_ms` have been handed over; INFINITY: all there are."""
        self.horizon_ms = horizon_ms

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

    def next_arrival(self):
        """The row to place, after "place": (request, input tokens, hash ids)."""
        cdef int64_t i
        cdef Arrival* arrival = &self.arrivals.heap[0]
        return arrival.request, arrival.n_in, [arrival.hash_ids[i] for i in range(arrival.num_hash_ids)]

    def next_terms(self):
        """What else is known of that row: (output tokens, priority, deadline [ms], inf if nobody said, arrival [ms])."""
        cdef Arrival* arrival = &self.arrivals.heap[0]
        return arrival.n_out, arrival.priority, arrival.due_ms + arrival.deadline_after_ms, arrival.due_ms

    def place_next(self, int32_t worker, int32_t rank, bytes reason=None):
        """Answer to "place".

        Args:
            reason: the choice is a policy's, and recorded with this reason where round robin would have chosen otherwise.

        Raises:
            ValueError: no such worker or rank, or nothing is due.
        """
        if not (0 <= worker < self.num_workers and 0 <= rank < self.dp_size):
            raise ValueError(f"no worker {worker} with rank {rank}")
        self._check_row_due()
        if self.external:
            raise ValueError("an external fleet hands rows over by take_next")
        cdef Arrival arrival = self.arrivals.heap[0]
        self.place(worker, rank)
        if reason is not None:
            self._tell_placement(arrival.due_ms, arrival.request, worker, rank, reason)

    cdef int _tell_placement(self, double at_ms, int32_t request, int32_t worker, int32_t rank, bytes reason) except -1:
        """Record a placement that is not that of round robin, which goes on as if it had placed all rows."""
        cdef int32_t usual_worker, usual_rank
        self.choose(&usual_worker, &usual_rank)
        self.count_turn(usual_worker, usual_rank)
        if worker == usual_worker and rank == usual_rank:
            return 0
        return record_decision(self.out, at_ms, worker, rank, request, DECIDE_PLACEMENT, usual_worker, usual_rank,
                               reason)

    def _check_row_due(self):
        if self.arrivals.next_due() > self.now_ms:
            raise ValueError("no row is due")

    def ended_requests(self):
        """Requests that ended since the last call, in order: workers, then ranks, then positions."""
        cdef int64_t i
        self.find_ends()
        ended = [self.ended[i] for i in range(self.num_ended)]
        self.num_ended = 0
        return ended

    def clear_events(self):
        """The caller has read the events: forget them."""
        self.find_ends()
        self.scanned = 0
        self.out.reset()

    def publish_cuts(self, int32_t worker=-1):
        """Append one CUT record for each request of a worker that arrived and has not ended (-1: of all workers); the
        run is over. Those on lanes of the caller's are its own to tell, by `publish_cut`."""
        cdef int32_t i
        if not -1 <= worker < self.num_workers:
            raise ValueError(f"no worker {worker}")
        with nogil:
            for i in range(self.num_workers):
                if worker == -1 or worker == i:
                    _publish_cuts(<Machine>self.workers[i], self.out, self.last_event_ms)

    # -- moves of the caller's own ----------------------------------------------------------------

    @property
    def next_place(self):
        """(worker, rank) the fleet's own round robin gives the next row."""
        cdef int32_t worker, rank
        self.choose(&worker, &rank)
        return worker, rank

    def take_next(self, int32_t worker=-1, int32_t rank=-1, double at_ms=NAN, int64_t queued=0, bytes reason=None):
        """Answer to "place" of an external fleet: the row that is due arrives, and is the caller's.

        Args:
            worker, rank: where the caller places it; both -1: round robin.
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
        if worker == -1 and rank == -1:
            self.choose(&worker, &rank)
            self.count_turn(worker, rank)
        elif not (0 <= worker < self.num_workers and 0 <= rank < self.dp_size):
            raise ValueError(f"no worker {worker} with rank {rank}")
        if at_ms == at_ms and not 0.0 <= at_ms < INFINITY:
            raise ValueError(f"a row cannot arrive at {at_ms} ms")
        self.arrivals.pop(&arrival)
        try:
            hash_ids = tuple([arrival.hash_ids[i] for i in range(arrival.num_hash_ids)])
        finally:
            free(arrival.hash_ids)
        if at_ms != at_ms:
            at_ms = arrival.due_ms
        self.arrive(&arrival, at_ms, worker, rank, -1)
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
        return gone.request, gone.worker, gone.rank

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
    def next_due_ms(self):
        """When the next row or cancellation is due [ms]; inf when none is known."""
        self.find_ends()
        return min(self.arrivals.next_due(), self.leaving.next_due())

    @property
    def next_row_ms(self):
        """When the next row is due [ms]; inf when none is known."""
        return self.arrivals.next_due()

    @property
    def needs_rows(self):
        """The next row may be one that was not handed over yet."""
        return self.horizon_ms < INFINITY and self.arrivals.next_due() >= self.horizon_ms

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
        cdef double at
        cdef int status
        while True:
            if self.stage == STAGE_PICK:
                if self.out.count >= max_records:
                    return FLEET_FULL
                at = self.next_instant()
                if at == INFINITY:
                    return FLEET_DONE if self.horizon_ms == INFINITY else FLEET_NEEDS_ROWS
                if at >= self.horizon_ms:
                    return FLEET_NEEDS_ROWS
                if at > until_ms:
                    return FLEET_UNTIL
                self.now_ms = max(self.now_ms, min(at, self.sample_ms))
                self.stage = STAGE_ENDS
            if self.stage == STAGE_ENDS:
                if self.external:
                    if self.wants_move(True):
                        return FLEET_MOVE
                else:
                    self.end_passes()
                self.stage = STAGE_ARRIVALS
                if self.tell_ends():
                    return FLEET_ENDS
            if self.stage == STAGE_ARRIVALS:
                status = self.hand_over()
                if status != 0:
                    return status
                self.stage = STAGE_RUN
            if self.stage == STAGE_RUN:
                if self.external:
                    if self.wants_move(False):
                        return FLEET_MOVE
                else:
                    self.run_machines()
                self.find_ends()
                self.stage = STAGE_AGAIN
                # The sample of time 0 is the baseline: it comes when that instant is over.
                if self.first_round and 0.0 < self.sample_ms <= self.now_ms:
                    self._account()
                    return FLEET_SAMPLE
            self.first_round = False
            self.stage = STAGE_ARRIVALS
            if self.tell_ends():
                return FLEET_ENDS
            if self.arrivals.next_due() <= self.now_ms:
                continue
            self.first_round = True
            self.stage = STAGE_PICK
            if self.sample_ms <= self.now_ms:
                return FLEET_SAMPLE

    cdef bint tell_ends(self) except -1 nogil:
        """Whether requests ended that the workload waits for."""
        self.find_ends()
        return self.num_ended > 0

    cdef double next_instant(self) noexcept nogil:
        """Next time at which anything but a sample happens [ms]; INFINITY when nothing does."""
        cdef double at = min(self.arrivals.next_due(), self.leaving.next_due())
        cdef int32_t i
        for i in range(self.num_workers):
            at = min(at, _deadline(<Machine>self.workers[i]))
        return at

    cdef int _note_event(self) noexcept nogil:
        """Something happens now."""
        self.last_event_ms = max(self.last_event_ms, self.now_ms)
        return self._account()

    cdef int _account(self) noexcept nogil:
        """Integrate the workers up to now, step by step as the reference does: a sample is a step, too."""
        if self.now_ms > self.accounted_ms:
            self.worker_seconds += (self.now_ms - self.accounted_ms) * self.num_workers / 1000.0
            self.accounted_ms = self.now_ms
        return 0

    cdef int end_passes(self) except -1 nogil:
        cdef int32_t i
        for i in range(self.num_workers):
            if _deadline(<Machine>self.workers[i]) <= self.now_ms:
                self._note_event()
                (<Machine>self.workers[i]).pump(self.now_ms, True, False)
        return 0

    cdef int hand_over(self) except -1 nogil:
        """Everything that is due goes on its lane: rows, then cancellations. 0, or why the caller has to do it."""
        cdef int32_t worker, rank
        cdef Leaving gone
        while self.arrivals.next_due() <= self.now_ms:
            self._note_event()
            if self.external or self.external_placement:
                return FLEET_PLACE
            self.choose(&worker, &rank)
            self.count_turn(worker, rank)
            self.place(worker, rank)
        while self.leaving.next_due() <= self.now_ms:
            self._note_event()
            if self.external:
                return FLEET_CANCEL
            self.leaving.pop(&gone)
            self.cancel(&gone)
        return 0

    cdef int choose(self, int32_t* worker, int32_t* rank) noexcept nogil:
        """Round robin over workers, then over the ranks of the worker."""
        worker[0] = <int32_t>(self.next_worker % self.num_workers)
        rank[0] = <int32_t>(self.next_rank[worker[0]] % self.dp_size)
        return 0

    cdef int count_turn(self, int32_t worker, int32_t rank) noexcept nogil:
        """A request that is then rejected has used its turn."""
        self.next_worker = worker + 1
        self.next_rank[worker] = rank + 1
        return 0

    cdef int arrive(self, Arrival* arrival, double at_ms, int32_t worker, int32_t rank,
                    int64_t command_id) except -1 nogil:
        """Record an arrival, and that its client will leave if it is one of those."""
        cdef Leaving leaving
        cdef Event* event = self.out.emplace(EV_ARRIVAL, at_ms, worker, rank, arrival.request)
        event.a, event.b, event.c, event.d = arrival.n_in, arrival.n_out, arrival.session, arrival.turn
        event.e = arrival.priority
        if arrival.deadline_after_ms < INFINITY:
            event.x = arrival.deadline_after_ms
        self.num_arrived += 1
        leaving.due_ms = at_ms + arrival.cancel_after_ms
        if leaving.due_ms < INFINITY:
            leaving.order, leaving.turn, leaving.command_id = arrival.order, arrival.turn, command_id
            leaving.request, leaving.worker, leaving.rank = arrival.request, worker, rank
            self.leaving.add(&leaving)
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
        envelope.kind, envelope.rank, envelope.request, envelope.discard = CMD_CANCEL, leaving.rank, leaving.request, 1
        envelope.n_in = envelope.n_out = envelope.num_hash_ids = 0
        envelope.hash_ids, envelope.cancel_id = NULL, -1
        return (<Machine>self.workers[leaving.worker]).put(&envelope)

    cdef int place(self, int32_t worker, int32_t rank) except -1 nogil:
        """The next arrival goes on the lane of a worker."""
        cdef Arrival arrival
        cdef Envelope envelope
        self.arrivals.pop(&arrival)
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
        self.hold_boundary = hold_boundary
        while self.next_to_move < self.num_workers:
            worker = self.next_to_move
            self.next_to_move += 1
            if not hold_boundary or _deadline(<Machine>self.workers[worker]) <= self.now_ms:
                if hold_boundary:
                    self._note_event()
                self.moving_worker = worker
                return True
        self.next_to_move = 0
        self.moving_worker = -1
        return False

    cdef int run_machines(self) except -1 nogil:
        cdef int32_t i
        for i in range(self.num_workers):
            if _wants_run(<Machine>self.workers[i]):
                (<Machine>self.workers[i]).pump(self.now_ms, True, True)
        return 0

    cdef int find_ends(self) except -1 nogil:
        """Note the requests that ended since the last look; the records may be cleared afterwards."""
        if not self.wake_on_end and self.leaving.count == 0:
            return 0
        while self.scanned < self.out.count:
            if self.out.records[self.scanned].kind == EV_TERMINAL:
                self.leaving.drop(self.out.records[self.scanned].request)
                if self.wake_on_end:
                    self.note_end(self.out.records[self.scanned].request)
            self.scanned += 1
        return 0

    cdef int note_end(self, int32_t request) except -1 nogil:
        cdef int32_t* grown
        if self.num_ended == self.ended_capacity:
            grown = <int32_t*>realloc(self.ended, (self.ended_capacity * 2 + 64) * sizeof(int32_t))
            if grown is NULL:
                with gil:
                    raise MemoryError("ended requests")
            self.ended = grown
            self.ended_capacity = self.ended_capacity * 2 + 64
        self.ended[self.num_ended] = request
        self.num_ended += 1
        return 0
