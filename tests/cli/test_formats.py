"""Traces in the formats of others through the command line: what is found, assumed and said, and where."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mocker_replay.cli.app import run_main

ROOT = Path(__file__).resolve().parents[2]
FORMATS = ROOT / "traces" / "formats"


def run(capsys: pytest.CaptureFixture[str], *argv: str | Path, code: int = 0) -> tuple[str, str]:
    """Standard output and standard error of a command."""
    assert run_main([str(word) for word in argv]) == code
    out, err = capsys.readouterr()
    return out, err


def header_of(log: Path) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(log.read_text().splitlines()[0])
    return header


@pytest.mark.parametrize(
    ("name", "trace_format", "unit", "size", "assumed"),
    [
        ("qwen.jsonl", "qwen", "s", 16, {"origin": "0.243 s", "estimate_prefix": None, "failed_rows": None}),
        ("azure.csv", "azure", "datetime", 64, {"origin": "2026-03-02 10:00:00.7129400", "failed_rows": None}),
        ("burstgpt.csv", "burstgpt", "s", 64, {"failed_rows": "drop", "num_failed_rows": 4}),
        ("vllm-bench.json", "vllm_bench", "s", 64, {"failed_rows": "drop", "num_failed_rows": 6}),
        ("sglang-bench.jsonl", "sglang_bench", "s", 64, {"estimate_prefix": "none", "num_failed_rows": 3}),
    ],
)
def test_what_is_assumed_stands_in_every_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, trace_format: str, unit: str, size: int, assumed: Any
) -> None:
    log, summary = tmp_path / "log.jsonl", tmp_path / "summary.json"
    out, err = run(capsys, "run", FORMATS / name, "--events", log, "--summary", summary, "--event-level", "requests")
    assert err == ""
    header = header_of(log)
    assert header["options"]["trace_format"] == trace_format, "what was found, not auto"
    trace = header["trace"]
    assert (trace["format"], trace["timestamp_unit"], trace["trace_block_size"]) == (trace_format, unit, size)
    assert assumed.items() <= trace["assumed"].items()
    assert json.loads(summary.read_text())["trace_assumed"] == trace["assumed"]
    page = " ".join(out.split())
    assert f"rows, {trace_format}, span" in page
    for text in (f"of {size} tokens", f"time 0 is {trace['assumed']['origin']}"):
        assert text in page
    is_private = trace["assumed"]["estimate_prefix"] == "none"
    assert ("every prompt is taken for private" in page) == is_private == ("no prompt shares a prefix" in page)
    assert ("failed calls" in page) == (trace["assumed"]["failed_rows"] is not None)
    out, err = run(capsys, "check", FORMATS / name)
    assert out.startswith(f"trace           {name} ({trace_format}, {size} tokens a ")
    assert out.splitlines()[1].startswith(f"assumed         time 0 is {trace['assumed']['origin']}")
    assert ("every prompt is taken for private" in err) == is_private
    out, _ = run(capsys, "check", FORMATS / name, "--json")
    assert json.loads(out)["assumed"] == trace["assumed"]


def test_a_mooncake_trace_says_nothing_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    out, _ = run(capsys, "run", ROOT / "traces" / "tiny.jsonl", "--events", log, "--json", "--event-level", "requests")
    header = header_of(log)
    assert header["trace"].keys() == {"format", "rows", "digest", "timestamp_unit", "trace_block_size"}
    assert header["options"].keys().isdisjoint({"estimate_prefix", "failed_rows", "max_text_gib"})
    assert header["options"]["trace_format"] == "mooncake"
    assert "trace_assumed" not in json.loads(out)


def test_estimated_prefixes_are_reused_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = FORMATS / "azure.csv"
    private = json.loads(run(capsys, "run", trace, "--json", "--quiet")[0])
    log = tmp_path / "log.jsonl"
    flags = ("--estimate-prefix", "0.75:2", "--events", log, "--event-level", "kv")
    shared = json.loads(run(capsys, "run", trace, "--json", "--quiet", *flags)[0])
    assert private["prefix_cache_reused_ratio"] == 0.0
    assert 0.3 < shared["prefix_cache_reused_ratio"] < 0.75
    assert (
        header_of(log)["options"]["estimate_prefix"]
        == header_of(log)["trace"]["assumed"]["estimate_prefix"]
        == "0.75:2"
    )
    again = tmp_path / "again.jsonl"
    run(capsys, "run", trace, "--quiet", *flags[:2], "--events", again, "--event-level", "kv")
    assert again.read_bytes() == log.read_bytes()
    out, err = run(capsys, "check", trace, "--estimate-prefix", "0.75:2")
    assert "prefixes shared as 0.75:2" in out
    assert "the first 0.75 of each prompt's blocks" in err


def test_a_compressed_copy_and_shards_are_the_same_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "traces" / "tiny.jsonl").read_bytes()
    cut = text.index(b"\n", len(text) // 2) + 1
    packed, first, second = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    packed.write_bytes(gzip.compress(text))
    first.write_bytes(gzip.compress(text[:cut]))
    second.write_bytes(text[cut:])
    logs = []
    for traces in ([ROOT / "traces" / "tiny.jsonl"], [packed], [first, second]):
        run(capsys, "run", *traces, "--quiet", "--events", tmp_path / "log.jsonl", "--event-level", "kv")
        logs.append((tmp_path / "log.jsonl").read_bytes())
    assert logs[0] == logs[1] == logs[2]
    out, _ = run(capsys, "check", first, second)
    assert out.startswith("trace           b and 1 more (mooncake, 512 tokens a hash id)")
    out, _ = run(capsys, "check", first, second, "--json")
    assert json.loads(out)["trace"] == [str(first), str(second)]
    _, err = run(capsys, "run", first, second, "--events", second, code=2)
    assert "is already taken by the trace" in err


def test_a_format_in_doubt_and_one_that_is_plainly_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doubtful = tmp_path / "trace"
    doubtful.write_text('{"chat_id": 3, "timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [1]}')
    _, err = run(capsys, "run", doubtful, code=2)
    assert err.startswith(f"error: {doubtful}:1: may be qwen or mooncake: --trace-format says which")
    assert "rows" in run(capsys, "check", doubtful, "--trace-format", "mooncake")[0]
    azure = FORMATS / "azure.csv"
    _, err = run(capsys, "run", azure, "--trace-format", "mooncake", code=2)
    lines = err.splitlines()
    assert lines[-1] == "hint: the trace is read as mooncake, but looks like azure (--trace-format azure)"
    assert all(line.startswith("error: ") for line in lines[:-1])
    out, _ = run(capsys, "check", azure, "--trace-format", "mooncake", "--json", code=2)
    assert json.loads(out)["hint"] == lines[-1].removeprefix("hint: ")


def test_options_are_refused_by_their_flags(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--estimate-prefix", "half", "--failed-rows", "maybe", "--max-text-gib", "0")
    _, err = run(capsys, "run", FORMATS / "azure.csv", *flags, code=2)
    assert [line.split(": ")[1] for line in err.splitlines()] == [
        "--failed-rows",
        "--estimate-prefix",
        "--max-text-gib",
    ]
    _, err = run(capsys, "run", FORMATS / "qwen.jsonl", "--estimate-prefix", "none", code=2)
    assert err == ("error: estimate_prefix is of no use to a trace in the format qwen: it has hash ids\n")


def test_compare_and_goldens_take_such_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "calls.csv"
    shutil.copy(FORMATS / "burstgpt.csv", trace)
    variants = ("--variant", '{"name": "a"}', "--variant", '{"name": "b", "engine": {"max_num_seqs": 2}}')
    out, _ = run(capsys, "compare", trace, *variants, "--json", "--quiet", "--failed-rows", "keep")
    found = json.loads(out)
    assert found["trace"]["assumed"]["num_failed_rows"] == 4
    assert [variant["options"]["trace_format"] for variant in found["variants"]] == ["burstgpt", "burstgpt"]
    goldens = tmp_path / "goldens"
    run(capsys, "golden", "record", "calls", trace, "--dir", goldens, "--estimate-prefix", "0.5:2")
    run(capsys, "golden", "check", "--dir", goldens)
    trace.write_bytes(gzip.compress(trace.read_bytes()))
    run(capsys, "golden", "check", "--dir", goldens)


def test_a_result_without_start_times_runs_in_a_closed_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads((FORMATS / "vllm-bench.json").read_text())
    del result["start_times"]
    trace = tmp_path / "result.json"
    trace.write_text(json.dumps(result))
    _, err = run(capsys, "run", trace, code=2)
    assert "start_times: is required for an open loop; the benchmark ran with request_rate 2.0" in err
    flags = ("--replay-concurrency", "4", "--requests", tmp_path / "records.jsonl", "--json", "--quiet")
    summary = json.loads(run(capsys, "run", trace, *flags)[0])
    assert (summary["completed_requests"], summary["trace_assumed"]["origin"]) == (30, None)
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert len({record["session_id"] for record in records}) == 30
    summary = json.loads(run(capsys, "run", trace, "--missing-timestamps", "zero", "--json", "--quiet")[0])
    assert summary["completed_requests"] == 30
