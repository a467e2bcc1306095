"""The public Mooncake traces: which configurations are compared, and the digest of a run's figures.

A digest covers every figure of every request, so equal digests mean equal runs. Rows that arrive together come in
no fixed order from the reference; records are therefore sorted by all their figures before they are hashed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("public_traces.json")
TRACES = ("mooncake-conversation", "mooncake-synthetic")
BLOCK_SIZES = (16, 64, 512)
POOL_TOKENS = (8_388_608, 1_048_576, 163_840)  # never, sometimes, often preempting on the conversation trace
FIGURES = (
    "arrival_time_ms",
    "first_admit_ms",
    "first_token_ms",
    "last_token_ms",
    "terminal_time_ms",
    "ttft_ms",
    "ttst_ms",
    "itl_ms",
    "e2e_latency_ms",
    "input_length",
    "requested_output_length",
    "output_length",
    "reused_input_tokens",
    "admission_count",
    "readmission_count",
    "terminal_status",
    "decode_worker_idx",
)


@dataclass(frozen=True)
class Setting:
    """One run of one trace."""

    trace: str
    block_size: int
    pool_tokens: int
    prefix_caching: bool
    num_workers: int

    @property
    def name(self) -> str:
        caching = "caching" if self.prefix_caching else "no-caching"
        return f"{self.trace}-bs{self.block_size}-pool{self.pool_tokens}-{caching}-w{self.num_workers}"

    @property
    def config(self) -> dict[str, Any]:
        engine = {
            "block_size": self.block_size,
            "num_gpu_blocks": self.pool_tokens // self.block_size,
            "enable_prefix_caching": self.prefix_caching,
        }
        return {"engine": engine}

    @property
    def args(self) -> dict[str, Any]:
        return {"trace_block_size": 512, "num_workers": self.num_workers}


def settings() -> list[Setting]:
    grid = itertools.product(TRACES, BLOCK_SIZES, POOL_TOKENS, (True, False), (1, 4))
    return [Setting(*values) for values in grid]


def fingerprint(records: Iterable[Mapping[str, Any]], summary: Mapping[str, Any]) -> dict[str, Any]:
    """The digest of all figures and some plain sums that tell at a glance what differs."""
    from blake3 import blake3

    records = list(records)
    lines = []
    for record in records:
        admissions = [[a["at_ms"], a["reused_input_tokens"]] for a in record["admission_history"]]
        lines.append(json.dumps([*(record[name] for name in FIGURES), admissions]))
    hasher = blake3()
    for line in sorted(lines):
        hasher.update(line.encode())
    return {
        "digest": hasher.hexdigest(),
        "num_records": len(records),
        "output_tokens": sum(r["output_length"] for r in records),
        "readmissions": sum(r["readmission_count"] for r in records),
        "reused_tokens": sum(r["reused_input_tokens"] for r in records),
        "rejected": sum(r["terminal_status"] == "rejected" for r in records),
        "committed_prefill_tokens": summary["committed_prefill_tokens"],
        "duration_ms": summary["duration_ms"],
    }
