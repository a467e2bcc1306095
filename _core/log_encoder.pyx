"""Event records to JSON lines.

Decides: the bytes of a log line. Never decides what happened, and keeps nothing of it but the counts.
A line depends on its records alone, never on the level, so a log of a lower level is the log of a higher one
with lines left out and `seq` counted again. A pass is one line, made of the records of its group; the lines of
the requests in it follow in the order of their records.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.math cimport NAN
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from .event_buffer cimport (
    CMD_CANCEL, CMD_IN_PASS, CMD_SUPPRESSED, NUM_COMMAND_KINDS, NUM_HANDOFF_STAGES,
    EV_ADMISSION, EV_ARRIVAL, EV_COMMAND, EV_CUT, EV_DECISION, EV_FIRST_TOKEN, EV_FPM, EV_GAUGES, EV_HANDOFF, EV_HOST,
    EV_INTERNAL_WORK, EV_KV_REMOVED, EV_KV_STORED, EV_PASS_END, EV_PASS_END_CLOSE, EV_PASS_START, EV_PASS_START_CLOSE,
    EV_PREEMPTION, EV_PREFILL, EV_QUIET_PASS, EV_QUIET_RUN, EV_RANK_END, EV_RANK_START, EV_RESUMED, EV_SECOND_TOKEN, EV_TERMINAL, EV_TOKENS, Event, EventBuffer,
    RES_ACCEPTED, RES_APPLIED, RES_NOOP, RES_SUBMITTED, STAGE_TRANSFER_STARTED, TERM_CANCELLED, TERM_COMPLETED, TERM_FAILED, TERM_REJECTED,
    WANT_FPM, WANT_KV, WANT_PREFILL, WANT_TOKENS,
)
from .float_text cimport write_double, write_uint64
from .json_text cimport put, put_bool, put_double, put_index, put_int
from .log_fields cimport COMMAND_TEXTS, FPM_ROOM, NUM_FPM, STAGE_TEXTS, host_text, put_fpm, put_gauges, put_host, put_reason
from .policy cimport DECIDE_BUDGET, DECIDE_ORDER, DECIDE_PLACEMENT, DECIDE_VETO, DECIDE_VICTIM
from .request_names cimport RequestNames

from .event_buffer import KIND_NAMES as _KIND_NAMES

cdef enum:
    FIRST_ROOM = 65536
    LINE_ROOM = 768              # a line of fixed fields, without its name
    ITEM_ROOM = 32               # an item of a list, without its name
    NUM_PREEMPTION_WORDS = 7

LEVELS = ("requests", "passes", "tokens", "kv")


cdef int _refuse(Event* event, const char* rule) except -1 with gil:
    name = _KIND_NAMES[event.kind] if 0 <= event.kind < len(_KIND_NAMES) else str(event.kind)
    raise ValueError(f"{name} record at {event.t_ms} ms, worker {event.worker}, rank {event.rank}, "
                     f"request {event.request}: {rule.decode()}")


@cython.final
cdef class LogEncoder:
    """Lines of one log.

    Args:
        with_terms: arrivals tell their priority and deadline, where they have one; a policy may ask for them.
    """

    def __cinit__(self, level, int num_workers=1, int dp_size=1, bint with_terms=False):
        if level not in LEVELS:
            raise ValueError(f"event level must be one of {', '.join(LEVELS)} (got {level!r})")
        if num_workers < 1 or dp_size < 1:
            raise ValueError(f"num_workers and dp_size must be >= 1 (got {num_workers} and {dp_size})")
        self._level = LEVELS.index(level)
        self._num_workers = num_workers
        self._dp_size = dp_size
        self._with_terms = with_terms
        self._names = RequestNames()
        self._t_ms = NAN             # equals no time, so the first line makes its text

    def __dealloc__(self):
        free(self._text)

    @property
    def level(self):
        return LEVELS[self._level]

    @property
    def wants(self):
        """The Want bits an engine must be given for this level."""
        cdef int wants = 0
        if self._level >= LEVEL_PASSES:
            wants |= WANT_PREFILL | WANT_FPM
        if self._level >= LEVEL_TOKENS:
            wants |= WANT_TOKENS
        if self._level >= LEVEL_KV:
            wants |= WANT_KV
        return wants

    def add_names(self, Py_ssize_t first_row, names):
        """Call the requests of the rows from `first_row` on by these names; None keeps r<row>."""
        self._names.add(first_row, names)

    def counts(self):
        """What the footer says: lines so far, and where every request went that arrived."""
        return {
            "events": self._counts.events,
            "arrived": self._counts.arrived,
            "finished": self._counts.ended[<int>TERM_COMPLETED],
            "failed": self._counts.ended[<int>TERM_FAILED],
            "rejected": self._counts.ended[<int>TERM_REJECTED],
            "cancelled": self._counts.ended[<int>TERM_CANCELLED],
            "cut": self._counts.cut,
        }

    def encode(self, EventBuffer events not None):
        """The lines of all records of `events`; groups of a pass must be whole.

        Raises:
            ValueError: a record that no engine may emit (a broken group, an unknown worker or reason).
        """
        self._used = 0
        with nogil:
            self._encode(events)
        return PyBytes_FromStringAndSize(self._text, self._used)

    cdef char* _room(self, char* end, size_t wanted) except NULL nogil:
        """Make room for `wanted` more bytes after `end` (NULL: after the last whole line)."""
        cdef char* grown
        cdef size_t capacity
        if end is not NULL:
            self._used = end - self._text
        if self._used + wanted > self._capacity:
            capacity = max(self._capacity + self._capacity // 2, self._used + wanted + FIRST_ROOM)
            grown = <char*>realloc(self._text, capacity)
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{capacity} bytes of log lines")
            self._text = grown
            self._capacity = capacity
        return self._text + self._used

    cdef char* _open(self, Event* event, const char* kind, size_t extra) except NULL nogil:
        """Begin a line with room for its fixed fields, two names and `extra` bytes."""
        cdef char* out = self._room(NULL, LINE_ROOM + 2 * self._names.longest + extra)
        out = put_int(out, b'{"seq":', self._counts.events)
        if event.t_ms != self._t_ms or event.t_ms == 0.0:    # 0.0 and -0.0 are equal but read differently
            self._t_size = write_double(event.t_ms, self._t_text)
            self._t_ms = event.t_ms
        out = put(out, b',"t_ms":')
        memcpy(out, self._t_text, self._t_size)
        out = put(out + self._t_size, b',"event":"')
        return put(put(out, kind), b'"')

    cdef void _close(self, char* end) noexcept nogil:
        end = put(end, b"}\n")
        self._used = end - self._text
        self._counts.events += 1

    cdef char* _who(self, char* out, Event* event) noexcept nogil:
        out = self._names.write(event.request, put(out, b',"request":'))
        out = put_index(out, b',"worker":', event.worker)
        return put_index(out, b',"rank":', event.rank)

    cdef int _encode(self, EventBuffer events) except -1 nogil:
        cdef Py_ssize_t i = 0
        cdef Py_ssize_t j, close
        cdef Event* event
        cdef Event* gauges
        while i < events.count:
            event = &events.records[i]
            if event.worker >= self._num_workers or event.rank >= self._dp_size:
                _refuse(event, b"worker and rank must exist")
            if event.kind == EV_PASS_START or event.kind == EV_PASS_END:
                close = self._find_close(
                    events, i, EV_PASS_START_CLOSE if event.kind == EV_PASS_START else EV_PASS_END_CLOSE)
                if self._level >= LEVEL_PASSES:
                    if event.kind == EV_PASS_START:
                        self._pass_start(events, i, close)
                    else:
                        self._pass_end(events, i, close)
                for j in range(i + 1, close):
                    self._record(events, &events.records[j])
                i = close + 1
                continue
            if event.kind == EV_COMMAND:
                if self._level >= LEVEL_PASSES:
                    gauges = NULL
                    if i + 1 < events.count and events.records[i + 1].kind == EV_GAUGES:
                        gauges = &events.records[i + 1]
                    self._command(event, gauges)
            elif event.kind == EV_QUIET_PASS or event.kind == EV_QUIET_RUN:
                if self._level >= LEVEL_PASSES:
                    _refuse(event, b"a log of passes needs each pass in full")
            elif event.kind in (EV_RANK_START, EV_PREFILL, EV_PASS_START_CLOSE, EV_RANK_END, EV_FPM, EV_PASS_END_CLOSE):
                _refuse(event, b"must stand inside the group of its pass")
            else:
                self._record(events, event)
            i += 1
        return 0

    cdef Py_ssize_t _find_close(self, EventBuffer events, Py_ssize_t first, int kind) except -1 nogil:
        cdef Py_ssize_t i
        cdef Event* event
        for i in range(first + 1, events.count):
            event = &events.records[i]
            if event.kind == kind:
                return i
            if event.kind in (EV_PASS_START, EV_PASS_END, EV_PASS_START_CLOSE, EV_PASS_END_CLOSE):
                break
            if event.rank >= self._dp_size:
                _refuse(event, b"rank must exist")
        _refuse(&events.records[first], b"its group must be closed in the same buffer")
        return -1

    cdef int _record(self, EventBuffer events, Event* event) except -1 nogil:
        """The line of one record, if it has one at this level; what belongs to a pass line was written with it."""
        cdef int kind = event.kind
        if kind == EV_TOKENS:
            return self._tokens(event)
        if kind == EV_FIRST_TOKEN:
            return self._first_token(event)
        if kind == EV_TERMINAL:
            return self._terminal(events, event)
        if kind == EV_ARRIVAL:
            return self._arrival(event)
        if kind == EV_ADMISSION:
            return self._admission(event)
        if kind == EV_PREEMPTION:
            return self._preemption(events, event)
        if kind == EV_KV_STORED:
            return self._kv_stored(events, event)
        if kind == EV_KV_REMOVED:
            return self._kv_removed(events, event)
        if kind == EV_DECISION:
            return self._decision(events, event)
        if kind == EV_HANDOFF:
            return self._hand_off(event)
        if kind == EV_CUT:
            return self._cut(event)
        if kind == EV_HOST:
            return self._host(event)
        if kind in (EV_INTERNAL_WORK, EV_GAUGES, EV_RANK_START, EV_PREFILL, EV_RANK_END, EV_FPM, EV_SECOND_TOKEN, EV_RESUMED):
            return 0
        return _refuse(event, b"this kind of record has no line")

    cdef int _command(self, Event* event, Event* gauges) except -1 nogil:
        cdef char* out = self._open(event, b"command", 0)
        if not 0 <= event.a < NUM_COMMAND_KINDS:
            _refuse(event, b"unknown kind of command")
        out = put(put(put(out, b',"kind":"'), COMMAND_TEXTS[event.a]), b'"')
        out = self._who(out, event)
        out = put_bool(out, b',"in_pass":', event.c & CMD_IN_PASS)
        if event.b == RES_SUBMITTED:
            out = put(out, b',"result":"submitted"')
        elif event.b == RES_ACCEPTED:
            out = put(out, b',"result":"accepted"')
        elif event.b == RES_APPLIED:
            out = put(out, b',"result":"applied"')
        elif event.b == RES_NOOP:
            out = put(out, b',"result":"noop"')
        else:
            out = put(out, b',"result":"refused"')
        if event.a == CMD_CANCEL:
            out = put_bool(out, b',"suppressed":', event.c & CMD_SUPPRESSED)
        if gauges is not NULL and not gauges.e and gauges.worker == event.worker and gauges.rank == event.rank:
            out = put_gauges(out, gauges)
        self._close(out)
        return 0

    cdef int _pass_start(self, EventBuffer events, Py_ssize_t first, Py_ssize_t close) except -1 nogil:
        cdef Event* event = &events.records[first]
        cdef Event* rank
        cdef Py_ssize_t i = first + 1
        cdef Py_ssize_t end
        cdef bint grouped = self._dp_size > 1
        cdef char* out = self._open(event, b"pass_start", 0)
        out = put_int(out, b',"worker":', event.worker)
        out = put_int(out, b',"pass":', event.a)
        if grouped:
            out = put_int(out, b',"wave":', event.c)
        out = put(put_double(out, b',"end_ms":', event.x), b',"ranks":[')
        while i < close:
            rank = &events.records[i]
            if rank.kind != EV_RANK_START:
                _refuse(rank, b"must follow the start of its rank")
            end = i + 1
            while end < close and events.records[end].kind != EV_RANK_START:
                end += 1
            out = self._room(out, LINE_ROOM)
            out = put_int(out, b',{"rank":' if i > first + 1 else b'{"rank":', rank.rank)
            if grouped:
                out = put_double(out, b',"end_ms":', rank.x)
            out = put_int(out, b',"scheduled_requests":', rank.a)
            out = put_int(out, b',"scheduled_tokens":', rank.b)
            if end > i + 1:
                out = self._rank_list(out, events, i + 1, end, EV_ADMISSION)
                out = self._rank_list(out, events, i + 1, end, EV_PREFILL)
                out = self._rank_list(out, events, i + 1, end, EV_PREEMPTION)
                out = self._rank_budget(out, events, i + 1, end)
            out = put(out, b"}")
            i = end
        self._close(put(out, b"]"))
        return 0

    cdef char* _rank_list(
        self, char* out, EventBuffer events, Py_ssize_t first, Py_ssize_t end, int kind
    ) except NULL nogil:
        """The records of one kind as a list; nothing when there are none."""
        cdef Py_ssize_t i
        cdef Event* event
        cdef bint started = False
        for i in range(first, end):
            event = &events.records[i]
            if event.kind != kind:
                continue
            out = self._room(out, LINE_ROOM + self._names.longest)
            if started:
                out = put(out, b",")
            elif kind == EV_ADMISSION:
                out = put(out, b',"admitted":[')
            elif kind == EV_PREFILL:
                out = put(out, b',"prefill":[')
            else:
                out = put(out, b',"preempted":[')
            started = True
            if kind == EV_PREEMPTION:
                out = self._names.write(event.request, out)
            else:
                out = self._names.write(event.request, put(out, b"["))
                out = put(put_int(out, b",", event.a), b"]")
        return put(out, b"]") if started else out

    cdef char* _rank_budget(self, char* out, EventBuffer events, Py_ssize_t first, Py_ssize_t end) except NULL nogil:
        """The token budget that a policy set, with its reason; nothing where it set none."""
        cdef Py_ssize_t i
        cdef Event* event
        for i in range(first, end):
            event = &events.records[i]
            if event.kind == EV_DECISION and event.a == DECIDE_BUDGET:
                out = self._room(out, LINE_ROOM)
                out = put_int(out, b',"budget":[', event.e)
                out = put(self._reason(put(out, b","), events, event), b"]")
        return out

    cdef char* _reason(self, char* out, EventBuffer events, Event* event) except NULL nogil:
        """The reason of a decision as a JSON text; it holds nothing that had to be escaped."""
        if event.d < 1 or event.f < 1 or event.f > 8 * event.d or event.f > LINE_ROOM // 8:
            _refuse(event, b"must carry its reason")
        out = put(out, b'"')
        memcpy(out, &events.words[event.c], event.f)
        return put(out + event.f, b'"')

    cdef int _pass_end(self, EventBuffer events, Py_ssize_t first, Py_ssize_t close) except -1 nogil:
        cdef Event* event = &events.records[first]
        cdef Py_ssize_t i
        cdef bint started = False
        cdef char* out = self._open(event, b"pass_end", 0)
        out = put_int(out, b',"worker":', event.worker)
        out = put(put_int(out, b',"pass":', event.a), b',"ranks":[')
        for i in range(first + 1, close):
            event = &events.records[i]
            if event.kind not in (EV_RANK_END, EV_FPM, EV_GAUGES):
                continue
            out = self._room(out, FPM_ROOM)
            if event.kind == EV_RANK_END:
                if started:
                    out = put(out, b"},")
                started = True
                out = put_int(out, b'{"rank":', event.rank)
                out = put_int(out, b',"tokens":', event.a)
            elif event.kind == EV_FPM:
                if event.d != NUM_FPM or not started:
                    _refuse(event, b"must follow the end of its rank and carry 14 words")
                out = put_fpm(out, &events.words[event.c])
            elif not event.e:
                if not started:
                    _refuse(event, b"must follow the end of its rank")
                out = put_gauges(out, event)
        self._close(put(out, b"}]") if started else put(out, b"]"))
        return 0

    cdef int _arrival(self, Event* event) except -1 nogil:
        cdef char* out = self._who(self._open(event, b"arrival", 0), event)
        out = put_int(out, b',"input_tokens":', event.a)
        out = put_int(out, b',"output_tokens":', event.b)
        if event.c >= 0:
            out = put_int(out, b',"session":', event.c)
            out = put_int(out, b',"turn":', event.d)
        if event.f > 0:
            out = put_int(out, b',"play":', event.f - 1)
        if self._with_terms:
            if event.e != 0:
                out = put_int(out, b',"priority":', event.e)
            if event.x == event.x:
                out = put_double(out, b',"deadline_ms":', event.x)
        if self._names.has(event.request):
            out = put_int(out, b',"row":', event.request)
        self._close(out)
        self._counts.arrived += 1
        return 0

    cdef int _admission(self, Event* event) except -1 nogil:
        cdef char* out = self._who(self._open(event, b"admission", 0), event)
        out = put_int(out, b',"reused_tokens":', event.a)
        if event.c > 0:
            out = put_int(out, b',"host_tokens":', event.c - 1)
        self._close(put_bool(out, b',"readmission":', event.b > 0))
        return 0

    cdef int _first_token(self, Event* event) except -1 nogil:
        self._close(self._who(self._open(event, b"first_token", 0), event))
        return 0

    cdef int _preemption(self, EventBuffer events, Event* event) except -1 nogil:
        cdef char* out
        cdef const int64_t* words
        if event.d != NUM_PREEMPTION_WORDS:
            _refuse(event, b"must carry 7 words")
        words = &events.words[event.c]
        out = self._who(self._open(event, b"preemption", 0), event)
        out = put_int(out, b',"generated_tokens":', event.a)
        out = put_int(out, b',"preemptions":', event.b)
        out = put_int(out, b',"blocks_held":', words[6])
        out = put_int(out, b',"before":{"running":', words[0])
        out = put_int(out, b',"waiting":', words[1])
        out = put_int(out, b',"active_blocks":', words[2])
        out = put_int(out, b'},"after":{"running":', words[3])
        out = put_int(out, b',"waiting":', words[4])
        out = put_int(out, b',"active_blocks":', words[5])
        self._close(put(out, b"}"))
        return 0

    cdef int _decision(self, EventBuffer events, Event* event) except -1 nogil:
        """What a policy decided otherwise than first come, first served. A budget stands in the line of its pass."""
        cdef char* out
        if event.a == DECIDE_BUDGET:
            return 0
        out = self._open(event, b"decision", self._names.longest)
        if event.a == DECIDE_ORDER:
            out = put(out, b',"kind":"order"')
        elif event.a == DECIDE_VICTIM:
            out = put(out, b',"kind":"victim"')
        elif event.a == DECIDE_VETO:
            out = put(out, b',"kind":"veto"')
        elif event.a == DECIDE_PLACEMENT:
            out = put(out, b',"kind":"placement"')
        else:
            return _refuse(event, b"unknown kind of decision")
        out = self._who(out, event)
        if event.a == DECIDE_ORDER or event.a == DECIDE_VICTIM:
            out = self._names.write(<int32_t>event.b, put(out, b',"instead_of":'))
        elif event.a == DECIDE_PLACEMENT:
            out = put_int(out, b',"instead_of":[', event.b)
            out = put(put_int(out, b",", event.e), b"]")
        self._close(self._reason(put(out, b',"reason":'), events, event))
        return 0

    cdef int _hand_off(self, Event* event) except -1 nogil:
        """A stage of a handoff; a transfer tells when it will end."""
        cdef char* out
        if not 0 <= event.a < NUM_HANDOFF_STAGES:
            return _refuse(event, b"unknown stage of a handoff")
        out = put(put(put(self._open(event, b"handoff", 0), b',"kind":"'), STAGE_TEXTS[event.a]), b'"')
        out = put_int(self._who(out, event), b',"tokens":', event.b)
        self._close(put_double(out, b',"end_ms":', event.x) if event.a == STAGE_TRANSFER_STARTED else out)
        return 0

    cdef int _host(self, Event* event) except -1 nogil:
        """A step of a host tier."""
        cdef const char* text = host_text(event.a)
        cdef char* out
        if self._level < LEVEL_PASSES:
            return 0
        if text is NULL:
            return _refuse(event, b"unknown step of a host tier")
        out = self._open(event, text, 0)
        if event.request >= 0:
            out = self._who(out, event)
        else:
            out = put_index(put_index(out, b',"worker":', event.worker), b',"rank":', event.rank)
        self._close(put_host(out, event))
        return 0

    cdef int _terminal(self, EventBuffer events, Event* event) except -1 nogil:
        cdef char* out
        cdef const char* kind
        if event.a == TERM_COMPLETED:
            kind = b"finish"
        elif event.a == TERM_REJECTED:
            kind = b"rejection"
        elif event.a == TERM_CANCELLED:
            kind = b"cancellation"
        elif event.a == TERM_FAILED:
            kind = b"failure"
        else:
            return _refuse(event, b"unknown terminal status")
        out = self._who(self._open(event, kind, 0), event)
        out = put_int(out, b',"output_tokens":', event.b)
        out = put_double(out, b',"last_token_ms":', event.x)
        out = put_reason(out, event.c, &events.words[event.d] if event.d >= 0 else NULL)
        if out is NULL:
            return _refuse(event, b"unknown reason of an end")
        self._close(out)
        self._counts.ended[event.a] += 1
        return 0

    cdef int _cut(self, Event* event) except -1 nogil:
        cdef char* out = self._who(self._open(event, b"cut", 0), event)
        out = put_int(out, b',"output_tokens":', event.a)
        self._close(put_double(out, b',"last_token_ms":', event.x))
        self._counts.cut += 1
        return 0

    cdef int _tokens(self, Event* event) except -1 nogil:
        cdef char* out
        if self._level < LEVEL_TOKENS:
            return 0
        out = self._open(event, b"tokens", 0)
        out = self._names.write(event.request, put(out, b',"request":'))
        out = put_int(out, b',"tokens":', event.a)
        self._close(put_int(out, b',"total":', event.b))
        return 0

    cdef int _kv_stored(self, EventBuffer events, Event* event) except -1 nogil:
        cdef char* out
        cdef const int64_t* words
        cdef int64_t i
        if self._level < LEVEL_KV:
            return 0
        if event.a < 1 or event.d != 1 + 2 * event.a:
            _refuse(event, b"must carry the parent hash and two hashes a block")
        words = &events.words[event.c]
        out = self._who(self._open(event, b"kv_stored", 2 * event.a * ITEM_ROOM), event)
        out = put(put_int(out, b',"first_block":', event.b), b',"parent_hash":')
        if event.b == 0:
            out = put(out, b"null")
        else:
            out += write_uint64(<uint64_t>words[0], out)
        out = put(out, b',"block_hashes":[')
        for i in range(event.a):
            if i:
                out = put(out, b",")
            out += write_uint64(<uint64_t>words[1 + 2 * i], out)
        out = put(out, b'],"local_hashes":[')
        for i in range(event.a):
            if i:
                out = put(out, b",")
            out += write_uint64(<uint64_t>words[2 + 2 * i], out)
        self._close(put(out, b"]"))
        return 0

    cdef int _kv_removed(self, EventBuffer events, Event* event) except -1 nogil:
        cdef char* out
        cdef const int64_t* words
        cdef int64_t i
        if self._level < LEVEL_KV:
            return 0
        if event.a < 1 or event.d != event.a:
            _refuse(event, b"must carry one hash a block")
        words = &events.words[event.c]
        out = self._open(event, b"kv_removed", event.a * ITEM_ROOM)
        out = put_index(out, b',"worker":', event.worker)
        out = put_index(out, b',"rank":', event.rank)
        out = put(out, b',"block_hashes":[')
        for i in range(event.a):
            if i:
                out = put(out, b",")
            out += write_uint64(<uint64_t>words[i], out)
        self._close(put(out, b"]"))
        return 0
