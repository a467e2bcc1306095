"""`mocker-replay synth`: bytes on standard output, words on standard error, exit codes."""

from __future__ import annotations

import subprocess
import sys

from mocker_replay.trace.synth import SyntheticWorkload

SIZE = ["--input-tokens", "128", "--output-tokens", "2", "--request-count", "5"]


def synth(*argv: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "mocker_replay", "synth", *argv], capture_output=True, check=False)


def test_rows_go_to_standard_output_and_nothing_else_does() -> None:
    done = synth(*SIZE, "--request-rate", "20", "--arrival-seed", "7")
    expected = SyntheticWorkload(input_tokens=128, output_tokens=2, request_count=5, request_rate=20.0, arrival_seed=7)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"".join(expected.rows()), b"")


def test_flags_that_a_replay_needs_are_named() -> None:
    done = synth(*SIZE, "--replay-concurrency", "2", "--shared-prefix-ratio", ".5", "--num-prefix-groups", "2")
    assert done.returncode == 0
    assert done.stdout.count(b"\n") == 5
    assert done.stderr == b"replay it with: mocker-replay run TRACE --trace-block-size 64 --replay-concurrency 2\n"


def test_refusals_are_in_the_words_of_the_command_line() -> None:
    done = synth(*SIZE, "--arrival-interval-ms", "5", "--request-rate", "4", "--shared-prefix-ratio", "3")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().splitlines() == [
        "error: --arrival-interval-ms: exactly one of --replay-concurrency, --request-rate, --arrival-interval-ms "
        "must be given (got 5.0)",
        "error: --shared-prefix-ratio: must be from 0 to 1 (got 3.0)",
    ]
    done = synth(*SIZE)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"None" not in done.stderr
