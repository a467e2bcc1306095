"""The live-request boundary: a simulated engine that takes requests and streams their output in real time."""

from __future__ import annotations

from mocker_replay.identity import deterministic_output_tokens, stable_request_uuid
from mocker_replay.live.engine import LiveEngine
from mocker_replay.live.errors import AlreadyActive, LiveError, NotRunning
from mocker_replay.live.handoff.control import HandoffControl, HandoffEvents
from mocker_replay.live.handoff.destination import DestinationHandoff
from mocker_replay.live.handoff.facts import DestinationReserved, HandoffFact, SourceHeld
from mocker_replay.live.handoff.result import HandoffResult
from mocker_replay.live.handoff.sessions import HandoffSessions
from mocker_replay.live.handoff.source import SourceHandoff
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
    "DestinationHandoff",
    "DestinationReserved",
    "EngineMetrics",
    "ForwardPass",
    "GenerateRequest",
    "HandoffControl",
    "HandoffEvents",
    "HandoffFact",
    "HandoffResult",
    "HandoffSessions",
    "KvEvent",
    "LiveEngine",
    "LiveError",
    "NotRunning",
    "RankConfig",
    "Registration",
    "RequestStream",
    "Signal",
    "SourceHandoff",
    "SourceHeld",
    "Submission",
    "Watch",
    "WatchClosed",
    "deterministic_output_tokens",
    "stable_request_uuid",
]
