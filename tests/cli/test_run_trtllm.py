"""The TensorRT-LLM flavour at the command line: what the page says, what is refused, and what reads its logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.cli.app import run_main
from tests.conftest import MakeTrace, make_row

ENGINE = {
    "backend": "trtllm", "block_size": 8, "num_gpu_blocks": 10,
    "timing_model": {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 1.0},
}  # fmt: skip


@pytest.fixture
def argv(make_trace: MakeTrace, tmp_path: Path) -> list[str]:
    trace = make_trace([make_row(0, 24, 32), make_row(0, 24, 100, hash_ids=[7]), make_row(3, 90, 1, hash_ids=[8])])
    config = tmp_path / "engine.json"
    config.write_text(json.dumps({"engine": ENGINE}))
    return ["run", str(trace), "--engine-config", str(config)]


def test_a_run_names_its_backend_and_says_why_requests_ended(
    argv: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.json"
    assert run_main([*argv, "--summary", str(summary)]) == 4
    page = capfd.readouterr().out
    assert "trtllm, 10 blocks of 8 tokens" in page
    assert "2 completed" in page
    assert "prompt larger than the KV pool" in page
    assert json.loads(summary.read_text())["total_output_tokens"] == 32 + 56


def test_its_logs_are_read_by_every_verb(argv: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs = [tmp_path / f"{name}.jsonl" for name in ("accelerated", "nominal")]
    assert run_main([*argv, "--quiet", "--events", str(logs[0]), "--event-level", "kv"]) == 4
    realtime = ["--mode", "realtime", "--clock", "nominal"]
    assert run_main([*argv, "--quiet", "--events", str(logs[1]), "--event-level", "kv", *realtime]) == 4
    capfd.readouterr()
    verbs: dict[str, list[Any]] = {
        "audit": [logs[0]], "rerun": [logs[1]], "explain": [logs[0], "--request", "r1"], "diff": logs,
    }  # fmt: skip
    for verb, files in verbs.items():
        assert run_main([verb, *map(str, files)]) == 0, verb
    assert "pool" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        (["--policy", "sjf"], "engine.backend: runs first come, first served; policies are not built yet for it"),
        (["--prefill-schedule-interval", "2"], "is supported only with backend vllm"),
    ],
)
def test_what_it_does_not_know_is_refused(
    argv: list[str], extra: list[str], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_main([*argv, *extra]) == 2
    assert text in capfd.readouterr().err
