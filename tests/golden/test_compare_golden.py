"""Comparisons of shipped traces, byte for byte: JSON without the wall figures, and the page in Markdown.

Each happens in processes of its own under different PYTHONHASHSEED. `GOLDEN_UPDATE=1` writes the files anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = Path(__file__).parent / "compare"
TRACES = ROOT / "traces"

# Trace, then flags.
COMPARISONS = {
    "seats-and-blocks": [
        "chat-shared-prefix.jsonl", "--num-gpu-blocks", "2048", "--variant", '{"name": "plain"}',
        "--variant", '{"name": "few seats", "engine": {"max_num_seqs": 24}}',
        "--variant", '{"name": "few blocks", "engine": {"num_gpu_blocks": 600}}',
        "--fail-if", "p99_ttft_ms > +2%", "--fail-if", "preemptions > 0",
    ],
    "replicates-of-sessions": [
        "multi-turn.jsonl", "--variant", '{"name": "one"}', "--replicates", "8", "--sla-ttft-ms", "100",
        "--variant", '{"name": "two", "options": {"num_workers": 2}}',
    ],
}  # fmt: skip


def compare(name: str, folder: Path, hash_seed: str) -> dict[str, bytes]:
    trace, *flags = COMPARISONS[name]
    page = folder / f"{hash_seed}.md"
    done = subprocess.run(
        [
            sys.executable, "-m", "mocker_replay", "compare", str(TRACES / trace), *flags, "--json",
            "--markdown", str(page), "--quiet",
        ],
        check=False,  # gates fail
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    document = orjson.loads(done.stdout)
    del document["wall"]
    lines = [line for line in page.read_bytes().splitlines(keepends=True) if b"(wall clock)" not in line]
    return {
        "compare.json": orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE),
        "page.md": b"".join(lines),
    }


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_comparison_is_stable_to_the_byte(name: str, tmp_path: Path) -> None:
    first = compare(name, tmp_path, "0")
    assert compare(name, tmp_path, "4242") == first
    golden = GOLDEN / name
    if os.environ.get("GOLDEN_UPDATE") == "1":
        golden.mkdir(parents=True, exist_ok=True)
        for file, data in first.items():
            (golden / file).write_bytes(data)
    assert {file: (golden / file).read_bytes() for file in first} == first


def test_no_golden_is_left_over() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(COMPARISONS)
