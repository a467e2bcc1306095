"""Comparing big logs takes little memory, and no more for longer ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import orjson
import pytest

from mocker_replay.events import EVENT_SCHEMA
from mocker_replay.log.digest import EventDigest
from tests.support.logs import generated_lines

ROOT = Path(__file__).resolve().parent.parent.parent
MEGABYTE = 1 << 20
LIVE = 64


def write(path: Path, lines: Iterable[bytes]) -> int:
    """A log of these lines, written as it comes; how many there were."""
    header = {
        "event": "header", "schema": EVENT_SCHEMA, "level": "tokens", "clock": "virtual", "trace": {}, "config": {},
        "options": {},
    }  # fmt: skip
    digest, count = EventDigest(), 0
    lines = iter(lines)
    with path.open("wb") as file:
        file.write(orjson.dumps(header) + b"\n")
        while batch := b"".join(islice(lines, 4096)):
            digest.update(batch)
            count += batch.count(b"\n")
            file.write(batch)
        footer = {"event": "footer", "events": count, "end": "complete", "digest": digest.hexdigest()}
        file.write(orjson.dumps(footer) + b"\n")
    return count


# The peak of the program itself: what the system reports to the parent begins with the parent's own pages.
CHILD = """\
import sys
from mocker_replay.cli.app import run_main
code = run_main(["diff", *sys.argv[1:]])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")), file=sys.stderr)
sys.exit(code)
"""


def peak_bytes(a: Path, b: Path, *argv: str) -> tuple[int, dict[str, object]]:
    """Peak memory of a comparison in a process of its own, and its result."""
    command = [sys.executable, "-c", CHILD, str(a), str(b), "--json", *argv]
    done = subprocess.run(command, capture_output=True, check=False, env={"PYTHONPATH": str(ROOT), "PATH": ""})
    assert done.returncode in (0, 1), done.stderr
    return int(done.stderr) * 1024, orjson.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("big")
    assert write(folder / "a.jsonl", generated_lines(1, 300_000, LIVE)) > 300_000
    write(folder / "other.jsonl", generated_lines(2, 300_000, LIVE))
    write(folder / "short.jsonl", generated_lines(1, 60_000, LIVE))
    write(folder / "short-other.jsonl", generated_lines(2, 60_000, LIVE))
    return folder


def test_two_big_logs_that_have_little_in_common(folder: Path) -> None:
    """The hardest case: nearly every line waits, so the window is full all the time."""
    big, result = peak_bytes(folder / "a.jsonl", folder / "other.jsonl")
    assert big < 100 * MEGABYTE
    assert result["same"] is False
    short, _ = peak_bytes(folder / "short.jsonl", folder / "short-other.jsonl")
    assert big - short < 25 * MEGABYTE  # the window filling up, and no more


def test_a_big_log_read_to_its_end(folder: Path) -> None:
    big, result = peak_bytes(folder / "a.jsonl", folder / "a.jsonl", "--verify")
    assert big < 70 * MEGABYTE
    assert (result["same"], result["believed"]) == (True, False)
    believed, result = peak_bytes(folder / "a.jsonl", folder / "a.jsonl")
    assert believed < 60 * MEGABYTE
    assert (result["same"], result["believed"]) == (True, True)
