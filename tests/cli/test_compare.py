"""`mocker-replay compare`: streams, exit codes, gates, what CI reads, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FAST = '{"name": "fast"}'
SLOW = '{"name": "slow", "engine": {"speedup_ratio": 0.5}}'


def compare(
    folder: Path, *argv: str, hash_seed: str = "0", stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mocker_replay", "compare", *argv]
    env = {"PYTHONPATH": str(ROOT), "PATH": "", "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, capture_output=True, check=False, text=True, cwd=folder, env=env, input=stdin)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "traces" / "chat-shared-prefix.jsonl", tmp_path / "chat.jsonl")
    shutil.copy(ROOT / "traces" / "tiny.jsonl", tmp_path / "tiny.jsonl")
    return tmp_path


def test_two_variants_on_the_screen(folder: Path) -> None:
    done = compare(folder, "chat.jsonl", "--variant", FAST, "--variant", SLOW)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Comparison on chat.jsonl: ")
    assert "slow against fast" in lines
    rows = {line.split()[0]: line.split() for line in lines if line and not line.startswith(" ")}
    assert rows["mean_tpot_ms"][-1] == "worse"
    assert rows["completed_requests"][-1] == "same"
    assert max(map(len, lines[:40])) <= 100 + 80  # notes may be long, rows are not
    assert all(len(line.rstrip()) <= 100 for line in lines if line.split()[:1] == ["mean_tpot_ms"])
    assert any(line.startswith("replay of slow: ") for line in lines)


def test_a_gate_decides_the_exit_code(folder: Path) -> None:
    report, page = folder / "gates.xml", folder / "compare.md"
    gates = ("--fail-if", "mean_tpot_ms > +2%", "--fail-if", "failed_requests > 0")
    both = ("chat.jsonl", "--variant", FAST, "--variant", SLOW, "--variant", '{"name": "as fast"}')
    done = compare(folder, *both, *gates, "--quiet", "--github", "--junit", str(report), "--markdown", str(page))
    assert (done.returncode, done.stderr) == (1, "")
    failed, annotation = done.stdout.splitlines()
    assert failed.startswith("FAILED  mean_tpot_ms > +2%  slow: mean_tpot_ms ")
    assert annotation.startswith(
        "::error file=chat.jsonl,title=mocker-replay compare%3A slow%3A mean_tpot_ms > +2%25::"
    )
    suites = ElementTree.parse(report).getroot()
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("4", "1", "0")
    text = page.read_text()
    assert "| `mean_tpot_ms > +2%` | slow | **failed** |" in text
    assert "### as fast against fast" in text
    assert compare(folder, *both, "--quiet").stdout == ""
    done = compare(folder, *both, "--quiet", "--fail-if", "mean_tpot_ms < -2%")
    assert (done.returncode, done.stdout) == (0, "")


def test_json_is_the_same_to_the_byte(folder: Path) -> None:
    argv = ("chat.jsonl", "--variant", FAST, "--variant", SLOW, "--replicates", "2", "--json", "--sla-ttft-ms", "200")
    first, second = (compare(folder, *argv, "--fail-if", "mean_tpot_ms > +1%", hash_seed=seed) for seed in ("1", "2"))
    assert first.returncode == 1
    assert first.stderr.startswith("FAILED  mean_tpot_ms > +1%  slow: ")
    one, two = (json.loads(done.stdout) for done in (first, second))
    assert [speed["variant"] for speed in one.pop("wall")] == ["fast", "slow"]
    assert two.pop("wall")[0]["requests_per_s"] > 0
    assert json.dumps(one) == json.dumps(two)
    assert (one["schema"], one["passed"], one["baseline"]) == ("mocker-replay.compare/1", False, "fast")
    metrics = {metric["name"]: metric for metric in one["comparisons"][0]["metrics"]}
    assert metrics["goodput_ratio"]["baseline"] > metrics["goodput_ratio"]["variant"]
    assert metrics["mean_tpot_ms"]["verdict"] == "worse"
    assert one["method"]["replicates"] == 2


def test_figures_are_those_of_run(folder: Path) -> None:
    flags = ("--num-gpu-blocks", "300", "--max-num-seqs", "8")
    done = compare(
        folder, "chat.jsonl", "--variant", FAST, "--variant", '{"name": "b", "dp_size": 2}', *flags, "--json"
    )
    command = [sys.executable, "-m", "mocker_replay", "run", "chat.jsonl", *flags, "--json", "--quiet"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    summary = json.loads(subprocess.run(command, capture_output=True, cwd=folder, env=env, check=False).stdout)
    compared = json.loads(done.stdout)["comparisons"][0]["metrics"]
    shared = [metric for metric in compared if metric["name"] in summary]
    assert len(shared) > 20
    assert {metric["name"]: metric["baseline"] for metric in shared} == {m["name"]: summary[m["name"]] for m in shared}


def test_standard_input_is_a_trace(folder: Path) -> None:
    trace = (folder / "tiny.jsonl").read_text()
    done = compare(folder, "-", "--variant", FAST, "--variant", SLOW, stdin=trace)
    assert (done.returncode, done.stderr) == (0, "")
    closed = '{"name": "closed", "options": {"replay_concurrency": 2}}'
    done = compare(folder, "-", "--variant", FAST, "--variant", closed, stdin=trace)
    assert done.returncode == 2
    assert "one way only" in done.stderr
    assert compare(folder, "tiny.jsonl", "--variant", FAST, "--variant", closed).returncode == 0


def test_all_faults_are_told_at_once(folder: Path) -> None:
    (folder / "bad.toml").write_text("[engine]\nmax_num_seqs = 0\n")
    done = compare(
        folder, "chat.jsonl", "--variant", "bad.toml", "--variant", "none.json", "--margin", "2", "--confidence", "1",
        "--jitter", "0", "--replicates", "-1", "--fail-if", "p99 > 3", "--num-workers", "0", "--block-size", "0",
        "--markdown", "chat.jsonl", "--engine-config", "none.toml",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    for part in (
        "bad.toml: engine.max_num_seqs", "none.json: no such file", "--margin: ", "--confidence: ", "--jitter: ",
        "--replicates: ", "--fail-if: ", "--num-workers: ", "--block-size: ", "--markdown: ", "none.toml: no such file",
    ):  # fmt: skip
        assert f"error: {part}" in done.stderr, part
    assert (folder / "chat.jsonl").stat().st_size > 1000


@pytest.mark.parametrize(
    "argv",
    [
        (), ("chat.jsonl",), ("chat.jsonl", "--variant", FAST), ("none.jsonl", "--variant", FAST, "--variant", SLOW),
        ("chat.jsonl", "--variant", FAST, "--variant", FAST), ("chat.jsonl", "--variant", FAST, "--variant", "{"),
        ("chat.jsonl", "--variant", FAST, "--variant", SLOW, "--junit", "x.xml"),
        ("chat.jsonl", "--variant", FAST, "--variant", SLOW, "--events", "x"),
        ("chat.jsonl", "--variant", FAST, "--variant", SLOW, "--replicates", "2", "--replay-concurrency", "3"),
        ("chat.jsonl", "--variant", FAST, "--variant", SLOW, "--json", "--markdown", "-"),
    ],
)  # fmt: skip
def test_what_exits_2(folder: Path, argv: tuple[str, ...]) -> None:
    done = compare(folder, *argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_run_that_breaks_exits_3_and_names_its_variant(folder: Path) -> None:
    (folder / "models.py").write_text(
        "class Broken:\n    def prefill(self, *args):\n        return 1.0\n"
        "    def decode(self, *args):\n        raise ValueError('worn out')\n"
    )
    own = '{"name": "own", "engine": {"timing_model": {"type": "fixed", "prefill_ms": 1, "decode_ms": 1}}}'
    done = compare(
        folder, "tiny.jsonl", "--variant", own, "--variant", FAST, "--timing-model", "models:Broken", "--json"
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert "variant fast: the run stopped at " in done.stderr
    assert "worn out" in done.stderr


def test_requests_that_only_one_side_completes(folder: Path) -> None:
    small = '{"name": "small", "engine": {"max_model_len": 700}}'
    done = compare(folder, "chat.jsonl", "--variant", FAST, "--variant", small, "--json")
    found = json.loads(done.stdout)["comparisons"][0]
    assert found["pairs"]["completed_in_baseline_only"] > 0
    metrics = {metric["name"]: metric for metric in found["metrics"]}
    assert (metrics["rejected_requests"]["verdict"], metrics["rejected_requests"]["basis"]) == ("worse", "exact")
    assert metrics["completed_requests"]["verdict"] == "worse"
    page = compare(folder, "chat.jsonl", "--variant", FAST, "--variant", small).stdout
    assert "requests completed only in the baseline" in page


def test_policies_are_compared(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "from mocker_replay.policies import Policy\n"
        "class LongestFirst(Policy):\n"
        "    def order_key(self, request, rank):\n        return -request.input_tokens\n"
    )
    few = ("--max-num-seqs", "8")
    own = '{"name": "own", "policy": "mine:LongestFirst"}'
    sjf = '{"name": "sjf", "policy": "sjf"}'
    done = compare(folder, "chat.jsonl", "--variant", FAST, "--variant", own, "--variant", sjf, *few, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [variant["options"]["policy"] for variant in found["variants"]] == ["fcfs", "mine:LongestFirst", "sjf"]
    assert found["comparisons"][1]["metrics"][0]["relative"] < 0  # mean time to first token
    done = compare(folder, "chat.jsonl", "--variant", FAST, "--variant", '{"policy": "sjff"}')
    assert done.returncode == 2
    assert "--variant 2: policy: " in done.stderr
