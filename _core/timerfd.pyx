"""Waits for an absolute time of the monotonic clock: a descriptor that an event loop watches, and a blocking sleep.

Decides: how a deadline in nanoseconds of `time.monotonic_ns` reaches the kernel; it is passed on whole, so nothing is
rounded and nothing fires early. Never reads a clock to decide, never falls back: where the system has no timerfd
(`available` is False) arming fails with OSError, and its caller waits in another way.

Usable alone:

    timer = TimerFd()
    timer.arm(time.monotonic_ns() + 250_000)            # creates the descriptor, the first time
    select.select([timer], [], [])
    assert timer.drain() == 1
    timer.close()

    sleep_until_ns(time.monotonic_ns() + 250_000)       # blocks this thread, not the interpreter
"""
cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, EIO, errno
from libc.stdint cimport int64_t, uint64_t
from posix.unistd cimport close, read

import os
import time

cdef extern from "timerfd_calls.h" nogil:
    enum:
        MR_HAS_TIMERFD
        MR_HAS_CLOCK_NANOSLEEP
    int mr_timerfd_create()
    int mr_timerfd_set(int fd, int64_t deadline_ns)
    int mr_sleep_until(int64_t deadline_ns)

available = bool(MR_HAS_TIMERFD)


cdef int _raise(int number, str action) except -1:
    raise OSError(number, f"{action}: {os.strerror(number)}")


def create_descriptor():
    """A new timer descriptor: monotonic, non-blocking, closed on exec; the caller closes it.

    Raises:
        OSError: no descriptor is free, or the system has no timerfd (ENOSYS).
    """
    cdef int fd = mr_timerfd_create()
    if fd < 0:
        _raise(errno, "timerfd_create")
    return fd


@cython.final
cdef class TimerFd:
    """One timer descriptor, created when it is first armed and used again for every later deadline.

    Args:
        create: gives the descriptor (an int, owned by this object from then on); the system's own if left out.

    Attributes:
        num_attempts: how many times a descriptor was asked for; 1 for good once that succeeded.
        closed: whether `close` was called.
    """

    def __cinit__(self, create=None):
        self._fd = -1
        self._create = create_descriptor if create is None else create

    def __dealloc__(self):
        if self._fd >= 0:
            close(self._fd)

    def fileno(self):
        """The descriptor, readable from expiry to `drain`; -1 while there is none."""
        return self._fd

    def arm(self, int64_t deadline_ns):
        """Expire once, at an absolute monotonic time [ns]; at once if that is reached, zero or negative.

        Replaces an earlier setting and forgets its expiry if that was not drained.

        Raises:
            OSError: the descriptor cannot be created (a later call tries again) or not be set.
            ValueError: the timer is closed.
            OverflowError: the time does not fit 64 bits.
        """
        if self.closed:
            raise ValueError("the timer is closed")
        self._need_descriptor()
        # Zero would disarm, and the kernel refuses what is negative.
        self._set(deadline_ns if deadline_ns > 0 else 1)

    def disarm(self):
        """Forget the setting, and an expiry that was not drained. Creates nothing.

        Raises:
            OSError: the descriptor cannot be set.
        """
        if self._fd >= 0:
            self._set(0)

    def drain(self):
        """Take the expiries since the timer was armed: 1 or 0, for a wake-up without cause.

        Raises:
            OSError: the descriptor cannot be read.
        """
        cdef uint64_t num_expiries = 0
        cdef Py_ssize_t num_bytes
        if self._fd < 0:
            return 0
        num_bytes = read(self._fd, &num_expiries, sizeof(num_expiries))
        while num_bytes < 0 and errno == EINTR:
            PyErr_CheckSignals()
            num_bytes = read(self._fd, &num_expiries, sizeof(num_expiries))
        if num_bytes < 0 and errno == EAGAIN:
            return 0
        if num_bytes != sizeof(num_expiries):
            _raise(errno if num_bytes < 0 else EIO, "read of a timer descriptor")
        return num_expiries

    def close(self):
        """Close the descriptor, if there is one. A loop that watches it must have been told before."""
        cdef int fd = self._fd
        self._fd = -1
        self.closed = True
        if fd >= 0:
            close(fd)

    cdef int _need_descriptor(self) except -1:
        if self._fd < 0:
            self.num_attempts += 1
            self._fd = self._create()
        return 0

    cdef int _set(self, int64_t deadline_ns) except -1:
        if mr_timerfd_set(self._fd, deadline_ns) < 0:
            _raise(errno, "timerfd_settime")
        return 0


def sleep_until_ns(int64_t deadline_ns):
    """Block this thread up to an absolute monotonic time [ns], without the GIL; return at once if it is reached.

    Signal handlers of Python run in between; the sleep ends early only with the exception that one of them raises.

    Raises:
        OverflowError: the time does not fit 64 bits.
    """
    cdef int error
    if not MR_HAS_CLOCK_NANOSLEEP:
        while (rest_ns := deadline_ns - time.monotonic_ns()) > 0:
            time.sleep(rest_ns / 1e9)
        return
    if deadline_ns <= 0:
        return
    while True:
        with nogil:
            error = mr_sleep_until(deadline_ns)
        if error == 0:
            return
        if error != EINTR:
            _raise(error, "clock_nanosleep")
        PyErr_CheckSignals()
