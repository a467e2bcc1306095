"""When the workers of a fleet look at host memory beside their own passes and copies, and when they must not.

Two things the fleet decides for engines that cannot know, with handoffs: something happens anywhere, so ranks that stand
still look again where their worker has several; and a worker is given the command of a handoff, so copies that end at
that instant wait until passes start. Both are seen on the reference. Never decides what is found, nor anything for
workers that share memory (standstill).
"""
cimport cython
from libc.stdlib cimport free, malloc

from .driver cimport Machine
from .types cimport NONE


cdef inline bint _next_instant(Machine machine, double now_ms) noexcept nogil:
    return machine.engine.next_instant(now_ms)


cdef inline bint _works_behind(Machine machine) noexcept nogil:
    return machine.engine.works_behind


cdef inline void _hold(Machine machine, bint holds) noexcept nogil:
    machine.engine.holds_internal = holds


@cython.final
cdef class Onlookers:
    """Machines of a fleet, by worker.

    Args:
        look_around: ranks that stand still look again, where their worker has several.
    """

    def __cinit__(self, tuple machines not None, *, bint look_around):
        cdef Py_ssize_t i
        self.machines, self.num_workers = machines, <int32_t>len(machines)
        self.told_ms, self.held_worker = -1.0, NONE
        self.workers = <PyObject**>malloc(len(machines) * sizeof(PyObject*))
        if self.workers is NULL:
            raise MemoryError("onlookers")
        for i in range(len(machines)):
            self.workers[i] = <PyObject*>machines[i]
            if look_around:
                self.any = (<Machine>machines[i]).engine.look_around() or self.any

    def __dealloc__(self):
        free(self.workers)

    cdef int tell(self, double now_ms) noexcept nogil:
        """Something happens now: whoever stands still looks again, once an instant. What they look up counts as used."""
        cdef int32_t i
        if not self.any or now_ms <= self.told_ms:
            return 0
        self.told_ms = now_ms
        for i in range(self.num_workers):
            self.told = _next_instant(<Machine>self.workers[i], now_ms) or self.told
        return 0

    cdef int tell_once_more(self, double now_ms) noexcept nogil:
        """The same in another round of an instant: machines told something in the one before."""
        self.told_ms = -1.0
        return self.tell(now_ms)

    cdef int hold(self, int32_t worker) noexcept nogil:
        """A worker does not look at its copies until `let_go`."""
        if _works_behind(<Machine>self.workers[worker]):
            self.held_worker = worker
            _hold(<Machine>self.workers[worker], True)
        return 0

    cdef int let_go(self) noexcept nogil:
        if self.held_worker != NONE:
            _hold(<Machine>self.workers[self.held_worker], False)
            self.held_worker = NONE
        return 0

    def take_told(self):
        """Whether anybody was told to look again since this was asked."""
        told, self.told = self.told, False
        return told

    def look(self, double now_ms):
        """Tell them, as a fleet does at an instant: for who does a run again."""
        self.tell(now_ms)
        self.told = False
