"""`run --mode realtime` as a process: exit codes, streams, flags, signals. No test asks how long anything took."""

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

from mocker_replay.cli.app import run_main
from mocker_replay.log.reader import EventLogReader
from mocker_replay.replay.rerun import rerun
from tests.conftest import MakeTrace, make_row

COMMAND = [sys.executable, "-m", "mocker_replay", "run"]
ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
FIXED = '{"type": "fixed", "prefill_ms": 4, "decode_ms": 1}'
REALTIME = ["--mode", "realtime", "--timing-model", FIXED]
STUCK_MODEL = """
import time
from pathlib import Path

class Stuck:
    passes = 0

    def prefill(self, batch_size, mean_isl, mean_prefix):
        return 1.0

    def decode(self, batch_size, active_kv_tokens, mean_context_length, total_kv_tokens):
        self.passes += 1
        if self.passes == 5:
            Path("stuck").touch()
            time.sleep(600)
        return 1.0
"""


def call(*argv: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, argv)]
    return subprocess.run(command, env=ENV, text=True, capture_output=True, timeout=120, check=False, **options)


def footer_of(path: Path) -> dict[str, Any]:
    """The footer of a log that is whole and runs again."""
    with EventLogReader(path) as log:
        log.verify()
        assert log.footer is not None
        footer = log.footer
    again = rerun(path)
    assert again.difference is None, again.difference
    ends = ("finished", "failed", "rejected", "cancelled", "cut")
    assert footer["arrived"] == sum(footer[name] for name in ends)
    return footer


@pytest.fixture
def four_rows(make_trace: MakeTrace) -> Path:
    return make_trace([make_row(n * 8.0, 16 + 500 * n, 5 + n) for n in range(4)])


# -- what goes where ----------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", ["measured", "nominal"])
def test_all_outputs_at_once(clock: str, four_rows: Path, tmp_path: Path) -> None:
    names = {"events": "log.jsonl.zst", "requests": "req.jsonl", "summary": "sum.json"}
    flags = [part for flag, name in names.items() for part in (f"--{flag}", tmp_path / name)]
    done = call(four_rows, *REALTIME, "--clock", clock, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert "4 completed" in done.stdout
    assert f"{clock} clock" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout
    footer = footer_of(tmp_path / "log.jsonl.zst")
    assert (footer["arrived"], footer["finished"], footer["end"]) == (4, 4, "complete")
    records = [json.loads(line) for line in (tmp_path / "req.jsonl").read_text().splitlines()]
    assert [record["output_length"] for record in records] == [5, 6, 7, 8]
    told = json.loads((tmp_path / "sum.json").read_text())["realtime"]
    assert told["clock"] == clock
    assert told["arrival_lateness"]["count"] == 4
    assert told["in_flight"]["max"] == max(told["in_flight"]["max_per_bucket"])
    assert told["late"] is False


def test_json_is_the_only_thing_on_stdout(four_rows: Path) -> None:
    done = call(four_rows, *REALTIME, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["realtime"]["clock"] == "measured"
    assert "4 completed" in done.stderr
    quiet = call(four_rows, *REALTIME, "--json", "--quiet")
    assert json.loads(quiet.stdout)["realtime"]["max_lateness_limit_ms"] is None
    assert quiet.stderr == ""


def test_trace_and_log_through_pipes(four_rows: Path, tmp_path: Path) -> None:
    done = call("-", *REALTIME, "--events", "-", "--event-level", "kv", input=four_rows.read_text())
    assert done.returncode == 0
    assert "4 completed" in done.stderr
    (tmp_path / "log.jsonl").write_text(done.stdout)
    assert footer_of(tmp_path / "log.jsonl")["finished"] == 4


def test_the_reader_of_the_log_may_leave(make_trace: MakeTrace) -> None:
    trace = make_trace([make_row(n, 512, 500) for n in range(40)])
    argv = [*COMMAND, str(trace), *REALTIME, "--events", "-", "--event-level", "tokens"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["event"] == "header"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


# -- exit codes ---------------------------------------------------------------------------------------


def test_a_late_run_is_exit_code_1_and_says_so(four_rows: Path, tmp_path: Path) -> None:
    done = call(four_rows, *REALTIME, "--max-lateness-ms", "0", "--json", "-q", "--events", tmp_path / "log.jsonl")
    assert done.returncode == 1
    told = json.loads(done.stdout)["realtime"]
    assert (told["late"], told["max_lateness_limit_ms"]) == (True, 0.0)
    arrival, pass_end = (told[name]["max_ms"] for name in ("arrival_lateness", "pass_end_lateness"))
    assert done.stderr == (
        f"the run was late: arrivals at most {arrival:,.3f} ms, pass ends at most {pass_end:,.3f} ms; "
        "--max-lateness-ms allows 0 ms\n"
    )
    assert footer_of(tmp_path / "log.jsonl")["end"] == "complete"
    punctual = call(four_rows, *REALTIME, "--max-lateness-ms", "1e9", "-q")
    assert (punctual.returncode, punctual.stderr) == (0, "")


def test_rejected_requests_are_exit_code_4(make_trace: MakeTrace, tmp_path: Path) -> None:
    trace = make_trace([make_row(0, 1000, 2), make_row(1, 16, 2)])
    done = call(trace, *REALTIME, "--num-gpu-blocks", "4", "--block-size", "16", "--events", tmp_path / "log.jsonl")
    assert done.returncode == 4
    footer = footer_of(tmp_path / "log.jsonl")
    assert (footer["rejected"], footer["finished"]) == (1, 1)


def test_a_model_that_raises_is_exit_code_3(four_rows: Path, tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text("class Bad:\n    def prefill(self, *_): return 1 / 0\n    decode = prefill\n")
    flags = ["--mode", "realtime", "--timing-model", "models:Bad", "--events", "log.jsonl", "--summary", "s.json"]
    done = call(four_rows, *flags, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    errors = done.stderr.splitlines()
    assert errors[0].startswith("error: the run stopped at ")
    assert errors[0].endswith(" ms: ZeroDivisionError: division by zero")
    assert all(line.startswith("  worker 0 rank 0: row ") for line in errors[1:]), "who waits for what, and no more"
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "s.json").read_text())["cut"] is True
    with EventLogReader(tmp_path / "log.jsonl") as log:
        log.verify()
        assert log.footer is not None
        assert log.footer["end"] == "stopped"


def test_the_time_limit_is_no_fault(four_rows: Path, tmp_path: Path) -> None:
    done = call(four_rows, *REALTIME, "--max-sim-time-ms", "6", "--events", tmp_path / "log.jsonl")
    assert done.returncode == 0
    footer = footer_of(tmp_path / "log.jsonl")
    assert (footer["arrived"], footer["cut"], footer["end"]) == (1, 1, "time_limit")


# -- flags --------------------------------------------------------------------------------------------


def errors_of(argv: list[str | Path], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert run_main(["run", *map(str, argv)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_flags_of_real_time_need_real_time(four_rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv: list[str | Path] = [four_rows, "--clock", "nominal", "--max-lateness-ms", "5", "--output-buffering", "3"]
    argv += ["--reader-delay-ms", "1", "--num-workers", "0", "--events", tmp_path / "log.jsonl"]
    assert errors_of(argv, capsys) == [
        "error: --num-workers: must be from 1 to 2^31-1 (got 0)",
        "error: --clock: is only of use with --mode realtime",
        "error: --max-lateness-ms: is only of use with --mode realtime",
        "error: --output-buffering: is only of use with --mode realtime",
        "error: --reader-delay-ms: is only of use with --mode realtime",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


def test_bad_values_are_listed_with_all_other_faults(
    four_rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv: list[str | Path] = [four_rows, "--mode", "realtime", "--clock", "nominl", "--max-lateness-ms", "-1"]
    argv += ["--output-buffering", "0", "--reader-delay-ms", "inf", "--telemetry", tmp_path / "tel.jsonl"]
    argv += ["--block-size", "0", "--router-mode", "robin", "--events", tmp_path / "log.jsonl"]
    told = errors_of(argv, capsys)
    assert told[-5:] == [
        'error: --clock: must be one of measured, nominal; did you mean nominal? (got "nominl")',
        "error: --max-lateness-ms: must be finite and non-negative (got -1.0)",
        "error: --reader-delay-ms: must be finite and non-negative (got Infinity)",
        'error: --output-buffering: must be "full" or a whole number from 1 to 2^31-1 (got 0)',
        f"error: --telemetry: is not built for --mode realtime; an accelerated run gives the samples "
        f"(got {tmp_path / 'tel.jsonl'})",
    ]
    assert len(told) == 7
    assert any("--block-size" in line for line in told)
    assert any("--router-mode" in line for line in told)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


@pytest.mark.parametrize("given", ["3.5", "-1", "many", "2147483648"])
def test_a_buffering_that_is_none(given: str, four_rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (error,) = errors_of([four_rows, "--mode", "realtime", "--output-buffering", given], capsys)
    assert error.startswith('error: --output-buffering: must be "full" or a whole number from 1 to 2^31-1 (got ')


def test_the_nominal_clock_knows_no_slow_readers(four_rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv: list[str | Path] = [four_rows, "--mode", "realtime", "--clock", "nominal"]
    argv += ["--output-buffering", "3", "--reader-delay-ms", "1"]
    assert errors_of(argv, capsys) == [
        "error: --output-buffering: must be full with clock nominal (got 3)",
        "error: --reader-delay-ms: is only of use with clock measured (got 1.0)",
    ]


# -- readers who are slow -----------------------------------------------------------------------------


def test_a_slow_reader_loses_its_request(make_trace: MakeTrace, tmp_path: Path) -> None:
    # Who is cancelled by a slow reader is gone: nobody waits an hour for its patience to end.
    rows = [make_row(0, 16, 2, cancel_after_ms=3_600_000)] + [
        make_row(n, 16, 200, cancel_after_ms=3_600_000) for n in range(1, 6)
    ]
    flags = ["--output-buffering", "1", "--reader-delay-ms", "50", "--event-level", "tokens", "--json", "-q"]
    done = call(make_trace(rows), *REALTIME, *flags, "--events", tmp_path / "log.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    footer = footer_of(tmp_path / "log.jsonl")
    summary = json.loads(done.stdout)
    assert footer["end"] == "complete"
    assert footer["arrived"] == 6
    assert footer["cancelled"] >= 5, "two hundred tokens, one a millisecond, are too many for a reader who reads twenty"
    assert summary["cancelled_requests"] == footer["cancelled"]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    cancelled = [line for line in lines if line["event"] == "cancellation"]
    assert len(cancelled) == footer["cancelled"]
    steps = [step for line in lines for step in line.get("wall", {}).get("steps", ())]
    applied = [step for step in steps if step[1] == "boundary_apply"]
    assert sorted(step[4] for step in applied) == sorted(int(line["request"][1:]) for line in cancelled)


def test_a_follow_up_comes_after_a_slow_reader_lost_the_turn_before(make_trace: MakeTrace, tmp_path: Path) -> None:
    rows = [make_row(0, 16, 300, session_id="talk"), make_row(None, 16, 1, session_id="talk", delay=5)]
    flags = ["--output-buffering", "1", "--reader-delay-ms", "50", "--replay-concurrency", "1"]
    done = call(make_trace(rows), *REALTIME, *flags, "--events", tmp_path / "log.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    footer = footer_of(tmp_path / "log.jsonl")
    assert (footer["arrived"], footer["cancelled"], footer["finished"]) == (2, 1, 1)


# -- Ctrl-C -------------------------------------------------------------------------------------------


def wait_for(ready: Any, process: subprocess.Popen[str]) -> None:
    while not ready():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


@pytest.mark.parametrize("clock", ["measured", "nominal"])
def test_ctrl_c_keeps_what_there_is(clock: str, make_trace: MakeTrace, tmp_path: Path) -> None:
    """At many moments: before the first arrival perhaps, while rows arrive, while the last request drains."""
    trace = make_trace([make_row(n * 10.0, 600, 500_000 if n == 39 else 20) for n in range(40)])
    started = []
    for n, delay_s in enumerate([0.0, 0.02, 0.1, 0.3, 0.5, 1.0]):
        folder = tmp_path / f"run-{n}"
        folder.mkdir()
        argv = [*COMMAND, str(trace), *REALTIME, "--clock", clock, "--num-workers", str(1 + n % 2), "--events",
                "log.jsonl", "--event-level", "kv", "--summary", "sum.json", "--requests", "req.jsonl"]  # fmt: skip
        process = subprocess.Popen(argv, env=ENV, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for(lambda: len(list(folder.iterdir())) == 3, process)  # noqa: B023 - called at once
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        started.append((folder, process))
    for folder, process in started:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (130, ""), folder
        assert "interrupted" in out.lower()
        footer = footer_of(folder / "log.jsonl")
        assert footer["end"] == "interrupted"
        summary = json.loads((folder / "sum.json").read_text())
        assert (summary["interrupted"], summary["cut"]) == (True, True)
        assert summary["num_requests"] == footer["arrived"]
        assert summary["cut_requests"] == footer["cut"]
        records = (folder / "req.jsonl").read_text().splitlines()
        assert len(records) == footer["arrived"] - footer["cut"]


@pytest.mark.parametrize("clock", ["measured", "nominal"])
def test_ctrl_c_twice_ends_at_once(clock: str, make_trace: MakeTrace, tmp_path: Path) -> None:
    """The first one cannot be heeded: a model of the user's does not come back."""
    (tmp_path / "models.py").write_text(STUCK_MODEL)
    trace = make_trace([make_row(0, 16, 50)])
    names = {path.name for path in tmp_path.iterdir()} | {"stuck"}
    argv = [*COMMAND, str(trace), "--mode", "realtime", "--clock", clock, "--timing-model", "models:Stuck",
            "--events", "log.jsonl", "--summary", "sum.json", "--requests", "req.jsonl"]  # fmt: skip
    with subprocess.Popen(argv, env=ENV, cwd=tmp_path, text=True, stderr=subprocess.PIPE) as process:
        wait_for((tmp_path / "stuck").exists, process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == names


def test_ctrl_c_does_not_wait_for_slow_readers(make_trace: MakeTrace, tmp_path: Path) -> None:
    """A client reads a token an hour, and its whole response fits into its buffer."""
    trace = make_trace([make_row(0, 16, 20), make_row(0, 16, 500_000)])
    flags = ["--reader-delay-ms", "3600000", "--events", "log.jsonl"]
    argv = [*COMMAND, str(trace), *REALTIME, *flags, "-q"]
    with subprocess.Popen(argv, env=ENV, cwd=tmp_path, text=True, stderr=subprocess.PIPE) as process:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2, process)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert footer_of(tmp_path / "log.jsonl")["cut"] >= 1


def test_a_run_does_not_wait_for_slow_readers_either(four_rows: Path) -> None:
    done = call(four_rows, *REALTIME, "--reader-delay-ms", "3600000", "--json", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["completed_requests"] == 4
