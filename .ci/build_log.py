"""Cythonize every module afresh and fail on a performance hint or a warning; no C compiler runs.

A hint says that a hot loop takes the GIL or checks for an exception after each call.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPLAINT = re.compile(r"performance hint|^warning:", re.MULTILINE)


def main() -> int:
    """Print what Cython complains about; 1 if it does."""
    from Cython.Build import cythonize
    from Cython.Compiler import Errors

    sys.path.insert(0, str(ROOT))
    from setup import DIRECTIVES, extensions

    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(said), redirect_stdout(said):
        Errors.init_thread()
        cythonize(extensions(), compiler_directives=DIRECTIVES, build_dir=folder, force=True, quiet=False)
    complaints = [line for line in said.getvalue().splitlines() if COMPLAINT.search(line)]
    print("\n".join(complaints) if complaints else "cython: no hints, no warnings")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
