"""How far a replay is, on standard error: a bar in a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Progress = Callable[[int, int, float], None]  # rows done, rows in the trace, modelled time [ms]
_PLAIN_INTERVAL_S = 10.0


@contextlib.contextmanager
def shown_progress(*, quiet: bool) -> Iterator[Progress | None]:
    """A callback for `replay`, or None where nothing is to be shown."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as bar:
            yield _BarUpdate(bar)
    else:
        yield _PlainLines()


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


class _Rate:
    """Rows a second since the first call."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._started_s

    def rows_per_s(self, rows_done: int) -> float:
        return rows_done / max(self.seconds(), 1e-9)


class _BarUpdate:
    """Feeds the bar of a terminal."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._rate = _Rate()
        self._task = bar.add_task("reading", total=None, rows="")

    def __call__(self, rows_done: int, rows_total: int, now_ms: float) -> None:
        rows = f"{rows_done:,} of {rows_total:,} rows, {self._rate.rows_per_s(rows_done):,.0f}/s"
        self._bar.update(self._task, description="replaying", completed=rows_done, total=max(rows_total, 1), rows=rows)


class _PlainLines:
    """A line now and then, for logs of CI: short runs stay silent."""

    def __init__(self) -> None:
        self._rate = _Rate()
        self._next_s = _PLAIN_INTERVAL_S

    def __call__(self, rows_done: int, rows_total: int, now_ms: float) -> None:
        if self._rate.seconds() < self._next_s:
            return
        self._next_s = self._rate.seconds() + _PLAIN_INTERVAL_S
        rows_per_s = self._rate.rows_per_s(rows_done)
        left = f", {(rows_total - rows_done) / rows_per_s:,.0f} s left" if rows_per_s > 0 and rows_total else ""
        share = f" ({rows_done / rows_total:.0%})" if rows_total else ""
        text = f"replaying: {rows_done:,} of {rows_total:,} rows{share}, {rows_per_s:,.0f} rows/s{left}"
        print(text, file=sys.stderr, flush=True)
