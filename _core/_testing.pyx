"""Doors into the core that only tests open: an engine with internal work and faults on order, clients that leave.

Today's engines have no internal work (it comes with host offload); the driver's rules for it are tested with this one.
No part of a run: nothing but tests imports it.
"""
cimport cython
from libc.math cimport INFINITY

from .cancellations cimport Cancellations, Leaving
from .event_buffer cimport EV_INTERNAL_WORK, EventBuffer
from .types cimport NONE

from .types import EngineError


cdef extern from *:
    """
    #ifndef MR_DEBUG
    #define MR_DEBUG 0
    #endif
    """
    int MR_DEBUG

BUILT_WITH_CHECKS = bool(MR_DEBUG)


@cython.final
cdef class ScriptedEngine(Engine):
    """An engine whose internal work is due at `deadlines`; each round of work appends one record (a = how many were due)."""

    def __init__(self, *args):
        self.deadlines = []
        self.masked = True

    cdef double next_internal_deadline(self) noexcept nogil:
        if self.masked and self.in_pass or self.poisoned:
            return INFINITY
        with gil:
            return min(self.deadlines, default=INFINITY)

    cdef int process_internal_work(self, double now_ms, EventBuffer out) except -1 nogil:
        cdef int64_t due
        if self.masked and self.in_pass:
            return 0
        with gil:
            due = self._take_due(now_ms)
        if due > 0:
            out.emplace(EV_INTERNAL_WORK, now_ms, self.worker, NONE, NONE).a = due
        return due > 0

    cdef int64_t _take_due(self, double now_ms) except -1:
        if self.fail_internal:
            self.poisoned = True
            raise EngineError("internal work failed on order")
        left = [deadline for deadline in self.deadlines if deadline > now_ms]
        due = len(self.deadlines) - len(left)
        self.deadlines = left
        return due

    cdef int execute_pass(self, double now_ms, EventBuffer out) except -1 nogil:
        cdef int executed
        if self.refuse_passes > 0:
            self.refuse_passes -= 1
            return 0
        executed = Engine.execute_pass(self, now_ms, out)
        self.pass_effect_free = self.pass_effect_free or self.deny_effects
        return executed

    cdef int complete_pass(self, EventBuffer out, bint held_back) except -1 nogil:
        if self.fail_completion:
            with gil:
                self.poisoned = True
                raise EngineError("completion failed on order")
        return Engine.complete_pass(self, out, held_back)


def run_cancellations(script):
    """Do as the script says to a Cancellations of its own; the answers, one a step.

    ("add", due_ms, order, turn, request), ("drop", request) -> whether it was there, ("pop",) -> (due_ms, request) or None.
    """
    cdef Cancellations leaving = Cancellations()
    cdef Leaving entry
    answers = []
    for name, *args in script:
        answer = None
        if name == "add":
            entry.due_ms, entry.order, entry.turn, entry.request = args
            leaving.add(&entry)
        elif name == "drop":
            answer = bool(leaving.drop(args[0]))
        elif leaving.count > 0:
            assert leaving.next_due() == leaving.heap[0].due_ms
            leaving.pop(&entry)
            answer = (entry.due_ms, entry.request)
        answers.append((answer, len(leaving), leaving.next_due()))
    return answers
