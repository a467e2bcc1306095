"""Requests at the end of a queue that nobody has looked at: rows in the place of requests.

Where requests come faster than they are served, most of them wait: a row takes a tenth of a request, and one that is
written again and again stays near. Hash ids that ascend one by one, as those of new blocks do, are kept as runs.
Decides how rows are kept. Never decides who is parked, nor when one is taken out.
"""
cimport cython
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

cdef enum:
    FIRST_ROWS = 64              # both powers of two
    FIRST_WORDS = 256
    MOST_IDS = 1 << 29           # of a row: words are counted in 32 bits
    KEPT_ROWS = 1024             # a queue that has grown beyond is made small again when nothing is left


cdef void* _unrolled(const void* ring, int64_t head, int64_t count, int64_t mask, size_t size) noexcept nogil:
    """A ring of twice the size with the same entries from its start on; NULL without memory."""
    cdef char* grown = <char*>malloc((mask + 1) * 2 * size)
    cdef int64_t at = head & mask
    cdef int64_t before_wrap = min(count, mask + 1 - at)
    if grown is not NULL and count > 0:
        memcpy(grown, <const char*>ring + at * size, before_wrap * size)
        memcpy(grown + before_wrap * size, ring, (count - before_wrap) * size)
    return grown


@cython.final
cdef class ParkedQueue:
    """First in, first out; ordinals of trace rows ascend."""

    def __cinit__(self):
        self.mask, self.word_mask, self.ids_capacity = FIRST_ROWS - 1, FIRST_WORDS - 1, FIRST_WORDS
        self.rows = <ParkedRow*>malloc(FIRST_ROWS * sizeof(ParkedRow))
        self.words = <uint32_t*>malloc(FIRST_WORDS * sizeof(uint32_t))
        self.ids = <uint64_t*>malloc(FIRST_WORDS * sizeof(uint64_t))
        if self.rows is NULL or self.words is NULL or self.ids is NULL:
            raise MemoryError("parked requests")

    def __dealloc__(self):
        free(self.rows)
        free(self.words)
        free(self.ids)

    cdef bint takes(self, int32_t ordinal, int64_t num_hash_ids) noexcept nogil:
        """Whether a row may be the next: it stands behind all others in the trace, so that `holds` finds it."""
        return num_hash_ids <= MOST_IDS and self._is_behind(ordinal)

    cdef bint _is_behind(self, int32_t ordinal) noexcept nogil:
        return self.count == 0 or ordinal > self.rows[(self.head + self.count - 1) & self.mask].ordinal

    cdef int push(self, int32_t ordinal, int64_t n_in, int64_t n_out, const uint64_t* hash_ids,
                  int64_t num_hash_ids) except -1 nogil:
        """Append a row that `takes` lets in; the hash ids are copied."""
        cdef ParkedRow* row
        cdef int64_t i
        cdef int64_t num_runs = 0
        cdef int64_t words_an_id
        cdef uint64_t widest = 0
        for i in range(num_hash_ids):
            widest |= hash_ids[i]
            num_runs += i == 0 or hash_ids[i] != hash_ids[i - 1] + 1
        words_an_id = 2 if widest >> 32 else 1
        self._reserve(num_hash_ids * words_an_id)
        row = &self.rows[(self.head + self.count) & self.mask]
        row.n_in, row.n_out, row.num_hash_ids, row.ordinal = n_in, n_out, <int32_t>num_hash_ids, ordinal
        row.is_wide = words_an_id == 2
        row.in_runs = num_runs * (words_an_id + 1) < num_hash_ids * words_an_id
        row.num_words = <int32_t>self._write_ids(row, hash_ids, self.word_head + self.num_words)
        self.num_words += row.num_words
        self.count += 1
        return 0

    cdef int64_t _write_ids(self, const ParkedRow* row, const uint64_t* hash_ids, int64_t first) noexcept nogil:
        """Write the ids of a row from the word `first` on; the number of words."""
        cdef int64_t i = 0
        cdef int64_t at = first
        cdef int64_t length = 1
        while i < row.num_hash_ids:
            if row.in_runs:
                length = 1
                while i + length < row.num_hash_ids and hash_ids[i + length] == hash_ids[i + length - 1] + 1:
                    length += 1
            self.words[at & self.word_mask] = <uint32_t>hash_ids[i]
            at += 1
            if row.is_wide:
                self.words[at & self.word_mask] = <uint32_t>(hash_ids[i] >> 32)
                at += 1
            if row.in_runs:
                self.words[at & self.word_mask] = <uint32_t>length
                at += 1
            i += length
        return at - first

    cdef bint holds(self, int32_t ordinal) noexcept nogil:
        """Whether the row is here."""
        cdef int64_t low = 0
        cdef int64_t high = self.count
        cdef int64_t middle
        if self._is_behind(ordinal):     # as nearly every row that comes in
            return False
        while low < high:
            middle = (low + high) // 2
            if self.rows[(self.head + middle) & self.mask].ordinal < ordinal:
                low = middle + 1
            else:
                high = middle
        return low < self.count and self.rows[(self.head + low) & self.mask].ordinal == ordinal

    cdef ParkedRow* first(self) except NULL nogil:
        """The row that came first, its hash ids in `ids`; there must be one. It stays, and holds until the next `push`."""
        cdef ParkedRow* row = &self.rows[self.head & self.mask]
        cdef uint64_t* grown
        if row.num_hash_ids > self.ids_capacity:
            grown = <uint64_t*>realloc(self.ids, row.num_hash_ids * sizeof(uint64_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{row.num_hash_ids} hash ids")
            self.ids = grown
            self.ids_capacity = row.num_hash_ids
        self._read_ids(row)
        return row

    cdef void _read_ids(self, const ParkedRow* row) noexcept nogil:
        """Write the ids of the first row to `ids`."""
        cdef int64_t i = 0
        cdef int64_t k
        cdef int64_t at = self.word_head
        cdef int64_t length = 1
        cdef uint64_t value
        while i < row.num_hash_ids:
            value = self.words[at & self.word_mask]
            at += 1
            if row.is_wide:
                value |= <uint64_t>self.words[at & self.word_mask] << 32
                at += 1
            if row.in_runs:
                length = self.words[at & self.word_mask]
                at += 1
            for k in range(length):
                self.ids[i + k] = value + <uint64_t>k
            i += length

    cdef void drop_first(self) noexcept nogil:
        """Forget the row that came first."""
        cdef int64_t num_words = self.rows[self.head & self.mask].num_words
        self.head += 1
        self.count -= 1
        self.word_head += num_words
        self.num_words -= num_words

    cdef void give_back(self) noexcept nogil:
        """Keep no more memory than at first, if nothing is parked."""
        cdef void* rows
        cdef void* words
        if self.count > 0 or self.mask < KEPT_ROWS:
            return
        rows = malloc(FIRST_ROWS * sizeof(ParkedRow))
        words = malloc(FIRST_WORDS * sizeof(uint32_t))
        if rows is NULL or words is NULL:
            free(rows)
            free(words)
            return
        free(self.rows)
        free(self.words)
        self.rows, self.words = <ParkedRow*>rows, <uint32_t*>words
        self.mask, self.word_mask = FIRST_ROWS - 1, FIRST_WORDS - 1

    cdef int _reserve(self, int64_t num_words) except -1 nogil:
        """Room for one more row with so many words."""
        cdef void* grown
        if self.count > self.mask:
            grown = _unrolled(self.rows, self.head, self.count, self.mask, sizeof(ParkedRow))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{self.count + 1} parked requests")
            free(self.rows)
            self.rows = <ParkedRow*>grown
            self.head = 0
            self.mask = self.mask * 2 + 1
        while self.num_words + num_words > self.word_mask + 1:
            grown = _unrolled(self.words, self.word_head, self.num_words, self.word_mask, sizeof(uint32_t))
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{self.num_words + num_words} words of parked hash ids")
            free(self.words)
            self.words = <uint32_t*>grown
            self.word_head = 0
            self.word_mask = self.word_mask * 2 + 1
        return 0

    # -- test door --------------------------------------------------------------------------------

    def put(self, int32_t ordinal, int64_t n_in, int64_t n_out, const uint64_t[::1] hash_ids not None):
        """Park a row; False if it does not stand behind the others in the trace."""
        if not self.takes(ordinal, hash_ids.shape[0]):
            return False
        self.push(ordinal, n_in, n_out, &hash_ids[0] if hash_ids.shape[0] else NULL, hash_ids.shape[0])
        return True

    def take(self):
        """(ordinal, n_in, n_out, hash ids) of the row that came first, and forget it; None without one."""
        cdef ParkedRow* row
        cdef int64_t i
        if self.count == 0:
            return None
        row = self.first()
        taken = (row.ordinal, row.n_in, row.n_out, [self.ids[i] for i in range(row.num_hash_ids)])
        self.drop_first()
        return taken

    def __contains__(self, int32_t ordinal):
        return self.holds(ordinal)

    def shrink(self):
        """Give memory back if nothing is parked; the rows that there is room for."""
        self.give_back()
        return self.mask + 1
