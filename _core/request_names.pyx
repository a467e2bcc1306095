"""Names of requests as JSON text, escaped once and kept in one arena.

Decides: how a request is called in a log: by its trace name if one was registered, else r<row>.
Never decides: whether names are unique; the trace reader does.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from .float_text cimport INT64_TEXT_MAX, write_int64

import orjson


@cython.final
cdef class RequestNames:
    def __cinit__(self):
        self.longest = INT64_TEXT_MAX + 3

    def __dealloc__(self):
        free(self.arena)
        free(self.starts)
        free(self.sizes)

    cdef bint has(self, int32_t request) noexcept nogil:
        return 0 <= request < self.num_rows and self.sizes[request] > 0

    cdef char* write(self, int32_t request, char* out) noexcept nogil:
        """Write the quoted name (null for no request) and return the end; room for `longest` bytes is needed."""
        if request < 0:
            memcpy(out, b"null", 4)
            return out + 4
        if self.has(request):
            memcpy(out, self.arena + self.starts[request], self.sizes[request])
            return out + self.sizes[request]
        out[0] = 34
        out[1] = 114
        out += 2 + write_int64(request, out + 2)
        out[0] = 34
        return out + 1

    def add(self, Py_ssize_t first_row, names):
        """Register the names of the rows from `first_row` on, in any order of rows; None leaves a row its default name.

        Raises:
            ValueError: a row has a name already, or a name is no valid Unicode; nothing was registered.
        """
        cdef Py_ssize_t row, size
        cdef bytes text
        if all(name is None for name in names):
            return
        escaped = [b"" if name is None else _escape(name, first_row + i) for i, name in enumerate(names)]
        for row, text in enumerate(escaped, first_row):
            if text and self.has(row):
                raise ValueError(f"request name of row {row}: it is called {self.text(row).decode()} already")
        self._reserve(first_row + len(escaped), sum(map(len, escaped)))
        for row, text in enumerate(escaped, first_row):
            size = len(text)
            if size > 0:
                memcpy(self.arena + self.arena_used, <char*>text, size)
                self.starts[row], self.sizes[row] = self.arena_used, size
                self.arena_used += size
                self.longest = max(self.longest, size)

    cdef int _reserve(self, Py_ssize_t rows, Py_ssize_t num_bytes) except -1:
        """Room for rows before `rows` and for so many more bytes; rows that are new have no name."""
        cdef Py_ssize_t wanted
        cdef void* grown
        if rows > self.row_capacity:
            wanted = max(rows, self.row_capacity + self.row_capacity // 2)
            grown = realloc(self.starts, wanted * sizeof(int64_t))
            if grown is NULL:
                raise MemoryError(f"names of {wanted} requests")
            self.starts = <int64_t*>grown
            grown = realloc(self.sizes, wanted * sizeof(int64_t))
            if grown is NULL:
                raise MemoryError(f"names of {wanted} requests")
            self.sizes = <int64_t*>grown
            self.row_capacity = wanted
        if rows > self.num_rows:
            memset(&self.sizes[self.num_rows], 0, (rows - self.num_rows) * sizeof(int64_t))
            self.num_rows = rows
        if self.arena_used + num_bytes > self.arena_capacity:
            wanted = max(self.arena_used + num_bytes, self.arena_capacity + self.arena_capacity // 2)
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
