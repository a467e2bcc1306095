"""How a handoff session ended, and waiting for that. Decides nothing."""

from __future__ import annotations

import asyncio
import uuid
from typing import Final, NamedTuple

# A party cleans up within the session's timeout, or this if it is longer [ms].
CLEANUP_MS: Final = 30_000.0


class HandoffResult(NamedTuple):
    """The end of a session at one party."""

    handoff_id: uuid.UUID
    succeeded: bool  # the destination owns the request, and the source has nothing of it
    error: str | None  # the first thing that went wrong; None where it succeeded
    delay_ms: float | None = None  # of the transfer, where this party knew it


class Ending:
    """A result that any number of callers may wait for."""

    def __init__(self) -> None:
        self._result: asyncio.Future[HandoffResult] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        """There is a result."""
        return self._result.done()

    def end(self, result: HandoffResult) -> None:
        """The first result counts."""
        if not self._result.done():
            self._result.set_result(result)

    async def wait(self) -> HandoffResult:
        """The result."""
        return await asyncio.shield(self._result)
