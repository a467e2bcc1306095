"""Instructions of five hot paths, counted by callgrind, beside stored figures.

    python benchmarks/instructions.py --check      exit code 1 where a count is more than 5 % over the stored one
    python benchmarks/instructions.py --update     store what was found
    python benchmarks/instructions.py --release VERSION    the stored figures as a line of history.jsonl

Two runs of a trace made from a seed are counted, each in a process of its own: one whose passes nobody reads, with its
records, and one with a log of passes. A path is a function of the core with all that it calls. Counts hardly depend on
what else the machine does, but they do on compiler, flags and interpreter: where those are others than the stored ones,
or valgrind is missing, nothing is compared and the exit code is 0.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from mocker_replay._core._testing import BUILT_WITH_CHECKS
from mocker_replay.replay import replay

FOLDER = Path(__file__).resolve().parent
STORED = FOLDER / "instructions.json"
HISTORY = FOLDER / "history.jsonl"
CHANGELOG = FOLDER.parent / "CHANGELOG.md"
UNRELEASED = "Unreleased"

# Path -> run that is counted, symbol of the function. Only wrappers called from Python: each is entered and left once
# a call, and toggles collection twice; a pattern that meets the inner function as well would switch it off again.
# Of several patterns callgrind heeds only one where their stars stand at the same place, hence the long names.
PATHS = {
    "passes_quiet": ("quiet", "__pyx_pw_13mocker_replay_5_core_5fleet_5Fleet_*advance"),
    "passes_full": ("full", "__pyx_pw_13mocker_replay_5_core_5fleet_5Fleet_*advance"),
    "row_reader": ("quiet", "__pyx_pw_13mocker_replay_5_core_14mooncake_lines_13MooncakeLines_*scan"),
    "log_encoder": ("full", "__pyx_pw_13mocker_replay_5_core_11log_encoder_10LogEncoder_*encode"),
    "record_lines": ("quiet", "__pyx_pw_13mocker_replay_5_core_12record_lines_11RecordLines_*write"),
}
GROWTH_MAX_RATIO = 1.05
NUM_ROWS, NUM_STEMS, SEED = 1_500, 40, 7


def write_trace(path: Path) -> None:
    """Prompts of few blocks to many, each on one of some common stems; arrivals fast enough that requests queue."""
    draw = random.Random(SEED)
    stems = [[1_000_000 * stem + block for block in range(draw.randrange(1, 12))] for stem in range(NUM_STEMS)]
    at_ms, lines = 0, []
    for row in range(NUM_ROWS):
        at_ms += draw.randrange(0, 160)
        stem = draw.choice(stems)
        own = [10**9 + 100 * row + block for block in range(draw.randrange(1, 6))]
        hash_ids = stem[: draw.randrange(1, len(stem) + 1)] + own
        input_length = 512 * len(hash_ids) - draw.randrange(0, 512)
        fields = {"timestamp": at_ms, "input_length": input_length, "output_length": draw.randrange(1, 200)}
        lines.append(json.dumps(fields | {"hash_ids": hash_ids}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def run_counted(name: str, folder: Path) -> None:
    """What is run under callgrind."""
    settings = {"engine": {"num_gpu_blocks": 2_048}}
    if name == "quiet":
        result = replay(folder / "trace.jsonl", settings, requests=folder / "requests.jsonl")
    else:
        result = replay(folder / "trace.jsonl", settings, events=folder / "events.jsonl", event_level="passes")
    if result.summary["completed_requests"] != NUM_ROWS:
        raise SystemExit(f"{name}: not all {NUM_ROWS} requests completed")


def inclusive_counts(text: str, patterns: dict[str, str]) -> dict[str, int]:
    """Instructions of the functions named by `patterns`, with those of what they call, from a callgrind file."""
    matchers = {name: re.compile(re.escape(glob).replace(r"\*", ".*")) for name, glob in patterns.items()}
    counts = dict.fromkeys(patterns, 0)
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("fn="):
            current = [name for name, matcher in matchers.items() if matcher.fullmatch(line[3:])]
        elif current and line[:1].isdigit():
            for name in current:  # a line of its own, or what a call cost
                counts[name] += int(line.split()[1])
    return counts


def count_all() -> dict[str, int]:
    """The five counts; both runs at once."""
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        running = {}
        for run in ("quiet", "full"):
            folder = Path(name, run)
            folder.mkdir()
            write_trace(folder / "trace.jsonl")
            running[run] = start(run, folder)
        for run, process in running.items():
            output, _ = process.communicate()
            if process.returncode != 0:
                raise SystemExit(f"callgrind of run {run!r}: exit code {process.returncode}\n{output}")
        for run in running:
            text = Path(name, run, "callgrind").read_text(encoding="utf-8")
            counts |= inclusive_counts(text, symbols_of(run))
    missing = [path for path in PATHS if not counts[path]]
    if missing:
        raise SystemExit(f"never entered, so their symbols have other names now: {', '.join(missing)}")
    return {path: counts[path] for path in PATHS}


def symbols_of(run: str) -> dict[str, str]:
    return {path: symbol for path, (of, symbol) in PATHS.items() if of == run}


def start(run: str, folder: Path) -> subprocess.Popen[str]:
    toggles = [f"--toggle-collect={symbol}" for symbol in symbols_of(run).values()]
    files = [f"--callgrind-out-file={folder / 'callgrind'}", "--compress-strings=no", "--compress-pos=no"]
    argv = ["valgrind", "--tool=callgrind", "--collect-atstart=no", *toggles, *files]
    argv += [sys.executable, str(Path(__file__).resolve()), "--run", run, str(folder)]
    paths = [str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def made_with() -> dict[str, str]:
    """What a count depends on beside the source."""
    compiler = shlex.split(os.environ.get("CC") or "gcc")[0]
    found = shutil.which(compiler)
    text = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout if found else ""
    return {
        "compiler": text.split("\n", 1)[0] or f"{compiler} not found",
        "cflags": " ".join(filter(None, [sysconfig.get_config_var("CFLAGS"), os.environ.get("CFLAGS")])),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def why_not_comparable(stored: dict[str, str] | None) -> str | None:
    """None where counts can be made and, unless `stored` is None, mean the same as the stored ones."""
    if shutil.which("valgrind") is None:
        return "valgrind is not installed"
    if BUILT_WITH_CHECKS:
        return "the core is built with checks"
    if stored is None:
        return None
    others = [
        f"{name} is {value!r}, stored {stored.get(name)!r}"
        for name, value in made_with().items()
        if stored.get(name) != value
    ]
    return "; ".join(others) or None


def compare(stored: dict[str, int], found: dict[str, int]) -> int:
    """Print the table; exit code 1 where a path grew too much."""
    print(f"{'path':<14} {'stored':>15} {'found':>15}  ratio")
    grown = []
    for path, count in found.items():
        ratio = count / stored[path]
        too_much = ratio > GROWTH_MAX_RATIO
        grown += [path] if too_much else []
        print(f"{path:<14} {stored[path]:>15,} {count:>15,} {ratio:6.4f}{'  too much' if too_much else ''}")
    if grown:
        print(f"more than {GROWTH_MAX_RATIO - 1:.0%} over the stored figure: {', '.join(grown)}", file=sys.stderr)
    return 1 if grown else 0


def note_release(version: str, changelog: str, history: str, stored: dict[str, object]) -> str:
    """The history with a line for this version in place of its older one and of what was not released yet."""
    heading = re.search(rf"^## \[{re.escape(version)}\](?: - (\d{{4}}-\d\d-\d\d))?$", changelog, re.MULTILINE)
    if heading is None:
        raise SystemExit(f"CHANGELOG.md has no heading for {version}")
    lines = [line for line in history.splitlines() if json.loads(line)["version"] not in (version, UNRELEASED)]
    lines.append(json.dumps({"version": version, "date": heading.group(1)} | stored))
    return "".join(f"{line}\n" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true")
    what.add_argument("--update", action="store_true")
    what.add_argument("--release", metavar="VERSION")
    what.add_argument("--run", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run_counted(args.run[0], Path(args.run[1]))
        return 0
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    if args.release:
        before = HISTORY.read_text(encoding="utf-8") if HISTORY.exists() else ""
        text = note_release(args.release, CHANGELOG.read_text(encoding="utf-8"), before, stored)
        HISTORY.write_text(text, encoding="utf-8")
        return 0
    reason = why_not_comparable(stored["made_with"] if args.check else None)
    if reason is not None:
        print(f"not comparable: {reason}")
        return 0 if args.check else 1
    found = count_all()
    if args.check:
        return compare(stored["counts"], found)
    STORED.write_text(json.dumps({"made_with": made_with(), "counts": found}, indent=2) + "\n", encoding="utf-8")
    print(f"stored in {STORED.name}: {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
