"""Talks to a worker process that has the reference wheel; survives inputs on which the wheel never ends."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("wheel_worker.py")
INTERPRETER = "MR_PEER_PYTHON"


class WheelTimeout(Exception):
    """The wheel did not answer in time; its process was ended."""


def peer_python() -> str | None:
    """The interpreter that has the wheel: the one named by MR_PEER_PYTHON, else this one, else none."""
    named = os.environ.get(INTERPRETER)
    if named:
        return named
    return sys.executable if importlib.util.find_spec("dynamo") else None


WHY_MISSING = f"the reference wheel is missing: pip install '.[peer]', or set {INTERPRETER} to an interpreter with it"


class Wheel:
    """One worker process, started when first needed and again after a timeout."""

    def __init__(self, python: str, timeout_s: float = 20.0) -> None:
        self.python, self.timeout_s = python, timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Wheel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, trace: Path | None, config: Mapping[str, Any], args: Mapping[str, Any], tick_ms: float | None
    ) -> dict[str, Any]:
        """What the wheel says of one replay, of a synthetic workload without a trace: all it reports, or an error."""
        request = {"trace": str(trace) if trace else None, "config": config, "args": args, "tick_ms": tick_ms}
        process = self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._read_line(process))
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [self.python, str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "DYN_LOG": "error"},
            )
        return self._process

    def _read_line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], self.timeout_s)
            if not ready:
                self.close()
                raise WheelTimeout(f"no answer within {self.timeout_s:g} s")
            part = os.read(process.stdout.fileno(), 1 << 20)
            if not part:
                code = process.wait()
                self._process = None
                raise RuntimeError(f"the wheel's process ended with code {code}")
            line += part
        return line

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None
