"""How true a realtime replay is: beside the accelerated run of the same slice, and beside the reference's online mode.

    python benchmarks/realtime_fidelity.py [TRACE] [--seconds 60] [--runs 1] [--side-by-side] [--fifo] [--alone]
    python benchmarks/realtime_fidelity.py --drift MINUTES

Replays the rows of the first `--seconds` of a trace: accelerated (the truth), in real time with the measured clock, and
with the reference's `replay_mode="online"`, in turn or, with `--side-by-side`, at the same time. Prints Markdown: mean
and p99 of TTFT and ITL, how far each is from the truth, and the ratio of the two deviations (the goal: ours at most a
third). The reference runs in the interpreter that MR_PEER_PYTHON names (`pip install '.[peer]'` there).

What the figures mean. The online figures of the reference are times of the wall, as its own client sees them, counted
from the scheduled arrival. A realtime replay of ours reports modelled times under the measured clock. So this script
also lets every client of ours look at the wall when it has read a token, and takes the same figures of that: from the
scheduled arrival, and from the call that submitted the request. Fair is to compare clients with clients. The reference
keeps a sketch of gaps with 0.1 % of error: its p99 ITL is compared with that of its own offline run, which is checked
to be the same run as ours, and is not judged where both deviations are too small for the sketch.

Beside each run a process of its own does nothing but sleep, which is the floor: where the kernel lets even that one
wait for more than a millisecond, a goal that is missed was not decided. `--fifo` keeps other processes out of the way:
real-time priority for all, which takes privileges.

`--drift`: a steady load of that length in real time; is the lateness at its end what it was at the beginning?

Exit code: 0 the goal is reached (or there is no drift), 1 it is not, 2 not decided.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from realtime_drift import drift

import mocker_replay
from mocker_replay._core.timerfd import sleep_until_ns
from mocker_replay.config import RealtimeOptions, ReplayOptions
from mocker_replay.live.request import Signal
from mocker_replay.replay import ReplayResult, replay
from mocker_replay.report.facts import COMPLETED
from mocker_replay.report.metrics import nearest_rank

ROOT = Path(__file__).resolve().parent.parent
TRACES = (
    ROOT.parent / "shared" / "traces" / "mooncake-conversation.jsonl",
    ROOT / "traces" / "long-context-bursts.jsonl",
)
ASK = """
import json, sys, importlib.metadata
import dynamo._core as core
trace, kwargs = sys.argv[1], json.loads(sys.argv[2])
result = core.run_mocker_trace_replay([trace], **kwargs)
summary = result if isinstance(result, dict) else result.summary
print(json.dumps(summary | {"version": importlib.metadata.version("ai-dynamo-runtime")}))
"""
GOAL = 1 / 3
SKETCH_RATIO = 0.002  # between neighbouring values of the reference's sketch of gaps
FLOOR_GOAL_MS = 1.0
FLOOR_PERIOD_NS = 10_000_000
OURS, FROM_PLAN, FROM_HAND_OVER, THEIRS = (
    "ours, modelled",
    "ours, clients, from the plan",
    "ours, clients, from the hand-over",
    "reference, clients",
)


class Figures(NamedTuple):
    """What is compared [ms]."""

    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_itl_ms: float
    p99_itl_ms: float

    def minus(self, other: Figures) -> Figures:
        return Figures(*(a - b for a, b in zip(self, other, strict=True)))


TITLES = ("mean TTFT", "p99 TTFT", "mean ITL", "p99 ITL")


class Run(NamedTuple):
    """One run of everything."""

    views: dict[str, Figures]
    truths: dict[str, Figures]  # what each view is compared with
    realtime: dict[str, Any]
    end_ms: float  # modelled end of ours, behind that of the truth
    floor_ms: npt.NDArray[np.float64]  # lateness of a process that only sleeps


class Clients:
    """When the client of each row read its tokens, by the wall [ms]."""

    def __init__(self) -> None:
        self.read_ms: dict[int, list[float]] = {}

    def observe(self, row: int, signal: Signal, wall_ms: float) -> None:
        if signal.position is not None:
            self.read_ms.setdefault(row, []).append(wall_ms)

    def figures(self, columns: Any, from_ms: npt.NDArray[np.float64]) -> Figures:
        """As the summary has them, over completed requests, of what the clients saw.

        Args:
            from_ms: (num_rows,) when each request counts as begun.
        """
        rows = [row for row in sorted(self.read_ms) if columns["status"][row] == COMPLETED]
        ttfts = np.array([self.read_ms[row][0] - from_ms[row] for row in rows])
        gaps = np.concatenate([np.diff(self.read_ms[row]) for row in rows])
        return Figures(ttfts.mean(), _p99(ttfts), gaps.mean(), _p99(gaps))


def _p99(values: npt.NDArray[np.float64]) -> float:
    return float(np.sort(values)[nearest_rank(len(values), 99)]) if len(values) else math.nan


def of_summary(summary: dict[str, Any]) -> Figures:
    return Figures(*(summary[name] for name in Figures._fields))


class Floor:
    """A process that only sleeps, by the kernel's own clock, and how late it woke."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._stop = spawn.Event()
        self._late, sender = spawn.Pipe(duplex=False)
        self._process = spawn.Process(target=_sleep_and_measure, args=(self._stop, sender), daemon=True)
        self._process.start()
        self._late.recv()  # it sleeps; starting it is no part of a run

    def stop(self) -> npt.NDArray[np.float64]:
        """All its waits [ms]."""
        self._stop.set()
        late_ms = np.array(self._late.recv())
        self._process.join()
        return late_ms


def _sleep_and_measure(stop: Any, sender: Any) -> None:
    late_ms: list[float] = []
    deadline_ns = time.monotonic_ns()
    sender.send(None)
    while not (late_ms and stop.is_set()):
        deadline_ns = max(deadline_ns + FLOOR_PERIOD_NS, time.monotonic_ns())
        sleep_until_ns(deadline_ns)
        late_ms.append((time.monotonic_ns() - deadline_ns) / 1e6)
    sender.send(late_ms)


# -- running ----------------------------------------------------------------------------------------


def cut_slice(trace: Path, seconds: float, target: Path) -> int:
    """Write the rows of the first `seconds` of a trace as they are; returns how many there are.

    Raises:
        SystemExit: a row without a time of its own, as the later turns of a session are.
    """
    lines = [line for line in trace.read_bytes().splitlines() if line.strip()]
    at_ms = [json.loads(line).get("timestamp") for line in lines]
    if None in at_ms:
        print(
            f"{trace.name}: every row needs a timestamp; when a later turn is due depends on the run", file=sys.stderr
        )
        raise SystemExit(2)
    chosen = [line for line, ms in zip(lines, at_ms, strict=True) if ms - min(at_ms) < seconds * 1000.0]
    target.write_bytes(b"\n".join(chosen) + b"\n")
    return len(chosen)


def ask_reference(trace: Path, args: argparse.Namespace, mode: str) -> subprocess.Popen[str]:
    kwargs = {
        "extra_engine_args": config_of(args),
        "replay_mode": mode,
        "num_workers": args.num_workers,
        "arrival_speedup_ratio": args.arrival_speedup_ratio,
    }
    command = [os.environ.get("MR_PEER_PYTHON", sys.executable), "-c", ASK, str(trace), json.dumps(kwargs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Raises SystemExit: the reference failed."""
    text, _ = process.communicate()
    if process.returncode != 0:
        print("the reference failed; --alone leaves it out", file=sys.stderr)
        raise SystemExit(2)
    return json.loads(text)  # type: ignore[no-any-return]


def config_of(args: argparse.Namespace) -> dict[str, Any]:
    engine = {"block_size": args.block_size, "num_gpu_blocks": args.num_gpu_blocks, "speedup_ratio": args.speedup_ratio}
    return {"engine": engine}


def run_once(trace: Path, args: argparse.Namespace, truth: ReplayResult, reference: dict[str, Any] | None) -> Run:
    """Ours and the reference in real time, each beside the truth."""
    options = ReplayOptions(
        mode="realtime", num_workers=args.num_workers, arrival_speedup_ratio=args.arrival_speedup_ratio
    )
    clients, floor = Clients(), Floor()
    online = ask_reference(trace, args, "online") if reference is not None and args.side_by_side else None
    result = replay(
        trace, config_of(args), options, realtime=RealtimeOptions(), observe=clients.observe, events=args.events
    )
    if reference is not None and online is None:
        online = ask_reference(trace, args, "online")
    views = {
        OURS: of_summary(result.summary),
        FROM_PLAN: clients.figures(result.columns, truth.columns["arrival_ms"]),
        FROM_HAND_OVER: clients.figures(result.columns, result.columns["arrival_ms"]),
    }
    truths = dict.fromkeys(views, of_summary(truth.summary))
    if reference is not None and online is not None:
        views[THEIRS], truths[THEIRS] = of_summary(answer(online)), of_summary(reference)
    end_ms = result.summary["duration_ms"] - truth.summary["duration_ms"]
    return Run(views, truths, result.summary["realtime"], end_ms, floor.stop())


def is_same_run(truth: dict[str, Any], reference: dict[str, Any]) -> bool:
    """Whether the reference's offline run and our accelerated one are the same, but for its sketch of gaps."""
    exact = ("completed_requests", "total_output_tokens", "mean_ttft_ms", "p99_ttft_ms", "mean_itl_ms", "duration_ms")
    same = all(math.isclose(truth[name], reference[name], rel_tol=1e-9) for name in exact)
    return same and math.isclose(truth["p99_itl_ms"], reference["p99_itl_ms"], rel_tol=1.1e-3)


# -- showing ----------------------------------------------------------------------------------------


def show_run(run: Run, number: int) -> None:
    print(f"\nRun {number}\n\n| [ms] | " + " | ".join(TITLES) + " |\n|---|--:|--:|--:|--:|")
    print(_line("accelerated, the truth", (f"{value:.3f}" for value in run.truths[OURS])))
    for name, figures in run.views.items():
        print(_line(name, (f"{value:.3f}" for value in figures)))
    for name, figures in run.views.items():
        truth = run.truths[name]
        cells = (
            f"{off:+.3f} ({100 * off / value:+.4f} %)" for off, value in zip(figures.minus(truth), truth, strict=True)
        )
        print(_line(f"{name}: off by", cells))
    print("\n| lateness [ms] | events | p50 | p99 | max |\n|---|--:|--:|--:|--:|")
    for label, name in (("our arrivals", "arrival_lateness"), ("our pass ends", "pass_end_lateness")):
        late = run.realtime[name]
        print(_line(label, (str(late["count"]), *(f"{late[key]:.3f}" for key in ("p50_ms", "p99_ms", "max_ms")))))
    floor = (f"{value:.3f}" for value in np.percentile(run.floor_ms, [50, 99, 100]))
    print(_line("a process that only sleeps", (str(len(run.floor_ms)), *floor)))
    print(f"\nmodelled end of our run behind that of the truth: {run.end_ms:.3f} ms")


def show_verdict(runs: Sequence[Run]) -> int:
    """Deviations over all runs, as mean of their sizes; the exit code, by what clients see."""
    sizes = {
        name: [float(np.mean([abs(run.views[name].minus(run.truths[name])[at]) for run in runs])) for at in range(4)]
        for name in runs[0].views
    }
    print(f"\nSize of the deviation, mean over {len(runs)} runs\n\n| [ms] | " + " | ".join(TITLES) + " |")
    print("|---|--:|--:|--:|--:|")
    for name, values in sizes.items():
        print(_line(name, (f"{value:.4f}" for value in values)))
    if THEIRS not in sizes:
        return 0
    blind_ms = [0.0, 0.0, 0.0, SKETCH_RATIO * runs[0].truths[OURS].p99_itl_ms]
    verdicts = {}
    for name in (OURS, FROM_PLAN, FROM_HAND_OVER):
        ratios = [
            math.nan if max(ours, theirs) <= blind else ours / theirs if theirs else math.inf
            for ours, theirs, blind in zip(sizes[name], sizes[THEIRS], blind_ms, strict=True)
        ]
        print(_line(f"{name} / reference", ("below the sketch" if math.isnan(x) else f"{x:.3f}" for x in ratios)))
        verdicts[name] = not any(ratio > GOAL for ratio in ratios)
    floor_p99_ms = float(np.percentile(np.concatenate([run.floor_ms for run in runs]), 99))
    decided = floor_p99_ms <= FLOOR_GOAL_MS
    missed = "missed" if decided else f"not decided: the kernel wakes a process {floor_p99_ms:.1f} ms late at p99"
    for name, reached in verdicts.items():
        print(f"\ngoal, at most a third of the reference's deviation: {name}: {'reached' if reached else missed}")
    return 0 if verdicts[FROM_PLAN] else 1 if decided else 2


def _line(name: str, cells: Any) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"


def machine() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return (
        f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {platform.system()} {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()}; mocker-replay {mocker_replay.__version__}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trace", nargs="?", type=Path, default=next(path for path in TRACES if path.exists()))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--side-by-side", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without the reference")
    parser.add_argument("--fifo", action="store_true", help="real-time priority for both sides")
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--num-gpu-blocks", type=int, default=16_384)
    parser.add_argument("--num-workers", type=int, default=1)
    parser.add_argument("--arrival-speedup-ratio", type=float, default=1.0)
    parser.add_argument("--speedup-ratio", type=float, default=1.0)
    parser.add_argument("--events", type=Path, help="also write the event log of our last run")
    parser.add_argument("--drift", type=float, metavar="MINUTES")
    args = parser.parse_args()
    if args.fifo:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO)))
    print(f"Machine: {machine()}", end="", flush=True)
    if args.drift is not None:
        return drift(args.drift)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "slice.jsonl"
        rows = cut_slice(args.trace, args.seconds, trace)
        return compare(trace, args, f"{rows} rows of the first {args.seconds:g} s of {args.trace.name}")


def compare(trace: Path, args: argparse.Namespace, what: str) -> int:
    options = ReplayOptions(num_workers=args.num_workers, arrival_speedup_ratio=args.arrival_speedup_ratio)
    truth = replay(trace, config_of(args), options)
    reference = None if args.alone else answer(ask_reference(trace, args, "offline"))
    if reference is not None:
        print(f", reference {reference['version']}", end="")
        if not is_same_run(truth.summary, reference):
            print("\nthe reference's offline run is another one; nothing can be compared", file=sys.stderr)
            return 2
    how = "at the same time" if args.side_by_side else "one after the other"
    print(f"\n\n{what}; {json.dumps(config_of(args))}, {args.num_workers} workers, {how}", end="")
    print(", real-time priority" if args.fifo else "", flush=True)
    runs = []
    for number in range(1, args.runs + 1):
        runs.append(run_once(trace, args, truth, reference))
        show_run(runs[-1], number)
        sys.stdout.flush()
    return show_verdict(runs)


if __name__ == "__main__":
    raise SystemExit(main())
