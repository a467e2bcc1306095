"""What a caller sees of a realtime run while it goes: a few figures, a few times a second.

Decides when they are taken. Never what is shown of them, and nothing of the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy.typing as npt

from mocker_replay.report.realtime import Punctuality

_EVERY_MS: Final = 250.0


class RealtimeView(NamedTuple):
    """What a live view shows of a run, a few times a second."""

    wall_ms: float  # since modelled time 0
    rows_arrived: int
    rows_total: int
    in_flight: int  # requests
    running: int  # requests, all ranks
    waiting: int  # requests, all ranks
    active_blocks: int
    total_blocks: int
    arrivals_per_s: float  # over the last view's interval
    max_lateness_ms: float  # of anything, so far
    recent_lateness_ms: float  # the most since the last view


Watch = Callable[[RealtimeView], None]


class Views:
    """Looks at a run now and then.

    Args:
        gauges: gives (active, inactive blocks, running, waiting) of each rank. wall_ms: time since modelled time 0.
    """

    def __init__(
        self,
        rows_total: int,
        total_blocks: int,
        punctuality: Punctuality,
        gauges: Callable[[], npt.NDArray[Any]],
        wall_ms: Callable[[], float],
    ) -> None:
        self._rows_total = rows_total
        self._total_blocks = total_blocks
        self._punctuality = punctuality
        self._gauges = gauges
        self._wall_ms = wall_ms
        self._arrived = 0  # rows, when it was last looked at
        self._looked_ms = 0.0

    async def show(self, watch: Watch) -> None:
        """For as long as nobody stops it."""
        while True:
            await asyncio.sleep(_EVERY_MS / 1000.0)
            watch(self.look())

    def look(self) -> RealtimeView:
        """The figures of now; rate and recent lateness are those since the last look."""
        wall_ms = max(self._wall_ms(), 0.0)
        arrived = self._punctuality.num_arrived
        active_blocks, _, running, waiting = self._gauges().sum(axis=0).tolist()
        view = RealtimeView(
            wall_ms=wall_ms,
            rows_arrived=arrived,
            rows_total=self._rows_total,
            in_flight=self._punctuality.in_flight.now,
            running=running,
            waiting=waiting,
            active_blocks=active_blocks,
            total_blocks=self._total_blocks,
            arrivals_per_s=(arrived - self._arrived) * 1000.0 / max(wall_ms - self._looked_ms, 1e-9),
            max_lateness_ms=self._punctuality.max_lateness_ms,
            recent_lateness_ms=self._punctuality.take_recent_ms(),
        )
        self._arrived, self._looked_ms = arrived, wall_ms
        return view
