"""Side by side with the reference: equal results first, then what each side took, as a table in Markdown.

    python benchmarks/peer.py TRACE [--pairs 5] [--only NAME ...]

TRACE is the public Mooncake conversation trace. Both sides run alternately, each run in a process of its own, on this
machine; a figure is the median over the pairs, its spread the least and the largest. The reference runs in the
interpreter that MR_PEER_PYTHON names (`pip install '.[peer]'` there). Exit codes: 0 every target is met, 1 one is not,
2 the sides do not agree, so that nothing was raced.
"""

from __future__ import annotations

import argparse
import compileall
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import mocker_replay
from mocker_replay._core import _testing
from mocker_replay._core.log_encoder import LogEncoder

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.peer_runs import (
    NotARace,
    Run,
    ask_reference,
    measured,
    repeated,
    require_equal,
    run_ours,
    small_requests,
)
from tests.support.event_stream import decode_heavy_stream


@dataclass
class Row:
    """One line of the table."""

    what: str
    ours: str
    theirs: str
    found: float
    spread: str
    target: float
    at_most: bool = False  # the target is a bound from above

    @property
    def is_met(self) -> bool:
        return self.found <= self.target if self.at_most else self.found >= self.target

    def text(self) -> str:
        bound = "at most" if self.at_most else "at least"
        met = "yes" if self.is_met else "**no**"
        cells = (self.what, self.ours, self.theirs, f"{self.found:.2f}", self.spread, f"{bound} {self.target:g}", met)
        return f"| {' | '.join(cells)} |"


def engine(block_size: int = 64, num_gpu_blocks: int = 16_384) -> dict[str, object]:
    return {"engine": {"block_size": block_size, "num_gpu_blocks": num_gpu_blocks}}


def pairs_of(trace: Path, config: dict[str, object], num_pairs: int, *, records: bool = False, events: bool = False):
    """(ours, theirs) of each pair, their results equal."""
    found: list[tuple[Run, Run]] = []
    for _ in range(num_pairs):
        theirs = ask_reference(trace, config, records=records)
        ours = run_ours(trace, config, records=records, events=events)
        require_equal(ours, theirs)
        found.append((ours, theirs))
    return found


def ratio_row(what: str, pairs: list[tuple[Run, Run]], of: Callable[[Run], float], unit: str, target: float) -> Row:
    ours, theirs = [of(a) for a, _ in pairs], [of(b) for _, b in pairs]
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    medians = statistics.median(ours), statistics.median(theirs)
    return Row(what, f"{medians[0]:,.4g} {unit}", f"{medians[1]:,.4g} {unit}", statistics.median(ratios),
               f"{min(ratios):.1f} to {max(ratios):.1f}", target)  # fmt: skip


def simulations(conv: Path, folder: Path, n: int) -> Iterator[Row]:
    def simulation(run: Run) -> float:
        return run.simulation_ms

    cases = (
        ("64, 16 384 blocks", engine(), 25),
        ("512, 16 384 blocks", engine(512), 30),
        ("16, 65 536 blocks", engine(16, 65_536), 15),
    )
    for name, config, target in cases:
        yield ratio_row(f"simulation, block size {name}", pairs_of(conv, config, n), simulation, "ms", target)
    small = small_requests(folder / "small.jsonl", 20_000)
    yield ratio_row("simulation, 20 000 small requests", pairs_of(small, engine(), n), simulation, "ms", 10)
    yield ratio_row(
        "simulation, heavy preemption (3 000 blocks)", pairs_of(conv, engine(64, 3_000), n), simulation, "ms", 10
    )


def processes(conv: Path, folder: Path, n: int) -> Iterator[Row]:
    def wall(run: Run) -> float:
        return run.wall_s

    whole = pairs_of(conv, engine(), n, records=True)
    yield ratio_row("whole process, records and summary", whole, wall, "s", 6)
    yield ratio_row(
        "whole process, with a log of passes", pairs_of(conv, engine(), n, records=True, events=True), wall, "s", 3
    )
    yield ratio_row("peak memory", whole, lambda run: run.max_rss_mib, "MiB", 6)


def mib(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} MiB"


def middle(values: list[float]) -> tuple[float, str]:
    """Median and spread."""
    return statistics.median(values), f"{min(values):.2f} to {max(values):.2f}"


def growth(conv: Path, folder: Path, n: int) -> Iterator[Row]:
    once = [run_ours(conv, engine()).max_rss_mib for _ in range(n)]
    eight = repeated(folder / "eight.jsonl", conv, 8)
    many = [run_ours(eight, engine()).max_rss_mib for _ in range(n)]
    ratios = [b / a for a, b in zip(once, many, strict=True)]
    row = Row(
        "peak memory, the trace 8 times over to once", mib(many), f"{mib(once)} (ours, once)", *middle(ratios), 1.2
    )
    yield replace(row, at_most=True)
    short, long = small_requests(folder / "short.jsonl", 10_000), small_requests(folder / "long.jsonl", 160_000)
    per_row = [
        (run_ours(short, engine()).simulation_ms / 10_000, run_ours(long, engine()).simulation_ms / 160_000)
        for _ in range(n)
    ]
    ratios = [b / a for a, b in per_row]
    times_us = [f"{statistics.median(times) * 1000:.2f} us" for times in zip(*per_row, strict=True)]
    row = Row(
        "time a request, trace 16 times as long", times_us[1], f"{times_us[0]} (ours, short)", *middle(ratios), 1.1
    )
    yield replace(row, at_most=True)


def million(conv: Path, folder: Path, n: int) -> Iterator[Row]:
    trace = small_requests(folder / "million.jsonl", 1_000_000)
    pairs = pairs_of(trace, engine(), n)
    yield ratio_row("simulation, a million small requests", pairs, lambda run: run.simulation_ms, "ms", 15)
    peak = max(run.max_rss_mib for run, _ in pairs)
    yield Row(
        "peak memory of a million small requests",
        f"{peak:.0f} MiB",
        f"{max(run.max_rss_mib for _, run in pairs):,.0f} MiB",
        peak,
        "",
        200,
        at_most=True,
    )


def encoding(conv: Path, folder: Path, n: int) -> Iterator[Row]:
    """Bytes of JSON lines a second of processor time, of passes that decode."""
    stream = decode_heavy_stream(20_000)
    speeds = []
    for _ in range(4 * n):
        encoder = LogEncoder("passes")
        started = time.process_time()
        text = encoder.encode(stream)
        speeds.append(len(text) / (time.process_time() - started) / 1e6)
    speed = statistics.median(speeds)
    yield Row("log encoding, one core", f"{speed:.0f} MB/s", "", speed, f"{min(speeds):.0f} to {max(speeds):.0f}", 400)


def start_up(conv: Path, folder: Path, n: int) -> Iterator[Row]:
    ten = folder / "ten.jsonl"
    ten.write_bytes(b"".join(conv.read_bytes().splitlines(keepends=True)[:10]))
    ours = [sys.executable, "-m", "mocker_replay"]
    for what, command, target in (
        ("processor time of --help", [*ours, "--help"], 120),
        ("processor time of a run of 10 rows", [*ours, "run", str(ten), "--quiet"], 250),
    ):
        times = [measured(command)[0].cpu_s * 1000 for _ in range(2 * n)]
        yield Row(
            what,
            f"{statistics.median(times):.0f} ms",
            "",
            statistics.median(times),
            f"{min(times):.0f} to {max(times):.0f}",
            target,
            at_most=True,
        )


PARTS = {
    "simulation": simulations, "process": processes, "growth": growth, "million": million, "encoding": encoding,
    "start": start_up,
}  # fmt: skip


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", choices=sorted(PARTS), nargs="+", default=list(PARTS))
    args = parser.parse_args()
    if _testing.BUILT_WITH_CHECKS:
        parser.error("a build with checks is not raced: make build")
    # Installers compile what they install; a checkout whose files have changed would compile them in each run.
    compileall.compile_dir(Path(mocker_replay.__file__).parent, quiet=1)
    machine = f"{processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"
    sides = f"Python {platform.python_version()}, mocker-replay {version('mocker-replay')}, ai-dynamo-runtime 1.6.1"
    print(f"{machine}, {sides}; medians of {args.pairs} pairs\n")
    print("| what | ours | reference | found | spread | target | met |\n|---|---|---|---|---|---|---|", flush=True)
    all_met = True
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            try:
                for row in PARTS[name](args.trace, Path(folder), args.pairs):
                    print(row.text(), flush=True)
                    all_met = all_met and row.is_met
            except NotARace as error:
                print(f"not a race: {name}: {error}", file=sys.stderr)
                return 2
    return 0 if all_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
