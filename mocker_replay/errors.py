"""One exception tree; each class knows the exit code of the command line.

Exit codes: 0 as expected, 1 golden or threshold differs, 2 bad usage, configuration or trace,
3 engine stuck or invariant broken, 4 some requests failed, 130 interrupted.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Self

from msgspec import Struct


class ExitCode(enum.IntEnum):
    """What the process answers its caller."""

    OK = 0
    DIFFERS = 1
    USAGE = 2
    INVARIANT = 3
    REQUESTS_FAILED = 4
    INTERRUPTED = 130


class Fault(Struct, frozen=True):
    """One thing wrong in one input."""

    file: str
    line: int  # 1-based; 0 when the whole file is meant
    field: str  # "" when the whole line is meant
    value: str  # the offending text, shortened; "" when absent
    rule: str  # what must hold, in words

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        what = f"{self.field}: " if self.field else ""
        got = f" (got {self.value})" if self.value else ""
        return f"{where}: {what}{self.rule}{got}"


class MockerReplayError(Exception):
    """Root of all errors this program raises on purpose."""

    exit_code = ExitCode.INVARIANT


class UsageError(MockerReplayError):
    """An option or a combination of options that is refused. Of several faults the first is the headline."""

    exit_code = ExitCode.USAGE
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> Self:
        """One error for all faults found."""
        error = cls("\n".join(str(fault) for fault in faults))
        error.faults = tuple(faults)
        return error


class OutputError(MockerReplayError):
    """An output cannot be written: full disk, missing rights, closed pipe."""

    exit_code = ExitCode.USAGE


class ClosedPipe(OutputError):
    """The reader of standard output has gone. Not a fault: the process ends quietly."""

    exit_code = ExitCode.OK


class InvariantError(MockerReplayError):
    """The machine stands still or broke one of its own rules; a bug, or a hopeless configuration."""


class ReplayInterrupted(MockerReplayError):
    """The user interrupted the run; partial results were kept."""

    exit_code = ExitCode.INTERRUPTED


class ConfigError(UsageError):
    """An engine configuration that is refused; the message names the key path."""


class TraceError(MockerReplayError):
    """A trace with one or more faults, all of them listed."""

    exit_code = ExitCode.USAGE

    def __init__(self, faults: Sequence[Fault], omitted: int = 0, hint: str = "") -> None:
        self.faults = tuple(faults)
        self.omitted = omitted  # faults beyond the listing limit
        self.hint = hint  # what may be behind all of them; "" for nothing
        lines = [*(str(fault) for fault in self.faults), *([f"hint: {hint}"] if hint else [])]
        super().__init__("\n".join(lines))
