"""The live-request boundary: a simulated engine that takes requests and streams their output in real time."""

from __future__ import annotations

from mocker_replay.identity import deterministic_output_tokens, stable_request_uuid
from mocker_replay.live.engine import LiveEngine
from mocker_replay.live.errors import AlreadyActive, LiveError, NotRunning
from mocker_replay.live.metrics import EngineMetrics, ForwardPass, KvEvent
from mocker_replay.live.operations import Submission
from mocker_replay.live.rank import RankConfig
from mocker_replay.live.request import Admission, GenerateRequest, Signal
from mocker_replay.live.stream import Registration, RequestStream
from mocker_replay.shells.lanes import BoundedLane
from mocker_replay.shells.tokens import Watch, WatchClosed

__all__ = [
    "Admission",
    "AlreadyActive",
    "BoundedLane",
    "EngineMetrics",
    "ForwardPass",
    "GenerateRequest",
    "KvEvent",
    "LiveEngine",
    "LiveError",
    "NotRunning",
    "RankConfig",
    "Registration",
    "RequestStream",
    "Signal",
    "Submission",
    "Watch",
    "WatchClosed",
    "deterministic_output_tokens",
    "stable_request_uuid",
]
