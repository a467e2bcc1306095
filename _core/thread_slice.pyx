"""How long the kernel lets a thread run before it looks for another one: its slice, read and set.

Under Linux' fair scheduler (from 6.12 on) a thread that asks for short slices is not given more time than others, but
gets its share sooner after it wakes. Older kernels take the wish and ignore it. Decides nothing.
"""
from libc.errno cimport errno
from libc.stdint cimport int64_t

import os

cdef extern from "thread_slice_calls.h" nogil:
    int64_t mr_get_slice()
    int mr_set_slice(int64_t slice_ns)


def thread_slice_ns():
    """Slice of the calling thread [ns]; 0 where the kernel does not say, or under another policy than the usual two.

    Raises:
        OSError: the system has no such thing.
    """
    cdef int64_t slice_ns = mr_get_slice()
    if slice_ns < 0:
        raise OSError(errno, f"sched_getattr: {os.strerror(errno)}")
    return slice_ns


def set_thread_slice_ns(int64_t slice_ns):
    """Ask for a slice for the calling thread [ns]; 0 for the usual one. The kernel keeps it between 0.1 and 100 ms.

    Raises:
        ValueError: a negative slice. OSError: the thread's policy is not one of the usual two, or the system has none.
    """
    if slice_ns < 0:
        raise ValueError(f"a slice must not be negative, got {slice_ns} ns")
    if mr_set_slice(slice_ns) != 0:
        raise OSError(errno, f"sched_setattr: {os.strerror(errno)}")
