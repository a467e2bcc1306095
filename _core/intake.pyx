"""Rows on their way into a fleet: those not due yet, whose turn it is to take the next, clients who leave, who ended.

Decides round robin, and what is noted of an arrival and of an end. Never decides when a row enters or whether anything
happens at an instant: the fleet does.
"""
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free

from .arrivals cimport Arrival, Arrivals
from .cancellations cimport Cancellations, Leaving
from .ends cimport Ends
from .event_buffer cimport EV_ARRIVAL, EV_TERMINAL, TERM_COMPLETED, Event
from .policy cimport DECIDE_PLACEMENT, record_decision


cdef class Intake:
    def __cinit__(self):
        self.arrivals, self.leaving, self.ended = Arrivals(), Cancellations(), Ends()
        self.horizon_ms = 0.0

    def __dealloc__(self):
        free(self.next_rank)

    cdef int open_turns(self, int32_t num_workers, int32_t dp_size) except -1:
        """Rows go to so many workers of so many ranks each."""
        self.num_workers, self.dp_size = num_workers, dp_size
        self.next_rank = <int64_t*>calloc(num_workers, sizeof(int64_t))
        if self.next_rank is NULL:
            raise MemoryError("turns of ranks")
        return 0

    def push_rows(self, double[::1] due_ms, int32_t[::1] request, int64_t[::1] order, int64_t[::1] turn,
                  int64_t[::1] session, int64_t[::1] input_tokens, int64_t[::1] output_tokens,
                  int64_t[::1] hash_offsets, uint64_t[::1] hash_ids, double[::1] cancel_after_ms=None,
                  int64_t[::1] priority=None, double[::1] deadline_after_ms=None, int64_t[::1] play=None):
        """Hand rows over, in any order; each enters at its time.

        Args:
            due_ms: (n,) arrival times on the run's clock [ms], none before `now_ms`.
            request: (n,) trace row ordinals. order, turn: (n,) total order at one instant.
            session: (n,) session ordinals to report, -1 = none. input_tokens, output_tokens: (n,) lengths.
            hash_offsets: (n + 1,) row i owns hash_ids[hash_offsets[i]:hash_offsets[i + 1]].
            cancel_after_ms: (n,) patience of each client from its arrival on [ms], INFINITY = it stays; None: all stay.
            priority: (n,) for the policy, lower goes first; None: all 0.
            deadline_after_ms: (n,) when the answer is wanted, from the arrival on [ms], INFINITY = nobody said; None: all.
            play: (n,) ordinal of the play of a graph each row belongs to; None: no graph.

        Raises:
            ValueError: columns that do not fit each other, or a time that is none; nothing was handed over.
        """
        self.arrivals.push_columns(due_ms, request, order, turn, session, input_tokens, output_tokens, hash_offsets, hash_ids,
                                   cancel_after_ms, priority, deadline_after_ms, play)

    def withdraw(self, int32_t request):
        """This row will never arrive, unless it has already; it must not be handed over again."""
        self.arrivals.withdraw(request)

    def set_horizon(self, double horizon_ms):
        """All rows due before `horizon_ms` have been handed over; INFINITY: all there are."""
        self.horizon_ms = horizon_ms

    def next_arrival(self):
        """The row to place, after "place": (request, input tokens, hash ids)."""
        cdef int64_t i
        cdef Arrival* arrival = self.arrivals.first()
        return arrival.request, arrival.n_in, [arrival.hash_ids[i] for i in range(arrival.num_hash_ids)]

    @property
    def next_request(self):
        """The row to place, after "place"."""
        return self.arrivals.first().request

    def next_terms(self):
        """What else is known of that row: (output tokens, priority, deadline [ms], inf if nobody said, arrival [ms])."""
        cdef Arrival* arrival = self.arrivals.first()
        return arrival.n_out, arrival.priority, arrival.due_ms + arrival.deadline_after_ms, arrival.due_ms

    @property
    def next_row_ms(self):
        """When the next row is due [ms]; inf when none is known."""
        return self.arrivals.next_due()

    @property
    def next_due_ms(self):
        """When the next row or cancellation is due [ms]; inf when none is known."""
        self.find_ends()
        return min(self.arrivals.next_due(), self.leaving.next_due())

    @property
    def needs_rows(self):
        """The next row may be one that was not handed over yet."""
        return self.horizon_ms < INFINITY and self.arrivals.next_due() >= self.horizon_ms

    # -- places -----------------------------------------------------------------------------------

    @property
    def next_place(self):
        """(worker, rank) the fleet's own round robin gives the next row."""
        cdef int32_t worker, rank
        self.choose(&worker, &rank)
        return worker, rank

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

    cdef int _tell_placement(self, double at_ms, int32_t request, int32_t worker, int32_t rank, bytes reason) except -1:
        """Record a placement that is not that of round robin, which goes on as if it had placed all rows."""
        cdef int32_t usual_worker, usual_rank
        self.choose(&usual_worker, &usual_rank)
        self.count_turn(usual_worker, usual_rank)
        if worker == usual_worker and rank == usual_rank:
            return 0
        return record_decision(self.out, at_ms, worker, rank, request, DECIDE_PLACEMENT, usual_worker, usual_rank,
                               reason)

    cdef int _settle(self, int32_t* worker, int32_t* rank) except -1:
        """Where the caller's row goes; both -1: in turn."""
        if worker[0] == -1 and rank[0] == -1:
            self.choose(worker, rank)
            return self.count_turn(worker[0], rank[0])
        if not (0 <= worker[0] < self.num_workers and 0 <= rank[0] < self.dp_size):
            raise ValueError(f"no worker {worker[0]} with rank {rank[0]}")

    def _check_row_due(self):
        if self.arrivals.next_due() > self.now_ms:
            raise ValueError("no row is due")

    # -- who comes, who has gone ------------------------------------------------------------------

    cdef int arrive(self, Arrival* arrival, double at_ms, int32_t worker, int32_t rank,
                    int64_t command_id) except -1 nogil:
        """Record an arrival, and that its client will leave if it is one of those."""
        cdef Leaving leaving
        cdef Event* event = self.out.emplace(EV_ARRIVAL, at_ms, worker, rank, arrival.request)
        event.a, event.b, event.c, event.d = arrival.n_in, arrival.n_out, arrival.session, arrival.turn
        event.e, event.f = arrival.priority, arrival.play + 1
        if arrival.deadline_after_ms < INFINITY:
            event.x = arrival.deadline_after_ms
        self.num_arrived += 1
        leaving.due_ms = at_ms + arrival.cancel_after_ms
        if leaving.due_ms < INFINITY:
            leaving.order, leaving.turn, leaving.command_id = arrival.order, arrival.turn, command_id
            leaving.request, leaving.worker, leaving.rank = arrival.request, worker, rank
            self.leaving.add(&leaving)
        return 0

    def ended_requests(self):
        """Requests that ended since the last call, in order: workers, then ranks, then positions."""
        return [request for request, _ in self.take_ends()]

    def take_ends(self):
        """The same, each with the tokens of its output, -1 where it did not complete."""
        self.find_ends()
        return self.ended.take()

    cdef bint tell_ends(self) except -1 nogil:
        """Whether requests ended that the workload waits for."""
        self.find_ends()
        return self.ended.count > 0

    cdef int find_ends(self) except -1 nogil:
        """Note the requests that ended since the last look; the records may be cleared afterwards."""
        cdef Event* event
        if not self.wake_on_end and self.leaving.count == 0:
            return 0
        while self.scanned < self.out.count:
            event = &self.out.records[self.scanned]
            if event.kind == EV_TERMINAL:
                self.leaving.drop(event.request)
                if self.wake_on_end:
                    self.ended.note(event.request, event.b if event.a == TERM_COMPLETED else -1)
            self.scanned += 1
        return 0
