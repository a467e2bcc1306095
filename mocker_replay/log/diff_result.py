"""What a comparison of two logs found.

Holds facts for people and programs. Decides only what the facts are worth: whether the logs are the same, and the exit
code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from mocker_replay.errors import ExitCode
from mocker_replay.log.diff_context import History
from mocker_replay.log.diff_metrics import Metric
from mocker_replay.log.field_differences import FieldDifference


class PassHere(Struct, frozen=True):
    """The pass that a line belongs to."""

    worker: int
    pass_id: int | None  # None before the first pass of the worker
    state: str  # "in flight", "ended", or "starts" and "ends" where the line itself says so
    since_ms: float | None

    def to_mapping(self) -> dict[str, object]:
        return {"worker": self.worker, "pass": self.pass_id, "state": self.state, "since_ms": self.since_ms}


class FirstDifference(Struct, frozen=True):
    """The first event that differs. A side is None where its log has no more lines."""

    a: dict[str, Any] | None
    b: dict[str, Any] | None
    a_line: int | None  # in the file, from 1
    b_line: int | None
    fields: tuple[FieldDifference, ...]
    pass_here: PassHere | None  # None at a level without passes
    history: History | None  # None where no log can be read a second time
    verdict: str  # class of the line, as in the counts; or "renumbered", where nothing but seq differs

    @property
    def seq(self) -> int | None:
        """`seq` of the line, as `a` has it where both have one."""
        side = self.b if self.a is None else self.a
        seq = None if side is None else side.get("seq")
        return seq if isinstance(seq, int) else None

    @property
    def t_ms(self) -> float | None:
        """The earlier of the two modelled times."""
        times = [side["t_ms"] for side in (self.a, self.b) if side and isinstance(side.get("t_ms"), float)]
        return min(times, default=None)

    def to_mapping(self) -> dict[str, object]:
        return {
            "seq": self.seq,
            "t_ms": self.t_ms,
            "class": self.verdict,
            "a_line": self.a_line,
            "b_line": self.b_line,
            "fields": fields_mapping(self.fields),
            "a": self.a,
            "b": self.b,
            "pass": None if self.pass_here is None else self.pass_here.to_mapping(),
            "history": None if self.history is None else self.history.to_mapping(),
        }


class LineCounts(Struct, frozen=True):
    """Lines by class; a pair counts once."""

    by_event: Mapping[str, Mapping[str, int]]  # event -> class -> lines
    window_lines: int
    given_up: tuple[int, int]  # lines of each log that found no partner within the window
    earlier_ms: float  # how much earlier, and how much later, moved lines are in b at most
    later_ms: float

    def total(self, name: str) -> int:
        return sum(counts[name] for counts in self.by_event.values())

    def to_mapping(self) -> dict[str, object]:
        names = list(next(iter(self.by_event.values())))
        return {
            "total": {name: self.total(name) for name in names},
            "by_event": {event: dict(counts) for event, counts in self.by_event.items() if any(counts.values())},
            "window_lines": self.window_lines,
            "given_up": {"a": self.given_up[0], "b": self.given_up[1]},
            "moved_ms": {"earlier": self.earlier_ms, "later": self.later_ms},
        }


class LogDiff(Struct, frozen=True):
    """Two logs, compared."""

    a: str
    b: str
    level: str  # at which they were compared
    levels: tuple[str, str]
    num_events: tuple[int, int]  # lines that were compared
    ignored: tuple[str, ...]
    is_believed: bool  # the same by their footers; the events were not read
    settings: tuple[FieldDifference, ...]
    first: FirstDifference | None
    footer: tuple[FieldDifference, ...]  # beyond what follows from the events
    counts: LineCounts | None  # None where the events were not read
    metrics: tuple[Metric, ...]
    damage: tuple[str | None, str | None]
    is_cut: bool  # a log has no footer

    @property
    def same(self) -> bool:
        return self.first is None and not self.footer

    @property
    def exit_code(self) -> ExitCode:
        """A log without an end settles nothing; one that its footer denies can still be seen to differ."""
        if self.is_cut:
            return ExitCode.USAGE
        if not self.same:
            return ExitCode.DIFFERS
        return ExitCode.USAGE if any(self.damage) else ExitCode.OK

    def to_mapping(self) -> dict[str, object]:
        return {
            "a": self.a,
            "b": self.b,
            "same": self.same and not any(self.damage),
            "believed": self.is_believed,
            "level": self.level,
            "levels": {"a": self.levels[0], "b": self.levels[1]},
            "events": {"a": self.num_events[0], "b": self.num_events[1]},
            "ignored": list(self.ignored),
            "settings": fields_mapping(self.settings),
            "first": None if self.first is None else self.first.to_mapping(),
            "footer": fields_mapping(self.footer),
            "counts": None if self.counts is None else self.counts.to_mapping(),
            "metrics": [metric.to_mapping() for metric in self.metrics],
            "damage": {"a": self.damage[0], "b": self.damage[1]},
        }


def fields_mapping(fields: tuple[FieldDifference, ...]) -> list[dict[str, object]]:
    """Differing fields as JSON has them."""
    return [{"field": found.field, "a": found.a, "b": found.b} for found in fields]
