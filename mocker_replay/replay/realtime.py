"""A replay at the trace's own pace: every row goes through a `LiveEngine`, and time is waited for.

Decides when rows are handed over and when the run is over. The order of an instant under the nominal clock is the
fleet's, the modelled time is the machines'. Source: replay through the driver, section 8.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.fleet import Handed
from mocker_replay._core.types import EngineError
from mocker_replay.config import RealtimeOptions, ReplayOptions
from mocker_replay.config.backends import handoff_order
from mocker_replay.errors import ExitCode
from mocker_replay.events import Want
from mocker_replay.live.engine import Attachments, LiveEngine
from mocker_replay.live.errors import LiveError
from mocker_replay.live.group import Group
from mocker_replay.live.rank import RankConfig
from mocker_replay.live.request import Prompt
from mocker_replay.log.wall import LOOK, NO_WORKER, WallRecorder
from mocker_replay.policies import LoadedPolicy
from mocker_replay.replay.books import RunBooks, Stopped
from mocker_replay.replay.interrupt import InterruptFlag, abandon
from mocker_replay.replay.pools import Pools
from mocker_replay.replay.realtime_clients import Clients
from mocker_replay.replay.realtime_clients import Observe as Observe
from mocker_replay.replay.realtime_handoffs import LiveHandoffs, RecordedPlaces
from mocker_replay.replay.realtime_view import Views, Watch
from mocker_replay.replay.sinks import Sinks
from mocker_replay.replay.tap import Tap
from mocker_replay.report.realtime import Punctuality
from mocker_replay.shells.alarm import Alarm
from mocker_replay.shells.clock import Clock, MonotonicClock, ms_from_ns, ns_from_ms
from mocker_replay.shells.quiet import quiet
from mocker_replay.shells.readings import Directed, Measured
from mocker_replay.shells.tokens import CancelToken
from mocker_replay.trace import TraceFacts, TraceSource

# Modelled time 0 lies this far behind the start, so that starting up makes no row late.
_HEAD_START_MS = 20.0


class RealtimeRun(RunBooks):
    """One replay in real time."""

    def __init__(
        self,
        pools: Pools,
        options: ReplayOptions,
        facts: TraceFacts,
        source: TraceSource,
        sinks: Sinks,
        policy: LoadedPolicy,
        realtime: RealtimeOptions,
        watch: Watch | None,
        observe: Observe | None = None,
    ) -> None:
        super().__init__(
            pools, options, facts, source, sinks, policy, want=Want.TOKENS,
            external=True, directed=realtime.clock == "nominal",
        )  # fmt: skip
        self.realtime = realtime
        self.punctuality = Punctuality()
        self._watch = watch
        self._clock: Clock = MonotonicClock()
        self._nominal = realtime.clock == "nominal"
        self._origin_ns = 0
        self._end_wall_ms = 0.0
        self._engines: list[tuple[LiveEngine, ...]] = []  # by worker
        self._groups: list[Group] = []  # by worker
        self._clients = Clients(realtime, sinks.name_of, self._wall_ms, observe, self._task_ended)
        self._living: dict[int, tuple[int, int]] = {}  # requests that arrived and have not ended: worker, rank
        self._failure: Exception | None = None  # of anything beside the engines
        self._recorder = WallRecorder()
        self._alarm: Alarm
        self._tap = Tap(
            self.fleet, self._recorder, self.punctuality, self.consume_with_wall, self._some_ended, self._fail,
            tells_idle=pools.prefill is not None and not self._nominal,
        )  # fmt: skip
        self._handoffs: LiveHandoffs | None = None
        if self.pool_router is not None and self.fleet.handoffs is not None:
            at_prefill = handoff_order(self.engine.backend) == "source_first"
            chooser = RecordedPlaces(self.pool_router, self._recorder, "prefill" if at_prefill else "decode")
            self.fleet.handoffs.set_chooser(chooser)
        if pools.prefill is not None:
            self._handoffs = LiveHandoffs(
                self.fleet, self._recorder, self._groups, self._clients, lambda: self._tap.told(self._wall_ms()),
                self._note_wall, lambda: self._alarm.ring(), self._fail, measured=not self._nominal,
            )  # fmt: skip

    # -- the run ------------------------------------------------------------------------------------

    def loop(self, interrupt: InterruptFlag) -> bool:
        loop = asyncio.new_event_loop()
        try:
            with quiet():
                return loop.run_until_complete(self.live(interrupt, self._clock))
        except KeyboardInterrupt:
            for group in self._groups:
                group.token.cancel()
                group.driver.shell.close()
            self._forget_engines()
            abandon(loop)
            raise
        finally:
            loop.close()

    async def live(self, interrupt: InterruptFlag, clock: Clock) -> bool:
        """What `loop` does, in the running loop and by a clock of the caller's choice."""
        loop = asyncio.get_running_loop()
        self._clock = clock
        self._origin_ns = clock.now_ns() + ns_from_ms(_HEAD_START_MS)
        self._alarm = Alarm(clock, self._origin_ns)
        interrupt.on_raise = lambda: loop.call_soon_threadsafe(self._alarm.ring)
        loop.set_exception_handler(_tell_unless_interrupted)
        watcher: asyncio.Task[None] | None = None
        try:
            self._start_engines()
            watcher = self._start_watcher()
            complete = await self._until_over(interrupt)
        finally:
            interrupt.on_raise = None
            self._end_wall_ms = max(self._wall_ms(), 0.0)
            self._alarm.close()
            self._tap.close()
            if self._handoffs is not None:
                self._handoffs.close()
            await self._shut_down(watcher)
        if self._failure is not None:  # a client's last words
            raise self._failure
        return complete

    def _start_engines(self) -> None:
        """A live engine over the machine of each worker; all steps of all machines are seen by one tap."""
        rank = RankConfig(output_buffering=self.realtime.output_buffering, allow_zero_output=True)
        for worker, machine in enumerate(self.fleet.machines):
            group = Group(CancelToken(), self.facts.trace_block_size)
            group.log_level = logging.DEBUG  # the run tells of it
            group.token.on_cancel(self._alarm.ring)
            around = Attachments(
                clock=self._clock,
                readings=Directed() if self._nominal else Measured(),
                observer=self._tap.of_worker(worker),
                control_capacity=None,
                event_capacity=None if self._nominal else 64,
                origin_ns=self._origin_ns,
                clear_events=self.fleet.clear_events,
            )
            config = self.pools.config_of(worker)
            engines = LiveEngine.start_over(
                machine, [rank] * config.dp_size, group, around, total_blocks=config.num_gpu_blocks
            )
            self._engines.append(engines)
            self._groups.append(group)

    async def _until_over(self, interrupt: InterruptFlag) -> bool:
        try:
            complete = await (self._directed(interrupt) if self._nominal else self._free(interrupt))
        except Stopped:
            self._cut()
            raise
        if not complete:
            self._cut()
        return complete

    async def _directed(self, interrupt: InterruptFlag) -> bool:
        """Nominal clock: the fleet says who moves at which instant; only the wait for the instant is real."""
        self.start_workload()
        while self._goes_on(interrupt):
            status = self.fleet.advance(min(self._wall_ms(), self.until_ms))
            if self.fleet.onlookers.take_told():
                self._recorder.packed_step(NO_WORKER, LOOK, self.fleet.now_ms)
            if status == "move":
                shell = self._groups[self.fleet.moving_worker].driver.shell
                if self.fleet.moves_anyway or shell.has_work:
                    await shell.move(
                        self.fleet.now_ms, hold_boundary=self.fleet.hold_boundary, hold_start=self.fleet.hold_start
                    )
            elif status == "settle":
                await self._settle_directed()
            elif status == "place":
                self._hand_over(math.nan)
            elif status == "cancel":
                self._client_leaves()
            elif status == "needs_rows":
                self.more_rows()
            elif status == "ends":
                self.workload.ended(self.fleet, self.fleet.take_ends())
            elif status == "done":
                return True
            elif self.fleet.next_instant_ms > self.until_ms:
                return False
            else:
                await self._alarm.sleep_until(self.fleet.next_instant_ms)
        return False

    async def _settle_directed(self) -> None:
        """Handoffs go on: one command is given and applied before the next is asked for."""
        assert self._handoffs is not None, "only handoffs settle"
        worker = self._handoffs.give_next()
        if worker is not None:
            shell = self._groups[worker].driver.shell
            await shell.move(self.fleet.now_ms, hold_boundary=False, hold_start=True)

    async def _free(self, interrupt: InterruptFlag) -> bool:
        """Measured clock: rows are handed over when the clock says so; the machines run by themselves."""
        self.start_workload()
        while self._goes_on(interrupt):
            while self.fleet.needs_rows:
                self.more_rows()
            due_ms, wall_ms = self.fleet.next_due_ms, self._wall_ms()
            if ends := self.fleet.take_ends():
                # Before rows that are due: what ended may have made one of them needless.
                self.fleet.note_now(wall_ms)
                self.workload.ended(self.fleet, ends)
            elif due_ms <= min(wall_ms, self.until_ms):
                self._serve_due(wall_ms)
            elif self._handoffs is not None and self._handoffs.next_transfer_ms <= min(wall_ms, self.until_ms):
                self._handoffs.settle()
            elif due_ms == math.inf and self._is_at_rest():
                return True
            elif due_ms == math.inf and self._nobody_moves():
                if self._is_stuck():
                    return True
                await asyncio.sleep(0)  # what was published last is still being dealt with
            elif wall_ms >= self.until_ms:
                return False
            else:
                transfer_ms = math.inf if self._handoffs is None else self._handoffs.next_transfer_ms
                await self._alarm.sleep_until(min(due_ms, transfer_ms, self.until_ms))
        return False

    def _serve_due(self, now_ms: float) -> None:
        """The row or cancellation that is due; rows first where both are."""
        self.fleet.note_now(now_ms)
        if self.fleet.next_row_ms <= self.fleet.next_due_ms:
            self._hand_over(now_ms)
        else:
            self._client_leaves()
        if self._handoffs is not None:
            self._handoffs.settle()

    def _goes_on(self, interrupt: InterruptFlag) -> bool:
        """Whether nobody has interrupted the run.

        Raises:
            Stopped: an engine cannot go on; else whatever it was that failed beside the engines.
        """
        if self._failure is not None:
            raise self._failure
        for group in self._groups:
            shell = group.driver.shell
            if shell.stopped or group.token.cancelled:
                raise Stopped(EngineError(shell.error or str(group.error or "a live engine stopped")))
        return not interrupt.raised

    def _is_at_rest(self) -> bool:
        """Nobody waits for a request; no pass of one that was left is in flight, no copy under way, no source held."""
        if self._handoffs is not None and not self._handoffs.at_rest:
            return False
        return not self._living and self._all_stand_still()

    def _is_stuck(self) -> bool:
        """Activated requests stand in each other's way, and nothing is left that could change that; the end of the run
        finds them (docs/handoff.md, section 5)."""
        return all(group.driver.shell.waits_for_command for group in self._groups)

    def _nobody_moves(self) -> bool:
        """No transfer and no copy is under way and all machines are idle, which ends the run if all is dealt with."""
        if self._handoffs is None or not self._handoffs.nothing_is_due:
            return False
        return self._all_stand_still()

    def _all_stand_still(self) -> bool:
        return all(
            machine.phase_name == "idle" and machine.engine.internal_deadline_ms is None
            for machine in self.fleet.machines
        )

    def _cut(self) -> None:
        """Say which requests the run leaves behind: those of the engines, then those on their way to one."""
        if self._handoffs is not None:
            self._handoffs.close()
            self.fleet.publish_cuts()  # the handoffs know of those that are on their way, too
        for worker in range(len(self._groups) if self._handoffs is None else 0):
            first = len(self.fleet.out)
            self.fleet.publish_cuts(worker)
            told = set(self.fleet.out.records_array()["request"][first:].tolist())
            for request, place in self._living.items():
                if place[0] == worker and request not in told:
                    self.fleet.publish_cut(request, *place)
        self.consume_with_wall(self.fleet.out, self._wall_ms())
        self.fleet.clear_events()

    def publish_cuts(self) -> None:
        """Done when the run ended, before its engines were stopped."""

    async def _shut_down(self, watcher: asyncio.Task[None] | None) -> None:
        for engines in self._engines:
            try:
                await engines[0].shutdown()
            except LiveError:
                # Why an engine stopped is known from its machine.
                continue
        if watcher is not None:
            watcher.cancel()
        self._clients.stop_slow_readers()
        if tasks := self._clients.tasks() + ([] if watcher is None else [watcher]):
            await asyncio.wait(tasks)
        self._forget_engines()

    def _forget_engines(self) -> None:
        """A finaliser of an engine holds its machine's shell, which holds this run: none would ever be collected."""
        self._engines.clear()
        self._groups.clear()

    def _fail(self, error: Exception) -> None:
        """Something beside the engines failed: an output, a client, the caller's own view. The run ends with it."""
        if self._failure is None:
            self._failure = error
        self._alarm.ring()

    # -- rows ---------------------------------------------------------------------------------------

    def _hand_over(self, at_ms: float) -> None:
        """The row that is due arrives, and its client submits it."""
        handed = self._taken(at_ms)
        wall_ms = self._wall_ms()
        self.punctuality.arrived(handed.due_ms, wall_ms)
        self._recorder.arrival(handed.due_ms, handed.hash_ids)
        if self.workload.hears_arrivals:
            self.workload.arrived(self.fleet, handed.request, handed.arrival_ms)
        self.consume_with_wall(self.fleet.out, wall_ms)
        self.fleet.clear_events()
        self._living[handed.request] = handed.worker, handed.rank
        if self._handoffs is not None:
            return  # its client reads where it is decoded
        rank = self._groups[handed.worker].ranks[handed.rank]
        registration, stream = self._clients.prepare(
            rank, handed.request, Prompt(handed.input_tokens, handed.hash_ids), handed.output_tokens, handed.priority,
            (handed.arrival_ms, handed.deadline_ms),
        )  # fmt: skip
        self._clients.start(handed.request, stream, rank.submit(registration))

    def _taken(self, at_ms: float) -> Handed:
        worker, dp_rank, reason = self._place()
        return self.fleet.take_next(worker, dp_rank, at_ms, reason=reason)

    def _place(self) -> tuple[int, int, bytes | None]:
        """Worker, rank and reason for the row that is due; (-1, -1) leaves it to round robin."""
        if self.placement is not None:
            try:
                return self.placement.choose(self.fleet)
            except Exception as exc:  # the policy is the user's
                raise Stopped(exc) from exc
        if self.router is not None:
            chosen = self.router.choose(self.fleet.now_ms, *self.fleet.next_arrival())
            return chosen.worker, chosen.rank, None
        return -1, -1, None

    def _client_leaves(self) -> None:
        """A client whose patience is at its end cancels its request."""
        if self._handoffs is not None:
            self._handoffs.leave()
            return
        request, worker, dp_rank = self.fleet.take_cancel()
        rank = self._groups[worker].ranks[dp_rank]
        route = rank.routes.by_scheduler(request)
        if route is not None:
            rank.cancel_route(route, explicit=False)

    # -- the books ----------------------------------------------------------------------------------

    def _some_ended(self, requests: list[int]) -> None:
        """Follow-ups may be due, or nothing is left; also told of steps without an end while nobody waits."""
        for request in requests:
            del self._living[request]
        if not self._nominal:
            self._alarm.ring()

    def extra_summary(self) -> dict[str, Any]:
        limit_ms = self.realtime.max_lateness_ms
        return {"realtime": self.punctuality.summary(self.realtime.clock, limit_ms, self._end_wall_ms)}

    def exit_code(self, code: ExitCode) -> ExitCode:
        limit_ms = self.realtime.max_lateness_ms
        late = limit_ms is not None and self.punctuality.max_lateness_ms > limit_ms
        return ExitCode.DIFFERS if late and code is not ExitCode.INTERRUPTED else code

    def last_wall(self) -> bytes:
        return self._recorder.text(self._end_wall_ms)

    def consume_with_wall(self, events: EventBuffer, wall_ms: float) -> None:
        """Hand records to everybody who reads them; `events` may be those a boundary returned."""
        if not self._nominal and wall_ms > 0.0:
            self.fleet.note_now(wall_ms)
        self.collector.consume(events)
        if self.sinks.consume(events, lambda: self._recorder.text(max(wall_ms, 0.0))):
            self._recorder.clear()
        self.tell_routers(events)
        if self.placement is not None:
            self.placement.consume(events)
        if self._handoffs is not None and not self._nominal:
            self._handoffs.settle_soon()

    def _start_watcher(self) -> asyncio.Task[None] | None:
        if self._watch is None:
            return None
        configs = [self.pools.config_of(worker) for worker in range(self.pools.num_workers)]
        total_blocks = sum(config.num_gpu_blocks * config.dp_size for config in configs)
        views = Views(self.facts.num_rows, total_blocks, self.punctuality, self.collector.gauges, self._wall_ms)
        watcher = asyncio.get_running_loop().create_task(views.show(self._watch), name="view of a replay")
        watcher.add_done_callback(self._task_ended)
        return watcher

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A client or the view, which may have failed in code of the caller's."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._fail(error)

    def _note_wall(self) -> None:
        """What is done to the handoffs on a measured clock is done now."""
        if not self._nominal:
            self.fleet.note_now(max(self._wall_ms(), 0.0))

    def _wall_ms(self) -> float:
        """Wall time since modelled time 0 [ms]; negative during the head start."""
        return ms_from_ns(self._clock.now_ns() - self._origin_ns)


def _tell_unless_interrupted(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The second Ctrl-C ends whatever task it finds; that is wanted, and the caller hears of it anyway."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)
