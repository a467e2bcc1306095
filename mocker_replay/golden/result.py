"""What a check or an update of a golden found.

Holds facts for people and programs. Decides only which exit code a status has: a run that changed is told apart from a
golden that cannot be compared at all.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from msgspec import Struct

from mocker_replay.errors import ExitCode
from mocker_replay.golden.blocks import BlockDifference
from mocker_replay.log.diff_result import LogDiff, fields_mapping
from mocker_replay.log.field_differences import FieldDifference


class Status(enum.StrEnum):
    """How a golden stands."""

    SAME = "same"
    DIFFERS = "differs"  # the same input gives another run
    OTHER_INPUT = "other_input"  # the trace, or the timing profile, is another one
    OTHER_SCHEMA = "other_schema"  # recorded under another schema of the event log
    UNREADABLE = "unreadable"  # the golden is not whole, or its run is refused
    BROKEN = "broken"  # the run stood still or lost a request


EXIT_CODES = {
    Status.SAME: ExitCode.OK,
    Status.DIFFERS: ExitCode.DIFFERS,
    Status.OTHER_INPUT: ExitCode.USAGE,
    Status.OTHER_SCHEMA: ExitCode.USAGE,
    Status.UNREADABLE: ExitCode.USAGE,
    Status.BROKEN: ExitCode.INVARIANT,
}


class GoldenResult(Struct, frozen=True):
    """One golden, held against a fresh run."""

    name: str
    status: Status
    reason: str  # one line
    num_events: int | None = None  # of the fresh run
    notes: tuple[str, ...] = ()
    end: tuple[FieldDifference, ...] = ()  # fields of the footer: a is the golden
    summary: tuple[FieldDifference, ...] = ()
    block: BlockDifference | None = None
    diff: LogDiff | None = None  # where the log is stored
    has_log: bool = False

    @property
    def exit_code(self) -> ExitCode:
        return EXIT_CODES[self.status]

    def to_mapping(self) -> dict[str, object]:
        return {
            "name": self.name,
            "status": self.status,
            "reason": _unicode(self.reason),
            "events": self.num_events,
            "notes": [_unicode(note) for note in self.notes],
            "end": fields_mapping(self.end),
            "summary": fields_mapping(self.summary),
            "block": None if self.block is None else self.block.to_mapping(),
            "diff": None if self.diff is None else self.diff.to_mapping(),
        }


def _unicode(text: str) -> str:
    """A path in it need not be Unicode."""
    return text.encode(errors="backslashreplace").decode()


def exit_code_of(results: Iterable[GoldenResult]) -> ExitCode:
    """The gravest of all: broken before unreadable before different."""
    return max((result.exit_code for result in results), default=ExitCode.OK)
