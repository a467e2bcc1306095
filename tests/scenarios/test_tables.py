"""The tables of scenarios against the tests: every number once, every named test there, no test left out."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Set
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDER = Path(__file__).resolve().parent
TESTS = FOLDER.parent


class Table(NamedTuple):
    """One file and the tests it has to name."""

    file: str
    numbers: range
    prefixes: str  # of test names, as alternatives of a pattern


TABLES = [
    Table("driver_table.md", range(1, 49), "driver|machine"),
    Table("boundary_table.md", range(1, 47), "boundary"),
]


def defined_tests() -> set[str]:
    """Names of all test functions, wherever they are."""
    names: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                names.add(node.name)
    return names


def rows_of(text: str) -> Iterator[tuple[str, list[str], str]]:
    """First cell, tests named and last cell of every row of every table in a page."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and not set(cells[0]) <= set("-: "):
            yield cells[0], re.findall(r"`(test_\w+)`", line), cells[-1]


def problems(text: str, table: Table, defined: Set[str]) -> list[str]:
    """What is wrong with a page."""
    found: list[str] = []
    numbered = re.compile(rf"test_(?:{table.prefixes})_(\d\d)_")
    rows = list(rows_of(text))
    counts = Counter(int(first) for first, _, _ in rows if first.isdigit())
    found += [f"number {number} stands there {counts[number]} times" for number in table.numbers if counts[number] != 1]
    found += [f"number {number} is none" for number in counts if number not in table.numbers]
    named: set[tuple[int, str]] = set()
    for first, tests, last in rows:
        found += [f"row {first} names {test}, which is not there" for test in tests if test not in defined]
        if not first.isdigit():
            continue
        if not tests and not last:
            found.append(f"row {first} has neither tests nor a reason")
        for test in tests:
            match = numbered.match(test)
            if match is not None and int(match[1]) != int(first):
                found.append(f"row {first} names {test}")
            named.add((int(first), test))
    for test in sorted(defined):
        match = numbered.match(test)
        if match is not None and (int(match[1]), test) not in named:
            found.append(f"{test} is in no row")
    return found


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.file)
def test_every_scenario_has_its_tests_or_a_reason(table: Table) -> None:
    text = (FOLDER / table.file).read_text(encoding="utf-8")
    assert problems(text, table, defined_tests()) == []


def test_both_tables_are_linked() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [table.file for table in TABLES if f"({table.file})" not in page] == []


ONE, TWO = "| 1 | `test_driver_01_a` | |", "| 2 | `test_driver_02_b` | |"


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([ONE, TWO], None),
        ([ONE, "| 2 | `test_driver_02_b`, `test_driver_01_a` | |"], "row 2 names test_driver_01_a"),
        ([ONE], "number 2 stands there 0 times"),
        ([ONE, ONE, TWO], "number 1 stands there 2 times"),
        ([ONE, "| 2 | | later |"], "test_driver_02_b is in no row"),
        ([ONE, "| 2 | | |"], "row 2 has neither tests nor a reason"),
        (["| 1 | `test_driver_01_x` | |", TWO], "row 1 names test_driver_01_x, which is not there"),
        ([ONE, TWO, "| 3 | | hand-off |"], "number 3 is none"),
        ([ONE, TWO, "| E1 | `test_c` | |"], "row E1 names test_c, which is not there"),
    ],
)
def test_a_table_can_be_wrong(rows: list[str], problem: str | None) -> None:
    text = "\n".join(["| number | tests | waits for |", "|---:|---|---|", *rows])
    found = problems(text, Table("some", range(1, 3), "driver"), {"test_driver_01_a", "test_driver_02_b"})
    assert found == [] if problem is None else problem in found
