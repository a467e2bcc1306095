"""The differential fuzzer: random cases through a subject and the reference wheel.

    python -m tests.fuzz.peer --cases 5000 --seed 1
    python -m tests.fuzz.peer --cases 1000 --traces graphs
    python -m tests.fuzz.peer --cases 1000 --traces weka

Needs the wheel (`pip install '.[peer]'`, or MR_PEER_PYTHON naming an interpreter that has it). Ends with 1 when a
case differs; each such case is shrunk and written to the folder given by `--failures`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.agents import RECORDINGS, judge_recording
from tests.fuzz.deltas import make_delta_case
from tests.fuzz.disaggregated import (
    make_disaggregated_case,
    make_disaggregated_shared_tier_case,
    make_disaggregated_tier_case,
)
from tests.fuzz.generate import make_case, make_shared_tier_case, make_tier_case
from tests.fuzz.graphs import make_graph_case
from tests.fuzz.minimise import as_json, minimise
from tests.fuzz.routed import has_ties, make_routed_case, make_routed_pools_case
from tests.fuzz.sglang import make_sglang_case, make_sglang_pools_case
from tests.fuzz.trtllm import make_trtllm_case
from tests.fuzz.verdict import Kind, Runner, Verdict, judge
from tests.fuzz.wheel import WHY_MISSING, Wheel, peer_python
from tests.parity.cases import Case
from tests.parity.runners import RUNNERS

MakeCase = Callable[[int], Case]
MAKERS: dict[str, MakeCase] = {
    "mooncake": make_case,
    "graphs": make_graph_case,
    "deltas": make_delta_case,
    "disaggregated": make_disaggregated_case,
    "disaggregated-tier": make_disaggregated_tier_case,
    "disaggregated-shared-tier": make_disaggregated_shared_tier_case,
    "disaggregated-router": make_routed_pools_case,
    "router": make_routed_case,
    "host-tier": make_tier_case,
    "shared-tier": make_shared_tier_case,
    "trtllm": make_trtllm_case,
    "sglang": make_sglang_case,
    "sglang-pools": make_sglang_pools_case,
    **RECORDINGS,
}
PROGRESS_EVERY = 500
PASSES_EVERY = 4  # every so many cases the forward-pass records are compared too


def run_seed(seed: int, runner: Runner, wheel: Wheel, make: MakeCase = make_case) -> tuple[Case, Verdict]:
    case = make(seed)
    if case.format in RECORDINGS:
        return case, judge_recording(case, wheel)
    return case, judge(case, runner, wheel, with_passes=_with_passes(case, seed))


def _with_passes(case: Case, seed: int) -> bool:
    """Now and then; of two pools not at all, nor where it takes a second run in which the wheel draws anew."""
    return seed % PASSES_EVERY == 0 and "prefill" not in case.config and not has_ties(case)


def report_failure(case: Case, verdict: Verdict, seed: int, runner: Runner, wheel: Wheel, folder: Path) -> Path:
    """Shrink a differing case and keep it; one on which the wheel never ends is kept as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case.name}.json"
    if verdict.kind is Kind.ENDLESS or case.format in RECORDINGS or "SubjectTimeout" in verdict.differences[0]:
        path.write_text(as_json(case, verdict.differences))
        return path
    with_passes = _with_passes(case, seed)

    def fails(smaller: Case) -> bool:
        verdict = judge(smaller, runner, wheel, with_passes)
        return verdict.kind in (Kind.COMPARED, Kind.STUCK) and bool(verdict.differences)

    small = minimise(case, fails) if fails(case) else case
    path.write_text(as_json(small, judge(small, runner, wheel, with_passes).differences))
    return path


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.peer", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1, help="seeds are SEED*1000000 and the numbers after it")
    parser.add_argument("--subject", choices=sorted(RUNNERS), default="product")
    parser.add_argument("--failures", type=Path, default=Path("build/fuzz-failures"))
    parser.add_argument("--traces", choices=sorted(MAKERS), default="mooncake", help="what kind of traces")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the fifth difference")
    parser.add_argument("--timeout-s", type=float, default=20.0, help="limit for one run of the wheel")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse_args(argv)
    python = peer_python()
    if python is None:
        print(WHY_MISSING, file=sys.stderr)
        return 2
    runner = RUNNERS[options.subject]
    make = MAKERS[options.traces]
    kinds: Counter[str] = Counter()
    differing = 0
    started = time.monotonic()
    with Wheel(python, options.timeout_s) as wheel:
        for seed in range(options.seed * 1_000_000, options.seed * 1_000_000 + options.cases):
            case, verdict = run_seed(seed, runner, wheel, make)
            kinds[verdict.kind.value] += 1
            if verdict.differences:
                differing += 1
                path = report_failure(case, verdict, seed, runner, wheel, options.failures)
                print(f"{case.name} differs ({path}): {verdict.differences[0]}", flush=True)
                if differing == 5 and not options.keep_going:
                    break
            if sum(kinds.values()) % PROGRESS_EVERY == 0:
                print(f"{sum(kinds.values())} cases so far, {differing} differ", flush=True)
    seconds = time.monotonic() - started
    print(f"{sum(kinds.values())} cases, {differing} differ; {dict(kinds)}; {seconds:.0f} s")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
