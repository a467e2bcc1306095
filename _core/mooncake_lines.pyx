"""Mooncake lines to columns: the fast reading of rows that are legal beyond doubt.

Accepts a text when every line of it is blank or one flat object with known fields, each once, plain strings and short
plain numbers; then the columns are those of the exact reading. Whatever is unusual (an escape, a fraction of many
digits, an unknown field, null, a missing length) ends the scan, and the caller reads that text in another way: this
module refuses nothing and names no fault.
"""
cimport cython
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.math cimport INFINITY, NAN
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp

cdef enum Field:
    TIMESTAMP = 0
    INPUT_LENGTH = 1
    OUTPUT_LENGTH = 2
    HASH_IDS = 3
    DELAY = 4
    SESSION_ID = 5
    REQUEST_ID = 6
    CANCEL_AFTER = 7
    DEADLINE = 8
    NUM_FIELDS = 9
    UNKNOWN = 9

cdef enum:
    ZERO = 48                    # the digit
    MAX_DIGITS = 15              # of a number: each such float64 is exact, however it is read
    MAX_ID_DIGITS = 19           # 64 bits hold any of them
    REQUIRED = (1 << INPUT_LENGTH) | (1 << OUTPUT_LENGTH) | (1 << HASH_IDS)
    TEXTS = (1 << SESSION_ID) | (1 << REQUEST_ID)

cdef double[16] POWERS_OF_TEN
POWERS_OF_TEN[:] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15]


cdef inline const char* skip_spaces(const char* at) noexcept nogil:
    """The next byte that is no space; a text ends with a zero byte."""
    while at[0] == b" " or at[0] == b"\t" or at[0] == b"\r":
        at += 1
    return at


cdef inline bint is_key(const char* begin, Py_ssize_t length, const char* name, Py_ssize_t name_length) noexcept nogil:
    return length == name_length and memcmp(begin, name, length) == 0


cdef int field_of(const char* begin, Py_ssize_t length) noexcept nogil:
    if length == 8 and memcmp(begin, b"hash_ids", 8) == 0:
        return HASH_IDS
    if is_key(begin, length, b"timestamp", 9) or is_key(begin, length, b"created_time", 12):
        return TIMESTAMP
    if is_key(begin, length, b"input_length", 12) or is_key(begin, length, b"input_tokens", 12):
        return INPUT_LENGTH
    if is_key(begin, length, b"output_length", 13) or is_key(begin, length, b"output_tokens", 13):
        return OUTPUT_LENGTH
    if is_key(begin, length, b"session_id", 10):
        return SESSION_ID
    if is_key(begin, length, b"request_id", 10):
        return REQUEST_ID
    if is_key(begin, length, b"delay", 5) or is_key(begin, length, b"delay_ms", 8):
        return DELAY
    if is_key(begin, length, b"cancel_after_ms", 15):
        return CANCEL_AFTER
    if is_key(begin, length, b"deadline_ms", 11):
        return DEADLINE
    return UNKNOWN


cdef const char* read_text(const char* at, const char** begin, Py_ssize_t* length) noexcept nogil:
    """A string of printable ASCII without escapes, from its quote on; NULL if it is another."""
    if at[0] != b'"':
        return NULL
    at += 1
    begin[0] = at
    while at[0] != b'"':
        if <unsigned char>at[0] < 0x20 or <unsigned char>at[0] > 0x7e or at[0] == b"\\":
            return NULL
        at += 1
    length[0] = at - begin[0]
    return at + 1


cdef const char* read_digits(const char* at, int most, uint64_t* value) noexcept nogil:
    """A whole number without sign, leading zero or more than `most` digits; NULL if it is another."""
    cdef const char* begin = at
    cdef uint64_t found = 0
    while b"0" <= at[0] <= b"9":
        found = found * 10 + <uint64_t>(at[0] - ZERO)
        at += 1
        if at - begin > most:
            return NULL
    if at == begin or (begin[0] == b"0" and at - begin > 1):
        return NULL
    value[0] = found
    return at


cdef const char* read_number(const char* at, double* value) noexcept nogil:
    """A number without sign or exponent of so few digits that it is exact; NULL if it is another."""
    cdef uint64_t whole
    cdef const char* begin = at
    cdef const char* point
    at = read_digits(at, MAX_DIGITS, &whole)
    if at is NULL:
        return NULL
    if at[0] != b".":
        value[0] = <double>whole
        return at
    point = at
    at += 1
    while b"0" <= at[0] <= b"9":
        whole = whole * 10 + <uint64_t>(at[0] - ZERO)
        at += 1
        if at - begin > MAX_DIGITS + 1:
            return NULL
    if at == point + 1:
        return NULL
    value[0] = <double>whole / POWERS_OF_TEN[at - point - 1]
    return at


def line_end(bytes text not None, Py_ssize_t begin, Py_ssize_t max_lines):
    """Where the first `max_lines` lines of text[begin:] end; the text itself ends without a line feed.

    Returns:
        (offset of the line feed behind the last of them, or the end of the text; number of lines, at least 1).
    """
    cdef const char* whole = text
    cdef Py_ssize_t length = len(text)
    cdef Py_ssize_t lines = 1
    cdef const char* found
    while True:
        found = <const char*>memchr(whole + begin, b"\n", length - begin)
        if found is NULL:
            return length, lines
        if lines == max_lines:
            return found - whole, lines
        begin = found - whole + 1
        lines += 1


@cython.final
cdef class MooncakeLines:
    """Columns of the texts scanned last; one object serves a whole file."""

    def __dealloc__(self):
        free(self.rows)
        free(self.hash_ids)

    def scan(self, bytes text not None):
        """Read a text of whole lines; False when it holds anything unusual. The columns are those of this text alone."""
        cdef const char* at = text
        cdef const char* end = at + len(text)
        cdef const char* line_end
        cdef int64_t line = 0
        self.num_rows = self.num_hash_ids = 0
        self.fields = 0
        self.session_ids, self.request_ids = [], []
        while at < end:
            line_end = <const char*>memchr(at, b"\n", end - at)
            if line_end is NULL:
                line_end = end
            at = skip_spaces(at)
            if at < line_end:
                at = self._scan_row(at, line)
                if at is not line_end:
                    return False
            at += 1
            line += 1
        return True

    cdef const char* _scan_row(self, const char* at, int64_t line) except? NULL:
        """One row; the byte behind it and the spaces that follow, NULL if it is unusual."""
        cdef Row* row = self._next_row()
        cdef const char* begin
        cdef Py_ssize_t length
        cdef int field
        cdef int seen = 0
        row.line = line
        row.timestamp, row.delay, row.cancel_after, row.deadline = NAN, NAN, INFINITY, INFINITY
        row.num_hash_ids = self.num_hash_ids
        if at[0] != b"{":
            return NULL
        while True:
            at = read_text(skip_spaces(at + 1), &begin, &length)
            if at is NULL:
                return NULL
            field = field_of(begin, length)
            if field == UNKNOWN or seen & 1 << field:
                return NULL
            seen |= 1 << field
            at = skip_spaces(at)
            if at[0] != b":":
                return NULL
            at = skip_spaces(at + 1)
            if 1 << field & TEXTS:
                at = self._scan_text(at, field)
            else:
                at = self._scan_value(at, field, row)
            if at is NULL:
                return NULL
            at = skip_spaces(at)
            if at[0] == b"}":
                break
            if at[0] != b",":
                return NULL
        if seen & REQUIRED != REQUIRED:
            return NULL
        row.num_hash_ids = self.num_hash_ids - row.num_hash_ids
        self.fields |= seen
        self.num_rows += 1
        self._fill_texts()
        return skip_spaces(at + 1)

    cdef const char* _scan_value(self, const char* at, int field, Row* row) except? NULL:
        cdef uint64_t value = 0
        if field == HASH_IDS:
            return self._scan_hash_ids(at)
        if field == TIMESTAMP:
            return read_number(at, &row.timestamp)
        if field == DELAY:
            return read_number(at, &row.delay)
        if field == CANCEL_AFTER:
            return read_number(at, &row.cancel_after)
        if field == DEADLINE:
            return read_number(at, &row.deadline)
        at = read_digits(at, MAX_DIGITS, &value)
        if field == INPUT_LENGTH:
            row.input_tokens = <int64_t>value
        else:
            row.output_tokens = <int64_t>value
        return at

    cdef const char* _scan_hash_ids(self, const char* at) except? NULL:
        if at[0] != b"[":
            return NULL
        at = skip_spaces(at + 1)
        if at[0] == b"]":
            return at + 1
        while True:
            if self.num_hash_ids == self.hash_capacity:
                self._grow_hash_ids()
            at = read_digits(at, MAX_ID_DIGITS, &self.hash_ids[self.num_hash_ids])
            if at is NULL:
                return NULL
            self.num_hash_ids += 1
            if at[0] != b"," and at[0] != b"]":
                at = skip_spaces(at)
            if at[0] == b"]":
                return at + 1
            if at[0] != b",":
                return NULL
            at = skip_spaces(at + 1)

    cdef const char* _scan_text(self, const char* at, int field) except? NULL:
        cdef const char* begin
        cdef Py_ssize_t length
        cdef list names = self.session_ids if field == SESSION_ID else self.request_ids
        at = read_text(at, &begin, &length)
        if at is NULL:
            return NULL
        while len(names) < self.num_rows:
            names.append(None)
        names.append(PyUnicode_DecodeASCII(begin, length, NULL))
        return at

    cdef int _fill_texts(self) except -1:
        """A row without a name has None in a column that others have."""
        if self.session_ids and len(self.session_ids) < self.num_rows:
            self.session_ids.append(None)
        if self.request_ids and len(self.request_ids) < self.num_rows:
            self.request_ids.append(None)
        return 0

    cdef Row* _next_row(self) except NULL:
        cdef Row* grown
        if self.num_rows == self.row_capacity:
            grown = <Row*>realloc(self.rows, (self.row_capacity * 2 + 256) * sizeof(Row))
            if grown is NULL:
                raise MemoryError(f"{self.row_capacity * 2} rows")
            self.rows = grown
            self.row_capacity = self.row_capacity * 2 + 256
        return &self.rows[self.num_rows]

    cdef int _grow_hash_ids(self) except -1:
        cdef uint64_t* grown = <uint64_t*>realloc(self.hash_ids, (self.hash_capacity * 2 + 4096) * sizeof(uint64_t))
        if grown is NULL:
            raise MemoryError(f"{self.hash_capacity * 2} hash ids")
        self.hash_ids = grown
        self.hash_capacity = self.hash_capacity * 2 + 4096
        return 0

    def table(self):
        """Rows as one buffer of (num_rows,) records; `ROW_FIELDS` names their columns, 8 bytes each."""
        return PyByteArray_FromStringAndSize(<const char*>self.rows, self.num_rows * sizeof(Row))

    def ids(self):
        """Hash ids of all rows, one after another, as a buffer of uint64."""
        return PyByteArray_FromStringAndSize(<const char*>self.hash_ids, self.num_hash_ids * sizeof(uint64_t))

    def has(self, str name):
        """Whether any row has this field."""
        return bool(self.fields >> _fields[name] & 1)


cdef dict _fields = {"delay": DELAY, "session_id": SESSION_ID, "request_id": REQUEST_ID, "cancel_after_ms": CANCEL_AFTER,
                     "deadline_ms": DEADLINE}
# Columns of `table`, in order: name and NumPy's type.
ROW_FIELDS = (
    ("line", "i8"), ("timestamp", "f8"), ("input_tokens", "i8"), ("output_tokens", "i8"), ("num_hash_ids", "i8"),
    ("delay", "f8"), ("cancel_after_ms", "f8"), ("deadline_ms", "f8"),
)
