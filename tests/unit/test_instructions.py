"""Stored counts of instructions: their files can be read, and a growth is seen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = {"passes_quiet", "passes_full", "row_reader", "log_encoder", "record_lines"}


@pytest.fixture
def instructions() -> Iterator[ModuleType]:
    """A script of the folder, which is no package."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield __import__("instructions")
    finally:
        sys.path.remove(str(BENCHMARKS))


def require_counts(entry: dict[str, dict[str, object]]) -> None:
    assert entry["counts"].keys() == NAMES
    assert all(type(count) is int and count > 0 for count in entry["counts"].values())
    assert entry["made_with"]["compiler"]


def test_stored_counts(instructions: ModuleType) -> None:
    assert instructions.PATHS.keys() == NAMES
    require_counts(json.loads(instructions.STORED.read_text(encoding="utf-8")))


def test_history_has_one_line_a_version(instructions: ModuleType) -> None:
    lines = [json.loads(line) for line in instructions.HISTORY.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        require_counts(line)
    versions = [line["version"] for line in lines]
    assert versions
    assert len(set(versions)) == len(versions)


def test_a_release_takes_the_place_of_what_was_not_released(instructions: ModuleType) -> None:
    changelog = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n"
    text = instructions.note_release("Unreleased", changelog, "", {"counts": {"a": 1}})
    assert json.loads(text) == {"version": "Unreleased", "date": None, "counts": {"a": 1}}
    text = instructions.note_release("0.2.0", changelog, text, {"counts": {"a": 2}})
    assert json.loads(text) == {"version": "0.2.0", "date": "2026-12-01", "counts": {"a": 2}}
    with pytest.raises(SystemExit, match=r"no heading for 0\.3\.0"):
        instructions.note_release("0.3.0", changelog, text, {})


def test_a_count_has_what_its_function_calls(instructions: ModuleType) -> None:
    text = "fn=x_1advance\n0 5\ncfn=inner\ncalls=2 0\n0 70\nfn=inner\n0 70\nfn=x_1advance\n0 3\n"
    assert instructions.inclusive_counts(text, {"a": "x_*advance", "b": "y"}) == {"a": 78, "b": 0}


def test_more_than_five_percent_fails(instructions: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert instructions.compare({"a": 1_000}, {"a": 1_050}) == 0
    assert instructions.compare({"a": 1_000}, {"a": 1_051}) == 1
    assert "over the stored figure: a" in capsys.readouterr().err


def test_another_compiler_is_not_compared(instructions: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(instructions, "BUILT_WITH_CHECKS", False)
    monkeypatch.setattr(instructions, "made_with", lambda: {"compiler": "new"})
    assert instructions.why_not_comparable({"compiler": "new"}) is None
    assert instructions.why_not_comparable({"compiler": "old"}) == "compiler is 'new', stored 'old'"
    monkeypatch.setattr(instructions.shutil, "which", lambda name: None)
    assert instructions.why_not_comparable(None) == "valgrind is not installed"
