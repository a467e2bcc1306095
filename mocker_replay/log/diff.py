"""Two event logs, compared: the first event that differs, what became of all others, and what it meant.

Reads both logs in step, in flat memory. Up to the first difference whole blocks are compared; from there on the core
pairs lines by what they are about (docs/diff.md). Decides what counts as the same: bare lines, without ignored fields;
of two levels the lower one, without `seq`. Never decides which side is right.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from mocker_replay._core.log_aligner import CLASSES, ENDED, WINDOW_MAX, Aligner
from mocker_replay._core.log_figures import LogFigures
from mocker_replay._core.log_lines import LineRules
from mocker_replay.errors import UsageError
from mocker_replay.events import EventLevel
from mocker_replay.log.diff_context import read_history, subject_of
from mocker_replay.log.diff_fields import check_ignored
from mocker_replay.log.diff_metrics import metrics_of
from mocker_replay.log.diff_result import FirstDifference, LineCounts, LogDiff, PassHere
from mocker_replay.log.diff_settings import settings_differences
from mocker_replay.log.diff_side import LineHere, Side
from mocker_replay.log.field_differences import FieldDifference, field_differences
from mocker_replay.log.footers import footer_at_end
from mocker_replay.log.reader import LogError

WINDOW_LINES = 131_072
HISTORY_LINES = 8
_LEVELS = list(EventLevel)
_WORKER_MAX = 2**31 - 1  # the number of one in a log that a run wrote


def diff_logs(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    ignore: Iterable[str] = (),
    verify: bool = False,
    all_settings: bool = False,
    window_lines: int = WINDOW_LINES,
    history_lines: int = HISTORY_LINES,
) -> LogDiff:
    """Compare two logs (plain, gzip or zstd; one of them may be `-`, standard input).

    Args:
        ignore: fields of event lines that are left out: a name at any depth, or a dotted path from the top.
        verify: read the events even where footers that need no reading say they are the same.
        all_settings: settings without effect on events are told too.
        window_lines: lines of each log that may wait for a partner; memory follows it.
        history_lines: earlier lines told of what the first difference is about.

    Raises:
        LogError: no event log, another schema, truncated in its header, or a line at the first difference that is no
            JSON object. What is wrong later is told in the result.
        UsageError: an ignored field that no line has, a window or history that cannot be.
    """
    ignored = check_ignored(ignore)
    if os.fspath(a) == os.fspath(b) == "-":
        raise UsageError("only one of two logs can be standard input")
    if not 1 <= window_lines <= WINDOW_MAX:
        raise UsageError(f"the window must hold from 1 to {WINDOW_MAX} lines (got {window_lines})")
    if history_lines < 0:
        raise UsageError(f"the history cannot hold fewer than 0 lines (got {history_lines})")
    first = Side(a)
    try:
        second = Side(b)
        try:
            diff = _Diff(first, second, ignored, window_lines, history_lines, all_settings)
            if not verify:
                believed = diff.by_footers()
                if believed is not None:
                    return believed
            return diff.by_events()
        finally:
            second.close()
    finally:
        first.close()


class _Diff:
    """One comparison."""

    def __init__(
        self, a: Side, b: Side, ignored: tuple[str, ...], window_lines: int, history_lines: int, all_settings: bool
    ) -> None:
        self._a = a
        self._b = b
        self._ignored = ignored
        self._window_lines = window_lines
        self._history_lines = history_lines
        for side in (a, b):
            if side.level not in _LEVELS:
                raise LogError(f"{side.name}:1: level: must be one of {', '.join(_LEVELS)} (got {side.level})")
        self._level = min(a.level, b.level, key=lambda level: _LEVELS.index(EventLevel(level)))
        self._levels_differ = a.level != b.level
        if self._levels_differ:
            a.compare_at(self._level)
            b.compare_at(self._level)
        self._rules = LineRules(ignored, self._levels_differ)
        self._settings = settings_differences(a.log.header, b.log.header, all_fields=all_settings)
        self._figures = LogFigures()
        # Lines that are the same may still differ in ignored fields, and so in their figures.
        self._figures_b = self._figures if self._rules_are_exact else LogFigures()

    @property
    def _rules_are_exact(self) -> bool:
        return not self._ignored

    def by_footers(self) -> LogDiff | None:
        """The same by what both footers say; None where that cannot be had or is not so."""
        footers = [footer_at_end(side.log.name) for side in (self._a, self._b)]
        if self._levels_differ or footers[0] is None or footers[1] is None:
            return None
        if any(footers[0].get(key) != footers[1].get(key) for key in ("events", "digest")):
            return None
        num_events = footers[0].get("events")
        if not isinstance(num_events, int) or not isinstance(footers[0].get("digest"), str):
            return None
        return self._result(None, None, (num_events, num_events), self._footers(*footers), is_believed=True)

    def by_events(self) -> LogDiff:
        """The same or not by reading both."""
        if not self._find_first():
            counts = _counts(self._figures.line_counts(), None, self._window_lines)
            return self._result(None, counts, None, self._footers(self._a.footer, self._b.footer))
        here = self._a.line_here(), self._b.line_here()
        first = self._tell(*here)
        before = self._figures.line_counts()
        if self._rules_are_exact:
            self._figures_b = self._figures.copy()
        aligner = self._align()
        counts = _counts(before, aligner, self._window_lines)
        first = _judged(first, *aligner.first_classes())
        return self._result(first, counts, None, self._footers(self._a.footer, self._b.footer))

    def _find_first(self) -> bool:
        """Go on to the first lines that differ; whether there are any."""
        a, b = self._a, self._b
        while True:
            a.fill()
            b.fill()
            if a.block is None or b.block is None:
                return a.block is not b.block
            a_at, b_at, _, differs = self._rules.first_difference(a.block, a.at, b.block, b.at)
            self._figures.feed(a.block, a.at, a_at)
            if not self._rules_are_exact:
                self._figures_b.feed(b.block, b.at, b_at)
            a.at, b.at = a_at, b_at
            if differs:
                return True

    def _align(self) -> Aligner:
        """Pair the lines of both logs from here on."""
        aligner = Aligner(self._rules, self._figures, self._figures_b, self._window_lines)
        while (wanted := aligner.run()) != ENDED:
            aligner.give(wanted, (self._a, self._b)[wanted].rest())
        return aligner

    # -- the first difference -----------------------------------------------------------------------

    def _tell(self, a: LineHere | None, b: LineHere | None) -> FirstDifference:
        fields = () if a is None or b is None else tuple(self._fields(a.event, b.event))
        about, other = (a, b) if a is not None else (b, None)
        assert about is not None, "two logs that both have ended do not differ here"
        told, texts = subject_of(about.event, None if other is None else other.event, fields)
        history = None
        for side in (self._a, self._b):
            # The same lines stand before in both, unless fields were ignored: then those of `a` are told.
            history = history or read_history(side.log.name, told, texts, side.bytes_here(), self._history_lines)
        return FirstDifference(
            a=None if a is None else a.event,
            b=None if b is None else b.event,
            a_line=None if a is None else a.number,
            b_line=None if b is None else b.number,
            fields=fields,
            pass_here=self._pass_here(about.event),
            history=history,
            verdict="",
        )

    def _fields(self, a: dict[str, Any], b: dict[str, Any]) -> Iterable[FieldDifference]:
        """What differs in two lines and is not left out."""
        left_out = {*self._ignored, "seq"} if self._levels_differ else set(self._ignored)
        for found in field_differences(a, b):
            path = [part.partition("[")[0] for part in found.field.split(".")]
            tops = {".".join(path[: i + 1]) for i in range(len(path))}
            if not left_out & (tops | set(path)):
                yield found

    def _pass_here(self, event: dict[str, Any]) -> PassHere | None:
        if self._level == EventLevel.REQUESTS:
            return None
        worker, kind = event.get("worker"), event.get("event")
        if not isinstance(worker, int):
            import orjson

            worker = self._figures.worker_of(orjson.dumps(event.get("request")))
        if not isinstance(worker, int):
            return None
        if kind in ("pass_start", "pass_end"):
            number = event.get("pass")
            state = "starts" if kind == "pass_start" else "ends"
            return PassHere(worker, number if isinstance(number, int) else None, state, event.get("t_ms"))
        place = self._figures.place_of(worker) if worker <= _WORKER_MAX else None
        if place is None:
            return PassHere(worker, None, "ended", None)
        number, last, t_ms = place
        return PassHere(worker, number, "in flight" if last == "pass_start" else "ended", t_ms)

    # -- the result ---------------------------------------------------------------------------------

    def _footers(self, a: dict[str, Any] | None, b: dict[str, Any] | None) -> tuple[FieldDifference, ...]:
        """What two footers say differently and the events do not: why the run ended."""
        if a is None or b is None:
            return ()
        return tuple(found for found in field_differences(a, b) if found.field == "end")

    def _result(
        self,
        first: FirstDifference | None,
        counts: LineCounts | None,
        num_events: tuple[int, int] | None,
        footer: tuple[FieldDifference, ...],
        *,
        is_believed: bool = False,
    ) -> LogDiff:
        a, b = self._a, self._b
        figures = (self._figures, self._figures_b)
        return LogDiff(
            a=a.name,
            b=b.name,
            level=self._level,
            levels=(a.level, b.level),
            num_events=num_events or (_num_lines(figures[0]), _num_lines(figures[1])),
            ignored=self._ignored,
            is_believed=is_believed,
            settings=self._settings,
            first=first,
            footer=footer,
            counts=counts,
            metrics=() if is_believed else metrics_of(*figures, self._level),
            damage=(a.damage, b.damage),
            is_cut=a.is_cut or b.is_cut,
        )


def _num_lines(figures: LogFigures) -> int:
    return sum(figures.line_counts().values())


def _counts(before: dict[str, int], aligner: Aligner | None, window_lines: int) -> LineCounts:
    """Lines by event and class: those before the first difference are the same."""
    by_event = {} if aligner is None else aligner.counts()
    for event, num_lines in before.items():
        counts = by_event.setdefault(event, dict.fromkeys(CLASSES, 0))
        counts["same"] += num_lines
    given_up = (0, 0) if aligner is None else aligner.given_up()
    earlier_ms, later_ms = (0.0, 0.0) if aligner is None else aligner.shifts_ms()
    return LineCounts(by_event, window_lines, given_up, earlier_ms, later_ms)


def _judged(first: FirstDifference, a: str | None, b: str | None) -> FirstDifference:
    """The first difference with its class, which only the lines behind it settle."""
    if a is None or b is None:
        verdict = "extra" if a is None else "missing"
    elif (a, b) == ("missing", "extra"):
        verdict = "missing and extra"
    elif "missing" in (a, b) or "extra" in (a, b):
        verdict = "missing" if a == "missing" else "extra"
    else:
        verdict = next((found for found in (a, b) if found != "same"), "renumbered")
    return FirstDifference(
        first.a, first.b, first.a_line, first.b_line, first.fields, first.pass_here, first.history, verdict
    )
