"""Ordered event records, in columns a consumer can read without Python objects.

Decides: how records and their payload words are kept. Never decides what happened or when.
A record that carries a payload has `c` = offset into `words` and `d` = number of words, except
EV_TERMINAL, whose `d` is the offset of two words (or -1).
"""
cimport cython
from libc.math cimport NAN
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

import numpy as np

FPM_FIELDS = (
    "wall_time", "num_prefill_requests", "sum_prefill_tokens", "var_prefill_length", "sum_prefill_kv_tokens",
    "num_decode_requests", "sum_decode_kv_tokens", "var_decode_kv_tokens",
    "num_queued_prefill", "sum_queued_prefill_tokens", "var_queued_prefill_length",
    "num_queued_decode", "sum_queued_decode_kv_tokens", "var_queued_decode_kv_tokens",
)

RECORD_DTYPE = np.dtype([
    ("t_ms", "f8"), ("x", "f8"), ("a", "i8"), ("b", "i8"), ("c", "i8"), ("d", "i8"), ("e", "i8"), ("f", "i8"),
    ("kind", "i4"), ("worker", "i4"), ("rank", "i4"), ("request", "i4"),
])

KIND_NAMES = (
    "arrival", "command", "gauges", "pass_start", "rank_start", "admission", "prefill", "preemption",
    "pass_start_close", "pass_end", "rank_end", "fpm", "first_token", "second_token", "resumed", "tokens",
    "terminal", "kv_stored", "kv_removed", "pass_end_close", "internal_work", "cut", "decision",
    "quiet_pass", "handoff", "host", "quiet_run",
)


@cython.final
cdef class EventBuffer:
    def __dealloc__(self):
        free(self.records)
        free(self.words)

    def __len__(self):
        return self.count

    cdef int _reserve(self, Py_ssize_t num_records) except -1 nogil:
        """Room for so many records more."""
        cdef Event* grown
        cdef Py_ssize_t wanted
        if self.count + num_records <= self.capacity:
            return 0
        wanted = max(1024, max(self.capacity * 2, self.count + num_records))
        grown = <Event*>realloc(self.records, wanted * sizeof(Event))
        if grown is NULL:
            with gil:
                raise MemoryError(f"{wanted} event records")
        self.records = grown
        self.capacity = wanted
        return 0

    cdef int64_t* emplace_words(self, Event* owner, Py_ssize_t n) except NULL nogil:
        """Reserve `n` payload words for `owner` (its c and d are set) and return the first."""
        cdef int64_t* grown
        cdef Py_ssize_t wanted = self.word_capacity
        if self.words is NULL or self.num_words + n > self.word_capacity:
            wanted = max(1024, max(self.word_capacity * 2, self.num_words + n))
            grown = <int64_t*>realloc(self.words, wanted * sizeof(int64_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{wanted} event payload words")
            self.words = grown
            self.word_capacity = wanted
        owner.c = self.num_words
        owner.d = n
        self.num_words += n
        return &self.words[owner.c]

    cdef int append_time(self, Py_ssize_t record, double ms) except -1 nogil:
        """One more payload word, for a record that has begun its payload and is the last that has one."""
        cdef Event* owner
        if self.num_words == self.word_capacity:
            owner = &self.records[record]
            self.num_words = owner.c
            self.emplace_words(owner, owner.d + 1)
            owner.d -= 1
            self.num_words -= 1
        (<double*>self.words)[self.num_words] = ms
        self.num_words += 1
        self.records[record].d += 1
        return 0

    cdef int extend(self, EventBuffer other, double t_ms) except -1 nogil:
        """Append all records of `other`, stamped `t_ms`, with their payloads."""
        cdef Event* event
        cdef int64_t kept
        cdef int64_t* words
        cdef const int64_t* source
        cdef Py_ssize_t first = self.count
        cdef Py_ssize_t i
        if other.count == 0:
            return 0
        self._reserve(other.count)
        memcpy(&self.records[first], other.records, other.count * sizeof(Event))
        self.count += other.count
        for i in range(first, self.count):
            self.records[i].t_ms = t_ms
        if other.num_words == 0:
            return 0
        for i in range(first, self.count):
            event = &self.records[i]
            kept = event.c
            if event.kind in (EV_PREEMPTION, EV_FPM, EV_KV_STORED, EV_KV_REMOVED, EV_DECISION):
                words = self.emplace_words(event, event.d)
                memcpy(words, &other.words[kept], event.d * sizeof(int64_t))
            elif event.kind == EV_TERMINAL and event.d >= 0:
                source = &other.words[event.d]
                words = self.emplace_words(event, 2)
                memcpy(words, source, 2 * sizeof(int64_t))
                event.c, event.d = kept, event.c
        return 0

    cdef void reset(self) noexcept nogil:
        self.count = 0
        self.num_words = 0

    def clear(self):
        """Forget all records; memory is kept for the next ones."""
        self.reset()

    def records_array(self):
        """Copy of the records.

        Returns:
            (num_records,) structured array of RECORD_DTYPE; times in ms.
        """
        if self.count == 0:
            return np.empty(0, RECORD_DTYPE)
        return np.frombuffer((<char*>self.records)[:self.count * sizeof(Event)], RECORD_DTYPE).copy()

    def words_array(self):
        """Copy of the payload words, (num_words,) int64."""
        if self.num_words == 0:
            return np.empty(0, np.int64)
        return np.frombuffer((<char*>self.words)[:self.num_words * sizeof(int64_t)], np.int64).copy()

    def rows(self):
        """The records and the payload words as plain values; for the few records of one step, faster than arrays.

        Returns:
            list of tuples in the order of RECORD_DTYPE, list of int.
        """
        cdef Py_ssize_t i
        cdef Event* event
        records = []
        for i in range(self.count):
            event = &self.records[i]
            records.append((event.t_ms, event.x, event.a, event.b, event.c, event.d, event.e, event.f,
                            event.kind, event.worker, event.rank, event.request))
        return records, [self.words[i] for i in range(self.num_words)]

    def requests_of(self, int32_t kind):
        """Requests of all records of one kind, in order, a list of int."""
        cdef Py_ssize_t i
        return [self.records[i].request for i in range(self.count) if self.records[i].kind == kind]

    def rows_of(self, tuple kinds, Py_ssize_t first):
        """Records of some kinds, from the record `first` on, with their payload; for few of many records.

        Returns:
            list of (kind, time [ms], worker, rank, request, payload words or None, `a`).
        """
        cdef Py_ssize_t i, at
        cdef Event* event
        cdef int32_t wanted[8]
        cdef int num_wanted = <int>len(kinds)
        if num_wanted > 8:
            raise ValueError("at most 8 kinds")
        for at in range(num_wanted):
            wanted[at] = kinds[at]
        found = []
        for i in range(first, self.count):
            event = &self.records[i]
            for at in range(num_wanted):
                if event.kind == wanted[at]:
                    break
            else:
                continue
            words = None
            if event.kind == EV_KV_STORED or event.kind == EV_KV_REMOVED:
                words = [self.words[at] for at in range(event.c, event.c + event.d)]
            found.append((event.kind, event.t_ms, event.worker, event.rank, event.request, words, event.a))
        return found

    def append_record(self, int32_t kind, double t_ms, int32_t worker=0, int32_t rank=-1, int32_t request=-1, *,
                      int64_t a=0, int64_t b=0, int64_t c=0, int64_t d=0, int64_t e=0, int64_t f=0, double x=NAN, words=None):
        """Append one record from Python (consumers' tests and the realtime shell).

        `words` (sequence of int64) becomes the payload: c, d are set, or d alone for a terminal record.
        """
        cdef Event* event = self.emplace(kind, t_ms, worker, rank, request)
        cdef int64_t* payload
        cdef Py_ssize_t i
        event.a, event.b, event.c, event.d, event.e, event.f, event.x = a, b, c, d, e, f, x
        if words is not None:
            payload = self.emplace_words(event, len(words))
            for i in range(len(words)):
                payload[i] = words[i]
            if kind == EV_TERMINAL:
                event.d = event.c
                event.c = c
