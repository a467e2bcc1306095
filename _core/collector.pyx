"""Event records in, per-request columns and pooled token gaps out.

Decides: how figures are kept while a run goes on. Never decides a time: every time is copied from a record. The gaps
between tokens are kept by gap_pool; formulas over the columns live in mocker_replay.report.
"""
cimport cython
from libc.math cimport NAN
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from .event_buffer cimport (
    CMD_SUBMIT_PREFILL,
    EV_ADMISSION,
    EV_ARRIVAL,
    EV_COMMAND,
    EV_CUT,
    EV_DECISION,
    EV_FIRST_TOKEN,
    EV_GAUGES,
    EV_HANDOFF,
    EV_HOST,
    EV_PASS_END,
    EV_PREEMPTION,
    EV_QUIET_PASS,
    EV_QUIET_RUN,
    EV_RANK_END,
    EV_RESUMED,
    EV_SECOND_TOKEN,
    EV_TERMINAL,
    RES_NOOP,
    STAGE_DESTINATION_ACCEPTED,
    STAGE_DESTINATION_ACTIVATED,
    STAGE_DESTINATION_RESERVED,
    STAGE_SOURCE_HELD,
    STAGE_SOURCE_RELEASED,
    TERM_COMPLETED,
    EventBuffer,
)
from .gap_pool cimport GapPool
from .policy cimport NUM_DECISIONS

import numpy as np

cdef enum:
    NOT_ARRIVED = -1
    NOT_TERMINAL = -2
    NUM_GAUGES = 4
    ROWS_OPENED = 4096
    RANK_WORDS = 6   # gauges, preemptions not published yet, tokens found by the pass in flight

# name -> (dtype, fill)
COLUMN_TYPES = {
    "arrival_ms": ("f8", NAN),
    "first_admit_ms": ("f8", NAN),
    "first_token_ms": ("f8", NAN),
    "second_token_ms": ("f8", NAN),
    "last_token_ms": ("f8", NAN),
    "terminal_ms": ("f8", NAN),
    "input_tokens": ("i4", 0),
    "requested_output_tokens": ("i4", 0),
    "output_tokens": ("i4", 0),
    "reused_tokens_max": ("i4", 0),
    "reused_tokens_first": ("i4", 0),
    "host_tokens_first": ("i4", -1),
    "needed": ("i8", -1),
    "available": ("i8", -1),
    "num_admissions": ("i4", 0),
    "num_preemptions": ("i4", 0),
    "worker": ("i4", -1),
    "rank": ("i4", -1),
    "session": ("i4", -1),
    "turn": ("i4", 0),
    "status": ("i1", NOT_ARRIVED),
    "reason": ("i1", -1),
}
SESSION_COLUMNS = ("session", "turn")
HOST_COLUMNS = ("host_tokens_first",)
REFUSAL_COLUMNS = ("needed", "available")
_READMISSION_TYPES = {
    "readmission_request": "i8", "readmission_ms": "f8", "readmission_reused_tokens": "i8",
}
# What workers with roles add to both.
STAGE_COLUMN_TYPES = {
    "decode_admit_ms": ("f8", NAN),
    "source_held_ms": ("f8", NAN),
    "destination_reserved_ms": ("f8", NAN),
    "destination_activated_ms": ("f8", NAN),
    "source_released_ms": ("f8", NAN),
    "decode_reused_tokens_max": ("i8", -1),
    "decode_worker": ("i4", -1),
    "decode_rank": ("i4", -1),
    "decode_refused": ("i1", 0),
}
_STAGE_READMISSION_TYPES = {"readmission_decode": "i1"}


cdef inline bint _did_nothing(const Event* event) noexcept nogil:
    """Whether it is a command of a handoff that had no effect: what its rank holds then is shown to nobody."""
    return event.kind == EV_COMMAND and event.b == RES_NOOP and event.a >= CMD_SUBMIT_PREFILL


@cython.final
cdef class Collector:
    def __cinit__(self, int32_t num_workers, int32_t dp_size, int32_t num_prefill_workers=0, bint counts_lookups=False):
        if num_workers < 1 or dp_size < 1:
            raise ValueError(f"a collector needs workers and ranks, got {num_workers} and {dp_size}")
        self.num_workers = num_workers
        self.dp_size = dp_size
        self.num_prefill_workers = num_prefill_workers
        self.counts_lookups = counts_lookups
        self._column_types = COLUMN_TYPES | (STAGE_COLUMN_TYPES if num_prefill_workers else {})
        self._readmission_types = _READMISSION_TYPES | (_STAGE_READMISSION_TYPES if num_prefill_workers else {})
        self._gauges = <int64_t*>calloc(num_workers * dp_size * RANK_WORDS, sizeof(int64_t))
        if self._gauges is NULL:
            raise MemoryError(f"gauges of {num_workers * dp_size} ranks")
        self._gap_pool = GapPool(num_workers * dp_size)
        self._arrays = {}
        self._refusals = {}
        self._grow_rows(1024)
        self._grow_readmissions()

    def __dealloc__(self):
        free(self._gauges)

    def consume(self, EventBuffer buffer not None):
        """Take all records of `buffer`, in order. The buffer is not changed.

        Raises:
            RuntimeError: the records contradict each other; a bug of their producer.
        """
        with nogil:
            self.take(buffer.records, buffer.count, buffer.words)

    cdef int take(self, const Event* records, Py_ssize_t num_records, const int64_t* words) except -1 nogil:
        """Take records in order; `words` are their payloads."""
        cdef Py_ssize_t i
        cdef const Event* event
        for i in range(num_records):
            event = &records[i]
            if event.kind == EV_RANK_END:
                self._end_rank_pass(event)
            elif event.kind == EV_QUIET_PASS:
                self._end_rank_pass(event)
                self._totals.passes += 1
            elif event.kind == EV_QUIET_RUN:
                self._end_quiet_run(event, <const double*>&words[event.c])
            elif event.kind == EV_FIRST_TOKEN:
                self._begin_output(event)
            elif event.kind == EV_SECOND_TOKEN:
                self._second_token_ms[self._row_of(event)] = event.t_ms
            elif event.kind == EV_RESUMED:
                self._gap_pool.resume(self._row_of(event), self._rank_of(event), event.t_ms, event.x)
            elif event.kind == EV_GAUGES:
                if i == 0 or not _did_nothing(&records[i - 1]):
                    self._publish_gauges(event)
            elif event.kind == EV_ARRIVAL:
                self._arrive(event)
            elif event.kind == EV_ADMISSION:
                self._admit(event)
            elif event.kind == EV_PREEMPTION:
                self._num_preemptions[self._row_of(event)] += 1
                self._totals.preemptions += 1
                self._gauges[self._rank_of(event) * RANK_WORDS + NUM_GAUGES] += 1
            elif event.kind == EV_TERMINAL:
                self._end_request(event, words)
            elif event.kind == EV_PASS_END:
                self._totals.passes += 1
            elif event.kind == EV_DECISION:
                if not 0 <= event.a < NUM_DECISIONS:
                    _fail(event, "there is no such decision")
                self._decisions[event.a] += 1
            elif event.kind == EV_CUT:
                self._cut(event)
            elif event.kind == EV_HOST:
                if not 0 <= event.a < NUM_HOST_STEPS:
                    _fail(event, "there is no such step of a host tier")
                self._host_steps[event.a] += 1
                self._host_blocks[event.a] += event.c
            elif event.kind == EV_HANDOFF:
                self._hand_off(event)
            elif event.kind == EV_COMMAND and event.a == CMD_SUBMIT_PREFILL:
                self._submit_prefill(event)
        return 0

    cdef Py_ssize_t _row_of(self, const Event* event) except -1 nogil:
        """Ordinal of a record's request, which must have arrived and not ended."""
        if event.request < 0 or event.request >= self.num_rows or self._status[event.request] != NOT_TERMINAL:
            _fail(event, "its request has not arrived or has ended already")
        return event.request

    cdef int32_t _rank_of(self, const Event* event) except -1 nogil:
        """Scheduler number of a record's worker and rank."""
        if event.worker < 0 or event.worker >= self.num_workers or event.rank < 0 or event.rank >= self.dp_size:
            _fail(event, "there is no such worker or rank")
        return event.worker * self.dp_size + event.rank

    cdef int _arrive(self, const Event* event) except -1 nogil:
        cdef Py_ssize_t row = event.request
        self._rank_of(event)
        if row < 0:
            _fail(event, "a request ordinal is not negative")
        if row >= self.num_rows:
            if row >= self._num_open:
                with gil:
                    self._open_rows(row + 1)
            self.num_rows = row + 1
        if self._status[row] != NOT_ARRIVED:
            _fail(event, "its request has arrived before")
        self._status[row] = NOT_TERMINAL
        self._arrival_ms[row] = event.t_ms
        self._input_tokens[row] = <int32_t>event.a
        self._requested_output_tokens[row] = <int32_t>event.b
        if self._session is NULL and (event.c != -1 or event.d != 0):
            with gil:
                self._add_columns(SESSION_COLUMNS)
        if self._session is not NULL:
            self._session[row] = <int32_t>event.c
            self._turn[row] = <int32_t>event.d
        self._worker[row] = event.worker
        self._rank[row] = event.rank
        self._totals.arrivals += 1
        self._interval.arrivals += 1
        return 0

    cdef int _admit(self, const Event* event) except -1 nogil:
        cdef Py_ssize_t row = self._row_of(event)
        cdef bint decode = self.num_prefill_workers > 0 and event.worker >= self.num_prefill_workers
        self._gauges[self._rank_of(event) * RANK_WORDS + NUM_GAUGES + 1] += event.a
        if self._num_admissions[row] == 0:
            self._first_admit_ms[row] = event.t_ms
            self._reused_tokens_first[row] = <int32_t>event.a
            if self._host_tokens_first is NULL and event.c != 0:
                with gil:
                    self._add_columns(HOST_COLUMNS)
            if self._host_tokens_first is not NULL:
                self._host_tokens_first[row] = <int32_t>(event.c - 1)
        else:
            if self._num_readmissions == self._readmission_capacity:
                with gil:
                    self._grow_readmissions()
            self._readmission_request[self._num_readmissions] = row
            self._readmission_ms[self._num_readmissions] = event.t_ms
            self._readmission_reused_tokens[self._num_readmissions] = event.a
            if self.num_prefill_workers > 0:
                self._readmission_decode[self._num_readmissions] = decode
            self._num_readmissions += 1
        self._num_admissions[row] += 1
        if not decode:
            self._reused_tokens_max[row] = max(self._reused_tokens_max[row], <int32_t>event.a)
            return 0
        if event.b == 0:
            self._decode_admit_ms[row] = event.t_ms
        self._decode_reused_tokens_max[row] = max(self._decode_reused_tokens_max[row], event.a)
        return 0

    cdef int _hand_off(self, const Event* event) except -1 nogil:
        """A stage of a handoff; its request may have ended."""
        cdef Py_ssize_t row = event.request
        if self.num_prefill_workers == 0 or row < 0 or row >= self.num_rows or self._status[row] == NOT_ARRIVED:
            _fail(event, "workers have no roles, or its request has not arrived")
        if event.a == STAGE_SOURCE_HELD:
            self._source_held_ms[row] = event.t_ms
        elif event.a == STAGE_DESTINATION_ACCEPTED:
            self._decode_worker[row], self._decode_rank[row] = event.worker, event.rank
        elif event.a == STAGE_DESTINATION_RESERVED:
            self._destination_reserved_ms[row] = event.t_ms
        elif event.a == STAGE_DESTINATION_ACTIVATED:
            self._destination_activated_ms[row] = event.t_ms
        elif event.a == STAGE_SOURCE_RELEASED:
            self._source_released_ms[row] = event.t_ms
        return 0

    cdef int _submit_prefill(self, const Event* event) except -1 nogil:
        """A prompt goes to a prefill worker; where the destination goes first, its request has arrived there."""
        cdef Py_ssize_t row = event.request
        if row < 0 or row >= self.num_rows or self._status[row] == NOT_ARRIVED:
            _fail(event, "its request has not arrived")
        self._worker[row], self._rank[row] = event.worker, event.rank
        return 0

    cdef int32_t _rank_of_row(self, Py_ssize_t row) noexcept nogil:
        """Scheduler number of the rank whose tokens a request gets."""
        if self.num_prefill_workers > 0 and self._decode_worker[row] >= 0:
            return self._decode_worker[row] * self.dp_size + self._decode_rank[row]
        return self._worker[row] * self.dp_size + self._rank[row]

    cdef int _publish_gauges(self, const Event* event) except -1 nogil:
        """The scheduler's published state; a preemption counts for telemetry from here on, not before."""
        cdef int64_t* gauges = &self._gauges[self._rank_of(event) * RANK_WORDS]
        gauges[0], gauges[1], gauges[2], gauges[3] = event.a, event.b, event.c, event.d
        if not self.counts_lookups:
            self._interval.preemptions += gauges[NUM_GAUGES]
            if event.worker < self.num_prefill_workers:
                self._interval.prefill_preemptions += gauges[NUM_GAUGES]
        gauges[NUM_GAUGES] = 0
        return 0

    cdef int _begin_output(self, const Event* event) except -1 nogil:
        self._first_token_ms[self._row_of(event)] = event.t_ms
        return self._gap_pool.begin(event.request, self._rank_of(event))

    cdef int _end_rank_pass(self, const Event* event) except -1 nogil:
        self._totals.rank_passes += 1
        self._totals.tokens += event.a
        self._totals.prefill_tokens += event.d
        self._totals.decode_forwards += event.e
        self._totals.decode_tokens += event.f
        self._interval.decode_forwards += event.e
        self._interval.decode_tokens += event.f
        if self.counts_lookups:
            self._count_lookups(event, self._rank_of(event))
        # Beyond one token per emitting request there are only burst tokens, at no distance from their predecessors.
        return self._gap_pool.count_pass(self._rank_of(event), event.t_ms, event.x, event.b, event.a - event.c)

    cdef int _end_quiet_run(self, const Event* event, const double* ends_ms) except -1 nogil:
        self._totals.passes += event.d
        self._totals.rank_passes += event.d
        self._totals.tokens += event.a * event.d
        self._totals.decode_forwards += event.a * event.d
        self._totals.decode_tokens += event.a * event.d
        self._interval.decode_forwards += event.a * event.d
        self._interval.decode_tokens += event.a * event.d
        return self._gap_pool.count_run(self._rank_of(event), ends_ms, event.d, event.x, event.a)
    cdef int _count_lookups(self, const Event* event, int32_t rank) except -1 nogil:
        """A rank's part in a pass has ended: what its admissions found, and what it computed."""
        cdef int64_t* found = &self._gauges[rank * RANK_WORDS + NUM_GAUGES + 1]
        self._interval.hit_tokens += found[0]
        self._interval.looked_up_tokens += found[0] + event.d
        if event.worker < self.num_prefill_workers:
            self._interval.prefill_hit_tokens += found[0]
            self._interval.prefill_looked_up_tokens += found[0] + event.d
        found[0] = 0
        return 0

    cdef int _end_request(self, const Event* event, const int64_t* words) except -1 nogil:
        cdef Py_ssize_t row = self._row_of(event)
        self._terminal_ms[row] = event.t_ms
        self._output_tokens[row] = <int32_t>event.b
        self._last_token_ms[row] = event.x
        self._reason[row] = <int8_t>event.c
        if event.d >= 0 and words is not NULL:
            with gil:
                self._refusals[row] = (words[event.d], words[event.d + 1])
        if event.worker >= self.num_prefill_workers > 0 and self._decode_worker[row] < 0:
            # Refused there: it was sent to that rank, and is none of its requests.
            self._decode_worker[row], self._decode_rank[row] = event.worker, event.rank
            self._decode_refused[row] = 1
        if event.a != TERM_COMPLETED:
            self._gap_pool.take_back(row, self._rank_of_row(row), event.b, event.x)
            self._status[row] = <int8_t>event.a
            return 0
        self._gap_pool.settle(row)
        self._status[row] = TERM_COMPLETED
        self._interval.completions += 1
        self._interval.input_tokens += self._input_tokens[row]
        self._interval.output_tokens += event.b
        # The reference leaves a TTFT of zero out of an interval's mean.
        if event.b >= 1 and self._first_token_ms[row] > self._arrival_ms[row]:
            self._interval.ttft_count += 1
            self._interval.ttft_sum_ms += self._first_token_ms[row] - self._arrival_ms[row]
        if event.b >= 2:
            self._interval.mean_gap_count += 1
            self._interval.mean_gap_sum_ms += max(0.0, event.x - self._first_token_ms[row]) / <double>(event.b - 1)
        return 0

    cdef int _cut(self, const Event* event) except -1 nogil:
        """The run ends with this request unfinished: it keeps its figures, but its gaps leave the pool."""
        cdef Py_ssize_t row = self._row_of(event)
        self._output_tokens[row] = <int32_t>event.a
        self._last_token_ms[row] = event.x
        return self._gap_pool.take_back(row, self._rank_of_row(row), event.a, event.x)

    cdef int _open_rows(self, Py_ssize_t wanted) except -1:
        """Fill the columns of `wanted` rows at least, some at a time: memory nobody has written to is none."""
        cdef Py_ssize_t end
        if wanted > self._row_capacity:
            self._grow_rows(max(wanted, self._row_capacity + self._row_capacity // 2))
        end = min(self._row_capacity, max(wanted, self._num_open + ROWS_OPENED))
        for name, array in self._arrays.items():
            if name in self._column_types:
                array[self._num_open:end] = self._column_types[name][1]
        self._num_open = end
        return 0

    cdef int _add_columns(self, tuple names) except -1:
        """Columns that most traces do not need."""
        for name in names:
            dtype, fill = self._column_types[name]
            self._arrays[name] = np.empty(self._row_capacity, dtype)
            self._arrays[name][:self._num_open] = fill
        self._point_at_added()
        return 0

    cdef int _point_at_added(self) except -1:
        if "session" in self._arrays:
            self._session = _i4(self._arrays["session"])
            self._turn = _i4(self._arrays["turn"])
        if "host_tokens_first" in self._arrays:
            self._host_tokens_first = _i4(self._arrays["host_tokens_first"])
        return 0

    cdef int _grow_rows(self, Py_ssize_t capacity) except -1:
        """Make room for `capacity` rows; arrays handed out earlier keep the old memory."""
        for name, (dtype, _) in self._column_types.items():
            if name in self._arrays or name not in (*SESSION_COLUMNS, *HOST_COLUMNS, *REFUSAL_COLUMNS):
                grown = np.empty(capacity, dtype)
                if self._num_open:
                    grown[:self._num_open] = self._arrays[name][:self._num_open]
                self._arrays[name] = grown
        self._row_capacity = capacity
        self._arrival_ms = _f8(self._arrays["arrival_ms"])
        self._first_admit_ms = _f8(self._arrays["first_admit_ms"])
        self._first_token_ms = _f8(self._arrays["first_token_ms"])
        self._second_token_ms = _f8(self._arrays["second_token_ms"])
        self._last_token_ms = _f8(self._arrays["last_token_ms"])
        self._terminal_ms = _f8(self._arrays["terminal_ms"])
        self._input_tokens = _i4(self._arrays["input_tokens"])
        self._requested_output_tokens = _i4(self._arrays["requested_output_tokens"])
        self._output_tokens = _i4(self._arrays["output_tokens"])
        self._reused_tokens_max = _i4(self._arrays["reused_tokens_max"])
        self._reused_tokens_first = _i4(self._arrays["reused_tokens_first"])
        self._num_admissions = _i4(self._arrays["num_admissions"])
        self._num_preemptions = _i4(self._arrays["num_preemptions"])
        self._worker = _i4(self._arrays["worker"])
        self._rank = _i4(self._arrays["rank"])
        self._point_at_added()
        self._status = _i1(self._arrays["status"])
        self._reason = _i1(self._arrays["reason"])
        if self.num_prefill_workers > 0:
            self._point_at_stages()
        return 0

    cdef int _point_at_stages(self) except -1:
        self._decode_admit_ms = _f8(self._arrays["decode_admit_ms"])
        self._source_held_ms = _f8(self._arrays["source_held_ms"])
        self._destination_reserved_ms = _f8(self._arrays["destination_reserved_ms"])
        self._destination_activated_ms = _f8(self._arrays["destination_activated_ms"])
        self._source_released_ms = _f8(self._arrays["source_released_ms"])
        self._decode_reused_tokens_max = _i8(self._arrays["decode_reused_tokens_max"])
        self._decode_worker = _i4(self._arrays["decode_worker"])
        self._decode_rank = _i4(self._arrays["decode_rank"])
        self._decode_refused = _i1(self._arrays["decode_refused"])
        return 0

    cdef int _grow_readmissions(self) except -1:
        cdef Py_ssize_t capacity = max(64, self._readmission_capacity * 2)
        for name, dtype in self._readmission_types.items():
            grown = np.zeros(capacity, dtype)
            if self._readmission_capacity:
                grown[:self._readmission_capacity] = self._arrays[name]
            self._arrays[name] = grown
        self._readmission_capacity = capacity
        self._readmission_request = _i8(self._arrays["readmission_request"])
        self._readmission_ms = _f8(self._arrays["readmission_ms"])
        self._readmission_reused_tokens = _i8(self._arrays["readmission_reused_tokens"])
        if self.num_prefill_workers > 0:
            self._readmission_decode = _i1(self._arrays["readmission_decode"])
        return 0

    cdef object _column(self, str name):
        """One column; one that nothing was entered in takes no memory."""
        dtype, fill = self._column_types[name]
        if name in self._arrays:
            return self._arrays[name][:self.num_rows]
        if name not in REFUSAL_COLUMNS or not self._refusals:
            return np.broadcast_to(np.array(fill, dtype), (self.num_rows,))
        column = np.full(self.num_rows, fill, dtype)
        for row, figures in self._refusals.items():
            column[row] = figures[REFUSAL_COLUMNS.index(name)]
        return column

    def reserve(self, Py_ssize_t num_rows):
        """Make room for a trace of so many rows, which then grows no more."""
        if num_rows > self._row_capacity:
            self._grow_rows(num_rows)
        self._gap_pool.reserve(num_rows)

    def columns(self):
        """Figures of every request, by ordinal.

        Returns:
            Name -> array. The names of COLUMN_TYPES, and of STAGE_COLUMN_TYPES where workers have roles,
            have (num_rows,) entries; readmission_request, readmission_ms
            and readmission_reused_tokens hold the admissions after the first, in order of time. No copy is made:
            the arrays are up to date until the next consume() and must not be written to.
        """
        arrays = {name: self._column(name) for name in self._column_types}
        arrays.update({name: self._arrays[name][:self._num_readmissions] for name in self._readmission_types})
        for array in arrays.values():
            array.flags.writeable = False
        return arrays

    def gaps(self):
        """Distances of consecutive tokens, pooled over all completed requests, exact.

        Gaps of requests that are still live are included until their TERMINAL or CUT record has been consumed.

        Returns:
            (values, weights): ascending distinct gaps [ms] float64, how often each occurs int64 (> 0).
        """
        return self._gap_pool.gaps()

    def gauges(self):
        """Latest scheduler gauges, (num_workers * dp_size, 4) int64: active blocks, inactive blocks, running, waiting."""
        cdef Py_ssize_t size = self.num_workers * self.dp_size * RANK_WORDS
        return np.array(<int64_t[:size]>self._gauges).reshape(-1, RANK_WORDS)[:, :NUM_GAUGES]

    def totals(self):
        """Counters of the whole run, name -> int."""
        return self._totals

    def decisions(self):
        """Decisions of a policy that departed from first come, first served; a list of counts by kind (`Decision`)."""
        return [self._decisions[i] for i in range(<int>NUM_DECISIONS)]

    def host_steps(self):
        """Steps of host tiers, a list of (count, blocks) by kind (`HostStep`)."""
        return [(self._host_steps[i], self._host_blocks[i]) for i in range(<int>NUM_HOST_STEPS)]

    def take_interval(self):
        """Counters since the last call (or the start), name -> number; they start again at zero."""
        cdef Interval taken = self._interval
        memset(&self._interval, 0, sizeof(Interval))
        return taken


cdef int _fail(const Event* event, const char* rule) except -1 nogil:
    with gil:
        raise RuntimeError(
            f"event record of kind {event.kind} at {event.t_ms} ms (worker {event.worker}, rank {event.rank}, "
            f"request {event.request}) cannot be counted: {rule.decode()}"
        )


cdef double* _f8(object array) except NULL:
    cdef double[::1] view = array
    return &view[0]


cdef int64_t* _i8(object array) except NULL:
    cdef int64_t[::1] view = array
    return &view[0]


cdef int32_t* _i4(object array) except NULL:
    cdef int32_t[::1] view = array
    return &view[0]


cdef int8_t* _i1(object array) except NULL:
    cdef int8_t[::1] view = array
    return &view[0]
