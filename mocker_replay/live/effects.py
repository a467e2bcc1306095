"""The effect dispatcher: events of the driver in order, each turned into what callers, streams and publishers see.

Decides in which order the effects of one event become visible, and what happens at the boundary of a pass whose output
could not be delivered. Never decides whether it could be: the ranks say so. Source: boundary specification,
section 8.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mocker_replay.events import CommandKind, CommandResult, EventKind, HandoffStage, TerminalReason
from mocker_replay.live.errors import LiveError
from mocker_replay.live.handoff.facts import SeenFact, facts_of
from mocker_replay.live.metrics import EngineMetrics, KvEvent, forward_pass, kv_events
from mocker_replay.live.rank import Admissions, Outputs, Rank, SeenAdmission
from mocker_replay.live.request import OutputSignal
from mocker_replay.shells.boundary import Boundary, BoundaryClosed, BoundaryOutcome
from mocker_replay.shells.handle import EventReceiver
from mocker_replay.shells.lanes import LaneClosed
from mocker_replay.shells.published import EventRecord, Published
from mocker_replay.shells.tokens import resolve

if TYPE_CHECKING:
    from mocker_replay.live.group import Group

_log = logging.getLogger(__name__)

_CANCELLED: Final = frozenset((HandoffStage.SOURCE_CANCELLED, HandoffStage.DESTINATION_CANCELLED))
_REASONS: Final = {reason: reason.name.lower() for reason in TerminalReason}


class Effects:
    """The one consumer of a driver's events."""

    def __init__(self, group: Group, events: EventReceiver) -> None:
        self._group = group
        self._events = events
        self._held_kv: dict[int, list[KvEvent]] = {}  # by rank: of commands in mid-pass
        self._in_completion = False
        self._draining: list[asyncio.Future[None]] = []

    async def run(self) -> None:
        """Dispatch until the driver has stopped."""
        while (event := await self._events.receive()) is not None:
            if event.kind is EventKind.COMMAND:
                if (rest := self._command(event)) is not None:
                    await rest
            elif event.kind is EventKind.PASS_END:
                await self._completed(event)
            else:
                await self._started(event)

    async def drained(self) -> None:
        """Until no completed pass is being dispatched."""
        while self._in_completion:
            drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._draining.append(drained)
            await drained

    # -- commands and starts ------------------------------------------------------------------------

    def _command(self, event: Published) -> Coroutine[Any, Any, None] | None:
        """What is left to be awaited, if anything."""
        head = event.head
        rank = self._group.ranks[head.rank]
        metrics = _metrics_of(rank, event.records)
        events = _kv_events(rank, event.records, event.words)
        facts = facts_of(event.records)
        self._retire(rank, event.records)
        if event.in_pass:
            if facts:
                raise LiveError(f"command {event.command_id} in mid-pass carries a fact of a handoff")
            # What else it did shows with the end of the pass; the pass knows later figures than these.
            self._group.answer(event)
            self._held_kv.setdefault(rank.dp_rank, []).extend(events)
            if metrics is not None and metrics.idle and _is_effective_cancellation(event):
                publish_metrics(rank, metrics)
            return None
        _publish_kv(rank, events)
        self._group.answer(event)
        if facts:
            return self._tell(rank, facts, metrics)
        if metrics is not None:
            publish_metrics(rank, metrics)
        return None

    async def _tell(self, rank: Rank, facts: Sequence[SeenFact], metrics: EngineMetrics | None) -> None:
        await rank.handoffs.tell(facts)
        if metrics is not None:
            publish_metrics(rank, metrics)

    async def _started(self, event: Published) -> None:
        """Start of a pass or internal work: admissions, then cache events and facts of handoffs, rank by rank."""
        by_rank = self._by_rank(event.records)
        for rank, records in by_rank:
            entries = [
                SeenAdmission(record.request, record.a, record.t_ms)
                for record in records
                if record.kind == EventKind.ADMISSION
            ]
            rank.preemptions += sum(record.kind == EventKind.PREEMPTION for record in records)
            if entries and rank.config.admissions is not None:
                await self._send(rank, Admissions(entries))
            _publish_kv(rank, _kv_events(rank, records, event.words))
            if event.kind is EventKind.INTERNAL_WORK and (facts := facts_of(records)):
                await self._tell(rank, facts, _metrics_of(rank, records))

    # -- completions --------------------------------------------------------------------------------

    async def _completed(self, event: Published) -> None:
        """Everything a pass end makes visible; the boundary is finished in any case but one."""
        boundary = event.boundary
        assert boundary is not None, "a completed pass brings its boundary"
        self._in_completion = True
        try:
            error: Exception | None = None
            delivered = True
            try:
                delivered = await self._complete(event, boundary)
            except BoundaryClosed:
                pass  # the driver has stopped, and says why
            except Exception as exc:
                error = exc
            if delivered:
                await self._finish(boundary)
            else:
                boundary.drop()
            if error is not None:
                raise error
        finally:
            self._in_completion = False
            for drained in self._draining:
                resolve(drained, None)
            self._draining.clear()

    async def _finish(self, boundary: Boundary) -> None:
        """Let the driver go on; one that has stopped says why itself."""
        try:
            await boundary.finish()
        except BoundaryClosed:
            return

    async def _complete(self, event: Published, boundary: Boundary) -> bool:
        """Dispatch the effects; False if the engine is being stopped and nobody delivers any more."""
        by_rank = self._by_rank(event.records)
        failed: list[tuple[Rank, OutputSignal]] = []
        for rank, records in by_rank:
            _publish_kv(rank, _kv_events(rank, records, event.words))
            _publish_kv(rank, self._held_kv.pop(rank.dp_rank, []))
            _publish_forward_pass(rank, records, event.words)
            signals = signals_of(records)
            if signals:
                refused = await self._deliver(rank, signals)
                if refused is None:
                    return False
                failed += [(rank, signal) for signal in refused]
        for rank, records in by_rank:
            self._retire(rank, records)
        latest = {rank.dp_rank: _metrics_of(rank, records) for rank, records in by_rank}
        facts = {rank.dp_rank: facts_of(records) for rank, records in by_rank}
        for rank, scheduler_id in _to_cancel(failed):
            outcome = await self._cancel_at_boundary(rank, scheduler_id, boundary)
            latest[rank.dp_rank] = _metrics_of(rank, outcome.records) or latest[rank.dp_rank]
            facts[rank.dp_rank] += facts_of(outcome.records)
        for rank, _ in by_rank:
            await rank.handoffs.tell(facts[rank.dp_rank])
        for rank, _ in by_rank:
            metrics = latest[rank.dp_rank]
            if metrics is not None:
                publish_metrics(rank, metrics)
        return True

    async def _deliver(self, rank: Rank, signals: list[OutputSignal]) -> list[OutputSignal] | None:
        """Signals that could not be delivered; None if the engine is being stopped.

        Resolves when the routes have the signals, not when the lane has them.
        """
        if (refused := rank.deliver_now(signals)) is not None:
            return refused
        batch = Outputs(signals, asyncio.get_running_loop().create_future())
        key = self._group.token.on_cancel(partial(resolve, batch.failed, None))
        try:
            await self._send(rank, batch)
            return await batch.failed
        finally:
            self._group.token.forget(key)

    async def _send(self, rank: Rank, batch: Admissions | Outputs) -> None:
        try:
            await rank.batches.send(batch)
        except LaneClosed:
            if not self._group.token.cancelled:
                raise LiveError(f"the ordered lane of rank {rank.dp_rank} is closed") from None

    async def _cancel_at_boundary(self, rank: Rank, scheduler_id: int, boundary: Boundary) -> BoundaryOutcome:
        """The request of a failed delivery is cancelled before another pass can start."""
        from mocker_replay._core.lanes import Command

        command_id = self._group.driver.handle.reserve_id()
        outcome = await boundary.apply(Command(command_id, "cancel", scheduler_id, rank.dp_rank, discard=True))
        if not outcome.ok:
            raise LiveError(f"cancelling request {scheduler_id} at a boundary: {outcome.text}")
        self._retire(rank, outcome.records)
        _publish_kv(rank, _kv_events(rank, outcome.records, outcome.words))
        return outcome

    # -- records ------------------------------------------------------------------------------------

    def _by_rank(self, records: Sequence[EventRecord]) -> list[tuple[Rank, list[EventRecord]]]:
        """Records of each rank, in order of ranks; those of the group alone are left out."""
        ranks = self._group.ranks
        if len(ranks) == 1:
            return [(ranks[0], [record for record in records if record.rank >= 0])]
        split: list[list[EventRecord]] = [[] for _ in ranks]
        for record in records:
            if record.rank >= 0:
                split[record.rank].append(record)
        return list(zip(ranks, split, strict=True))

    def _retire(self, rank: Rank, records: Sequence[EventRecord]) -> None:
        """Requests the scheduler has no more: nobody asks for their tokens, and a cancelled handoff ends its stream."""
        plans = self._group.plans if len(self._group.plans) else None
        for record in records:
            if record.kind == EventKind.TERMINAL and plans is not None:
                plans.forget(record.request)
            elif record.kind == EventKind.HANDOFF and record.a in _CANCELLED:
                self._group.plans.forget(record.request)
                rank.handoffs.end_stream(record.request)
            elif record.kind == EventKind.HANDOFF and record.a == HandoffStage.SOURCE_HELD and plans is not None:
                plans.forget(record.request)


def _is_effective_cancellation(event: Published) -> bool:
    """It removed a request, or output that was computed already."""
    head = event.head
    return head.a == CommandKind.CANCEL and (head.b == CommandResult.APPLIED or event.suppressed)


def _kv_events(rank: Rank, records: Sequence[EventRecord], words: Sequence[int]) -> list[KvEvent]:
    return kv_events(records, words) if rank.config.kv_publishers else []


def _publish_kv(rank: Rank, events: Sequence[KvEvent]) -> None:
    for event in events:
        for publisher in rank.config.kv_publishers:
            _call(publisher, event)


def _publish_forward_pass(rank: Rank, records: Sequence[EventRecord], words: Sequence[int]) -> None:
    publisher = rank.config.forward_pass_publisher
    if publisher is None:
        return
    for record in records:
        if record.kind == EventKind.FPM:
            _call(publisher, forward_pass(record, words))


def _call(publisher: Callable[..., None], event: object) -> None:
    """A publisher that fails must not take the engine with it."""
    try:
        publisher(event)
    except Exception:
        _log.warning("a publisher failed", exc_info=True)


def _metrics_of(rank: Rank, records: Sequence[EventRecord]) -> EngineMetrics | None:
    """Figures of the last gauges among the records; look-ups in the cache are told by no flavour yet."""
    gauges = None
    for record in records:
        if record.kind == EventKind.GAUGES and record.e == 0:
            gauges = record
    if gauges is None:
        return None
    return EngineMetrics(rank.dp_rank, gauges.a, rank.total_blocks, gauges.c, gauges.d, rank.preemptions)


def publish_metrics(rank: Rank, metrics: EngineMetrics) -> None:
    """Make a snapshot the latest one of its rank."""
    rank.metrics.set(metrics.latched(rank.metrics.value))


def _to_cancel(failed: Sequence[tuple[Rank, OutputSignal]]) -> list[tuple[Rank, int]]:
    """Requests of failed deliveries, each once, in the order of ranks and ids."""
    seen = {(rank.dp_rank, signal.scheduler_id): rank for rank, signal in failed}
    return [(seen[key], key[1]) for key in sorted(seen)]


def signals_of(records: Sequence[EventRecord]) -> list[OutputSignal]:
    """Output of one rank at a pass end: a signal a token, the last one of an ended request says so.

    A request's end stands directly behind its tokens; one without tokens in this pass gets a signal of its own. A
    source that is held has made its one token, of which the scheduler says nothing: nobody in a replay sees it.
    """
    signals: list[OutputSignal] = []
    for record in records:
        if record.kind == EventKind.TOKENS:
            signals += [
                OutputSignal(record.request, position, False, None, record.t_ms)
                for position in range(record.b - record.a, record.b)
            ]
        elif record.kind == EventKind.HANDOFF and record.a == HandoffStage.SOURCE_HELD:
            signals.append(OutputSignal(record.request, 0, True, _REASONS[TerminalReason.OUTPUT_LENGTH], record.t_ms))
        elif record.kind == EventKind.TERMINAL:
            reason = _REASONS[TerminalReason(record.c)]
            last = signals[-1] if signals else None
            if last is not None and last.scheduler_id == record.request:
                signals[-1] = last._replace(completed=True, reason=reason)
            else:
                signals.append(OutputSignal(record.request, None, True, reason, record.t_ms))
    return signals
