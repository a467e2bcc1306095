"""Judges one case: what the subject said against what the wheel said."""

from __future__ import annotations

import contextlib
import enum
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mocker_replay.config.decimals import read_json_number
from mocker_replay.errors import InvariantError
from mocker_replay.trace.decimals import write_decimal
from tests.fuzz.routed import can_be_told_apart, following, has_ties
from tests.fuzz.wheel import Wheel, WheelTimeout
from tests.model.sglang import Standstill
from tests.model.synthetic import synthetic_rows
from tests.parity import compare
from tests.parity.cases import Case
from tests.parity.runners import Outcome, block_size_of, split_synthetic

# Wall-clock figures of the wheel; everything else in its summary must be met.
WALL_CLOCK = ("wall_time_ms", "processed_tokens_per_s", "processed_output_tokens_per_s")
# Checksums of the wheel's own workings, not specified; see docs/deviations.md.
UNSPECIFIED = ("agentic_lifecycle_event_count", "agentic_lifecycle_digest")
STUCK = "effect-free zero-duration pass"
TICK_MS = 7.0
SUBJECT_LIMIT_S = 60.0

Runner = Callable[[Case, Path], Outcome]


class Kind(enum.Enum):
    """How the wheel answered."""

    COMPARED = "compared"
    STUCK = "stuck"  # the wheel gave up: a request can never progress
    ENDLESS = "endless"  # the wheel did not end: a burst that can never be held
    INVALID = "invalid"  # the wheel refused the input
    DRAWN = "drawn"  # the wheel drew where a request goes, and what came out is not known
    UNWRITABLE = "unwritable"  # a synthetic arrival that no decimal of a trace file says exactly


@dataclass
class Verdict:
    kind: Kind
    differences: list[str] = field(default_factory=list)


def is_writable(case: Case) -> bool:
    """Whether every arrival survives the way through a trace file.

    The wheel rounds long decimals of a trace twice and we read as it does; two arrivals in a thousand are then out
    of reach. Its own synthetic replay writes no file.
    """
    make, run = split_synthetic(case)
    rows = synthetic_rows(**make, block_size=block_size_of(case.config))
    ratio = run.get("arrival_speedup_ratio", 1.0)
    times = [row["timestamp"] / ratio for row in rows if "timestamp" in row]
    return all(read_json_number(write_decimal(time)) == time for time in times)


class SubjectTimeout(Exception):
    """Not a TimeoutError: that is an OSError, which a run takes for trouble with its files."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise SubjectTimeout in a run that does not end; main thread only."""

    def stop(*_: object) -> None:
        raise SubjectTimeout(f"did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def judge(case: Case, runner: Runner, wheel: Wheel, with_passes: bool = False) -> Verdict:
    """Run both and compare."""
    if case.format == "synthetic" and not is_writable(case):
        return Verdict(Kind.UNWRITABLE)
    if has_ties(case) and not can_be_told_apart(case):
        return Verdict(Kind.DRAWN)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = None if case.format == "synthetic" else case.write_trace(folder)
        config = case.config_with_files(folder)
        try:
            theirs = wheel.run(trace, config, case.args, None)
        except WheelTimeout:
            theirs = None
        message = theirs["error"]["message"] if theirs and "error" in theirs else ""
        if message and STUCK not in message:
            return Verdict(Kind.INVALID, [f"the wheel refuses: {message}"])
        try:
            with time_limit(SUBJECT_LIMIT_S), following(case, (theirs or {}).get("per_request", ())) as draws:
                ours = runner(case, folder)
        except SubjectTimeout as error:  # millions of preempting passes in a log, where the wheel never ends
            if theirs is None and "prefill" in case.config:
                return Verdict(Kind.ENDLESS)
            return Verdict(Kind.COMPARED, [f"raised {type(error).__name__}: {error}"])
        except (InvariantError, Standstill) as error:
            if draws.unknown:
                return Verdict(Kind.DRAWN)
            # Where requests of two pools stand in each other's way neither can be failed by itself: both give up. So
            # does a rank that fails nobody.
            if ("prefill" in case.config or _backend(case) == "sglang") and (theirs is None or STUCK in message):
                return Verdict(Kind.ENDLESS if theirs is None else Kind.STUCK)
            return Verdict(Kind.COMPARED, [f"raised {type(error).__name__}: {error}"])
        except Exception as error:  # a crash of the subject is a difference, to be shrunk like any other
            return Verdict(Kind.COMPARED, [f"raised {type(error).__name__}: {error}"])
        if draws.unknown:
            return Verdict(Kind.DRAWN)
        failed = any(_is_stuck(record) for record in ours.records)
        if _backend(case) == "sglang" and (theirs is None or message):
            # Only where handoffs are under way does a rank that stands still wait for them, docs/deviations.md.
            explained = "prefill" in case.config and _stood_still(ours)
            text = f"the wheel gives up or never ends, and this run did: {message}"
            return Verdict(Kind.STUCK if message else Kind.ENDLESS, [] if explained else [text])
        if theirs is None:
            # Without multi-token prediction every case ends: the wheel was only too slow.
            endless = "aic_nextn" in str(case.config) and not failed
            return Verdict(Kind.ENDLESS, ["the wheel never ends, and nothing failed here"] if endless else [])
        if message:
            went_on = failed or ours.returned_loads > 0
            return Verdict(Kind.STUCK, [] if went_on else [f"nothing failed here, but the wheel says: {message}"])
        if (failed or ours.returned_loads > 0) and "max_sim_time_ms" in case.args:
            return Verdict(Kind.STUCK)  # a limit hides from the wheel that a request stands still
        differences = ["a request failed here, but the wheel ran through"] if failed else []
        if case.format == "synthetic":
            _forget_session_names(theirs["per_request"], ours.records)
        differences += _compare(theirs, ours)
        # How a planner sees passes of no length under attention DP is not specified: left out.
        if with_passes and all(record["wall_time"] > 0.0 for record in ours.passes):
            with contextlib.suppress(WheelTimeout):  # a tick a millisecond is too much for a long run
                passes = wheel.run(trace, config, without_telemetry(case), TICK_MS)["passes"]
                newest = ours.newest_passes(TICK_MS, case.args.get("max_sim_time_ms"))
                differences += compare.compare_passes(busy(passes), busy(newest))
        return Verdict(Kind.COMPARED, differences)


def _is_stuck(record: Mapping[str, Any]) -> bool:
    """Failed by our own rule: a destination that is refused fails on the wheel, too."""
    refused = ("prompt_over_pool", "prompt_over_model_len")
    return record.get("terminal_status") == "failed" and record.get("failure_reason") not in refused


def _stood_still(ours: Outcome) -> bool:
    """A rank had a pass of no length without prompts: nobody could be admitted, or no token had a page."""
    return any(record["wall_time"] == 0.0 and record["num_prefill_requests"] == 0 for record in ours.passes)


def _backend(case: Case) -> str:
    pool = case.config.get("prefill", case.config)
    return str((pool.get("engine") or {}).get("backend", "vllm"))


def _forget_session_names(theirs: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]]) -> None:
    """Of single-turn sessions, which have them in a trace by another rule; see tests/parity/deviations.py."""
    if not any(record["turn_index"] for record in theirs):
        for record in (*theirs, *ours):
            record["session_id"] = record["turn_index"] = None


def busy(passes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without the empty records of no length that the wheel repeats for a worker idle for a second."""
    where = ("at_ms", "worker_id", "dp_rank")
    return [record for record in passes if any(v for k, v in record.items() if k not in where)]


def without_telemetry(case: Case) -> dict[str, object]:
    return {k: v for k, v in case.args.items() if k != "telemetry_sample_interval_ms"}


def _compare(theirs: dict[str, object], ours: Outcome) -> list[str]:
    found = compare.compare_records(theirs["per_request"], ours.records)  # type: ignore[arg-type]
    told_by_the_wheel: dict[str, Any] = theirs["summary"]  # type: ignore[assignment]
    summary = {k: v for k, v in told_by_the_wheel.items() if k not in WALL_CLOCK + UNSPECIFIED}
    mine = dict(ours.summary)
    for told in (summary, mine):
        if "agentic_graph" in told:
            told["agentic_graph"] = _without_digests(told["agentic_graph"])
    found += compare.compare_summary(summary, mine)
    if theirs["telemetry"] is not None:
        found += compare.compare_telemetry(theirs["telemetry"], ours.telemetry)  # type: ignore[arg-type]
    return found


def _without_digests(graph: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a graph, without the checksums that are not specified; see docs/deviations.md."""
    told = {key: value for key, value in graph.items() if key != "graph_digest"}
    if told["source"]["format"] == "weka":
        told["source"] = "weka"
    return told
