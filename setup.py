"""The only build logic: extension list, Cython directives, MR_DEBUG.

MR_DEBUG=1 adds bounds and invariant checks; it never changes a result. MR_PREBUILT=1 installs (editable) over modules
that `build_ext --inplace` has made already. Metadata is in pyproject.toml.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("MR_DEBUG") == "1"
ROOT = Path(__file__).parent
# Sources are named through the link mocker_replay/_core -> ../_core, so that cimports resolve.
SOURCES = sorted(ROOT.glob("_core/*.pyx"))

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "initializedcheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
    "binding": True,
    "embedsignature": True,
    "auto_pickle": False,
    "autotestdict": False,
}

# Products are never fused with sums: goldens compare doubles bit for bit.
C_FLAGS = ["-O3", "-g" if DEBUG else "-g0", "-Wall", "-Wextra", "-ffp-contract=off"]


def extensions() -> list[Extension]:
    """One extension for each `.pyx`."""
    return [
        Extension(
            f"mocker_replay._core.{path.stem}",
            [f"mocker_replay/_core/{path.name}"],
            include_dirs=["_core"],
            define_macros=[("MR_DEBUG", "1" if DEBUG else "0")],
            depends=[str(header.relative_to(ROOT)) for header in sorted(ROOT.glob("_core/*.h"))],
            extra_compile_args=C_FLAGS,
        )
        for path in SOURCES
    ]


if __name__ == "__main__":
    setup(
        ext_modules=[]
        if os.environ.get("MR_PREBUILT") == "1"
        else cythonize(
            extensions(), compiler_directives=DIRECTIVES, build_dir="build/cython", nthreads=os.cpu_count() or 1
        ),
        options={"build_ext": {"parallel": os.cpu_count() or 1}},
    )
