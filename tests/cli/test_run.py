"""`run` as a process: real replays, real files, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeTrace, make_row

COMMAND = [sys.executable, "-m", "mocker_replay"]
ROOT = Path(__file__).resolve().parents[2]
FIXED = '{"type": "fixed", "prefill_ms": 10, "decode_ms": 1}'
SLOW_MODEL = """
import time

class Slow:
    def prefill(self, batch_size, mean_isl, mean_prefix):
        return 10.0

    def decode(self, batch_size, active_kv_tokens, mean_context_length, total_kv_tokens):
        time.sleep(0.002)
        return 1.0
"""


def call(*argv: str | Path, cwd: Path | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        [*COMMAND, *map(str, argv)], cwd=cwd, env=environment, text=True, capture_output=True, timeout=120, **options
    )


@pytest.fixture
def two_rows(make_trace: MakeTrace) -> Path:
    return make_trace([make_row(0, 16, 3), make_row(5, 10, 2)])


def test_all_outputs_at_once(two_rows: Path, tmp_path: Path) -> None:
    names = {"events": "log.jsonl", "requests": "deep/req.jsonl", "summary": "sum.json", "telemetry": "tel.jsonl"}
    flags = [part for flag, name in names.items() for part in (f"--{flag}", tmp_path / name)]
    done = call("run", two_rows, *flags, "--event-level", "kv", "--timing-model", FIXED)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 completed" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "header"
    assert events[0]["level"] == "kv"
    assert events[-1]["event"] == "footer"
    records = [json.loads(line) for line in (tmp_path / "deep/req.jsonl").read_text().splitlines()]
    assert [record["output_length"] for record in records] == [3, 2]
    assert json.loads((tmp_path / "sum.json").read_text())["completed_requests"] == 2
    assert (tmp_path / "tel.jsonl").read_text()


def test_the_same_bytes_under_any_hash_seed(two_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = []
    for seed in ("0", "1", "4242"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        argv = ["--events", tmp_path / f"{seed}.jsonl", "--requests", tmp_path / f"{seed}.req", "--event-level", "kv"]
        assert call("run", two_rows, "-q", *argv).returncode == 0
        logs.append(((tmp_path / f"{seed}.jsonl").read_bytes(), (tmp_path / f"{seed}.req").read_bytes()))
    assert logs[0] == logs[1] == logs[2]


def test_json_is_the_only_thing_on_stdout(two_rows: Path) -> None:
    done = call("run", two_rows, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["completed_requests"] == 2
    assert "2 completed" in done.stderr
    quiet = call("run", two_rows, "--json", "--quiet")
    assert json.loads(quiet.stdout)["completed_requests"] == 2
    assert quiet.stderr == ""


def test_rejected_requests_are_exit_code_4(make_trace: MakeTrace, tmp_path: Path) -> None:
    trace = make_trace([make_row(0, 1000, 2), make_row(1, 16, 2)])
    done = call("run", trace, "--num-gpu-blocks", "4", "--block-size", "16", "--requests", tmp_path / "r.jsonl")
    assert done.returncode == 4
    records = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [record["terminal_status"] for record in records] == ["rejected", "completed"]


def test_faults_leave_every_output_untouched(make_trace: MakeTrace, tmp_path: Path) -> None:
    trace = make_trace(["{", make_row(0, input_length=-1), "[]", make_row(0, output_length="x")])
    old = tmp_path / "sum.json"
    old.write_text("old")
    done = call("run", trace, "--events", tmp_path / "log.jsonl", "--summary", old)
    assert done.returncode == 2
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert [line.split(":")[2] for line in errors] == ["1", "2", "3", "4"]
    assert old.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sum.json", "trace.jsonl"]


@pytest.mark.parametrize("name", ["no.jsonl", "."])
def test_a_trace_that_is_not_there(name: str, tmp_path: Path) -> None:
    done = call("run", name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert name in done.stderr


def test_the_reader_of_the_log_may_leave(make_trace: MakeTrace) -> None:
    trace = make_trace([make_row(n, 512, 200) for n in range(200)])
    argv = [*COMMAND, "run", str(trace), "--events", "-", "--event-level", "tokens"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["event"] == "header"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("flag", ["--events", "--requests", "--summary", "--telemetry"])
def test_a_full_disk(flag: str, two_rows: Path, tmp_path: Path) -> None:
    done = call("run", two_rows, flag, "/dev/full", "--requests" if flag == "--events" else "--events", tmp_path / "x")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: cannot write /dev/full: No space left on device"
    if flag == "--events":
        assert not (tmp_path / "x").exists(), "what was not yet written when the log failed must not appear"


@pytest.mark.parametrize("flag", ["--events", "--summary"])
def test_an_output_that_cannot_be_made(flag: str, two_rows: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    done = call("run", two_rows, flag, "folder", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_keeps_what_there_is(make_trace: MakeTrace, tmp_path: Path) -> None:
    trace = make_trace([make_row(n * 10, 64, 5_000) for n in range(4)])
    (tmp_path / "models.py").write_text(SLOW_MODEL)
    argv = ["run", str(trace), "--timing-model", "models:Slow", "--events", "log.jsonl", "--summary", "sum.json"]
    argv += ["--requests", "req.jsonl", "--telemetry", "tel.jsonl"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    before = {path.name for path in tmp_path.iterdir()}
    with subprocess.Popen(
        [*COMMAND, *argv], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while {path.name for path in tmp_path.iterdir()} == before and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["event"] == "header"
    footer = json.loads(lines[-1])
    assert footer["event"] == "footer"
    assert footer["cut"] > 0
    assert json.loads((tmp_path / "sum.json").read_text())["completed_requests"] == 0
    assert (tmp_path / "req.jsonl").exists()


def test_a_time_limit_is_no_fault(two_rows: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    done = call("run", two_rows, "--max-sim-time-ms", "6", "--events", log, "--timing-model", FIXED)
    assert done.returncode == 0
    assert json.loads(log.read_text().splitlines()[-1])["cut"] == 2


def test_a_trace_from_standard_input(two_rows: Path) -> None:
    done = call("run", "-", "--json", "-q", input=two_rows.read_text())
    assert json.loads(done.stdout)["completed_requests"] == 2


def test_synth_into_run(tmp_path: Path) -> None:
    size = ["--input-tokens", "512", "--output-tokens", "64", "--request-count", "100", "--request-rate", "20"]
    made = call("synth", *size)
    assert made.returncode == 0
    (tmp_path / "t.jsonl").write_text(made.stdout)
    done = call("run", tmp_path / "t.jsonl", "--json", "-q")
    assert done.returncode == 0
    assert json.loads(done.stdout)["completed_requests"] == 100


def test_seven_kinds_of_fault_are_all_named(make_trace: MakeTrace) -> None:
    good = make_row(0)
    rows = [
        "{not json",
        "[1, 2]",
        json.dumps({**good, "timestamp": "soon"}),
        json.dumps({**good, "input_length": 0}),
        json.dumps({**good, "output_length": -1}),
        json.dumps({**good, "hash_ids": None}),
        json.dumps({**good, "input_length": 100_000}),
        json.dumps(good),
    ]
    for verb in ("check", "run"):
        done = call(verb, make_trace(rows))
        assert done.returncode == 2
        faults = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert [int(line.split(":")[2]) for line in faults] == [1, 2, 3, 4, 5, 6, 7]


def test_a_row_of_absurd_size_does_not_take_the_process_down(make_trace: MakeTrace) -> None:
    done = call("run", make_trace([make_row(0, 16, 10**10)]))
    assert done.returncode == 2
    assert "output_length" in done.stderr


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (["--block-size", str(2**63)], "block_size: must not exceed 2147483647"),
        (["--dp-size", "5000"], "dp_size: must not exceed 4096"),
        (["--num-workers", "100000"], "must not exceed 65536 ranks"),
    ],
)
def test_sizes_that_would_take_the_process_down_are_refused(flags: list[str], rule: str, two_rows: Path) -> None:
    done = call("run", two_rows, *flags)
    assert done.returncode == 2
    assert rule in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ["--num-gpu-blocks", str(2**64 - 1)],
        ["--num-gpu-blocks", str(2**60), "--block-size", "16"],  # the capacity in tokens wraps to 0
        ["--max-num-seqs", str(2**64 - 1), "--max-num-batched-tokens", str(2**64 - 1)],
        ["--max-model-len", str(2**64 - 1), "--seed", str(2**64 - 1)],
    ],
)
def test_the_largest_legal_settings_run(flags: list[str], two_rows: Path) -> None:
    assert call("run", two_rows, *flags, "--quiet").returncode == 0


def test_limits_that_no_run_reaches_are_none(two_rows: Path) -> None:
    """The largest numbers that the configuration takes are no less welcome than others."""
    names = ("num-gpu-blocks", "max-model-len", "max-num-seqs", "max-num-batched-tokens", "prefill-schedule-interval")
    found = set()
    for number in (2**62, 2**63 - 1, 2**63, 2**64 - 1):
        flags = [part for name in names for part in (f"--{name}", str(number))]
        done = call("run", two_rows, "--json", "--quiet", "--dp-size", "2", *flags)
        assert (done.returncode, done.stderr) == (0, "")
        found.add(json.loads(done.stdout)["mean_ttft_ms"])
    assert len(found) == 1
