"""A realtime run that is interrupted in any turn of its loop leaves a whole log of what happened until then."""

from __future__ import annotations

import tempfile
from pathlib import Path

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mocker_replay.config import RealtimeOptions
from mocker_replay.errors import ExitCode
from mocker_replay.log.wall import bare_lines
from mocker_replay.replay.rerun import rerun
from tests.property.replays import NOMINAL, Case, cases, conserves, measured, paces, run
from tests.support.realtime_replay import Pace

many = settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@given(cases(), paces, measured | st.just(NOMINAL), st.integers(1, 10) | st.integers(10, 60) | st.integers(30, 250))
@many
def test_an_interrupted_run_keeps_what_was_true(case: Case, pace: Pace, realtime: RealtimeOptions, turn: int) -> None:
    pace.interrupt_turn = turn
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outputs = run(case, folder, realtime, pace)
        again = rerun(folder / "events.jsonl")
        assert again.difference is None, again.difference
        assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".jsonl", ".jsonl", ".jsonl"]
        whole = run(case, folder).bare() if realtime is NOMINAL else None
    footer = orjson.loads(bare_lines(outputs.log).splitlines()[-1])
    conserves(footer, outputs)
    interrupted = footer["end"] == "interrupted"
    assert interrupted == (outputs.result.exit_code is ExitCode.INTERRUPTED) == outputs.summary["interrupted"]
    assert outputs.summary["cut"] == (footer["end"] != "complete")
    if whole is not None:
        told = [line for line in bare_lines(outputs.log).splitlines()[:-1] if b'"event":"cut"' not in line]
        assert told == whole["log"].splitlines()[: len(told)]
        if not interrupted:
            assert outputs.bare() == whole
