"""The golden runs once more in real time under the nominal clock: the same bytes but for what the clock said.

On the controllable clock, late at random, so that it takes no time and a run by the wall clock would not pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from mocker_replay.cli.app import run_main
from mocker_replay.log.wall import bare_lines
from mocker_replay.report.summary import without_wall_clock
from tests.golden.test_run_golden import GOLDEN, RUNS, TRACE_OF, TRACES
from tests.support.realtime_replay import Pace, virtual_time

NOT_IN_REAL_TIME = {"prefill-decode-kv"}  # refused there; see tests/cli/test_run_pools.py
PACES = {"punctual": {}, "late": {"late_ms": (0.0, 3.0, 170.0), "step_ms": (0.0, 0.0, 0.001, 2.0)}}


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("name", [name for name in RUNS if name not in NOT_IN_REAL_TIME])
def test_nominal_run_is_the_golden_run(name: str, pace: str, tmp_path: Path) -> None:
    files = {"events": "events.jsonl", "requests": "requests.jsonl", "summary": "summary.json"}
    flags = [part for flag, file in files.items() for part in (f"--{flag}", str(tmp_path / file))]
    argv = ["run", str(TRACES / TRACE_OF.get(name, "tiny.jsonl")), *RUNS[name], *flags, "--quiet"]
    argv += ["--mode", "realtime", "--clock", "nominal", "--telemetry-sample-interval-ms", "50"]
    with virtual_time(Pace(1, **PACES[pace])):
        code = run_main(argv)
    assert code in (0, 4)
    golden = GOLDEN / name
    log = (tmp_path / "events.jsonl").read_bytes()
    assert b',"wall":' in log
    assert bare_lines(log) == (golden / "events.jsonl").read_bytes()
    assert (tmp_path / "requests.jsonl").read_bytes() == (golden / "requests.jsonl").read_bytes()
    made, blessed = (comparable(folder / "summary.json") for folder in (tmp_path, golden))
    for field in ("gpu_hours", "decode_worker_seconds"):
        # The golden runs take telemetry samples, each of them a step of these sums: other roundings.
        assert made.pop(field) == pytest.approx(blessed.pop(field), rel=1e-12)
    assert made == blessed


def comparable(path: Path) -> dict[str, Any]:
    """A summary without what depends on the host."""
    summary = without_wall_clock(orjson.loads(path.read_bytes()))
    summary.pop("realtime", None)
    return summary
