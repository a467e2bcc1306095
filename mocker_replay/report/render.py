"""The summary as a page for people, at most 100 columns wide.

Decides what is shown, in which order and how numbers are rounded for the eye. Never computes a figure: all come from
the summary and the facts. This is the only module of the package that needs Rich.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from mocker_replay.report.facts import REASON_TEXTS, RunFacts
from mocker_replay.report.render_realtime import realtime_lines

_WIDTH: Final = 100
_LABEL_WIDTH: Final = 13
_LATENCIES: Final = (
    ("TTFT", "ttft_ms", "to first token"),
    ("TPOT", "tpot_ms", "mean gap"),
    ("ITL", "itl_ms", "every gap"),
    ("E2E", "e2e_latency_ms", "to last token"),
)
_PLAY_LATENCY: Final = ("PLAY", "trajectory_e2e_latency_ms", "whole plays")
_COLUMNS: Final = (("mean", "mean"), ("p50", "median"), ("p90", "p90"), ("p95", "p95"), ("p99", "p99"), ("max", "max"))

Line = tuple[str | None, str, str]  # label (None: the text begins at the margin), text, style of the text


def render_summary(summary: dict[str, Any], facts: RunFacts, console: Console) -> None:
    """Print what ran, how long requests took, what came out, and how fast the replay itself was."""
    width = min(console.width, _WIDTH)
    lines = [
        Text("Replay of ", style="bold").append(facts.trace_name, style="cyan"),
        *_wrapped(_notices(summary, facts), width),
        *_wrapped(_setup_lines(summary, facts), width),
        Text(),
        *_latency_lines(summary),
        Text(),
        *_wrapped(_result_lines(summary, facts), width),
        *(realtime_lines(summary["realtime"]) if "realtime" in summary else ()),
    ]
    for line in lines:
        console.print(line, soft_wrap=True)


def _wrapped(lines: Iterator[Line], width: int) -> Iterator[Text]:
    """Label and text side by side; a text too long goes on below itself, and nothing is cut off."""
    for label, text, style in lines:
        room = max(width - (_LABEL_WIDTH if label is not None else 0), 20)
        for i, part in enumerate(textwrap.wrap(text, room, break_on_hyphens=False)):
            margin = "" if label is None else (label if i == 0 else "").ljust(_LABEL_WIDTH)
            yield Text(margin, style="dim").append(part, style=style or "not dim")


def _notices(summary: dict[str, Any], facts: RunFacts) -> Iterator[Line]:
    if facts.cut:
        yield None, _cut_text(summary, facts), "not dim bold yellow"
    for warning in facts.warnings:
        yield None, f"warning: {warning}", "not dim yellow"


def _cut_text(summary: dict[str, Any], facts: RunFacts) -> str:
    cause = "interrupted" if facts.interrupted else "time limit reached"
    return (
        f"CUT: {cause} at {_time(facts.end_ms)}, {summary['cut_requests']:,} of {summary['num_requests']:,} arrived"
        " requests had not ended; all figures below are partial"
    )


def _setup_lines(summary: dict[str, Any], facts: RunFacts) -> Iterator[Line]:
    engine = facts.config.get("engine", {})
    yield (
        "trace",
        f"{facts.trace_rows:,} rows, {facts.trace_format}, span {_time(facts.trace_span_ms)}, "
        f"digest {facts.trace_digest[:12]}",
        "",
    )
    if facts.trace_transforms:
        yield "transforms", " ".join(facts.trace_transforms), ""
    yield (
        "assumed",
        _assumed(facts),
        "",
    )
    yield "arrivals", _arrivals(facts), ""
    yield from _worker_lines(facts)
    yield (
        "engine",
        f"{engine.get('backend')}, {engine.get('num_gpu_blocks'):,} blocks of {engine.get('block_size'):,} tokens per "
        f"rank, prefix caching {_switch(engine, 'enable_prefix_caching')}, "
        f"chunked prefill {_switch(engine, 'enable_chunked_prefill')}, preemption {engine.get('preemption_mode')}",
        "",
    )
    limits = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
    yield "limits", ", ".join(f"{name} {_limit(engine.get(name))}" for name in limits), ""
    yield "timing", _timing(engine), ""
    if facts.options.get("policy", "fcfs") != "fcfs":
        yield "policy", _policy(facts, summary), ""


def _worker_lines(facts: RunFacts) -> Iterator[Line]:
    """Who worked; the engine told below is that of the decode workers."""
    gpus = facts.tensor_parallel_size * facts.dp_size
    decode = f"{_count(facts.num_workers, 'worker')} of {_count(facts.dp_size, 'rank')} and {_count(gpus, 'GPU')}, "
    decode += str(facts.options.get("router_mode", "round_robin"))
    if facts.prefill is None:
        yield "workers", decode, ""
        return
    engine = facts.prefill.config["engine"]
    yield (
        "prefill",
        f"{_count(facts.prefill.num_workers, 'worker')} of {_count(facts.prefill.dp_size, 'rank')} and "
        f"{_count(facts.prefill.gpus_per_worker, 'GPU')}, {engine['num_gpu_blocks']:,} blocks per rank",
        "",
    )
    yield "decode", decode, ""


def _assumed(facts: RunFacts) -> str:
    unit = "timestamps in " + facts.timestamp_unit
    if facts.timestamp_unit == "datetime":
        unit = "dates and times exact to 100 ns"
    has_ids = facts.trace_assumed is None or facts.trace_assumed["estimate_prefix"] is None
    blocks = f"{'hash ids' if has_ids else 'blocks'} of {facts.trace_block_size:,} tokens"
    return "; ".join((f"{unit}, {blocks}", *facts.trace_assumed_texts))


def _policy(facts: RunFacts, summary: dict[str, Any]) -> str:
    options = "".join(f" {key}={value}" for key, value in facts.options.get("policy_options", {}).items())
    counts = summary.get("policy_decisions", {})
    told = ", ".join(f"{number:,} {kind}" for kind, number in counts.items() if number) or "none"
    return f"{facts.options['policy']}{options}; decisions other than first come, first served: {told}"


def _arrivals(facts: RunFacts) -> str:
    concurrency = facts.options.get("replay_concurrency")
    limit_ms = facts.options.get("max_sim_time_ms")
    lanes = facts.options.get("agentic_lanes")
    if lanes is not None:
        text = f"{_count(lanes, 'lane')} of plays, one after another, at {_ratio(facts)}x the recorded rate"
    elif concurrency is not None:
        text = f"closed loop, {_count(concurrency, 'session')} at a time"
    else:
        text = f"open loop at {_ratio(facts)}x the recorded rate"
    return text if limit_ms is None else f"{text}, up to {_time(limit_ms)}"


def _ratio(facts: RunFacts) -> str:
    return f"{facts.options.get('arrival_speedup_ratio', 1.0):g}"


def _timing(engine: dict[str, Any]) -> str:
    model = engine.get("timing_model") or {}
    parts = [str(model.get("type", "polynomial"))]
    parts += [f"{name} {model[name]:g}" for name in ("prefill_ms", "decode_ms") if model.get(name) is not None]
    for name in ("speedup_ratio", "decode_speedup_ratio"):
        if engine.get(name, 1.0) != 1.0:
            parts.append(f"{name} {engine[name]:g}")
    if engine.get("aic_nextn"):
        parts.append(f"{_count(engine['aic_nextn'], 'speculative token')}")
    return ", ".join(parts)


def _latency_lines(summary: dict[str, Any]) -> Iterator[Text]:
    shown = (*_LATENCIES, _PLAY_LATENCY) if summary.get("completed_trajectories") else _LATENCIES
    rows = {label: [summary[f"{name}_{field}"] for _, name in _COLUMNS] for label, field, _ in shown}
    cells = {label: [_rounded(value, max(values)) for value in values] for label, values in rows.items()}
    width = max(11, *(2 + len(cell) for row in cells.values() for cell in row))
    yield Text("ms".ljust(_LABEL_WIDTH - 2) + "".join(header.rjust(width) for header, _ in _COLUMNS), style="bold")
    for label, _, meaning in shown:
        numbers = "".join(cell.rjust(width) for cell in cells[label])
        yield (
            Text(label.ljust(_LABEL_WIDTH - 2), style="bold")
            .append(numbers, style="not bold")
            .append(f"  {meaning}" if _LABEL_WIDTH + 6 * width + len(meaning) <= _WIDTH else "", style="not bold dim")
        )


def _rounded(value: float, largest: float) -> str:
    """Digits that tell the values of one row apart: four decimals below 1 ms, none from 100 s on."""
    decimals = 4 if largest < 1.0 else 2 if largest < 100_000.0 else 0
    return f"{value:,.{decimals}f}"


def _result_lines(summary: dict[str, Any], facts: RunFacts) -> Iterator[Line]:
    yield from _ending_lines(summary)
    if "agentic_play_outcomes" in summary:
        yield "plays", _plays(summary), ""
    yield (
        "throughput",
        f"{summary['request_throughput_rps']:,.2f} requests/s, "
        f"{summary['input_throughput_tok_s']:,.1f} input tokens/s, "
        f"{summary['output_throughput_tok_s']:,.1f} output tokens/s",
        "",
    )
    yield (
        "per user",
        f"{summary['mean_output_token_throughput_per_user']:,.2f} output tokens/s mean, "
        f"{summary['median_output_token_throughput_per_user']:,.2f} p50",
        "",
    )
    if facts.has_sla:
        yield "goodput", _goodput(summary, facts), "not dim bold"
    yield (
        "cache",
        f"{_percent(summary['prefix_cache_reused_ratio'])} of prompt tokens reused, "
        f"{_percent(summary['first_admission_prefix_cache_reused_ratio'])} at first admission",
        "",
    )
    if "first_admission_host_reused_input_tokens" in summary:
        yield "host tier", _host_tier(summary), ""
    yield "preemptions", f"{summary['preemptions']:,}", "not dim yellow" if summary["preemptions"] else ""
    if facts.config.get("engine", {}).get("aic_nextn") and summary["avg_accept_length"] is not None:
        yield "speculation", f"{summary['avg_accept_length']:.3f} tokens accepted per request and decode pass", ""
    seconds = f"{summary['decode_worker_seconds']:,.2f} worker seconds"
    if facts.prefill is not None:
        seconds = f"{summary['prefill_worker_seconds']:,.2f} prefill and {seconds[:-15]} decode worker seconds"
    yield "resources", f"{seconds}, {summary['gpu_hours']:,.4f} GPU hours", ""
    if "realtime" not in summary:
        yield "replay", _speed(summary), "not dim green"


def _plays(summary: dict[str, Any]) -> str:
    ends = [outcome["status"] for outcome in summary["agentic_play_outcomes"]]
    counts = ((name, ends.count(name)) for name in ("completed", "failed", "incomplete"))
    return f"{len(ends):,}: " + ", ".join(f"{number:,} {name}" for name, number in counts if number)


def _ending_lines(summary: dict[str, Any]) -> Iterator[Line]:
    parts = [f"{summary['num_requests']:,} arrived", f"{summary['completed_requests']:,} completed"]
    for name in ("rejected", "failed", "cancelled", "cut"):
        if summary[f"{name}_requests"]:
            parts.append(f"{summary[f'{name}_requests']:,} {name}")
    yield "requests", ", ".join(parts), ""
    if summary.get("skipped_requests"):
        yield "", f"{summary['skipped_requests']:,} never arrived: their plays had failed", "not dim red"
    for reason, count in summary["failure_reasons"].items():
        yield "", f"{count:,} x {REASON_TEXTS[reason]}", "not dim red"


def _host_tier(summary: dict[str, Any]) -> str:
    return (
        f"{summary['first_admission_host_reused_input_tokens']:,} prompt tokens reused from it, "
        f"{summary['first_admission_g1_reused_input_tokens']:,} from the device; blocks: "
        f"{summary['host_stored_blocks']:,} stored, {summary['host_loaded_blocks']:,} loaded, "
        f"{summary['host_evicted_blocks']:,} evicted; {_count(summary['host_fenced_passes'], 'pass', 'passes')} held up"
    )


def _goodput(summary: dict[str, Any], facts: RunFacts) -> str:
    bounds = (("TTFT", facts.sla_ttft_ms), ("ITL", facts.sla_itl_ms), ("E2E", facts.sla_e2e_ms))
    asked = ", ".join(f"{name} <= {bound:g} ms" for name, bound in bounds if bound is not None)
    good, completed = summary["goodput_completed_requests"], summary["completed_requests"]
    share = f" ({_percent(good / completed)})" if completed else ""
    return (
        f"{good:,} of {completed:,} completed{share} with {asked}: "
        f"{summary['goodput_request_throughput_rps']:,.2f} requests/s, "
        f"{summary['goodput_output_throughput_tok_s']:,.1f} output tokens/s"
    )


def _speed(summary: dict[str, Any]) -> str:
    return (
        f"{_time(summary['end_ms'])} simulated in {_time(summary['wall_time_ms'])} "
        f"({summary['virtual_to_wall_ratio']:,.0f}x), {_count(summary['passes'], 'pass', 'passes')}, "
        f"{summary['processed_tokens_per_s']:,.0f} tokens/s"
    )


def _time(ms: float) -> str:
    return f"{ms:,.2f} ms" if ms < 1000.0 else f"{ms / 1000.0:,.2f} s"


def _percent(ratio: float) -> str:
    return f"{100.0 * ratio:.1f} %"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _limit(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"


def _switch(engine: dict[str, Any], name: str) -> str:
    return "on" if engine.get(name, True) else "off"
