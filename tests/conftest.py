"""What all tests share: factories, Hypothesis profiles, the folder of the public traces."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Installed, pytest finds it by itself; in a checkout that is only built, here.
pytest_plugins = ["mocker_replay.pytest_plugin"]

ROOT = Path(__file__).resolve().parent.parent
# `pytest` tries few examples and the same ones each time; HYPOTHESIS_PROFILE=thorough looks for new ones.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=60)
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=2_000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

MakeTrace = Callable[..., Path]


def make_row(timestamp: float = 0, input_length: int = 16, output_length: int = 2, **fields: Any) -> dict[str, Any]:
    """A Mooncake row; hash ids are private to nobody unless given: block k of every prompt is k."""
    hash_ids = fields.pop("hash_ids", list(range(-(-input_length // 512))))
    return {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": hash_ids,
        **fields,
    }


@pytest.fixture
def make_trace(tmp_path: Path) -> MakeTrace:
    """Writes rows (or lines as they are) to a file of its own and returns its path."""

    def write(rows: Iterable[Mapping[str, Any] | str], name: str = "trace.jsonl") -> Path:
        path = tmp_path / name
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of the public Mooncake traces, beside the checkout. Where it must be there, its absence fails."""
    folder = Path(os.environ.get("MR_SHARED_TRACES", ROOT.parent / "shared" / "traces"))
    if not folder.is_dir():
        reason = "the public traces are not there (MR_SHARED_TRACES names their folder)"
        if os.environ.get("MR_REQUIRE_TRACES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder
