"""`mocker-replay check`: streams, exit codes, faults and profile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = """\
{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
{"timestamp": 50, "input_length": 512, "output_length": 40, "hash_ids": [1], "session_id": "a"}
{"timestamp": 90, "input_length": 512, "output_length": 0, "hash_ids": [1], "session_id": "a"}
"""
SEVEN_KINDS = """\
{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]
{"timestamp": "1", "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
{"timestamp": 2, "timestamp": 2, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
{"timestamp": 3, "input_length": 600, "output_length": 10000000000, "hash_ids": [1, 2]}
{"timestamp": 4, "input_length": 600, "output_length": 3, "hash_ids": [1]}
{"input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
{"timestamp": 6, "input_length": 600, "output_length": 3, "hash_ids": [1, 2, 3, 4]}
"""


def check(trace: str, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mocker_replay", "check", trace, *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, input=stdin)


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    return str(path)


def test_a_faultless_trace_is_profiled(tmp_path: Path) -> None:
    done = check(written(tmp_path, GOOD))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "trace           trace.jsonl (mooncake, 512 tokens a hash id)\n"
        "rows            3\n"
        "sessions        2, 1 with several turns, at most 2\n"
        "span            50 ms, 20 arrivals a second\n"
        "timestamps      read as ms, in order\n"
        "arrivals        0 at the instant of another, up to 1 at once\n"
        "prompt tokens   min 512  mean 541.333  p50 512  p90 600  p99 600  max 600\n"
        "output tokens   min 0  mean 14.3333  p50 3  p90 40  p99 40  max 40\n"
        "think time ms   min 40  mean 40  p50 40  p90 40  p99 40  max 40\n"
        "prefix sharing  63.1% of prompt tokens, 2 rows; 2 of 4 blocks are distinct\n"
        "zero outputs    1 of the rows\n"
    )


def test_seven_kinds_of_fault_are_named_in_one_pass(tmp_path: Path) -> None:
    path = written(tmp_path, SEVEN_KINDS)
    done = check(path)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 7
    assert lines[0].startswith(f"error: {path}:1: must be one JSON object: ")
    assert lines[1:] == [
        f'error: {path}:2: timestamp: must be a finite number (got "1")',
        f"error: {path}:3: timestamp: must not be given twice (got 2)",
        f"error: {path}:4: output_length: must be an integer from 0 to 2147483647 (got 10000000000)",
        f"error: {path}:5: input_length: must not exceed the 512 tokens of 1 hash_ids at trace block size 512 "
        "(block size 1024 would fit) (got 600)",
        f"error: {path}:6: timestamp: is required for the first turn of a session in an open loop",
        f"error: {path}:7: hash_ids: must hold one id per 512 tokens, 2 for 600, but holds 4",
    ]


def test_options_say_what_to_do_instead(tmp_path: Path) -> None:
    text = "".join(SEVEN_KINDS.splitlines(keepends=True)[4:])
    flags = ["--missing-timestamps", "previous", "--missing-hash-ids", "private", "--surplus-hash-ids", "ignore"]
    done = check(written(tmp_path, text), *flags)
    assert done.returncode == 0
    assert done.stdout.startswith("trace  ")
    assert [line.split(" ")[0] for line in done.stderr.splitlines()] == ["warning:"] * 4


def test_json_holds_faults_or_profile(tmp_path: Path) -> None:
    done = check(written(tmp_path, SEVEN_KINDS), "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (2, "")
    assert (found["num_faults"], found["profile"], found["warnings"]) == (7, None, [])
    assert found["faults"][1] == {"line": 2, "field": "timestamp", "value": '"1"', "rule": "must be a finite number"}
    done = check(written(tmp_path, GOOD), "--json", "--num-gpu-blocks", "8", "--block-size", "64")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (found["num_faults"], found["faults"], found["format"], len(found["digest"])) == (0, [], "mooncake", 64)
    assert found["profile"]["num_rows"] == 3
    assert [(m["outcome"], m["lines"]) for m in found["profile"]["misfits"]] == [("rejected", [1]), ("failed", [2])]


def test_requests_that_cannot_fit_are_named(tmp_path: Path) -> None:
    done = check(written(tmp_path, GOOD), "--num-gpu-blocks", "8")
    assert done.stdout.endswith(
        "rejected        1: prompts larger than the pool of 8 blocks of 64 tokens (lines 1)\n"
        "failed          1: prompt and output together outgrow the pool of 8 blocks of 64 tokens (lines 2)\n"
    )
    assert check(written(tmp_path, GOOD), "--num-gpu-blocks", "80").stdout.endswith(
        "fit             every request fits the pool\n"
    )


def test_standard_input_is_a_trace_too() -> None:
    done = check("-", stdin=GOOD)
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        "trace           <stdin> (mooncake, 512 tokens a hash id)",
    )
    done = check("-", stdin="{}")
    assert (done.returncode, done.stderr.splitlines()[0].split(" ")[1]) == (2, "<stdin>:1:")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--timestamp-unit", "ns"], "timestamp_unit must be one of s, ms, us"),
        (["--trace-block-size", "0"], "trace_block_size must be an integer from 1"),
        (["--num-gpu-blocks", "0"], "--num-gpu-blocks: must be from 1 to 2147483647 (got 0)"),
        (["--max-model-len", "5"], "--max-model-len: is of use only with --num-gpu-blocks"),
    ],
)
def test_bad_usage(tmp_path: Path, argv: list[str], words: str) -> None:
    done = check(written(tmp_path, GOOD), *argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_a_missing_file() -> None:
    done = check("nowhere.jsonl")
    assert (done.returncode, done.stderr) == (2, "error: nowhere.jsonl: cannot be opened: No such file or directory\n")
