"""Which time a step is given: the three clocks of a shell.

Decides the reading alone. Measured: what the clock says. Nominal: what it should say if nobody were ever late, which is
the latest nominal time of anything seen so far. Directed: nominal, and told from outside.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol

ClockName = Literal["measured", "nominal"]
CLOCK_NAMES: Final = ("measured", "nominal")


class Readings(Protocol):
    """A clock of a shell; all times in ms since the shell's origin."""

    settles: bool  # consumers must have dealt with all that was published before the next step

    def due(self, deadline_ms: float, wall_ms: float) -> bool:
        """Whether a deadline has been reached."""

    def reading(self, wall_ms: float, nominal_ms: float | None) -> float:
        """The reading of a step: `nominal_ms` is the deadline of a timer or the stamp of a command, if it has one."""


class Measured:
    """The clock is believed; a step that is late says so."""

    settles = False

    def due(self, deadline_ms: float, wall_ms: float) -> bool:
        return deadline_ms <= wall_ms

    def reading(self, wall_ms: float, nominal_ms: float | None) -> float:
        return wall_ms


class Nominal:
    """Every stimulus came when it should have; waits are real, readings are not."""

    settles = True

    def __init__(self) -> None:
        self._latest_ms = 0.0

    def due(self, deadline_ms: float, wall_ms: float) -> bool:
        return deadline_ms <= wall_ms

    def reading(self, wall_ms: float, nominal_ms: float | None) -> float:
        if nominal_ms is not None and nominal_ms > self._latest_ms:
            self._latest_ms = nominal_ms
        return self._latest_ms


class Directed:
    """The instant is told from outside, and everything happens at it."""

    settles = True

    def __init__(self) -> None:
        self.now_ms = 0.0

    def due(self, deadline_ms: float, wall_ms: float) -> bool:
        return deadline_ms <= self.now_ms

    def reading(self, wall_ms: float, nominal_ms: float | None) -> float:
        return self.now_ms
