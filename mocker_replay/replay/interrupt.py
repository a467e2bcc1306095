"""Ctrl-C as a flag: the run ends at the next boundary and keeps what it has; a second one ends it at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class InterruptFlag:
    """While entered in the main thread, the first SIGINT only sets `raised`; the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.raised = False
        self.on_raise: Callable[[], object] | None = None  # called from the signal handler
        self._previous: signal._HANDLER = None
        self._installed = False

    def __enter__(self) -> InterruptFlag:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.raised:
            raise KeyboardInterrupt
        self.raised = True
        if self.on_raise is not None:
            self.on_raise()


def abandon(loop: asyncio.AbstractEventLoop) -> None:
    """Drop the tasks of a loop that a KeyboardInterrupt has left.

    It may have come between a task and its next step, which is lost then. Whoever waits for such a task, even for one
    that was cancelled, waits for ever; so nobody does, and coroutines are closed where they stand.
    """
    import asyncio

    loop.set_exception_handler(lambda _loop, _context: None)  # tasks that are destroyed while they wait would complain
    for task in asyncio.all_tasks(loop):
        coroutine = task.get_coro()
        if coroutine is not None:
            with contextlib.suppress(Exception):  # of those that want to wait once more
                coroutine.close()
