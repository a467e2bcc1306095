"""`LiveEngine`: one rank of a simulated inference engine, as a network server would use a real one.

Decides how an engine is started, shared, shut down and lost. Never decides modelled time. Source: boundary
specification, sections 1, 3, 7, 8.4 and 9.
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Union

from mocker_replay.config import EngineConfig, load_engine_config
from mocker_replay.errors import ConfigError, UsageError
from mocker_replay.events import Want
from mocker_replay.live.errors import LiveError
from mocker_replay.live.group import Group
from mocker_replay.live.handoff.control import HandoffControl, HandoffEvents
from mocker_replay.live.handoff.destination import DestinationHandoff
from mocker_replay.live.handoff.facts import HandoffSettings
from mocker_replay.live.handoff.sessions import MAX_SESSIONS, HandoffSessions
from mocker_replay.live.handoff.transport import Endpoint
from mocker_replay.live.metrics import EngineMetrics
from mocker_replay.live.operations import Submission
from mocker_replay.live.rank import Rank, RankConfig
from mocker_replay.live.request import GenerateRequest
from mocker_replay.live.stream import Registration, RequestStream
from mocker_replay.policies import FCFS, Policy, load_policy, ready
from mocker_replay.shells.clock import Clock, MonotonicClock
from mocker_replay.shells.handle import spawn
from mocker_replay.shells.readings import CLOCK_NAMES, ClockName, Measured, Nominal, Readings
from mocker_replay.shells.realtime import Observer
from mocker_replay.shells.tokens import CancelToken, Watch, call_on

if TYPE_CHECKING:  # the core is loaded with the first engine
    from mocker_replay._core.driver import Machine
    from mocker_replay._core.policy import SchedulingPolicy

ConfigSource = EngineConfig | Mapping[str, object] | None
PolicySource = Union[str, Policy, "SchedulingPolicy"]


class Attachments(NamedTuple):
    """What a replay, or a test, puts around an engine that others start plainly."""

    clock: Clock | None = None  # monotonic time and timers
    readings: Readings | None = None  # instead of those of the named clock
    observer: Observer | None = None  # sees every step of the machine
    token: CancelToken | None = None
    control_capacity: int | None = None  # places on a control lane; None: no bound
    event_capacity: int | None = 64
    origin_ns: int | None = None  # clock reading that counts as 0
    clear_events: Callable[[], None] | None = None  # instead of clearing the machine's event buffer


class LiveEngine:
    """One rank of a live engine. Start it with `start`, or all ranks of one engine with `start_grouped`.

    Belongs to one event loop. When the last reference is gone, its rank stops; `shutdown` stops it orderly and says
    what went wrong.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._finalizer = weakref.finalize(self, call_on, rank.loop, rank.release)
        self._finalizer.atexit = False

    # -- starting -----------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        config: ConfigSource = None,
        dp_rank: int = 0,
        rank: RankConfig | None = None,
        *,
        clock: ClockName = "measured",
        policy: PolicySource = FCFS,
    ) -> LiveEngine:
        """Start an engine of one rank in the running loop.

        Args:
            config: engine configuration, as EngineConfig or as the reference's mapping.
            rank: publishers, buffering and options of the rank.
            clock: "measured" reads the clock at each step; "nominal" takes every stimulus for punctual.
            policy: who goes first, who is preempted, who may enter: a name or an object, see `mocker_replay.policies`.

        Raises:
            LiveError: no loop is running, the arguments are refused, or the engine has more than one rank.
        """
        engine = _normalised(config, "LiveEngine.start")
        if engine.dp_size != 1 or dp_rank != 0:
            raise LiveError(
                f"LiveEngine.start is for one rank (got dp_size {engine.dp_size}, dp_rank {dp_rank}); "
                f"use LiveEngine.start_grouped"
            )
        return cls._start_all(engine, [rank or RankConfig()], clock, policy)[0]

    @classmethod
    def start_grouped(
        cls,
        config: ConfigSource,
        ranks: Sequence[RankConfig],
        *,
        clock: ClockName = "measured",
        policy: PolicySource = FCFS,
    ) -> tuple[LiveEngine, ...]:
        """Start an engine of `dp_size` attention-DP ranks behind one driver: one LiveEngine a rank.

        Raises:
            LiveError: no loop is running, the arguments are refused, or there is not exactly one config a rank.
        """
        engine = _normalised(config, "LiveEngine.start_grouped")
        if len(ranks) != engine.dp_size:
            raise LiveError(f"one rank config a rank is needed: expected {engine.dp_size}, got {len(ranks)}")
        return cls._start_all(engine, ranks, clock, policy)

    @classmethod
    def _start_all(
        cls, engine: EngineConfig, ranks: Sequence[RankConfig], clock: str, policy: PolicySource
    ) -> tuple[LiveEngine, ...]:
        if clock not in CLOCK_NAMES:
            raise LiveError(f"clock must be one of {', '.join(CLOCK_NAMES)} (got {clock!r})")
        readings: Readings = Nominal() if clock == "nominal" else Measured()
        capacity = 2 * (engine.max_num_seqs or 256) * engine.dp_size
        around = Attachments(
            readings=readings, control_capacity=capacity, event_capacity=max(capacity, 4 * engine.dp_size, 64)
        )
        try:
            return cls.start_attached(engine, ranks, around, _scheduling(policy))
        except ConfigError as exc:  # a file that a key names
            raise LiveError(f"invalid engine arguments: {exc}") from exc

    @classmethod
    def start_attached(
        cls,
        engine: EngineConfig,
        ranks: Sequence[RankConfig],
        around: Attachments,
        policy: SchedulingPolicy | None = None,
    ) -> tuple[LiveEngine, ...]:
        """Start all ranks of an engine with a clock, lanes and an observer of the caller's choice."""
        from mocker_replay._core.event_buffer import EventBuffer
        from mocker_replay.engines import build_machine

        group = Group(around.token or CancelToken(), engine.block_size)
        group.handoff_settings = HandoffSettings.of(engine)
        want = Want.TOKENS
        if any(rank.kv_publishers for rank in ranks):
            want |= Want.KV
            group.plans.wanted = True
        if any(rank.forward_pass_publisher is not None for rank in ranks):
            want |= Want.FPM
        machine = build_machine(
            engine, EventBuffer(), worker=0, trace_block_size=engine.block_size, want=want,
            block_tokens=group.plans.packed if group.plans.wanted else None, asks_prompt_tokens=group.plans.wanted,
            policy=policy,
        )  # fmt: skip
        return cls.start_over(machine, ranks, group, around, total_blocks=engine.num_gpu_blocks)

    @classmethod
    def start_over(
        cls, machine: Machine, ranks: Sequence[RankConfig], group: Group, around: Attachments, *, total_blocks: int
    ) -> tuple[LiveEngine, ...]:
        """Start over a machine that exists; the machine must put out records of tokens."""
        states = [Rank(group, dp_rank, config, total_blocks) for dp_rank, config in enumerate(ranks)]
        clock = around.clock or MonotonicClock()
        driver = spawn(
            machine,
            clock=clock,
            control_capacity=around.control_capacity,
            event_capacity=around.event_capacity,
            token=group.token,
            readings=around.readings,
            observer=around.observer,
            origin_ns=around.origin_ns,
            clear_events=around.clear_events,
        )
        group.start(driver, clock, states)
        return tuple(cls(state) for state in states)

    # -- requests -----------------------------------------------------------------------------------

    def prepare(self, request: GenerateRequest) -> tuple[Registration, RequestStream]:
        """Register a request, so that its stream exists before anything is submitted.

        Raises:
            NotRunning: the engine is stopped. AlreadyActive: its client id is.
            LiveError: no output token is asked for, or the prompt is none.
        """
        return self._rank.prepare(request)

    async def submit_prepared(self, registration: Registration) -> None:
        """Submit a prepared request; resolves when the scheduler has it, which may take as long as a pass.

        The submission goes on when the caller is cancelled.

        Raises:
            LiveError: used before, of another engine, refused; the paired stream has ended then.
        """
        await self._rank.submit(registration).wait()

    async def submit(self, request: GenerateRequest) -> RequestStream:
        """Prepare and submit; a caller that is cancelled while it waits drops the stream, which cancels the request.

        Raises:
            LiveError: as `prepare` and `submit_prepared`.
        """
        stream, submission = self.submit_nowait(request)
        try:
            await submission.wait()
        except BaseException:
            stream.drop()  # now: the frames of an exception may live on
            raise
        return stream

    def submit_nowait(self, request: GenerateRequest) -> tuple[RequestStream, Submission]:
        """As `submit`, without waiting for the scheduler: the stream, and an operation to wait for.

        Raises:
            LiveError: as `prepare`.
        """
        registration, stream = self._rank.prepare(request)
        return stream, self._rank.submit(registration)

    async def cancel(self, client_id: uuid.UUID) -> bool:
        """Cancel a request; its stream ends at once after what it has.

        Returns:
            True if the scheduler removed something or dropped pending output; False if there was nothing to do.

        Raises:
            LiveError: the scheduler did not take it.
        """
        self._rank.require_loop()
        route = self._rank.routes.by_client(client_id)
        if route is None:
            return False
        return await self._rank.cancel_route(route).wait()

    def register_handoff(self, handoff_id: uuid.UUID) -> tuple[HandoffControl, HandoffEvents]:
        """Register a handoff at this engine, as the source or the destination of a prompt: its commands, its facts.

        Raises:
            NotRunning: the engine is stopped. AlreadyActive: the handoff is registered, or a command of an earlier
                registration is under way.
        """
        return self._rank.handoffs.register(handoff_id)

    def handoff_sessions(
        self, *, max_sessions: int = MAX_SESSIONS, session_timeout_ms: float | None = None
    ) -> HandoffSessions:
        """Sessions that carry prompts of this engine to others; see `HandoffSessions`.

        Args:
            max_sessions: pairs, and parties that wait for the other, at one time.
            session_timeout_ms: of one session, the modelled transfer not counted; as the engine's configuration says
                if left out.

        Raises:
            NotRunning: the engine is stopped. LiveError: an argument that is none.
        """
        timeout_ms = self._rank.group.handoff_settings.session_timeout_ms
        return HandoffSessions(self._rank, max_sessions, session_timeout_ms or timeout_ms)

    def join_handoff(
        self, handoff_id: uuid.UUID, request: GenerateRequest, endpoint: Endpoint
    ) -> tuple[DestinationHandoff, RequestStream]:
        """Take a prompt over from the source at the other end: the session's party here, and the tokens to come.

        The connection is closed in any case, at the latest with the result of the session.

        Raises:
            NotRunning: the engine is stopped. AlreadyActive: the handoff is registered here, or the client id is.
            LiveError: the request is none.
        """
        return self._rank.handoffs.join(handoff_id, request, endpoint)

    # -- looking ------------------------------------------------------------------------------------

    @property
    def dp_rank(self) -> int:
        """Number of this rank in its engine, from 0."""
        return self._rank.dp_rank

    @property
    def running(self) -> bool:
        """Requests are taken."""
        return self._rank.running

    def metrics_receiver(self) -> Watch[EngineMetrics]:
        """Gauges of the rank as a latest value."""
        return self._rank.metrics

    def active_request_count(self) -> int:
        """Requests that were registered and have not ended, those being submitted or cancelled included."""
        return len(self._rank.routes)

    async def drain_completion_boundary(self) -> None:
        """Until no completed pass is being dispatched."""
        await self._rank.group.drained()

    # -- the end ------------------------------------------------------------------------------------

    def clone(self) -> LiveEngine:
        """This very engine: a reference is a clone, and the last one to go stops the rank."""
        return self

    async def shutdown(self) -> None:
        """Stop the whole engine, all its ranks; any number of callers, at any time, get the same result.

        Raises:
            LiveError: the first thing that went wrong, or requests that were left behind.
        """
        await self._rank.shut_down()

    async def __aenter__(self) -> LiveEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()


def _scheduling(policy: PolicySource) -> SchedulingPolicy | None:
    try:
        loaded = load_policy(policy, {}) if isinstance(policy, str) else ready(policy)
    except UsageError as exc:
        raise LiveError(str(exc)) from exc
    if loaded.scheduling is None and not loaded.is_fcfs:
        raise LiveError(f"policy {loaded.name} only places requests, and a live engine is one place")
    return loaded.scheduling


def _normalised(config: ConfigSource, entry: str) -> EngineConfig:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise LiveError(f"{entry} needs a running event loop") from None
    try:
        engine = config if isinstance(config, EngineConfig) else load_engine_config(config)
        engine.require_supported(engine.worker_type)
        if engine.shares_tier:
            raise ConfigError.of([engine.tier_fault("not built yet for live engines; use dp_rank_local")])
    except ConfigError as exc:
        raise LiveError(f"invalid engine arguments: {exc}") from exc
    return engine
