"""All variants of a comparison, run on the same arrivals.

Decides that every variant meets the same trace, or the same N jittered traces, and that a run which stood still or was
interrupted leaves no comparison. Figures and verdicts are made in `report/compare_*`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct, structs

from mocker_replay.compare.variants import Variant
from mocker_replay.config import ReplayOptions
from mocker_replay.errors import Fault, InvariantError, ReplayInterrupted, UsageError
from mocker_replay.replay import ReplayResult, replay
from mocker_replay.replay.run import trace_source
from mocker_replay.report.compare_metrics import RunSample, run_sample
from mocker_replay.report.compare_result import GateResult, VariantResult
from mocker_replay.report.compare_verdict import Rules, compare_runs
from mocker_replay.trace import TraceFacts
from mocker_replay.trace.jitter import HeldTrace, hold

SCHEMA: Final = "mocker-replay.compare/1"
Progress = Callable[[int, int, float], None]  # rows handed over, rows in all, over all runs; modelled time [ms]
# Options that say how a trace is read: variants that agree in them share one reading.
_READING: Final = (
    "trace_format", "trace_block_size", "timestamp_unit", "missing_timestamps", "surplus_hash_ids", "missing_hash_ids",
    "estimate_prefix", "failed_rows", "max_text_gib", "weka_nested_timestamp_basis", "trace_shared_prefix_ratio",
    "trace_num_prefix_groups", "transforms",
)  # fmt: skip


class Replicates(Struct, frozen=True):
    """How often each variant is run, over which arrivals; 0 is once, over the trace as it is."""

    count: int = 0
    jitter: float = 0.5
    seed: int = 1


class VariantRuns(Struct, frozen=True):
    """All runs of one variant."""

    variant: Variant
    samples: tuple[RunSample, ...]
    wall_time_ms: float  # of all its runs
    num_requests: int  # of all its runs


class Comparison(Struct, frozen=True):
    """All variants, the first of them the baseline, and what is said of the others."""

    trace: TraceFacts
    replicates: Replicates
    rules: Rules
    runs: tuple[VariantRuns, ...]
    results: tuple[VariantResult, ...]

    @property
    def baseline(self) -> VariantRuns:
        return self.runs[0]

    def to_mapping(self, gates: Sequence[GateResult] = ()) -> dict[str, Any]:
        """Everything; what differs from run to run stands under `wall` alone."""
        assumptions = self.trace.assumptions
        assumed = {} if assumptions is None else {"assumed": structs.asdict(assumptions)}
        return {
            "schema": SCHEMA,
            "trace": {
                "name": self.trace.name,
                "rows": self.trace.num_rows,
                "digest": self.trace.digest,
                **(self.trace.lineage.to_mapping() if self.trace.lineage is not None else {}),
                **assumed,
            },
            "method": {
                "confidence": self.rules.confidence,
                "margin": self.rules.margin,
                "replicates": self.replicates.count,
                "jitter": self.replicates.jitter if self.replicates.count else None,
                "jitter_seed": self.replicates.seed if self.replicates.count else None,
            },
            "baseline": self.baseline.variant.name,
            "variants": [
                {
                    "name": runs.variant.name,
                    "config": runs.variant.config.to_mapping(),
                    "options": runs.variant.options.to_mapping(),
                }
                for runs in self.runs
            ],
            "comparisons": [result.to_mapping() for result in self.results],
            "gates": [gate.to_mapping() for gate in gates],
            "passed": not any(gate.failed for gate in gates),
            "wall": [speed_of(runs) for runs in self.runs],
        }


def speed_of(runs: VariantRuns) -> dict[str, Any]:
    """How fast the replay itself was: figures of the host, not of the model."""
    wall_s = runs.wall_time_ms / 1000.0
    return {
        "variant": runs.variant.name,
        "wall_time_ms": runs.wall_time_ms,
        "requests_per_s": runs.num_requests / wall_s if wall_s > 0 else 0.0,
    }


def run_comparison(
    trace: str | os.PathLike[str],
    variants: Sequence[Variant],
    *,
    replicates: Replicates | None = None,
    rules: Rules | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run all variants and compare each with the first.

    Raises:
        UsageError, TraceError: the trace, or what a variant asks for, is refused.
        InvariantError: a run could not go on; the message names the variant.
        ReplayInterrupted: the user interrupted it.
    """
    replicates, rules = replicates or Replicates(), rules or Rules()
    held = _read_traces(trace, variants)
    if replicates.count:
        _require_jitter(held, variants)
    traces = [held[_reading(variant.options)] for variant in variants]
    variants = [_in_its_format(variant, trace) for variant, trace in zip(variants, traces, strict=True)]
    facts = traces[0].scan()
    counter = _Counter(progress, len(variants) * max(replicates.count, 1), facts.num_rows)
    runs = tuple(_runs_of(variant, trace, replicates, counter) for variant, trace in zip(variants, traces, strict=True))
    goals = any(goal is not None for goal in _goals(variants[0].options))
    results = tuple(
        compare_runs(run.variant.name, runs[0].samples, run.samples, rules, goals=goals) for run in runs[1:]
    )
    return Comparison(facts, replicates, rules, runs, results)


def _goals(options: ReplayOptions) -> tuple[float | None, ...]:
    return options.sla_ttft_ms, options.sla_itl_ms, options.sla_e2e_ms


def _reading(options: ReplayOptions) -> tuple[object, ...]:
    return (*(getattr(options, name) for name in _READING), options.replay_concurrency is not None)


def _in_its_format(variant: Variant, trace: HeldTrace) -> Variant:
    """With the format in which the trace was found to be."""
    if variant.options.trace_format != "auto":
        return variant
    options = structs.replace(variant.options, trace_format=trace.scan().format)
    return structs.replace(variant, options=options)


def _read_traces(trace: str | os.PathLike[str], variants: Sequence[Variant]) -> dict[tuple[object, ...], HeldTrace]:
    """The trace, once for each way in which the variants read it."""
    ways = {_reading(variant.options): variant.options for variant in variants}
    if len(ways) > 1 and os.fspath(trace) == "-":
        raise UsageError("standard input can be read in one way only, but the variants read the trace in several")
    held = {}
    for way, options in ways.items():
        source = trace_source(trace, options)
        try:
            held[way] = hold(source)
        finally:
            source.close()
    return held


def _require_jitter(held: dict[tuple[object, ...], HeldTrace], variants: Sequence[Variant]) -> None:
    faults = []
    for variant in variants:
        options = variant.options
        if not held[_reading(options)].can_jitter(closed_loop=options.replay_concurrency is not None):
            rule = f"nothing to jitter for {variant.name}: no gaps between arrivals count, and no think times"
            faults.append(Fault("--replicates", 0, "", "", rule))
    if faults:
        raise UsageError.of(faults)


class _Counter:
    """Progress over several replays."""

    def __init__(self, progress: Progress | None, num_runs: int, num_rows: int) -> None:
        self._progress = progress
        self._num_rows = num_rows
        self._num_total = num_runs * num_rows
        self._done = 0

    def ended(self) -> None:
        self._done += 1

    def callback(self) -> Progress | None:
        if self._progress is None:
            return None
        before, show = self._done * self._num_rows, self._progress
        return lambda rows, _, now_ms: show(before + rows, self._num_total, now_ms)


def _runs_of(variant: Variant, held: HeldTrace, replicates: Replicates, counter: _Counter) -> VariantRuns:
    samples, wall_time_ms, num_requests = [], 0.0, 0
    for number in range(max(replicates.count, 1)):
        trace = held.jittered(replicates.jitter, replicates.seed, number) if replicates.count else held
        result = _run(variant, trace, counter)
        samples.append(run_sample(result.columns, result.summary, result.facts))
        wall_time_ms += result.facts.wall_time_ms
        num_requests += result.summary["num_requests"]
    return VariantRuns(variant, tuple(samples), wall_time_ms, num_requests)


def _run(variant: Variant, trace: HeldTrace, counter: _Counter) -> ReplayResult:
    try:
        result = replay(trace, variant.config, variant.options, progress=counter.callback())
    except InvariantError as exc:
        raise InvariantError(f"variant {variant.name}: {exc}") from exc
    except UsageError as exc:
        raise UsageError(f"variant {variant.name}: {exc}") from exc
    if result.facts.interrupted:
        raise ReplayInterrupted("interrupted")
    counter.ended()
    return result
