"""The sample traces are what their script makes and what their README says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mocker_replay.trace import open_trace

FOLDER = Path(__file__).parents[2] / "traces"
FORMATS = {"agent-graph.jsonl": "agentic_mooncake"}  # of those that are not Mooncake
NAMES = sorted(path.name for path in FOLDER.glob("*.jsonl"))
OTHERS = sorted(f"formats/{path.name}" for path in FOLDER.glob("formats/*"))


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_traces", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_file_has_a_maker_and_they_are_small(make: ModuleType) -> None:
    assert sorted(make.TRACES) == NAMES
    assert sorted(make.OTHER_FORMATS) == OTHERS
    assert sum((FOLDER / name).stat().st_size for name in NAMES + OTHERS) < 1_000_000


@pytest.mark.parametrize("name", NAMES + OTHERS)
def test_a_file_is_what_the_script_makes(make: ModuleType, name: str) -> None:
    assert (FOLDER / name).read_bytes() == make.text_of(name).encode()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_faultless_and_the_readme_tells_its_figures(name: str) -> None:
    with open_trace(FOLDER / name, trace_format=FORMATS.get(name, "mooncake"), surplus_hash_ids="refuse") as source:
        facts = source.scan()
    assert facts.warnings == ()
    readme = (FOLDER / "README.md").read_text()
    told = re.search(rf"^\| `{re.escape(name)}` \|([\d |]+)\|", readme, re.MULTILINE)
    assert told is not None
    assert [int(figure) for figure in told[1].split("|")] == [
        facts.num_rows,
        facts.num_sessions,
        facts.span_ms,
        facts.total_input_tokens,
        facts.total_output_tokens,
    ]


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_in_another_format_is_known_as_it_and_the_readme_tells_its_figures(name: str) -> None:
    with open_trace(FOLDER / name, trace_format="auto") as source:
        facts = source.scan()
        assert sum(len(batch) for batch in source.batches()) == facts.num_rows
    # A graph has no order of rows, and sessions without timestamps have none either.
    assert facts.is_sorted == (facts.format not in ("weka", "applied_compute_agentic"))
    readme = (FOLDER / "README.md").read_text()
    told = re.search(rf"^\| `{re.escape(name)}` \| `(\w+)` \|([\d.| ]+)\|", readme, re.MULTILINE)
    assert told is not None
    assert told[1] == facts.format
    assert [float(figure) for figure in told[2].split("|")] == [
        facts.num_rows,
        round(facts.span_ms, 4),
        facts.total_input_tokens,
        facts.total_output_tokens,
    ]
