"""`run` with the SGLang-flavoured engine: what the page and the exit code say, what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mocker_replay.cli.app import run_main

ROOT = Path(__file__).resolve().parent.parent.parent
TINY = str(ROOT / "traces" / "tiny.jsonl")
SGLANG = '{"engine": {"backend": "sglang"}}'


def test_a_run_and_what_other_verbs_make_of_its_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    events, summary = str(tmp_path / "events.jsonl"), tmp_path / "summary.json"
    argv = ["run", TINY, "--engine-config", SGLANG, "--events", events, "--summary", str(summary), "--quiet"]
    assert run_main(argv) == 0
    figures = json.loads(summary.read_text())
    assert figures["completed_requests"] == figures["num_requests"] == 12
    assert run_main(["audit", events, "--summary", str(summary)]) == 0
    assert run_main(["explain", events, "--request", "r7"]) == 0
    assert "prefill" in capfd.readouterr().out
    again = str(tmp_path / "again.jsonl")
    assert run_main([*argv[:4], "--events", again, "--quiet"]) == 0
    assert run_main(["diff", events, again]) == 0


def test_a_head_that_can_never_be_admitted_ends_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No request can be blamed alone: exit code 3, the outputs are closed and marked as cut."""
    events = tmp_path / "events.jsonl"
    argv = ["run", TINY, "--engine-config", SGLANG, "--block-size", "16", "--num-gpu-blocks", "170"]
    assert run_main([*argv, "--events", str(events), "--quiet"]) == 3
    said = capfd.readouterr().err
    assert "passes without effect" in said
    assert "row 7 waiting" in said
    assert json.loads(events.read_text().splitlines()[-1])["end"] == "stopped"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--policy", "sjf"], "engine.backend: runs first come, first served; policies are not built yet for it"),
        (["--dp-size", "9000", "--engine-config", SGLANG], "chunked_prefill_size: must not be below dp_size (9000)"),
        (["--prefill-schedule-interval", "2"], "is supported only with backend vllm"),
    ],
)
def test_what_cannot_be_is_refused(flags: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_main(["run", TINY, "--engine-config", SGLANG, *flags]) == 2
    assert said in capfd.readouterr().err
