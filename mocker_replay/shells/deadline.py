"""A timer of a shell, set to times of its machine.

Decides when the timer has to be armed. Never decides whether a deadline has been reached: readings do.
"""

from __future__ import annotations

from collections.abc import Callable

from mocker_replay.shells.clock import Clock, ns_from_ms


class DeadlineTimer:
    """Set to one deadline at a time, or to none.

    Args:
        origin_ns: clock reading that counts as 0.
        on_expiry: called from the loop, never from within `set`.
    """

    def __init__(self, clock: Clock, origin_ns: int, on_expiry: Callable[[], None]) -> None:
        self._timer = clock.timer(self._expired)
        self._origin_ns = origin_ns
        self._on_expiry = on_expiry
        self._set_ms: float | None = None

    def set(self, deadline_ms: float | None) -> None:
        """Expire at `deadline_ms` since the origin, None for never; the setting that stands already costs nothing."""
        if deadline_ms == self._set_ms:
            return
        self._set_ms = deadline_ms
        if deadline_ms is None:
            self._timer.disarm()
        else:
            self._timer.arm(self._origin_ns + ns_from_ms(max(deadline_ms, 0.0)))

    def close(self) -> None:
        """Never expire again."""
        self._timer.close()

    def _expired(self) -> None:
        self._set_ms = None  # whoever still waits for that deadline sets it again
        self._on_expiry()
