"""`mocker-replay check --fix`: where the copy and the list go, exit codes, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import call

BAD = """\
{"timestamp": 0, "input_length": "600", "output_length": 3, "hash_ids": [1, 2, 3]}
{"timestamp": 9, "hash_ids": [1, 2], "output_length": 5}
{"timestamp": 4, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
"""
FIXED = """\
{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
{"timestamp": 4, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
{"timestamp": 9, "hash_ids": [1, 2], "output_length": 5, "input_length": 1024}
"""
TOLD = """\
fixed: {path}:1: input_length: plain-number: "600" -> 600
fixed: {path}:1: hash_ids: drop-surplus-ids: [1, 2, 3] -> [1, 2]
fixed: {path}:2: input_length: fill-input-length: nothing -> 1024
fixed: {path}:3: sort-rows: line 3 -> line 2
wrote {out}: 4 repairs
warning: the whole trace spans 9 ms; are its timestamps really in ms (--timestamp-unit)?
"""


def check(trace: str | Path, *argv: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return call("check", trace, *argv, stdin=stdin)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.jsonl"
    path.write_text(BAD)
    return path


def test_the_copy_is_written_profiled_and_passes(bad: Path, tmp_path: Path) -> None:
    assert check(bad).returncode == 2
    out = tmp_path / "good.jsonl"
    done = check(bad, "--fix", out)
    assert (done.returncode, done.stderr) == (0, TOLD.format(path=bad, out=out))
    assert out.read_text() == FIXED
    assert done.stdout == check(out).stdout
    assert done.stdout.startswith("trace           good.jsonl (mooncake, 512 tokens a hash id)\nrows            3\n")
    again = check(out, "--fix", tmp_path / "same.jsonl")
    assert again.stderr.splitlines()[0] == f"wrote {tmp_path / 'same.jsonl'}: nothing to repair"
    assert (tmp_path / "same.jsonl").read_text() == FIXED


def test_the_copy_on_standard_output_is_alone_there() -> None:
    command = [sys.executable, "-m", "mocker_replay", "check", "-", "--fix", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, input=BAD)
    assert (done.returncode, done.stdout) == (0, FIXED)
    assert done.stderr == TOLD.format(path="<stdin>", out="standard output")


def test_json_lists_every_repair(bad: Path, tmp_path: Path) -> None:
    out = tmp_path / "good.jsonl"
    done = check(bad, "--fix", out, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (found["num_faults"], found["fixed"], found["profile"]["num_rows"]) == (0, str(out), 3)
    assert found["fixes"][0] == {
        "line": 1, "field": "input_length", "old": '"600"', "new": "600", "rule": "plain-number",
    }  # fmt: skip
    assert [fix["line"] for fix in found["fixes"]] == [1, 1, 2, 3]
    assert "fixes" not in json.loads(check(out, "--json").stdout)


def test_what_cannot_be_repaired_leaves_no_copy(bad: Path, tmp_path: Path) -> None:
    bad.write_text(BAD + "nonsense\n")
    out = tmp_path / "good.jsonl"
    done = check(bad, "--fix", out)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {bad}:4: must be one JSON object: ")
    assert done.stderr.count("\n") == 1
    found = json.loads(check(bad, "--fix", out, "--json").stdout)
    assert (found["num_faults"], found["fixed"], found["fixes"]) == (1, None, [])
    assert not out.exists()
    done = check(bad, "--fix", out, "--fix-drop")
    assert (done.returncode, out.read_text()) == (0, FIXED)
    assert f"fixed: {bad}:4: drop-row: nonsense -> nothing\n" in done.stderr


def test_many_repairs_are_not_all_told(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text('{"timestamp": "0", "input_length": 1, "output_length": 1, "hash_ids": [1]}\n' * 130)
    done = check(path, "--fix", tmp_path / "out.jsonl")
    assert done.stderr.count("fixed: ") == 100
    assert "hint: 30 further repairs are not listed; --json lists all\n" in done.stderr


def test_what_is_refused(bad: Path, tmp_path: Path) -> None:
    done = check(bad, "--fix-drop", "--num-gpu-blocks", "0")
    assert (done.returncode, done.stderr) == (
        2,
        "error: --fix-drop: is only of use with --fix\nerror: --num-gpu-blocks: must be from 1 to 2147483647 (got 0)\n",
    )
    done = check(bad, "--fix", "-", "--json", "--transform", "limit-rows=1", "--transform", "limit-rows=x")
    assert done.returncode == 2
    assert [line.split(" ")[1] for line in done.stderr.splitlines()] == ["--fix:", "--json:", "--transform:"]
    done = check(bad, "--fix", bad)
    assert (done.returncode, done.stderr) == (2, f"error: --fix: {bad} is already taken by the trace\n")
    assert bad.read_text() == BAD
