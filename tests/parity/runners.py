"""Runs a reference case through the product or through the slow model and puts the result into one shape."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.model import report as model_report
from tests.model.config import BLOCK_SIZES
from tests.model.engine_model import run_model
from tests.model.graphs import GraphModel
from tests.model.synthetic import synthetic_rows
from tests.parity.cases import Case

SLA = ("sla_ttft_ms", "sla_itl_ms", "sla_e2e_ms")
GRAPHS = ("agentic_mooncake", "agentic-mooncake")
SYNTHETIC = (
    "input_tokens",
    "output_tokens",
    "request_count",
    "request_rate",
    "arrival_interval_ms",
    "arrival_seed",
    "turns_per_session",
    "shared_prefix_ratio",
    "num_prefix_groups",
    "inter_turn_delay_ms",
)


@dataclass(frozen=True)
class Outcome:
    """What a run said, whoever ran it."""

    records: list[dict[str, Any]]  # one per terminal request, in row order, the reference's field names
    summary: Mapping[str, Any]
    telemetry: Mapping[str, Any] | None
    passes: list[dict[str, Any]]  # forward-pass records in order of delivery, each with at_ms
    end_ms: float
    cut: bool
    exit_code: int
    failures: dict[int, str]  # row of each failed request -> why
    returned_loads: int = 0  # by requests that had loaded and held each other up, see docs/deviations.md

    def columns(self) -> dict[str, list[Any]]:
        """The records as the columns of the case files."""
        columns: dict[str, list[Any]] = {name: [r.get(name) for r in self.records] for name in self.records[0]}
        routes = [r["routing_history"][0] for r in self.records]
        columns["worker"] = [route["logical_worker_id"] for route in routes]
        columns["dp_rank"] = [route["dp_rank"] for route in routes]
        columns["reported_overlap_tokens"] = [route["reported_overlap_tokens"] for route in routes]
        columns["admissions"] = [
            [[a["at_ms"], a["reused_input_tokens"]] for a in r["admission_history"]] for r in self.records
        ]
        return columns

    def newest_passes(self, tick_ms: float, limit_ms: float | None = None) -> list[dict[str, Any]]:
        """What a planner ticking every `tick_ms` is given: the newest record per rank; none after the end.

        A run cut at `limit_ms` has ticks up to the limit.
        """
        delivered: dict[tuple[float, int, int], dict[str, Any]] = {}
        for record in self.passes:
            at_ms = max(1, math.ceil(record["at_ms"] / tick_ms)) * tick_ms
            delivered[at_ms, record["worker_id"], record["dp_rank"]] = {**record, "at_ms": at_ms}
        last_ms = self.end_ms if not self.cut or limit_ms is None else math.nextafter(limit_ms, math.inf)
        return [delivered[key] for key in sorted(delivered) if key[0] < last_ms]


def split_synthetic(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments that make the workload, and those that run it."""
    make = {key: value for key, value in case.args.items() if key in SYNTHETIC}
    run = {key: value for key, value in case.args.items() if key not in SYNTHETIC}
    return make, run


def block_size_of(config: Mapping[str, Any]) -> int:
    engine = config.get("engine") or {}
    return engine.get("block_size") or BLOCK_SIZES[engine.get("backend", "vllm")]


def run_model_case(case: Case, folder: Path) -> Outcome:
    """The case through the model; options it has no use for are dropped."""
    config = case.config_with_files(folder)
    graph: GraphModel | None = None
    if case.format in GRAPHS:
        rows, args = [], {k: v for k, v in case.args.items() if k not in ("trace_format", "execution_model")}
        graph = GraphModel(case.trace_text, args.pop("arrival_speedup_ratio", 1.0), args.pop("agentic_lanes", None))
        args["trace_block_size"] = graph.block_size
    elif case.format == "synthetic":
        make, args = split_synthetic(case)
        rows = synthetic_rows(**make, block_size=block_size_of(config))
        args["trace_block_size"] = block_size_of(config)
    else:
        rows, args = case.rows, dict(case.args)
    sla = {key: args.pop(key) for key in SLA if key in args}
    run = run_model(rows, config, **args, graph=graph)
    failed = any(f.status in ("failed", "rejected") for f in run.figures)
    return Outcome(
        records=model_report.request_records(run, graph),
        summary=model_report.summary(run, **sla) | ({} if graph is None else graph.summary(run)),
        telemetry=run.telemetry,
        passes=run.records,
        end_ms=run.end_ms,
        cut=run.cut,
        exit_code=4 if failed else 0,
        failures={f.turn.row: f.reason for f in run.figures if f.reason is not None},
        returned_loads=run.returned_loads,
    )


def run_product_case(case: Case, folder: Path) -> Outcome:
    """The case through `mocker_replay.replay`, with every output written to `folder`."""
    from mocker_replay.config import ReplayOptions
    from mocker_replay.replay import replay
    from mocker_replay.trace.synth import SyntheticWorkload

    config = case.config_with_files(folder)
    if case.format == "synthetic":
        make, args = split_synthetic(case)
        make |= {key: args[key] for key in ("replay_concurrency", "arrival_speedup_ratio") if key in args}
        args.pop("arrival_speedup_ratio", None)  # the rows are written with it
        workload = SyntheticWorkload(**make, block_size=block_size_of(config))
        trace = folder / "synthetic.jsonl"
        trace.write_bytes(b"".join(workload.rows()))
        args["trace_block_size"] = workload.written_block_size
    else:
        files, args = case.write_files(folder), dict(case.args)
        trace = files[0] if len(files) == 1 else files
    events = folder / "events.jsonl"
    telemetry = folder / "telemetry.jsonl" if "telemetry_sample_interval_ms" in args else None
    pools = {
        f"{role}_config": config[key]
        for role in ("prefill", "decode") for key in (role, f"{role}_engine_args") if key in config
    }  # fmt: skip
    result = replay(
        trace,
        None if pools else config,
        ReplayOptions(**args),
        events=events,
        event_level="passes",
        requests=folder / "requests.jsonl",
        summary=folder / "summary.json",
        telemetry=telemetry,
        **pools,
    )
    return Outcome(
        records=list(result.records()),
        summary=result.summary,
        telemetry=result.telemetry,
        passes=list(passes_of_log(events)),
        end_ms=max((p["at_ms"] for p in passes_of_log(events)), default=0.0)
        if config.get("engine", {}).get("native_host_offload") is None
        else last_of_log(events),
        cut=log_footer(events)["end"] == "time_limit",
        exit_code=int(result.exit_code),
        failures=dict(failures_of_log(events)),
        returned_loads=events.read_bytes().count(b'"event":"load_returned"'),
    )


def passes_of_log(events: Path) -> Iterator[dict[str, Any]]:
    """Forward-pass records out of an event log of level `passes` or above."""
    for line in events.read_text().splitlines():
        event = json.loads(line)
        if event["event"] != "pass_end":
            continue
        for rank in event["ranks"]:
            yield {
                "at_ms": event["t_ms"],
                "worker_id": event["worker"],
                "dp_rank": rank["rank"],
                **rank["fpm"],
            }


def last_of_log(events: Path) -> float:
    """Time of the last line; copies to a host tier may end after the last pass."""
    return max(json.loads(line)["t_ms"] for line in events.read_text().splitlines()[1:-1])


def failures_of_log(events: Path) -> Iterator[tuple[int, str]]:
    """Row and reason of each failed request; an arrival says which row a name of its own is."""
    rows: dict[str, int] = {}
    for line in events.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "arrival":
            rows[event["request"]] = event["row"] if "row" in event else int(event["request"].removeprefix("r"))
        elif event["event"] == "failure":
            yield rows[event["request"]], event["reason"]


def log_footer(events: Path) -> dict[str, Any]:
    footer: dict[str, Any] = json.loads(events.read_text().splitlines()[-1])
    return footer


RUNNERS = {"model": run_model_case, "product": run_product_case}
