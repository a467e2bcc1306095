"""Cancel tokens and latest-value watches: state that many may look at and nobody can miss.

Decides nothing. A token is level-triggered, unlike the cancellation of a task, which hits whatever await it finds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


def resolve(future: asyncio.Future[T], value: T) -> None:
    """Set a result unless somebody gave up on it."""
    if not future.done():
        future.set_result(value)


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Have a loop call this in one of its next turns; for finalisers, which run on any thread and at any time.

    Nothing happens when the loop is closed, or is being closed at this moment.
    """
    if not loop.is_closed():
        with contextlib.suppress(RuntimeError):  # closed since
            loop.call_soon_threadsafe(callback)


class CancelToken:
    """Once cancelled it stays so, and so do its children; a child's cancellation does not reach the parent."""

    def __init__(self, parent: CancelToken | None = None) -> None:
        self._cancelled = False
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next_key = 0
        self._parent = parent
        self._parent_key = -1
        if parent is not None:
            if parent.cancelled:
                self._cancelled = True
            else:
                self._parent_key = parent.on_cancel(self.cancel)

    @property
    def cancelled(self) -> bool:
        """It has fired."""
        return self._cancelled

    def child(self) -> CancelToken:
        """A token that is cancelled with this one, or alone."""
        return CancelToken(self)

    def cancel(self) -> None:
        """Fire; every callback is called once, in the order of registration."""
        if self._cancelled:
            return
        self._cancelled = True
        if self._parent is not None:
            self._parent.forget(self._parent_key)
        callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            callback()

    def on_cancel(self, callback: Callable[[], None]) -> int:
        """Call `callback` when the token fires, at once if it has; the key is for `forget`."""
        key = self._next_key
        self._next_key += 1
        if self._cancelled:
            callback()
        else:
            self._callbacks[key] = callback
        return key

    def forget(self, key: int) -> None:
        """Drop a callback."""
        self._callbacks.pop(key, None)

    async def wait(self) -> None:
        """Until the token fires."""
        if self._cancelled:
            return
        fired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        key = self.on_cancel(lambda: resolve(fired, None))
        try:
            await fired
        finally:
            self.forget(key)


class WatchClosed(Exception):
    """The writer of a watch is gone."""


class Watch(Generic[T]):
    """A latest value with a version: readers may miss values in between, never the last one."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._closed = False
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def value(self) -> T:
        """The latest value."""
        return self._value

    @property
    def version(self) -> int:
        """Changes with every value set."""
        return self._version

    @property
    def closed(self) -> bool:
        """There will be no further value."""
        return self._closed

    def set(self, value: T) -> None:
        """A new latest value."""
        self._value = value
        self._version += 1
        self._wake()

    def close(self) -> None:
        """There will be no further value."""
        self._closed = True
        self._wake()

    async def changed(self, since: int, token: CancelToken | None = None) -> int:
        """Until the version differs from `since`, or the token fires; returns the version.

        Raises:
            WatchClosed: the writer is gone and nothing newer than `since` is there.
        """
        while self._version == since and not (token is not None and token.cancelled):
            if self._closed:
                raise WatchClosed
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            key = None if token is None else token.on_cancel(partial(resolve, waiter, None))
            try:
                await waiter
            finally:
                if token is not None and key is not None:
                    token.forget(key)
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return self._version

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            resolve(waiter, None)
