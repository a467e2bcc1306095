"""The command line within this process: what a call of it would print and return, without the price of a process."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from mocker_replay.cli.app import run_main


def call(*argv: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `mocker-replay` with these words; standard input, output and error are its own."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    given = io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patch.object(sys, "stdin", given):
        code = run_main([str(word) for word in argv])
    texts = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess([*map(str, argv)], code, *texts)
