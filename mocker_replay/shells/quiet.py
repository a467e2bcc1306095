"""What would keep a punctual thread waiting, kept away from it: other threads' turns, and the garbage collector's.

Decides how far a realtime run goes for its punctuality: as far as any process may, no privileges. Never decides when
anything happens, and leaves thread and interpreter as they were.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

# The shortest there is. Between two passes the thread runs for less than a millisecond.
_SLICE_NS: Final = 100_000
# New objects between two collections. A run makes no cycles of its own; at the usual 700 the collector would
# go over the tokens in flight a hundred times a minute, for milliseconds each time.
_COLLECT_AFTER: Final = 50_000


@contextmanager
def quiet() -> Iterator[None]:
    """Around the loop of a realtime run, in its thread."""
    with _short_slice(), _rare_collections():
        yield


@contextmanager
def _short_slice() -> Iterator[None]:
    """Be woken soon, where the kernel can: on a busy machine a sleeper otherwise waits for others' slices to end."""
    from mocker_replay._core.thread_slice import set_thread_slice_ns, thread_slice_ns

    before_ns = None
    with suppress(OSError):  # another system, or a thread that has real-time priority anyway
        usual_ns = thread_slice_ns()
        set_thread_slice_ns(_SLICE_NS)
        before_ns = usual_ns
    try:
        yield
    finally:
        if before_ns is not None:
            with suppress(OSError):  # given another policy meanwhile
                set_thread_slice_ns(before_ns)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """What exists already is not looked at, and what is new only when there is much of it."""
    before = gc.get_threshold()
    if before[0] == 0 or not gc.isenabled():  # its owner decides
        yield
        return
    freezes = gc.get_freeze_count() == 0
    if freezes:
        gc.freeze()
    gc.set_threshold(max(before[0], _COLLECT_AFTER), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if freezes:
            gc.unfreeze()
