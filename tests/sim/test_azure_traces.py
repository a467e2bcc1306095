"""The public Azure traces: every row as it is in the file, and a whole replay."""

from __future__ import annotations

import datetime
from fractions import Fraction
from pathlib import Path

import pytest

from mocker_replay.config import ReplayOptions
from mocker_replay.replay import replay
from mocker_replay.trace import concatenate, open_trace

# Rows, prompt and output tokens, as other tools count them.
FIGURES = {"azure-llm-2023-code.csv": (8819, 18059974, 245896), "azure-llm-2023-conv.csv": (19366, 22361870, 4088665)}


@pytest.mark.parametrize("name", FIGURES)
def test_arrivals_are_exact_and_lengths_as_given(shared_traces: Path, name: str) -> None:
    with open_trace(shared_traces / name, trace_format="auto") as source:
        facts, batch = source.scan(), concatenate(list(source.batches()))
    assert (facts.num_rows, facts.total_input_tokens, facts.total_output_tokens) == FIGURES[name]
    rows = [line.split(",") for line in (shared_traces / name).read_text().splitlines()[1:]]
    ticks = [ticks_of(row[0]) for row in rows]
    origin = min(ticks)
    assert batch.timestamp_ms.tolist() == [float(Fraction(tick - origin, 10_000)) for tick in ticks]
    assert batch.input_tokens.tolist() == [int(row[1]) for row in rows]
    assert batch.output_tokens.tolist() == [int(row[2]) for row in rows]


def ticks_of(text: str) -> int:
    """100 ns since some day, by the calendar of the standard library."""
    moment, fraction = text.split(".")
    parsed = datetime.datetime.fromisoformat(moment)
    return (parsed - datetime.datetime(2000, 1, 1)) // datetime.timedelta(seconds=1) * 10**7 + int(fraction)


@pytest.mark.parametrize("name", FIGURES)
def test_a_replay_loses_nobody(shared_traces: Path, name: str) -> None:
    result = replay(
        shared_traces / name,
        options=ReplayOptions(trace_format="auto", num_workers=4, estimate_prefix="0.5:16"),
    )
    summary = result.summary
    assert (summary["completed_requests"], summary["total_input_tokens"], summary["total_output_tokens"]) == FIGURES[
        name
    ]
    # Half of each prompt, a half block rounded up, once the group is in the cache.
    assert 0.48 < summary["prefix_cache_reused_ratio"] < 0.54
    assert summary["trace_assumed"]["origin"].startswith("2023-11-16 18:1")
