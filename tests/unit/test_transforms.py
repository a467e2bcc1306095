"""Transforms one by one: how they are written, what they do to a few rows, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from mocker_replay.config import ReplayOptions
from mocker_replay.errors import ExitCode, TraceError, UsageError
from mocker_replay.replay import replay
from mocker_replay.trace import RowBatch, TraceFacts, concatenate, open_trace
from mocker_replay.trace.base import MAX_TOKENS
from mocker_replay.trace.transforms import FORMS, pipeline_digest, read_transforms, transformed
from mocker_replay.trace.transforms.lengths import unused_ids
from tests.conftest import MakeTrace, make_row

TALK = [
    make_row(1000, 600, 4, hash_ids=[7, 8], session_id="a", request_id="x"),
    make_row(1000, 512, 4, hash_ids=[7]),
    make_row(1100, 1200, 4, hash_ids=[7, 8, 9], session_id="a"),
    make_row(1500, 100, 0, hash_ids=[3], session_id="b"),
    make_row(61_000, 100, 9, hash_ids=[4]),
]


def read(path: Path, *texts: str, **options: Any) -> tuple[TraceFacts, RowBatch]:
    source = transformed(open_trace(path, **options), texts)
    try:
        return source.scan(), concatenate(list(source.batches()))
    finally:
        source.close()


def ids_of(batch: RowBatch) -> list[list[int]]:
    return [ids.tolist() for ids in np.split(batch.hash_ids, batch.hash_offsets[1:-1])]


# -- how they are written -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("window=0:60s", "window=0ms:60000ms"),
        ("window=1.5s:2min", "window=1500ms:120000ms"),
        (" window=:1h ", "window=0ms:3600000ms"),
        ("window=250us:", "window=0.25ms:"),
        ("limit-rows=12", "limit-rows=12"),
        ("sample=0.1", "sample=0.1,seed=0"),
        ("sample=1e-1,seed=7", "sample=0.1,seed=7"),
        ("scale-arrivals=2", "scale-arrivals=2"),
        ("scale-delays=0.50", "scale-delays=0.5"),
        ("scale-input=2.0", "scale-input=2"),
        ("scale-output=.25", "scale-output=0.25"),
        ("cap-gap-ms=0", "cap-gap-ms=0"),
        ("cap-delay-ms=1e3", "cap-delay-ms=1000"),
        ("shuffle-ties=18446744073709551615", "shuffle-ties=18446744073709551615"),
        ("renumber-hash-ids", "renumber-hash-ids"),
        ("renumber-request-ids", "renumber-request-ids"),
    ],
)
def test_a_transform_has_one_canonical_text(text: str, canonical: str) -> None:
    (step,) = read_transforms([text])
    assert step.text == canonical
    assert read_transforms([canonical]) == (step,)


def test_every_form_has_a_test_above() -> None:
    tested = {case[1].partition("=")[0] for case in test_a_transform_has_one_canonical_text.pytestmark[0].args[1]}
    assert tested == {form.partition("=")[0] for form in FORMS}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "no such transform; known are window, limit-rows"),
        ("sampel=0.1", "no such transform; did you mean sample?"),
        ("window", "must be written window=START:END"),
        ("window=", "must be written window=START:END"),
        ("window=60s", "must be written window=START:END"),
        ("window=0:60", "60 must have its unit (us, ms, s, min, h)"),
        ("window=0:60d", "60d must be a number with its unit"),
        ("window=-1s:2s", "-1s must be finite and not negative"),
        ("window=0:1e999h", "1e999h must be finite and not negative"),
        ("window=2s:2s", "must end after its start"),
        ("limit-rows=0", "0 must be a whole number from 1"),
        ("limit-rows=1.5", "1.5 must be a whole number"),
        ("limit-rows=", "the value must be a whole number"),
        ("sample=0", "must be above 0 and at most 1"),
        ("sample=1.01", "must be above 0 and at most 1"),
        ("sample=nan", "must be above 0 and at most 1"),
        ("sample=half", "half must be a number"),
        ("sample=0.1,sed=3", "must be written sample=RATIO or sample=RATIO,seed=SEED"),
        ("sample=0.1,seed=-3", "-3 must be a whole number from 0 to 18446744073709551615"),
        ("sample=0.1,seed=1,seed=2", "must be written sample=RATIO"),
        ("scale-arrivals=-2", "must be finite and positive"),
        ("scale-input=0", "must be finite and positive"),
        ("scale-output=inf", "must be finite and positive"),
        ("cap-gap-ms=-1", "must be finite and not negative"),
        ("cap-delay-ms=", "the value must be a number"),
        ("shuffle-ties=18446744073709551616", "must be a whole number from 0 to 18446744073709551615"),
        ("renumber-hash-ids=3", "must be written renumber-hash-ids"),
    ],
)
def test_what_is_no_transform(text: str, rule: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_transforms([text])
    (fault,) = caught.value.faults
    assert rule in fault.rule
    assert (fault.file, fault.value) == ("transforms", text)
    assert caught.value.exit_code is ExitCode.USAGE


def test_all_faults_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        read_transforms(["sample=2", "window=0:1s", "scale-input=-1"], "--transform")
    assert [(fault.file, fault.value) for fault in caught.value.faults] == [
        ("--transform", "sample=2"),
        ("--transform", "scale-input=-1"),
    ]


# -- what they do -------------------------------------------------------------------------------------


def test_a_window_keeps_sessions_whole(make_trace: MakeTrace) -> None:
    facts, batch = read(make_trace(TALK), "window=0:50ms")
    assert batch.session_names == ["a", None, "a"]
    assert batch.lines.tolist() == [1, 2, 3]
    assert batch.delay_ms.tolist() == [0, 0, 100]
    assert (facts.num_rows, facts.num_sessions, facts.span_ms) == (3, 2, 0.0)
    _, batch = read(make_trace(TALK), "window=500ms:1min")
    assert batch.timestamp_ms.tolist() == [1500]
    assert read(make_trace(TALK), "window=500ms:60001ms")[0].num_rows == 2


def test_rows_are_cut_off_at_the_end(make_trace: MakeTrace) -> None:
    assert read(make_trace(TALK), "limit-rows=2")[1].session_names == ["a", None]
    assert read(make_trace(TALK), "limit-rows=99")[0].num_rows == 5


def test_order_matters(make_trace: MakeTrace) -> None:
    path = make_trace(TALK)
    assert read(path, "limit-rows=4", "window=500ms:")[0].num_rows == 1
    assert read(path, "window=500ms:", "limit-rows=4")[0].num_rows == 2
    assert read(path, "scale-arrivals=0.1", "window=:100ms")[0].num_rows == 4
    assert read(path, "window=:100ms", "scale-arrivals=0.1")[0].num_rows == 3


def test_a_sample_is_by_the_name_of_the_session(make_trace: MakeTrace) -> None:
    rows = [make_row(n, 10, 1, session_id=f"s{n % 300}") for n in range(900)]
    facts, batch = read(make_trace(rows), "sample=0.25,seed=3")
    assert 55 <= facts.num_sessions <= 95
    assert facts.num_rows == 3 * facts.num_sessions
    shuffled = make_trace([dict(row, timestamp=900 + number) for number, row in enumerate(rows[300:] + rows[:300])])
    assert set(read(shuffled, "sample=0.25,seed=3")[1].session_names) == set(batch.session_names)
    assert set(read(make_trace(rows), "sample=0.25,seed=4")[1].session_names) != set(batch.session_names)
    first = int.from_bytes(blake3(b"3:s0").digest(length=8), "little") < 2**62
    assert first == ("s0" in batch.session_names)


def test_arrivals_are_scaled_from_the_first_one_on(make_trace: MakeTrace) -> None:
    facts, batch = read(make_trace(TALK), "scale-arrivals=0.3")
    assert batch.timestamp_ms[[0, 1, 3, 4]].tolist() == [0, 0, 150, 18000]
    assert np.isnan(batch.timestamp_ms[2])  # it follows the answer before it
    assert batch.delay_ms.tolist() == [0, 0, 100, 0, 0]
    assert facts.span_ms == 18000
    assert read(make_trace(TALK), "scale-delays=0.3333")[1].delay_ms.tolist() == [0, 0, 33.33, 0, 0]
    assert read(make_trace(TALK), "cap-delay-ms=12.5")[1].delay_ms.tolist() == [0, 0, 12.5, 0, 0]
    with pytest.raises(UsageError, match="beyond the range of float64"):
        read(make_trace(TALK), "scale-arrivals=1e308")


def test_long_gaps_are_capped_and_short_ones_stay(make_trace: MakeTrace) -> None:
    rows = [make_row(at_ms, 10, 1) for at_ms in (5000, 100, 130.25, 130.25, 5001, 100_000)]
    facts, batch = read(make_trace(rows), "cap-gap-ms=40")
    assert batch.timestamp_ms.tolist() == [70.25, 0, 30.25, 30.25, 71.25, 111.25]
    assert (facts.is_sorted, facts.span_ms) == (False, 111.25)
    assert read(make_trace(rows), "cap-gap-ms=0")[0].span_ms == 0


def test_prompts_are_cut_or_get_ids_that_nobody_has(make_trace: MakeTrace) -> None:
    path = make_trace(TALK)
    _, batch = read(path, "scale-input=0.5")
    assert batch.input_tokens.tolist() == [300, 256, 600, 50, 50]
    assert ids_of(batch) == [[7], [7], [7, 8], [3], [4]]
    _, batch = read(path, "scale-input=2")
    assert batch.input_tokens.tolist() == [1200, 1024, 2400, 200, 200]
    assert ids_of(batch) == [[7, 8, 10], [7, 11], [7, 8, 9, 12, 13], [3], [4]]
    assert read(path, "scale-input=0.0001")[1].input_tokens.tolist() == [1] * 5
    _, batch = read(path, "scale-output=0.1")
    assert batch.output_tokens.tolist() == [1, 1, 1, 0, 1]
    with pytest.raises(UsageError, match=rf"makes more than {MAX_TOKENS} tokens of 600 \(line 1 and 4 more\)"):
        read(path, "scale-input=1e9")


def test_ids_that_nobody_has() -> None:
    used = np.array([0, 1, 3, 2**64 - 1], np.uint64)
    assert unused_ids(used, 3).tolist() == [2, 4, 5]
    assert unused_ids(used[:3], 2).tolist() == [4, 5]
    assert unused_ids(used, 0).tolist() == []
    assert unused_ids(np.array([2**64 - 2], np.uint64), 1).tolist() == [2**64 - 1]


def test_ties_are_shuffled_by_the_seed(make_trace: MakeTrace) -> None:
    rows = [make_row(0 if n < 9 else n, 10, n) for n in range(12)]
    path = make_trace(rows)
    orders = {seed: read(path, f"shuffle-ties={seed}")[1].output_tokens.tolist() for seed in range(8)}
    assert all(sorted(order[:9]) == list(range(9)) and order[9:] == [9, 10, 11] for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 8
    assert read(path, "shuffle-ties=3")[1].output_tokens.tolist() == orders[3]


def test_ids_are_made_anew(make_trace: MakeTrace) -> None:
    path = make_trace(TALK)
    assert ids_of(read(path, "renumber-hash-ids")[1]) == [[0, 1], [0], [0, 1, 2], [3], [4]]
    facts, batch = read(path, "renumber-request-ids", "limit-rows=2")
    assert (batch.request_ids, facts.has_request_ids) == (["r0", "r1"], True)
    assert not read(path, "window=500ms:")[0].has_request_ids


# -- what they are called, and what they refuse -------------------------------------------------------


def test_the_digest_stands_for_text_and_source(make_trace: MakeTrace) -> None:
    path = make_trace(TALK)
    source = read(path)[0]
    assert source.lineage is None
    assert source.digest == blake3(path.read_bytes()).hexdigest()
    facts = read(path, "window=0:1min", "sample=1")[0]
    steps = ("window=0ms:60000ms", "sample=1,seed=0")
    expected = "\n".join(("mocker-replay.transforms/1", *steps, source.digest))
    assert facts.digest == pipeline_digest(steps, source.digest) == blake3(expected.encode()).hexdigest()
    assert facts.lineage is not None
    assert (facts.lineage.steps, facts.lineage.source_digest) == (steps, source.digest)
    assert (facts.lineage.source_rows, facts.lineage.rows_after) == (5, (4, 4))
    assert read(path, "window=0s:60s", "sample=1.0,seed=0")[0].digest == facts.digest
    assert read(path, "sample=1", "window=0:1min")[0].digest != facts.digest


def test_a_trace_of_which_nothing_is_left(make_trace: MakeTrace) -> None:
    path = make_trace(TALK)
    rule = r"transforms: leaves none of the 5 rows of trace.jsonl \(got window=7200000ms:\)"
    with pytest.raises(UsageError, match=rule) as caught:
        read(path, "limit-rows=4", "window=2h:", "cap-gap-ms=1", "shuffle-ties=1", "scale-input=2")
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_window_needs_arrival_times(make_trace: MakeTrace) -> None:
    rows = [{key: value for key, value in make_row().items() if key != "timestamp"}] * 3
    with pytest.raises(UsageError, match="needs an arrival time in the first row of each session"):
        read(make_trace(rows), "window=0:1s", closed_loop=True)
    facts, batch = read(make_trace(rows), "cap-gap-ms=3", "scale-arrivals=2", "shuffle-ties=1", closed_loop=True)
    assert np.isnan(batch.timestamp_ms).all()
    assert (facts.num_rows, facts.span_ms) == (3, 0.0)


def test_faults_of_the_trace_come_first_and_the_file_is_given_back(make_trace: MakeTrace) -> None:
    path = make_trace(["{}", "[]"])
    with pytest.raises(TraceError):
        read(path, "window=2h:")
    with pytest.raises(UsageError, match="no such transform"):
        transformed(open_trace(path), ["windw=2h:"])


def test_surplus_ids_are_no_part_of_it(make_trace: MakeTrace) -> None:
    _, batch = read(make_trace([make_row(0, 600, 1, hash_ids=[5, 6, 7])]), "scale-input=2", "renumber-hash-ids")
    assert (ids_of(batch), batch.surplus_included) == ([[0, 1, 2]], None)


def test_batches_are_as_small_as_asked_for(make_trace: MakeTrace) -> None:
    source = transformed(open_trace(make_trace(TALK)), ["scale-output=2", "cap-gap-ms=5"])
    batches = list(source.batches(2))
    source.close()
    assert [(batch.first_row, len(batch)) for batch in batches] == [(0, 2), (2, 2), (4, 1)]
    assert concatenate(batches).session.tolist() == [0, 1, 0, 2, 3]


# -- in a run -----------------------------------------------------------------------------------------


def test_a_run_says_what_was_done_and_others_do_not(make_trace: MakeTrace, tmp_path: Path) -> None:
    path = make_trace(TALK)
    log = tmp_path / "log.jsonl"
    done = replay(path, options=ReplayOptions(transforms=("limit-rows=2",)), events=log)
    header = json.loads(log.read_text().splitlines()[0])
    source = read(path)[0]
    told = {"transforms": ["limit-rows=2"], "source_digest": source.digest, "source_rows": 5}
    digest = pipeline_digest(["limit-rows=2"], source.digest)
    assert done.summary["transformed_trace"] == {"digest": digest, "rows": 2, **told}
    assert header["trace"].items() >= {**told, "digest": digest, "rows": 2}.items()
    assert header["options"]["transforms"] == ["limit-rows=2"]
    plain = replay(path, events=log)
    header = json.loads(log.read_text().splitlines()[0])
    assert "transformed_trace" not in plain.summary
    assert not {"transforms", "source_digest", "source_rows"} & (header["trace"].keys() | header["options"].keys())


def test_options_take_a_list_of_texts() -> None:
    options = ReplayOptions(transforms=["limit-rows=2"])  # type: ignore[arg-type]
    assert options == ReplayOptions(transforms=("limit-rows=2",))
    options.validate()
    for wrong in ("limit-rows=2", [1], None):
        with pytest.raises(UsageError, match="transforms: must be a list of texts"):
            ReplayOptions(transforms=wrong).validate()  # type: ignore[arg-type]
