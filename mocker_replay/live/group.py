"""All ranks of one live engine behind one driver: commands under way, the effect dispatcher, supervision, shutdown.

Decides in which order effects of one driver event become visible. Source: boundary specification, sections 1, 8 and 9.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from mocker_replay._core.lanes import Command
from mocker_replay.errors import MockerReplayError
from mocker_replay.events import CommandKind, EventKind, TerminalReason
from mocker_replay.live.errors import LiveError
from mocker_replay.live.metrics import EngineMetrics, forward_pass, kv_events
from mocker_replay.live.operations import SendResult
from mocker_replay.live.rank import Admissions, Outputs, Rank, SeenAdmission
from mocker_replay.live.request import OutputSignal, TokenPlan
from mocker_replay.shells.boundary import Boundary, BoundaryClosed
from mocker_replay.shells.handle import Driver
from mocker_replay.shells.lanes import LaneClosed
from mocker_replay.shells.published import EventRecord, Published
from mocker_replay.shells.tokens import CancelToken, resolve

_log = logging.getLogger(__name__)

MAX_SCHEDULER_ID = 2**31 - 1


class Group:
    """Shared by the ranks of one engine."""

    def __init__(self, token: CancelToken, trace_block_size: int) -> None:
        self.token = token
        self.trace_block_size = trace_block_size  # tokens a block identity stands for
        self.plans: dict[int, TokenPlan] = {}  # output tokens of the requests under way, by scheduler id
        self.ranks: tuple[Rank, ...] = ()
        self._driver: Driver | None = None
        self._pending: dict[int, SendResult] = {}
        self._next_scheduler_id = 0
        self._held: dict[int, EngineMetrics] = {}  # by rank: of commands in mid-pass
        self._in_completion: asyncio.Future[None] | None = None
        self._main: asyncio.Task[None] | None = None

    def start(self, driver: Driver, ranks: Sequence[Rank]) -> None:
        """Start the dispatchers; the driver runs already."""
        self._driver = driver
        self.ranks = tuple(ranks)
        for rank in self.ranks:
            rank.start()
        self._main = asyncio.get_running_loop().create_task(self._supervise(), name="supervisor of a live engine")

    @property
    def driver(self) -> Driver:
        assert self._driver is not None, "started"
        return self._driver

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

    def block_tokens(self, scheduler_id: int, first: int, stop: int) -> bytes:
        """Generated tokens of a request as little-endian 32-bit words, for the hashes of cache events."""
        return self.plans[scheduler_id].packed(first, stop)

    # -- commands -----------------------------------------------------------------------------------

    def send(self, make: Callable[[int], Command], on_result: SendResult) -> None:
        """Send a command; nobody waits for one before the next is sent, so that one boundary can take them all.

        Args:
            on_result: told with the event when its effects were dispatched, or why there is none.
        """
        handle = self.driver.handle
        try:
            command_id = handle.reserve_id()
        except OverflowError as exc:
            on_result(None, str(exc))
            return
        self._pending[command_id] = on_result

        def on_reply(ok: bool, text: str) -> None:
            if not ok and (waiting := self._pending.pop(command_id, None)) is not None:
                waiting(None, text)

        handle.put(make(command_id), on_reply)

    # -- lifetime -----------------------------------------------------------------------------------

    def released(self) -> None:
        """A rank is gone; with the last one the group is."""
        if all(rank.released for rank in self.ranks):
            self.token.cancel()

    async def drained(self) -> None:
        """Until no completed pass is being dispatched."""
        while self._in_completion is not None:
            await asyncio.shield(self._in_completion)

    async def stopped(self) -> None:
        """Until driver and dispatcher have ended.

        Raises:
            LiveError: the first thing that went wrong.
        """
        assert self._main is not None
        await asyncio.wait([self._main])
        error = None if self._main.cancelled() else self._main.exception()
        if error is not None:
            raise LiveError(f"scheduler failed: {error}") from error

    async def _supervise(self) -> None:
        """The first of driver and dispatcher to end ends the other; the first error is the one that counts."""
        driver = self.driver
        dispatcher = asyncio.get_running_loop().create_task(self._dispatch_all(), name="effect dispatcher")
        children = [driver.actor, dispatcher]
        errors: list[BaseException] = []
        try:
            pending = set(children)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                errors += [error for child in children if child in done and (error := _error_of(child)) is not None]
                self.token.cancel()
        finally:
            self.token.cancel()
            for waiting in list(self._pending.values()):
                waiting(None, "engine stopped before acknowledging")
            self._pending.clear()
            for rank in self.ranks:
                rank.batches.close()
        if errors:
            raise errors[0]

    # -- effects ------------------------------------------------------------------------------------

    async def _dispatch_all(self) -> None:
        events = self.driver.events
        try:
            while (event := await events.receive()) is not None:
                if event.kind is EventKind.COMMAND:
                    self._command(event)
                elif event.kind is EventKind.PASS_END:
                    await self._completed(event)
                else:
                    await self._started(event)
        finally:
            events.close()

    def _command(self, event: Published) -> None:
        head = event.head
        rank = self.ranks[head.rank]
        waiting = self._pending.pop(event.command_id, None)
        metrics = self._metrics_of(rank, event.records)
        self._forget_plans(event.records)
        if event.in_pass:
            if waiting is not None:
                waiting(event, "")
            if metrics is not None and metrics.idle and head.a == CommandKind.CANCEL:
                self._set_metrics(rank, metrics)
            elif metrics is not None:
                self._held[rank.dp_rank] = metrics
            return
        if waiting is not None:
            waiting(event, "")
        if metrics is not None:
            self._set_metrics(rank, metrics)

    async def _started(self, event: Published) -> None:
        """Admissions of a pass start or of internal work, rank by rank."""
        for record in event.of(EventKind.PREEMPTION):
            self.ranks[record.rank].preemptions += 1
        for rank in self.ranks:
            entries = [
                SeenAdmission(record.request, record.a, record.t_ms)
                for record in event.records
                if record.kind == EventKind.ADMISSION and record.rank == rank.dp_rank
            ]
            if entries and rank.config.admissions is not None:
                await self._send_batch(rank, Admissions(entries))

    async def _send_batch(self, rank: Rank, batch: Admissions | Outputs) -> None:
        try:
            await rank.batches.send(batch)
        except LaneClosed:
            if rank.failure is not None and not self.token.cancelled:
                raise rank.dispatch_error() from rank.failure
            if isinstance(batch, Outputs) and not batch.failed.done():
                batch.failed.set_result(None if self.token.cancelled else list(batch.signals))

    async def _completed(self, event: Published) -> None:
        """Everything a pass end makes visible; the boundary is finished in any case but one."""
        boundary = event.boundary
        assert boundary is not None, "a completed pass brings its boundary"
        self._in_completion = asyncio.get_running_loop().create_future()
        try:
            error: MockerReplayError | None = None
            try:
                delivered = await self._complete(event, boundary)
            except MockerReplayError as exc:
                # A driver that is being stopped may do so while it is asked something.
                delivered = not (isinstance(exc, BoundaryClosed) and self.token.cancelled)
                error = exc if delivered else None
            if delivered:
                error = await self._finish(boundary, error)
            else:
                boundary.drop()
            if error is not None:
                raise error
        finally:
            self._in_completion.set_result(None)
            self._in_completion = None

    async def _finish(self, boundary: Boundary, error: MockerReplayError | None) -> MockerReplayError | None:
        self.driver.events.done()
        try:
            await boundary.finish()
        except BoundaryClosed as exc:
            if error is None and not self.token.cancelled:
                return LiveError(str(exc))
        return error

    async def _complete(self, event: Published, boundary: Boundary) -> bool:
        """Dispatch the effects; False if the engine is being stopped and nobody delivers any more."""
        by_rank: dict[int, list[EventRecord]] = {rank.dp_rank: [] for rank in self.ranks}
        for record in event.records:
            if record.rank >= 0:
                by_rank[record.rank].append(record)
        failed: list[tuple[Rank, OutputSignal]] = []
        for rank in self.ranks:
            records = by_rank[rank.dp_rank]
            self._publish_kv(rank, records, event.words)
            self._publish_forward_pass(rank, records, event.words)
            signals = _signals(records)
            if signals:
                refused = await self._deliver(rank, signals)
                if refused is None:
                    return False
                failed += [(rank, signal) for signal in refused]
        self._forget_plans(event.records)
        latest = {rank.dp_rank: self._metrics_of(rank, by_rank[rank.dp_rank]) for rank in self.ranks}
        for rank, scheduler_id in _to_cancel(failed):
            cancelled = await self._cancel_at_boundary(rank, scheduler_id, boundary)
            latest[rank.dp_rank] = cancelled or latest[rank.dp_rank]
        self._held.clear()  # the figures of the completed pass are later ones
        for rank in self.ranks:
            metrics = latest[rank.dp_rank]
            if metrics is not None:
                self._set_metrics(rank, metrics)
        return True

    async def _deliver(self, rank: Rank, signals: list[OutputSignal]) -> list[OutputSignal] | None:
        """Signals that could not be delivered; None if the engine is being stopped."""
        batch = Outputs(signals, asyncio.get_running_loop().create_future())
        key = self.token.on_cancel(lambda: resolve(batch.failed, None))
        try:
            await self._send_batch(rank, batch)
            return await batch.failed
        finally:
            self.token.forget(key)

    async def _cancel_at_boundary(self, rank: Rank, scheduler_id: int, boundary: Boundary) -> EngineMetrics | None:
        """The request of a failed delivery is cancelled before another pass can start."""
        command_id = self.driver.handle.reserve_id()
        outcome = await boundary.apply(Command(command_id, "cancel", scheduler_id, rank.dp_rank, discard=True))
        if not outcome.ok:
            raise LiveError(f"cancelling request {scheduler_id} at a boundary: {outcome.text}")
        self._forget_plans(outcome.records)
        self._publish_kv(rank, outcome.records, outcome.words)
        return self._metrics_of(rank, outcome.records)

    # -- publishing ---------------------------------------------------------------------------------

    def _publish_kv(self, rank: Rank, records: Sequence[EventRecord], words: Sequence[int]) -> None:
        if not rank.config.kv_publishers:
            return
        for event in kv_events(records, words):
            for publisher in rank.config.kv_publishers:
                _call(publisher, event)

    def _publish_forward_pass(self, rank: Rank, records: Sequence[EventRecord], words: Sequence[int]) -> None:
        publisher = rank.config.forward_pass_publisher
        if publisher is None:
            return
        for record in records:
            if record.kind == EventKind.FPM:
                _call(publisher, forward_pass(record, words))

    def _metrics_of(self, rank: Rank, records: Sequence[EventRecord]) -> EngineMetrics | None:
        gauges = None
        for record in records:
            if record.kind == EventKind.GAUGES and record.e == 0:
                gauges = record
        if gauges is None:
            return None
        before = rank.metrics.value
        return before._replace(active_blocks=gauges.a, running=gauges.c, waiting=gauges.d, cache_total_tokens=0)

    def _set_metrics(self, rank: Rank, metrics: EngineMetrics) -> None:
        rank.metrics.set(metrics.latched(rank.metrics.value)._replace(preemptions=rank.preemptions))

    def _forget_plans(self, records: Sequence[EventRecord]) -> None:
        for record in records:
            if record.kind == EventKind.TERMINAL:
                self.plans.pop(record.request, None)


def _call(publisher: Callable[..., None], event: object) -> None:
    """A publisher that fails must not take the engine with it."""
    try:
        publisher(event)
    except Exception:
        _log.warning("a publisher failed", exc_info=True)


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def _to_cancel(failed: Sequence[tuple[Rank, OutputSignal]]) -> list[tuple[Rank, int]]:
    """Requests of failed deliveries, each once, in the order of ranks and ids."""
    seen = {(rank.dp_rank, signal.scheduler_id): rank for rank, signal in failed}
    return [(seen[key], key[1]) for key in sorted(seen)]


def _signals(records: Sequence[EventRecord]) -> list[OutputSignal]:
    """Output of one rank at a pass end: a signal a token, the last one of an ended request says so."""
    signals: list[OutputSignal] = []
    for record in records:
        if record.kind == EventKind.TOKENS:
            signals += [
                OutputSignal(record.request, position, False, None, record.t_ms)
                for position in range(record.b - record.a, record.b)
            ]
        elif record.kind == EventKind.TERMINAL:
            reason = TerminalReason(record.c).name.lower()
            last = signals[-1] if signals else None
            if last is not None and last.scheduler_id == record.request:
                signals[-1] = last._replace(completed=True, reason=reason)
            else:
                signals.append(OutputSignal(record.request, None, True, reason, record.t_ms))
    return signals
