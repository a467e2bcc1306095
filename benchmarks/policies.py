"""What a policy costs: replays of one trace under policies, beside first come, first served, in one run.

    python benchmarks/policies.py [TRACE] [--runs 7] [--num-workers 1] [--num-gpu-blocks 16384]

Policies that make another timeline are compared by CPU time a pass; `priority` and `edf` on a trace without priorities
and deadlines, and the policies in Python that answer as the engine would, make the same timeline, so there it is the
cost alone. Prints Markdown: the median of the ratios, each to a run of fcfs just before it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mocker_replay.config import ReplayOptions
from mocker_replay.policies import Policy, RankFacts, RequestFacts
from mocker_replay.replay import replay
from mocker_replay.trace import open_trace

SHIPPED = Path(__file__).parents[1] / "traces" / "chat-shared-prefix.jsonl"


class Order(Policy):
    """Asked once a request, when it begins to wait."""

    def order_key(self, request: RequestFacts, rank: RankFacts) -> float:
        return 0.0


class All(Order):
    """Asked for everything: each pass, each admission, each preemption."""

    def choose_victim(self, running: Sequence[RequestFacts], rank: RankFacts) -> int:
        return len(running) - 1

    def may_admit(self, request: RequestFacts, rank: RankFacts) -> bool:
        return True

    def token_budget(self, rank: RankFacts) -> int:
        return rank.max_num_batched_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description="What a policy costs.")
    parser.add_argument("trace", nargs="?", default=str(SHIPPED))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--num-workers", type=int, default=1)
    parser.add_argument("--num-gpu-blocks", type=int, default=16384)
    given = parser.parse_args()
    config = {"engine": {"num_gpu_blocks": given.num_gpu_blocks}}

    def cpu_us_a_pass(policy: str | Policy) -> float:
        options: dict[str, Any] = {"policy": policy} if isinstance(policy, str) else {}
        with open_trace(given.trace) as source:
            source.scan()
            started_s = time.process_time()
            result = replay(
                source, config, ReplayOptions(num_workers=given.num_workers, **options),
                policy=None if isinstance(policy, str) else policy,
            )  # fmt: skip
            return 1e6 * (time.process_time() - started_s) / int(result.summary["passes"])

    policies: dict[str, Callable[[], str | Policy]] = {
        name: (lambda name=name: name) for name in ("sjf", "lpm", "priority", "edf")
    } | {"Python, order": Order, "Python, all hooks": All}
    print(f"{Path(given.trace).name}, {given.num_workers} workers of {given.num_gpu_blocks} blocks\n")
    print("| policy | fcfs [us CPU a pass] | policy [us CPU a pass] | ratio |\n|---|--:|--:|--:|")
    for name, make in policies.items():
        pairs = [(cpu_us_a_pass("fcfs"), cpu_us_a_pass(make())) for _ in range(given.runs)]
        base, cost = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"| {name} | {base:.3f} | {cost:.3f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
