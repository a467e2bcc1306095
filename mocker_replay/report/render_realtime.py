"""The realtime part of the summary page: how late it was, how busy, at which rate.

Decides what is shown and how numbers are rounded for the eye; all figures come from the summary's object `realtime`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.text import Text

_LABEL_WIDTH: Final = 13
_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH: Final = 60
_KINDS: Final = (("arrivals", "arrival_lateness"), ("pass ends", "pass_end_lateness"))


def realtime_lines(realtime: dict[str, Any]) -> Iterator[Text]:
    """Lines below the rest of the page."""
    yield Text()
    yield Text("late by, ms".ljust(_LABEL_WIDTH), style="bold").append(
        "".join(name.rjust(11) for name in ("p50", "p99", "max", "events")) + f"  {_edges_text(realtime)}",
        style="not bold dim",
    )
    for label, name in _KINDS:
        lateness = realtime[name]
        if lateness is not None:
            yield _lateness_line(label, lateness)
    yield _line("rate", _rate_text(realtime), "")
    flight = realtime["in_flight"]
    yield _line("in flight", f"{_spark(flight['max_per_bucket'])} at most {flight['max']:,}", "")
    limit_ms = realtime["max_lateness_limit_ms"]
    if realtime["late"]:
        yield _line("LATE", f"{realtime['max_lateness_ms']:,.3f} ms, more than the {limit_ms:g} ms allowed", "bold red")


def _lateness_line(label: str, lateness: dict[str, Any]) -> Text:
    numbers = "".join(f"{lateness[name]:,.3f}".rjust(11) for name in ("p50_ms", "p99_ms", "max_ms"))
    counts = [bar["count"] for bar in lateness["histogram"]]
    line = Text(label.ljust(_LABEL_WIDTH), style="bold").append(numbers, style="not bold")
    return line.append(f"{lateness['count']:,}".rjust(11), style="not bold").append(f"  {_bars(counts)}", style="cyan")


def _edges_text(realtime: dict[str, Any]) -> str:
    """What the bars of the histograms stand for."""
    some = next((realtime[name] for _, name in _KINDS if realtime[name] is not None), None)
    if some is None:
        return ""
    edges = [bar["le_ms"] for bar in some["histogram"] if bar["le_ms"] is not None]
    return f"up to {edges[0]:g} … {edges[-1]:g} ms, more"


def _rate_text(realtime: dict[str, Any]) -> str:
    planned, achieved = realtime["planned_request_rate_rps"], realtime["achieved_request_rate_rps"]
    clock = f"{realtime['clock']} clock, {realtime['wall_duration_ms'] / 1000.0:,.2f} s"
    if planned is None or achieved is None:
        return clock
    return f"{achieved:,.2f} of {planned:,.2f} planned requests/s, {clock}"


def _line(label: str, text: str, style: str) -> Text:
    return Text(label.ljust(_LABEL_WIDTH), style="dim").append(text, style=style or "not dim")


def _bars(counts: Sequence[int]) -> str:
    """One character a bar, its height by the share of the highest; a space where there is nothing."""
    most = max(counts, default=0)
    return "".join(" " if n == 0 else _BARS[min(n * len(_BARS) // most, len(_BARS) - 1)] for n in counts)


def _spark(values: Sequence[int]) -> str:
    """Neighbours are joined, the highest one showing, until the line fits."""
    joined = -(-len(values) // _SPARK_WIDTH) or 1
    return _bars([max(values[at : at + joined]) for at in range(0, len(values), joined)])
