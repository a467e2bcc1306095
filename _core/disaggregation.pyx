"""All handoffs of a replay with prefill and decode workers: what machines tell, and what they are asked next.

One coordinator (`coordinator`) a request. This reads the records of the machines, tells the coordinators what they say,
and turns the actions they ask for into commands, in the order in which they were asked for; transfers it keeps itself,
by the time they end. Also says when prefill and decode need a place (`places` which), and how a request ends that never
comes to decode. Never decides when a command is given to a machine or when time moves: the fleet does.

Source: handoff specification, sections 3 to 5.
"""
cimport cython
from libc.math cimport NAN
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from .coordinator cimport (
    ACT_ACTIVATE_DESTINATION, ACT_CANCEL_DESTINATION, ACT_CANCEL_SOURCE, ACT_RELEASE_SOURCE,
    ACT_RESERVE_DESTINATION, ACT_START_TRANSFER, ACT_SUBMIT_PREFILL, CAUSE_CANCELLED, CAUSE_FAILED,
    DESTINATION_FIRST, HANDOFF_CANCELLED, HANDOFF_OK, HANDOFF_SUCCEEDED, OUTCOME_ACCEPTED, OUTCOME_APPLIED, OUTCOME_FAILED, OUTCOME_NOOP,
    OUTCOME_SCHEDULED, OUTCOME_SUBMITTED, SOURCE_FIRST, TRANSFER_FULL_PROMPT, HandoffId, HandoffStatus, handoff_give_up, handoff_held,
    handoff_init, handoff_outcome, handoff_reserved, handoff_start, handoff_transferred, raise_handoff,
)
from .driver cimport PHASE_IN_PASS, Machine
from .event_buffer cimport (
    CMD_ACTIVATE_DESTINATION, CMD_CANCEL, CMD_CANCEL_DESTINATION, CMD_CANCEL_SOURCE, CMD_RELEASE_SOURCE,
    CMD_RESERVE_DESTINATION, CMD_SUBMIT_PREFILL, EV_COMMAND, EV_CUT, EV_HANDOFF, EV_TERMINAL, REASON_CLIENT,
    REASON_PROMPT_OVER_MODEL_LEN, REASON_PROMPT_OVER_POOL, RES_ACCEPTED, RES_APPLIED, RES_SUBMITTED,
    STAGE_DESTINATION_RESERVED, STAGE_SOURCE_HELD, STAGE_TRANSFER_ENDED, STAGE_TRANSFER_STARTED, TERM_CANCELLED,
    TERM_FAILED, Event,
)
from .handoff cimport OWN_ACTIVE
from .lanes cimport lane_free, lane_pop, lane_push
from .places cimport Places, Seeker
from .transfers cimport Transfer, Transfers
from .types cimport APPLY_ACTIVE, NONE, ceil_div

from .coordinator import MODE_NAMES, ORDER_NAMES

cdef enum:
    COMMANDS_A_REQUEST = 16      # command ids tell request and kind apart; the kinds are fewer


cdef inline bint _in_pass(Machine machine) noexcept nogil:
    return machine.phase == PHASE_IN_PASS


cdef inline bint _ends_unseen(Machine machine, int32_t rank, int32_t request) noexcept nogil:
    return machine.engine.ends_unseen(rank, request)


cdef inline int32_t _action_of(int32_t kind) noexcept nogil:
    """The action that a kind of command carries out."""
    if kind == CMD_SUBMIT_PREFILL:
        return ACT_SUBMIT_PREFILL
    if kind == CMD_RESERVE_DESTINATION:
        return ACT_RESERVE_DESTINATION
    if kind == CMD_ACTIVATE_DESTINATION:
        return ACT_ACTIVATE_DESTINATION
    if kind == CMD_RELEASE_SOURCE:
        return ACT_RELEASE_SOURCE
    return ACT_CANCEL_SOURCE if kind == CMD_CANCEL_SOURCE else ACT_CANCEL_DESTINATION


cdef inline int32_t _outcome_of(int64_t result) noexcept nogil:
    if result == RES_SUBMITTED:
        return OUTCOME_SUBMITTED
    if result == RES_ACCEPTED:
        return OUTCOME_ACCEPTED
    return OUTCOME_APPLIED if result == RES_APPLIED else OUTCOME_NOOP


@cython.final
cdef class Disaggregation:
    """Handoffs between the first `num_prefill_workers` of a fleet's workers and all others.

    Args:
        out: the event buffer of the fleet.
        num_prefill_workers, num_decode_workers, prefill_dp_size, decode_dp_size: the two pools.
        block_size [tokens], num_blocks, max_model_len (None: no limit): of a decode rank; they say why it refuses.
        order: one of coordinator.ORDER_NAMES.
        books_outputs: a decode rank has room for a request only if it has room for its output, too.
        timing_mode, bytes_per_token, bandwidth_gbps: of the prefill workers, what a transfer takes; see coordinator.Timing.
    """

    def __cinit__(self, EventBuffer out not None, *, int32_t num_prefill_workers, int32_t num_decode_workers,
                  int32_t prefill_dp_size, int32_t decode_dp_size, int64_t block_size, num_blocks, max_model_len,
                  str order="source_first", bint books_outputs=False, str timing_mode="full_prompt", bytes_per_token=None, bandwidth_gbps=None):
        if num_prefill_workers < 1 or num_decode_workers < 1:
            raise ValueError("both pools must start with at least one worker")
        self.out = out
        self.num_prefill_workers, self.num_decode_workers = num_prefill_workers, num_decode_workers
        self.prefill_dp_size, self.decode_dp_size = prefill_dp_size, decode_dp_size
        self.block_size, self.num_blocks = block_size, min(num_blocks, INT64_MAX)
        self.max_model_len = INT64_MAX if max_model_len is None else min(max_model_len, INT64_MAX)
        self.books_outputs = books_outputs
        self.order = ORDER_NAMES.index(order)
        self.timing.mode = MODE_NAMES.index(timing_mode)
        self.timing.bytes_per_token = 0 if bytes_per_token is None else min(bytes_per_token, INT64_MAX)
        self.timing.has_bandwidth = bandwidth_gbps is not None
        self.timing.bandwidth_gbps = 0.0 if bandwidth_gbps is None else bandwidth_gbps
        self.free_passage = NONE
        self.index, self.transfers = HandoffBook(), Transfers()
        self.places = Places(num_prefill_workers, num_decode_workers, prefill_dp_size, decode_dp_size)
        self.waiting = <Lane*>calloc(num_prefill_workers + num_decode_workers, sizeof(Lane))
        if self.waiting is NULL:
            raise MemoryError("commands that wait")

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.top):
            free(self.passages[i].hash_ids)
        free(self.passages)
        free(self.facts)
        lane_free(&self.commands)
        if self.waiting is not NULL:
            for i in range(self.num_prefill_workers + self.num_decode_workers):
                lane_free(&self.waiting[i])
            free(self.waiting)

    # -- from records to commands -----------------------------------------------------------------

    cdef int scan(self) except -1 nogil:
        """Keep what the records since the last look say of handoffs; the records may be cleared afterwards."""
        cdef Event* event
        cdef Event* grown
        while self.scanned < self.out.count:
            event = &self.out.records[self.scanned]
            self.scanned += 1
            if not (event.kind == EV_TERMINAL or (event.kind == EV_COMMAND and event.a >= CMD_SUBMIT_PREFILL) or (
                    event.kind == EV_HANDOFF and (event.a == STAGE_SOURCE_HELD or event.a == STAGE_DESTINATION_RESERVED))):
                continue
            if self.num_facts == self.fact_capacity:
                grown = <Event*>realloc(self.facts, (self.fact_capacity * 2 + 64) * sizeof(Event))
                if grown is NULL:
                    with gil:
                        raise MemoryError("facts of handoffs")
                self.facts = grown
                self.fact_capacity = self.fact_capacity * 2 + 64
            self.facts[self.num_facts] = event[0]
            self.num_facts += 1
        return 0

    cdef int collect(self, double now_ms) except -1 nogil:
        """Tell the coordinators what was seen, and what comes of that."""
        cdef Event event
        cdef int64_t i = 0
        self.scan()
        self.heard = self.heard or self.num_facts > 0
        while i < self.num_facts:
            event = self.facts[i]
            i += 1
            self._hear(&event, now_ms)
            self.scan()
        self.num_facts = 0
        return 0

    cdef int _hear(self, Event* event, double now_ms) except -1 nogil:
        cdef int32_t at
        cdef HandoffStep step
        cdef HandoffStatus status
        if event.kind == EV_COMMAND:
            return self._command_told(event.f, <int32_t>event.a, event.b, now_ms)
        at = self.find(event.f if event.kind == EV_HANDOFF else event.request)
        if at == NONE:
            return 0
        if event.kind == EV_HANDOFF:
            self.passages[at].fact_ms = max(self.passages[at].fact_ms, event.t_ms)
            if event.a == STAGE_SOURCE_HELD:
                self.timing.prompt_tokens = event.b
                status = handoff_held(&self.passages[at].course, self.passages[at].course.id, &self.timing, &step)
            else:
                status = handoff_reserved(&self.passages[at].course, self.passages[at].course.id, event.b, &step)
            return self._fact(at, &step, status, now_ms)
        if self.passages[at].ended:
            return 0
        self.passages[at].ended = True
        if event.worker >= self.num_prefill_workers:
            return self._forget_if_over(at)
        status = handoff_give_up(&self.passages[at].course, self.passages[at].course.id, CAUSE_FAILED, &step)
        return self._fact(at, &step, status, now_ms)

    cdef int note_ends(self) except -1 nogil:
        """The run is over: nothing follows any more, but who ended has ended."""
        cdef int64_t i
        cdef int32_t at
        self.scan()
        for i in range(self.num_facts):
            if self.facts[i].kind == EV_TERMINAL:
                at = self.find(self.facts[i].request)
                if at != NONE:
                    self.passages[at].ended = True
        self.num_facts = 0
        return 0

    cdef int _command_told(self, int64_t handoff, int32_t kind, int64_t result, double now_ms) except -1 nogil:
        cdef int32_t at = self.find(handoff)
        cdef HandoffStep step
        cdef HandoffStatus status
        if at == NONE:
            return 0
        status = handoff_outcome(&self.passages[at].course, self.passages[at].course.ids[_action_of(kind)],
                                 _outcome_of(result), 0, &step)
        return self._fact(at, &step, status, now_ms)

    cdef int refused(self, int64_t request, int32_t kind, double now_ms) except -1 nogil:
        """A machine refused a command. Only a destination can be refused: its prompt never fits."""
        cdef int32_t at = self.find(request)
        cdef HandoffStep step
        cdef HandoffStatus status
        if at == NONE:
            return 0
        if not self.passages[at].ended:
            self._end(at, TERM_FAILED, REASON_PROMPT_OVER_MODEL_LEN if self.passages[at].n_in >= self.max_model_len
                      else REASON_PROMPT_OVER_POOL, now_ms)
        status = handoff_outcome(&self.passages[at].course, self.passages[at].course.ids[_action_of(kind)],
                                 OUTCOME_FAILED, 0, &step)
        return self._fact(at, &step, status, now_ms)

    cdef int leave(self, PyObject** workers, int64_t request, double now_ms) except -1 nogil:
        """The client has gone. What is no request of the decode worker yet is cleaned up; else it is cancelled there. A
        prompt that the pass in flight has rejected stays rejected."""
        cdef int32_t at = self.find(request)
        cdef Passage* passage
        cdef HandoffStep step
        cdef HandoffStatus status
        cdef int32_t activation
        if at == NONE or self.passages[at].ended:
            return 0
        passage = &self.passages[at]
        activation = passage.course.ids[<int>ACT_ACTIVATE_DESTINATION]
        if activation >= 0 and passage.course.outcomes[activation] == OUTCOME_APPLIED:
            return self._send(at, CMD_CANCEL, now_ms)
        if passage.prefill_worker != NONE and _ends_unseen(
                <Machine>workers[passage.prefill_worker], passage.prefill_rank, passage.request):
            return 0
        self._end(at, TERM_CANCELLED, REASON_CLIENT, now_ms)
        status = handoff_give_up(&passage.course, passage.course.id, CAUSE_CANCELLED, &step)
        return self._fact(at, &step, status, now_ms)

    cdef int start(self, Arrival* arrival, double now_ms, int32_t worker, int32_t rank) except -1 nogil:
        """A request arrived for the rank where it begins; its hash ids now belong to its passage."""
        cdef int32_t at = self._new()
        cdef Passage* passage = &self.passages[at]
        cdef HandoffId id
        cdef HandoffStep step
        id.high, id.low = 0, <uint64_t>arrival.request
        passage.n_in, passage.n_out, passage.request = arrival.n_in, arrival.n_out, arrival.request
        passage.hash_ids, passage.num_hash_ids = arrival.hash_ids, arrival.num_hash_ids
        passage.terms.priority, passage.terms.arrival_ms = arrival.priority, now_ms
        passage.terms.deadline_ms = now_ms + arrival.deadline_after_ms
        passage.prefill_worker = passage.prefill_rank = passage.decode_worker = passage.decode_rank = NONE
        if self.order == DESTINATION_FIRST:
            passage.decode_worker, passage.decode_rank = worker, rank
        else:
            passage.prefill_worker, passage.prefill_rank = worker, rank
        passage.fact_ms, passage.ended, passage.number = 0.0, False, self.num_started
        self.num_started += 1
        self.index.add(arrival.request, at, OWN_ACTIVE)
        handoff_init(&passage.course, id, self.order, 0.0)
        return self._fact(at, &step, handoff_start(&passage.course, &step), now_ms)

    cdef int _fact(self, int32_t at, HandoffStep* step, int status, double now_ms) except -1 nogil:
        """A coordinator was told something: do what it asks for."""
        if status != HANDOFF_OK:
            with gil:
                raise_handoff(<HandoffStatus>status)
        return self._act(at, step, now_ms)

    cdef int _act(self, int32_t at, HandoffStep* step, double now_ms) except -1 nogil:
        cdef int32_t i, kind
        for i in range(step.num_actions):
            kind = step.actions[i].kind
            if kind == ACT_SUBMIT_PREFILL:
                self._send(at, CMD_SUBMIT_PREFILL, now_ms)
            elif kind == ACT_RESERVE_DESTINATION:
                self._send(at, CMD_RESERVE_DESTINATION, now_ms)
            elif kind == ACT_START_TRANSFER:
                self._start_transfer(at, step.actions[i].id, step.actions[i].delay_ms, now_ms)
            elif kind == ACT_ACTIVATE_DESTINATION:
                self._send(at, CMD_ACTIVATE_DESTINATION, now_ms)
            elif kind == ACT_RELEASE_SOURCE:
                self._send(at, CMD_RELEASE_SOURCE, now_ms)
            elif kind == ACT_CANCEL_SOURCE:
                self._send(at, CMD_CANCEL_SOURCE, now_ms)
            elif kind == ACT_CANCEL_DESTINATION:
                self._send(at, CMD_CANCEL_DESTINATION, now_ms)
            else:
                self._forget_if_over(at)
        return 0

    cdef int _send(self, int32_t at, int32_t kind, double now_ms) except -1 nogil:
        """Put a command in line; the first one to the end where it did not begin chooses who that is."""
        cdef Passage* passage = &self.passages[at]
        cdef Envelope envelope
        cdef bint to_prefill = kind == CMD_SUBMIT_PREFILL or kind == CMD_RELEASE_SOURCE or kind == CMD_CANCEL_SOURCE
        cdef bint brings = kind == CMD_SUBMIT_PREFILL or kind == CMD_RESERVE_DESTINATION
        envelope.command_id = <int64_t>passage.request * COMMANDS_A_REQUEST + kind
        envelope.kind, envelope.request, envelope.handoff = kind, passage.request, passage.request
        envelope.discard, envelope.cancel_id, envelope.terms = 1, -1, passage.terms
        envelope.n_in = envelope.n_out = envelope.num_hash_ids = 0
        envelope.hash_ids = NULL
        if brings:
            envelope.n_in, envelope.n_out = passage.n_in, passage.n_out
            envelope.num_hash_ids = passage.num_hash_ids
            envelope.hash_ids = self._hash_ids_for(passage, kind)
            self._place_at(passage, &envelope, now_ms)
        envelope.worker = passage.prefill_worker if to_prefill else passage.decode_worker
        envelope.rank = passage.prefill_rank if to_prefill else passage.decode_rank
        return lane_push(&self.commands, &envelope)

    cdef uint64_t* _hash_ids_for(self, Passage* passage, int32_t kind) except? NULL nogil:
        """The prompt of a command; whoever is asked last gets the passage's own."""
        cdef uint64_t* copied
        if passage.num_hash_ids == 0:
            return NULL
        if (kind == CMD_RESERVE_DESTINATION) == (self.order == SOURCE_FIRST):
            copied = passage.hash_ids
            passage.hash_ids = NULL
            return copied
        copied = <uint64_t*>malloc(passage.num_hash_ids * sizeof(uint64_t))
        if copied is NULL:
            with gil:
                raise MemoryError("hash ids of a handoff")
        memcpy(copied, passage.hash_ids, passage.num_hash_ids * sizeof(uint64_t))
        return copied

    # -- transfers --------------------------------------------------------------------------------

    cdef int _start_transfer(self, int32_t at, int32_t action, double delay_ms, double now_ms) except -1 nogil:
        """It starts when the later of both sides was ready, however late anybody looked at that.

        Of those that end at one time, the one whose request arrived first goes first; those that take no time end behind
        them, in the order in which they start.
        """
        cdef Passage* passage = &self.passages[at]
        cdef int64_t number = passage.number
        cdef HandoffStep step
        cdef Event* event
        if delay_ms == 0.0:
            number = INT64_MAX // 2 + self.num_instant
            self.num_instant += 1
        self.transfers.add(passage.fact_ms + delay_ms, number, passage.request)
        event = self.out.emplace(EV_HANDOFF, passage.fact_ms, passage.decode_worker, passage.decode_rank, passage.request)
        event.a, event.f, event.x = STAGE_TRANSFER_STARTED, passage.request, passage.fact_ms + delay_ms
        event.b = (passage.course.timing.prompt_tokens if passage.course.timing.mode == TRANSFER_FULL_PROMPT
                   else passage.course.missing_tokens)
        return self._fact(at, &step, handoff_outcome(&passage.course, action, OUTCOME_SCHEDULED, 0, &step), now_ms)

    cdef bint end_transfer(self, double now_ms) except -1 nogil:
        """End the next transfer that is due; False when none is. One whose handoff was given up just ends."""
        cdef Transfer ended
        cdef int32_t at
        cdef HandoffStep step
        cdef HandoffStatus status
        cdef Event* event
        if not self.transfers.next_due() <= now_ms:
            return False
        self.transfers.pop(&ended)
        at = self.find(ended.request)
        if at == NONE or self.passages[at].ended:
            return True
        event = self.out.emplace(EV_HANDOFF, ended.end_ms, self.passages[at].decode_worker, self.passages[at].decode_rank,
                                 self.passages[at].request)
        event.a, event.f = STAGE_TRANSFER_ENDED, ended.request
        status = handoff_transferred(&self.passages[at].course, self.passages[at].course.id, &step)
        self._fact(at, &step, status, now_ms)
        return True

    # -- giving commands --------------------------------------------------------------------------

    cdef bint settle(self, PyObject** workers, double now_ms) except -1 nogil:
        """Give machines their commands, one after the other, until nothing follows any more; whether anything happened.

        They run only as far as a command needs: no pass starts.
        """
        cdef Envelope envelope
        while self.next_command(workers, now_ms, &envelope):
            self.give(<Machine>workers[envelope.worker], &envelope, now_ms)
        cdef bint happened = self.happened
        self.happened = False
        return happened

    cdef bint next_command(self, PyObject** workers, double now_ms, Envelope* envelope) except -1 nogil:
        """The command to be given next, False when there is none: what follows from facts, then from transfers that
        have ended. It and its hash ids are the caller's, who gives it before asking for another."""
        cdef int32_t i
        while True:
            self.collect(now_ms)
            if self.num_waiting > 0:
                for i in range(self.num_prefill_workers + self.num_decode_workers):
                    if self.waiting[i].count > 0 and not _in_pass(<Machine>workers[i]):
                        self.pass_over(i)
            if self.commands.count > 0:
                lane_pop(&self.commands, envelope)
                if (envelope.kind != CMD_SUBMIT_PREFILL and envelope.kind != CMD_RESERVE_DESTINATION
                        and envelope.kind != CMD_CANCEL and _in_pass(<Machine>workers[envelope.worker])):
                    self.wait_for_pass(envelope)
                    continue
                self.happened = True
                return True
            if not self.end_transfer(now_ms):
                return False
            self.happened = True

    cdef int give(self, Machine machine, Envelope* envelope, double now_ms) except -1 nogil:
        """Have a machine apply a command, and hear whether it refuses."""
        cdef int32_t kind = envelope.kind
        cdef int64_t request = envelope.request
        cdef int64_t i
        cdef bint refused = False
        machine.put(envelope)
        machine.engine.holds_internal = True     # copies that end now are seen when passes start
        machine.pump(now_ms, False, True, False)
        machine.engine.holds_internal = False
        for i in range(machine.num_replies):
            refused = refused or machine.replies[i].status >= APPLY_ACTIVE
        machine.num_replies = 0
        return self.refused(request, kind, now_ms) if refused else 0

    # -- commands that wait -----------------------------------------------------------------------

    cdef int wait_for_pass(self, Envelope* envelope) except -1 nogil:
        """A command may free or admit something: it waits until the pass of its worker is over. They come by rank then,
        those of one rank in the order in which they were due."""
        cdef Lane* lane = &self.waiting[envelope.worker]
        cdef int64_t at
        self.num_waiting += 1
        lane_push(lane, envelope)
        at = lane.count - 1
        while at > 0 and lane.items[(lane.head + at - 1) & lane.mask].rank > envelope.rank:
            lane.items[(lane.head + at) & lane.mask] = lane.items[(lane.head + at - 1) & lane.mask]
            at -= 1
        lane.items[(lane.head + at) & lane.mask] = envelope[0]
        return 0

    cdef int pass_over(self, int32_t worker) except -1 nogil:
        """Put the commands that waited for a pass in line, rank by rank."""
        cdef Envelope envelope
        cdef int32_t rank
        cdef int64_t _i
        for rank in range(self.prefill_dp_size if worker < self.num_prefill_workers else self.decode_dp_size):
            for _i in range(self.waiting[worker].count):
                lane_pop(&self.waiting[worker], &envelope)
                if envelope.rank == rank:
                    self.num_waiting -= 1
                    lane_push(&self.commands, &envelope)
                else:
                    lane_push(&self.waiting[worker], &envelope)
        return 0

    # -- places -----------------------------------------------------------------------------------

    cdef int first_rank(self, Arrival* arrival, double now_ms, int32_t* worker, int32_t* rank) except -1 nogil:
        """Where the request that arrives begins: at its destination, where that goes first; the turn is used."""
        cdef Seeker seeker
        seeker.request, seeker.n_in = arrival.request, arrival.n_in
        seeker.hash_ids, seeker.num_hash_ids = arrival.hash_ids, arrival.num_hash_ids
        return self.places.take(self.order == DESTINATION_FIRST, now_ms, &seeker, worker, rank)

    cdef int _place_at(self, Passage* passage, Envelope* envelope, double now_ms) except -1 nogil:
        """The end of a handoff where it did not begin is asked for the first time: choose who that is."""
        cdef Seeker seeker
        cdef bint decode = envelope.kind == CMD_RESERVE_DESTINATION
        if (passage.decode_worker if decode else passage.prefill_worker) != NONE:
            return 0
        seeker.request, seeker.n_in = passage.request, passage.n_in
        seeker.hash_ids, seeker.num_hash_ids = envelope.hash_ids, envelope.num_hash_ids
        if decode:
            return self.places.take(True, now_ms, &seeker, &passage.decode_worker, &passage.decode_rank)
        return self.places.take(False, now_ms, &seeker, &passage.prefill_worker, &passage.prefill_rank)

    def set_chooser(self, chooser):
        """Who says where requests go: has `choose_prefill(now_ms, request, input_tokens, hash_ids)` and
        `choose_decode(now_ms, request, input_tokens)`, both (worker of the pool, rank). None: they go in turn."""
        self.places.chooser = chooser

    # -- passages ---------------------------------------------------------------------------------

    cdef int _end(self, int32_t at, int32_t status, int32_t reason, double now_ms) except -1 nogil:
        """A request ends that never came to decode."""
        cdef Passage* passage = &self.passages[at]
        cdef bint placed = passage.decode_worker != NONE
        cdef Event* event = self.out.emplace(EV_TERMINAL, now_ms, passage.decode_worker if placed else passage.prefill_worker,
                                             passage.decode_rank if placed else passage.prefill_rank, passage.request)
        cdef int64_t* words
        cdef int64_t tokens
        passage.ended = True
        event.d = -1
        if status == TERM_FAILED:
            words = self.out.emplace_words(event, 2)
            tokens = passage.n_in
            if self.books_outputs and reason != REASON_PROMPT_OVER_MODEL_LEN:
                tokens += min(passage.n_out, self.max_model_len - passage.n_in)
            words[0] = tokens if reason == REASON_PROMPT_OVER_MODEL_LEN else ceil_div(tokens, self.block_size)
            words[1] = self.max_model_len if reason == REASON_PROMPT_OVER_MODEL_LEN else self.num_blocks
            event.d = event.c
        event.a, event.b, event.c, event.x = status, 0, reason, NAN
        return 0

    cdef int _forget_if_over(self, int32_t at) noexcept nogil:
        """A passage is over when its request has ended and its handoff is complete."""
        cdef Passage* passage = &self.passages[at]
        if not passage.ended or (passage.course.phase != HANDOFF_SUCCEEDED and passage.course.phase != HANDOFF_CANCELLED):
            return 0
        free(passage.hash_ids)
        passage.hash_ids = NULL
        self.index.remove(self.index.find(passage.request))
        passage.next_free = self.free_passage
        self.free_passage = at
        return 0

    cdef int32_t find(self, int64_t request) noexcept nogil:
        """Passage of a request, or NONE."""
        cdef int32_t entry = self.index.find(request)
        return NONE if entry == NONE else self.index.entries[entry].slot

    cdef int32_t _new(self) except -1 nogil:
        cdef int32_t at = self.free_passage
        cdef Passage* grown
        cdef int64_t capacity
        if at != NONE:
            self.free_passage = self.passages[at].next_free
            return at
        if self.top == self.capacity:
            capacity = <int64_t>self.capacity * 2 + 64
            grown = <Passage*>realloc(self.passages, capacity * sizeof(Passage))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{capacity} handoffs")
            self.passages = grown
            self.capacity = <int32_t>capacity
        self.passages[self.top].hash_ids = NULL
        self.top += 1
        return self.top - 1

    # -- for Python -------------------------------------------------------------------------------

    cdef int take_machines(self, tuple machines, EventBuffer out, bint external, bint placed) except -1:
        """The machines of the fleet, prefill workers first; their replies are read from now on, unless the caller moves them.

        Raises:
            ValueError: they are not those of the two pools, another buffer is read, or the caller places rows.
        """
        if placed:
            raise ValueError("a fleet with handoffs places its rows itself")
        pools = [self.prefill_dp_size] * self.num_prefill_workers + [self.decode_dp_size] * self.num_decode_workers
        if self.out is not out or [machine.engine.dp_size for machine in machines] != pools:
            raise ValueError("the machines are not those of the two pools, or publish elsewhere")
        for machine in machines:
            (<Machine>machine).keep_replies = not external  # who moves them hears the replies
        return 0

    cdef int keep_one_cut_each(self, double end_ms) except -1:
        """A request may be owned at both ends, or only travel: one CUT for each that has not ended, by request."""
        cdef Py_ssize_t i
        cdef Py_ssize_t kept = 0
        cdef Event* event
        told = {}
        for i in range(self.out.count):
            event = &self.out.records[i]
            if event.kind != EV_CUT:
                self.out.records[kept] = event[0]
                kept += 1
            elif event.worker >= self.num_prefill_workers:
                told[event.request] = event.a, event.x
        self.out.count = kept
        for request, worker, rank in self.living():
            event = self.out.emplace(EV_CUT, end_ms, worker, rank, request)
            event.a, event.x = told.get(request, (0, NAN))
        return 0

    @property
    def next_transfer_ms(self):
        """When the next transfer ends [ms]; inf when none is under way."""
        return self.transfers.next_due()

    @property
    def has_work(self):
        """Something was seen that nobody has acted on, or a command is in line."""
        return self.num_facts > 0 or self.commands.count > 0

    def living(self):
        """(request, worker, rank) of everybody who arrived and has not ended, in order of requests: where it decodes or
        will decode, before that where its prompt is computed."""
        cdef int32_t i
        living = []
        for i in range(self.index.top):
            if self.index.entries[i].state == OWN_ACTIVE:
                passage = &self.passages[self.index.entries[i].slot]
                if not passage.ended:
                    placed = passage.decode_worker != NONE
                    living.append((passage.request, passage.decode_worker if placed else passage.prefill_worker,
                                   passage.decode_rank if placed else passage.prefill_rank))
        return sorted(living)

    @property
    def num_open(self):
        """Requests that have not ended, or of which somebody still owns something."""
        return self.index.num_owned
