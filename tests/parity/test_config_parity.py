"""Configurations: what the reference makes of a document, ours makes too, and faults come in the same order.

The answers stand in config_cases.json; `record_config_cases.py` asks for them again.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.config import load_engine_config
from mocker_replay.errors import ConfigError

TABLE = json.loads(Path(__file__).with_name("config_cases.json").read_text(encoding="utf-8"))

# The class of a fault: how the reference says it, how we say it. The first pattern that matches counts.
CLASSES = [
    (r"must be an object", r"must be a mapping"),
    (r"unknown field", r"unknown key"),
    (r"duplicate field", r"given twice"),
    (r"missing field", r"lacks|is missing"),
    (r"Profile|a sequence|struct|internally tagged", r"must be a (mapping|list)"),
    (r"unknown variant|expected string or map|variant identifier|unsupported external", r"must be one of"),
    (r"expected u(size|16|32|64)", r"must be a whole number"),
    (r"expected f64", r"must be a (finite )?number"),
    (r"expected a boolean", r"must be true or false"),
    (r"expected a string|path string", r"must be a text"),
    (r"must be positive", r"must be positive"),
    (r"must be finite and non-negative", r"must be finite and non-negative"),
    (r"at least two", r"at least two"),
    (r"in 1\.\.=5", r"from 1 to 5"),
    (r"value \".*\": ", r"must be a comma list of numbers"),
    (r"in \[0, 1\]|range", r"in \[0, 1\]"),
    (r"requires (\w+)", r"requires"),
    (r"supported only for", r"supported only with"),
    (r"not supported for backend=sglang", r"must be true with backend sglang"),
    (r"divisible by block_size", r"divisible by block_size"),
    (r"cannot be empty", r"must not be empty"),
    (r"No such file", r"no such file"),
    (r"exceeds the engine contract", r"below 2\^32"),
]


def flatten(mapping: dict[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{path}{key}."))
        else:
            flat[path + key] = value
    return flat


def typed(value: Any) -> str:
    """Tells 1 from 1.0 and 0.0 from -0.0."""
    return repr(value)


def accepted(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [case for case in cases if "changes" in case and "differs" not in case]


@pytest.mark.parametrize("case", accepted(TABLE["cases"]), ids=lambda case: case["text"])
def test_normalised_settings_equal_the_reference(case: dict[str, Any]) -> None:
    changes = flatten(case["changes"])
    expected = flatten(TABLE["defaults"])
    for key in changes:  # a fixed timing model has keys that the default has not, and the other way round
        for parent in [known for known in expected if key.startswith(f"{known}.")]:
            del expected[parent]
    expected.update(changes)
    actual = flatten(load_engine_config(case["text"]).to_mapping())
    assert {key: typed(value) for key, value in actual.items()} == {key: typed(v) for key, v in expected.items()}


@pytest.mark.parametrize("case", [c for c in TABLE["cases"] if "error" in c], ids=lambda case: case["text"])
def test_the_first_fault_is_the_reference_s(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_engine_config(case["text"])
    first = caught.value.faults[0]
    ours = next(our for theirs, our in CLASSES if re.search(theirs, case["error"]))
    assert re.search(ours, first.rule), f"{case['error']} | {first}"
    field = case["field"]
    exact = first.field == field or first.field.startswith(f"{field}.")
    assert exact or (not field and first.field == ""), f"{case['field']} | {first.field}"


@pytest.mark.parametrize("case", [c for c in TABLE["cases"] if "differs" in c], ids=lambda case: case["text"])
def test_where_ours_is_stricter(case: dict[str, Any]) -> None:
    """Positional lists, a choice written as a mapping and keys given twice: docs/deviations.md."""
    assert "changes" in case
    with pytest.raises(ConfigError):
        load_engine_config(case["text"])


def test_the_order_of_keys_is_the_reference_s() -> None:
    mapping = load_engine_config(None).to_mapping()
    assert json.dumps(mapping) == json.dumps(TABLE["defaults"])
