"""Numbers as JSON text: the shortest decimal that reads back as the same double.

Decides: digits and form of a number in a log line. Never rounds: a double always survives the round trip.
Form: `12.5`, `10.0`, `0.00001` while the decimal point stands within 16 digits after and 5 before the first
digit; beyond that `1.5e-7`, `1e+16`. Not-a-number and infinities have no JSON number and become `null`.

Source: the interval search follows R. Giulietti, "The Schubfach way to render doubles" (2020): of the decimals
inside the rounding interval of x, take one with a digit less if there is one, else the one closest to x.
"""
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    typedef unsigned __int128 mr_uint128;
    """
    ctypedef unsigned long long mr_uint128   # 128 bits wide; the C compiler knows

cdef enum:
    POWER_MIN = -292            # smallest and largest exponent of ten that a double asks for
    POWER_MAX = 324
    NUM_POWERS = 617
    FRACTION_BITS = 52
    EXPONENT_BIAS = 1075        # of a significand read as an integer
    MICRO = 1000000

# 10**k scaled into [2**127, 2**128) and rounded up, high and low word; index k - POWER_MIN.
cdef uint64_t[NUM_POWERS] _power_high
cdef uint64_t[NUM_POWERS] _power_low


cdef inline int floor_log2_power10(int k) noexcept nogil:
    return (k * 1741647) >> 19      # exact for |k| < 1233


cdef inline uint64_t scale_to_odd(int power, uint64_t factor) noexcept nogil:
    """factor * 10**power, shifted right by 128 bits; the last bit is set when anything was lost (sticky)."""
    cdef mr_uint128 low = <mr_uint128>_power_low[power - POWER_MIN] * factor
    cdef mr_uint128 product = <mr_uint128>_power_high[power - POWER_MIN] * factor + (low >> 64)
    cdef uint64_t rest = <uint64_t>product
    return <uint64_t>(product >> 64) | (rest > 1)


cdef inline uint64_t shortest(uint64_t fraction, int biased, int* exponent) noexcept nogil:
    """Digits d and exponent k with d * 10**k the shortest (then closest) decimal of a positive double."""
    cdef uint64_t significand = fraction
    cdef int q = 1 - EXPONENT_BIAS
    cdef bint closer_below = fraction == 0 and biased > 1    # a power of two: the gap below is half as wide
    cdef int k, shift
    cdef uint64_t open_end, lower, middle, upper, digits, tens
    cdef bint low_in, high_in
    if biased:
        significand |= <uint64_t>1 << FRACTION_BITS
        q = biased - EXPONENT_BIAS
    open_end = significand & 1      # an odd significand does not own the ends of its interval
    k = (q * 1262611 - (524031 if closer_below else 0)) >> 22      # floor(log10(2**q)), or of 3/4 of it
    shift = q + floor_log2_power10(-k) + 1
    lower = scale_to_odd(-k, (4 * significand - 2 + closer_below) << shift) + open_end
    middle = scale_to_odd(-k, (4 * significand) << shift)
    upper = scale_to_odd(-k, (4 * significand + 2) << shift) - open_end

    digits = middle >> 2
    if digits >= 10:
        tens = digits // 10
        low_in = lower <= 40 * tens
        high_in = 40 * tens + 40 <= upper
        if low_in != high_in:
            exponent[0] = k + 1
            return tens + high_in
    exponent[0] = k
    low_in = lower <= 4 * digits
    high_in = 4 * digits + 4 <= upper
    if low_in != high_in:
        return digits + high_in
    middle -= 4 * digits            # in quarters: 2 is halfway, then the even digit wins
    return digits + <bint>(middle > 2 or (middle == 2 and digits & 1 == 1))


cdef inline int write_exponent(int exponent, char* out) noexcept nogil:
    out[0] = 101
    out[1] = 45 if exponent < 0 else 43
    return 2 + write_uint64(-exponent if exponent < 0 else exponent, out + 2)


cdef inline int layout(uint64_t digits, int exponent, char* out) noexcept nogil:
    """Write digits * 10**exponent in its form; digits does not end in a zero."""
    cdef int n = num_digits(digits)
    cdef int point = n + exponent           # digits before the decimal point
    cdef int i
    if 0 <= exponent and point <= 16:       # 12300.0
        write_digits(digits, out, n)
        memset(out + n, 48, exponent)
        memcpy(out + point, b".0", 2)
        return point + 2
    if 0 < point <= 16:                     # 12.3
        write_digits(digits, out + 1, n)
        memcpy(out, out + 1, 1)
        for i in range(1, point):
            out[i] = out[i + 1]
        out[point] = 46
        return n + 1
    if -5 < point <= 0:                     # 0.00123
        memcpy(out, b"0.000000", 8)
        write_digits(digits, out + 2 - point, n)
        return 2 - point + n
    if n == 1:                              # 1e-7
        out[0] = <char>(48 + digits)
        return 1 + write_exponent(point - 1, out + 1)
    write_digits(digits, out + 1, n)        # 1.23e-7
    out[0] = out[1]
    out[1] = 46
    return n + 1 + write_exponent(point - 1, out + n + 1)


cdef inline int write_micro(uint64_t micro, char* out) noexcept nogil:
    """Write micro / 10**6 with its zeros at the end left out, one decimal at least."""
    cdef uint64_t whole = micro // MICRO
    cdef uint64_t part = micro % MICRO
    cdef int n = write_uint64(whole, out)
    cdef int end
    out[n] = 46
    if part == 0:
        out[n + 1] = 48
        return n + 2
    write_digits(part, out + n + 1, 6)
    end = n + 7
    while out[end - 1] == 48:
        end -= 1
    return end


cdef int write_double(double x, char* out) noexcept nogil:
    """Write x as JSON; room for DOUBLE_TEXT_MAX bytes is the caller's duty."""
    cdef uint64_t bits, micro, digits
    cdef int exponent, biased
    cdef int sign = 0
    memcpy(&bits, &x, 8)
    biased = <int>((bits >> FRACTION_BITS) & 0x7FF)
    if biased == 0x7FF:
        memcpy(out, b"null", 4)
        return 4
    if bits >> 63:
        sign = 1
        out[0] = 45
        out += 1
        x = -x
    if x == 0.0:
        memcpy(out, b"0.0", 3)
        return sign + 3
    # Six decimals or fewer, 15 digits or fewer: a decimal of 15 digits is the only one of its length that reads
    # back as its double, so when dividing gives x again these are the shortest digits.
    if 1e-5 <= x < 999999999.0:
        micro = <uint64_t>(x * 1e6 + 0.5)
        if <double>micro / 1e6 == x:
            return sign + write_micro(micro, out)
    digits = shortest(bits & ((<uint64_t>1 << FRACTION_BITS) - 1), biased, &exponent)
    while digits % 10 == 0:
        digits //= 10
        exponent += 1
    return sign + layout(digits, exponent, out)


def double_text(double x):
    """The bytes write_double makes of x."""
    cdef char[DOUBLE_TEXT_MAX] out
    return out[:write_double(x, out)]


def int64_text(int64_t value):
    """The bytes write_int64 makes of value."""
    cdef char[INT64_TEXT_MAX] out
    return out[:write_int64(value, out)]


def uint64_text(uint64_t value):
    """The bytes write_uint64 makes of value."""
    cdef char[INT64_TEXT_MAX] out
    return out[:write_uint64(value, out)]


def _fill_powers():
    """Compute the scaled powers of ten with Python's integers, once at import."""
    power = 1
    for k in range(POWER_MAX + 1):
        _keep_power(k, power, 1)
        if -k >= POWER_MIN:
            _keep_power(-k, 1, power)
        power *= 10


cdef _keep_power(int k, object numerator, object denominator):
    cdef object shift = 127 - floor_log2_power10(k)     # an object: 1 << shift must not be a C shift
    if shift >= 0:
        numerator <<= shift
    else:
        denominator <<= -shift
    scaled = -(-numerator // denominator)
    _power_high[k - POWER_MIN] = scaled >> 64
    _power_low[k - POWER_MIN] = scaled & 0xFFFFFFFFFFFFFFFF


_fill_powers()
