"""Timers of an asyncio loop that keep an absolute deadline of the monotonic clock to some ten microseconds.

Decides: how a wait is carried out. A timer descriptor carries it where there is one; otherwise, and for good after a
descriptor failed, the loop's own timer does up to 2 ms before the deadline and turns of no delay do the rest. Never
fires early, never from within the call that arms, and knows nothing of modelled time. Not for several threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from mocker_replay._core.timerfd import TimerFd, available
from mocker_replay.shells.clock import monotonic_ns

# The loop's own timers come up to a millisecond late (epoll counts in whole ones), so they are trusted up to here only.
COARSE_END_NS = 2_000_000
# What the kernel takes; some two hundred years, nobody will see it expire.
DEADLINE_NS_MAX = 2**63 - 1

_logger = logging.getLogger(__name__)
_warned = False


class TimerDescriptor(Protocol):
    """What a precise timer needs of `TimerFd`; any of these may raise OSError."""

    def fileno(self) -> int: ...
    def arm(self, deadline_ns: int) -> None: ...
    def disarm(self) -> None: ...
    def drain(self) -> int: ...
    def close(self) -> None: ...


MakeDescriptor = Callable[[], TimerDescriptor]
DEFAULT_DESCRIPTOR: MakeDescriptor | None = TimerFd if available else None


class PreciseTimer:
    """The `Timer` of `MonotonicClock`: one descriptor at most, created for the first future deadline, then used again.

    Args:
        on_expiry: called by the loop once a deadline is reached.
        make: gives the descriptor; None: the loop's own timers from the start.
    """

    def __init__(self, on_expiry: Callable[[], None], make: MakeDescriptor | None = DEFAULT_DESCRIPTOR) -> None:
        self._on_expiry = on_expiry
        self._make = make
        self._descriptor: TimerDescriptor | None = None
        self._watching: asyncio.AbstractEventLoop | None = None  # the loop that watches the descriptor
        self._armed_ns: int | None = None  # what the descriptor is set to
        self._deadline_ns = 0
        self._handle: asyncio.Handle | None = None  # a callback on its way: a wait without the descriptor
        self._closed = False

    @property
    def has_descriptor(self) -> bool:
        """Whether a descriptor exists; False before the first future deadline, and where the loop's timers wait."""
        return self._descriptor is not None

    def arm(self, deadline_ns: int) -> None:
        """Set to an absolute monotonic time [ns], on the running loop; what was set and not told is forgotten.

        Raises:
            RuntimeError: the timer is closed, or no loop runs.
        """
        if self._closed:
            raise RuntimeError("the timer is closed")
        loop = asyncio.get_running_loop()
        self._cancel_handle()
        self._deadline_ns = min(deadline_ns, DEADLINE_NS_MAX)
        if self._deadline_ns <= monotonic_ns():
            self._disarm_descriptor()
            self._handle = loop.call_soon(self._expire)
        elif not self._arm_descriptor(loop):
            self._wait(loop)

    def disarm(self) -> None:
        """Forget the setting, and an expiry that was not told."""
        self._cancel_handle()
        self._disarm_descriptor()

    def close(self) -> None:
        """Disarm and close the descriptor. The timer cannot be armed again."""
        self._closed = True
        self._cancel_handle()
        self._release()

    def _expire(self) -> None:
        self._handle = None
        self._on_expiry()

    def _cancel_handle(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    # With a descriptor.

    def _arm_descriptor(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the descriptor carries the wait."""
        if self._make is None:
            return False
        if self._armed_ns == self._deadline_ns and self._watching is loop:
            return True  # the deadline is ahead, so there is no expiry to forget
        try:
            if self._descriptor is None:
                self._descriptor = self._make()
            self._descriptor.arm(self._deadline_ns)
            self._watch(loop)
        except (OSError, NotImplementedError) as error:
            self._give_up(error)
            return False
        self._armed_ns = self._deadline_ns
        return True

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._descriptor is not None
        if self._watching is loop:
            return
        self._unwatch()
        loop.add_reader(self._descriptor.fileno(), self._on_readable, loop)
        self._watching = loop

    def _unwatch(self) -> None:
        loop, self._watching = self._watching, None
        if loop is not None and not loop.is_closed():
            assert self._descriptor is not None
            loop.remove_reader(self._descriptor.fileno())

    def _on_readable(self, loop: asyncio.AbstractEventLoop) -> None:
        """Told by the loop, perhaps about an expiry that has been forgotten since."""
        if self._descriptor is None:
            return
        try:
            expired = self._descriptor.drain() > 0
        except OSError as error:
            awaited = self._armed_ns is not None
            self._give_up(error)
            if awaited:
                self._wait(loop)
            return
        if not expired or self._armed_ns is None:
            return
        self._armed_ns = None
        if self._deadline_ns <= monotonic_ns():
            self._on_expiry()
        elif not self._arm_descriptor(loop):  # early; no kernel does that, and nobody has to trust it
            self._wait(loop)

    def _disarm_descriptor(self) -> None:
        if self._descriptor is None or self._armed_ns is None:
            return
        self._armed_ns = None
        try:
            self._descriptor.disarm()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """From now on the loop's own timers wait, for this instance only."""
        self._make = None
        self._release()
        _warn_once(error)

    def _release(self) -> None:
        self._unwatch()
        self._armed_ns = None
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            descriptor.close()

    # Without one.

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        coarse_ns = self._deadline_ns - COARSE_END_NS - monotonic_ns()
        if coarse_ns > 0:
            self._handle = loop.call_later(coarse_ns / 1e9, self._look, loop)
        else:
            self._handle = loop.call_soon(self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        # This clock decides and not the loop's, which need not be the same one.
        if self._deadline_ns <= monotonic_ns():
            self._expire()
        else:
            self._wait(loop)


class Sleeper:
    """Waits of one task, one after another, over one timer.

    Args:
        make: as for `PreciseTimer`.
    """

    def __init__(self, make: MakeDescriptor | None = DEFAULT_DESCRIPTOR) -> None:
        self._timer = PreciseTimer(self._wake, make)
        self._woken: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def has_descriptor(self) -> bool:
        """As of the timer."""
        return self._timer.has_descriptor

    async def sleep_until_ns(self, deadline_ns: int | None) -> None:
        """Wait for an absolute monotonic time [ns]; None: for ever, that is, for a cancellation.

        A deadline that is reached yields to the loop once, so that waits in the past cannot keep a thread for
        themselves. A cancelled wait leaves nothing behind that could end the next one early.

        Raises:
            RuntimeError: another wait is going on, or the sleeper is closed.
        """
        if self._closed:
            raise RuntimeError("the sleeper is closed")
        if self._woken is not None:
            raise RuntimeError("a sleeper carries one wait at a time")
        if deadline_ns is not None and deadline_ns <= monotonic_ns():
            await asyncio.sleep(0)
            return
        self._woken = asyncio.get_running_loop().create_future()
        try:
            if deadline_ns is not None:
                self._timer.arm(deadline_ns)
            await self._woken
        finally:
            self._woken = None
            self._timer.disarm()

    def close(self) -> None:
        """Close the descriptor. A wait that is going on fails with RuntimeError; it would never end."""
        self._closed = True
        self._timer.close()
        if self._woken is not None and not self._woken.done():
            self._woken.set_exception(RuntimeError("the sleeper was closed during a wait"))

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


async def sleep_until_ns(deadline_ns: int | None) -> None:
    """Wait once for an absolute monotonic time [ns]; a `Sleeper` is cheaper for more than one wait."""
    sleeper = Sleeper()
    try:
        await sleeper.sleep_until_ns(deadline_ns)
    finally:
        sleeper.close()


def _warn_once(error: Exception) -> None:
    """A run goes on with coarser timers; its reader should know once, not once a timer."""
    global _warned
    if not _warned:
        _warned = True
        _logger.warning("no timer descriptor (%s): waits are less precise, and busy for their last 2 ms", error)
