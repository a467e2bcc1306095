"""Offline replay of a trace through model workers in virtual time.

`run_model` is the entry: rows, configuration and run options in; figures per request, forward-pass records
and telemetry out. `trace_passes` keeps a readable list of every pass with the work in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.model.chains import prompt_tokens
from tests.model.config import ModelConfig
from tests.model.graphs import GraphModel
from tests.model.policies import FCFS, ModelPolicy, due_ms_of
from tests.model.pool import Removed, Stored
from tests.model.request import Request
from tests.model.scheduler import PassResult
from tests.model.shared_tier import SharedTier
from tests.model.telemetry import Telemetry
from tests.model.timing import TimingModel
from tests.model.worker import Submission, Worker
from tests.model.workload import Turn, Workload, read_turns


@dataclass
class Figures:
    """What became of one row."""

    turn: Turn
    arrival_ms: float | None = None
    worker: int | None = None
    rank: int | None = None
    overlap_blocks: int | None = None  # prompt blocks a router saw in the cache; None under round robin
    admissions: list[tuple[float, int]] = field(default_factory=list)
    splits: list[tuple[int, int] | None] = field(default_factory=list)  # tokens from the device, from the host
    token_ms: list[float] = field(default_factory=list)
    status: str | None = None
    reason: str | None = None
    terminal_ms: float | None = None

    @property
    def first_ms(self) -> float | None:
        return self.token_ms[0] if self.token_ms else None

    @property
    def last_ms(self) -> float | None:
        return self.token_ms[-1] if self.token_ms else None


@dataclass
class ModelRun:
    """Result of a run."""

    config: ModelConfig
    num_workers: int
    figures: list[Figures]  # one a row
    records: list[dict[str, Any]]  # forward-pass records with at_ms, in order of delivery
    telemetry: dict[str, Any] | None
    passes: list[dict[str, Any]]
    cache_events: list[tuple[float, int, int, Removed | Stored]]  # (pass end, worker, rank, change)
    end_ms: float
    worker_seconds: float
    cut: bool
    sessions_reported: bool
    returned_loads: int = 0
    shared_tier: SharedTier | None = None

    def per_request(self) -> dict[str, list[Any]]:
        """Columns in row order, named as in the case files; rows that never arrived hold None."""
        from tests.model.report import per_request_columns

        return per_request_columns(self.figures)


class ReplayModel:
    """The event loop: pass ends, arrivals, clients that leave, pass starts, a sample, until an instant is quiet."""

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        config: ModelConfig,
        *,
        trace_block_size: int,
        num_workers: int,
        arrival_speedup_ratio: float,
        replay_concurrency: int | None,
        max_sim_time_ms: float | None,
        telemetry_sample_interval_ms: float | None,
        router_mode: str,
        trace_passes: bool,
        policy: ModelPolicy = FCFS,
        graph: GraphModel | None = None,
    ) -> None:
        self.by_prefix = router_mode == "kv_router"
        assert not self.by_prefix or num_workers * config.dp_size == 1, "the model knows no cost of placement"
        self.config, self.trace_block_size = config, trace_block_size
        self.workload: Workload | GraphModel
        if graph is not None:
            turns = list(graph.turns.values())
            self.workload = graph
        else:
            sessions = read_turns(rows, trace_block_size)
            turns = sorted((t for s in sessions for t in s), key=lambda t: t.row)
            self.workload = Workload(sessions, arrival_speedup_ratio, replay_concurrency)
        self.token_of: dict[int, int] = {}  # of a hash id: its number in order of first appearance
        for turn in sorted(turns, key=lambda turn: turn.row):
            for hash_id in turn.hash_ids:
                self.token_of.setdefault(hash_id, len(self.token_of))
        self.shared: SharedTier | None = None
        if config.tier is not None and config.tier.shared:
            self.shared = SharedTier.of(config.tier, config.block_size)
        self.workers = [Worker(config, index, policy, self.shared) for index in range(num_workers)]
        self.figures = [Figures(turn) for turn in turns]
        self.limit_ms = math.inf if max_sim_time_ms is None else max_sim_time_ms
        self.telemetry = Telemetry(telemetry_sample_interval_ms) if telemetry_sample_interval_ms else None
        self.trace_passes = trace_passes
        self.passes: list[dict[str, Any]] = []
        self.cache_events: list[tuple[float, int, int, Removed | Stored]] = []
        self.records: list[dict[str, Any]] = []
        self.leaving: list[tuple[float, int, int, int]] = []  # (due, session, turn, row)
        self.next_worker = 0
        self.now_ms = 0.0
        self.worker_seconds = 0.0

    def run(self) -> ModelRun:
        while True:
            self._instant()
            later = self._next_event_ms()
            if later is None and any(rank.nothing_moves(self.now_ms) for w in self.workers for rank in w.ranks):
                later = self.now_ms
            if later is None or later > self.limit_ms:
                break
            self._sample_until(later)
            self._move_clock(later)
        if self.telemetry is not None:
            self.telemetry.final(self.now_ms, self.workers)
        return ModelRun(
            self.config,
            len(self.workers),
            self.figures,
            self.records,
            self.telemetry.as_dict() if self.telemetry else None,
            self.passes,
            self.cache_events,
            self.now_ms,
            self.worker_seconds,
            cut=any(f.status is None for f in self.figures),
            shared_tier=self.shared,
            returned_loads=sum(rank.returned_loads for worker in self.workers for rank in worker.ranks),
            sessions_reported=self.workload.concurrency is not None or any(f.turn.turn for f in self.figures),
        )

    def _instant(self) -> None:
        """Everything at `now_ms`: rounds until a round changes nothing; a sample due belongs to the first one."""
        first_round = changed = True
        while changed:
            changed = False
            for worker in self.workers:
                if worker.in_pass is not None and worker.in_pass.end_ms == self.now_ms:
                    self._finish(worker)
                    changed = True
                worker.process_internal(self.now_ms)
            for due_ms, turn in self.workload.pop_due(self.now_ms):
                self._arrive(due_ms, turn)
                changed = True
            for row in self._pop_leaving():
                figures = self.figures[row]
                assert figures.worker is not None
                assert figures.rank is not None
                self.workers[figures.worker].leave(figures.rank, row)
                changed = True
            if self.shared is None:
                changed |= self._run_all()
            else:
                changed |= first_round  # once more behind the last arrivals
                self._move_all()
            if first_round and self.telemetry is not None:
                self.telemetry.due(self.now_ms, self.workers)
            first_round = False
        if self.telemetry is not None and not self.telemetry.samples:
            self.telemetry.baseline(self.workers)

    def _run_all(self) -> bool:
        """Again and again the first worker that can go on; who only began loads of no length lets the next one try."""
        changed = False
        index = 0
        while index < len(self.workers):
            worker = self.workers[index]
            effects = worker.effects
            changed |= self._run(worker)
            resting = [i for i in range(index + 1) if self.workers[i].rests] if worker.effects > effects else []
            index = resting[0] if resting else index + 1
        return changed

    def _move_all(self) -> None:
        """Workers that share memory go one pass at a time: who stands still looks again whenever one had an effect."""
        at = 0
        while at < len(self.workers):
            worker = self.workers[at]
            if worker.in_pass is None:
                for rank in worker.ranks:
                    rank.next_instant()
            worker.process_internal(self.now_ms)
            at = 0 if self._run(worker, one_pass=True) else at + 1

    def _run(self, worker: Worker, *, one_pass: bool = False) -> bool:
        """Commands in the order in which the driver takes them, then passes while there is work."""
        changed = bool(worker.cancels)
        while worker.cancels:
            self._cancel(worker, *worker.cancels.pop(0))
        if worker.in_pass is not None:
            return changed and not one_pass
        effect = False
        for submission in worker.apply_first():
            if submission.gone:
                self._cancel(worker, submission.rank, submission.number)
        # Whoever waits for a submission taken just before the pass is heard in the pass.
        late = [(submission.rank, submission.number) for submission in worker.pending if submission.gone]
        for rank in [submission.rank for submission in worker.pending]:
            worker.publish(rank)
        worker.pending = []
        if worker.rests:
            worker.process_internal(self.now_ms)
        worker.rests = False
        while worker.ready and not worker.rests:
            group = worker.start_pass(self.now_ms)
            self._started(worker, group.results)
            changed = True
            effect = any(worker.ranks[i].had_effect(result) for i, result in group.results.items())
            while late:
                self._cancel(worker, *late.pop(0))
            if group.end_ms == self.now_ms:
                self._finish(worker)  # before anything it makes due arrives
                if not worker.rests:
                    worker.process_internal(self.now_ms)
            if one_pass:
                break
        worker.at_boundary = False
        return effect if one_pass else changed

    def _cancel(self, worker: Worker, rank: int, row: int) -> None:
        # A load that is given up shared its lane until then; in mid-pass the time is still that of its start.
        worker.ranks[rank].now_ms = self.now_ms if worker.in_pass is None else worker.in_pass.start_ms
        start_ms = worker.cancel(rank, row)
        self._end(self.figures[row], "canceled", None, self.now_ms if math.isnan(start_ms) else start_ms)

    def _pop_leaving(self) -> list[int]:
        """Rows whose clients leave by now and have not ended."""
        self.leaving = [entry for entry in self.leaving if self.figures[entry[3]].status is None]
        due = sorted(entry for entry in self.leaving if entry[0] <= self.now_ms)
        self.leaving = [entry for entry in self.leaving if entry not in due]
        return [row for _, _, _, row in due]

    def _next_event_ms(self) -> float | None:
        times = [worker.in_pass.end_ms for worker in self.workers if worker.in_pass is not None]
        times += [worker.next_internal_ms for worker in self.workers if worker.next_internal_ms < math.inf]
        if self.shared is not None and any(worker.in_pass is None and worker.ready for worker in self.workers):
            times.append(self.now_ms)  # what it loaded in no time: the next round of this instant
        if self.workload.next_due_ms is not None:
            times.append(self.workload.next_due_ms)
        times += [entry[0] for entry in self.leaving if self.figures[entry[3]].status is None]
        return min(times, default=None)

    def _sample_until(self, later_ms: float) -> None:
        """Samples whose time lies before the next event."""
        while self.telemetry is not None and self.telemetry.next_ms < later_ms:
            self._move_clock(self.telemetry.next_ms)
            self.telemetry.due(self.now_ms, self.workers)

    def _move_clock(self, to_ms: float) -> None:
        self.worker_seconds += (len(self.workers) * (to_ms - self.now_ms)) / 1000.0
        self.now_ms = to_ms

    def _arrive(self, due_ms: float, turn: Turn) -> None:
        worker = self.workers[self.next_worker]
        self.next_worker = (self.next_worker + 1) % len(self.workers)
        rank = worker.take_rank()
        figures = self.figures[turn.row]
        figures.arrival_ms, figures.worker, figures.rank = due_ms, worker.index, rank
        tokens = prompt_tokens([self.token_of[i] for i in turn.hash_ids], self.trace_block_size, turn.input_tokens)
        request = worker.ranks[rank].submit(turn.row, tokens, turn.output_tokens)
        request.priority, request.arrival_ms = turn.priority, due_ms
        request.deadline_ms = due_ms_of(due_ms, turn.deadline_ms)
        if self.by_prefix:
            seen = [entry.identity in worker.visible[rank] for entry in request.table]
            figures.overlap_blocks = seen.index(False) if False in seen else len(seen)
        worker.pending.append(Submission(rank, turn.row))
        leaves_ms = due_ms + turn.cancel_after_ms
        if leaves_ms < math.inf:
            self.leaving.append((leaves_ms, turn.session, turn.turn, turn.row))
        worker.publish(rank)
        if self.telemetry is not None:
            self.telemetry.arrived(figures, self.config.block_size)

    def _started(self, worker: Worker, results: Mapping[int, PassResult]) -> None:
        for rank, result in results.items():
            for (request, reused), split in zip(result.admissions, result.splits, strict=True):
                self.figures[request.number].admissions.append((result.start_ms, reused))
                self.figures[request.number].splits.append(split)
            if self.trace_passes:
                self.passes.append(_describe(worker, rank, result))

    def _finish(self, worker: Worker) -> None:
        group, records = worker.finish_pass()
        self.records += [{"at_ms": group.end_ms, **record} for record in records]
        for rank, result in group.results.items():
            self.cache_events += [(group.end_ms, worker.index, rank, event) for event in result.cache_events]
            if self.telemetry is not None:
                self.telemetry.decoded(len(result.accepted), sum(result.accepted.values()))
                if self.config.backend == "sglang":
                    self.telemetry.looked_up(worker.ranks[rank].hit_tokens, result.record["sum_prefill_tokens"])
            for request, burst in result.tokens:
                self.figures[request.number].token_ms += [group.end_ms] * burst
            ends = [(r, "completed", None) for r in result.completed]
            ends += [(r, "rejected", None) for r in result.rejected]
            ends += [(r, "failed", reason) for r, reason in result.failed]
            for request, status, reason in ends:
                self._end(self.figures[request.number], status, reason, group.end_ms)

    def _end(self, figures: Figures, status: str, reason: str | None, at_ms: float) -> None:
        figures.status, figures.reason, figures.terminal_ms = status, reason, at_ms
        self.workload.ended(figures.turn, self.now_ms, status)
        if self.telemetry is not None:
            self.telemetry.ended(figures)


def _describe(worker: Worker, rank: int, result: PassResult) -> dict[str, Any]:
    return {
        "worker": worker.index,
        "rank": rank,
        "wave": worker.wave - 1,
        "start_ms": result.start_ms,
        "end_ms": result.end_ms,
        "deferred": result.deferred,
        "decisions": [
            (kind, None if r is None else r.number, other.number if isinstance(other, Request) else other)
            for kind, r, other in result.decisions
        ],
        "admitted": [(r.number, reused) for r, reused in result.admissions],
        "preempted": [r.number for r in result.preemptions],
        "work": [(w.request.number, w.prefix, w.prompt, w.total) for w in result.scheduled.values()],
        "tokens": [(r.number, burst) for r, burst in result.tokens],
        "completed": [r.number for r in result.completed],
        "rejected": [r.number for r in result.rejected],
        "failed": [(r.number, reason) for r, reason in result.failed],
        "gauges": worker.ranks[rank].gauges(),
    }


def run_model(
    rows: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any] | None = None,
    *,
    trace_block_size: int = 512,
    timing: TimingModel | None = None,
    num_workers: int = 1,
    arrival_speedup_ratio: float = 1.0,
    replay_concurrency: int | None = None,
    max_sim_time_ms: float | None = None,
    telemetry_sample_interval_ms: float | None = None,
    router_mode: str = "round_robin",
    trace_passes: bool = False,
    policy: ModelPolicy = FCFS,
    graph: GraphModel | None = None,
) -> ModelRun:
    """Replay rows (dicts of a valid Mooncake trace), or a graph; telemetry is taken when an interval is given.

    `kv_router` is known for one scheduler only, where it adds what the router sees of the cache at each arrival.
    """
    return ReplayModel(
        rows,
        ModelConfig.from_mapping(config, timing),
        trace_block_size=trace_block_size,
        num_workers=num_workers,
        arrival_speedup_ratio=arrival_speedup_ratio,
        replay_concurrency=replay_concurrency,
        max_sim_time_ms=max_sim_time_ms,
        telemetry_sample_interval_ms=telemetry_sample_interval_ms,
        router_mode=router_mode,
        trace_passes=trace_passes,
        policy=policy,
        graph=graph,
    ).run()
