"""Who goes next at one instant among workers with host memory, and who looks again.

Workers with memory of their own let others go first behind a pass of no length (`next_to_run`). Among those that share
memory, whoever stands still looks again whenever somebody has moved, and what it looks up counts as used. They go one
pass at a time, the first that has one first. A pass that had an effect starts the round again; behind one that had none,
or only began a load, the next worker goes; with handoffs who only began a load goes on at once.

Decides the order of workers at one instant. Never decides what a pass does, nor when a worker may look (onlookers).
Source: seen on the reference, by the passes it counts for the cadence of prefill (docs/offload.md).
"""
from libc.stdint cimport INT64_MAX, int64_t

from .driver cimport PHASE_IDLE, PHASE_SNAPSHOT, PHASE_TURN, Machine


cdef inline bint _has_anything(Machine machine, double now_ms) noexcept nogil:
    """Whether it may move now; whoever stands still is asked to look again."""
    if not machine.engine.in_pass:
        machine.engine.next_instant(now_ms)
    return (machine.phase != PHASE_IDLE or machine.command_lane.count > 0 or machine.cancel_lane.count > 0
            or machine.next_deadline() <= now_ms)


cdef inline bint _move(Machine machine, double now_ms) except -1 nogil:
    """Let it go on for at most one pass; whether that was one with an effect."""
    cdef int64_t before = machine.engine.pass_id
    if machine.phase == PHASE_SNAPSHOT and machine.engine.next_internal_deadline() <= now_ms:
        machine.phase = PHASE_TURN           # it was given a command while its copies were held back
    machine.stops_behind = before + 1
    machine.pump(now_ms, True, True, True)
    machine.stops_behind = INT64_MAX
    return machine.engine.pass_id != before and machine.engine.pass_moved


cdef inline int64_t _passes_of(Machine machine) noexcept nogil:
    return machine.engine.pass_id


cdef inline bint _may_start(Machine machine, double now_ms) noexcept nogil:
    return machine.engine.may_start(now_ms)


cdef inline bint _rests(Machine machine) noexcept nogil:
    return machine.rests


cdef inline void _may_look(Machine machine) noexcept nogil:
    """Another pass without effect is no sign that nobody can progress."""
    machine.idle_passes = 0


cdef inline bint _learns(Machine machine, double now_ms) noexcept nogil:
    return machine.engine.nothing_moves(now_ms)


cdef int move_all(PyObject** workers, int32_t num_workers, double now_ms, bint with_handoffs) except -1 nogil:
    """Move all workers in turns. Who only began a load, even one that takes no time, goes on in the next round of the
    instant; with handoffs, which have a say between two rounds, at once."""
    cdef int32_t i = 0
    cdef int32_t j
    cdef int64_t before
    while i < num_workers:
        before = _passes_of(<Machine>workers[i])
        if _has_anything(<Machine>workers[i], now_ms) and _move(<Machine>workers[i], now_ms):
            for j in range(num_workers):
                _may_look(<Machine>workers[j])
            i = 0
        elif with_handoffs and _passes_of(<Machine>workers[i]) > before and _may_start(<Machine>workers[i], now_ms):
            i = 0
        else:
            i += 1
    return 0


cdef bint nothing_moves(PyObject** workers, int32_t num_workers, double now_ms) noexcept nogil:
    """Nothing is left to happen: whether a worker moves now that it is told."""
    cdef int32_t i
    for i in range(num_workers):
        if _learns(<Machine>workers[i], now_ms):
            return True
    return False


cdef int32_t next_to_run(PyObject** workers, int32_t worker, int64_t effects_before) noexcept nogil:
    """Who runs next after a worker with memory of its own did. As on the reference a pass of no length that only began
    copies does not let its worker run once more, but any other pass lets it and all before it do so."""
    cdef int32_t i
    if effects_of(<Machine>workers[worker]) > effects_before:
        for i in range(worker + 1):
            if _rests(<Machine>workers[i]):
                return i
    return worker + 1
