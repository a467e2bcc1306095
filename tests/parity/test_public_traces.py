"""The public Mooncake traces: every figure of every request equals the reference's, in 72 settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.parity.public_traces import RECORDED, Setting, fingerprint, settings

WHEEL = json.loads(RECORDED.read_text())


def test_every_setting_is_recorded_and_preemption_occurs() -> None:
    assert WHEEL.keys() == {setting.name for setting in settings()}
    preempting = [name for name, figures in WHEEL.items() if figures["readmissions"]]
    assert len(preempting) >= len(WHEEL) // 4


@pytest.mark.parametrize("setting", settings(), ids=lambda s: s.name)
def test_figures_equal_the_reference(setting: Setting, shared_traces: Path) -> None:
    from mocker_replay.config import ReplayOptions
    from mocker_replay.replay import replay

    result = replay(shared_traces / f"{setting.trace}.jsonl", setting.config, ReplayOptions(**setting.args))
    assert fingerprint(result.records(), result.summary) == WHEEL[setting.name]
