"""Names of requests as JSON text, escaped once and kept in one arena.

Decides: how a request is called in a log: by its trace name if one was registered, else r<row>.
Never decides: whether names are unique; the trace reader does.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from .float_text cimport INT64_TEXT_MAX, write_int64

import orjson


@cython.final
cdef class RequestNames:
    def __cinit__(self):
        self.longest = INT64_TEXT_MAX + 3

    def __dealloc__(self):
        free(self.arena)
        free(self.offsets)

    cdef bint has(self, int32_t request) noexcept nogil:
        return 0 <= request < self.num_rows and self.offsets[request + 1] > self.offsets[request]

    cdef char* write(self, int32_t request, char* out) noexcept nogil:
        """Write the quoted name (null for no request) and return the end; room for `longest` bytes is needed."""
        cdef int64_t start
        cdef Py_ssize_t size
        if request < 0:
            memcpy(out, b"null", 4)
            return out + 4
        if self.has(request):
            start = self.offsets[request]
            size = self.offsets[request + 1] - start
            memcpy(out, self.arena + start, size)
            return out + size
        out[0] = 34
        out[1] = 114
        out += 2 + write_int64(request, out + 2)
        out[0] = 34
        return out + 1

    def add(self, Py_ssize_t first_row, names):
        """Register the names of the rows from `first_row` on; None leaves a row its default name.

        Raises:
            ValueError: `first_row` is before the end of what is registered, or a name is no valid Unicode.
        """
        cdef Py_ssize_t row, size
        cdef bytes text
        if first_row < self.num_rows:
            raise ValueError(f"names of rows from {first_row} on: rows up to {self.num_rows - 1} are registered already")
        if all(name is None for name in names):
            return
        escaped = [b"" if name is None else _escape(name, first_row + i) for i, name in enumerate(names)]
        self._reserve(first_row + len(escaped), sum(map(len, escaped)))
        for row in range(self.num_rows, first_row):     # rows skipped have no name of their own
            self.offsets[row + 1] = self.offsets[row]
        for row, text in enumerate(escaped, first_row):
            size = len(text)
            memcpy(self.arena + self.offsets[row], <char*>text, size)
            self.offsets[row + 1] = self.offsets[row] + size
            self.longest = max(self.longest, size)
        self.num_rows = first_row + len(escaped)

    cdef int _reserve(self, Py_ssize_t rows, Py_ssize_t arena) except -1:
        cdef Py_ssize_t used = self.offsets[self.num_rows] if self.offsets is not NULL else 0
        cdef Py_ssize_t wanted
        cdef void* grown
        if self.offsets is NULL or rows > self.row_capacity:
            wanted = max(rows, self.row_capacity + self.row_capacity // 2)
            grown = realloc(self.offsets, (wanted + 1) * sizeof(int64_t))
            if grown is NULL:
                raise MemoryError(f"names of {wanted} requests")
            self.offsets = <int64_t*>grown
            self.offsets[self.num_rows] = used
            self.row_capacity = wanted
        if used + arena > self.arena_capacity:
            wanted = max(used + arena, self.arena_capacity + self.arena_capacity // 2)
            grown = realloc(self.arena, wanted)
            if grown is NULL:
                raise MemoryError(f"{wanted} bytes of request names")
            self.arena = <char*>grown
            self.arena_capacity = wanted
        return 0

    def text(self, int32_t request):
        """The JSON text of one name, as the log writes it."""
        cdef bytearray out = bytearray(self.longest)
        cdef char* start = out
        return bytes(out[:self.write(request, start) - start])


cdef bytes _escape(object name, Py_ssize_t row):
    try:
        return orjson.dumps(name)
    except TypeError as exc:
        raise ValueError(f"request name of row {row}: {exc} (got {name!r})") from None
