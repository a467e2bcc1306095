"""Coverage-guided fuzzing of the readers of traces (`make fuzz-readers SECONDS=900`). Needs atheris.

Arguments are those of libFuzzer; what it finds is kept as a file named `crash-...`, which is given as the argument to
see it again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["mocker_replay.trace", "mocker_replay.config"]):
    from tests.fuzz_readers.oracle import check

FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-readers-")


def one_input(data: bytes) -> None:
    """What libFuzzer calls."""
    check(data, Path(FOLDER.name))


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
