"""Side by side with the reference on one trace: equal results first, then the ratio of the simulation times.

    python benchmarks/peer.py TRACE [--block-size 64] [--num-gpu-blocks 16384] [--pairs 5]

Runs both alternately on this machine and prints one line of Markdown per configuration: median of each side, their
ratio, and the spread of the ratios of the pairs. The reference runs in the interpreter that MR_PEER_PYTHON names
(`pip install '.[peer]'` there); it is asked for its own `wall_time_ms`, ours is the field of the same name.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

from mocker_replay.config import ReplayOptions
from mocker_replay.replay import replay

ASK = """
import json, sys
import dynamo._core as core
trace, config = sys.argv[1], json.loads(sys.argv[2])
result = core.run_mocker_trace_replay([trace], extra_engine_args=config)
print(json.dumps(result if isinstance(result, dict) else result.summary))
"""
# Equal to the bit in both summaries whatever the order of sums.
COMPARED = ("completed_requests", "total_output_tokens", "duration_ms", "committed_prefill_tokens", "p99_ttft_ms",
            "median_e2e_latency_ms", "prefix_cache_reused_ratio")  # fmt: skip


def ask_reference(python: str, trace: str, config: dict[str, object]) -> dict[str, float]:
    command = [python, "-c", ASK, trace, json.dumps(config)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    summary: dict[str, float] = json.loads(done.stdout)
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trace")
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--num-gpu-blocks", type=int, default=16_384)
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    python = os.environ.get("MR_PEER_PYTHON", sys.executable)
    config = {"engine": {"block_size": args.block_size, "num_gpu_blocks": args.num_gpu_blocks}}
    ours, theirs = [], []
    for _ in range(args.pairs):
        expected = ask_reference(python, args.trace, config)
        found = replay(args.trace, config, ReplayOptions()).summary
        differing = [name for name in COMPARED if found[name] != expected[name]]
        if differing:
            print(f"not a race: {', '.join(differing)} differ", file=sys.stderr)
            return 1
        theirs.append(expected["wall_time_ms"])
        ours.append(found["wall_time_ms"])
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    print("| block size | blocks | ours [ms] | reference [ms] | ratio of medians | ratios of pairs |")
    print("|---|---|---|---|---|---|")
    medians = statistics.median(ours), statistics.median(theirs)
    print(
        f"| {args.block_size} | {args.num_gpu_blocks} | {medians[0]:.0f} | {medians[1]:.0f} "
        f"| {medians[1] / medians[0]:.1f} | {min(ratios):.1f} to {max(ratios):.1f} |"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
