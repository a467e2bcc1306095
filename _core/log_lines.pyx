"""Lines of an event log being compared: which event a line is, and what it says.

Decides: which fields name an event (its key), which are times, how ignored fields are left out, and that two lines are
the same when the same tokens stand in the same order. Numbers are compared as text: 1 and 1.0 are different bytes of a
log. Never decides which lines belong together; the aligner does. A line that is no JSON object is an event of its own
that equals only itself.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.math cimport NAN
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

KINDS = (
    "arrival", "admission", "first_token", "preemption", "finish", "rejection", "cancellation", "failure", "cut",
    "command", "pass_start", "pass_end", "tokens", "kv_stored", "kv_removed", "decision", "other",
)
LEVELS = ("requests", "passes", "tokens", "kv")

cdef enum:
    EVENT_WITHIN = 96            # the kind stands behind seq and t_ms
    END_OF_REQUEST = 64          # seeds of keys besides the kinds: all ends of a request share one


cdef struct KeyParts:            # hashes of the values that tell events of one kind apart
    uint64_t kind
    uint64_t rank
    uint64_t total
    uint64_t first_block
    uint64_t preemptions
    uint64_t block_hashes


cdef inline bint _is(const char* name, size_t size, const char* wanted, size_t wanted_size) noexcept nogil:
    return size == wanted_size and memcmp(name, wanted, wanted_size) == 0


cdef LineKind _named(const char* name, size_t size) noexcept nogil:
    if size == 3:
        return LINE_CUT if memcmp(name, b"cut", 3) == 0 else LINE_OTHER
    if size == 6:
        if memcmp(name, b"tokens", 6) == 0:
            return LINE_TOKENS
        return LINE_FINISH if memcmp(name, b"finish", 6) == 0 else LINE_OTHER
    if size == 7:
        if memcmp(name, b"arrival", 7) == 0:
            return LINE_ARRIVAL
        if memcmp(name, b"command", 7) == 0:
            return LINE_COMMAND
        return LINE_FAILURE if memcmp(name, b"failure", 7) == 0 else LINE_OTHER
    if size == 8:
        if memcmp(name, b"pass_end", 8) == 0:
            return LINE_PASS_END
        return LINE_DECISION if memcmp(name, b"decision", 8) == 0 else LINE_OTHER
    if size == 9:
        if memcmp(name, b"admission", 9) == 0:
            return LINE_ADMISSION
        if memcmp(name, b"rejection", 9) == 0:
            return LINE_REJECTION
        return LINE_KV_STORED if memcmp(name, b"kv_stored", 9) == 0 else LINE_OTHER
    if size == 10:
        if memcmp(name, b"pass_start", 10) == 0:
            return LINE_PASS_START
        if memcmp(name, b"preemption", 10) == 0:
            return LINE_PREEMPTION
        return LINE_KV_REMOVED if memcmp(name, b"kv_removed", 10) == 0 else LINE_OTHER
    if size == 11:
        return LINE_FIRST_TOKEN if memcmp(name, b"first_token", 11) == 0 else LINE_OTHER
    if size == 12:
        return LINE_CANCELLATION if memcmp(name, b"cancellation", 12) == 0 else LINE_OTHER
    return LINE_OTHER


cdef inline int _level_of(LineKind kind) noexcept nogil:
    """The lowest level that holds lines of this kind."""
    if kind == LINE_TOKENS:
        return 2
    if kind == LINE_KV_STORED or kind == LINE_KV_REMOVED:
        return 3
    return 1 if kind == LINE_COMMAND or kind == LINE_PASS_START or kind == LINE_PASS_END else 0


cdef const char* line_end(const char* at, const char* stop) noexcept nogil:
    """Where the line at `at` ends, its LF not included."""
    cdef const char* found = <const char*>memchr(at, b"\n", stop - at)
    return stop if found is NULL else found


cdef const char* body_of(const char* line, const char* end) noexcept nogil:
    """What follows the leading `seq` of a line; the whole line where it does not begin with one."""
    cdef const char* comma
    if end - line < 8 or memcmp(line, b'{"seq":', 7) != 0:
        return line
    comma = <const char*>memchr(line, b",", end - line)
    return line if comma is NULL else comma + 1


cdef double time_of(ReadTime* last, const LineFacts* facts) noexcept nogil:
    """The `t_ms` of a line [ms]; NaN where it has none."""
    cdef double t_ms
    if facts.t_text is NULL:
        return NAN
    if facts.t_size == last.size and memcmp(facts.t_text, last.text, last.size) == 0:
        return last.t_ms
    if not mr_read_double(facts.t_text, facts.t_size, &t_ms):
        return NAN
    if facts.t_size <= sizeof(last.text):
        memcpy(last.text, facts.t_text, facts.t_size)
        last.size = facts.t_size
        last.t_ms = t_ms
    return t_ms


cdef LineKind kind_of(const char* line, const char* end) noexcept nogil:
    """The kind of a line of ours, read off its beginning."""
    cdef const char* stop = end if end - line < EVENT_WITHIN else line + EVENT_WITHIN
    cdef const char* at = line
    cdef const char* close
    while True:
        at = <const char*>memchr(at, b"e", stop - at)
        if at is NULL or end - at < 10:
            return LINE_OTHER
        if memcmp(at, b'event":"', 8) == 0:
            break
        at += 1
    at += 8
    close = <const char*>memchr(at, b'"', end - at)
    return LINE_OTHER if close is NULL else _named(at, close - at)


cdef const char* _scalar_end(const char* first, const char* end) noexcept nogil:
    """Behind a string, number or word; NULL where there is none."""
    cdef const char* at = first
    if first < end and first[0] == b'"':
        return mr_string_end(first, end)
    while at < end and at[0] != b"," and at[0] != b"}" and at[0] != b"]":
        at += 1
    if at == first:
        return NULL
    return at


cdef const char* _value_end(const char* at, const char* end) noexcept nogil:
    """Behind any value; NULL where it does not end."""
    cdef int depth = 0
    if at < end and at[0] != b"{" and at[0] != b"[":
        return _scalar_end(at, end)
    while at < end:
        if at[0] == b'"':
            at = mr_string_end(at, end)
            if at is NULL:
                return NULL
            continue
        if at[0] == b"{" or at[0] == b"[":
            depth += 1
        elif at[0] == b"}" or at[0] == b"]":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return NULL


cdef int64_t _whole(const char* at, size_t size) noexcept nogil:
    """A number from 0 on without a sign; -1 for anything else."""
    cdef int64_t value = 0
    cdef int digit
    cdef size_t i
    if size == 0 or size > 18:
        return -1
    for i in range(size):
        digit = at[i] - 48       # "0"
        if not 0 <= digit <= 9:
            return -1
        value = value * 10 + digit
    return value


cdef void _forget(LineFacts* facts) noexcept nogil:
    memset(facts, 0, sizeof(LineFacts))
    facts.kind = LINE_OTHER
    facts.last_token_ms = NAN
    facts.worker = facts.pass_id = facts.tokens = facts.output_tokens = -1


cdef void _take(LineFacts* facts, KeyParts* parts, const char* name, size_t size, const char* value,
                size_t value_size, uint64_t value_hash) noexcept nogil:
    """One field of the line itself."""
    if size == 3 and memcmp(name, b"seq", 3) == 0:
        facts.seq = value_hash
    elif size == 4:
        if memcmp(name, b"t_ms", 4) == 0:
            facts.t_text, facts.t_size = value, value_size
        elif memcmp(name, b"rank", 4) == 0:
            parts.rank = value_hash
        elif memcmp(name, b"pass", 4) == 0:
            facts.pass_id = _whole(value, value_size)
        elif memcmp(name, b"kind", 4) == 0:
            parts.kind = value_hash
    elif size == 5:
        if memcmp(name, b"event", 5) == 0 and value_size > 2:
            facts.kind = _named(value + 1, value_size - 2)
        elif memcmp(name, b"total", 5) == 0:
            parts.total = value_hash
    elif size == 6:
        if memcmp(name, b"worker", 6) == 0:
            facts.worker = _whole(value, value_size)
        elif memcmp(name, b"tokens", 6) == 0:
            facts.tokens = _whole(value, value_size)
    elif _is(name, size, b"request", 7):
        facts.request = value_hash
    elif _is(name, size, b"first_block", 11):
        parts.first_block = value_hash
    elif _is(name, size, b"preemptions", 11):
        parts.preemptions = value_hash
    elif _is(name, size, b"output_tokens", 13):
        facts.output_tokens = _whole(value, value_size)
    elif _is(name, size, b"last_token_ms", 13):
        mr_read_double(value, value_size, &facts.last_token_ms)


cdef uint64_t _key(const LineFacts* facts, const KeyParts* parts) noexcept nogil:
    """Which event this is. docs/diff.md tells these rules; change both."""
    cdef LineKind kind = facts.kind
    if kind == LINE_OTHER:
        return facts.content
    if LINE_FINISH <= kind <= LINE_CUT:
        return mr_mix(END_OF_REQUEST, facts.request)
    if kind == LINE_PASS_START or kind == LINE_PASS_END:
        return mr_mix(mr_mix(<uint64_t>kind, <uint64_t>facts.worker), <uint64_t>facts.pass_id)
    if kind == LINE_TOKENS:
        return mr_mix(mr_mix(<uint64_t>kind, facts.request), parts.total)
    if kind == LINE_PREEMPTION:
        return mr_mix(mr_mix(<uint64_t>kind, facts.request), parts.preemptions)
    if kind == LINE_COMMAND or kind == LINE_DECISION:
        return mr_mix(mr_mix(<uint64_t>kind, facts.request), parts.kind)
    if kind == LINE_KV_STORED:
        return mr_mix(mr_mix(<uint64_t>kind, facts.request), parts.first_block)
    if kind == LINE_KV_REMOVED:
        return mr_mix(mr_mix(mr_mix(<uint64_t>kind, <uint64_t>facts.worker), parts.rank), parts.block_hashes)
    return mr_mix(<uint64_t>kind, facts.request)


cdef inline bint _is_time(const char* name, size_t size) noexcept nogil:
    return (_is(name, size, b"t_ms", 4) or _is(name, size, b"end_ms", 6) or _is(name, size, b"wall_time", 9)
            or _is(name, size, b"last_token_ms", 13))


cdef inline bint _is_ignored(const Ignored* ignored, uint64_t name, uint64_t path) noexcept nogil:
    cdef int i
    for i in range(ignored.num_names):
        if ignored.names[i] == name:
            return True
    for i in range(ignored.num_paths):
        if ignored.paths[i] == path:
            return True
    return False


cdef void _be_other(const char* line, const char* end, LineFacts* facts) noexcept nogil:
    """A line that cannot be read: nothing but its bytes is known."""
    _forget(facts)
    facts.content = facts.timeless = facts.key = mr_hash_text(line, end - line)


cdef bint scan_head(const char* line, const char* end, LineFacts* facts) noexcept nogil:
    """The fields before the first nested one; key and hashes are not made. False where the line is not of our form."""
    cdef KeyParts parts
    cdef const char* at = line + 1
    cdef const char* name
    cdef const char* name_end
    cdef const char* value_end
    _forget(facts)
    if line == end or line[0] != b"{":
        return False
    while at < end and at[0] == b'"':
        name = at + 1
        at = mr_string_end(at, end)
        if at is NULL or at + 1 >= end or at[0] != b":":
            return False
        name_end = at - 1
        at += 1
        if at[0] == b"{" or at[0] == b"[":
            return True
        value_end = _scalar_end(at, end)
        if value_end is NULL or value_end >= end:
            return False
        _take(facts, &parts, name, name_end - name, at, value_end - at, mr_hash_text(at, value_end - at))
        if value_end[0] == b"}":
            return True
        at = value_end + 1
    return False


cdef void scan_line(const char* line, const char* end, const Ignored* ignored, LineFacts* facts) noexcept nogil:
    """All facts of a line."""
    if not _scan(line, end, ignored, facts):
        _be_other(line, end, facts)


cdef bint _scan(const char* line, const char* end, const Ignored* ignored, LineFacts* facts) noexcept nogil:
    """Walk the tokens of a line; False where it is no JSON object, or nested too deep."""
    cdef KeyParts parts
    cdef uint64_t[MAX_DEPTH + 1] paths   # of the container at each depth
    cdef bint[MAX_DEPTH + 1] is_object
    cdef uint64_t path = 0               # of the value that comes next
    cdef bint wants_key = False
    cdef int depth = 0
    cdef const char* at = line
    cdef const char* stop
    _forget(facts)
    memset(&parts, 0, sizeof(parts))
    if line == end or line[0] != b"{":
        return False
    while at < end:
        if at[0] == b",":
            wants_key = is_object[depth]
            at += 1
        elif at[0] == b"{" or at[0] == b"[":
            if depth == MAX_DEPTH:
                return False
            # An item of a list has the path of the list: lists are passed through.
            paths[depth + 1] = path if depth == 0 or is_object[depth] else paths[depth]
            depth += 1
            is_object[depth] = wants_key = at[0] == b"{"
            facts.timeless = mr_mix(facts.timeless, <uint64_t>at[0])
            at += 1
        elif at[0] == b"}" or at[0] == b"]":
            facts.timeless = mr_mix(facts.timeless, <uint64_t>at[0])
            at += 1
            depth -= 1
            if depth == 0:
                break
        elif wants_key:
            wants_key = False
            at = _field(at, end, ignored, facts, &parts, depth == 1, paths[depth], &path)
            if at is NULL:
                return False
        else:
            stop = _scalar_end(at, end)
            if stop is NULL:
                return False
            facts.timeless = mr_mix(facts.timeless, mr_hash_text(at, stop - at))
            at = stop
    if depth != 0 or at != end:
        return False
    # Until here `content` is a hash of the times alone.
    facts.content = mr_mix(facts.timeless, facts.content)
    facts.key = _key(facts, &parts)
    return True


cdef const char* _field(const char* at, const char* end, const Ignored* ignored, LineFacts* facts, KeyParts* parts,
                        bint is_top, uint64_t container, uint64_t* path) noexcept nogil:
    """One name, with its value where that is not to be walked; where to go on, NULL where it is no field."""
    cdef const char* name = at + 1
    cdef const char* stop = mr_string_end(at, end) if at[0] == b'"' else NULL
    cdef bint is_ignored
    cdef uint64_t token, value
    cdef size_t size
    if stop is NULL or stop + 1 >= end or stop[0] != b":":
        return NULL
    size = stop - at - 2
    token = mr_hash_text(name, size)
    path[0] = mr_mix(container, token)
    is_ignored = _is_ignored(ignored, token, path[0])
    at = stop + 1
    if at[0] == b"{" or at[0] == b"[":
        if is_top and _is(name, size, b"block_hashes", 12):
            stop = _value_end(at, end)
            if stop is NULL:
                return NULL
            parts.block_hashes = mr_hash_text(at, stop - at)
        if is_ignored:
            return _value_end(at, end)
        facts.timeless = mr_mix(facts.timeless, token)
        return at
    stop = _scalar_end(at, end)
    if stop is NULL:
        return NULL
    value = mr_hash_text(at, stop - at)
    if is_top:
        _take(facts, parts, name, size, at, stop - at, value)
        if _is(name, size, b"seq", 3):
            return stop
    if not is_ignored:
        facts.timeless = mr_mix(facts.timeless, token)
        if _is_time(name, size):
            facts.content = mr_mix(facts.content, value)
        else:
            facts.timeless = mr_mix(facts.timeless, value)
    return stop


cdef Py_ssize_t _count_lines(const char* at, const char* stop) noexcept nogil:
    return mr_count_byte(at, stop - at, b"\n")


@cython.final
cdef class LineRules:
    def __cinit__(self, ignored=(), bint seq_left_out=False):
        cdef uint64_t path
        for field in ignored:
            parts = [part.encode() for part in field.split(".")]
            if field == "seq":
                seq_left_out = True
            elif self.ignored.num_names == MAX_IGNORED or self.ignored.num_paths == MAX_IGNORED:
                raise ValueError(f"at most {MAX_IGNORED} fields can be left out")
            elif len(parts) == 1:
                self.ignored.names[self.ignored.num_names] = _hash(parts[0])
                self.ignored.num_names += 1
            else:
                path = 0
                for part in parts:
                    path = mr_mix(path, _hash(part))
                self.ignored.paths[self.ignored.num_paths] = path
                self.ignored.num_paths += 1
        self.seq_left_out = seq_left_out
        self.exact = not seq_left_out and self.ignored.num_names == 0 and self.ignored.num_paths == 0

    def first_difference(self, bytes a not None, Py_ssize_t a_at, bytes b not None, Py_ssize_t b_at):
        """Go on in two blocks of whole lines until lines differ or one block ends.

        Returns:
            Offsets of the lines that come next, how many lines were the same, and whether the next ones differ.
        """
        if not (0 <= a_at <= len(a) and 0 <= b_at <= len(b)):
            raise IndexError(f"offsets {a_at} and {b_at} of blocks of {len(a)} and {len(b)} bytes")
        cdef const char* first_a = PyBytes_AS_STRING(a)
        cdef const char* first_b = PyBytes_AS_STRING(b)
        cdef const char* at_a = first_a + a_at
        cdef const char* at_b = first_b + b_at
        cdef const char* stop_a = first_a + len(a)
        cdef const char* stop_b = first_b + len(b)
        cdef Py_ssize_t shared = min(len(a) - a_at, len(b) - b_at)
        cdef Py_ssize_t num_same = 0
        cdef bint differs = False
        with nogil:
            if memcmp(at_a, at_b, shared) == 0:
                num_same = _count_lines(at_a, at_a + shared)
                at_a += shared
                at_b += shared
            else:
                differs = self._step(&at_a, stop_a, &at_b, stop_b, &num_same)
        return at_a - first_a, at_b - first_b, num_same, differs

    cdef bint _step(self, const char** a, const char* stop_a, const char** b, const char* stop_b,
                    Py_ssize_t* num_same) noexcept nogil:
        """Line by line; whether it ended at lines that differ."""
        cdef const char* end_a
        cdef const char* end_b
        while a[0] < stop_a and b[0] < stop_b:
            end_a, end_b = line_end(a[0], stop_a), line_end(b[0], stop_b)
            if end_a - a[0] != end_b - b[0] or memcmp(a[0], b[0], end_a - a[0]) != 0:
                if self.exact or not self._same(a[0], end_a, b[0], end_b):
                    return True
            num_same[0] += 1
            a[0], b[0] = end_a + (end_a < stop_a), end_b + (end_b < stop_b)
        return False

    cdef bint _same(self, const char* a, const char* end_a, const char* b, const char* end_b) noexcept nogil:
        """Whether two lines that are not equal differ in nothing but what is left out."""
        cdef LineFacts facts_a
        cdef LineFacts facts_b
        scan_line(a, end_a, &self.ignored, &facts_a)
        scan_line(b, end_b, &self.ignored, &facts_b)
        return facts_a.content == facts_b.content and (self.seq_left_out or facts_a.seq == facts_b.seq)

    def tell(self, bytes line not None):
        """What the rules make of one line (without its LF): kind, key, content and timeless content. For tests."""
        cdef LineFacts facts
        scan_line(PyBytes_AS_STRING(line), PyBytes_AS_STRING(line) + len(line), &self.ignored, &facts)
        return KINDS[<int>facts.kind], facts.key, facts.content, facts.timeless


cdef uint64_t _hash(bytes text):
    return mr_hash_text(PyBytes_AS_STRING(text), len(text))


def at_level(bytes block not None, level):
    """The lines of a block that a log of this level holds, without their leading `seq`."""
    cdef int highest = LEVELS.index(level)
    cdef const char* at = PyBytes_AS_STRING(block)
    cdef const char* stop = at + len(block)
    cdef const char* end
    cdef const char* body
    cdef char* out
    cdef char* kept = <char*>malloc(len(block) + 1)
    if kept is NULL:
        raise MemoryError(f"{len(block)} bytes of log lines")
    with nogil:
        out = kept
        while at < stop:
            end = line_end(at, stop)
            if _level_of(kind_of(at, end)) <= highest:
                body = body_of(at, end)
                if body != at:
                    out[0] = b"{"
                    out += 1
                memcpy(out, body, end - body)
                out += end - body
                out[0] = b"\n"
                out += 1
            at = end + 1
    try:
        return PyBytes_FromStringAndSize(kept, out - kept)
    finally:
        free(kept)


def line_at_level(bytes block not None, level, Py_ssize_t index):
    """Line `index` of those that `at_level` keeps, as it stands in the block, and its place among all lines there.

    Raises:
        IndexError: the block has no such line.
    """
    cdef int highest = LEVELS.index(level)
    cdef const char* at = PyBytes_AS_STRING(block)
    cdef const char* stop = at + len(block)
    cdef const char* end
    cdef Py_ssize_t number = 0
    while at < stop:
        end = line_end(at, stop)
        if _level_of(kind_of(at, end)) <= highest:
            if index == 0:
                return PyBytes_FromStringAndSize(at, end - at), number
            index -= 1
        number += 1
        at = end + 1
    raise IndexError("the block has no such line")


def count_lines(bytes block not None):
    """How many lines end in a block; `bytes.count` takes several times as long."""
    cdef const char* at = PyBytes_AS_STRING(block)
    return _count_lines(at, at + len(block))


def skip_lines(bytes block not None, Py_ssize_t at, Py_ssize_t count):
    """The offset behind `count` lines from offset `at` on, and how many there were."""
    if not 0 <= at <= len(block):
        raise IndexError(f"offset {at} of a block of {len(block)} bytes")
    cdef const char* first = PyBytes_AS_STRING(block)
    cdef const char* stop = first + len(block)
    cdef const char* here = first + at
    cdef const char* found
    cdef Py_ssize_t skipped = 0
    with nogil:
        while skipped < count and here < stop:
            found = <const char*>memchr(here, b"\n", stop - here)
            if found is NULL:
                break
            here = found + 1
            skipped += 1
    return here - first, skipped
