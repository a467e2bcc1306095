"""Errors of the live boundary. Decides nothing; what is raised when stands with the methods that raise it."""

from __future__ import annotations

from mocker_replay.errors import MockerReplayError


class LiveError(MockerReplayError):
    """A live engine cannot do what it was asked to."""


class NotRunning(LiveError):
    """The engine was shut down, dropped, or failed."""


class AlreadyActive(LiveError):
    """The client id belongs to a request that has not ended."""


def text_of(error: BaseException) -> str:
    """What went wrong; errors nobody raised on purpose are named by their class."""
    return str(error) if isinstance(error, MockerReplayError) else f"{type(error).__name__}: {error}"
