"""Settings of a run."""

from __future__ import annotations

import pytest

from mocker_replay.config import ReplayOptions
from mocker_replay.config.options import TRACE_FORMATS
from mocker_replay.errors import ExitCode, UsageError
from mocker_replay.trace import FORMATS
from mocker_replay.trace.detection import AUTO


def test_defaults_are_sound() -> None:
    options = ReplayOptions()
    options.validate()
    assert options.trace_block_size is None, "as the format has it"
    given = ReplayOptions(estimate_prefix="0.5:8", failed_rows="keep", max_text_gib=1)
    given.validate()
    assert given.to_mapping().keys() - options.to_mapping().keys() == {"estimate_prefix", "failed_rows", "max_text_gib"}


def test_the_formats_of_the_options_are_those_of_the_readers() -> None:
    assert {name for name, is_built in TRACE_FORMATS.items() if is_built} == {AUTO, *FORMATS}


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("replay_concurrency", 0, "from 1"),
        ("replay_concurrency", -3, "from 1"),
        ("num_workers", 0, "from 1"),
        ("num_workers", 1.0, "whole number"),
        ("num_workers", True, "whole number"),
        ("num_workers", None, "whole number"),
        ("trace_block_size", 0, "from 1"),
        ("arrival_speedup_ratio", 0.0, "finite and positive"),
        ("arrival_speedup_ratio", float("inf"), "finite and positive"),
        ("arrival_speedup_ratio", None, "must be a number"),
        ("sla_ttft_ms", 0.0, "finite and positive"),
        ("sla_itl_ms", -1.0, "finite and positive"),
        ("max_sim_time_ms", -1.0, "finite and non-negative"),
        ("max_sim_time_ms", float("nan"), "finite and non-negative"),
        ("telemetry_sample_interval_ms", 0, "finite and positive"),
        ("router_mode", "random", "must be one of round_robin, kv_router"),
        ("mode", "realtme", "did you mean realtime"),
        ("weka_nested_timestamp_basis", "yes", "must be one of auto, absolute, relative"),
        ("trace_format", "agentic-mooncake", "is required with trace_format agentic-mooncake"),
        ("execution_model", " ", "not blank"),
        ("agentic_lanes", 0, "from 1"),
        ("agentic_lanes", 2, "only of use with trace_format agentic_mooncake"),
        ("trace_format", "Mooncake", "did you mean mooncake"),
        ("estimate_prefix", "half", "must be none or RATIO:GROUPS"),
        ("estimate_prefix", "1.5:4", "a ratio above 0 and at most 1"),
        ("estimate_prefix", "0.5:0", "must be none or RATIO:GROUPS"),
        ("failed_rows", "maybe", "must be one of drop, keep, refuse"),
        ("max_text_gib", 0, "from 1"),
        ("timestamp_unit", "min", "must be one of s, ms, us"),
        ("kv_event_lag_ms", 5.0, "only of use with router_mode kv_router"),
        ("kv_event_lag_ms", -5.0, "finite and non-negative"),
    ],
)
def test_one_fault(field: str, value: object, rule: str) -> None:
    with pytest.raises(UsageError, match=rule) as caught:
        ReplayOptions(**{field: value}).validate()  # type: ignore[arg-type]
    assert caught.value.exit_code is ExitCode.USAGE
    named = "execution_model" if value == "agentic-mooncake" else field
    assert [fault.file for fault in caught.value.faults if fault.file == named]


def test_all_faults_at_once_named_as_the_caller_names_them() -> None:
    options = ReplayOptions(num_workers=0, sla_e2e_ms=5.0, sla_ttft_ms=1.0, max_sim_time_ms=-1.0)
    with pytest.raises(UsageError) as caught:
        options.validate(lambda field: "--" + field.replace("_", "-"))
    assert str(caught.value).splitlines() == [
        "--num-workers: must be from 1 to 2^31-1 (got 0)",
        "--max-sim-time-ms: must be finite and non-negative (got -1.0)",
        "--sla-e2e-ms: cannot stand together with sla_ttft_ms or sla_itl_ms (got 5.0)",
    ]
    options = ReplayOptions(sla_ttft_ms=1.0, sla_itl_ms=1.0)
    options.validate()


def test_a_limit_of_zero_is_legal() -> None:
    ReplayOptions(max_sim_time_ms=0.0).validate()


def test_what_a_graph_needs_and_cannot_have() -> None:
    ReplayOptions(trace_format="agentic_mooncake", execution_model="m", agentic_lanes=3).validate()
    ReplayOptions(execution_model="m").validate()
    with pytest.raises(UsageError, match="replay_concurrency: cannot be used with trace_format agentic_mooncake"):
        ReplayOptions(trace_format="agentic_mooncake", execution_model="m", replay_concurrency=2).validate()


def test_settings_of_graphs_leave_no_trace_where_there_is_no_graph() -> None:
    assert not {"execution_model", "agentic_lanes"} & ReplayOptions().to_mapping().keys()
    assert ReplayOptions(agentic_lanes=2).to_mapping()["agentic_lanes"] == 2


@pytest.mark.parametrize("setting", [{"mode": "realtime"}, {"router_mode": "kv_router"}])
def test_what_a_delta_trace_cannot_have(setting: dict[str, str]) -> None:
    ReplayOptions(trace_format="mooncake-delta").validate()
    with pytest.raises(UsageError, match="trace_format mooncake_delta"):
        ReplayOptions(trace_format="mooncake_delta", **setting).validate()  # type: ignore[arg-type]
