# Doors into the core that only tests open.
from libc.stdint cimport int64_t

from .engine cimport Engine


cdef class ScriptedEngine(Engine):
    cdef readonly list deadlines         # pending internal work [ms], any order
    cdef public bint masked              # as the contract wants it: no internal work is seen while a pass is in flight
    cdef public bint fail_internal       # internal work fails
    cdef public bint fail_completion     # the next completion fails
    cdef public int64_t refuse_passes    # so many passes find nothing to do though the engine is ready
    cdef public bint deny_effects        # every pass says that it changed nothing

    cdef int64_t _take_due(self, double now_ms) except -1
