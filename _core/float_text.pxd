# Numbers as JSON text (see float_text.pyx). Every writer returns the number of bytes it wrote.
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    static const char mr_digit_pairs[201] =
        "00010203040506070809101112131415161718192021222324252627282930313233343536373839"
        "40414243444546474849505152535455565758596061626364656667686970717273747576777879"
        "8081828384858687888990919293949596979899";
    """
    const char* mr_digit_pairs   # "00" "01" ... "99": two digits a division


cdef enum:
    DOUBLE_TEXT_MAX = 25         # room a caller keeps for one double: sign, 17 digits, point, e, sign, 3 digits
    INT64_TEXT_MAX = 20          # room for one 64-bit integer


cdef int write_double(double x, char* out) noexcept nogil


cdef inline int num_digits(uint64_t value) noexcept nogil:
    cdef int digits = 1
    while value >= 10000:
        value //= 10000
        digits += 4
    if value >= 1000:
        return digits + 3
    if value >= 100:
        return digits + 2
    return digits + (value >= 10)


cdef inline void write_digits(uint64_t value, char* out, int digits) noexcept nogil:
    """Exactly `digits` decimal digits, zeros in front where value has fewer."""
    while digits >= 2:
        digits -= 2
        memcpy(out + digits, mr_digit_pairs + 2 * (value % 100), 2)
        value //= 100
    if digits == 1:
        out[0] = <char>(48 + value % 10)


cdef inline int write_uint64(uint64_t value, char* out) noexcept nogil:
    cdef int digits
    if value < 10:
        out[0] = <char>(48 + value)
        return 1
    digits = num_digits(value)
    write_digits(value, out, digits)
    return digits


cdef inline int write_int64(int64_t value, char* out) noexcept nogil:
    if value >= 0:
        return write_uint64(<uint64_t>value, out)
    out[0] = 45
    return 1 + write_uint64(0 - <uint64_t>value, out + 1)
