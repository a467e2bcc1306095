"""`run`: what flags become, which stream gets what, which exit code comes out. The replay itself is a stand-in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mocker_replay.cli.app import run_main
from mocker_replay.config import EngineConfig, ReplayOptions
from mocker_replay.errors import ExitCode


class StandIn:
    """Takes the place of `mocker_replay.replay.replay` and keeps what it was called with."""

    def __init__(self) -> None:
        self.exit_code = ExitCode.OK
        self.config = EngineConfig()
        self.options = ReplayOptions()
        self.keywords: dict[str, Any] = {}

    def __call__(self, trace: str, config: EngineConfig, options: ReplayOptions, **keywords: Any) -> Any:
        self.trace, self.config, self.options, self.keywords = trace, config, options, keywords
        progress = keywords["progress"]
        if progress is not None:
            progress(1, 2, 10.0)
        if keywords["summary"] == "-":
            print('{"completed_requests":1}')
        summary = {"completed_requests": 1}
        return SimpleNamespace(summary=summary, facts=None, warnings=["a doubt"], exit_code=self.exit_code)


def render_summary(summary: dict[str, Any], _facts: object, console: Any) -> None:
    console.print(f"summary of {summary['completed_requests']} request, width {console.width}")


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "mocker_replay.replay", SimpleNamespace(replay=stand_in))  # type: ignore[misc]
    report = SimpleNamespace(render=SimpleNamespace(render_summary=render_summary))
    monkeypatch.setitem(sys.modules, "mocker_replay.report", report)  # type: ignore[misc]
    monkeypatch.setitem(sys.modules, "mocker_replay.report.render", report.render)
    return stand_in


def errors_of(argv: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert run_main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_defaults(replay: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(["run", "t.jsonl"]) == 0
    assert replay.trace == "t.jsonl"
    assert replay.config == EngineConfig()
    assert replay.options == ReplayOptions(surplus_hash_ids="refuse", trace_format="auto")
    outputs = {name: replay.keywords[name] for name in ("events", "requests", "summary", "telemetry")}
    assert set(outputs.values()) == {None}
    assert replay.keywords["event_level"] == "passes"
    out, err = capsys.readouterr()
    assert out == "summary of 1 request, width 100\n"
    assert err == ""


def test_several_files_are_one_trace(replay: StandIn) -> None:
    assert run_main(["run", "a.jsonl", "-", "--quiet", "b.jsonl"]) == 0
    assert replay.trace == ["a.jsonl", "-", "b.jsonl"]


def test_every_option_of_the_run_has_a_flag(replay: StandIn) -> None:
    changed: dict[str, Any] = {
        "num_workers": 4,
        "replay_concurrency": 8,
        "arrival_speedup_ratio": 2.5,
        "trace_block_size": 64,
        "timestamp_unit": "us",
        "missing_timestamps": "zero",
        "surplus_hash_ids": "ignore",
        "missing_hash_ids": "private",
        "estimate_prefix": "0.5:8",
        "failed_rows": "keep",
        "max_text_gib": 20,
        "max_sim_time_ms": 0.0,
        "sla_ttft_ms": 5.0,
        "sla_itl_ms": 6.5,
        "telemetry_sample_interval_ms": 10.0,
        "trace_format": "mooncake",
        "router_mode": "round_robin",
        "mode": "accelerated",
        "policy": "edf",
    }
    argv = [part for name, value in changed.items() for part in ("--" + name.replace("_", "-"), str(value))]
    argv += ["--policy-option", "default_deadline_ms=250.5"]
    changed["policy_options"] = {"default_deadline_ms": 250.5}
    argv += ["--transform", "limit-rows=3", "--transform", "sample=0.5"]
    changed["transforms"] = ("limit-rows=3", "sample=0.5")
    assert run_main(["run", "t.jsonl", *argv]) == 0
    assert replay.options == ReplayOptions(**changed)
    assert run_main(["run", "t.jsonl", "--sla-e2e-ms", "7"]) == 0
    assert replay.options == ReplayOptions(sla_e2e_ms=7.0, surplus_hash_ids="refuse", trace_format="auto")
    of_graphs = {"execution_model": "one", "agentic_lanes": 3, "weka_nested_timestamp_basis": "relative"}
    of_sessions = {"replay_concurrency": 2, "trace_shared_prefix_ratio": 0.5, "trace_num_prefix_groups": 4}
    for trace_format, options in (("weka", of_graphs), ("applied_compute_agentic", of_sessions)):
        argv = [part for name, value in options.items() for part in ("--" + name.replace("_", "-"), str(value))]
        assert run_main(["run", "t.jsonl", "--trace-format", trace_format, *argv]) == 0
        assert replay.options == ReplayOptions(trace_format=trace_format, surplus_hash_ids="refuse", **options)
        changed |= options
    pools = {"num_prefill_workers", "num_decode_workers"}  # see test_run_pools
    assert {*changed, *pools, "sla_e2e_ms", "kv_event_lag_ms"} == {*ReplayOptions.__struct_fields__}


def test_engine_flags_win_over_the_file(replay: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    path.write_text('{"engine": {"block_size": 16, "num_gpu_blocks": 100, "preemption_mode": "fifo"}, "dp_size": 2}')
    argv = ["run", "t.jsonl", "--engine-config", str(path), "--block-size", "32", "--seed", "7"]
    argv += [
        "--no-enable-prefix-caching",
        "--max-model-len",
        "4096",
        "--aic-nextn",
        "2",
        "--aic-nextn-accept-rates",
        "1",
    ]
    assert run_main(argv) == 0
    config = replay.config
    assert (config.block_size, config.num_gpu_blocks, config.preemption_mode, config.dp_size) == (32, 100, "fifo", 2)
    assert (config.aic_mtp_seed, config.max_model_len, config.aic_nextn_accept_rates) == (7, 4096, (1.0, 0.0))
    assert not config.enable_prefix_caching
    assert config.enable_chunked_prefill


def test_timing_models(replay: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def model_of(text: str) -> Any:
        assert run_main(["run", "t.jsonl", "--timing-model", text]) == 0
        return replay.config.timing_model

    assert model_of("polynomial").type == "polynomial"
    assert model_of('{"type": "fixed", "prefill_ms": 2, "decode_ms": 1}').prefill_ms == 2.0
    profile = tmp_path / "p.npz"
    profile.write_bytes(b"")
    assert model_of(str(profile)).path == str(profile)
    (tmp_path / "my_models.py").write_text(
        "class Slow:\n def prefill(self, *a): return 9.0\n def decode(self, *a): return 1.0\nready = Slow()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert model_of("my_models:Slow").callable.prefill(1, 2, 0) == 9.0
    assert model_of("my_models:ready").to_mapping()["callable"] == "my_models:Slow"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("fixd", "engine.timing_model.type: must be one of polynomial, fixed, external; did you mean fixed?"),
        ("fixed", "lacks prefill_ms"),
        ("{", "not valid JSON"),
        ("no_such_module:x", "cannot be imported: No module named 'no_such_module'"),
        ("json:nothing", "cannot be imported: module 'json' has no attribute 'nothing'"),
        ("json:dumps", "an object with the methods prefill and decode"),
        ("none.npz", "no such file"),
    ],
)
def test_timing_models_that_cannot_be(text: str, rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = errors_of(["run", "t.jsonl", "--timing-model", text], capsys)
    assert any(rule in line for line in found), found


def test_all_faults_of_the_command_line_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["run", "t.jsonl", "--events", "-", "--json", "--event-level", "token", "--block-size", "0"]
    argv += ["--timing-model", "foo:bar", "--num-workers", "0", "--mode", "realtime", "--clock", "nominl"]
    argv += ["--engine-config", '{"engine": {"num_gpu_block": 3}}']
    assert errors_of(argv, capsys) == [
        "error: --event-level: must be one of requests, passes, tokens, kv; did you mean tokens? (got token)",
        "error: --json: standard output is already taken by --events",
        "error: --timing-model: cannot be imported: No module named 'foo' (got foo:bar)",
        "error: engine config: engine.num_gpu_block: unknown key; did you mean num_gpu_blocks? (got 3)",
        "error: --block-size: must be positive (got 0)",
        "error: --num-workers: must be from 1 to 2^31-1 (got 0)",
        'error: --clock: must be one of measured, nominal; did you mean nominal? (got "nominl")',
    ]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--events", "-", "--requests", "-"], "--requests: standard output is already taken by --events"),
        (["--summary", "-", "--telemetry", "-"], "--telemetry: standard output is already taken by --summary"),
        (["--summary", "s.json", "--json"], "--json: --summary already says where the summary goes"),
        (["--events", "a.jsonl", "--requests", "./a.jsonl"], "./a.jsonl is already taken by --events"),
        (["--events", "./t.jsonl"], "./t.jsonl is already taken by the trace"),
        (["--engine-config", "/no/such/file"], "/no/such/file: no such file"),
        (["--engine-config", '{"engine": {"prefix_match_unit": 4}}'], "engine.prefix_match_unit: not built yet"),
        (["--kv-event-lag-ms", "5"], "--kv-event-lag-ms: is only of use with router_mode kv_router"),
    ],
)
def test_refusals(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = errors_of(["run", "t.jsonl", *argv], capsys)
    assert any(text in line for line in found), found


@pytest.mark.parametrize("flag", ["--events", "--requests", "--telemetry"])
def test_data_on_stdout_sends_the_summary_to_stderr(
    flag: str, replay: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(["run", "t.jsonl", flag, "-"]) == 0
    assert replay.keywords[flag[2:]] == "-"
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "summary of 1 request, width 100\n"


@pytest.mark.parametrize("argv", [["--json"], ["--summary", "-"]])
def test_summary_as_json(argv: list[str], replay: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(["run", "t.jsonl", *argv]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"completed_requests": 1}
    assert "summary of 1 request" in err


def test_quiet(replay: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(["run", "t.jsonl", "--quiet", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert err == ""
    assert replay.keywords["progress"] is None


@pytest.mark.parametrize("code", list(ExitCode))
def test_the_exit_code_is_the_result_s(code: ExitCode, replay: StandIn) -> None:
    replay.exit_code = code
    assert run_main(["run", "t.jsonl", "-q"]) == code.value


def test_no_environment_variable_sets_an_option(replay: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BLOCK_SIZE", "MOCKER_REPLAY_BLOCK_SIZE", "MOCKER_REPLAY_RUN_BLOCK_SIZE"):
        monkeypatch.setenv(name, "16")
    assert run_main(["run", "t.jsonl"]) == 0
    assert replay.config == EngineConfig()


def test_help_lists_flags_under_headings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(["run", "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    headings = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        "Arguments:",
        "Engine (each wins over --engine-config):",
        "Workload:",
        "Real time (with --mode realtime):",
        "Reading the trace:",
        "Goals:",
        "Outputs:",
        "Options:",
    ]
    assert out.isascii()
