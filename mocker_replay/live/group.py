"""All ranks of one live engine behind one driver: commands under way, supervision, the first error.

Decides when the engine as a whole is over and what was the reason. Never decides what becomes of a request. Source:
boundary specification, sections 1, 8.1, 8.2 and 9.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mocker_replay.live.effects import Effects
from mocker_replay.live.errors import LiveError, text_of
from mocker_replay.live.handoff.facts import HandoffSettings
from mocker_replay.live.operations import SendResult
from mocker_replay.live.request import TokenPlans
from mocker_replay.shells.clock import Clock
from mocker_replay.shells.handle import Driver
from mocker_replay.shells.published import Published
from mocker_replay.shells.tokens import CancelToken

if TYPE_CHECKING:
    from mocker_replay._core.lanes import Command
    from mocker_replay.live.rank import Rank

_log = logging.getLogger(__name__)

MAX_SCHEDULER_ID = 2**31 - 1


class Group:
    """Shared by the ranks of one engine.

    Args:
        token: stops the engine; fires by itself when its last rank is gone, and when anything fails.
        trace_block_size: tokens a block identity of a prompt stands for.
    """

    def __init__(self, token: CancelToken, trace_block_size: int) -> None:
        self.token = token
        self.trace_block_size = trace_block_size
        self.plans = TokenPlans(trace_block_size)
        self.handoff_settings = HandoffSettings()
        self.ranks: tuple[Rank, ...] = ()
        self.error: LiveError | None = None  # the first one
        self.log_level = logging.ERROR  # at which it is logged; lower where somebody else tells of it
        self._driver: Driver | None = None
        self._clock: Clock | None = None
        self._effects: Effects | None = None
        self._pending: dict[int, SendResult] = {}
        self._next_scheduler_id = 0
        self._main: asyncio.Task[None] | None = None

    def start(self, driver: Driver, clock: Clock, ranks: Sequence[Rank]) -> None:
        """Start the dispatchers; the driver runs already, on this clock."""
        self._driver = driver
        self._clock = clock
        self.ranks = tuple(ranks)
        self._effects = Effects(self, driver.events)
        for rank in self.ranks:
            rank.start()
        self._main = asyncio.get_running_loop().create_task(self._supervise(), name="supervisor of a live engine")

    @property
    def driver(self) -> Driver:
        """The driver of all ranks."""
        assert self._driver is not None, "started"
        return self._driver

    @property
    def clock(self) -> Clock:
        """The driver's."""
        assert self._clock is not None, "started"
        return self._clock

    def wall_ms(self) -> float:
        """Measured time since the engine's start [ms]."""
        return self.driver.shell.wall_ms()

    def new_scheduler_id(self) -> int:
        """Our number of a request, never used again.

        Raises:
            LiveError: there are no more.
        """
        if self._next_scheduler_id > MAX_SCHEDULER_ID:
            raise LiveError(f"an engine takes at most {MAX_SCHEDULER_ID + 1} requests in its life")
        self._next_scheduler_id += 1
        return self._next_scheduler_id - 1

    # -- commands -----------------------------------------------------------------------------------

    def send(self, make: Callable[[int], Command], on_result: SendResult) -> None:
        """Send a command; nobody waits for one before the next is sent, so that one boundary can take them all.

        Args:
            make: the command with its number.
            on_result: told once: the event, when its effects are dispatched, or why there is none.
        """
        handle = self.driver.handle
        try:
            command_id = handle.reserve_id()
        except OverflowError as exc:
            on_result(None, str(exc))
            return
        self._pending[command_id] = on_result

        def on_reply(ok: bool, text: str) -> None:
            if not ok:
                self._tell(command_id, None, text)

        try:
            handle.put(make(command_id), on_reply)
        except (ValueError, OverflowError, TypeError) as exc:
            self._tell(command_id, None, f"no such command: {exc}")

    def answer(self, event: Published) -> None:
        """The effects of a command are dispatched: whoever sent it is told."""
        self._tell(event.command_id, event, "")

    def _tell(self, command_id: int, event: Published | None, text: str) -> None:
        waiting = self._pending.pop(command_id, None)
        if waiting is not None:
            waiting(event, text)

    # -- lifetime -----------------------------------------------------------------------------------

    def released(self) -> None:
        """A rank is gone; with the last one the group is."""
        if all(rank.released for rank in self.ranks):
            self.token.cancel()

    def fail(self, error: LiveError, *, level: int = logging.ERROR) -> None:
        """Something went wrong that the engine cannot survive; what counts is the first of such errors."""
        if self.error is None:
            self.error = error
            _log.log(min(level, self.log_level), "a live engine stops: %s", error)
        self.token.cancel()

    async def drained(self) -> None:
        """Until no completed pass is being dispatched."""
        assert self._effects is not None, "started"
        await self._effects.drained()

    async def stopped(self) -> None:
        """Until driver and dispatcher have ended.

        Raises:
            LiveError: the first thing that went wrong.
        """
        assert self._main is not None, "started"
        await asyncio.wait([self._main])
        if self.error is not None:
            raise LiveError(f"scheduler failed: {self.error}") from self.error

    async def _supervise(self) -> None:
        """The first of driver and dispatcher to end ends the other."""
        assert self._effects is not None, "started"
        actor = self.driver.actor
        dispatcher = asyncio.get_running_loop().create_task(self._dispatch(self._effects), name="effect dispatcher")
        try:
            await asyncio.wait([actor, dispatcher], return_when=asyncio.FIRST_COMPLETED)
            self._note(actor)
            self.token.cancel()
            await asyncio.wait([actor, dispatcher])
            self._note(actor)
        finally:
            self.token.cancel()
            for command_id in list(self._pending):
                self._tell(command_id, None, "engine stopped before acknowledging")
            for rank in self.ranks:
                rank.batches.close()
                rank.forget_publishers()

    async def _dispatch(self, effects: Effects) -> None:
        try:
            await effects.run()
        except Exception as exc:
            self.fail(LiveError(text_of(exc)))
        finally:
            # The driver is told to stop before it finds that nobody reads its events.
            self.token.cancel()
            self.driver.events.close()

    def _note(self, actor: asyncio.Task[None]) -> None:
        """Keep the driver's error, if it has ended with one."""
        if actor.done() and not actor.cancelled() and (error := actor.exception()) is not None:
            self.fail(LiveError(text_of(error)))
