"""Handoffs of one rank: its registrations, its commands, and the dispatcher that brings facts to their readers.

Decides when a fact counts as delivered: when its reader's lane has it, or nobody is there to read it. A reader who is
slow keeps this dispatcher waiting, and nobody else. Source: handoff specification, section 6.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from mocker_replay.events import HandoffStage
from mocker_replay.live.errors import LiveError, text_of
from mocker_replay.live.handoff.control import HandoffControl, HandoffEvents
from mocker_replay.live.handoff.destination import DestinationHandoff
from mocker_replay.live.handoff.facts import DestinationReserved, HandoffFact, SeenFact, SourceHeld
from mocker_replay.live.handoff.operations import CommandName, HandoffCommand, HandoffSubmission
from mocker_replay.live.handoff.routes import Generation, HandoffRoutes
from mocker_replay.live.handoff.transport import Endpoint
from mocker_replay.live.operations import Operation, SendResult
from mocker_replay.live.request import GenerateRequest
from mocker_replay.live.stream import Registration, RequestStream
from mocker_replay.shells.lanes import BoundedLane, LaneClosed

if TYPE_CHECKING:
    from mocker_replay.live.rank import Rank

# Batches of facts between scheduler and dispatcher.
BATCH_CAPACITY = 8


class Handoffs:
    """Shared by all controls and events of one rank; they never keep the engine alive."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.routes = HandoffRoutes()
        self.batches: BoundedLane[Sequence[SeenFact]] = BoundedLane(BATCH_CAPACITY)
        self._dispatcher: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # of sessions

    # -- for callers --------------------------------------------------------------------------------

    def register(self, handoff_id: uuid.UUID) -> tuple[HandoffControl, HandoffEvents]:
        """Register a handoff; see `LiveEngine.register_handoff`."""
        self._rank.require_loop()
        if (error := self._rank.not_running()) is not None:
            raise error
        generation = self.routes.register(handoff_id)
        # As with requests: a route behind a shutdown would live for ever.
        if (error := self._rank.not_running()) is not None:
            self.routes.unregister(generation)
            raise error
        if self._dispatcher is None:
            self._dispatcher = self._rank.loop.create_task(
                self._supervise(), name=f"lifecycle dispatcher of rank {self._rank.dp_rank}"
            )
        return HandoffControl(self, generation), HandoffEvents(self, generation)

    def join(
        self, handoff_id: uuid.UUID, request: GenerateRequest, endpoint: Endpoint
    ) -> tuple[DestinationHandoff, RequestStream]:
        """Take a prompt over; see `LiveEngine.join_handoff`."""
        try:
            control, events = self.register(handoff_id)
            try:
                registration, stream = self._rank.prepare(request)
            except BaseException:
                events.drop()
                raise
        except BaseException:
            endpoint.close()
            raise
        group = self._rank.group
        party = DestinationHandoff(
            control, events, registration, stream.output, endpoint, group, self._rank.token,
            group.handoff_settings.session_timeout_ms,
        )  # fmt: skip
        self.run(party.run(), f"destination of handoff {handoff_id}")
        return party, stream

    def run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task of a session; it ends by itself when the rank stops, and the rank's shutdown waits for that."""
        task = self._rank.loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def submit(self, generation: Generation, kind: CommandName, registration: Registration) -> HandoffSubmission:
        """Start a prefill or a reservation."""
        self._rank.require_loop()
        route, asked = registration.consume(self._rank)
        submission = HandoffSubmission(self._rank, route, generation, kind)
        submission.start(asked)
        return submission

    def command(self, generation: Generation, kind: CommandName) -> Operation:
        """Start any other command."""
        self._rank.require_loop()
        command = HandoffCommand(self._rank, generation, kind)
        command.start()
        return command

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The one of the engine."""
        return self._rank.loop

    # -- for operations -----------------------------------------------------------------------------

    def send(self, generation: Generation, kind: CommandName, on_result: SendResult) -> None:
        """Put a command about a handoff on the command lane."""
        from mocker_replay._core.lanes import Command

        at_source = kind.endswith("source")
        request = generation.source_request if at_source else generation.destination_request
        self._rank.group.send(
            lambda number: Command(number, kind, request, self._rank.dp_rank, handoff=generation.number), on_result
        )

    def end_stream(self, request: int) -> None:
        """The scheduler has dropped the request of a handoff: its stream ends after what it has."""
        route = self._rank.routes.by_scheduler(request)
        if route is not None:
            self._rank.close_route(route)

    # -- the dispatcher -----------------------------------------------------------------------------

    async def tell(self, facts: Sequence[SeenFact]) -> None:
        """Hand facts to the dispatcher; waits while it has too many. Facts of handoffs nobody registered are dropped.

        Raises:
            LiveError: the dispatcher is gone, and the engine is not being stopped.
        """
        known = [fact for fact in facts if self._reader(fact) is not None]
        if not known:
            return
        try:
            await self.batches.send(known)
        except LaneClosed:
            if self._rank.running:
                raise LiveError(f"the lifecycle lane of rank {self._rank.dp_rank} is closed") from None

    async def stopped(self) -> None:
        """Until dispatcher and sessions have ended."""
        tasks = [*self._tasks, *([] if self._dispatcher is None else [self._dispatcher])]
        if tasks:
            await asyncio.wait(tasks)

    def close_all(self) -> None:
        """The rank stops: every reader's facts end after what it has."""
        self.routes.close_all()
        self.batches.close_reader()

    async def _supervise(self) -> None:
        """The engine cannot go on without a dispatcher; the group keeps the first error."""
        try:
            await self._dispatch_all()
        except Exception as exc:
            self._failed(text_of(exc), logging.ERROR)
        except asyncio.CancelledError:
            if self._rank.running:  # a loop that is closed cancels what is left, which is no news
                self._failed("its task was cancelled", logging.DEBUG)
            raise
        finally:
            self._rank.token.cancel()
            self.close_all()

    def _failed(self, why: str, level: int) -> None:
        error = LiveError(f"lifecycle dispatcher of rank {self._rank.dp_rank}: {why}")
        self._rank.group.fail(error, level=level)

    async def _dispatch_all(self) -> None:
        while True:
            try:
                batch = await self.batches.take()
            except LaneClosed:
                if self._rank.running:
                    raise LiveError("the lifecycle lane closed unexpectedly") from None
                return
            for fact in batch:
                await self._deliver(fact)
            self.batches.done()

    def _reader(self, seen: SeenFact) -> Generation | None:
        """The registration that asked for what has come true; another one of the same id has nothing to do with it."""
        generation = self.routes.by_number(seen.number)
        if generation is None:
            return None
        at_source = seen.stage is HandoffStage.SOURCE_HELD
        asked = generation.source_request if at_source else generation.destination_request
        return generation if asked == seen.request else None

    async def _deliver(self, seen: SeenFact) -> None:
        generation = self._reader(seen)
        if generation is None:
            return
        with contextlib.suppress(LaneClosed):  # its reader has left, or the rank stops
            await generation.facts.send(self._fact(generation, seen))

    def _fact(self, generation: Generation, seen: SeenFact) -> HandoffFact:
        if seen.stage is HandoffStage.SOURCE_HELD:
            timing = self._rank.group.handoff_settings.timing(seen.num_tokens)
            return SourceHeld(generation.handoff_id, timing, seen.t_ms)
        return DestinationReserved(generation.handoff_id, seen.num_tokens, seen.t_ms)
