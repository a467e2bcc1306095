"""Histories of sessions against their tokens: two blocks have one id exactly when they hold the same tokens."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mocker_replay.errors import TraceError
from mocker_replay.replay.history import Histories
from mocker_replay.trace.base import MAX_TOKENS, RowBatch

Row = dict[str, Any]


@st.composite
def traces(draw: st.DrawFn) -> list[Row]:
    """Rows of a few sessions in a tiny alphabet, with what became of each output."""
    rows = []
    for _ in range(draw(st.integers(1, 10))):
        num_output = draw(st.integers(0, 9))
        authored = draw(st.none() | st.lists(st.integers(0, 2), min_size=num_output, max_size=num_output))
        rows.append(
            {
                "session": draw(st.integers(0, 2)),
                "keys": draw(st.lists(st.integers(0, 2), min_size=8, max_size=8)),
                "input": draw(st.integers(1, 20)),
                "output": num_output,
                "authored": authored,
                "emitted": draw(st.sampled_from([num_output, num_output, 0]) | st.integers(0, num_output)),
            }
        )
    return rows


def batch_of(rows: list[Row], trace_block_size: int) -> RowBatch:
    counts = [-(-row["input"] // trace_block_size) for row in rows]
    zeros = np.zeros(len(rows))
    return RowBatch(
        first_row=0,
        lines=np.arange(1, len(rows) + 1),
        timestamp_ms=zeros,
        input_tokens=np.array([row["input"] for row in rows], np.int64),
        output_tokens=np.array([row["output"] for row in rows], np.int64),
        hash_offsets=np.concatenate(([0], np.cumsum(counts))),
        hash_ids=np.array(
            [row["keys"][at % 8] for row, n in zip(rows, counts, strict=True) for at in range(n)], np.uint64
        ),
        session=np.array([row["session"] for row in rows], np.int64),
        turn=zeros.astype(np.int32),
        delay_ms=zeros,
        session_names=[None] * len(rows),
        request_ids=None,
        priority=zeros.astype(np.int32),
        strict_priority=zeros.astype(np.int64),
        output_token_ids=[None if row["authored"] is None else array("I", row["authored"]) for row in rows],
    )


@settings(max_examples=300)
@given(traces(), st.integers(1, 7), st.integers(1, 6))
def test_ids_are_equal_where_tokens_are(rows: list[Row], trace_block_size: int, block_size: int) -> None:
    histories = Histories(batch_of(rows, trace_block_size), trace_block_size, block_size, "trace")
    tokens: dict[int, list[object]] = {}  # the slow model: everything said, token by token
    content_of: dict[int, tuple[object, ...]] = {}
    id_of: dict[tuple[object, ...], int] = {}
    last = {row["session"]: number for number, row in enumerate(rows)}
    for number, row in enumerate(rows):
        said = tokens.setdefault(row["session"], [])
        said += [row["keys"][at // trace_block_size % 8] for at in range(row["input"])]
        num_input = len(said)
        output = row["authored"] or [("untold", number, at) for at in range(row["output"])]
        whole = [*said, *output]
        got_input, ids = histories.begin(number)
        assert got_input == num_input
        assert len(ids) == -(-len(whole) // block_size)
        for at, key in enumerate(ids[: len(whole) // block_size]):
            content = tuple(whole[at * block_size : (at + 1) * block_size])
            assert content_of.setdefault(key, content) == content
            assert id_of.setdefault(content, key) == key
        said += output[: row["emitted"]]
        histories.end(number, row["emitted"], is_last=last[row["session"]] == number)
    assert not histories._sessions, "a session that is over is forgotten"


def test_a_history_beyond_all_bounds_is_refused() -> None:
    row = {"session": 0, "keys": [0] * 8, "input": MAX_TOKENS, "output": 1, "authored": None}
    with pytest.raises(TraceError, match="trace:1: input_length: must not make its session longer than"):
        Histories(batch_of([row], MAX_TOKENS), MAX_TOKENS, 64, "trace")
