"""The profile of a trace, by hand on small ones and against brute force on random ones."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.trace import open_trace
from mocker_replay.trace.check import Pool, Spread, TraceProfile, profile_trace


def row(timestamp: float | None, hash_ids: list[int], tokens: int, output: int = 2, **fields: Any) -> dict[str, Any]:
    return {"timestamp": timestamp, "hash_ids": hash_ids, "input_length": tokens, "output_length": output, **fields}


def profile_of(tmp_path: Path, *rows: dict[str, Any], pool: Pool | None = None, **options: Any) -> TraceProfile:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    with open_trace(path, trace_block_size=4, **options) as source:
        return profile_trace(source, pool)


def test_rows_sessions_and_times(tmp_path: Path) -> None:
    profile = profile_of(
        tmp_path,
        row(0, [1], 4, session_id="a", request_id="x"),
        row(500, [2], 4, output=0, request_id="y"),
        row(0, [3], 4),
        row(100, [4], 4, session_id="a", request_id="x"),
        row(130, [5], 4, session_id="a"),
        row(1000, [6], 4, session_id="b"),
    )
    assert (profile.num_rows, profile.num_sessions, profile.num_multi_turn_sessions, profile.max_turns) == (6, 4, 1, 3)
    assert (profile.span_ms, profile.mean_arrivals_per_s, profile.is_sorted) == (1000.0, 3.0, False)
    assert (profile.num_tied_arrivals, profile.max_arrivals_at_once) == (2, 2)
    assert profile.think_time_ms == Spread(30.0, 65.0, 100.0, 100.0, 100.0, 100.0, 130.0)
    assert (profile.num_zero_output_rows, profile.num_repeated_request_ids) == (1, 1)
    assert (profile.timestamp_unit, profile.likely_timestamp_unit, profile.misfits) == ("ms", "ms", None)


def test_patience(tmp_path: Path) -> None:
    rows = [row(0, [1], 4, cancel_after_ms=patience) for patience in (40, None, 10, 20.5)]
    profile = profile_of(tmp_path, *rows)
    assert profile.num_rows_with_patience == 3
    assert profile.cancel_after_ms == Spread(10.0, 23.5, 20.5, 40.0, 40.0, 40.0, 70.5)
    staying = profile_of(tmp_path, rows[1])
    assert (staying.num_rows_with_patience, staying.cancel_after_ms) == (0, None)


def test_a_burst_and_a_closed_loop_have_no_rate(tmp_path: Path) -> None:
    burst = profile_of(tmp_path, row(5, [1], 4), row(5, [2], 4))
    assert (burst.mean_arrivals_per_s, burst.num_tied_arrivals, burst.think_time_ms) == (None, 2, None)
    closed = profile_of(tmp_path, row(None, [1], 4), row(None, [2], 4), closed_loop=True)
    assert (closed.span_ms, closed.num_tied_arrivals, closed.max_arrivals_at_once) == (0.0, 0, 0)


def test_lengths_by_nearest_rank(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, *(row(i, list(range(30)), n) for i, n in enumerate([40, 10, 30, 20])))
    assert profile.input_tokens == Spread(10, 25.0, 30, 40, 40, 40, 100)


def test_sharing_counts_leading_blocks_that_an_earlier_row_had(tmp_path: Path) -> None:
    profile = profile_of(
        tmp_path,
        row(0, [1, 2, 3], 12),
        row(1, [1, 2, 4], 12),  # 8 tokens
        row(2, [9, 2, 3], 12),  # 2 and 3 stand behind another prefix
        row(3, [1, 2, 3], 10),  # all 10
        row(4, [1, 9, 3], 12),  # 4 tokens
    )
    assert profile.num_rows_sharing_prefix == 3
    assert profile.reusable_input_ratio == 22 / 58
    assert (profile.num_blocks, profile.num_distinct_blocks) == (15, 9)


def test_sharing_against_brute_force(tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = [row(i, [rng.randrange(3) for _ in range(4)], rng.randint(13, 16)) for i in range(300)]
    earlier: set[tuple[int, ...]] = set()
    tokens = 0
    for one in rows:
        prefixes = [tuple(one["hash_ids"][: n + 1]) for n in range(4)]
        num_shared = next((n for n, prefix in enumerate(prefixes) if prefix not in earlier), 4)
        tokens += min(4 * num_shared, one["input_length"])
        earlier.update(prefixes)
    profile = profile_of(tmp_path, *rows)
    assert profile.reusable_input_ratio == tokens / sum(one["input_length"] for one in rows)
    assert profile.num_distinct_blocks == len(earlier)


@pytest.mark.parametrize(
    ("tokens", "output", "outcome"),
    [
        (16, 1, None),  # fills the pool; the last token needs no place
        (16, 2, "failed"),
        (12, 5, None),
        (12, 6, "failed"),
        (17, 0, "rejected"),
        (16, 0, None),
    ],
)
def test_requests_that_cannot_fit(tmp_path: Path, tokens: int, output: int, outcome: str | None) -> None:
    big = row(0, list(range(math.ceil(tokens / 4))), tokens, output)
    profile = profile_of(tmp_path, row(0, [99], 1), big, pool=Pool(num_gpu_blocks=4, block_size=4))
    found = [(misfit.outcome, misfit.count, misfit.lines) for misfit in profile.misfits or ()]
    assert found == ([] if outcome is None else [(outcome, 1, (2,))])


def test_max_model_len_rejects_long_prompts_and_bounds_growth(tmp_path: Path) -> None:
    rows = [row(0, list(range(4)), tokens, output) for tokens, output in [(9, 1), (10, 1), (8, 100), (16, 1)]]
    profile = profile_of(tmp_path, *rows, pool=Pool(4, 4, max_model_len=10))
    assert [(m.outcome, m.count, m.lines) for m in profile.misfits or ()] == [("rejected", 2, (2, 4))]
    assert "max_model_len 10" in (profile.misfits or ())[0].reason


def test_instants_are_counted_once(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, *(row(at, [1], 4) for at in (0, 5, 5, 5, 9, 9)))
    assert (profile.num_distinct_arrivals, profile.num_tied_arrivals, profile.max_arrivals_at_once) == (3, 5, 3)


def test_the_public_conversation_trace(shared_traces: Path) -> None:
    with open_trace(shared_traces / "mooncake-conversation.jsonl") as source:
        profile = profile_trace(source)
    assert (profile.num_rows, profile.num_sessions, profile.max_turns) == (12_031, 12_031, 1)
    assert (profile.num_distinct_arrivals, profile.max_arrivals_at_once) == (1_180, 28)
    assert profile.input_tokens.total == 144_793_823
