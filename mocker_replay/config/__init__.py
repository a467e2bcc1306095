"""Validated settings: the engine's and the run's.

`load_engine_config` reads what the reference accepts (JSON text, a JSON or TOML file, a mapping) and finds every
fault in one pass; `ReplayOptions` holds what concerns the run and not the engine.
"""

from __future__ import annotations

from mocker_replay.config.engine import (
    DynamoSettings,
    EngineConfig,
    HostOffloadSettings,
    SglangSettings,
    TrtllmSettings,
)
from mocker_replay.config.loading import load_engine_config
from mocker_replay.config.options import ReplayOptions
from mocker_replay.config.realtime import RealtimeOptions
from mocker_replay.config.timing import TimingCallable, TimingModel

__all__ = [
    "DynamoSettings",
    "EngineConfig",
    "HostOffloadSettings",
    "RealtimeOptions",
    "ReplayOptions",
    "SglangSettings",
    "TimingCallable",
    "TimingModel",
    "TrtllmSettings",
    "load_engine_config",
]
