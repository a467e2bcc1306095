"""A realtime run on standard error while it goes: a panel in a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mocker_replay.replay.realtime_view import RealtimeView

Watch = Callable[["RealtimeView"], None]
_PLAIN_INTERVAL_MS = 10_000.0


@contextlib.contextmanager
def shown_view(*, quiet: bool) -> Iterator[Watch | None]:
    """A callback for `replay`, or None where nothing is to be shown."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            yield lambda view: live.update(panel_of(view), refresh=True)
    else:
        yield _PlainLines()


def panel_of(view: RealtimeView) -> Any:
    """The panel of a terminal."""
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim")
    table.add_column(justify="left", min_width=16)
    table.add_column(justify="right", style="dim")
    table.add_column(justify="left", min_width=16)
    table.add_row("time", clock_text(view.wall_ms), "arrived", f"{view.rows_arrived:,} of {view.rows_total:,}")
    table.add_row("rate", f"{view.arrivals_per_s:,.1f} requests/s", "in flight", f"{view.in_flight:,}")
    table.add_row("running", f"{view.running:,}", "waiting", f"{view.waiting:,}")
    usage = view.active_blocks / max(view.total_blocks, 1)
    bar = ProgressBar(total=1.0, completed=usage, width=16)
    table.add_row("KV blocks", bar, "", f"{usage:.0%} of {view.total_blocks:,}")
    table.add_row("late now", f"{view.recent_lateness_ms:,.2f} ms", "late at most", f"{view.max_lateness_ms:,.2f} ms")
    return Panel(table, title="real time", title_align="left", expand=False)


def clock_text(wall_ms: float) -> str:
    """Hours, minutes and seconds of a run."""
    seconds = int(wall_ms // 1000)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


class _PlainLines:
    """A line now and then, for logs of CI: short runs stay silent."""

    def __init__(self) -> None:
        self._next_ms = _PLAIN_INTERVAL_MS

    def __call__(self, view: RealtimeView) -> None:
        if view.wall_ms < self._next_ms:
            return
        self._next_ms = view.wall_ms + _PLAIN_INTERVAL_MS
        text = (
            f"{clock_text(view.wall_ms)}: {view.rows_arrived:,} of {view.rows_total:,} arrived, "
            f"{view.running:,} running, {view.waiting:,} waiting, at most {view.max_lateness_ms:,.2f} ms late"
        )
        print(text, file=sys.stderr, flush=True)
