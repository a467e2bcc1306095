"""Runs of both sides, each in a process of its own, and what they cost: the tools of `benchmarks/peer.py`.

Decides how a run is started and measured. The reference runs in the interpreter that MR_PEER_PYTHON names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

ASK = """
import json, sys
import dynamo._core as core
trace, config, records = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
kwargs = {} if records == "-" else {"capture_per_request": True, "report_jsonl_path": records}
result = core.run_mocker_trace_replay([trace], extra_engine_args=config, **kwargs)
print(json.dumps(result if isinstance(result, dict) else result.summary))
"""
# Equal to the bit in both summaries whatever the order of sums.
COMPARED = ("completed_requests", "total_output_tokens", "duration_ms", "committed_prefill_tokens", "p99_ttft_ms",
            "median_e2e_latency_ms", "prefix_cache_reused_ratio")  # fmt: skip


class NotARace(Exception):
    """The two sides did not do the same."""


@dataclass
class Run:
    """One process: what it said and what it took."""

    wall_s: float
    cpu_s: float
    max_rss_mib: float
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def simulation_ms(self) -> float:
        return float(self.summary["wall_time_ms"])


def measured(command: Sequence[str], **env: str) -> tuple[Run, str]:
    """Run a command to its end; its standard output beside what it took."""
    with tempfile.TemporaryFile() as out:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, env=os.environ | env)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 4):  # 4: some requests were refused, as on the other side
            raise NotARace(f"{command[0]} ... ended with {process.returncode}")
        out.seek(0)
        text = out.read().decode()
    return Run(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024), text


def ask_reference(trace: Path, config: dict[str, Any], *, records: bool = False) -> Run:
    """The reference on a trace, with its per-request records in a file if they are wanted."""
    python = os.environ.get("MR_PEER_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "records.jsonl") if records else "-"
        run, text = measured([python, "-c", ASK, str(trace), json.dumps(config), target], DYN_LOG="error")
    run.summary = json.loads(text)
    return run


def run_ours(trace: Path, config: dict[str, Any], *, records: bool = False, events: bool = False) -> Run:
    """The command on a trace, with records, a summary and a log of passes as they are wanted."""
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary.json"
        command = [sys.executable, "-m", "mocker_replay", "run", str(trace), "--trace-format", "mooncake", "--quiet"]
        command += ["--engine-config", json.dumps(config), "--summary", str(summary)]
        command += ["--requests", str(Path(folder) / "requests.jsonl")] if records else []
        command += ["--events", str(Path(folder) / "events.jsonl")] if events else []
        run, _ = measured(command)
        run.summary = orjson.loads(summary.read_bytes())
    return run


def require_equal(ours: Run, theirs: Run) -> None:
    """A race counts only between equal results."""
    differing = [name for name in COMPARED if ours.summary[name] != theirs.summary[name]]
    if differing:
        raise NotARace(f"{', '.join(differing)} differ")


def small_requests(path: Path, num_rows: int) -> Path:
    """A sorted trace of prompts of 128 tokens and answers of 32, a prefix shared by every eighth."""
    with path.open("w") as file:
        for row in range(num_rows):
            key = row % 8 if row % 8 == 0 else row + 8
            file.write(f'{{"timestamp":{row * 4},"input_length":128,"output_length":32,"hash_ids":[{key}]}}\n')
    return path


def repeated(path: Path, trace: Path, times: int) -> Path:
    """A trace several times over, each copy later and with hash ids of its own."""
    rows = [orjson.loads(line) for line in trace.read_bytes().splitlines()]
    span_ms = max(row["timestamp"] for row in rows) + 1
    most = max(max(row["hash_ids"], default=0) for row in rows) + 1
    with path.open("wb") as file:
        for copy in range(times):
            for row in rows:
                moved = {
                    "timestamp": row["timestamp"] + copy * span_ms,
                    "hash_ids": [key + copy * most for key in row["hash_ids"]],
                }
                file.write(orjson.dumps(row | moved, option=orjson.OPT_APPEND_NEWLINE))
    return path
