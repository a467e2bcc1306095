"""What a rerun found: the same run, or where it first went another way.

Holds facts for people and programs. Never decides which side is right.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from mocker_replay.errors import ExitCode
from mocker_replay.log.field_differences import field_differences
from mocker_replay.log.wall import StepTaken, pack_step


class FieldDifference(Struct, frozen=True):
    """One value that the two sides do not share; None also where a side does not have the field."""

    field: str  # path in the line, such as ranks[0].fpm.wall_time
    logged: object
    rerun: object


class Difference(Struct, frozen=True):
    """The first place where log and rerun part. A side is None where it has no line."""

    rule: str  # what does not hold, in words
    seq: int  # of the line that is due
    line_number: int  # in the file, from 1
    logged: dict[str, Any] | None
    rerun: dict[str, Any] | None
    worker: int | None = None
    pass_id: int | None = None  # last pass the worker had started by then
    steps: tuple[StepTaken, ...] = ()  # its last steps, the newest last

    def fields(self) -> tuple[FieldDifference, ...]:
        """Where both sides have a line: what differs in it."""
        if self.logged is None or self.rerun is None:
            return ()
        return tuple(FieldDifference(*found) for found in field_differences(self.logged, self.rerun))

    def to_mapping(self) -> dict[str, object]:
        return {
            "rule": self.rule,
            "seq": self.seq,
            "line": self.line_number,
            "fields": [{"field": d.field, "logged": d.logged, "rerun": d.rerun} for d in self.fields()],
            "logged": self.logged,
            "rerun": self.rerun,
            "worker": self.worker,
            "pass": self.pass_id,
            "steps": [pack_step(step) for step in self.steps],
        }


class RerunResult(Struct, frozen=True):
    """One log, run again."""

    log: str
    level: str
    clock: str  # measured or nominal
    num_lines: int  # event lines that are the same
    num_steps: int  # steps given to the machines
    end: str | None  # why the recorded run ended; None where the rerun did not come that far
    digest: str | None
    difference: Difference | None
    damage: str | None = None  # what the rest of a log that differs breaks: it was changed after it was written
    stopped: str | None = None  # why a machine could not go on

    @property
    def same(self) -> bool:
        return self.difference is None

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.OK if self.same else ExitCode.DIFFERS

    def to_mapping(self) -> dict[str, object]:
        return {
            "log": self.log.encode(errors="backslashreplace").decode(),  # a path need not be Unicode
            "same": self.same,
            "level": self.level,
            "clock": self.clock,
            "lines": self.num_lines,
            "steps": self.num_steps,
            "end": self.end,
            "digest": self.digest,
            "stopped": self.stopped,
            "difference": None if self.difference is None else self.difference.to_mapping(),
            "damage": self.damage,
        }
