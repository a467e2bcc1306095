# Pieces of a JSON line. Each writes at `out` and returns the end; room is the caller's duty, `key` is ready JSON
# text with its comma and colon. With a literal, strlen and memcpy are folded by the C compiler.
from libc.stdint cimport int64_t
from libc.string cimport memcpy, strlen

from .float_text cimport write_double, write_int64


cdef inline char* put(char* out, const char* text) noexcept nogil:
    cdef size_t size = strlen(text)
    memcpy(out, text, size)
    return out + size


cdef inline char* put_int(char* out, const char* key, int64_t value) noexcept nogil:
    out = put(out, key)
    return out + write_int64(value, out)


cdef inline char* put_index(char* out, const char* key, int64_t value) noexcept nogil:
    """An index, or null where the record has none (-1)."""
    out = put(out, key)
    if value < 0:
        return put(out, b"null")
    return out + write_int64(value, out)


cdef inline char* put_double(char* out, const char* key, double value) noexcept nogil:
    out = put(out, key)
    return out + write_double(value, out)


cdef inline char* put_bool(char* out, const char* key, bint value) noexcept nogil:
    out = put(out, key)
    return put(out, b"true") if value else put(out, b"false")
