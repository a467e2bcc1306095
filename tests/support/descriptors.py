"""Timer descriptors for tests: counting, failing where told, and one that follows the virtual clock."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

from mocker_replay._core.timerfd import TimerFd, create_descriptor
from tests.support.virtual_loop import VirtualClock


def num_descriptors() -> int:
    """Open descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


class Creator:
    """Counts the attempts to create a descriptor; fails them all if told."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.num_attempts = 0
        self.created: list[int] = []

    def __call__(self) -> int:
        self.num_attempts += 1
        if self.fails:
            raise OSError(errno.EMFILE, "too many open files, says the test")
        self.created.append(create_descriptor())
        return self.created[-1]

    def timer_fd(self) -> TimerFd:
        """What a precise timer calls for its descriptor."""
        return TimerFd(self)


class FailingDescriptor:
    """A real one, until a call of the name `fails_at` is made."""

    def __init__(self, fails_at: str) -> None:
        self.fails_at = fails_at
        self.calls: list[str] = []
        self._real = TimerFd()

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails_at:
            raise OSError(errno.EIO, f"{name} fails, says the test")

    def fileno(self) -> int:
        return self._real.fileno()

    def arm(self, deadline_ns: int) -> None:
        self._note("arm")
        self._real.arm(deadline_ns)

    def disarm(self) -> None:
        self._note("disarm")
        self._real.disarm()

    def drain(self) -> int:
        self._note("drain")
        return self._real.drain()

    def close(self) -> None:
        self.calls.append("close")
        self._real.close()


class Recorder:
    """A descriptor that takes any setting, never expires by itself, and remembers."""

    def __init__(self) -> None:
        self.left, self.right = socket.socketpair()
        self.armed: list[int] = []

    def fileno(self) -> int:
        return self.right.fileno()

    def arm(self, deadline_ns: int) -> None:
        self.armed.append(deadline_ns)

    def disarm(self) -> None: ...

    def expire(self) -> None:
        self.left.send(b"1")

    def drain(self) -> int:
        return len(self.right.recv(8))

    def close(self) -> None:
        self.left.close()
        self.right.close()


class VirtualDescriptor:
    """Readable like a timer descriptor, but at an instant of the virtual clock. `stray` wakes it without cause."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._stray = False
        self._handle: asyncio.TimerHandle | None = None

    def fileno(self) -> int:
        return self._fd

    def arm(self, deadline_ns: int) -> None:
        self.disarm()
        self._handle = self._clock.loop.call_at_ns(deadline_ns, os.eventfd_write, self._fd, 1)

    def disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._read()
        self._stray = False

    def stray(self) -> None:
        self._stray = True
        os.eventfd_write(self._fd, 1)

    def drain(self) -> int:
        count, stray = self._read(), self._stray
        self._stray = False
        return count - stray

    def _read(self) -> int:
        try:
            return os.eventfd_read(self._fd)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        self.disarm()
        os.close(self._fd)
