"""Where a clock reading enters modelled time: the start of a pass, the time of internal work.

The third place, the time of a command, is one line of the driver. Never decides what happens at those times.
Source: driver specification, section 6.
"""

CATCH_UP_MS = float(CATCH_UP)


def pass_start_ms(double reading_ms, double engine_ms, carried_ms):
    """Start of the next pass [ms]; `carried_ms` is the end of the last one, or None after the engine ran dry."""
    return pass_start(reading_ms, engine_ms, carried_ms is not None, 0.0 if carried_ms is None else carried_ms)


def internal_work_ms(double reading_ms, double engine_ms, double deadline_ms, bint active):
    """Time of internal work [ms], None when it is not due; `active`: a carried deadline exists."""
    cdef double at = internal_time(reading_ms, engine_ms, deadline_ms, active)
    return None if at != at else at
