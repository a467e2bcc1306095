"""`run`, `check` and `synth` with clients that leave, as processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import MakeTrace, make_row

# Passes of 10 ms with prompt work, of 1 ms after.
FIXED = ("--timing-model", '{"type": "fixed", "prefill_ms": 10, "decode_ms": 1}')


def call(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mocker_replay", *map(str, argv)], text=True, capture_output=True, timeout=120
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_in_which_clients_leave_is_a_good_run(make_trace: MakeTrace, tmp_path: Path) -> None:
    """One in mid-pass, one that had its answer before, one still on its way to the engine; exit code 0."""
    rows = [
        make_row(0, output_length=9, cancel_after_ms=12.5),
        make_row(0, output_length=3, cancel_after_ms=12.5),
        make_row(11.5, output_length=3, cancel_after_ms=0),
    ]
    flags = ("--events", tmp_path / "e.jsonl", "--requests", tmp_path / "r.jsonl", "--summary", tmp_path / "s.json")
    done = call("run", make_trace(rows), *FIXED, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 arrived, 1 completed, 2 cancelled" in done.stdout
    log = lines(tmp_path / "e.jsonl")
    told = [(e["request"], e["t_ms"], e["in_pass"], e["suppressed"]) for e in log if e.get("kind") == "cancel"]
    assert told == [("r2", 12.0, False, False), ("r0", 12.0, True, True)]
    gone = [(e["request"], e["t_ms"], e["output_tokens"], e["reason"]) for e in log if e["event"] == "cancellation"]
    assert gone == [("r2", 12.0, 0, "client"), ("r0", 12.0, 3, "client")]
    footer = log[-1]
    assert (footer["finished"], footer["cancelled"], footer["cut"], footer["end"]) == (1, 2, 0, "complete")
    records = lines(tmp_path / "r.jsonl")
    assert [record["terminal_status"] for record in records] == ["canceled", "completed", "canceled"]
    assert [record["failure_reason"] for record in records if "failure_reason" in record] == ["client", "client"]
    summary = json.loads((tmp_path / "s.json").read_text())
    assert (summary["completed_requests"], summary["cancelled_requests"], summary["failure_reasons"]) == (1, 2, {})
    assert (summary["total_output_tokens"], summary["num_ttft_samples"], summary["max_e2e_latency_ms"]) == (3, 1, 12.0)


def test_patience_is_not_divided_by_the_speedup(make_trace: MakeTrace, tmp_path: Path) -> None:
    trace = make_trace([make_row(0, output_length=9), make_row(40, output_length=90, cancel_after_ms=30)])
    call("run", trace, *FIXED, "--arrival-speedup-ratio", "4", "--events", tmp_path / "e.jsonl")
    (gone,) = [e for e in lines(tmp_path / "e.jsonl") if e["event"] == "cancellation"]
    assert gone["t_ms"] == 40.0


def test_who_leaves_makes_room_and_lets_the_session_go_on(make_trace: MakeTrace, tmp_path: Path) -> None:
    """At the moment the client leaves, not at the start of the pass the cancellation is stamped with."""
    rows = [
        make_row(0, output_length=90, session_id="a", cancel_after_ms=15.5),
        make_row(0, output_length=2, session_id="a", delay=2),
        make_row(0, output_length=2),
    ]
    for flags, arrivals in (((), {"r1": 17.5, "r2": 0.0}), (("--replay-concurrency", "1"), {"r1": 17.5, "r2": 28.5})):
        done = call("run", make_trace(rows), *FIXED, *flags, "--events", tmp_path / "e.jsonl")
        assert done.returncode == 0
        found = {e["request"]: e["t_ms"] for e in lines(tmp_path / "e.jsonl") if e["event"] == "arrival"}
        assert found == {"r0": 0.0} | arrivals


def test_check_profiles_patience_and_names_its_faults(make_trace: MakeTrace) -> None:
    good = make_trace([make_row(0, cancel_after_ms=10), make_row(5), make_row(90, cancel_after_ms=30)], "good.jsonl")
    assert "patience ms     min 10  mean 20" in call("check", good).stdout
    profile = json.loads(call("check", good, "--json").stdout)["profile"]
    assert (profile["num_rows_with_patience"], profile["cancel_after_ms"]["max"]) == (2, 30.0)
    bad = make_trace([make_row(0, cancel_after_ms=-1), make_row(5, cancel_after_ms="soon")])
    done = call("check", bad)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"error: {bad}:1: cancel_after_ms: must be a finite number of at least 0 (got -1)",
        f'error: {bad}:2: cancel_after_ms: must be a finite number of at least 0 (got "soon")',
    ]


def test_synth_writes_clients_that_leave(tmp_path: Path) -> None:
    argv = ("--input-tokens", "64", "--output-tokens", "100", "--request-count", "400", "--request-rate", "50")
    staying = call("synth", *argv)
    leaving = call("synth", *argv, "--cancel-after-ms", "250.5", "--cancel-fraction", "0.3")
    assert leaving.returncode == 0
    assert leaving.stdout == call("synth", *argv, "--cancel-after-ms", "250.5", "--cancel-fraction", "0.3").stdout
    rows = [json.loads(line) for line in leaving.stdout.splitlines()]
    given = [row.pop("cancel_after_ms", None) for row in rows]
    assert set(given) == {250.5, None}
    assert 80 < given.count(250.5) < 160
    assert rows == [json.loads(line) for line in staying.stdout.splitlines()], "nothing else of the workload changes"
    all_leave = call("synth", *argv, "--cancel-after-ms", "0")
    assert all_leave.stdout.count('"cancel_after_ms":0.0') == 400
    for flags, message in (
        (("--cancel-fraction", "0.5"), "--cancel-fraction: is of use only with --cancel-after-ms"),
        (("--cancel-after-ms", "-1"), "--cancel-after-ms: must be finite and not negative"),
        (("--cancel-after-ms", "1", "--cancel-fraction", "1.5"), "--cancel-fraction: must be from 0 to 1"),
    ):
        done = call("synth", *argv, *flags)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
