"""Goldens of prefill and decode workers: both configurations are kept, and each is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mocker_replay.config import EngineConfig, ReplayOptions, load_engine_config
from mocker_replay.golden.check import check_golden, update_golden
from mocker_replay.golden.folder import MANIFEST, GoldenFolder
from mocker_replay.golden.record import record_golden
from mocker_replay.golden.result import Status
from tests.unit.test_golden import at_a_desk, edit, goldens, trace, write_profile

__all__ = ["at_a_desk", "goldens", "trace"]  # fixtures


def pool_of(role: str, **settings: Any) -> EngineConfig:
    """Enough for all that the trace asks for."""
    return load_engine_config({"engine": {"worker_type": role, "num_gpu_blocks": 200, "block_size": 16} | settings})


def record(goldens: GoldenFolder, trace: Path, prefill: EngineConfig) -> None:
    options = ReplayOptions(num_prefill_workers=1, num_decode_workers=2)
    record_golden(goldens, "some", trace, pool_of("decode"), options, prefill=prefill)


def test_a_golden_of_two_pools_keeps_both_configurations(goldens: GoldenFolder, trace: Path) -> None:
    record(goldens, trace, pool_of("prefill", max_num_seqs=3))
    manifest = goldens.read_manifest("some")
    assert manifest.config["engine"]["worker_type"] == "decode"
    assert manifest.prefill_config is not None
    assert manifest.prefill_config["engine"]["max_num_seqs"] == 3
    assert manifest.prefill_profile is None
    assert check_golden(goldens, "some").status == Status.SAME


def test_another_configuration_of_prefill_workers_is_another_run(goldens: GoldenFolder, trace: Path) -> None:
    record(goldens, trace, pool_of("prefill"))
    path = goldens.place("some") / MANIFEST
    edit(path, lambda document: document["prefill_config"]["engine"].update(speedup_ratio=2.0))
    assert check_golden(goldens, "some").status == Status.DIFFERS
    assert update_golden(goldens, "some").written
    assert check_golden(goldens, "some").status == Status.SAME
    manifest = goldens.read_manifest("some")
    assert manifest.prefill_config is not None
    assert manifest.prefill_config["engine"]["speedup_ratio"] == 2.0


def test_a_profile_of_prefill_workers_is_an_input(goldens: GoldenFolder, trace: Path) -> None:
    profile = trace.parent / "profile.npz"
    write_profile(profile)
    model = {"type": "external", "provider": "dynamo_profile", "config": {"path": str(profile)}}
    timed = pool_of("prefill", timing_model=model)
    record(goldens, trace, timed)
    manifest = goldens.read_manifest("some")
    assert manifest.profile is None
    assert manifest.prefill_profile is not None
    assert manifest.prefill_profile["path"] == "../traces/profile.npz"
    assert check_golden(goldens, "some").status == Status.SAME
    write_profile(profile, slower=2.0)
    assert check_golden(goldens, "some").status == Status.OTHER_INPUT


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"prefill_config": 3}, "prefill_config: must be an object"),
        ({"prefill_profile": 3}, "prefill_profile: must be an object or null"),
        ({"prefill_config": {}}, "prefill_config: must be the engine configuration of the run"),
    ],
)
def test_a_manifest_of_two_pools_by_hand(change: dict[str, Any], text: str, goldens: GoldenFolder, trace: Path) -> None:
    record(goldens, trace, pool_of("prefill"))
    edit(goldens.place("some") / MANIFEST, lambda document: document.update(change))
    result = check_golden(goldens, "some")
    assert result.status == Status.UNREADABLE
    assert text in result.reason
