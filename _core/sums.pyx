"""Sums of many figures without a copy of them: exact ones, and those added one by one from the left.

Decides how a sum is rounded: an exact one once, at its end (Shewchuk's partial sums, as `math.fsum`), a running one after
each addend. Never decides what is added.
"""
from libc.math cimport fabs, isfinite
from libc.stdint cimport int64_t

cdef enum:
    MAX_PARTIALS = 64   # doubles that do not overlap: no more than 41 fit into the range of exponents

cdef struct Partials:
    # An exact sum as doubles that do not overlap, smallest first.
    double[MAX_PARTIALS] part
    int count


def exact_weighted_sum(const double[:] values not None, const int64_t[:] weights not None):
    """Sum of (n,) float64, each times its weight (n,) int64; each product is rounded, their sum once.

    Raises:
        ValueError: the lengths differ, or a product or the sum is not finite.
    """
    cdef Partials sum
    cdef Py_ssize_t i
    _require_equal(values.shape[0], weights.shape[0])
    sum.count = 0
    with nogil:
        for i in range(values.shape[0]):
            _add(&sum, values[i] * <double>weights[i])
    return _rounded(&sum)


def exact_weighted_square_sum(const double[:] values not None, double centre, const int64_t[:] weights not None):
    """As `exact_weighted_sum`, of the squared distances from `centre`; distance and square are rounded too."""
    cdef Partials sum
    cdef double distance
    cdef Py_ssize_t i
    _require_equal(values.shape[0], weights.shape[0])
    sum.count = 0
    with nogil:
        for i in range(values.shape[0]):
            distance = values[i] - centre
            _add(&sum, distance * distance * <double>weights[i])
    return _rounded(&sum)


def running_sum(const double[:] values not None):
    """Sum of (n,) float64, added one by one from the left; 0.0 without values."""
    cdef double sum = 0.0
    cdef Py_ssize_t i
    with nogil:
        if values.shape[0]:
            sum = values[0]
        for i in range(1, values.shape[0]):
            sum += values[i]
    return sum


def running_square_sum(const double[:] values not None, double centre):
    """As `running_sum`, of the squared distances from `centre`."""
    cdef double sum = 0.0
    cdef double distance
    cdef Py_ssize_t i
    with nogil:
        for i in range(values.shape[0]):
            distance = values[i] - centre
            sum += distance * distance
    return sum


cdef int _require_equal(Py_ssize_t num_values, Py_ssize_t num_weights) except -1:
    if num_values != num_weights:
        raise ValueError(f"{num_values} values have {num_weights} weights")
    return 0


cdef int _add(Partials* sum, double x) except -1 nogil:
    """Add one value: what it loses against each part becomes a part of its own."""
    cdef int i
    cdef int kept = 0
    cdef double y, high, low
    for i in range(sum.count):
        y = sum.part[i]
        if fabs(x) < fabs(y):
            x, y = y, x
        high = x + y
        low = y - (high - x)
        if low != 0.0:
            sum.part[kept] = low
            kept += 1
        x = high
    if not isfinite(x):
        with gil:
            raise ValueError("an addend or the sum is not finite")
    sum.part[kept] = x
    sum.count = kept + 1
    return 0


cdef double _rounded(const Partials* sum) noexcept nogil:
    """The nearest double; of two that are equally near, the one that the parts below decide for, else the even one."""
    cdef int i = sum.count - 1
    cdef double high, low, doubled, moved
    if i < 0:
        return 0.0
    high = sum.part[i]
    low = 0.0
    while i > 0:
        i -= 1
        doubled = high
        high = doubled + sum.part[i]
        low = sum.part[i] - (high - doubled)
        if low != 0.0:
            break
    # `low` is half a unit of `high`, rounded to even, but there is more of its sign below: round the other way.
    if i > 0 and ((low < 0.0 and sum.part[i - 1] < 0.0) or (low > 0.0 and sum.part[i - 1] > 0.0)):
        moved = high + low * 2.0
        if low * 2.0 == moved - high:
            high = moved
    return high
