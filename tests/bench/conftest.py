"""Figures come from release builds only: with checks in the core, what asks for measurements is refused."""

from __future__ import annotations

import pytest

from mocker_replay._core._testing import BUILT_WITH_CHECKS


def refusal(built_with_checks: bool, measuring: bool) -> str | None:
    if built_with_checks and measuring:
        return "benchmarks measure release builds only; this core is built with checks (build it without MR_DEBUG=1)"
    return None


def pytest_collection_finish(session: pytest.Session) -> None:
    """After the command line and its defaults are settled; a run that measures nothing may have any build."""
    reason = refusal(BUILT_WITH_CHECKS, not session.config.getoption("benchmark_disable"))
    if reason is not None:
        raise pytest.UsageError(reason)
