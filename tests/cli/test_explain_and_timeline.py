"""`mocker-replay explain` and `timeline`: streams, exit codes, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from mocker_replay.log.digest import EventDigest
from tests.support.trace_events import check_trace

ROOT = Path(__file__).resolve().parent.parent.parent
RUNS = ROOT / "tests" / "golden" / "runs"
LOG = RUNS / "pressure-tokens" / "events.jsonl"


def command(verb: str, *argv: object, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "mocker_replay", verb, *map(str, argv)]
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(line, capture_output=True, check=False, input=stdin, env=env)
    return subprocess.CompletedProcess(line, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A log whose footer is true to its lines, but one of them is of no pass in flight."""
    header, *lines, footer = LOG.read_bytes().splitlines(keepends=True)
    lines = [line for line in lines if b'"pass_start"' not in line]
    digest = EventDigest()
    digest.update(b"".join(lines))
    told = json.loads(footer) | {"events": len(lines), "digest": digest.hexdigest()}
    path = tmp_path / "broken.jsonl"
    path.write_bytes(header + b"".join(lines) + json.dumps(told, separators=(",", ":")).encode() + b"\n")
    return path


def test_an_explanation_adds_up() -> None:
    done = command("explain", LOG, "--request", "summary")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [(line[:16].rstrip(), line[16:]) for line in done.stdout.splitlines()]
    labels = [label for label, _ in lines]
    assert labels[:5] == ["request", "end", "arrival ms", "end ms", "latency ms"]
    assert dict(lines)["end"] == "finish (output_length) with 5 of 5 tokens"
    assert dict(lines)["sum"].split()[0] == dict(lines)["latency ms"]
    assert dict(lines)["sum"].endswith("is the latency exactly")
    assert dict(lines)["pass 4"].startswith("prefill, 276 of its prompt tokens, beside prompt tokens of r4 7, r8 64")


def test_an_explanation_as_json() -> None:
    done = command("explain", "-", "--request", "r8", "--json", stdin=LOG.read_bytes())
    told = json.loads(done.stdout)
    exact = sum((Fraction(part["exact_ms"]) for part in told["parts"]), Fraction(0))
    assert exact == Fraction(told["latency_exact_ms"]) == Fraction(told["end_ms"]) - Fraction(told["arrival_ms"])
    assert told["stretches"][0]["start_ms"] == told["arrival_ms"]
    assert told["stretches"][-1]["end_ms"] == told["end_ms"]
    assert (told["request"], told["end"], told["untold"]) == ("r8", "finish", [])


def test_what_a_low_level_cannot_tell_is_told() -> None:
    done = command("explain", RUNS / "mtp-closed-loop-requests" / "events.jsonl", "--request", "r4")
    assert done.returncode == 0
    assert done.stdout.count("\nuntold ") == 2


def test_a_timeline_is_a_trace_file(tmp_path: Path) -> None:
    target = tmp_path / "new" / "trace.json"
    done = command("timeline", LOG, "-o", target)
    assert (done.returncode, done.stderr) == (0, "")
    checked = check_trace(target.read_bytes())
    by_category = Counter({cat: 0 for cat, _ in checked.slices})
    for (category, _), count in checked.slices.items():
        by_category[category] += count
    requests = len(checked.tracks)
    assert done.stdout == (
        f"{target}: {requests} requests in {by_category['request'] - requests} phases, {by_category['pass']} passes of "
        f"ranks, {checked.counters.total()} counter values\n"
    )
    assert checked.names == {(1,): "worker 0", (1, 1): "rank 0"}
    quiet = command("timeline", LOG, "-o", "-")
    assert quiet.stdout.encode() == target.read_bytes()


def test_a_timeline_of_several_ranks_and_workers(tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    done = command("timeline", RUNS / "dp2-two-workers-passes" / "events.jsonl", "-o", target, "-q")
    assert (done.returncode, done.stdout) == (0, "")
    names = check_trace(target.read_bytes()).names
    assert names == {
        (1,): "worker 0", (1, 1): "rank 0", (1, 2): "rank 1", (2,): "worker 1", (2, 3): "rank 0", (2, 4): "rank 1",
    }  # fmt: skip


@pytest.mark.parametrize("verb", [("explain", "--request", "r8"), ("timeline", "-q", "-o")])
def test_what_is_no_whole_log_exits_2(verb: tuple[str, ...], broken: Path, tmp_path: Path) -> None:
    short, target = tmp_path / "short.jsonl", tmp_path / "trace.json"
    short.write_bytes(b"".join(LOG.read_bytes().splitlines(keepends=True)[:50]))
    rest = [target] if verb[0] == "timeline" else []
    for log, text in ((short, "truncated after line 50"), (tmp_path / "none", "cannot read")):
        done = command(verb[0], log, *verb[1:], *rest)
        assert (done.returncode, done.stdout) == (2, "")
        assert text in done.stderr
    if verb[0] == "timeline":
        done = command(verb[0], broken, *verb[1:], *rest)
        assert done.returncode == 2
        assert "no run writes this line here; mocker-replay audit says more" in done.stderr
    assert not target.exists()


def test_no_such_request_exits_2() -> None:
    done = command("explain", LOG, "--request", "r77")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {LOG}: no request is called r77\n"


def test_a_timeline_does_not_take_the_place_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(LOG.read_bytes())
    done = command("timeline", log, "-o", log)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: --output: {log} is already taken by the log\n"
    assert log.read_bytes() == LOG.read_bytes()


def test_names_are_shown_in_one_line(tmp_path: Path) -> None:
    """Whoever wrote the trace has named its requests; a terminal must not obey them."""
    name = "a\nb\x1b[31m\u2028"
    row = {"timestamp": 0, "input_length": 700, "output_length": 4, "hash_ids": [1, 2], "request_id": name}
    (tmp_path / "trace.jsonl").write_text(json.dumps(row) + "\n")
    log = tmp_path / "x\x1b[31m.jsonl"
    assert command("run", tmp_path / "trace.jsonl", "--events", log, "--quiet").returncode == 0
    done = command("explain", log, "--request", name)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == r"request         a\nb\x1b[31m\u2028: 700 prompt tokens, worker 0 rank 0"
    told = [done, command("audit", log), command("timeline", log, "-o", log.with_suffix(".trace"))]
    told += [command("diff", log, LOG), command("explain", log, "--request", "x\x1b[31m")]
    assert not [text for text in told if "\x1b" in text.stdout + text.stderr]
    assert all(r"x\x1b[31m" in text.stdout + text.stderr for text in told[1:])
