"""This project's own goldens, made by the tool itself (`tests/goldens`), checked through its plug-in of pytest.

`make goldens` checks them with the command, as `.ci/run` does; `make golden-update` writes them anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import zstandard

from mocker_replay.config import EngineConfig, ReplayOptions
from mocker_replay.golden.check import check_golden
from mocker_replay.golden.folder import MANIFEST, GoldenFolder
from mocker_replay.golden.manifest import Manifest
from mocker_replay.golden.record import record_golden
from mocker_replay.golden.result import Status
from mocker_replay.pytest_plugin import ReplayGolden

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDENS = GoldenFolder(ROOT / "tests" / "goldens")
WITHOUT_LOG_BYTES_MAX = 24_576
LOG_BYTES_MAX = 32_768
CONVERSATION_BYTES_MAX = 2_000_000


def test_runs_are_as_blessed(replay_golden: ReplayGolden) -> None:
    replay_golden.check()


def manifests() -> Iterator[tuple[Manifest, dict[str, Any]]]:
    for name in GOLDENS.names():
        golden = GOLDENS.read(name)
        yield golden.manifest, golden.summary


def test_they_are_worth_their_names() -> None:
    """Together they see what the engine does: each of these is what somebody might break."""
    found = list(manifests())
    assert any(manifest.options["num_workers"] > 1 and manifest.config["dp_size"] > 1 for manifest, _ in found)
    assert any(manifest.options["router_mode"] == "kv_router" and manifest.level == "kv" for manifest, _ in found)
    assert any(manifest.options["replay_concurrency"] and summary["completed_requests"] for manifest, summary in found)
    assert any(manifest.config["engine"]["aic_nextn"] for manifest, _ in found)
    assert any(manifest.options["policy"] != "fcfs" and summary["preemptions"] for manifest, summary in found)
    assert any(manifest.prefill_config and manifest.prefill_config["dp_size"] > 1 for manifest, _ in found)
    assert any(summary["cancelled_requests"] for _, summary in found)
    assert any(summary["preemptions"] for _, summary in found)
    assert {manifest.level for manifest, _ in found} == {"requests", "passes", "tokens", "kv"}
    assert {Path(manifest.trace["path"]).name for manifest, _ in found} == {
        path.name for path in (ROOT / "traces").glob("*.jsonl")
    }


def test_they_are_small_and_of_this_checkout() -> None:
    for manifest, _ in manifests():
        place = GOLDENS.place(manifest.name)
        small = [path for path in place.iterdir() if path.suffix == ".json"]
        assert sum(path.stat().st_size for path in small) <= WITHOUT_LOG_BYTES_MAX, manifest.name
        if manifest.log["stored"]:
            assert GOLDENS.events(manifest.name).stat().st_size <= LOG_BYTES_MAX, manifest.name
        assert manifest.trace["path"].startswith("../../traces/")


def test_the_bytes_of_a_stored_log_do_not_count(tmp_path: Path) -> None:
    """Another compression library makes other bytes of the same log."""
    name = next(manifest.name for manifest, _ in manifests() if manifest.log["stored"])
    shutil.copytree(ROOT / "traces", tmp_path / "traces")
    shutil.copytree(GOLDENS.place(name), tmp_path / "tests" / "goldens" / name)
    copy = GoldenFolder(tmp_path / "tests" / "goldens")
    before = copy.events(name).read_bytes()
    lines = zstandard.ZstdDecompressor().decompressobj().decompress(before)
    copy.events(name).write_bytes(zstandard.ZstdCompressor(level=1).compress(lines))
    assert copy.events(name).read_bytes() != before
    assert check_golden(copy, name).status == Status.SAME
    manifest = copy.place(name) / MANIFEST
    document = orjson.loads(manifest.read_bytes())
    document["config"]["engine"]["max_num_seqs"] = 2
    manifest.write_bytes(orjson.dumps(document))
    result = check_golden(copy, name)
    assert result.status == Status.DIFFERS
    assert result.diff is not None, "the stored log is not the one that was recorded"


def test_a_golden_of_a_production_trace_is_small(shared_traces: Path, tmp_path: Path) -> None:
    trace = shared_traces / "mooncake-conversation.jsonl"
    goldens = GoldenFolder(tmp_path / "goldens")
    golden = record_golden(goldens, "conversation", trace, EngineConfig(), ReplayOptions())
    assert golden.manifest.trace["rows"] == 12_031
    files = [path for path in goldens.path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= CONVERSATION_BYTES_MAX
    assert check_golden(goldens, "conversation").status == Status.SAME
