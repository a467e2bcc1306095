"""Per-request records: equal to the listing of case files, and our further fields."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from mocker_replay._core.collector import COLUMN_TYPES
from mocker_replay.identity import stable_request_uuid
from mocker_replay.report.records import iter_records

from .recompute import RECOMPUTED, case_path, columns_of, facts_of

CASES = [case_path(name) for name in RECOMPUTED]
RECORDED = [path for path in CASES if isinstance(json.loads(path.read_text())["expect"]["per_request"], list)]
LISTED = [path for path in CASES if path not in RECORDED]
OURS = {"row", "name", "preemption_count", "failure_reason"}


def without_nulls(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None and value != [] and name not in OURS}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_records_equal_the_case(path: Path) -> None:
    case = json.loads(path.read_text())
    facts = facts_of(case)
    expected = case["expect"]["per_request"]
    sessions = sorted({row["session_id"] for row in expected if "session_id" in row})
    columns = dict(columns_of(json.loads(path.read_text())))
    if sessions:
        facts = structs.replace(facts, session_names=sessions, sessions_reported=True)
        columns["session"][: len(expected)] = [sessions.index(row["session_id"]) for row in expected]
        columns["turn"][: len(expected)] = [row["turn_index"] for row in expected]
    records = list(iter_records(columns, facts))
    assert len(records) == len(expected)
    for record, row in zip(records, expected, strict=True):
        mine = without_nulls(record)
        assert mine.pop("uuid") == str(stable_request_uuid(0, f"r{record['row']}"))
        for name in ("failure_needed_blocks", "failure_available_blocks"):
            mine.pop(name, None)
        second_ms = mine.pop("ttst_ms", math.nan)  # the case has the difference only, so its last bit is lost
        assert second_ms == pytest.approx(row.pop("ttst_ms", math.nan), rel=1e-9, nan_ok=True)
        assert mine == without_nulls(row)


@pytest.mark.parametrize("path", LISTED, ids=lambda path: path.stem)
def test_records_equal_the_listing(path: Path) -> None:
    case = json.loads(path.read_text())
    records = list(iter_records(columns_of(case), facts_of(case)))
    listed = case["expect"]["per_request"]
    for name in ("ttft_ms", "itl_ms", "e2e_latency_ms", "terminal_status", "readmission_count", "reused_input_tokens"):
        assert [record[name] for record in records] == listed[name], name
    admissions = [[[a["at_ms"], a["reused_input_tokens"]] for a in record["admission_history"]] for record in records]
    assert admissions == listed["admissions"]
    assert [record["routing_history"][0]["dp_rank"] for record in records] == listed["dp_rank"]


def test_readmissions_follow_the_first_admission() -> None:
    case = json.loads(case_path("x04_poly_lifo").read_text())
    records = list(iter_records(columns_of(case), facts_of(case)))
    (history,) = [record["admission_history"] for record in records if record["readmission_count"]]
    assert [entry["is_readmission"] for entry in history] == [False] + [True] * (len(history) - 1)
    assert [entry["admission_ordinal"] for entry in history] == list(range(len(history)))


def columns_with(status: list[int], **values: list[Any]) -> dict[str, Any]:
    columns = {name: np.full(len(status), fill, dtype) for name, (dtype, fill) in COLUMN_TYPES.items()}
    columns["status"][:] = status
    columns["arrival_ms"][:] = 1.0
    columns["worker"][:] = columns["rank"][:] = 0
    for name, column in values.items():
        columns[name][:] = column
    for name, dtype in (("request", "i8"), ("ms", "f8"), ("reused_tokens", "i8")):
        columns[f"readmission_{name}"] = np.empty(0, dtype)
    return columns


def test_only_requests_that_ended_have_records() -> None:
    facts = facts_of(json.loads(RECORDED[0].read_text()))
    records = list(iter_records(columns_with([-1, 0, -2, 2, 3, 1], reason=[-1, 0, -1, 4, 6, 3]), facts))
    assert [record["row"] for record in records] == [1, 3, 4, 5]
    assert [record["terminal_status"] for record in records] == ["completed", "canceled", "failed", "rejected"]


def test_a_failure_says_what_was_needed() -> None:
    facts = facts_of(json.loads(RECORDED[0].read_text()))
    columns = columns_with([3, 1, 2], reason=[5, 2, 4], needed=[10, 40, -1], available=[8, 32, -1])
    failed, rejected, cancelled = iter_records(columns, facts)
    assert (failed["failure_reason"], failed["failure_needed_blocks"]) == ("growth_over_pool", 10)
    assert failed["failure_available_blocks"] == 8
    assert (rejected["failure_needed_tokens"], rejected["failure_available_tokens"]) == (40, 32)
    assert cancelled["failure_reason"] == "client"
    assert "failure_needed_tokens" not in cancelled


def test_names_of_the_trace_are_used() -> None:
    facts = structs.replace(facts_of(json.loads(RECORDED[0].read_text())), request_ids=["chatcmpl-1", None])
    first, second = iter_records(columns_with([0, 0]), facts)
    assert (first["name"], second["name"]) == ("chatcmpl-1", "r1")
    assert first["uuid"] == str(stable_request_uuid(0, "chatcmpl-1"))


def test_many_rows_keep_their_order() -> None:
    facts = facts_of(json.loads(RECORDED[0].read_text()))
    records = list(iter_records(columns_with([0] * 2500), facts))
    assert [record["row"] for record in records] == list(range(2500))
