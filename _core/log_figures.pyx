"""Figures of an event log, from its lines alone.

Decides: which lines make a sample, by the definitions of docs/metrics.md (finished requests only), and how samples are
kept in flat memory: exactly up to EXACT_MAX of a kind, from there on as counts of buckets 0.1 % wide. Means stay exact
to the last bit or two either way. Never decides whether a log is right: a line that contradicts another is counted as
it stands. Memory follows the requests that live.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.math cimport fabs, floor
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memset

from .log_lines cimport (
    LINE_ARRIVAL, LINE_CUT, LINE_FINISH, LINE_FIRST_TOKEN, LINE_OTHER, LINE_PASS_END, LINE_PASS_START, LINE_TOKENS,
    kind_of, line_end, mr_hash_text, scan_head, time_of,
)

from .log_lines import KINDS as _KINDS

SAMPLES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_latency_ms")
EXACT_MAX = _EXACT_MAX

cdef enum:
    _EXACT_MAX = 131072
    FIRST_CAPACITY = 256
    MANTISSA_BITS = 10           # of a bucket: its width is a thousandth of its value
    BITS_BELOW = 52 - MANTISSA_BITS
    FIRST_EXPONENT = 1023 - 24   # 6e-8 ms; what is smaller counts as 0
    NUM_BUCKETS = 64 * 1024 + 1
    WORKERS_MAX = 65536
    TOKENS_MAX = 65536           # of one pass; a line that says more is damaged


cdef int _no_memory(int64_t wanted) except -1 with gil:
    raise MemoryError(f"figures of a log: {wanted} entries")


cdef bint is_counted(LineKind kind) noexcept nogil:
    """Whether a line of this kind has anything to say beyond that it is there."""
    return (kind == LINE_ARRIVAL or kind == LINE_FIRST_TOKEN or LINE_FINISH <= kind <= LINE_CUT
            or LINE_PASS_START <= kind <= LINE_TOKENS)


@cython.final
cdef class LogFigures:
    def __dealloc__(self):
        cdef int kind
        cdef int64_t i
        for kind in range(<int>NUM_SAMPLE_KINDS):
            free(self.samples[kind].values)
            free(self.samples[kind].buckets)
        if self.live is not NULL:
            for i in range(self.mask + 1):
                free(self.live[i].gaps)
        free(self.live)
        free(self.places)

    def feed(self, bytes block not None, Py_ssize_t first=0, Py_ssize_t stop=-1):
        """Take the lines of a block from offset `first` to `stop`; both are line borders."""
        if stop < 0:
            stop = len(block)
        if not 0 <= first <= stop <= len(block):
            raise IndexError(f"lines from {first} to {stop} of a block of {len(block)} bytes")
        cdef const char* text = PyBytes_AS_STRING(block)
        with nogil:
            self._feed(text + first, text + stop)

    def copy(self):
        """Figures of the same lines, to go on separately."""
        cdef LogFigures other = LogFigures.__new__(LogFigures)
        cdef int64_t i
        other.counts = self.counts
        other.output_tokens = self.output_tokens
        other.duration_ms = self.duration_ms
        for i in range(NUM_SAMPLE_KINDS):
            _copy_samples(&self.samples[i], &other.samples[i])
        if self.live is not NULL:
            other.live = <Live*>calloc(self.mask + 1, sizeof(Live))
            if other.live is NULL:
                _no_memory(self.mask + 1)
            other.mask = self.mask
            other.num_live = self.num_live
            for i in range(self.mask + 1):
                _copy_live(&self.live[i], &other.live[i])
        if self.num_places > 0:
            other.places = <Place*>malloc(self.num_places * sizeof(Place))
            if other.places is NULL:
                _no_memory(self.num_places)
            memcpy(other.places, self.places, self.num_places * sizeof(Place))
            other.num_places = self.num_places
        return other

    def line_counts(self):
        """Lines by kind."""
        cdef int kind
        return {_KINDS[kind]: self.counts[kind] for kind in range(<int>NUM_LINE_KINDS)}

    def totals(self):
        """Output tokens of finished requests, and when the last of them ended [ms]."""
        return self.output_tokens, self.duration_ms

    def describe(self):
        """For each kind of sample: how many, mean, median, 99th percentile, whether the percentiles are exact."""
        cdef int kind
        return {name: _describe(&self.samples[kind]) for kind, name in enumerate(SAMPLES)}

    def place_of(self, int64_t worker):
        """Number, kind and time of the last pass line of a worker; None before its first."""
        if not 0 <= worker < self.num_places or self.places[worker].kind == LINE_OTHER:
            return None
        place = self.places[worker]
        return place.pass_id, _KINDS[<int>place.kind], place.t_ms

    def worker_of(self, bytes quoted_name not None):
        """Worker of a request that lives, by its name as it stands in a line; None where none does."""
        cdef Live* live = NULL
        if self.live is not NULL:
            live = self._find(mr_hash_text(PyBytes_AS_STRING(quoted_name), len(quoted_name)))
        return None if live is NULL or live.request == 0 or live.worker < 0 else live.worker

    cdef int _feed(self, const char* at, const char* stop) except -1 nogil:
        cdef const char* end
        cdef LineFacts facts
        cdef LineKind kind
        while at < stop:
            end = line_end(at, stop)
            kind = kind_of(at, end)
            if not is_counted(kind):
                self.counts[<int>kind] += 1
            else:
                scan_head(at, end, &facts)
                self.take(kind, &facts)
            at = end + 1
        return 0

    cdef int take(self, LineKind kind, const LineFacts* facts) except -1 nogil:
        """Take a line of this kind."""
        cdef Live* live
        cdef double t_ms
        self.counts[<int>kind] += 1
        if not is_counted(kind):
            return 0
        t_ms = time_of(&self.time, facts)
        if kind == LINE_PASS_START or kind == LINE_PASS_END:
            return self._pass(kind, facts, t_ms)
        if facts.request == 0:
            return 0
        if kind == LINE_ARRIVAL:
            return self._arrive(facts, t_ms)
        live = NULL if self.live is NULL else self._find(facts.request)
        if live is NULL or live.request == 0:
            return 0
        if kind == LINE_FIRST_TOKEN:
            live.first_token_ms = t_ms
        elif kind == LINE_TOKENS:
            self._emit(live, facts.tokens, t_ms)
        else:
            if kind == LINE_FINISH:
                self._finish(live, facts, t_ms)
            self._forget(live)
        return 0

    cdef int _arrive(self, const LineFacts* facts, double t_ms) except -1 nogil:
        cdef Live* live
        if self.live is NULL or 2 * (self.num_live + 1) > self.mask:
            self._grow()
        live = self._find(facts.request)
        if live.request == 0:
            self.num_live += 1
            live.request = facts.request
        live.arrival_ms = t_ms
        live.worker = facts.worker
        live.first_token_ms = live.last_token_ms = -1.0
        live.num_gaps = 0
        return 0

    cdef int _emit(self, Live* live, int64_t tokens, double t_ms) except -1 nogil:
        """Tokens of one pass: the gap before them, and gaps of 0 among them."""
        cdef int64_t num_gaps = tokens - (live.last_token_ms < 0.0)
        cdef int64_t capacity
        cdef double* grown
        cdef int64_t i
        if 0 < num_gaps <= TOKENS_MAX:
            if live.num_gaps + num_gaps > live.gap_capacity:
                capacity = max(live.num_gaps + num_gaps, max(16, 2 * live.gap_capacity))
                grown = <double*>realloc(live.gaps, capacity * sizeof(double))
                if grown is NULL:
                    return _no_memory(capacity)
                live.gaps = grown
                live.gap_capacity = capacity
            for i in range(num_gaps):
                live.gaps[live.num_gaps + i] = 0.0
            if live.last_token_ms >= 0.0:
                live.gaps[live.num_gaps] = max(0.0, t_ms - live.last_token_ms)
            live.num_gaps += num_gaps
        live.last_token_ms = t_ms
        return 0

    cdef int _finish(self, Live* live, const LineFacts* facts, double t_ms) except -1 nogil:
        cdef double span_ms
        cdef int64_t i
        self.output_tokens += max(0, facts.output_tokens)
        self.duration_ms = max(self.duration_ms, t_ms)
        if facts.output_tokens < 1 or live.first_token_ms < 0.0:
            return 0
        _add(&self.samples[<int>SAMPLE_TTFT], max(0.0, live.first_token_ms - live.arrival_ms))
        _add(&self.samples[<int>SAMPLE_E2E], max(0.0, facts.last_token_ms - live.arrival_ms))
        if facts.output_tokens > 1:
            span_ms = max(0.0, facts.last_token_ms - live.first_token_ms)
            _add(&self.samples[<int>SAMPLE_TPOT], span_ms / <double>(facts.output_tokens - 1))
        for i in range(live.num_gaps):
            _add(&self.samples[<int>SAMPLE_ITL], live.gaps[i])
        return 0

    cdef int _pass(self, LineKind kind, const LineFacts* facts, double t_ms) except -1 nogil:
        cdef Place* grown
        cdef int64_t i
        if not 0 <= facts.worker < WORKERS_MAX:
            return 0
        if facts.worker >= self.num_places:
            grown = <Place*>realloc(self.places, (facts.worker + 1) * sizeof(Place))
            if grown is NULL:
                return _no_memory(facts.worker + 1)
            self.places = grown
            for i in range(self.num_places, facts.worker + 1):
                grown[i].kind = LINE_OTHER
            self.num_places = facts.worker + 1
        self.places[facts.worker] = Place(kind, facts.pass_id, t_ms)
        return 0

    # -- requests that live: open addressing, at most half full ------------------------------------

    cdef Live* _find(self, uint64_t request) noexcept nogil:
        """The place of a request, or where it would be (its `request` is 0 then)."""
        cdef uint64_t at = request & <uint64_t>self.mask
        while self.live[at].request != 0 and self.live[at].request != request:
            at = (at + 1) & <uint64_t>self.mask
        return &self.live[at]

    cdef void _forget(self, Live* live) noexcept nogil:
        """Free a place, and move those behind it that were pushed on by it."""
        cdef uint64_t mask = <uint64_t>self.mask
        cdef uint64_t hole = live - self.live
        cdef uint64_t at = hole
        free(live.gaps)
        self.num_live -= 1
        while True:
            at = (at + 1) & mask
            if self.live[at].request == 0:
                break
            if ((at - self.live[at].request) & mask) >= ((at - hole) & mask):
                self.live[hole] = self.live[at]
                hole = at
        memset(&self.live[hole], 0, sizeof(Live))

    cdef int _grow(self) except -1 nogil:
        cdef Live* old = self.live
        cdef int64_t num_old = 0 if old is NULL else self.mask + 1
        cdef int64_t i
        cdef Live* grown = <Live*>calloc(max(FIRST_CAPACITY, 2 * num_old), sizeof(Live))
        if grown is NULL:
            return _no_memory(2 * num_old)
        self.live = grown
        self.mask = max(FIRST_CAPACITY, 2 * num_old) - 1
        for i in range(num_old):
            if old[i].request != 0:
                self._find(old[i].request)[0] = old[i]
        free(old)
        return 0


# -- samples -----------------------------------------------------------------------------------------


cdef int _add(Samples* samples, double value) except -1 nogil:
    cdef double sum = samples.sum + value
    cdef double* grown
    cdef int64_t capacity, i
    if value != value:
        return 0
    # Neumaier: what the larger of the two swallows of the smaller is kept beside.
    samples.lost += (samples.sum - sum) + value if fabs(samples.sum) >= fabs(value) else (value - sum) + samples.sum
    samples.sum = sum
    if samples.buckets is not NULL:
        samples.buckets[_bucket(value)] += 1
    else:
        if samples.count == samples.capacity and samples.count < _EXACT_MAX:
            capacity = max(FIRST_CAPACITY, 2 * samples.capacity)
            grown = <double*>realloc(samples.values, capacity * sizeof(double))
            if grown is NULL:
                return _no_memory(capacity)
            samples.values = grown
            samples.capacity = capacity
        if samples.count < _EXACT_MAX:
            samples.values[samples.count] = value
        else:
            samples.buckets = <int64_t*>calloc(NUM_BUCKETS, sizeof(int64_t))
            if samples.buckets is NULL:
                return _no_memory(NUM_BUCKETS)
            for i in range(samples.count):
                samples.buckets[_bucket(samples.values[i])] += 1
            samples.buckets[_bucket(value)] += 1
            free(samples.values)
            samples.values = NULL
            samples.capacity = 0
    samples.count += 1
    return 0


cdef int64_t _bucket(double value) noexcept nogil:
    """Bucket of a value: 0 for 0 and what is as good as 0, then by the upper bits of the double."""
    cdef uint64_t bits
    cdef int64_t at
    memcpy(&bits, &value, sizeof(bits))
    if not value > 0.0:
        return 0
    at = <int64_t>(bits >> BITS_BELOW) - (<int64_t>FIRST_EXPONENT << MANTISSA_BITS) + 1
    return min(max(at, 0), NUM_BUCKETS - 1)


cdef double _middle(int64_t bucket) noexcept nogil:
    """The value that stands for a bucket; it is at most half a thousandth off."""
    cdef uint64_t bits
    cdef double value
    if bucket == 0:
        return 0.0
    bits = <uint64_t>(bucket - 1 + (<int64_t>FIRST_EXPONENT << MANTISSA_BITS)) << BITS_BELOW
    bits |= <uint64_t>1 << (BITS_BELOW - 1)
    memcpy(&value, &bits, sizeof(value))
    return value


cdef int _compare(const void* a, const void* b) noexcept nogil:
    cdef double x = (<const double*>a)[0]
    cdef double y = (<const double*>b)[0]
    return (x > y) - (x < y)


cdef double _percentile(const Samples* samples, double* ascending, double percent) noexcept nogil:
    """The nearest rank, as docs/metrics.md has it: no interpolation."""
    cdef int64_t rank = <int64_t>floor((samples.count - 1) * percent / 100.0 + 0.5)
    cdef int64_t bucket = 0
    if samples.buckets is NULL:
        return ascending[rank]
    while rank >= samples.buckets[bucket]:
        rank -= samples.buckets[bucket]
        bucket += 1
    return _middle(bucket)


cdef object _describe(Samples* samples):
    if samples.count == 0:
        return 0, None, None, None, True
    # No order of the values is ever asked for again, so they can be sorted where they are.
    if samples.buckets is NULL:
        qsort(samples.values, samples.count, sizeof(double), _compare)
    return (
        samples.count,
        (samples.sum + samples.lost) / samples.count,
        _percentile(samples, samples.values, 50.0),
        _percentile(samples, samples.values, 99.0),
        samples.buckets is NULL,
    )


cdef int _copy_samples(const Samples* source, Samples* target) except -1:
    target[0] = source[0]
    target.values = NULL
    target.buckets = NULL
    if source.values is not NULL:
        target.values = <double*>malloc(source.capacity * sizeof(double))
        if target.values is NULL:
            _no_memory(source.capacity)
        memcpy(target.values, source.values, source.count * sizeof(double))
    if source.buckets is not NULL:
        target.buckets = <int64_t*>malloc(NUM_BUCKETS * sizeof(int64_t))
        if target.buckets is NULL:
            _no_memory(NUM_BUCKETS)
        memcpy(target.buckets, source.buckets, NUM_BUCKETS * sizeof(int64_t))
    return 0


cdef int _copy_live(const Live* source, Live* target) except -1:
    target[0] = source[0]
    target.gaps = NULL
    target.gap_capacity = source.num_gaps
    if source.num_gaps > 0:
        target.gaps = <double*>malloc(source.num_gaps * sizeof(double))
        if target.gaps is NULL:
            target.gap_capacity = target.num_gaps = 0
            _no_memory(source.num_gaps)
        memcpy(target.gaps, source.gaps, source.num_gaps * sizeof(double))
    return 0
