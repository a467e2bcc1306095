"""All machines of a replay under one virtual clock.

Decides the order of one instant T, and nothing else: (1) passes that end at T end, their boundaries held; (2) the
workload is told who ended and may hand over what becomes due; (3) everything due is placed, in the workload's total
order, and put on the lanes; (4) boundaries are finished in worker order and each machine runs until it wants a later
time, passes of no length included; (5) a telemetry sample is taken; again from (2) if that ended requests that make
something due. Then time jumps.

The engines are reached through their driver machines alone. Source: replay through the driver, section 3; that passes
of no length end inside their worker's turn, and that a sample belongs to the first round, was seen on the reference.
"""
cimport cython
from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from .driver cimport PHASE_IDLE, PHASE_IN_PASS, Machine
from .event_buffer cimport CMD_SUBMIT, EV_ARRIVAL, EV_CUT, EV_TERMINAL, Event
from .lanes cimport Envelope, lane_pop

STATUS_NAMES = ("done", "needs_rows", "until", "ends", "sample", "full", "place")


cdef inline double _deadline(Machine machine) noexcept nogil:
    return machine.next_deadline()


cdef inline bint _wants_run(Machine machine) noexcept nogil:
    """Whether a machine has anything to do besides waiting for a later time."""
    if machine.phase == PHASE_IN_PASS:
        return machine.accepting and machine.command_lane.count > 0 or machine.cancel_lane.count > 0
    return machine.phase != PHASE_IDLE or machine.command_lane.count > 0 or machine.cancel_lane.count > 0


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


cdef inline bint _before(Arrival* a, Arrival* b) noexcept nogil:
    if a.due_ms != b.due_ms:
        return a.due_ms < b.due_ms
    if a.order != b.order:
        return a.order < b.order
    return a.turn < b.turn


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
    """

    def __cinit__(self, machines, EventBuffer out not None, *, bint telemetry=False, bint wake_on_end=False,
                  bint external_placement=False):
        cdef Py_ssize_t i
        self.machines = tuple(machines)
        self.num_workers = <int32_t>len(self.machines)
        if self.num_workers == 0:
            raise ValueError("num_workers must be positive")
        self.out = out
        self.telemetry, self.wake_on_end = telemetry, wake_on_end
        self.external_placement = external_placement
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
        cdef int64_t i
        for i in range(self.heap_count):
            free(self.heap[i].hash_ids)
        free(self.heap)
        free(self.workers)
        free(self.next_rank)
        free(self.ended)

    # -- rows -------------------------------------------------------------------------------------

    def push_rows(self, double[::1] due_ms, int32_t[::1] request, int64_t[::1] order, int64_t[::1] turn,
                  int64_t[::1] session, int64_t[::1] input_tokens, int64_t[::1] output_tokens,
                  int64_t[::1] hash_offsets, uint64_t[::1] hash_ids):
        """Hand rows over, in any order; each enters at its time.

        Args:
            due_ms: (n,) arrival times on the run's clock [ms], none before `now_ms`.
            request: (n,) trace row ordinals. order, turn: (n,) total order at one instant.
            session: (n,) session ordinals to report, -1 = none. input_tokens, output_tokens: (n,) lengths.
            hash_offsets: (n + 1,) row i owns hash_ids[hash_offsets[i]:hash_offsets[i + 1]].

        Raises:
            ValueError: columns that do not fit each other, or a time that is none; nothing was handed over.
        """
        cdef Py_ssize_t i
        cdef Py_ssize_t n = due_ms.shape[0]
        cdef Arrival arrival
        if not (n == request.shape[0] == order.shape[0] == turn.shape[0] == session.shape[0] == input_tokens.shape[0]
                == output_tokens.shape[0] == hash_offsets.shape[0] - 1 and 0 <= hash_offsets[0]
                and hash_offsets[n] <= hash_ids.shape[0]):
            raise ValueError(f"columns of rows do not fit each other: {n} times, {hash_offsets.shape[0]} offsets, "
                             f"{hash_ids.shape[0]} hash ids")
        for i in range(n):
            if not 0.0 <= due_ms[i] < INFINITY or hash_offsets[i] > hash_offsets[i + 1]:
                raise ValueError(f"row {request[i]}: due at {due_ms[i]} ms, hash ids from {hash_offsets[i]} "
                                 f"to {hash_offsets[i + 1]}")
        for i in range(n):
            arrival.due_ms, arrival.order, arrival.turn = due_ms[i], order[i], turn[i]
            arrival.n_in, arrival.n_out = input_tokens[i], output_tokens[i]
            arrival.session, arrival.request = session[i], request[i]
            arrival.num_hash_ids = hash_offsets[i + 1] - hash_offsets[i]
            arrival.hash_ids = NULL
            if arrival.num_hash_ids > 0:
                arrival.hash_ids = <uint64_t*>malloc(arrival.num_hash_ids * sizeof(uint64_t))
                if arrival.hash_ids is NULL:
                    raise MemoryError("hash ids of a row")
                memcpy(arrival.hash_ids, &hash_ids[hash_offsets[i]], arrival.num_hash_ids * sizeof(uint64_t))
            self.heap_push(&arrival)

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
        cdef Arrival* arrival = &self.heap[0]
        return arrival.request, arrival.n_in, [arrival.hash_ids[i] for i in range(arrival.num_hash_ids)]

    def place_next(self, int32_t worker, int32_t rank):
        """Answer to "place".

        Raises:
            ValueError: no such worker or rank, or nothing is due.
        """
        if not (0 <= worker < self.num_workers and 0 <= rank < self.dp_size):
            raise ValueError(f"no worker {worker} with rank {rank}")
        if self.heap_count == 0 or self.heap[0].due_ms > self.now_ms:
            raise ValueError("no row is due")
        self.place(worker, rank)

    def ended_requests(self):
        """Requests that ended since the last call, in order: workers, then ranks, then positions."""
        cdef int64_t i
        ended = [self.ended[i] for i in range(self.num_ended)]
        self.num_ended = 0
        return ended

    def clear_events(self):
        """The caller has read the events: forget them."""
        self.scanned = 0
        self.out.reset()

    def publish_cuts(self):
        """Append one CUT record for each request that arrived and has not ended; the run is over."""
        cdef int32_t i
        with nogil:
            for i in range(self.num_workers):
                _publish_cuts(<Machine>self.workers[i], self.out, self.last_event_ms)

    @property
    def idle(self):
        """No row is left and no machine moves by itself."""
        return self.next_instant() == INFINITY

    cdef int run(self, double until_ms, Py_ssize_t max_records) except -1 nogil:
        cdef double at
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
                self.end_passes()
                self.stage = STAGE_ARRIVALS
                if self.tell_ends():
                    return FLEET_ENDS
            if self.stage == STAGE_ARRIVALS:
                if self.hand_over() == FLEET_PLACE:
                    return FLEET_PLACE
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
            if self.heap_count > 0 and self.heap[0].due_ms <= self.now_ms:
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
        cdef double at = self.heap[0].due_ms if self.heap_count > 0 else INFINITY
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
        """Place everything that is due: round robin over workers, then over the ranks of the worker.

        A request that is then rejected has used its turn.
        """
        cdef int32_t worker, rank
        while self.heap_count > 0 and self.heap[0].due_ms <= self.now_ms:
            self._note_event()
            if self.external_placement:
                return FLEET_PLACE
            worker = <int32_t>(self.next_worker % self.num_workers)
            rank = <int32_t>(self.next_rank[worker] % self.dp_size)
            self.next_worker = worker + 1
            self.next_rank[worker] = rank + 1
            self.place(worker, rank)
        return 0

    cdef int place(self, int32_t worker, int32_t rank) except -1 nogil:
        """The next arrival goes on the lane of a worker."""
        cdef Arrival popped
        cdef Arrival* arrival = &popped
        cdef Envelope envelope
        cdef Event* event
        self.heap_pop(&popped)
        event = self.out.emplace(EV_ARRIVAL, arrival.due_ms, worker, rank, arrival.request)
        event.a, event.b, event.c, event.d = arrival.n_in, arrival.n_out, arrival.session, arrival.turn
        self.num_arrived += 1
        envelope.command_id = self.next_command
        self.next_command += 1
        envelope.kind, envelope.rank, envelope.request, envelope.discard = CMD_SUBMIT, rank, arrival.request, 0
        envelope.n_in, envelope.n_out = arrival.n_in, arrival.n_out
        envelope.hash_ids, envelope.num_hash_ids = arrival.hash_ids, arrival.num_hash_ids
        (<Machine>self.workers[worker]).put(&envelope)
        if self.telemetry:
            _publish_gauges(<Machine>self.workers[worker], rank, self.out, self.now_ms,
                            _queued_on(<Machine>self.workers[worker], rank))
        return 0

    cdef int run_machines(self) except -1 nogil:
        cdef int32_t i
        for i in range(self.num_workers):
            if _wants_run(<Machine>self.workers[i]):
                (<Machine>self.workers[i]).pump(self.now_ms, True, True)
        return 0

    cdef int find_ends(self) except -1 nogil:
        """Note the requests that ended since the last look; the records may be cleared afterwards."""
        cdef int32_t* grown
        if not self.wake_on_end:
            return 0
        while self.scanned < self.out.count:
            if self.out.records[self.scanned].kind == EV_TERMINAL:
                if self.num_ended == self.ended_capacity:
                    grown = <int32_t*>realloc(self.ended, (self.ended_capacity * 2 + 64) * sizeof(int32_t))
                    if grown is NULL:
                        with gil:
                            raise MemoryError("ended requests")
                    self.ended = grown
                    self.ended_capacity = self.ended_capacity * 2 + 64
                self.ended[self.num_ended] = self.out.records[self.scanned].request
                self.num_ended += 1
            self.scanned += 1
        return 0

    # -- heap -------------------------------------------------------------------------------------

    cdef int heap_push(self, Arrival* arrival) except -1 nogil:
        cdef Arrival* grown
        cdef int64_t at, parent
        if self.heap_count == self.heap_capacity:
            grown = <Arrival*>realloc(self.heap, (self.heap_capacity * 2 + 64) * sizeof(Arrival))
            if grown is NULL:
                free(arrival.hash_ids)
                with gil:
                    raise MemoryError("arrivals")
            self.heap = grown
            self.heap_capacity = self.heap_capacity * 2 + 64
        at = self.heap_count
        self.heap_count += 1
        while at > 0:
            parent = (at - 1) // 2
            if not _before(arrival, &self.heap[parent]):
                break
            self.heap[at] = self.heap[parent]
            at = parent
        self.heap[at] = arrival[0]
        return 0

    cdef int heap_pop(self, Arrival* arrival) noexcept nogil:
        cdef Arrival last
        cdef int64_t at = 0
        cdef int64_t child
        arrival[0] = self.heap[0]
        self.heap_count -= 1
        last = self.heap[self.heap_count]
        while True:
            child = 2 * at + 1
            if child >= self.heap_count:
                break
            if child + 1 < self.heap_count and _before(&self.heap[child + 1], &self.heap[child]):
                child += 1
            if not _before(&self.heap[child], &last):
                break
            self.heap[at] = self.heap[child]
            at = child
        if self.heap_count > 0:
            self.heap[at] = last
        return 0
