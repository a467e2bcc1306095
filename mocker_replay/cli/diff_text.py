"""The result of a comparison of logs as text for people. Decides form, never content."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mocker_replay.cli.console import plain

if TYPE_CHECKING:
    from mocker_replay.log.diff_metrics import Metric
    from mocker_replay.log.diff_result import FirstDifference, LineCounts, LogDiff, PassHere
    from mocker_replay.log.field_differences import FieldDifference

LABEL_WIDTH = 16
_LINE_MAX = 400  # characters of a line that is shown; JSON has all of them
_FIELDS_MAX = 12


def headline(diff: LogDiff) -> str:
    """The result in one line."""
    if diff.first is not None:
        first = diff.first
        event = (first.a or first.b or {}).get("event")
        seq = "" if first.seq is None else f" at seq {first.seq}"
        return f"first difference{seq}, {_ms(first.t_ms)}: {event} {first.verdict}"
    if diff.footer:
        return f"the same events, but another end: {field_text(diff.footer[0])}"
    damage = next((text for text in diff.damage if text is not None), None)
    return f"the same {diff.num_events[0]:,} events" if damage is None else damage


def render_diff(diff: LogDiff) -> str:
    """All that was found, a label and a text on each line."""
    return "".join(f"{label:<{LABEL_WIDTH}}{plain(text)}\n" for label, text in _lines(diff))


def _lines(diff: LogDiff) -> Iterator[tuple[str, str]]:
    yield "same" if diff.same and not any(diff.damage) else "differs", f"{diff.a} and {diff.b}: {headline(diff)}"
    if diff.is_believed:
        yield "", "both footers say so and are believed; --verify reads the events"
    for name, text in zip(("a", "b"), diff.damage, strict=True):
        if text is not None:
            yield f"{name} is damaged", text
    if diff.levels[0] != diff.levels[1]:
        yield "levels", f"a {diff.levels[0]}, b {diff.levels[1]}: lines of level {diff.level} compared, without seq"
    if diff.ignored:
        yield "left out", ", ".join(diff.ignored)
    if diff.first is not None:
        yield from _first(diff.first)
    for at, found in enumerate(diff.footer if diff.first is not None else ()):
        yield "" if at else "end of the run", field_text(found)
    for at, found in enumerate(diff.settings):
        yield "" if at else "settings", field_text(found)
    if diff.counts is not None:
        yield from _counts(diff.counts)
    if diff.first is not None:
        yield from _metrics(diff.metrics)


def _first(first: FirstDifference) -> Iterator[tuple[str, str]]:
    for at, found in enumerate(first.fields[:_FIELDS_MAX]):
        yield "" if at else "fields", field_text(found)
    if len(first.fields) > _FIELDS_MAX:
        yield "", f"and {len(first.fields) - _FIELDS_MAX} more"
    for name, event, number in (("a", first.a, first.a_line), ("b", first.b, first.b_line)):
        text = "no more lines" if event is None else _json_text(event)
        yield name if number is None else f"{name}, line {number}", text
    if first.pass_here is not None:
        yield "pass", _pass_text(first.pass_here)
    if first.history is None:
        yield "before", "not told: the log cannot be read a second time"
        return
    yield "before", f"{first.history.about}: {first.history.num_lines:,} lines"
    for event in first.history.events:
        yield "", _json_text(event)


def _pass_text(here: PassHere) -> str:
    if here.pass_id is None:
        return f"worker {here.worker}, before its first pass"
    since = "" if here.since_ms is None else f" since {_ms(here.since_ms)}"
    state = {"starts": "starts here", "ends": "ends here"}.get(here.state, f"{here.state}{since}")
    return f"worker {here.worker}, pass {here.pass_id}, {state}"


def _counts(counts: LineCounts) -> Iterator[tuple[str, str]]:
    from mocker_replay._core.log_aligner import CLASSES

    yield "lines", " · ".join(f"{name} {counts.total(name):,}" for name in CLASSES)
    if counts.total("moved"):
        yield "", f"moved by up to {counts.earlier_ms:.6g} ms earlier, {counts.later_ms:.6g} ms later"
    for event, by_class in counts.by_event.items():
        told = [f"{name} {number:,}" for name, number in by_class.items() if number and name != "same"]
        if told:
            yield "", f"{event}: {' · '.join(told)}"
    if any(counts.given_up):
        a, b = counts.given_up
        yield "", f"{a:,} of a and {b:,} of b found no partner within {counts.window_lines:,} lines (--window)"


def _metrics(metrics: tuple[Metric, ...]) -> Iterator[tuple[str, str]]:
    changed = [metric for metric in metrics if metric.a != metric.b]
    if not changed:
        yield "figures", "all the same"
        return
    width = max(len(metric.name) for metric in changed)
    yield "figures", f"{'':<{width}}{'a':>16}{'b':>16}{'change':>16}"
    for metric in changed:
        relative = "" if metric.relative is None else f"  {metric.relative:+.3%}"
        change = "" if metric.change is None else f"{'+' if metric.change > 0 else ''}{_figure(metric.change)}"
        about = "" if metric.is_exact else "  (within 0.05 %)"
        row = f"{metric.name:<{width}}{_figure(metric.a):>16}{_figure(metric.b):>16}{change:>16}"
        yield "", f"{row}{relative}{about}"


def _figure(value: float | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.3f}" if abs(value) >= 1000 else f"{value:.6g}"


def field_text(found: FieldDifference, a: str = "a", b: str = "b") -> str:
    """One field of two sides that are called so."""
    return f"{found.field}: {a} {_json_text(found.a)}, {b} {_json_text(found.b)}"


def _json_text(value: object) -> str:
    """JSON, shortened to what fits a screen."""
    import orjson

    text = orjson.dumps(value).decode()
    return text if len(text) <= _LINE_MAX else f"{text[:_LINE_MAX]}…"


def _ms(t_ms: float | None) -> str:
    return "no time" if t_ms is None else f"{t_ms} ms"
