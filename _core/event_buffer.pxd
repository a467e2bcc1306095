# Ordered event records: the one output of engine, driver and fleet (see docs/architecture.md).
from libc.math cimport NAN
from libc.stdint cimport int32_t, int64_t


cdef enum EventKind:
    # Requests. `request` is the ordinal of the trace row (from 0).
    EV_ARRIVAL = 0        # a=input_tokens b=requested output tokens c=session ordinal (-1 none) d=turn e=priority
                          # f=1 + play of a graph, 0 none x=deadline from arrival on [ms], NaN none
    EV_COMMAND = 1        # a=CommandKind b=CommandResult c=CommandFlag bits d=command_id
    EV_GAUGES = 2         # a=active_blocks b=inactive_blocks c=running d=waiting e=1 when taken in mid-pass for telemetry only
    # A pass starts: PASS_START, then per executed rank RANK_START with its PREEMPTION, ADMISSION,
    # PREFILL records in decision order, then PASS_START_CLOSE.
    EV_PASS_START = 3     # a=pass_id b=ranks that executed c=wave x=end_ms
    EV_RANK_START = 4     # a=requests scheduled b=tokens scheduled x=rank_end_ms
    EV_ADMISSION = 5      # a=reused_tokens b=admission ordinal of the request (from 0; >0 is a readmission)
                          # c=1 + how many of them came from the host tier, 0 where nobody counts: no tier, or a readmission
    EV_PREFILL = 6        # a=prompt tokens computed b=prompt tokens before c=all tokens computed (only with WANT_PREFILL)
    EV_PREEMPTION = 7     # a=generated tokens kept b=preemption count c,d=words: running, waiting, active blocks before; the same after; blocks held
    EV_PASS_START_CLOSE = 8
    # A pass ends: PASS_END, then per rank of the group RANK_END, FPM, KV_*, the request records, GAUGES,
    # then PASS_END_CLOSE.
    EV_PASS_END = 9       # a=pass_id b=ranks in the group
    EV_RANK_END = 10      # a=tokens emitted b=requests emitting whose last token came with the rank's previous pass
                          # c=requests emitting d=prefill tokens committed x=end_ms of the rank's previous pass (NaN at first)
                          # e=requests emitting without prompt work in this pass f=tokens accepted for them (beyond their length, too)
    EV_FPM = 11           # c,d=words: float64 bits in the order of FPM_FIELDS (only with WANT_FPM)
    EV_FIRST_TOKEN = 12
    EV_SECOND_TOKEN = 13
    EV_RESUMED = 14       # a token whose predecessor did not come with the rank's previous pass: x=time of that predecessor
    EV_TOKENS = 15        # a=tokens of this request in this pass b=its total after (only with WANT_TOKENS)
    EV_TERMINAL = 16      # a=TerminalStatus b=output_tokens c=TerminalReason d=offset of 2 words (needed, available) or -1 x=last_token_ms (NaN without tokens)
    EV_KV_STORED = 17     # request=owner a=blocks b=first block index c,d=words: parent hash (0 at block 0), then
                          # (block hash, local hash) per block (only with WANT_KV)
    EV_KV_REMOVED = 18    # c,d=words: block hashes in eviction order; a=blocks (only with WANT_KV)
    EV_PASS_END_CLOSE = 19
    EV_INTERNAL_WORK = 20 # background work between passes; its EV_HOST records follow. a=ranks that had some
    EV_CUT = 21           # at the end of a cut run, one per request that arrived and is not terminal: a=output tokens so far x=last_token_ms
    EV_DECISION = 22      # of a policy, where it departs from first come, first served: a=Decision b=the request that would
                          # have been chosen (-1 none) e=token budget f=length of the reason c,d=words: its text.
                          # Placement: b=worker e=rank of round robin
    EV_QUIET_PASS = 23    # in the place of all records of a rank's pass that ended, where nobody reads passes: as EV_RANK_END
    EV_QUIET_RUN = 26     # behind it: passes of this rank that followed, all alike. a=tokens emitted in each, as many requests
                          # emitting and no prompt work c,d=words: float64 bits of their ends x=end_ms of the pass before
    EV_HANDOFF = 24       # a=HandoffStage b=tokens (prompt; destination reserved, transfer started: those the destination lacks or
                          # those that are charged; destination cancelled: generated) f=handoff x=end of the transfer [ms]
    EV_HOST = 25          # of a host tier: a=HostStep b=number of the copy (-1 none) c=blocks x=modelled end (NaN not known)
                          # request=whose prompt it is, -1 none


cdef enum HostStep:
    HOST_STORE_PREPARED = 0
    HOST_STORE_SUBMITTED = 1
    HOST_STORE_COMPLETED = 2
    HOST_LOAD_SCHEDULED = 3
    HOST_LOAD_COMPLETED = 4
    HOST_LOAD_CANCELLED = 5
    HOST_EVICTED = 6
    HOST_FENCE = 7               # the pass may write its blocks from x on
    HOST_LOAD_RETURNED = 8       # a request that loaded and finds no room for the rest gives its blocks back


cdef enum:
    NUM_HOST_STEPS = 9


cdef enum CommandKind:
    CMD_SUBMIT = 0
    CMD_CANCEL = 1
    CMD_SUBMIT_PREFILL = 2
    CMD_RELEASE_SOURCE = 3
    CMD_CANCEL_SOURCE = 4
    CMD_RESERVE_DESTINATION = 5
    CMD_ACTIVATE_DESTINATION = 6
    CMD_CANCEL_DESTINATION = 7


cdef enum:
    NUM_COMMAND_KINDS = 8
    NUM_HANDOFF_STAGES = 9


cdef enum CommandResult:
    RES_SUBMITTED = 0
    RES_APPLIED = 1
    RES_NOOP = 2
    RES_REFUSED = 3
    RES_ACCEPTED = 4


cdef enum HandoffStage:
    # Facts of a handoff, in the order of one that succeeds source first.
    STAGE_SOURCE_HELD = 0
    STAGE_DESTINATION_ACCEPTED = 1
    STAGE_DESTINATION_RESERVED = 2
    STAGE_TRANSFER_STARTED = 3
    STAGE_TRANSFER_ENDED = 4
    STAGE_DESTINATION_ACTIVATED = 5
    STAGE_SOURCE_RELEASED = 6
    STAGE_SOURCE_CANCELLED = 7
    STAGE_DESTINATION_CANCELLED = 8


cdef enum CommandFlag:
    CMD_IN_PASS = 1
    CMD_SUPPRESSED = 2


cdef enum TerminalStatus:
    TERM_COMPLETED = 0
    TERM_REJECTED = 1
    TERM_CANCELLED = 2
    TERM_FAILED = 3


cdef enum TerminalReason:
    REASON_OUTPUT_LENGTH = 0      # completed: all requested tokens
    REASON_MODEL_LEN = 1          # completed: max_model_len reached before the requested length
    REASON_PROMPT_OVER_MODEL_LEN = 2   # rejected; words: n_in, max_model_len
    REASON_PROMPT_OVER_POOL = 3        # rejected; words: blocks needed (TensorRT-LLM: with its output), blocks in the pool
    REASON_CLIENT = 4                  # cancelled
    REASON_GROWTH_OVER_POOL = 5        # failed; words: blocks needed, blocks in the pool
    REASON_PROMPT_OVER_BUDGET = 6      # failed; words: tokens needed in one pass, max_num_batched_tokens
    REASON_BURST_OVER_POOL = 7         # failed; words: blocks needed for the burst, blocks in the pool
    REASON_POOL_LEN = 8                # completed: prompt and output fill the pool before the requested length


cdef enum Want:
    WANT_PREFILL = 1
    WANT_FPM = 2
    WANT_TOKENS = 4
    WANT_KV = 8


cdef struct Event:
    double t_ms           # modelled time [ms]
    double x
    int64_t a
    int64_t b
    int64_t c
    int64_t d
    int64_t e
    int64_t f
    int32_t kind
    int32_t worker
    int32_t rank          # dp rank, -1 where none applies
    int32_t request       # trace row ordinal, -1 where none applies


cdef class EventBuffer:
    """Growable array of records and of 64-bit payload words; owned, freed with the object."""
    cdef Event* records          # (capacity,), the first `count` are valid
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef int64_t* words          # (word_capacity,), payloads; Event.c is an offset into it
    cdef Py_ssize_t num_words
    cdef Py_ssize_t word_capacity

    # Inlined into the modules that write records: a third of what a record costs is the call.
    cdef inline Event* emplace(self, int32_t kind, double t_ms, int32_t worker, int32_t rank, int32_t request) except NULL nogil:
        """Append one zeroed record and return it; the pointer holds until the next append."""
        cdef Event* event
        if self.count == self.capacity:
            self._reserve(1)
        event = &self.records[self.count]
        self.count += 1
        event.t_ms = t_ms
        event.x = NAN
        event.a = event.b = event.c = event.d = event.e = event.f = 0
        event.kind = kind
        event.worker = worker
        event.rank = rank
        event.request = request
        return event

    cdef int _reserve(self, Py_ssize_t num_records) except -1 nogil
    cdef int64_t* emplace_words(self, Event* owner, Py_ssize_t n) except NULL nogil
    cdef int append_time(self, Py_ssize_t record, double ms) except -1 nogil
    cdef int extend(self, EventBuffer other, double t_ms) except -1 nogil
    cdef void reset(self) noexcept nogil
