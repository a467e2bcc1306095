"""A trace through the driver to a result, in virtual time.

Decides what is opened, consumed and closed in which order; the order of events is the fleet's, the arrivals are the
workload's. Outputs appear under their names only when they are whole, or closed with an honest end marker.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mocker_replay._core.collector import Collector
from mocker_replay._core.fleet import Fleet
from mocker_replay._core.types import CommandError, EngineError
from mocker_replay.config import EngineConfig, ReplayOptions, load_engine_config
from mocker_replay.errors import ExitCode, InvariantError, UsageError
from mocker_replay.events import Want
from mocker_replay.replay.build import build_fleet
from mocker_replay.replay.interrupt import InterruptFlag
from mocker_replay.replay.result import ReplayResult
from mocker_replay.replay.router import KvRouter
from mocker_replay.replay.sinks import Sinks
from mocker_replay.replay.workload import Workload, open_workload, session_names
from mocker_replay.report.facts import COMPLETED, FAILED, REJECTED, RunFacts
from mocker_replay.report.summary import summarize
from mocker_replay.shells.clock import elapsed_ms, monotonic_ns
from mocker_replay.trace import TraceFacts, TraceSource, open_trace

Progress = Callable[[int, int, float], None]  # rows handed over, rows in all, modelled time [ms]

# Events between two looks at consumers, interrupts and the progress bar; a callback model makes passes slow.
_RECORDS_PER_TURN = 65_536
_RECORDS_PER_TURN_CALLBACK = 1_024
_PROGRESS_EVERY_MS = 100.0
# Far beyond any fleet; each rank costs memory before the first request.
_MAX_RANKS = 65_536


def replay(
    trace: str | os.PathLike[str] | TraceSource,
    config: EngineConfig | Mapping[str, object] | None = None,
    options: ReplayOptions | None = None,
    *,
    events: str | os.PathLike[str] | None = None,
    event_level: str = "passes",
    requests: str | os.PathLike[str] | None = None,
    summary: str | os.PathLike[str] | None = None,
    telemetry: str | os.PathLike[str] | bool | None = None,
    progress: Progress | None = None,
) -> ReplayResult:
    """Replay a trace in virtual time.

    Args:
        trace: path of a trace, "-" for standard input, or an opened TraceSource.
        config: engine configuration, as EngineConfig or as the reference's mapping.
        options: settings of the run.
        events, requests, summary, telemetry: files to write, "-" for standard output. `telemetry=True` samples
            without writing.
        event_level: requests, passes, tokens or kv; each holds the one before.
        progress: called a few times a second with (rows handed over, rows in all, modelled time [ms]).

    Raises:
        ConfigError, UsageError, TraceError: refused before anything runs; nothing is written.
        InvariantError: the run could not go on; outputs were closed and marked as cut.
        OutputError: an output cannot be written; no file that looks whole is left.
        KeyboardInterrupt: the second Ctrl-C; the first one ends the run orderly and marks it as cut.
    """
    engine = config if isinstance(config, EngineConfig) else load_engine_config(config)
    engine.require_supported()
    options = options or ReplayOptions()
    options.validate()
    if options.num_workers * engine.dp_size > _MAX_RANKS:
        raise UsageError(
            f"num_workers times dp_size must not exceed {_MAX_RANKS} ranks (got {options.num_workers * engine.dp_size})"
        )
    source = _open(trace, options)
    try:
        facts = source.scan()
        sinks = Sinks(
            engine, options, facts, events=events, event_level=event_level, requests=requests, summary=summary,
            telemetry=telemetry,
        )  # fmt: skip
        # From the first output on an interrupt ends the run orderly, until all of them are whole.
        with InterruptFlag() as interrupt, sinks:
            run = _Run(engine, options, facts, source, sinks, progress)
            result = run.result(interrupt)
    finally:
        if source is not trace:
            source.close()
    if run.failure is not None:
        text = f"the run stopped at {result.facts.end_ms} ms: {_text_of(run.failure)}{run.standing()}"
        raise InvariantError(text) from run.failure
    return result


def _open(trace: str | os.PathLike[str] | TraceSource, options: ReplayOptions) -> TraceSource:
    if not isinstance(trace, str | os.PathLike):
        return trace
    return open_trace(
        trace,
        trace_format=options.trace_format,
        trace_block_size=options.effective_trace_block_size,
        timestamp_unit=options.timestamp_unit,
        closed_loop=options.replay_concurrency is not None,
        missing_timestamps=options.missing_timestamps,
        surplus_hash_ids=options.surplus_hash_ids,
        missing_hash_ids=options.missing_hash_ids,
    )


class _Stopped(Exception):
    """The machines cannot go on; what was true until then is kept."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Run:
    """One replay from the first row to the result."""

    def __init__(
        self,
        engine: EngineConfig,
        options: ReplayOptions,
        facts: TraceFacts,
        source: TraceSource,
        sinks: Sinks,
        progress: Progress | None,
    ) -> None:
        self._engine = engine
        self._options = options
        self._facts = facts
        self._sinks = sinks
        self._progress = progress
        self.failure: Exception | None = None  # why the machines could not go on
        self._progress_ns = monotonic_ns()
        self._max_records = _RECORDS_PER_TURN_CALLBACK if engine.timing_model.type == "callback" else _RECORDS_PER_TURN
        self._until_ms = math.inf if options.max_sim_time_ms is None else options.max_sim_time_ms
        self.collector = Collector(options.num_workers, engine.dp_size)
        self.router = _router(engine, options, facts)
        wants_kv = sinks.wants_kv or self.router is not None
        self.workload: Workload = open_workload(
            source.batches(),
            facts,
            arrival_speedup_ratio=options.arrival_speedup_ratio,
            replay_concurrency=options.replay_concurrency,
            renumber=wants_kv,
        )
        self.fleet: Fleet = build_fleet(
            engine,
            num_workers=options.num_workers,
            trace_block_size=facts.trace_block_size,
            want=sinks.wants | (Want.KV if wants_kv else 0),
            telemetry=sinks.wants_samples,
            wake_on_end=self.workload.wakes,
            external_placement=self.router is not None,
            block_tokens=sinks.block_tokens if wants_kv else None,
        )

    def result(self, interrupt: InterruptFlag) -> ReplayResult:
        started_ns = monotonic_ns()
        try:
            complete = self._loop(interrupt)
        except _Stopped as stopped:
            self.failure, complete = stopped.cause, False
        # An interrupt that comes after the last event changes nothing.
        interrupted = interrupt.raised and not complete
        if not complete:
            self.fleet.publish_cuts()
        self._consume()
        wall_time_ms = elapsed_ms(started_ns)
        columns = self.collector.columns()
        if complete:
            self.failure = self._conservation_fault(columns)
        cut = not complete or self.failure is not None
        facts = self._run_facts(wall_time_ms, cut=cut, interrupted=interrupted)
        result = ReplayResult(
            summary=summarize(self.collector, facts),
            columns=columns,
            facts=facts,
            telemetry=self._sinks.telemetry_result(),
            warnings=facts.warnings,
            exit_code=_exit_code(columns["status"], interrupted=interrupted),
        )
        self._sinks.finish(result, stopped=self.failure is not None)
        return result

    # -- the loop -----------------------------------------------------------------------------------

    def _loop(self, interrupt: InterruptFlag) -> bool:
        """Until nothing is left (True), or the time limit or an interrupt ends the run (False)."""
        self.workload.start(self.fleet)
        self._sinks.start(self.collector, self.fleet, self.router.take_hit_rates if self.router else None)
        while not interrupt.raised:
            status = self._advance()
            if status == "needs_rows":
                self.workload.more(self.fleet)
            elif status == "ends":
                self.workload.ended(self.fleet, self.fleet.ended_requests())
            elif status == "sample":
                self._consume()
                self._sinks.sample(self.fleet)
            elif status == "place":
                self._consume()
                self._place()
            elif status == "full":
                self._consume()
            else:
                self._consume()
                self._sinks.final_sample(self.fleet.last_event_ms)
                return status == "done"
            self._report_progress()
        return False

    def _advance(self) -> str:
        """One stretch of the fleet; an engine that cannot go on, or a user's model that raises, ends the run."""
        try:
            return self.fleet.advance(self._until_ms, self._max_records)
        except Exception as exc:
            raise _Stopped(exc) from exc

    def _place(self) -> None:
        assert self.router is not None
        placement = self.router.choose(self.fleet.now_ms, *self.fleet.next_arrival())
        self.fleet.place_next(placement.worker, placement.rank)

    def _consume(self) -> None:
        for first_row, names in self.workload.take_new_names():
            self._sinks.add_names(first_row, names)
        self.collector.consume(self.fleet.out)
        self._sinks.consume(self.fleet.out)
        if self.router is not None:
            self.router.consume(self.fleet.out)
        self.fleet.clear_events()

    def _report_progress(self) -> None:
        if self._progress is not None and elapsed_ms(self._progress_ns) >= _PROGRESS_EVERY_MS:
            self._progress_ns = monotonic_ns()
            self._progress(self.fleet.num_arrived, self._facts.num_rows, self.fleet.now_ms)

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

    def _conservation_fault(self, columns: Mapping[str, Any]) -> InvariantError | None:
        """None when every row arrived and ended and every block is free or cached; else who is left, what is held."""
        left = [int(row) for row in (columns["status"] < COMPLETED).nonzero()[0][:20]]
        gauges = self._gauges()
        held = [tuple(int(x) for x in rank) for rank in gauges if rank[0] or rank[2] or rank[3]]
        missing = self._facts.num_rows - len(columns["status"])
        if left or held or missing:
            return InvariantError(
                f"the run ended with {missing + len(left)} requests neither ended nor cut (rows {left}); "
                f"ranks that still hold something (active, inactive blocks, running, waiting): {held}"
            )
        return None

    def _run_facts(self, wall_time_ms: float, *, cut: bool, interrupted: bool) -> RunFacts:
        options, trace = self._options, self._facts
        rows = getattr(self.workload, "rows", None)
        reported = options.replay_concurrency is not None or trace.is_multi_turn
        return RunFacts(
            config=self._engine.to_mapping(),
            options=options.to_mapping(),
            trace_name=trace.name,
            trace_format=trace.format,
            trace_rows=trace.num_rows,
            trace_digest=trace.digest,
            timestamp_unit=trace.timestamp_unit,
            trace_block_size=trace.trace_block_size,
            trace_span_ms=trace.span_ms,
            num_workers=options.num_workers,
            dp_size=self._engine.dp_size,
            tensor_parallel_size=self._engine.tensor_parallel_size,
            wall_time_ms=wall_time_ms,
            worker_seconds=self.fleet.worker_seconds,
            end_ms=self.fleet.last_event_ms,
            cut=cut,
            interrupted=interrupted,
            sla_ttft_ms=options.sla_ttft_ms,
            sla_itl_ms=options.sla_itl_ms,
            sla_e2e_ms=options.sla_e2e_ms,
            request_ids=self._sinks.request_ids(),
            session_names=session_names(rows) if reported and rows is not None else None,
            sessions_reported=reported,
            placements=self.router.placements if self.router is not None else None,
            warnings=trace.warnings,
        )


def _text_of(failure: Exception) -> str:
    """The core's own errors speak for themselves; a user's model is named by its exception."""
    return str(failure) if isinstance(failure, EngineError | CommandError | InvariantError) else repr(failure)


def _router(engine: EngineConfig, options: ReplayOptions, facts: TraceFacts) -> KvRouter | None:
    """The router of mode kv_router; the fleet goes round robin by itself."""
    if options.router_mode == "round_robin":
        return None
    return KvRouter(
        options.num_workers,
        engine.dp_size,
        engine.block_size,
        facts.trace_block_size,
        seed=engine.aic_mtp_seed,
        event_lag_ms=options.kv_event_lag_ms or 0.0,
    )


def _exit_code(status: Any, *, interrupted: bool) -> ExitCode:
    if interrupted:
        return ExitCode.INTERRUPTED
    if ((status == REJECTED) | (status == FAILED)).any():
        return ExitCode.REQUESTS_FAILED
    return ExitCode.OK
