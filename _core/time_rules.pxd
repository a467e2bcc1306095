# Which modelled time a pass or internal work gets, given a clock reading; the only uses of readings but one.
from libc.math cimport NAN


cdef enum:
    CATCH_UP = 5                 # how far a late pass may start behind the wall clock without losing modelled time [ms]


cdef inline double pass_start(double reading_ms, double engine_ms, bint has_carried, double carried_ms) noexcept nogil:
    """Start of the next pass [ms]: where the last one ended, unless the wall clock is too far ahead."""
    cdef double floor_ms
    if not has_carried:
        return max(reading_ms, engine_ms)
    floor_ms = max(reading_ms - CATCH_UP, 0.0)
    return max(max(carried_ms, floor_ms), engine_ms)


cdef inline double internal_time(double reading_ms, double engine_ms, double deadline_ms, bint active) noexcept nogil:
    """Time at which due internal work is handled [ms]; NaN when it is not due."""
    if deadline_ms > max(reading_ms, engine_ms):
        return NAN
    return max(engine_ms, deadline_ms) if active else max(engine_ms, reading_ms)
