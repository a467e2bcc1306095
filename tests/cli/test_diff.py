"""`mocker-replay diff`: streams, exit codes, and what CI reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = ROOT / "tests" / "golden" / "event_log" / "sample.jsonl"


def diff(*argv: Path | str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mocker_replay", "diff", *map(str, argv)]
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, capture_output=True, check=False, input=stdin, env=env)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """The sample with another figure in one line, and a footer that was not written anew."""
    data = SAMPLE.read_bytes()
    assert data.count(b'"blocks_held":2') == 1
    path = tmp_path / "changed%, a.jsonl"
    path.write_bytes(data.replace(b'"blocks_held":2', b'"blocks_held":3'))
    return path


def test_the_same_exits_0() -> None:
    done = diff(SAMPLE, SAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"same            {SAMPLE} and {SAMPLE}: the same 42 events\n"
        "                both footers say so and are believed; --verify reads the events\n"
    )
    done = diff(SAMPLE, SAMPLE, "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert "lines           same 42 · reordered 0" in done.stdout
    assert diff(SAMPLE, SAMPLE, "--quiet").stdout == ""


def test_a_difference_exits_1_and_is_told(changed: Path) -> None:
    done = diff(SAMPLE, changed, "--verify", "--quiet")
    assert (done.returncode, done.stderr) == (1, "")
    lines = [(line[:16].rstrip(), line[16:]) for line in done.stdout.splitlines()]
    told = dict(lines)
    assert lines[0] == ("differs", f"{SAMPLE} and {changed}: first difference at seq 12, 10.0 ms: preemption changed")
    assert told["fields"] == "blocks_held: a 2, b 3"
    assert json.loads(told["a, line 14"])["blocks_held"] == 2
    assert json.loads(told["b, line 14"])["blocks_held"] == 3
    assert told["pass"] == "worker 0, pass 1, in flight since 10.0 ms"
    assert told["before"].startswith("request r0: ")
    assert told["lines"] == "same 41 · reordered 0 · moved 0 · changed 1 · missing 0 · extra 0"
    assert told["figures"] == "all the same"
    assert "digest: the footer must agree" in told["b is damaged"]


def test_a_truncated_log_exits_2(tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(SAMPLE.read_bytes()[:-20])
    done = diff(SAMPLE, cut)
    assert (done.returncode, done.stderr) == (2, "")
    assert "truncated after line 43: no footer" in done.stdout
    done = diff(SAMPLE, tmp_path / "none.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: cannot read" in done.stderr
    done = diff(SAMPLE, SAMPLE, "--ignore", "no_such")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--ignore: must be a field of event lines" in done.stderr
    assert diff(SAMPLE).returncode == 2


def test_one_log_may_come_through_a_pipe(changed: Path) -> None:
    assert diff(SAMPLE, "-", stdin=SAMPLE.read_bytes()).returncode == 0
    done = diff("-", SAMPLE, stdin=changed.read_bytes())
    assert done.returncode == 1
    assert "before          request r0: " in done.stdout
    assert diff("-", "-").returncode == 2


def test_json_is_the_result(changed: Path) -> None:
    done = diff(SAMPLE, changed, "--json", "--verify", "--ignore", "t_ms", "--github")
    result = json.loads(done.stdout)
    assert (done.returncode, result["same"], result["ignored"]) == (1, False, ["t_ms"])
    assert result["first"]["seq"] == 12
    assert done.stderr.startswith("::error file=")


def test_ci_reads_junit_and_annotations(changed: Path, tmp_path: Path) -> None:
    report = tmp_path / "out" / "report.xml"
    done = diff(SAMPLE, changed, "--verify", "--junit", report, "--github")
    assert done.returncode == 1
    annotation = done.stdout.splitlines()[-1]
    escaped = str(changed).replace("%", "%25").replace(",", "%2C")
    assert annotation.startswith(f"::error file={escaped},title=mocker-replay diff%3A ")
    assert annotation.endswith("::first difference at seq 12, 10.0 ms: preemption changed")
    suites = ElementTree.parse(report).getroot()
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("1", "1", "0")
    failure = suites.find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.get("message") == "first difference at seq 12, 10.0 ms: preemption changed"
    assert "blocks_held: a 2, b 3" in str(failure.text)
    done = diff(SAMPLE, SAMPLE, "--junit", report, "--github", "--quiet")
    assert (done.returncode, done.stdout) == (0, "")
    assert ElementTree.parse(report).getroot().get("failures") == "0"


def test_a_report_does_not_take_the_place_of_a_log(changed: Path) -> None:
    before = changed.read_bytes()
    done = diff(SAMPLE, changed, "--junit", changed)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: --junit: {changed} is already taken by B\n"
    assert changed.read_bytes() == before
