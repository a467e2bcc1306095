"""Pipelines of transforms against a slow model, their laws, and that a run of them is the run of the converted file."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from mocker_replay.config import ReplayOptions
from mocker_replay.errors import UsageError
from mocker_replay.replay import replay
from mocker_replay.report.summary import without_wall_clock
from mocker_replay.trace import RowBatch, TraceFacts, TraceSource, concatenate, open_trace
from mocker_replay.trace.mooncake_writer import MooncakeWriter
from mocker_replay.trace.transforms import transformed
from tests.model import transforms as model
from tests.property.replays import TRACE_BLOCK_SIZE, Case, cases, traces

few = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
factors = st.sampled_from(["0.1", "0.5", "0.3333", "1", "1.7", "3"])
texts = st.one_of(
    st.tuples(st.integers(0, 20), st.integers(1, 40)).map(lambda w: f"window={w[0] / 2}ms:{(w[0] + w[1]) / 2}ms"),
    st.integers(1, 20).map(lambda n: f"limit-rows={n}"),
    st.tuples(st.sampled_from(["0.3", "0.6", "1"]), st.integers(0, 3)).map(lambda s: f"sample={s[0]},seed={s[1]}"),
    st.tuples(st.sampled_from(["scale-arrivals", "scale-delays", "scale-input", "scale-output"]), factors).map(
        "=".join
    ),
    st.sampled_from(["0", "0.5", "7"]).map(lambda gap: f"cap-gap-ms={gap}"),
    st.sampled_from(["0", "0.5", "2"]).map(lambda delay: f"cap-delay-ms={delay}"),
    st.sampled_from(["renumber-hash-ids", "renumber-request-ids"]),
)
ties = st.integers(0, 5).map(lambda seed: f"shuffle-ties={seed}")
pipelines = st.lists(texts, min_size=1, max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transforms")


def opened(folder: Path, rows: list[dict[str, Any]], pipeline: list[str]) -> TraceSource:
    path = folder / "rows.jsonl"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return transformed(open_trace(path, trace_block_size=TRACE_BLOCK_SIZE), pipeline)


def read(source: TraceSource, max_rows: int = 3) -> tuple[TraceFacts, RowBatch]:
    try:
        facts = source.scan()
        batches = list(source.batches(max_rows))
    finally:
        source.close()
    assert all(1 <= len(batch) <= max_rows for batch in batches)
    assert [batch.first_row for batch in batches] == list(np.cumsum([0, *map(len, batches)])[:-1])
    return facts, concatenate(batches)


def as_rows(batch: RowBatch) -> list[model.Row]:
    """The rows of a batch in the words of the model."""
    rows = []
    for at in range(len(batch)):
        name, line = batch.session_names[at], int(batch.lines[at])
        time_ms = batch.timestamp_ms[at].item()
        rest = [batch.priority[at].item(), batch.strict_priority[at].item()]
        for column in (batch.cancel_after_ms, batch.deadline_ms):
            rest.append(math.inf if column is None else column[at].item())
        rows.append(
            model.Row(
                line,
                f"request_{line}" if name is None else name,
                name is not None,
                int(batch.turn[at]),
                None if math.isnan(time_ms) else time_ms,
                batch.delay_ms[at].item(),
                int(batch.input_tokens[at]),
                int(batch.output_tokens[at]),
                tuple(batch.hash_ids[batch.hash_offsets[at] : batch.hash_offsets[at + 1]].tolist()),
                None if batch.request_ids is None else batch.request_ids[at],
                tuple(rest),
            )
        )
    return rows


@few
@given(traces(), pipelines, st.integers(1, 5))
def test_what_comes_out_is_what_the_model_says(
    folder: Path, rows: list[dict[str, Any]], pipeline: list[str], max_rows: int
) -> None:
    _, source = read(opened(folder, rows, []))
    expected = model.relative(as_rows(source))
    for text in pipeline:
        expected = model.apply(expected, text, TRACE_BLOCK_SIZE)
        if not expected:
            with pytest.raises(UsageError, match=f"leaves none of the {len(rows)} rows"):
                read(opened(folder, rows, pipeline))
            return
    facts, batch = read(opened(folder, rows, pipeline), max_rows)
    found = as_rows(batch)
    names: dict[str, int] = {}
    for number, (row, wanted) in enumerate(zip(found, expected, strict=True), 1):
        session = wanted.session if wanted.is_named else f"request_{number}"
        time_ms = None if row.time_ms is None else row.time_ms - _zero(source, pipeline)
        assert dataclasses.replace(row, time_ms=time_ms) == dataclasses.replace(wanted, line=number, session=session)
        assert batch.session[number - 1] == names.setdefault(session, len(names))
    arrivals = [row.time_ms for row in found if row.turn == 0]
    assert facts.num_rows == len(found)
    assert facts.num_sessions == len(names)
    assert facts.is_multi_turn == (len(names) < len(found))
    assert facts.is_sorted == (not facts.is_multi_turn and arrivals == sorted(arrivals))
    assert (facts.min_first_timestamp_ms, facts.max_first_timestamp_ms) == (min(arrivals), max(arrivals))
    assert facts.total_input_tokens == sum(row.input_tokens for row in found)
    assert facts.total_output_tokens == sum(row.output_tokens for row in found)
    assert facts.has_request_ids == any(row.request_id is not None for row in found)
    assert facts.has_sessions == any(row.is_named for row in found)


def _zero(source: RowBatch, pipeline: list[str]) -> float:
    """Where the clock of the transformed rows has its 0."""
    moved = any(text.startswith(("scale-arrivals", "cap-gap-ms")) for text in pipeline)
    return 0.0 if moved else float(np.nanmin(source.timestamp_ms[source.turn == 0]))


@few
@given(traces(), st.integers(0, 2**64 - 1), st.data())
def test_a_larger_sample_keeps_what_a_smaller_one_kept(
    folder: Path, rows: list[dict[str, Any]], seed: int, data: st.DataObject
) -> None:
    def sampled(ratio: float) -> list[str]:
        source = opened(folder, rows, [f"sample={ratio},seed={seed}"])
        try:
            _, batch = read(source)
        except UsageError:
            return []
        return [json.dumps(dataclasses.asdict(dataclasses.replace(r, line=0, session=""))) for r in as_rows(batch)]

    small, large = sorted(data.draw(st.tuples(*[st.sampled_from([0.05, 0.2, 0.5, 0.7, 0.9])] * 2)))
    whole, more, less = iter(sampled(1.0)), sampled(large), sampled(small)
    assert all(row in whole for row in more)  # in their order: an iterator only goes on
    kept = iter(more)
    assert all(row in kept for row in less)


@few
@given(traces(), st.integers(0, 2**64 - 1))
def test_shuffled_ties_move_nobody_else(folder: Path, rows: list[dict[str, Any]], seed: int) -> None:
    _, source = read(opened(folder, rows, []))
    _, batch = read(opened(folder, rows, [f"shuffle-ties={seed}"]))
    before, after = (
        [dataclasses.replace(row, line=0, session=row.session if row.is_named else "") for row in as_rows(b)]
        for b in (source, batch)
    )
    assert sorted(map(repr, before)) == sorted(map(repr, after))
    times = [row.time_ms for row in before if row.turn == 0]
    assert [row.time_ms for row in after if row.turn == 0] == times
    alone = {time for time in times if times.count(time) == 1}
    firsts = ([row for row in side if row.turn == 0] for side in (before, after))
    assert all(a == b for a, b in zip(*firsts, strict=True) if a.time_ms in alone)
    for name in {row.session for row in after if row.is_named}:
        turns = [row.turn for row in after if row.session == name and row.is_named]
        assert turns == list(range(len(turns)))


def run_of(folder: Path, text: bytes, case: Case, options: ReplayOptions) -> dict[str, Any]:
    """All a run gives that no clock has a say in."""
    trace = folder / "trace.jsonl"
    trace.write_bytes(text)
    names = {"events": folder / "events.jsonl", "requests": folder / "requests.jsonl"}
    result = replay(trace, case.config, options, event_level=case.level, **names)
    log, requests = (path.read_bytes() for path in names.values())
    return {"log": log, "requests": requests, "summary": without_wall_clock(result.summary)}


@few
@given(cases(), st.lists(st.one_of(texts, ties), max_size=3))
def test_a_run_of_transformed_rows_is_the_run_of_the_converted_file(
    folder: Path, case: Case, pipeline: list[str]
) -> None:
    closed_loop = case.options.replay_concurrency is not None
    source = opened(folder, case.rows, pipeline)
    writer = MooncakeWriter()
    try:
        text = b"".join(writer.lines(batch) for batch in source.batches(5))
    except UsageError:
        assume(False)
    finally:
        source.close()
    assert writer.num_inexact == 0
    options = structs.replace(case.options, transforms=tuple(pipeline))
    first = run_of(folder, b"".join(orjson.dumps(row) + b"\n" for row in case.rows), case, options)
    second = run_of(folder, text, case, case.options)
    told = first["summary"].pop("transformed_trace", None)
    assert (told is None) == (not pipeline)
    headers = []
    for side in (first, second):
        head, _, side["log"] = side["log"].partition(b"\n")
        headers.append(orjson.loads(head))
    assert first == second
    if told is not None:
        trace = headers[0]["trace"]
        assert trace["digest"] == told["digest"] != headers[1]["trace"]["digest"]
        assert trace["transforms"] == told["transforms"]
        assert headers[0]["options"]["transforms"] == pipeline
    assert "transforms" not in headers[1]["trace"]
    assert "transforms" not in headers[1]["options"]
    assert closed_loop == (headers[1]["options"]["replay_concurrency"] is not None)
