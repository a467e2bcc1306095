"""Does `mocker-replay compare` keep what its verdicts promise? A simulation with known truths.

    python benchmarks/compare_simulation.py [--pairs 1000] [--first-pair 0] [--results FILE] [--only NAME ...]

Each pair is two runs of a synthetic workload of its own, compared as the command does it. A/A pairs are runs of one
variant over different arrivals of the same rows: every verdict better or worse is false, and a pair counts as false if
any of its metrics has one. Shifted pairs are a variant and the same with all pass times 5 % longer: the pair is found
if mean e2e latency or mean TPOT comes out worse, and a verdict better on any metric is false.

An interval misses if the mean change of all pairs is not in it (0 for A/A pairs); those of replicates alone are left
out, since they are about their own trace. The mean is only one truth of many: near saturation the change itself differs
from trace to trace.

Results are kept in FILE, a line a pair, so that an interrupted run goes on where it was; the same pair gives the same
line. Prints Markdown. Exit code 1 where a line is not held.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import math
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mocker_replay.config import EngineConfig, ReplayOptions, load_engine_config
from mocker_replay.replay import replay
from mocker_replay.report.compare_metrics import RunSample, run_sample
from mocker_replay.report.compare_result import VariantResult, Verdict
from mocker_replay.report.compare_verdict import Rules, compare_runs
from mocker_replay.trace import open_trace
from mocker_replay.trace.jitter import HeldTrace, hold

FALSE_MAX = 0.05
FOUND_MIN = 0.95
SHIFT = 1.05
TRACE_BLOCK = 64
ENGINE = {"num_gpu_blocks": 4096, "max_num_seqs": 8, "max_num_batched_tokens": 2048}
LATENCY_METRICS = ("mean_e2e_latency_ms", "mean_tpot_ms")


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the result."""

    name: str
    load: str
    rate_per_s: float
    num_requests: int
    is_shifted: bool = False
    jitter: float = 0.5
    same_arrivals: bool = False  # both runs over the same jittered arrivals, as the command does it
    num_replicates: int = 1
    share_of_pairs: float = 1.0
    is_required: bool = True


def cases() -> tuple[Case, ...]:
    moderate, near = ("moderate", 8.0), ("near saturation", 11.0)
    return (
        Case("A/A", *moderate, 600),
        Case("A/A", *near, 600),
        Case("A/A, 1 200 requests, jitter 1", *moderate, 1200, jitter=1.0),
        Case("A/A, 1 200 requests, jitter 1", *near, 1200, jitter=1.0),
        Case("A/A, 8 replicates", *moderate, 600, num_replicates=8, share_of_pairs=0.2),
        Case("A/A, 8 replicates", *near, 600, num_replicates=8, share_of_pairs=0.2),
        Case("5 % longer passes", *moderate, 600, is_shifted=True, same_arrivals=True),
        Case("5 % longer passes", *near, 600, is_shifted=True, same_arrivals=True, is_required=False),
        Case("5 % longer passes, other arrivals", *moderate, 600, is_shifted=True),
        Case("5 % longer passes, other arrivals", *near, 600, is_shifted=True, is_required=False),
        Case(
            "5 % longer passes, 8 replicates", *near, 600, is_shifted=True, same_arrivals=True, num_replicates=8,
            share_of_pairs=0.2, is_required=False,
        ),
    )  # fmt: skip


def workload(case: Case, seed: int, folder: Path) -> HeldTrace:
    """Rows of skewed lengths at Poisson arrivals, some of them with shared prefixes."""
    rng = random.Random(f"{case.load} {case.num_requests} {seed}")
    now_ms, path = 0.0, folder / "trace.jsonl"
    with path.open("w") as file:
        for number in range(case.num_requests):
            input_tokens = min(int(rng.lognormvariate(6.0, 0.8)) + 16, 4000)
            output_tokens = min(int(rng.lognormvariate(4.0, 0.7)) + 2, 400)
            group = rng.randrange(8)
            num_blocks = -(-input_tokens // TRACE_BLOCK)
            shared = min(num_blocks - 1, 2)
            hash_ids = [group * 4 + i for i in range(shared)] + [
                1000 + number * 100 + i for i in range(num_blocks - shared)
            ]
            row = {"timestamp": round(now_ms, 3), "input_length": input_tokens, "output_length": output_tokens}
            file.write(json.dumps(row | {"hash_ids": hash_ids}) + "\n")
            now_ms += rng.expovariate(case.rate_per_s / 1000.0)
    source = open_trace(path, trace_block_size=TRACE_BLOCK)
    try:
        return hold(source)
    finally:
        source.close()


OPTIONS = ReplayOptions(trace_block_size=TRACE_BLOCK)


def engine(scale: float = 1.0) -> EngineConfig:
    return load_engine_config({"engine": {**ENGINE, "speedup_ratio": 1.0 / scale}})


def sample(trace: HeldTrace, config: EngineConfig) -> RunSample:
    result = replay(trace, config, OPTIONS)
    return run_sample(result.columns, result.summary, result.facts)


def one_pair(case: Case, pair: int, folder: Path) -> VariantResult:
    trace = workload(case, pair, folder)
    slow = engine(SHIFT if case.is_shifted else 1.0)
    runs = range(case.num_replicates)
    baseline = [sample(trace.jittered(case.jitter, 2 * pair, run), engine()) for run in runs]
    seed = 2 * pair + (not case.same_arrivals)
    variant = [sample(trace.jittered(case.jitter, seed, run), slow) for run in runs]
    return compare_runs("variant", baseline, variant, Rules())


def told(case: Case, pair: int, result: VariantResult) -> dict[str, Any]:
    """What is kept of a pair."""
    return {
        "case": case.name,
        "load": case.load,
        "pair": pair,
        "verdicts": {m.name: m.verdict.value for m in result.metrics},
        "relative": {m.name: m.relative for m in result.metrics},
        "interval": {m.name: m.interval for m in result.metrics},
        "basis": {m.name: m.basis.value for m in result.metrics},
        "blocks": {m.name: m.num_blocks for m in result.metrics},
    }


def key_of(found: Mapping[str, Any]) -> tuple[str, str, int]:
    return found["case"], found["load"], found["pair"]


def simulate(chosen: Sequence[Case], first_pair: int, pairs: int, path: Path) -> list[dict[str, Any]]:
    """All pairs from a number on, which is their seed; those that are in the file already as they are there."""
    known = {}
    if path.exists():
        known = {key_of(line): line for line in map(json.loads, path.read_text().splitlines())}
    with path.open("a") as file, tempfile.TemporaryDirectory() as folder:
        for case in chosen:
            for pair in range(first_pair, first_pair + num_pairs(case, pairs)):
                if (case.name, case.load, pair) not in known:
                    line = told(case, pair, one_pair(case, pair, Path(folder)))
                    known[key_of(line)] = line
                    file.write(json.dumps(line) + "\n")
                    file.flush()
            print(f"{case.name}, {case.load}: done", file=sys.stderr)
    return [
        line
        for case in chosen
        for line in known.values()
        if (line["case"], line["load"]) == (case.name, case.load)
        and 0 <= line["pair"] - first_pair < num_pairs(case, pairs)
    ]


def num_pairs(case: Case, pairs: int) -> int:
    return math.ceil(pairs * case.share_of_pairs)


def lines(chosen: Sequence[Case], found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, bool]]:
    """A row of the table for each case, and whether the case holds its line."""
    for case in chosen:
        own = [line for line in found if (line["case"], line["load"]) == (case.name, case.load)]
        false = [line for line in own if is_false(case, line)]
        share = len(false) / len(own)
        truth = true_changes(own) if case.is_shifted else {}
        words = collections.Counter(line["verdicts"]["mean_e2e_latency_ms"] for line in own)
        e2e = ", ".join(f"{word} {words[word] / len(own):.1%}" for word in map(str, Verdict) if words[word])
        if case.is_shifted:
            found_any = sum(any(line["verdicts"][n] == "worse" for n in LATENCY_METRICS) for line in own) / len(own)
            tpot = sum(line["verdicts"]["mean_tpot_ms"] == "worse" for line in own) / len(own)
            text = f"found {found_any:.1%} (TPOT {tpot:.1%})"
            holds = share <= FALSE_MAX and (found_any >= FOUND_MIN or not case.is_required)
        else:
            text, holds = "", share <= FALSE_MAX
        missed = sum(misses(line, truth) for line in own) / len(own)
        yield f"| {case.name} | {case.load} | {len(own):,} | {share:.1%} | {missed:.1%} | {text} | {e2e} |", holds


def is_false(case: Case, line: Mapping[str, Any]) -> bool:
    """A verdict that the truth denies."""
    wrong = ("better",) if case.is_shifted else ("better", "worse")
    return any(verdict in wrong for verdict in line["verdicts"].values())


def true_changes(own: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean relative change of each metric that has one in all pairs."""
    columns = {name: [line["relative"][name] for line in own] for name in own[0]["relative"]}
    return {name: math.fsum(c) / len(c) for name, c in columns.items() if all(change is not None for change in c)}


def misses(line: Mapping[str, Any], truth: Mapping[str, float]) -> bool:
    """Whether any interval of a pair lies beside the truth."""
    for name, interval in line["interval"].items():
        if interval is not None and line["basis"][name] in ("blocks", "both"):
            low, high = interval
            if not low - 1e-9 <= truth.get(name, 0.0) <= high + 1e-9 and line["relative"][name] is not None:
                return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--first-pair", type=int, default=0, help="other workloads than those from 0 on")
    parser.add_argument("--results", type=Path, default=Path("compare_simulation.jsonl"))
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names or loads of cases")
    given = parser.parse_args()
    chosen = [case for case in cases() if all(part in f"{case.name}, {case.load}" for part in given.only)]
    found = simulate(chosen, given.first_pair, given.pairs, given.results)
    print("| pairs | load | number | false verdicts | an interval misses | shift | mean e2e latency |")
    print("|---|---|--:|--:|--:|---|---|")
    all_hold = True
    for text, holds in lines(chosen, found):
        print(text if holds else f"{text} **not held**")
        all_hold &= holds
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
