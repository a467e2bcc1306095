"""`golden check` beside the replay alone, on one trace.

    python benchmarks/golden_check.py TRACE [--repeats 5] [--factor-max 2]

Records goldens of the trace in a temporary folder, then takes turns: the replay without any output, the check without
a stored log, the check with one. Each in a process of its own, as people use them; and once more within one process,
where the start of the interpreter hides nothing. Prints Markdown: medians, and their ratio to the replay.
Exit code 1 where a check takes longer than the factor allows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mocker_replay.config import EngineConfig, ReplayOptions
from mocker_replay.golden.check import check_golden
from mocker_replay.golden.folder import GoldenFolder
from mocker_replay.golden.record import record_golden
from mocker_replay.golden.result import Status
from mocker_replay.replay import replay

NAMES = ("replay", "check", "check, log stored")


def processor_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def process_seconds(*argv: str) -> float:
    """Processor time of a command."""
    process = subprocess.Popen([sys.executable, "-m", "mocker_replay", *argv], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(argv)}: exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def require_same(folder: GoldenFolder, name: str) -> None:
    result = check_golden(folder, name)
    if result.status != Status.SAME:
        raise SystemExit(f"{name}: {result.reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--factor-max", type=float, default=2.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return measure(args.trace.resolve(), GoldenFolder(Path(scratch) / "goldens"), args.repeats, args.factor_max)


def measure(trace: Path, folder: GoldenFolder, repeats: int, factor_max: float) -> int:
    config, options = EngineConfig(), ReplayOptions()
    for name, with_log in (("bare", False), ("logged", True)):
        golden = record_golden(folder, name, trace, config, options, with_log=with_log)
    files = [path for path in folder.place("bare").iterdir()]
    size = sum(path.stat().st_size for path in files)
    print(f"{golden.manifest.log['events']:,} events; the golden without its log takes {size:,} bytes\n")
    within: dict[str, Callable[[], object]] = {
        NAMES[0]: lambda: replay(trace, config, options),
        NAMES[1]: lambda: require_same(folder, "bare"),
        NAMES[2]: lambda: require_same(folder, "logged"),
    }
    where = str(folder.path)
    commands = {
        NAMES[0]: ("run", str(trace), "--quiet"),
        NAMES[1]: ("golden", "check", "bare", "--dir", where),
        NAMES[2]: ("golden", "check", "logged", "--dir", where),
    }
    rows: dict[str, dict[str, list[float]]] = {
        "within a process": {name: [] for name in NAMES},
        "the command": {name: [] for name in NAMES},
    }
    for _ in range(repeats):
        for name in NAMES:
            rows["within a process"][name].append(processor_seconds(within[name]))
            rows["the command"][name].append(process_seconds(*commands[name]))
    return report(rows, factor_max)


def report(rows: dict[str, dict[str, list[float]]], factor_max: float) -> int:
    print("| processor time [s] | " + " | ".join(NAMES) + " | ratios |\n|---|---|---|---|---|")
    failed = False
    for what, by_name in rows.items():
        medians = [statistics.median(by_name[name]) for name in NAMES]
        ratios = [median / medians[0] for median in medians[1:]]
        failed = failed or max(ratios) > factor_max
        told = " | ".join(f"{median:.3f}" for median in medians)
        print(f"| {what} | {told} | {', '.join(f'{ratio:.2f}' for ratio in ratios)} |")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
