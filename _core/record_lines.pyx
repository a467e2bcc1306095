"""Per-request records as JSON lines: those of requests that ran without anything unusual.

Writes what `mocker_replay.report.records` says, byte for byte, for a request that was placed by round robin on an
aggregated worker, admitted once and completed. Any other request stops the writing, and the caller writes its line.
Decides nothing; names and shapes of a record are the report's.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from .float_text cimport DOUBLE_TEXT_MAX, INT64_TEXT_MAX, write_double
from .json_text cimport put, put_double, put_int

cdef enum:
    COMPLETED = 0
    # Keys and constant text of a line, then its numbers; names come on top.
    LINE_ROOM = 1400 + 11 * DOUBLE_TEXT_MAX + 16 * INT64_TEXT_MAX
    MAX_LINES = 512


cdef inline char* put_time(char* out, const char* key, double ms) noexcept nogil:
    """A time or latency, or null where there is none (NaN)."""
    out = put(out, key)
    if ms != ms:
        return put(out, b"null")
    return out + write_double(ms, out)


cdef inline char* put_bytes(char* out, bytes text):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    memcpy(out, PyBytes_AS_STRING(text), size)
    return out + size


@cython.final
cdef class RecordLines:
    """Columns of some consecutive rows, and the lines of their records.

    Args:
        columns: name -> array of n entries, those of a collector and the latencies of the report [ms].
        first_row: row of the first entry.
        dp_size: ranks a worker.
        names, uuids: n names and UUIDs as JSON text.
        sessions: JSON text of each session ordinal; None when sessions are not reported.
    """

    def __cinit__(self, dict columns not None, int64_t first_row, int64_t dp_size, list names not None,
                  list uuids not None, list sessions):
        self.first_row, self.dp_size = first_row, dp_size
        self.names, self.uuids, self.sessions = names, uuids, sessions
        self.num_rows = len(names)
        self.times = [columns[name] for name in TIMES]
        self.counts = [columns[name] for name in COUNTS]
        self.smalls = [columns[name] for name in SMALLS]
        self.status = columns["status"]
        for column in (*self.times, *self.counts, *self.smalls, columns["status"], uuids):
            if len(column) != self.num_rows:
                raise ValueError(f"{self.num_rows} names, but {len(column)} entries of a column")

    def write(self, Py_ssize_t at):
        """Lines from entry `at` on, until one that is not ordinary, or enough of them.

        Returns:
            (lines, index of the first entry that was not written). Requests that have not ended have no line.
        """
        cdef Py_ssize_t begin = at
        cdef Py_ssize_t end = min(self.num_rows, at + MAX_LINES)
        cdef Py_ssize_t room = 1
        cdef Py_ssize_t i
        cdef char* text
        cdef char* out
        cdef const double[::1] column
        cdef const int64_t[::1] wide
        cdef const int32_t[::1] narrow
        for i in range(begin, end):
            room += LINE_ROOM + len(<bytes>self.names[i]) + len(<bytes>self.uuids[i])
            if self.sessions is not None:
                room += len(<bytes>self.sessions[self.smalls[SESSION][i]])
        for i in range(NUM_TIMES):
            column = self.times[i]
            self.time[i] = &column[0] if self.num_rows > 0 else NULL
        for i in range(NUM_COUNTS):
            wide = self.counts[i]
            self.count[i] = &wide[0] if self.num_rows > 0 else NULL
        for i in range(NUM_SMALLS):
            narrow = self.smalls[i]
            self.small[i] = &narrow[0] if self.num_rows > 0 else NULL
        text = <char*>malloc(room)
        if text is NULL:
            raise MemoryError(f"{room} bytes of records")
        try:
            out = text
            while at < end and self._is_plain(at):
                if self.status[at] == COMPLETED:
                    out = self._line(at, out)
                at += 1
            return text[:out - text], at
        finally:
            free(text)

    cdef bint _is_plain(self, Py_ssize_t at):
        return self.status[at] < COMPLETED or (self.status[at] == COMPLETED and self.small[ADMISSIONS][at] == 1)

    cdef char* _line(self, Py_ssize_t at, char* out):
        cdef int64_t scheduler = self.small[WORKER][at] * self.dp_size + self.small[RANK][at]
        out = put(out, b'{"session_id":')
        if self.sessions is None:
            out = put(out, b'null,"turn_index":null')
        else:
            out = put_bytes(out, <bytes>self.sessions[self.small[SESSION][at]])
            out = put_int(out, b',"turn_index":', self.small[TURN][at])
        out = put(out, b',"uuid":')
        out = put_bytes(out, <bytes>self.uuids[at])
        out = put_double(out, b',"arrival_time_ms":', self.time[ARRIVAL][at])
        out = put(out, b',"dispatched_at_ms":null')
        out = put_time(out, b',"first_admit_ms":', self.time[FIRST_ADMIT][at])
        out = put_time(out, b',"terminal_time_ms":', self.time[TERMINAL][at])
        out = put_time(out, b',"first_token_ms":', self.time[FIRST_TOKEN][at])
        out = put_time(out, b',"last_token_ms":', self.time[LAST_TOKEN][at])
        out = put_time(out, b',"ttft_ms":', self.time[TTFT][at])
        out = put_time(out, b',"ttst_ms":', self.time[TTST][at])
        out = put_time(out, b',"e2e_latency_ms":', self.time[E2E][at])
        out = put_time(out, b',"itl_ms":', self.time[TPOT][at])
        out = put_int(out, b',"input_length":', self.count[INPUT][at])
        out = put_int(out, b',"requested_output_length":', self.count[REQUESTED][at])
        out = put_int(out, b',"output_length":', self.count[OUTPUT][at])
        out = put_int(out, b',"reused_input_tokens":', self.count[REUSED_MAX][at])
        out = put_int(out, b',"prefill_worker_idx":null,"decode_worker_idx":', scheduler)
        out = put(out, b',"prefill_admit_ms":null,"source_held_ms":null,"destination_reserved_ms":null'
                       b',"destination_activated_ms":null,"decode_admit_ms":null,"source_released_ms":null'
                       b',"decode_reused_input_tokens":null,"prefill_route_overlap_tokens":null'
                       b',"decode_route_overlap_tokens":null,"routing_history":[{"pool":"agg","outcome":"immediate"'
                       b',"queue_entered_at_ms":null,"released_at_ms":null,"queue_wait_ms":0.0')
        out = put_int(out, b',"logical_worker_id":', self.small[WORKER][at])
        out = put_int(out, b',"scheduler_id":', scheduler)
        out = put_int(out, b',"dp_rank":', self.small[RANK][at])
        out = put(out, b',"reported_overlap_tokens":0,"selected_overlap_blocks":null'
                       b',"best_available_overlap_blocks":null,"overlap_regret_blocks":null'
                       b',"placement_replica_id":null}],"admission_history":[{"admission_ordinal":0'
                       b',"pool_admission_ordinal":0,"pool":"agg"')
        out = put_time(out, b',"at_ms":', self.time[FIRST_ADMIT][at])
        out = put_int(out, b',"reused_input_tokens":', self.count[REUSED_FIRST][at])
        out = put(out, b',"is_readmission":false}],"admission_count":1,"readmission_count":0'
                       b',"pressure_record_ordinals":[],"terminal_status":"completed"')
        out = put_int(out, b',"row":', self.first_row + at)
        out = put(out, b',"name":')
        out = put_bytes(out, <bytes>self.names[at])
        out = put_int(out, b',"preemption_count":', self.small[PREEMPTIONS][at])
        return put(out, b"}\n")


TIMES = ("arrival_ms", "first_admit_ms", "terminal_ms", "first_token_ms", "last_token_ms", "ttft_ms", "ttst_ms",
         "e2e_ms", "tpot_ms")
COUNTS = ("input_tokens", "requested_output_tokens", "output_tokens", "reused_tokens_max", "reused_tokens_first")
SMALLS = ("num_admissions", "num_preemptions", "worker", "rank", "session", "turn")
