"""Ctrl-C as a flag: the run ends at the next boundary and keeps what it has; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


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
