"""Whole runs of the small shipped traces, byte for byte: log, records, summary, telemetry.

Each run happens in processes of its own under different PYTHONHASHSEED. `GOLDEN_UPDATE=1` writes the files anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from mocker_replay.report.summary import without_wall_clock

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = Path(__file__).parent / "runs"
TRACES = ROOT / "traces"

RUNS = {
    "plain-kv": ["--event-level", "kv", "--block-size", "16", "--num-gpu-blocks", "4096"],
    "pressure-tokens": [
        "--event-level", "tokens", "--block-size", "16", "--num-gpu-blocks", "170", "--max-num-batched-tokens", "512",
    ],
    "dp2-two-workers-passes": ["--num-workers", "2", "--dp-size", "2", "--prefill-schedule-interval", "3"],
    "mtp-closed-loop-requests": ["--event-level", "requests", "--aic-nextn", "2", "--replay-concurrency", "3"],
    "kv-router-cut": ["--router-mode", "kv_router", "--num-workers", "3", "--max-sim-time-ms", "150"],
    "prefill-decode-kv": [
        "--event-level", "kv", "--num-prefill-workers", "1", "--num-decode-workers", "2", "--block-size", "16",
        "--prefill-engine-config", '{"engine": {"worker_type": "prefill", "num_gpu_blocks": 100,'
        ' "kv_transfer_bandwidth": 8.0, "kv_transfer_bytes_per_token": 131072,'
        ' "kv_transfer_timing_mode": "destination_missing"}}',
        "--decode-engine-config", '{"engine": {"worker_type": "decode", "num_gpu_blocks": 120}, "dp_size": 2}',
    ],
    "trtllm-kv": [
        "--event-level", "kv", "--engine-config",
        '{"engine": {"backend": "trtllm", "block_size": 21, "num_gpu_blocks": 62, "max_num_batched_tokens": 512}}',
    ],
    "trtllm-drafts-two-workers-passes": [
        "--num-workers", "2", "--aic-nextn", "2", "--engine-config",
        '{"engine": {"backend": "trtllm", "num_gpu_blocks": 48, "max_num_seqs": 2}}',
    ],
    "sglang-kv": [
        "--event-level", "kv", "--block-size", "16", "--num-gpu-blocks", "580", "--engine-config",
        '{"engine": {"backend": "sglang", "prefill_decode_interval": 2, "sglang": {"schedule_policy": "lpm",'
        ' "chunked_prefill_size": 1024, "clip_max_new_tokens": 8}}}',
    ],
    "sglang-one-token-pages-retracted": [
        "--event-level", "tokens", "--num-gpu-blocks", "2400", "--max-num-seqs", "12", "--engine-config",
        '{"engine": {"backend": "sglang", "sglang": {"clip_max_new_tokens": 4, "schedule_conservativeness": 0.1}}}',
    ],
    "clients-leave-cut": ["--max-num-seqs", "5", "--max-sim-time-ms", "900"],
}  # fmt: skip
# Of which trace; tiny.jsonl where none is named.
TRACE_OF = {
    "clients-leave-cut": "impatient-clients.jsonl",
    "sglang-one-token-pages-retracted": "impatient-clients.jsonl",
}


def run(name: str, folder: Path, hash_seed: str) -> dict[str, bytes]:
    """All outputs of one run; the summary without what depends on the host."""
    folder.mkdir()
    outputs = {"events": "events.jsonl", "requests": "requests.jsonl", "telemetry": "telemetry.jsonl"}
    flags = [f for key, file in outputs.items() for f in (f"--{key}", str(folder / file))]
    subprocess.run(
        [
            sys.executable, "-m", "mocker_replay", "run", str(TRACES / TRACE_OF.get(name, "tiny.jsonl")), *RUNS[name],
            *flags, "--quiet", "--summary", str(folder / "summary.json"), "--telemetry-sample-interval-ms", "50",
        ],
        check=False,  # some runs reject requests and answer with exit code 4
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    summary = without_wall_clock(orjson.loads((folder / "summary.json").read_bytes()))
    found = {file: (folder / file).read_bytes() for file in outputs.values()}
    found["summary.json"] = orjson.dumps(summary, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return found


@pytest.mark.parametrize("name", RUNS)
def test_run_is_stable_to_the_byte(name: str, tmp_path: Path) -> None:
    first = run(name, tmp_path / "first", "0")
    assert run(name, tmp_path / "second", "4242") == first
    golden = GOLDEN / name
    if os.environ.get("GOLDEN_UPDATE") == "1":
        golden.mkdir(parents=True, exist_ok=True)
        for file, data in first.items():
            (golden / file).write_bytes(data)
    assert {file: (golden / file).read_bytes() for file in first} == first


def test_clients_leave_in_every_way() -> None:
    """The golden run is worth its name: between passes and in one, with and without output to suppress."""
    lines = [orjson.loads(line) for line in (GOLDEN / "clients-leave-cut" / "events.jsonl").read_bytes().splitlines()]
    found = [line for line in lines if line["event"] == "command" and line["kind"] == "cancel"]
    told = {(line["in_pass"], line["suppressed"], line["result"]) for line in found}
    assert {(False, False, "applied"), (True, True, "applied"), (True, True, "noop")} <= told
    footer = lines[-1]
    assert footer["cancelled"] == len(found)
    assert footer["cut"] > 0


def test_the_tensorrt_llm_flavour_shows_what_it_does_otherwise() -> None:
    """A prompt that is all reused, an output that the pool cuts, a queue behind a head without room."""
    lines = [orjson.loads(line) for line in (GOLDEN / "trtllm-kv" / "events.jsonl").read_bytes().splitlines()]
    asked = {line["request"]: line["input_tokens"] for line in lines if line["event"] == "arrival"}
    reasons = {line["reason"] for line in lines if "reason" in line}
    assert {"output_length", "pool_len", "prompt_over_pool"} <= reasons
    assert not any(line["event"] == "preemption" for line in lines)
    ranks = [(rank["gauges"], line) for line in lines if line["event"] == "pass_end" for rank in line["ranks"]]
    assert any(gauges["waiting"] and gauges["active_blocks"] < 62 for gauges, _ in ranks)
    assert any(line["event"] == "admission" and line["reused_tokens"] > asked[line["request"]] - 21 for line in lines)


def test_no_golden_is_left_over() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(RUNS)
