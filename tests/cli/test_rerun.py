"""`mocker-replay rerun`: streams, exit codes, what is said of a difference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mocker_replay.config import EngineConfig, TimingModel
from tests.support.realtime import Arrival, RealtimeRun

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "realtime" / "complete-kv.jsonl"
MODEL = """\
class Model:
    def prefill(self, batch_size, mean_isl, mean_prefix):
        return 4.0

    def decode(self, batch_size, active_kv_tokens, mean_context_length, total_kv_tokens):
        return 1.0
"""


def rerun(log: Path | str, *argv: str, stdin: bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mocker_replay", "rerun", str(log), *argv]
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, capture_output=True, check=False, input=stdin, cwd=cwd, env=env)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A log in which one figure is another."""
    data = GOLDEN.read_bytes()
    assert data.count(b'"blocks_held":3') == 1
    path = tmp_path / "changed.jsonl"
    path.write_bytes(data.replace(b'"blocks_held":3', b'"blocks_held":2'))
    return path


def test_the_same_run_is_told_and_exits_0() -> None:
    footer = json.loads(GOLDEN.read_text().splitlines()[-1])
    num_steps = GOLDEN.read_bytes().count(b'[0,"') + GOLDEN.read_bytes().count(b'[1,"')
    done = rerun(GOLDEN)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"same            {GOLDEN}: {footer['events']} lines from {num_steps} steps\n"
        "level           kv\n"
        "clock           measured\n"
        "end             complete\n"
        f"digest          {footer['digest']}\n"
    )


def test_the_first_difference_is_told_and_exits_1(changed: Path) -> None:
    done = rerun(changed, "--quiet")
    assert (done.returncode, done.stderr) == (1, "")
    lines = [(line[:16].rstrip(), line[16:]) for line in done.stdout.splitlines()]
    number, seq = next(
        (at, json.loads(line)["seq"])
        for at, line in enumerate(changed.read_text().splitlines(), 1)
        if '"blocks_held":2' in line
    )
    assert lines[0] == ("differs", f"{changed}:{number}: seq {seq}: the lines differ")
    assert lines[1] == ("field", "blocks_held: log 2, rerun 3")
    assert [label for label, _ in lines[2:6]] == ["log", "rerun", "worker", "its last steps"]
    logged, made = json.loads(lines[2][1]), json.loads(lines[3][1])
    assert made == logged | {"blocks_held": 3}
    assert lines[4][1].startswith(f"{logged['worker']}, pass ")
    assert " go" in lines[12][1], "the step that started the pass is the last one"
    assert lines[-2] == ("same before", f"{seq} lines from {lines[-2][1].split(' from ')[1]}")
    assert lines[-1][0] == "the log itself"
    assert "digest: the footer must agree with the event lines" in lines[-1][1]


def test_json_is_the_result(changed: Path) -> None:
    done = rerun(GOLDEN, "--json")
    result = json.loads(done.stdout)
    assert (done.returncode, result["same"], result["difference"], result["end"]) == (0, True, None, "complete")
    done = rerun(changed, "--json", "--quiet")
    result = json.loads(done.stdout)
    assert (done.returncode, result["same"]) == (1, False)
    assert result["difference"]["fields"] == [{"field": "blocks_held", "logged": 2, "rerun": 3}]


def test_quiet_says_nothing_of_the_same() -> None:
    done = rerun(GOLDEN, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_log_on_standard_input() -> None:
    done = rerun("-", "-q", stdin=GOLDEN.read_bytes())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_cannot_be_run_again_exits_2(tmp_path: Path) -> None:
    data = GOLDEN.read_bytes()
    (tmp_path / "cut.jsonl").write_bytes(data[: len(data) // 2])
    accelerated = ROOT / "tests" / "golden" / "runs" / "plain-kv" / "events.jsonl"
    cases = {
        tmp_path / "cut.jsonl": "truncated after line",
        tmp_path / "none.jsonl": "cannot read",
        accelerated: "a rerun needs the readings of the clock, which only a realtime run records",
        ROOT / "README.md": "an event log begins with a header line",
    }
    for path, rule in cases.items():
        done = rerun(path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
        assert rule in done.stderr
        assert "Traceback" not in done.stderr


def test_a_timing_model_of_the_users_is_found_where_the_command_is_run(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(MODEL)
    namespace: dict[str, type] = {"__name__": "my_model"}
    exec(MODEL, namespace)
    config = EngineConfig(timing_model=TimingModel("callback", callable=namespace["Model"]()))
    log = tmp_path / "log.jsonl"
    log.write_bytes(RealtimeRun(config, lateness_ms=(0.0,)).play([Arrival(0.0, 0, 7, 5, (1, 2, 3))]))
    assert rerun(log, cwd=tmp_path).returncode == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = rerun(log, cwd=elsewhere)
    assert (done.returncode, done.stdout) == (2, "")
    assert "my_model:Model, which cannot be had here: ModuleNotFoundError" in done.stderr
    (elsewhere / "moved.py").write_text(MODEL.replace("4.0", "3.0"))
    done = rerun(log, "--timing-model", "moved:Model", cwd=elsewhere)
    assert done.returncode == 1
    assert "end_ms: log 4.0, rerun 3.0" in done.stdout
    done = rerun(log, "--timing-model", "fixed", cwd=elsewhere)
    assert done.returncode == 2
    assert "error: --timing-model: must name an object" in done.stderr
