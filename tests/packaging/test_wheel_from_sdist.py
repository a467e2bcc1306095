"""The sdist is complete: a wheel built from it, away from the checkout, installs and runs.

The optimiser is switched off by a compiler wrapper, since this is about files and not about speed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = (
    '{"timestamp": 0, "input_length": 1024, "output_length": 4, "hash_ids": [1, 2]}\n'
    '{"timestamp": 20, "input_length": 1030, "output_length": 2, "hash_ids": [1, 2, 3]}\n'
)

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs a git checkout"),
]


def run(argv: list[str | Path], cwd: Path, **environment: str) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MR_DEBUG")} | environment
    done = subprocess.run([str(part) for part in argv], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{argv}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git knows, so that nothing left over in the checkout can help."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in run(["git", "ls-files", "-co", "--exclude-standard"], ROOT).splitlines():
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    out = tmp_path_factory.mktemp("sdist")
    run([sys.executable, "-c", f"import setuptools.build_meta as b; b.build_sdist({str(out)!r})"], copy)
    return next(out.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    compiler = folder / "cc"
    real = sysconfig.get_config_var("CC") or "cc"
    compiler.write_text(f'#!/bin/sh\nexec {real} "$@" -O0\n')
    compiler.chmod(0o755)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "-w",
        folder,
        sdist,
    ]
    run(build, folder, CC=str(compiler))
    return next(folder.glob("*.whl"))


def test_sdist_holds_sources_and_nothing_generated(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.split("/", 1)[1] for member in archive if member.isfile()}
    for pattern in ("_core/*.pyx", "_core/*.pxd", "_core/*.pyi", "_core/*.h", "mocker_replay/**/*.py", "traces/*"):
        wanted = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern) if path.is_file()}
        assert wanted <= names | {name for name in wanted if "/_core/" in name or "__pycache__" in name}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "setup.py", "pyproject.toml"} <= names
    assert not [name for name in names if name.endswith((".c", ".so", ".pyc"))]


def test_wheel_holds_modules_stubs_and_no_c(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    (entry_points,) = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
    assert (
        "[pytest11]\nmocker_replay.pytest_plugin = mocker_replay.pytest_plugin\n" in archive.read(entry_points).decode()
    )
    for path in ROOT.glob("_core/*.pyx"):
        assert [name for name in names if name.startswith(f"mocker_replay/_core/{path.stem}.") and name.endswith(".so")]
        assert f"mocker_replay/_core/{path.stem}.pyi" in names
    assert "mocker_replay/py.typed" in names
    assert not [name for name in names if name.endswith((".c", ".html", ".pyc")) or name.startswith(("tests", "_core"))]


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, which nothing of the checkout can help."""
    tmp_path = tmp_path_factory.mktemp("installed")
    venv = tmp_path / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", venv], tmp_path)
    python = venv / "bin" / "python"
    site = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], tmp_path).strip())
    # The libraries of this environment are lent; its editable install, if any, is not: a nested .pth is not read.
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "lent.pth").write_text("\n".join(sorted(lent)) + "\n")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "-q", wheel]
    run(install, tmp_path)
    return venv


def test_the_installed_wheel_runs_away_from_the_checkout(venv: Path, tmp_path: Path) -> None:
    python = venv / "bin" / "python"
    site = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], tmp_path).strip()
    where = run([python, "-c", "import mocker_replay; print(mocker_replay.__file__)"], tmp_path)
    assert where.startswith(site)
    command = venv / "bin" / "mocker-replay"
    assert run([command, "--help"], tmp_path).startswith("Usage: mocker-replay")
    (tmp_path / "trace.jsonl").write_text(ROWS)
    summary = json.loads(run([command, "run", "trace.jsonl", "--json", "--events", "log.jsonl.zst"], tmp_path))
    assert summary["completed_requests"] == 2
    assert summary["total_output_tokens"] == 6
    assert (tmp_path / "log.jsonl.zst").stat().st_size > 0


def test_a_policy_in_cython_is_built_against_the_installed_headers(venv: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "last_come.pyx", tmp_path)
    python = venv / "bin" / "python"
    run([python, "-m", "Cython.Build.Cythonize", "-q", "-i", "last_come.pyx"], tmp_path, CFLAGS="-O0")
    rows = [json.loads(ROWS.splitlines()[0]) | {"timestamp": at, "hash_ids": [at, at + 1]} for at in (0, 1, 2)]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [venv / "bin" / "mocker-replay", "run", "trace.jsonl", "--max-num-seqs", "1", "--events", "log.jsonl"]
    run([*command, "--quiet", "--policy", "last_come:LastComeFirstServed"], tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["request"] for line in lines if line["event"] == "admission"] == ["r0", "r2", "r1"]
    decisions = [line for line in lines if line["event"] == "decision"]
    assert [(line["request"], line["instead_of"], line["reason"]) for line in decisions] == [("r2", "r1", "last_come")]
