"""Timers of the running loop that keep an absolute deadline of the monotonic clock.

Decides: how a wait is carried out. Never fires early, never from within the call that arms, and knows nothing of
modelled time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mocker_replay.shells.clock import monotonic_ns

# The loop's own timers come up to a millisecond late (epoll counts in whole ones) and are used up to here only; what
# is left is waited for in turns of no delay.
COARSE_END_NS = 2_000_000


class PreciseTimer:
    """The `Timer` of `MonotonicClock`."""

    def __init__(self, on_expiry: Callable[[], None]) -> None:
        self._on_expiry = on_expiry
        self._deadline_ns = 0
        self._handle: asyncio.Handle | None = None
        self._closed = False

    def arm(self, deadline_ns: int) -> None:
        """Set to an absolute monotonic time [ns]; the running loop calls back."""
        if self._closed:
            raise RuntimeError("the timer is closed")
        self.disarm()
        self._deadline_ns = deadline_ns
        self._wait(asyncio.get_running_loop())

    def disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        self.disarm()
        self._closed = True

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        coarse_ns = self._deadline_ns - COARSE_END_NS - monotonic_ns()
        if coarse_ns > 0:
            self._handle = loop.call_later(coarse_ns / 1e9, self._look, loop)
        else:
            self._handle = loop.call_soon(self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        # The clock decides, not the loop's timer: its time need not be this clock's.
        if monotonic_ns() < self._deadline_ns:
            self._wait(loop)
            return
        self._handle = None
        self._on_expiry()
