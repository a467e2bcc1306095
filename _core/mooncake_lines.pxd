# Mooncake lines to columns: what one scan has found.
from libc.stdint cimport int64_t, uint64_t


cdef struct Row:                         # columns of ROW_FIELDS, in its order
    int64_t line                         # of the text, from 0
    double timestamp                     # as it stands there; NaN = absent
    int64_t input_tokens
    int64_t output_tokens
    int64_t num_hash_ids
    double delay                         # [ms]; NaN = absent
    double cancel_after                  # [ms]; INFINITY = absent
    double deadline                      # [ms]; INFINITY = absent


cdef class MooncakeLines:
    cdef Row* rows                       # (row_capacity,), owned
    cdef Py_ssize_t row_capacity
    cdef readonly Py_ssize_t num_rows
    cdef uint64_t* hash_ids              # (hash_capacity,) rows one after another, owned
    cdef Py_ssize_t hash_capacity
    cdef readonly Py_ssize_t num_hash_ids
    cdef int fields                      # bits of the fields that some row has
    cdef readonly list session_ids       # (num_rows,) str or None; empty when no row has one
    cdef readonly list request_ids

    cdef const char* _scan_row(self, const char* at, int64_t line) except? NULL
    cdef const char* _scan_value(self, const char* at, int field, Row* row) except? NULL
    cdef const char* _scan_hash_ids(self, const char* at) except? NULL
    cdef const char* _scan_text(self, const char* at, int field) except? NULL
    cdef int _fill_texts(self) except -1
    cdef Row* _next_row(self) except NULL
    cdef int _grow_hash_ids(self) except -1
