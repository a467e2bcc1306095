"""Asserts that an input is refused with the right class of error and leaves no output behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.cases import Case
from tests.parity.faults import expected_fault
from tests.parity.runners import run_product_case

OUTPUTS = ("events.jsonl", "requests.jsonl", "summary.json", "telemetry.jsonl")


def assert_refused(case: Case, folder: Path) -> None:
    from mocker_replay import errors

    assert case.error is not None
    wanted = expected_fault(case.error["message"], case.format)
    with pytest.raises(getattr(errors, wanted.error_class)) as caught:
        run_product_case(case, folder)
    assert caught.value.exit_code == errors.ExitCode.USAGE
    if wanted.line is not None:
        assert isinstance(caught.value, errors.TraceError)
        assert wanted.line in [fault.line for fault in caught.value.faults]
    left = [name for name in OUTPUTS if (folder / name).exists()]
    assert left == [], "a refused run leaves no output"
