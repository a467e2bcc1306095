"""One rank of a live engine: its routes, and the dispatcher that brings batches to them in order.

Decides what becomes of each signal, and when a batch counts as delivered. Never decides what the scheduler does next;
it is told of failed deliveries. Source: boundary specification, sections 2, 3, 5, 6 and 9.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, structs

from mocker_replay.live.errors import LiveError, NotRunning, text_of
from mocker_replay.live.handoff.lifecycle import Handoffs
from mocker_replay.live.handoff.operations import cancel_through_destination
from mocker_replay.live.metrics import EngineMetrics, ForwardPassPublisher, KvPublisher
from mocker_replay.live.operations import Cancellation, SendResult, Submission
from mocker_replay.live.request import (
    Admission,
    Asked,
    GenerateRequest,
    OutputSignal,
    Prompt,
    Signal,
    TokenPlan,
    checked_count,
    prompt_of,
    terms_of,
)  # fmt: skip
from mocker_replay.live.route import Delivery, Route, Routes
from mocker_replay.live.stream import Registration, RequestStream, start_cancellation
from mocker_replay.shells.lanes import BoundedLane, LaneClosed
from mocker_replay.shells.published import Published
from mocker_replay.shells.tokens import CancelToken, Watch, WatchClosed

if TYPE_CHECKING:
    from mocker_replay.live.group import Group

# Batches between scheduler and dispatcher; unread signals of a request.
BATCH_CAPACITY = 8
OUTPUT_CAPACITY = 8


class RankConfig(Struct, frozen=True):
    """What one rank publishes to whom, and how it buffers. All of it is called or looked at in the engine's loop.

    Attributes:
        output_buffering: unread signals of a request before it is cancelled, or "full" for a whole response.
        allow_zero_output: take requests for no output token; they end with one signal without a token.
        kv_publishers: called with each change of the prefix cache. forward_pass_publisher: called with the metrics of
            each pass. One that raises is logged and goes on being called.
        admissions: unbounded lane for requests that enter the running set; closing its reader stops the engine.
        output_gate: while it is False no output is delivered, and the engine waits at its next pass boundary.
    """

    output_buffering: int | str = OUTPUT_CAPACITY
    allow_zero_output: bool = False
    kv_publishers: Sequence[KvPublisher] = ()
    forward_pass_publisher: ForwardPassPublisher | None = None
    admissions: BoundedLane[Admission] | None = None
    output_gate: Watch[bool] | None = None

    def capacity_for(self, output_tokens: int) -> int:
        """Unread signals that fit for a response of so many tokens."""
        whole = max(output_tokens, 1)
        return whole if self.output_buffering == "full" else min(whole, int(self.output_buffering))

    def check(self) -> None:
        """Raises LiveError: a buffering that is none, or a bounded sink of admissions."""
        buffering = self.output_buffering
        if buffering != "full" and not (isinstance(buffering, int) and buffering >= 1):
            raise LiveError(f'output_buffering must be "full" or at least 1 (got {buffering!r})')
        if self.admissions is not None and self.admissions.capacity is not None:
            raise LiveError("the lane for admissions must have no bound: nobody waits for its reader")


class SeenAdmission(NamedTuple):
    """An admission as the scheduler knows it."""

    scheduler_id: int
    reused_tokens: int
    t_ms: float


class Admissions(NamedTuple):
    """A batch for the dispatcher."""

    entries: list[SeenAdmission]


class Outputs(NamedTuple):
    """A batch for the dispatcher; `failed` is resolved with the signals that could not be delivered."""

    signals: list[OutputSignal]
    failed: asyncio.Future[list[OutputSignal] | None]  # None: the engine is being stopped, nobody will deliver them


class Rank:
    """Inner state of one `LiveEngine`; its clones share it, streams and registrations never keep the engine alive."""

    def __init__(self, group: Group, dp_rank: int, config: RankConfig, total_blocks: int) -> None:
        config.check()
        self.group = group
        self.dp_rank = dp_rank
        self.config = config
        self.total_blocks = total_blocks
        self.token: CancelToken = group.token.child()
        self.released = False  # the last clone of the engine is gone
        self.routes = Routes()
        self.batches: BoundedLane[Admissions | Outputs] = BoundedLane(BATCH_CAPACITY)
        self.handoffs = Handoffs(self)
        self.metrics: Watch[EngineMetrics] = Watch(EngineMetrics(dp_rank, 0, total_blocks, 0, 0, 0))
        self.preemptions = 0  # since the start
        self._dispatcher: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[str | None] | None = None
        self.loop = asyncio.get_running_loop()  # the one it belongs to
        self.token.on_cancel(self._stopped)

    def start(self) -> None:
        """Start the dispatcher."""
        self._dispatcher = self.loop.create_task(self._supervise(), name=f"event dispatcher of rank {self.dp_rank}")

    @property
    def running(self) -> bool:
        """Requests are taken."""
        return not self.token.cancelled

    def not_running(self) -> NotRunning | None:
        """The error to raise when the rank has stopped."""
        return None if self.running else NotRunning("the engine is not running")

    # -- requests -----------------------------------------------------------------------------------

    def prepare(
        self,
        request: GenerateRequest,
        *,
        scheduler_id: int | None = None,
        prompt: Prompt | None = None,
        times: tuple[float, float] | None = None,
    ) -> tuple[Registration, RequestStream]:
        """Register a request; see `LiveEngine.prepare`. A replay names the request, and knows its blocks and times
        (arrival, and when the answer is wanted [ms])."""
        self.require_loop()
        if (error := self.not_running()) is not None:
            raise error
        output_tokens = checked_count(request.effective_output_tokens, "max_output_tokens", 0)
        if output_tokens < 1 and not self.config.allow_zero_output:
            raise LiveError("a request needs at least one output token")
        if prompt is None:
            prompt = prompt_of(request, self.group.trace_block_size)
        arrival_ms, deadline_ms = times or (self.group.wall_ms(), None)
        terms = terms_of(request, arrival_ms, deadline_ms)
        client_id = request.client_id or uuid.uuid4()
        plan = TokenPlan(request.planned_tokens(), client_id)
        number = self.group.new_scheduler_id() if scheduler_id is None else scheduler_id
        route = Route(client_id, number, self.config.capacity_for(output_tokens), plan, prompt.input_tokens)
        assert route.queue is not None
        queue = route.queue
        self.routes.insert(route)
        # A request may come with sequences of the caller's making; a route behind a shutdown would live for ever.
        if (error := self.not_running()) is not None:
            self.close_route(route)
            raise error
        return Registration(self, route, Asked(prompt, output_tokens, terms)), RequestStream(self, route, queue)

    def submit(self, registration: Registration) -> Submission:
        """Start to submit a prepared request."""
        route, asked = registration.consume(self)
        submission = Submission(self, route)
        submission.start(asked)
        return submission

    def send_submit(
        self, route: Route, asked: Asked, on_result: SendResult, *, kind: str = "submit", handoff: int = -1
    ) -> None:
        """Put a submission on the command lane, an ordinary one or one of a handoff."""
        from mocker_replay._core.lanes import Command

        prompt, output_tokens, terms = asked
        self.group.plans.add(route.scheduler_id, route.plan, prompt)

        def on_sent(event: Published | None, text: str) -> None:
            if event is None:
                self.group.plans.forget(route.scheduler_id)
            on_result(event, text)

        self.group.send(
            lambda number: Command(
                number,
                kind,
                route.scheduler_id,
                self.dp_rank,
                prompt.input_tokens,
                output_tokens,
                prompt.hash_ids,
                priority=terms.priority,
                arrival_ms=terms.arrival_ms,
                deadline_ms=terms.deadline_ms,
                handoff=handoff,
            ),
            on_sent,
        )

    def send_cancel(self, route: Route, on_result: SendResult) -> None:
        """Put a cancellation on its lane; output of the pass in flight is dropped, too."""
        from mocker_replay._core.lanes import Command

        self.group.send(
            lambda number: Command(number, "cancel", route.scheduler_id, self.dp_rank, discard=True), on_result
        )

    def cancel_destination(self, route: Route, on_result: SendResult, on_stale: Callable[[], None]) -> None:
        """Cancel the destination of a handoff; `on_stale` is called where the handoff is somebody else's by now."""
        assert route.destination is not None
        cancel_through_destination(self, route.destination, on_result, on_stale)

    def cancel_route(self, route: Route, *, explicit: bool = True) -> Cancellation:
        """End the stream at once and ask the scheduler; `explicit` as in `Cancellation`."""
        self.require_loop()
        return start_cancellation(self, route, explicit=explicit)

    def drop_stream(self, route: Route) -> None:
        """The reader is gone: cancel, unless it ended or somebody did so before."""
        if self.routes.holds(route) and not route.abandoned:
            self.cancel_route(route, explicit=False)

    def close_route(self, route: Route) -> None:
        """End the stream and forget the route; the scheduler is not asked."""
        route.shutdown()
        self.routes.remove(route)

    # -- lifetime -----------------------------------------------------------------------------------

    def release(self) -> None:
        """The engine object is gone: this rank stops, its siblings go on."""
        if not self.released:
            self.released = True
            self.token.cancel()
            self.group.released()

    def require_loop(self) -> None:
        """Raises LiveError: this is not the loop the engine was started in."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self.loop:
            raise LiveError("an engine is used in the loop it was started in; see asyncio.run_coroutine_threadsafe")

    def _stopped(self) -> None:
        self.routes.close_all()
        self.handoffs.close_all()

    def forget_publishers(self) -> None:
        """The driver has ended: nothing is published any more, and nobody is kept for it."""
        self.config = structs.replace(self.config, kv_publishers=(), forward_pass_publisher=None)

    async def shut_down(self) -> None:
        """Until everything of this rank and its group has ended; see `LiveEngine.shutdown`.

        Raises:
            LiveError: the first thing that went wrong, the same for every caller; or called in another loop.
        """
        self.require_loop()
        self.group.token.cancel()
        self.token.cancel()
        self._stopped()
        if self._ending is None:
            self._ending = self.loop.create_task(self._end(), name="shutdown of a live engine")
        error = await asyncio.shield(self._ending)
        if error is not None:
            raise LiveError(error)

    async def _end(self) -> str | None:
        """Why the shutdown failed, or None."""
        errors: list[str] = []
        try:
            await self.group.stopped()
        except LiveError as exc:
            errors.append(str(exc))
        assert self._dispatcher is not None
        await asyncio.wait([self._dispatcher])
        await self.handoffs.stopped()
        self._stopped()
        if not errors and len(self.routes):
            errors.append(f"the shutdown left {len(self.routes)} active request routes")
        if not errors and len(self.handoffs.routes):
            errors.append(f"the shutdown left {len(self.handoffs.routes)} active handoff routes")
        return errors[0] if errors else None

    async def _supervise(self) -> None:
        """The engine cannot go on without a dispatcher; the group keeps the first error."""
        try:
            await self._dispatch_all()
        except Exception as exc:
            self._failed(text_of(exc), logging.ERROR)
        except asyncio.CancelledError:
            if not self.token.cancelled:  # a loop that is closed cancels what is left, which is no news
                self._failed("its task was cancelled", logging.DEBUG)
            raise
        finally:
            self.batches.close_reader()
            self.token.cancel()
            self.routes.close_all()

    def _failed(self, why: str, level: int) -> None:
        self.group.fail(LiveError(f"event dispatcher of rank {self.dp_rank}: {why}"), level=level)

    # -- the dispatcher -----------------------------------------------------------------------------

    async def _dispatch_all(self) -> None:
        """Batches in order, at most one in hand; a stopped rank takes and drops them until there are no more."""
        while True:
            try:
                batch = await self.batches.take()
            except LaneClosed:
                if not self.token.cancelled:
                    raise LiveError("the ordered lane closed unexpectedly") from None
                return
            if isinstance(batch, Admissions):
                self._admit(batch)
            else:
                await self._gate_open()
                self._deliver(batch)
            self.batches.done()

    async def _gate_open(self) -> None:
        """Until the output gate is open or the rank stops."""
        gate = self.config.output_gate
        while gate is not None and not gate.value and not self.token.cancelled:
            try:
                await gate.changed(gate.version, self.token)
            except WatchClosed:
                raise LiveError("output gate closed") from None

    def _admit(self, batch: Admissions) -> None:
        sink = self.config.admissions
        if sink is None or self.token.cancelled:
            return
        observed_ms = self.group.wall_ms()
        for entry in batch.entries:
            route = self.routes.by_scheduler(entry.scheduler_id)
            if route is None:
                continue
            try:
                sink.try_send(Admission(route.client_id, entry.reused_tokens, entry.t_ms, observed_ms))
            except LaneClosed:
                raise LiveError("admission receiver closed") from None

    def _deliver(self, batch: Outputs) -> None:
        """Deliver a batch and say what could not be; a rank that was dropped delivers nothing."""
        if batch.failed.done():
            return
        if self.token.cancelled:
            batch.failed.set_result(None if self.group.token.cancelled else list(batch.signals))
            return
        batch.failed.set_result(self._refused(batch.signals))

    def deliver_now(self, signals: Sequence[OutputSignal]) -> list[OutputSignal] | None:
        """Deliver without a turn of the dispatcher; None where it has to wait for its turn or for the gate."""
        gate = self.config.output_gate
        batches = self.batches
        if batches.unsettled or batches.closed or self.token.cancelled or not (gate is None or gate.value):
            return None
        return self._refused(signals)

    def _refused(self, signals: Sequence[OutputSignal]) -> list[OutputSignal]:
        """Deliver a batch; what could not be delivered."""
        observed_ms = self.group.wall_ms()
        return [signal for signal in signals if not self.deliver_one(signal, observed_ms)]

    def deliver_one(self, signal: OutputSignal, observed_ms: float) -> bool:
        """Hand one signal to its route; False if it could not be, and the request must be cancelled."""
        route = self.routes.by_scheduler(signal.scheduler_id)
        if route is None:
            return True
        delay_ms: float | None = None
        if signal.completed and signal.position is not None:
            delay_ms = self.group.handoff_settings.full_prompt_delay_ms(route.input_tokens)
        seen = Signal(
            route.client_id, signal.position, signal.completed, signal.reason, signal.t_ms, observed_ms,
            route.plan.token_id, delay_ms,
        )  # fmt: skip
        if route.send(seen) is not Delivery.DELIVERED:
            route.abandon()
            self.close_route(route)
            return False
        if signal.completed and route.observe_terminal():
            self.routes.remove(route)
        return True
