# Workers with host memory: who goes next at one instant.
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t

from .driver cimport Machine


cdef inline int64_t effects_of(Machine machine) noexcept nogil:
    """Passes of a machine that did more than to begin copies."""
    return machine.num_effects


cdef int move_all(PyObject** workers, int32_t num_workers, double now_ms, bint with_handoffs) except -1 nogil
cdef bint nothing_moves(PyObject** workers, int32_t num_workers, double now_ms) noexcept nogil
cdef int32_t next_to_run(PyObject** workers, int32_t worker, int64_t effects_before) noexcept nogil
