"""Every reference case of prefill and decode workers, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.config import ReplayOptions
from mocker_replay.errors import ConfigError
from mocker_replay.replay import replay
from tests.parity.cases import CASES

CASE_FILES = sorted((CASES / "handoff").glob("d*.json"))
ALL = {path.stem[:3]: json.loads(path.read_text()) for path in CASE_FILES}
# Refused on the reference as well: what our message names.
REFUSED = {
    "d39": "engine.worker_type: must be prefill",
    "d40": "engine.kv_transfer_bandwidth",
    "d41": "engine.block_size: must be that of the decode configuration",
    "d42": "engine.backend: must be that of the decode configuration",
}
STUCK = {"d38": ("failed", "growth_over_pool")}
RUNS = [key for key in ALL if key not in (*REFUSED, *STUCK)]


def run(case: dict[str, Any], folder: Path, **outputs: Any):
    trace = folder / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in case["trace"]))
    options = ReplayOptions(
        num_prefill_workers=case["workers"]["prefill"],
        num_decode_workers=case["workers"]["decode"],
        trace_block_size=case["trace_block_size"],
    )
    configs = {f"{role}_config": case[f"{role}_config"] for role in ("prefill", "decode")}
    return replay(trace, None, options, **configs, **outputs)


def told(record: dict[str, Any], key: str) -> Any:
    if key != "admissions":
        return record[key]
    keys = ("pool", "at_ms", "reused_input_tokens", "is_readmission")
    return [{name: admission[name] for name in keys} for admission in record["admission_history"]]


def test_nothing_is_left_out() -> None:
    assert len(CASE_FILES) == len(ALL) == 43
    assert len(RUNS) + len(REFUSED) + len(STUCK) == len(ALL)


@pytest.mark.parametrize("key", RUNS)
def test_run_equals_the_reference(key: str, tmp_path: Path) -> None:
    expect = ALL[key]["expect"]
    result = run(ALL[key], tmp_path, events=tmp_path / "events.jsonl", event_level="kv")
    records = list(result.records())
    assert [
        {name: told(record, name) for name in wanted}
        for record, wanted in zip(records, expect["requests"], strict=True)
    ] == expect["requests"]
    for name in ("completed_requests", "num_requests", "duration_ms"):
        assert result.summary[name] == expect[name]


@pytest.mark.parametrize("key", REFUSED)
def test_what_cannot_run_is_refused_by_name(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run(ALL[key], tmp_path, events=tmp_path / "events.jsonl")
    assert REFUSED[key] in str(caught.value)
    assert not (tmp_path / "events.jsonl").exists()


@pytest.mark.parametrize("key", STUCK)
def test_a_request_that_can_never_progress_fails_alone(key: str, tmp_path: Path) -> None:
    """The reference gives the whole run up."""
    assert "effect-free zero-duration pass" in ALL[key]["expect"]["error"]
    (record,) = run(ALL[key], tmp_path).records()
    assert (record["terminal_status"], record["failure_reason"]) == STUCK[key]


def test_bursts_that_preempt_each_other_go_on_until_a_transfer_has_ended(tmp_path: Path) -> None:
    """61 682 passes of 17 ns, in which a prefill worker has no room for drafts; the figures are the reference's."""
    prefill = {"block_size": 8, "num_gpu_blocks": 4, "worker_type": "prefill", "speedup_ratio": 1e6, "aic_nextn": 4}
    prefill |= {"kv_transfer_bandwidth": 1.0, "kv_transfer_bytes_per_token": 65536}
    decode = {"block_size": 8, "num_gpu_blocks": 20, "worker_type": "decode"}
    decode["timing_model"] = {"type": "fixed", "prefill_ms": 17.5, "decode_ms": 0.0}
    rows = [{"timestamp": 0, "input_length": 16, "output_length": 2, "hash_ids": [0, 1]}]
    rows.append({"timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [10]})
    case = {"trace": rows, "workers": {"prefill": 1, "decode": 1}, "trace_block_size": 8}
    case |= {"prefill_config": {"engine": prefill}, "decode_config": {"engine": decode}}
    first, second = run(case, tmp_path).records()
    told = ("source_held_ms", "admission_count", "terminal_time_ms")
    assert [first[key] for key in told] == [1.7e-05, 2, 1.048593]
    assert [second[key] for key in told] == [1.0486110000009063, 61684, 1.5728990000009064]
