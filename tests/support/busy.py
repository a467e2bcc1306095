"""Work beside a test: a thread that wants the interpreter, processes that want the cores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy_thread() -> Iterator[None]:
    """Holds the interpreter's lock again and again."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            sum(range(20_000))

    thread = threading.Thread(target=work)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_s / 10)  # as many turns of the lock, in less time
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval_s)


@contextmanager
def busy_processes() -> Iterator[None]:
    """One for each core, and at most three."""
    num_workers = min(os.cpu_count() or 1, 3)
    workers = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_workers)]
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
