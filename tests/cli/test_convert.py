"""`mocker-replay convert`: where the rows go, what is said, exit codes; `--transform` with the other verbs."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3

from tests.support.command import call

ROOT = Path(__file__).resolve().parents[2]
CHAT = ROOT / "traces" / "chat-shared-prefix.jsonl"
TRANSFORMS = ["--transform", "window=0:20s", "--transform", "sample=0.5,seed=7"]
GOOD = """\
{"created_time": 1.5, "input_length": 600, "output_length": 3, "hash_ids": [1, 2], "note": 1}
{"timestamp": 2, "input_length": 512, "output_length": 40, "hash_ids": [1], "session_id": "a"}
"""
CANONICAL = (
    '{"timestamp":1500,"input_length":600,"output_length":3,"hash_ids":[1,2]}\n'
    '{"timestamp":2000,"input_length":512,"output_length":40,"hash_ids":[1],"session_id":"a"}\n'
)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(GOOD)
    return path


def test_rows_go_to_a_file_and_what_was_done_to_standard_error(good: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.jsonl"
    done = call("convert", good, "-o", out, "--timestamp-unit", "s", "--trace-block-size", "512")
    assert (done.returncode, done.stdout) == (0, "")
    assert out.read_text() == CANONICAL
    assert done.stderr.splitlines() == [
        "warning: fields that mean nothing here were ignored: note",
        f"read        trace.jsonl: 2 rows, mooncake, digest {blake3(GOOD.encode()).hexdigest()}",
        "assumed     timestamps in s, 512 tokens a hash id",
        f"wrote       {out}: 2 rows in 2 sessions, timestamps in ms, the earliest arrival at 1500 ms",
    ]
    assert [path.name for path in out.parent.iterdir()] == ["out.jsonl"]
    quiet = call("convert", out, "-o", tmp_path / "again.jsonl", "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    assert (tmp_path / "again.jsonl").read_text() == CANONICAL


def test_standard_output_and_input() -> None:
    command = [sys.executable, "-m", "mocker_replay", "convert", "-", "-o", "-", "--timestamp-unit", "s", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, input=GOOD)
    assert (done.returncode, done.stdout) == (0, CANONICAL)
    assert done.stderr == "warning: fields that mean nothing here were ignored: note\n"


def test_the_name_says_how_it_is_compressed(good: Path, tmp_path: Path) -> None:
    texts = []
    for name, unpacked in (("out.gz", gzip.decompress), ("out.zst", zstandard.ZstdDecompressor().decompress)):
        argv = ("convert", good, "-o", tmp_path / name, "--timestamp-unit", "s")
        assert call(*argv).returncode == 0
        first = (tmp_path / name).read_bytes()
        assert call(*argv).returncode == 0  # what is there is replaced, by the same bytes
        assert (tmp_path / name).read_bytes() == first
        texts.append(zstandard.ZstdDecompressor().stream_reader(first).read() if "zst" in name else unpacked(first))
    assert texts == [CANONICAL.encode()] * 2


def test_what_a_replay_must_be_told(tmp_path: Path) -> None:
    rows = '{"input_length": 100, "output_length": 1, "hash_ids": [1, 2], "session_id": "a"}\n'
    out = tmp_path / "out.jsonl"
    done = call("convert", "-", "-o", out, "--closed-loop", "--trace-block-size", "64", stdin=rows)
    assert done.stderr.splitlines()[2:] == [
        f"wrote       {out}: 1 rows in 1 session, timestamps in ms, no arrival times",
        f"replay it with: mocker-replay run {out} --trace-block-size 64 --replay-concurrency SESSIONS",
    ]
    assert call("run", out, "-q", "--trace-block-size", "64", "--replay-concurrency", "1").returncode == 0


def test_faults_are_listed_and_nothing_is_written(good: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(GOOD + '{"timestamp": -1}\n[]\n')
    out = tmp_path / "out.jsonl"
    done = call("convert", bad, "-o", out)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(" ")[1] for line in done.stderr.splitlines()] == [f"{bad}:3:"] * 2 + [f"{bad}:4:"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "trace.jsonl"]
    done = call("convert", good, "-o", good)
    assert (done.returncode, done.stderr) == (2, f"error: --output: {good} is already taken by the trace\n")
    assert good.read_text() == GOOD
    done = call("convert", good, "-o", out, "--transform", "sample=2", "--transform", "window=1:2")
    assert (done.returncode, done.stderr) == (
        2,
        "error: --transform: must be above 0 and at most 1 (got sample=2)\n"
        "error: --transform: 1 must have its unit (us, ms, s, min, h) (got window=1:2)\n",
    )
    done = call("convert", good, "-o", out, "--transform", "window=1h:")
    assert (done.returncode, done.stderr) == (
        2,
        "error: transforms: leaves none of the 2 rows of trace.jsonl (got window=3600000ms:)\n",
    )
    assert not out.exists()
    assert call("convert", good).returncode == 2


def test_a_run_of_transformed_rows_is_the_run_of_the_converted_file(tmp_path: Path) -> None:
    out = tmp_path / "part.jsonl"
    done = call("convert", CHAT, "-o", out, *TRANSFORMS)
    assert [line.split()[0] for line in done.stderr.splitlines()] == [
        "read", "assumed", "transform", "transform", "transformed", "wrote",
    ]  # fmt: skip
    assert "transform   window=0ms:20000ms: 149 rows\n" in done.stderr
    digest = done.stderr.splitlines()[4].split()[-1]
    logs = []
    for trace, extra in ((CHAT, TRANSFORMS), (out, [])):
        log = tmp_path / "log.jsonl"
        argv = ("run", trace, "-q", "--events", log, "--event-level", "kv", "--num-workers", "2")
        assert call(*argv, *extra).returncode == 0
        logs.append(log.read_text().split("\n", 1))
        assert call("audit", log).returncode == 0
    assert logs[0][1] == logs[1][1]
    assert json.loads(logs[0][0])["trace"]["digest"] == digest
    assert json.loads(logs[1][0])["trace"]["digest"] == blake3(out.read_bytes()).hexdigest()


def test_other_verbs_take_transforms_too(tmp_path: Path) -> None:
    done = call("check", CHAT, *TRANSFORMS, "--json")
    found = json.loads(done.stdout)
    assert (found["profile"]["num_rows"], found["source_rows"]) == (66, 1600)
    assert found["transforms"] == ["window=0ms:20000ms", "sample=0.5,seed=7"]
    text = call("check", CHAT, *TRANSFORMS).stdout.splitlines()
    assert text[1] == "transforms      window=0ms:20000ms sample=0.5,seed=7"
    digest = found["digest"]
    variants = ["--variant", '{"name": "a"}', "--variant", '{"name": "b"}']
    compared = json.loads(call("compare", CHAT, *TRANSFORMS, *variants, "--json").stdout)
    assert compared["trace"]["digest"] == digest
    assert compared["trace"]["source_digest"] == found["source_digest"]
    refused = call("compare", CHAT, *variants, "--variant", '{"name": "c", "options": {"transforms": ["sample=1"]}}')
    assert (refused.returncode, "transforms" in refused.stderr) == (2, True)
    goldens = tmp_path / "goldens"
    assert call("golden", "record", "part", CHAT, *TRANSFORMS, "--dir", goldens).returncode == 0
    manifest = json.loads((goldens / "part" / "manifest.json").read_text())
    assert (manifest["trace"]["digest"], manifest["trace"]["rows"]) == (digest, 66)
    checked = call("golden", "check", "--dir", goldens)
    assert (checked.returncode, checked.stdout.split()[0]) == (0, "same")
    page = call("run", CHAT, *TRANSFORMS).stdout
    assert "transforms   window=0ms:20000ms sample=0.5,seed=7\n" in page
    summary = tmp_path / "summary.json"
    log = tmp_path / "log.jsonl"
    assert call("run", CHAT, *TRANSFORMS, "-q", "--summary", summary, "--events", log).returncode == 0
    assert json.loads(summary.read_text())["transformed_trace"]["digest"] == digest
    assert call("audit", log, "--summary", summary).returncode == 0


def test_faults_of_transforms_stand_beside_all_others() -> None:
    done = call("run", CHAT, "--transform", "sample=", "--num-workers", "0", "--transform", "scale-input=-3")
    assert done.returncode == 2
    assert [line.split(" ")[1] for line in done.stderr.splitlines()] == [
        "--transform:", "--transform:", "--num-workers:",
    ]  # fmt: skip
