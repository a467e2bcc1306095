"""The books of one run: what is opened, consumed and closed in which order, whoever moves the machines.

Decides what result a run has; the order of events is the fleet's, the arrivals are the workload's. Outputs appear under
their names only when they are whole, or closed with an honest end marker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from mocker_replay._core.collector import Collector
from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.fleet import Fleet
from mocker_replay._core.sched_offload import OffloadScheduler
from mocker_replay._core.shared_tier import SharedTier
from mocker_replay.config import EngineConfig, ReplayOptions
from mocker_replay.config.backends import handoff_order
from mocker_replay.config.options import DELTA_FORMATS
from mocker_replay.errors import ExitCode, InvariantError, UsageError
from mocker_replay.events import Decision, Want
from mocker_replay.policies import LoadedPolicy
from mocker_replay.replay.build import build_fleet
from mocker_replay.replay.graph_facts import graph_of, run_graph
from mocker_replay.replay.graph_workload import GraphWorkload
from mocker_replay.replay.history import Histories
from mocker_replay.replay.interrupt import InterruptFlag
from mocker_replay.replay.placement import PolicyPlacement
from mocker_replay.replay.pool_router import PoolRouter, PoolShape
from mocker_replay.replay.pools import Pools
from mocker_replay.replay.result import ReplayResult
from mocker_replay.replay.router import KvRouter
from mocker_replay.replay.sinks import Sinks
from mocker_replay.replay.workload import Recall, Workload, open_workload, session_names
from mocker_replay.report.facts import FAILED, NOT_ARRIVED, NOT_TERMINAL, REJECTED, PrefillFacts, RunFacts
from mocker_replay.report.summary import summarize, tier_fields
from mocker_replay.shells.clock import elapsed_ms, monotonic_ns
from mocker_replay.trace import TraceFacts, TraceGraph, TraceSource


class Stopped(Exception):
    """The machines cannot go on; what was true until then is kept."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class RunBooks:
    """Workload, fleet and consumers of one run; a subclass moves the fleet.

    Args:
        policy: who decides where the engine leaves a choice.
        want: records wanted besides those of the outputs. external: the subclass moves the machines itself.
        directed: and only when the fleet says so.
    """

    def __init__(
        self,
        pools: Pools,
        options: ReplayOptions,
        facts: TraceFacts,
        source: TraceSource,
        sinks: Sinks,
        policy: LoadedPolicy,
        *,
        want: int = 0,
        external: bool = False,
        directed: bool = False,
    ) -> None:
        self.pools = pools
        self.engine = pools.engine
        self.options = options
        self.facts = facts
        self.sinks = sinks
        self.policy = policy
        self.reading_ms = 0.0  # host time that went to rows of the trace while the run went on
        self.failure: Exception | None = None  # why the machines could not go on
        self.until_ms = math.inf if options.max_sim_time_ms is None else options.max_sim_time_ms
        self.collector = Collector(
            pools.num_workers, pools.dp_size, pools.num_prefill_workers, counts_lookups=pools.engine.backend == "sglang"
        )
        self.collector.reserve(facts.num_rows)
        self.placement: PolicyPlacement | None = None
        if policy.placing is not None:
            self.placement = PolicyPlacement(
                policy.placing, pools.num_workers, pools.dp_size, self.engine.num_gpu_blocks
            )
        routes = options.router_mode == "kv_router"
        wants_kv = sinks.wants_kv or routes
        self.graph = graph_of(source, facts)
        is_delta = options.trace_format in DELTA_FORMATS
        if is_delta and wants_kv:
            raise UsageError(f"event level kv is not built for trace_format {options.trace_format}")
        recall = _recall(facts, self.engine.block_size) if is_delta else None
        numbers_ids = wants_kv or pools.has_tier
        self.workload = _workload(source, facts, self.graph, options, renumber=numbers_ids, recall=recall)
        self.fleet: Fleet = build_fleet(
            pools,
            trace_block_size=self.engine.block_size if is_delta else facts.trace_block_size,
            want=want | sinks.wants | (Want.KV if wants_kv else 0),
            telemetry=sinks.wants_samples,
            wake_on_end=self.workload.wakes,
            external_placement=(
                (routes and pools.prefill is None) or self.placement is not None or self.workload.hears_arrivals
            ),
            external=external,
            directed=directed,
            quiet=not (external or wants_kv or sinks.wants_passes or sinks.wants_samples or self.placement is not None),
            block_tokens=sinks.block_tokens if wants_kv else None,
            policy=policy.scheduling,
            knows_outputs=is_delta,
        )
        self.router: KvRouter | None = None
        self.pool_router: PoolRouter | None = None
        if routes and self.fleet.handoffs is not None:
            self.pool_router = _pool_router(pools, options, facts, self.fleet)
            self.fleet.handoffs.set_chooser(self.pool_router)
        elif routes:
            self.router = _router(pools.engine, options, facts)

    def loop(self, interrupt: InterruptFlag) -> bool:
        """Until nothing is left (True), or the time limit or an interrupt ends the run (False).

        Raises:
            Stopped: the machines cannot go on.
        """
        raise NotImplementedError

    def start_workload(self) -> None:
        """Hand over the first rows."""
        self.workload.start(self.fleet)
        self._take_names()

    def more_rows(self) -> None:
        """Hand over the next rows of a streaming trace."""
        self.workload.more(self.fleet)
        self._take_names()

    def _take_names(self) -> None:
        """Rows are named before anything happens to them: hashes of generated blocks are made from the name."""
        for first_row, names in self.workload.take_new_names():
            self.sinks.add_names(first_row, names)

    def publish_cuts(self) -> None:
        """The run is over: say which requests it leaves behind."""
        self.fleet.publish_cuts()
        self.consume()

    def extra_summary(self) -> dict[str, Any]:
        """Figures of the summary that the collected records do not hold."""
        return {}

    def exit_code(self, code: ExitCode) -> ExitCode:
        """The exit code, given the one that follows from how the requests ended."""
        return code

    def last_wall(self) -> bytes | None:
        """What the footer of the log says about the clock."""
        return None

    def result(self, interrupt: InterruptFlag) -> ReplayResult:
        """Run, and close the books."""
        started_ns = monotonic_ns()
        try:
            complete = self.loop(interrupt)
        except Stopped as stopped:
            self.failure, complete = stopped.cause, False
        # An interrupt that comes after the last event changes nothing.
        interrupted = interrupt.raised and not complete
        if not complete:
            self.publish_cuts()
        self.consume()
        wall_time_ms = elapsed_ms(started_ns) - self.reading_ms
        columns = self.collector.columns()
        if complete:
            self.failure = self._conservation_fault(columns)
        cut = not complete or self.failure is not None
        facts = self._run_facts(wall_time_ms, cut=cut, interrupted=interrupted)
        result = ReplayResult(
            summary=summarize(self.collector, facts)
            | self._policy_summary()
            | self._tier_summary()
            | self._lineage_summary()
            | self.extra_summary(),
            columns=columns,
            facts=facts,
            telemetry=self.sinks.telemetry_result(),
            warnings=facts.warnings,
            exit_code=self.exit_code(_exit_code(columns["status"], interrupted=interrupted)),
        )
        self.sinks.finish(result, stopped=self.failure is not None, wall=self.last_wall())
        return result

    def _policy_summary(self) -> dict[str, Any]:
        """What the policy decided otherwise than first come, first served; nothing where there is none."""
        if self.policy.is_fcfs:
            return {}
        counts = self.collector.decisions()
        return {"policy": self.policy.name, "policy_decisions": {kind.name.lower(): counts[kind] for kind in Decision}}

    def _tier_summary(self) -> dict[str, Any]:
        """What the host tiers did; nothing where there are none."""
        if not self.pools.has_tier:
            return {}
        fields = tier_fields(self.collector.columns(), self.collector.host_steps())
        if self.pools.shares_tier:
            tier = next(rank.tier for rank in self._ranks() if isinstance(rank.tier, SharedTier))
            names = ("capacity_blocks", "resident_blocks", "used_blocks")
            fields["g2_domains"] = [dict(zip(names, tier.figures(), strict=True))]
        return fields

    def _lineage_summary(self) -> dict[str, Any]:
        """What was done to the rows of the trace; nothing where they were replayed as they are."""
        if self.facts.lineage is None:
            return {}
        told = {"digest": self.facts.digest, "rows": self.facts.num_rows, **self.facts.lineage.to_mapping()}
        return {"transformed_trace": told}

    def consume(self) -> None:
        """Hand the records to everybody who reads them, and forget them."""
        self.collector.consume(self.fleet.out)
        self.sinks.consume(self.fleet.out)
        self.tell_routers(self.fleet.out)
        if self.placement is not None:
            self.placement.consume(self.fleet.out)
        self.fleet.clear_events()

    def tell_routers(self, events: EventBuffer) -> None:
        """Who places requests by what has happened hears of it."""
        for router in (self.router, self.pool_router):
            if router is not None:
                router.consume(events)

    @property
    def router_hits(self) -> Callable[[float], tuple[float, int]] | None:
        """Sum and number of the hit rates of placements that a sample sees; None where prefixes do not matter."""
        router = self.router or self.pool_router
        return None if router is None else router.hits.take

    def standing(self) -> str:
        """Table of who waits for what, for a run that cannot go on; empty when nobody does."""
        lines = []
        for machine in self.fleet.machines:
            for scheduler in machine.engine.schedulers:
                place = f"worker {scheduler.worker} rank {scheduler.rank}"
                for queue, row, known, computed, blocks in scheduler.standing():
                    lines.append(f"{place}: row {row} {queue}, {computed} of {known} tokens computed, {blocks} blocks")
        return "".join(f"\n  {line}" for line in lines)

    # -- the end ------------------------------------------------------------------------------------

    def _gauges(self) -> Sequence[Sequence[int]]:
        """(active, inactive blocks, running, waiting) of each rank."""
        return self.collector.gauges().tolist()  # type: ignore[no-any-return]

    def _gauges_of_requests(self, gauges: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """The same where blocks count as active that nobody uses: those that requests hold."""
        from mocker_replay._core.sched_pages import PageScheduler

        told = list(gauges)
        for machine in self.fleet.machines:
            for rank in machine.engine.schedulers:
                at = rank.worker * self.pools.dp_size + rank.rank
                assert isinstance(rank, PageScheduler | OffloadScheduler), "a flavour that counts such blocks"
                told[at] = (rank.held_by_requests(), *told[at][1:])
        return told

    def _ranks(self) -> list[OffloadScheduler]:
        """The schedulers of all ranks."""
        ranks = [rank for machine in self.fleet.machines for rank in machine.engine.schedulers]
        return [rank for rank in ranks if isinstance(rank, OffloadScheduler)]

    def _conservation_fault(self, columns: Mapping[str, Any]) -> InvariantError | None:
        """None when every row arrived and ended and every block is free or cached; else who is left, what is held."""
        status = columns["status"]
        left = [int(row) for row in (status == NOT_TERMINAL).nonzero()[0][:20]]
        gauges = self._gauges()
        # Stores to shared memory hold blocks until they end, where no gauge is shown, too; cached pages look active.
        if self.pools.shares_tier or self.engine.backend == "sglang":
            gauges = self._gauges_of_requests(gauges)
        held = [tuple(int(x) for x in rank) for rank in gauges if rank[0] or rank[2] or rank[3]]
        missing = self.facts.num_rows - int((status != NOT_ARRIVED).sum()) - self.workload.num_skipped
        if left or held or missing:
            return InvariantError(
                f"the run ended with {missing} requests that did not arrive, and {len(left)} neither ended nor cut "
                f"(rows {left}); "
                f"ranks that still hold something (active, inactive blocks, running, waiting): {held}"
            )
        return None

    def _prefill_facts(self) -> PrefillFacts | None:
        config = self.pools.prefill
        if config is None:
            return None
        return PrefillFacts(
            config=config.to_mapping(),
            num_workers=self.pools.num_prefill_workers,
            dp_size=config.dp_size,
            tensor_parallel_size=config.tensor_parallel_size,
            worker_seconds=self.fleet.prefill_worker_seconds,
            decode_has_tier=self.engine.native_host_offload is not None,
            comes_second=handoff_order(config.backend) == "destination_first",
            placements=None if self.pool_router is None else self.pool_router.prefill_placements,
        )

    def _run_facts(self, wall_time_ms: float, *, cut: bool, interrupted: bool) -> RunFacts:
        options, trace = self.options, self.facts
        rows = getattr(self.workload, "rows", None)
        reported = options.replay_concurrency is not None or trace.is_multi_turn
        return RunFacts(
            config=self.engine.to_mapping(),
            options=options.to_mapping(),
            trace_name=trace.name,
            trace_format=trace.format,
            trace_rows=trace.num_rows,
            trace_digest=trace.digest,
            timestamp_unit=trace.timestamp_unit,
            trace_block_size=trace.trace_block_size,
            trace_span_ms=trace.span_ms,
            num_workers=self.pools.num_workers - self.pools.num_prefill_workers,
            dp_size=self.engine.dp_size,
            tensor_parallel_size=self.engine.tensor_parallel_size,
            wall_time_ms=wall_time_ms,
            worker_seconds=self.fleet.worker_seconds,
            prefill=self._prefill_facts(),
            end_ms=self.fleet.last_event_ms,
            cut=cut,
            interrupted=interrupted,
            sla_ttft_ms=options.sla_ttft_ms,
            sla_itl_ms=options.sla_itl_ms,
            sla_e2e_ms=options.sla_e2e_ms,
            request_ids=self.sinks.request_ids(),
            session_names=session_names(rows) if reported and rows is not None else None,
            sessions_reported=reported,
            graph=None if self.graph is None else run_graph(self.graph, trace, self.workload.lane),
            num_skipped=self.workload.num_skipped,
            placements=None if (router := self.router or self.pool_router) is None else router.placements,
            trace_assumed=None if trace.assumptions is None else structs.asdict(trace.assumptions),
            trace_assumed_texts=() if trace.assumptions is None else trace.assumptions.texts(),
            warnings=trace.warnings,
            trace_transforms=() if trace.lineage is None else trace.lineage.steps,
        )


def _workload(
    source: TraceSource, facts: TraceFacts, graph: TraceGraph | None, options: ReplayOptions, *, renumber: bool,
    recall: Recall | None,
) -> Workload:  # fmt: skip
    ratio = options.arrival_speedup_ratio
    if graph is None:
        return open_workload(
            source,
            facts,
            arrival_speedup_ratio=ratio,
            replay_concurrency=options.replay_concurrency,
            renumber=renumber,
            recall=recall,
        )
    base_ms = facts.min_first_timestamp_ms or 0.0
    return GraphWorkload(graph, base_ms, ratio, num_lanes=options.agentic_lanes, renumber=renumber)


def _recall(facts: TraceFacts, block_size: int) -> Recall:
    return lambda rows: Histories(rows, facts.trace_block_size, block_size, facts.path)


def _router(engine: EngineConfig, options: ReplayOptions, facts: TraceFacts) -> KvRouter:
    """The router of mode kv_router for workers of one kind; the fleet goes round robin by itself."""
    return KvRouter(
        options.num_workers,
        engine.dp_size,
        engine.block_size,
        facts.trace_block_size,
        seed=engine.aic_mtp_seed,
        event_lag_ms=options.kv_event_lag_ms or 0.0,
    )


def _pool_router(pools: Pools, options: ReplayOptions, facts: TraceFacts, fleet: Fleet) -> PoolRouter:
    """The same for prefill and decode workers."""
    assert pools.prefill is not None, "workers have roles"
    return PoolRouter(
        PoolShape(pools.num_prefill_workers, pools.prefill.dp_size),
        PoolShape(pools.num_workers - pools.num_prefill_workers, pools.engine.dp_size),
        pools.engine.block_size,
        facts.trace_block_size,
        seed=pools.engine.aic_mtp_seed,
        events=fleet.out,
        event_lag_ms=options.kv_event_lag_ms or 0.0,
        hits_late=handoff_order(pools.prefill.backend) == "source_first",
        shows_held=pools.prefill.backend == "sglang" and pools.prefill.enable_prefix_caching,
    )


def _exit_code(status: Any, *, interrupted: bool) -> ExitCode:
    if interrupted:
        return ExitCode.INTERRUPTED
    if ((status == REJECTED) | (status == FAILED)).any():
        return ExitCode.REQUESTS_FAILED
    return ExitCode.OK
