# Requests at the end of a queue that nobody has looked at: rows in the place of requests.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef struct ParkedRow:
    int64_t n_in                 # prompt [tokens]
    int64_t n_out                # requested output [tokens]
    int32_t num_hash_ids
    int32_t num_words            # that they take
    int32_t ordinal              # trace row
    uint8_t is_wide              # an id of it needs more than 32 bits, so each takes two words
    uint8_t in_runs              # each id that is written is followed by the number of ids that ascend from it


cdef class ParkedQueue:
    cdef readonly int64_t count
    cdef ParkedRow* rows         # ring, owned; `count` from `head` on, ordinals ascending
    cdef int64_t head
    cdef int64_t mask
    cdef uint32_t* words         # ring, owned; hash ids of the rows in their order
    cdef int64_t word_head
    cdef int64_t num_words
    cdef int64_t word_mask
    cdef uint64_t* ids           # (ids_capacity,) those of the row that was asked for, owned
    cdef int64_t ids_capacity

    cdef bint takes(self, int32_t ordinal, int64_t num_hash_ids) noexcept nogil
    cdef bint _is_behind(self, int32_t ordinal) noexcept nogil
    cdef int push(self, int32_t ordinal, int64_t n_in, int64_t n_out, const uint64_t* hash_ids, int64_t num_hash_ids) except -1 nogil
    cdef bint holds(self, int32_t ordinal) noexcept nogil
    cdef int64_t _write_ids(self, const ParkedRow* row, const uint64_t* hash_ids, int64_t first) noexcept nogil
    cdef void _read_ids(self, const ParkedRow* row) noexcept nogil
    cdef ParkedRow* first(self) except NULL nogil
    cdef void drop_first(self) noexcept nogil
    cdef void give_back(self) noexcept nogil
    cdef int _reserve(self, int64_t num_words) except -1 nogil
