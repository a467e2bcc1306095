"""`mocker-replay audit`: streams, exit codes, what is said of a finding."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "runs" / "plain-kv"
LOG, SUMMARY = GOLDEN / "events.jsonl", GOLDEN / "summary.json"


def audit(log: Path | str, *argv: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mocker_replay", "audit", str(log), *argv]
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, capture_output=True, check=False, input=stdin, env=env)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A log in which one figure is another; its digest tells, too."""
    data = LOG.read_bytes()
    assert data.count(b'"reused_tokens":688') == 1
    path = tmp_path / "changed.jsonl"
    path.write_bytes(data.replace(b'"reused_tokens":688', b'"reused_tokens":689'))
    return path


def test_a_clean_log_is_told_and_exits_0() -> None:
    done = audit(LOG, "--summary", str(SUMMARY))
    num_lines = len(LOG.read_bytes().splitlines()) - 2
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"log             {LOG}: clean, {num_lines} lines\n"
        "level           kv\n"
        "not compared    wall_time_ms, processed_tokens_per_s, processed_output_tokens_per_s, virtual_to_wall_ratio: "
        "depends on the host\n"
    )
    assert audit(LOG, "--quiet").stdout == ""


def test_what_a_level_cannot_decide_is_told() -> None:
    done = audit(ROOT / "tests" / "golden" / "runs" / "mtp-closed-loop-requests" / "events.jsonl")
    assert done.returncode == 0
    lines = dict(reversed(line[16:].split(": ")) for line in done.stdout.splitlines() if line.startswith("not checked"))
    assert set(lines) == {"needs level passes", "needs level tokens", "needs level kv"}
    assert "budget" in lines["needs level passes"].split(", ")


def test_a_finding_names_line_seq_rule_and_both_figures(changed: Path) -> None:
    done = audit(changed, "--quiet")
    assert (done.returncode, done.stderr) == (1, "")
    line = next(at for at, text in enumerate(changed.read_text().splitlines(), 1) if '"reused_tokens":689' in text)
    assert (
        f"{changed}:{line}: seq {line - 2}: reuse: reused tokens are whole blocks (it says 689, should be 688)\n"
        in (done.stdout)
    )
    assert ": digest: digest of the lines (it says " in done.stdout


def test_json_is_the_report(changed: Path) -> None:
    report = json.loads(audit(changed, "--json").stdout)
    assert report["num_findings"] == len(report["findings"]) == sum(report["by_rule"].values())
    first = next(finding for finding in report["findings"] if finding["rule"] == "reuse")
    assert (first["stated"], first["derived"], first["seq"]) == (689, 688, first["line"] - 2)
    assert report["not_checked"] == {"summary": "no summary was given"}
    assert "kv-stored" in report["checked"]


def test_a_summary_of_another_run_is_found(tmp_path: Path) -> None:
    summary = json.loads(SUMMARY.read_text())
    summary["p99_ttft_ms"] += 1e-9
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(summary))
    done = audit(LOG, "--summary", str(path), "-q")
    assert done.returncode == 1
    assert done.stdout.startswith(f"{LOG}:{len(LOG.read_bytes().splitlines())}: summary: p99_ttft_ms (it says ")


def test_many_findings_are_counted_and_some_listed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(LOG.read_bytes().replace(b'"event":"tokens"', b'"colour":1,"event":"tokens"'))
    done = audit(path)
    listed = [line for line in done.stdout.splitlines() if line.startswith(f"{path}:")]
    count = LOG.read_bytes().count(b'"event":"tokens"')
    assert count > 40
    assert len(listed) == 40
    assert f"... {count + 1 - 40} further findings are not listed\n" in done.stdout
    assert f"broken          form: {count}\n" in done.stdout


def test_a_truncated_log_exits_2_and_tells_what_was_found_before(tmp_path: Path) -> None:
    path = tmp_path / "short.jsonl"
    path.write_bytes(
        b"\n".join(LOG.read_bytes().replace(b'"reused_tokens":688', b'"reused_tokens":689').splitlines()[:60]) + b"\n"
    )
    done = audit(path)
    assert done.returncode == 2
    assert ": reuse: " in done.stdout
    assert done.stderr == f"error: {path}: truncated after line 60: no footer\n"


@pytest.mark.parametrize("text", [b"", b"{}\n", b"no log\n"])
def test_no_log_exits_2(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    path.write_bytes(text)
    done = audit(path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {path}")


def test_a_summary_that_is_none_exits_2(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    assert audit(LOG, "--summary", str(path)).returncode == 2
    path.write_text("[]")
    done = audit(LOG, "--summary", str(path))
    assert (done.returncode, done.stderr) == (2, f"error: {path}: a summary must be a JSON object\n")


def test_standard_input_is_a_log_too() -> None:
    done = audit("-", stdin=LOG.read_bytes())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("log             -: clean, ")
