"""The examples run, and say what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
EXPECTED = {
    "live_engine.py": [
        r"token 11 at \d+ ms, delivered [\d.]+ ms later\n",
        r"token 14 at \d+ ms, delivered [\d.]+ ms later, output_length",
        r"cancelled: True, requests left: 0",
        r"prompt tokens found in the cache: 0, then 96",
        r"gauges: 0 running, 0 waiting, 0% of blocks in use",
        r"passes: \d+, the first one took 20 ms",
        r"two ranks, first tokens at (\d+) and \1 ms",
    ],
    "live_handoff.py": [
        r"held: 96 tokens, 9.6 ms to transfer",
        r"reserved: 96 tokens are missing",
        r"token 11 at \d+ ms, .*token 12 at \d+ ms, ",
        r"a session: 3 tokens, succeeded, the transfer took 9.6 ms",
        r"a session that nobody joined: cancelled",
    ],
    "fair_share.py": [
        r"fcfs: tenant 1 waits (\d+) ms, tenant 2 (\d+) ms\n",
        r"fair_share: tenant 1 waits \d+ ms, tenant 2 \d\d\d ms\n",
    ],
}


def run(*arguments: str) -> str:
    """What it prints; warnings count as errors."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-W", "error", *arguments], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_example_is_looked_at() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_examples_run(name: str) -> None:
    printed = run(str(ROOT / "examples" / name))
    position = 0
    for pattern in EXPECTED[name]:
        found = re.compile(pattern).search(printed, position)
        assert found, f"{pattern!r} not behind {printed[:position]!r} in {printed!r}"
        position = found.start()


def test_the_program_of_the_document_runs() -> None:
    text = (ROOT / "docs" / "live.md").read_text(encoding="utf-8")
    program = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert program is not None
    assert re.fullmatch(r"\d+\n\d+\n\d+\n", run("-c", program.group(1)))
