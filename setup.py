"""The only build logic: extension list, Cython directives, MR_DEBUG.

MR_DEBUG=1 adds bounds and invariant checks; it never changes a result. Metadata is in pyproject.toml.
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

EXTENSIONS = [
    Extension(
        f"mocker_replay._core.{path.stem}",
        [f"mocker_replay/_core/{path.name}"],
        include_dirs=["_core"],
        define_macros=[("MR_DEBUG", "1" if DEBUG else "0")],
        depends=[str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("_core/*.h"))],
        extra_compile_args=["-O3", "-Wall", "-Wextra", "-ffp-contract=off"],
    )
    for path in SOURCES
]

setup(
    ext_modules=cythonize(
        EXTENSIONS, compiler_directives=DIRECTIVES, build_dir="build/cython", nthreads=os.cpu_count() or 1
    )
)
