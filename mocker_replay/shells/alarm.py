"""A wait for a time that somebody else may cut short."""

from __future__ import annotations

import asyncio
import math

from mocker_replay.shells.clock import Clock, ns_from_ms
from mocker_replay.shells.tokens import resolve


class Alarm:
    """One sleeper, any number of those who wake it.

    Args:
        clock: whose time counts. origin_ns: its reading that is 0 ms.
    """

    def __init__(self, clock: Clock, origin_ns: int) -> None:
        self._origin_ns = origin_ns
        self._rung = False
        self._sleeper: asyncio.Future[None] | None = None
        self._timer = clock.timer(self.ring)

    def ring(self) -> None:
        """Wake the sleeper, or the next one before it sleeps."""
        self._rung = True
        if self._sleeper is not None:
            resolve(self._sleeper, None)

    async def sleep_until(self, at_ms: float) -> None:
        """Until `at_ms` is reached or `ring` was called since the last sleep; inf: until it is called."""
        if self._rung:
            self._rung = False
            await asyncio.sleep(0)
            return
        if at_ms < math.inf:
            self._timer.arm(self._origin_ns + ns_from_ms(at_ms))
        self._sleeper = asyncio.get_running_loop().create_future()
        try:
            await self._sleeper
        finally:
            self._sleeper = None
            self._rung = False
            self._timer.disarm()

    def close(self) -> None:
        """Release the timer."""
        self._timer.close()
