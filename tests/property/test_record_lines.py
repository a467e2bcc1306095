"""Whole replays: the records as the core writes them, and runs whose passes nobody reads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from mocker_replay._core.record_lines import COUNTS, SMALLS, TIMES, RecordLines
from tests.property.replays import Case, cases, run

some = settings(
    max_examples=60, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@given(cases())
@some
def test_lines_of_records_are_those_of_the_report(folder: Path, case: Case) -> None:
    outputs = run(case, folder)
    records = [orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in outputs.result.records()]
    assert outputs.requests == b"".join(records)


@given(cases())
@some
def test_a_run_is_the_same_whether_its_passes_are_read_or_not(folder: Path, case: Case) -> None:
    """A log of requests lets quiet passes be skipped, one of passes does not."""
    unread = run(dataclasses.replace(case, level="requests"), folder).bare()
    read = run(dataclasses.replace(case, level="passes"), folder).bare()
    assert unread["requests"] == read["requests"]
    assert unread["summary"] == read["summary"]
    assert unread["exit_code"] == read["exit_code"]
    assert events_of_requests(unread["log"]) == events_of_requests(read["log"])


def events_of_requests(log: bytes) -> list[dict[str, Any]]:
    """Events of a log that tell of requests, without their numbers."""
    events = [orjson.loads(line) for line in log.splitlines()[1:-1]]
    told = [event for event in events if event["event"] not in ("command", "pass_start", "pass_end", "decision")]
    return [{name: value for name, value in event.items() if name != "seq"} for event in told]


def test_columns_must_fit_each_other() -> None:
    columns = {name: np.zeros(1) for name in TIMES} | {name: np.zeros(1, np.int64) for name in COUNTS}
    columns |= {name: np.zeros(1, np.int32) for name in SMALLS} | {"status": np.zeros(1, np.int8)}
    with pytest.raises(ValueError, match="2 names, but 1 entries"):
        RecordLines(columns, 0, 1, [b'"r0"', b'"r1"'], [b'"u"', b'"u"'], None)
    with pytest.raises(ValueError, match="1 names, but 2 entries"):
        RecordLines(columns, 0, 1, [b'"r0"'], [b'"u"', b'"u"'], None)
