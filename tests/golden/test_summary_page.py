"""The summary page at 100 columns, byte for byte. `GOLDEN_UPDATE=1` writes the files anew."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from mocker_replay.report.facts import RunFacts
from mocker_replay.report.render import render_summary

GOLDEN = Path(__file__).parent / "summary_page"

ENGINE: dict[str, Any] = {
    "backend": "vllm",
    "num_gpu_blocks": 16384,
    "block_size": 64,
    "max_model_len": None,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
    "speedup_ratio": 1.0,
    "decode_speedup_ratio": 1.0,
    "aic_nextn": None,
    "preemption_mode": "lifo",
    "timing_model": {"type": "polynomial"},
}
FACTS = RunFacts(
    config={"engine": ENGINE},
    options={"router_mode": "round_robin", "arrival_speedup_ratio": 1.0, "replay_concurrency": None},
    trace_name="conversation.jsonl",
    trace_format="mooncake",
    trace_rows=12031,
    trace_digest="3f2a91c07be4" + "0" * 52,
    timestamp_unit="ms",
    trace_block_size=512,
    trace_span_ms=3_536_999.0,
    num_workers=4,
    dp_size=1,
    tensor_parallel_size=2,
    wall_time_ms=612.5,
    worker_seconds=14_200.25,
    end_ms=3_550_062.5,
)


def summary(facts: RunFacts, **changes: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "num_requests": 12031,
        "completed_requests": 12031,
        "rejected_requests": 0,
        "failed_requests": 0,
        "cancelled_requests": 0,
        "cut_requests": 0,
        "failure_reasons": {},
        "request_throughput_rps": 3.389,
        "input_throughput_tok_s": 40798.25,
        "output_throughput_tok_s": 1163.4,
        "mean_output_token_throughput_per_user": 71.234,
        "median_output_token_throughput_per_user": 73.5,
        "prefix_cache_reused_ratio": 0.3987,
        "first_admission_prefix_cache_reused_ratio": 0.391,
        "preemptions": 0,
        "avg_accept_length": 1.0,
        "decode_worker_seconds": facts.worker_seconds,
        "gpu_hours": 7.889,
        "passes": 812345,
        "wall_time_ms": facts.wall_time_ms,
        "end_ms": facts.end_ms,
        "processed_tokens_per_s": 243_210_987.6,
        "virtual_to_wall_ratio": facts.end_ms / facts.wall_time_ms,
    }
    for i, name in enumerate(("ttft_ms", "tpot_ms", "itl_ms", "e2e_latency_ms")):
        for j, statistic in enumerate(("mean", "median", "p90", "p95", "p99", "max")):
            figures[f"{statistic}_{name}"] = (1234.567, 14.5, 0.25, 98765.4321)[i] * (1 + j) / 2
    return figures | changes


def page(figures: dict[str, Any], facts: RunFacts, **console: Any) -> str:
    out = io.StringIO()
    render_summary(figures, facts, Console(file=out, width=100, **console))
    return out.getvalue()


CUT = structs.replace(
    FACTS,
    config={
        "engine": ENGINE
        | {
            "enable_chunked_prefill": False,
            "max_model_len": 32768,
            "max_num_seqs": None,
            "aic_nextn": 2,
            "decode_speedup_ratio": 1.5,
            "timing_model": {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 1.5},
        }
    },
    options={"replay_concurrency": 32, "max_sim_time_ms": 60_000.0},
    trace_name="bursts.jsonl",
    trace_span_ms=412.5,
    num_workers=1,
    tensor_parallel_size=1,
    cut=True,
    interrupted=True,
    end_ms=41_234.5,
    sla_ttft_ms=500.0,
    sla_itl_ms=30.0,
    warnings=("all 12,031 rows lie within 412.5 ms: are the timestamps in seconds?",),
)
PAGES = {
    "complete": (summary(FACTS), FACTS),
    "cut": (
        summary(
            CUT,
            num_requests=900,
            completed_requests=850,
            rejected_requests=7,
            failed_requests=2,
            cancelled_requests=1,
            cut_requests=40,
            failure_reasons={"prompt_over_model_len": 7, "growth_over_pool": 2},
            preemptions=1234,
            avg_accept_length=1.8512,
            goodput_completed_requests=700,
            goodput_request_throughput_rps=17.1,
            goodput_output_throughput_tok_s=1710.25,
        ),
        CUT,
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_page_is_stable(name: str) -> None:
    shown = page(*PAGES[name])
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN_UPDATE") == "1":
        path.write_text(shown)
    assert shown == path.read_text()


@pytest.mark.parametrize("name", PAGES)
def test_page_fits_100_columns_and_is_plain_text(name: str) -> None:
    shown = page(*PAGES[name])
    assert max(map(len, shown.splitlines())) <= 100
    assert shown.isascii()
    assert "\x1b" not in shown
    assert not any(line.endswith(" ") for line in shown.splitlines())


def test_a_terminal_gets_colours() -> None:
    assert "\x1b[" in page(*PAGES["complete"], force_terminal=True, color_system="standard")


def test_a_narrow_window_wraps_and_loses_nothing() -> None:
    wide = page(*PAGES["cut"]).split()
    out = io.StringIO()
    render_summary(*PAGES["cut"], Console(file=out, width=60))
    setup = out.getvalue().split("ms  ")[0]
    assert max(map(len, setup.splitlines())) <= 60
    assert out.getvalue().split() == wide


def test_markup_in_a_trace_name_is_shown_as_it_is() -> None:
    facts = structs.replace(FACTS, trace_name="[red]x[/].jsonl")
    assert "[red]x[/].jsonl" in page(summary(facts), facts)


def test_rich_is_needed_by_render_alone() -> None:
    code = (
        "import sys; from mocker_replay.report import facts, metrics, records, summary, telemetry; "
        "sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
