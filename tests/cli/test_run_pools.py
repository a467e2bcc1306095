"""`run` with prefill and decode workers: flags, what is refused, what the page says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from mocker_replay.cli.app import run_main
from tests.parity.test_handoff_cases import ALL


def files_of(key: str, folder: Path) -> list[str]:
    case: dict[str, Any] = ALL[key]
    trace = folder / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in case["trace"]))
    argv = ["run", str(trace), "--trace-block-size", str(case["trace_block_size"])]
    for role in ("prefill", "decode"):
        (folder / f"{role}.json").write_text(json.dumps(case[f"{role}_config"]))
        argv += [f"--{role}-engine-config", str(folder / f"{role}.json")]
        argv += [f"--num-{role}-workers", str(case["workers"][role])]
    return argv


def test_a_run_of_two_pools(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    summary = tmp_path / "summary.json"
    assert run_main([*files_of("d32", tmp_path), "--summary", str(summary)]) == 0
    page = capfd.readouterr().out
    assert "prefill      2 workers of 1 rank and 1 GPU, 64 blocks per rank" in page
    assert "decode       2 workers of 1 rank" in page
    assert "0.12 prefill and 0.12 decode worker seconds" in page
    figures = json.loads(summary.read_text())
    assert (figures["prefill_gpus_per_worker"], figures["decode_gpus_per_worker"]) == (1, 1)
    assert figures["prefill_worker_seconds"] == pytest.approx(0.122)


def test_flags_of_single_keys_hold_for_both_pools(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    argv = [*files_of("d01", tmp_path), "--tensor-parallel-size", "4", "--summary", str(summary), "--quiet"]
    assert run_main(argv) == 0
    figures = json.loads(summary.read_text())
    assert (figures["prefill_gpus_per_worker"], figures["decode_gpus_per_worker"]) == (4, 4)


REFUSED = {
    "one pool": (["--num-prefill-workers", "1"], "--num-decode-workers: must stand together"),
    "no configuration": (
        ["--num-prefill-workers", "1", "--num-decode-workers", "1"], "prefill_engine_config: num_prefill_workers",
    ),
    "no pools": (["--prefill-engine-config", "{}"], "prefill_engine_config: is only of use with"),
    "and workers": (
        ["--num-prefill-workers", "1", "--num-decode-workers", "1", "--num-workers", "2"],
        "--num-workers: cannot stand together",
    ),
    "and a configuration of all": (
        ["--num-prefill-workers", "1", "--num-decode-workers", "1", "--engine-config", "{}"],
        "--engine-config: prefill and decode workers have",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    argv, text = REFUSED[name]
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [1]}\n')
    assert run_main(["run", str(trace), *argv]) == 2
    assert text in capfd.readouterr().err


@pytest.mark.parametrize("case", ["d14", "d43", "d44"])  # without host memory, at the prefill, at the decode workers
def test_real_time_is_the_accelerated_run_and_runs_again(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The log of the nominal clock has the digest of the accelerated one; the measured one is run again, too."""
    argv, digests = files_of(case, tmp_path), []
    for clock in (None, "nominal", "measured"):
        log = tmp_path / f"{clock}.jsonl"
        mode = [] if clock is None else ["--mode", "realtime", "--clock", clock]
        assert run_main([*argv, *mode, "--quiet", "--events", str(log)]) == 0
        digests.append(orjson.loads(log.read_bytes().splitlines()[-1])["digest"])
        assert run_main(["audit", str(log)]) == 0
        if clock is not None:
            assert run_main(["rerun", str(log)]) == 0
    assert digests[0] == digests[1]
    assert capfd.readouterr().err == ""


def test_a_router_in_both_modes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Records tell the overlap, the nominal log is that of the accelerated run, and a golden holds."""
    argv, digests = files_of("d32", tmp_path), []
    argv += ["--router-mode", "kv_router"]
    for clock in (None, "nominal", "measured"):
        log = tmp_path / f"{clock}.jsonl"
        mode = [] if clock is None else ["--mode", "realtime", "--clock", clock]
        records = tmp_path / "requests.jsonl"
        assert run_main([*argv, *mode, "--quiet", "--events", str(log), "--requests", str(records)]) == 0
        for line in records.read_bytes().splitlines():
            prefill, decode = orjson.loads(line)["routing_history"]
            assert (prefill["pool"], decode["pool"]) == ("prefill", "decode")
            assert prefill["selected_overlap_blocks"] + prefill["overlap_regret_blocks"] >= 0
            assert decode["best_available_overlap_blocks"] == 0
        digests.append(orjson.loads(log.read_bytes().splitlines()[-1])["digest"])
        assert run_main(["audit", str(log)]) == 0
        if clock is not None:
            assert run_main(["rerun", str(log)]) == 0
    assert digests[0] == digests[1]
    assert run_main(["diff", str(tmp_path / "None.jsonl"), str(tmp_path / "nominal.jsonl")]) == 0
    golden = ["--dir", str(tmp_path / "goldens")]
    assert run_main(["golden", "record", *golden, "routed", *argv[1:]]) == 0
    assert run_main(["golden", "check", *golden]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (lambda step: None, "needs a place, but no step says where"),
        (lambda step: [*step[:4], 7, 0], "the pool has no worker 7 with rank 0"),
        (lambda step: [*step[:4], 1 - step[4], 0], "is submitted, but does not wait on the lane of worker"),
    ],
)
def test_a_rerun_goes_where_the_router_went(
    edit: Callable[[list[Any]], list[Any] | None], rule: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    argv = [*files_of("d32", tmp_path), "--router-mode", "kv_router", "--mode", "realtime", "--clock", "nominal"]
    assert run_main([*argv, "--quiet", "--events", str(log)]) == 0
    lines = log.read_bytes().splitlines()
    for at, line in enumerate(lines):
        event = orjson.loads(line)
        steps = event.get("wall", {}).get("steps", [])
        if any(step[1] == "place" for step in steps):
            edited = [edit(step) if step[1] == "place" else step for step in steps]
            event["wall"]["steps"] = [step for step in edited if step is not None]
            lines[at] = orjson.dumps(event)
            break
    log.write_bytes(b"".join(line + b"\n" for line in lines))
    assert run_main(["rerun", str(log)]) == 1
    told = capfd.readouterr()
    assert rule in told.out + told.err


def test_pools_that_do_not_fit_each_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    argv = files_of("d41", tmp_path)
    assert run_main(argv) == 2
    assert "engine.block_size: must be that of the decode configuration" in capfd.readouterr().err
