"""`mocker-replay golden`: streams, exit codes, what CI reads, and the way from record to update."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def golden(folder: Path, *argv: str, ci: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mocker_replay", "golden", *argv]
    env = {"PYTHONPATH": str(ROOT), "PATH": ""} | ({} if ci is None else {"CI": ci})
    return subprocess.run(command, capture_output=True, check=False, text=True, cwd=folder, env=env)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with a trace and one golden of it."""
    shutil.copy(ROOT / "traces" / "tiny.jsonl", tmp_path / "tiny.jsonl")
    done = golden(tmp_path, "record", "tiny", "tiny.jsonl", "--num-gpu-blocks", "64", "--with-log")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("recorded        goldens/tiny: 85 events of level passes, digest ")
    return tmp_path


def changed(folder: Path) -> None:
    """Give the golden other settings than it was recorded with, as if the engine had changed."""
    path = folder / "goldens" / "tiny" / "manifest.json"
    text = path.read_text()
    assert text.count('"max_num_seqs": 256') == 1
    path.write_text(text.replace('"max_num_seqs": 256', '"max_num_seqs": 3'))


def test_a_golden_that_is_the_same(folder: Path) -> None:
    done = golden(folder, "check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "same            tiny: 85 events\n", "")
    golden(folder, "record", "other", "tiny.jsonl", "--event-level", "kv", "--quiet")
    done = golden(folder, "check", "--dir", "goldens")
    assert done.stdout.splitlines()[-1] == "2 goldens: 2 same"
    assert golden(folder, "check", "tiny", "--quiet").stdout == ""


def test_a_run_that_has_changed(folder: Path) -> None:
    changed(folder)
    report = folder / "report.xml"
    done = golden(folder, "check", "--github", "--junit", str(report))
    assert (done.returncode, done.stderr) == (1, "")
    first, *lines = done.stdout.splitlines()
    assert first == (
        "::error file=goldens/tiny/manifest.json,title=mocker-replay golden%3A tiny::"
        "first difference at seq 18, 34.680707 ms: pass_start changed"
    )
    assert lines[0] == "differs         tiny: first difference at seq 18, 34.680707 ms: pass_start changed"
    assert "pass            worker 0, pass 1, starts here" in lines
    assert any(line.startswith("settings        config.engine.max_num_seqs: a 256, b 3") for line in lines)
    suites = ElementTree.parse(report).getroot()
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("1", "1", "0")
    assert "ranks[0].scheduled_requests" in str(suites.findtext("testsuite/testcase/failure"))
    result = json.loads(golden(folder, "check", "--json").stdout)
    assert result["same"] is False
    assert result["goldens"][0]["diff"]["first"]["seq"] == 18


def test_without_the_log_the_block_is_told(folder: Path) -> None:
    golden(folder, "update", "tiny", "--without-log")
    changed(folder)
    done = golden(folder, "check")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "differs         tiny: events 0 to 94 differ first"
    assert lines[1] == "block           0, from 0.0 ms to the end"
    assert lines[2] == "passes          from pass 0 of worker 0 to the end"
    assert "record or update --with-log" in lines[3]


def test_an_update_is_asked_for_and_not_in_ci(folder: Path) -> None:
    changed(folder)
    done = golden(folder, "update", "tiny", ci="true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "refused where CI is set" in done.stderr
    done = golden(folder, "update", "tiny", "--dry-run")
    assert done.returncode == 0
    assert done.stdout.startswith("would change    tiny: first difference at seq 18")
    assert golden(folder, "check").returncode == 1
    done = golden(folder, "update", "tiny")
    assert done.returncode == 0
    assert done.stdout.startswith("updated         tiny: first difference at seq 18")
    assert golden(folder, "check", ci="true").returncode == 0
    assert golden(folder, "update", "tiny").stdout == "up to date      tiny: 95 events\n"
    result = json.loads(golden(folder, "update", "tiny", "none", "--json").stdout)
    assert [(found["name"], found["written"]) for found in result["goldens"]] == [("tiny", False), ("none", False)]


def test_inputs_and_goldens_that_are_others_exit_2(folder: Path) -> None:
    trace = folder / "tiny.jsonl"
    trace.write_text(trace.read_text().replace('"output_length": 3', '"output_length": 4'))
    done = golden(folder, "check", "--github", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["goldens"][0]["status"] == "other_input"
    assert done.stderr.startswith("::error file=goldens/tiny/manifest.json,")
    assert golden(folder, "update", "none").returncode == 2
    for argv in (
        ("check", "none"), ("check", "--dir", "nowhere"),
        ("record", "tiny", "tiny.jsonl"), ("record", "x", "none.jsonl"),
        ("record", "x", "tiny.jsonl", "--tolerance", "std_ttft_ms"),
        ("record", "x", "tiny.jsonl", "--tolerance", "p99_ttft_ms=1e-9"),
        ("record", "x", "tiny.jsonl", "--num-workers", "0"), ("record", "x", "tiny.jsonl", "--event-level", "most"),
        ("record", "x", "tiny.jsonl", "--events", "log.jsonl"), ("update",), ("chek",), (),
    ):  # fmt: skip
        done = golden(folder, *argv)
        assert done.returncode == 2, argv
        assert "Traceback" not in done.stderr, argv
    assert "did you mean check?" in golden(folder, "chek").stderr
    assert sorted(path.name for path in (folder / "goldens").iterdir()) == ["tiny"]


def test_a_run_that_breaks_exits_3(folder: Path) -> None:
    (folder / "models.py").write_text(
        "class Broken:\n"
        "    def prefill(self, *args):\n        return 1.0\n"
        "    def decode(self, *args):\n        raise ValueError('worn out')\n"
        "class Sound(Broken):\n"
        "    def decode(self, *args):\n        return 2.0\n"
    )
    done = golden(folder, "record", "own", "tiny.jsonl", "--timing-model", "models:Broken")
    assert (done.returncode, done.stdout) == (3, "")
    assert "worn out" in done.stderr
    done = golden(folder, "record", "own", "tiny.jsonl", "--timing-model", "models:Sound")
    assert done.returncode == 0
    assert golden(folder, "check", "own").returncode == 0
    done = golden(folder, "check", "own", "--timing-model", "models:Broken")
    assert done.returncode == 3
    assert done.stdout.startswith("broken          own: the run stopped at ")


def test_patterns_choose_goldens(folder: Path) -> None:
    golden(folder, "record", "tiny-2", "tiny.jsonl", "--max-num-seqs", "2", "--quiet")
    assert golden(folder, "check", "tiny-?").stdout.startswith("same            tiny-2: ")
    assert golden(folder, "update", "*", "--dry-run").stdout.count("up to date") == 2
    done = golden(folder, "check", "tidy*")
    assert (done.returncode, done.stdout) == (2, "")
    assert "goldens: no golden fits tidy*; there are tiny, tiny-2" in done.stderr


def test_a_list_runs_nothing(folder: Path) -> None:
    golden(folder, "record", "kv", "tiny.jsonl", "--event-level", "kv", "--quiet")
    (folder / "tiny.jsonl").unlink()
    done = golden(folder, "list")
    assert (done.returncode, done.stderr) == (0, "")
    kv, tiny = done.stdout.splitlines()
    assert re.fullmatch(r"kv {14}\d+ events of level kv, \.\./tiny\.jsonl \(12 rows\)", kv)
    assert tiny == "tiny            85 events of level passes, log stored, ../tiny.jsonl (12 rows)"
    (folder / "goldens" / "kv" / "manifest.json").write_text("{")
    done = golden(folder, "list")
    assert done.returncode == 2
    assert done.stdout.startswith("kv              unreadable: goldens/kv/manifest.json: not valid JSON")
    told = json.loads(golden(folder, "list", "tiny", "kv", "--json").stdout)["goldens"]
    assert [(found["name"], found["error"] is None) for found in told] == [("tiny", True), ("kv", False)]
    assert told[0]["log"]["events"] == 85
    done = golden(folder, "list", "--dir", "nowhere")
    assert (done.returncode, done.stdout) == (2, "")


def test_help_names_the_verbs_and_the_flags_of_run(folder: Path) -> None:
    done = golden(folder, "--help")
    assert done.returncode == 0
    assert all(f"  {verb} " in done.stdout for verb in ("record", "check", "update", "list"))
    text = golden(folder, "record", "--help").stdout
    assert "--max-num-seqs" in text
    assert "--sla-ttft-ms" in text
    assert "--mode" not in text
    assert "--requests" not in text


def test_a_path_need_not_be_unicode(folder: Path) -> None:
    odd = os.fsdecode(b"b\xff")
    os.rename(folder / "goldens", folder / odd)
    done = golden(folder, "record", "other", "tiny.jsonl", "--dir", odd)
    assert (done.returncode, done.stdout[:24]) == (0, r"recorded        b\udcff/")
    (folder / odd / "tiny" / "summary.json").unlink()
    done = golden(folder, "check", "--dir", odd, "--json", "--github", "--junit", "report.xml")
    assert done.returncode == 2
    assert json.loads(done.stdout)["goldens"][1]["reason"].startswith(r"b\udcff/tiny/summary.json: cannot be read")
    assert r"::error file=b\udcff/tiny/manifest.json" in done.stderr
    assert golden(folder, "check", "--dir", odd).stdout.splitlines()[1].startswith(r"unreadable      tiny: b\udcff/")
    os.rename(folder / "tiny.jsonl", folder / odd / "tiny.jsonl")
    done = golden(folder, "record", "third", f"{odd}/tiny.jsonl")
    assert done.returncode == 2
    assert "a manifest cannot hold this path" in done.stderr
    assert not (folder / "goldens" / "third").exists()


def test_a_golden_of_two_pools(folder: Path) -> None:
    pools = []
    for role in ("prefill", "decode"):
        pools += [f"--num-{role}-workers", "1", f"--{role}-engine-config", f'{{"engine": {{"worker_type": "{role}"}}}}']
    done = golden(folder, "record", "pools", "tiny.jsonl", *pools, "--with-log")
    assert (done.returncode, done.stderr) == (0, "")
    assert golden(folder, "check", "pools").stdout.startswith("same            pools: ")
    path = folder / "goldens" / "pools" / "manifest.json"
    document = json.loads(path.read_text())
    document["prefill_config"]["engine"]["speedup_ratio"] = 2.0
    path.write_text(json.dumps(document))
    done = golden(folder, "check", "pools")
    assert done.returncode == 1
    assert "first difference at seq" in done.stdout


def test_one_pool_is_no_golden(folder: Path) -> None:
    done = golden(folder, "record", "pools", "tiny.jsonl", "--num-prefill-workers", "1")
    assert done.returncode == 2
    assert "--num-decode-workers" in done.stderr
    assert not (folder / "goldens" / "pools").exists()
