"""A trace through the driver to a result."""

from __future__ import annotations

from mocker_replay.replay.result import ReplayResult
from mocker_replay.replay.run import replay

__all__ = ["ReplayResult", "replay"]
