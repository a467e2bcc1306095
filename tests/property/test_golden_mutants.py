"""Forty engines that misbehave once: the golden of a sound run catches each of them, and none that does not.

A mutant is a timing model that answers one of its calls wrongly, by an amount that no page of figures would show; which
call, and how, comes from a seed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import orjson
import pytest

from mocker_replay.config import ReplayOptions, load_engine_config
from mocker_replay.golden.check import check_golden
from mocker_replay.golden.folder import GoldenFolder
from mocker_replay.golden.record import record_golden
from mocker_replay.golden.result import GoldenResult, Status
from mocker_replay.log.reader import EventLogReader
from mocker_replay.replay import replay
from tests.conftest import make_row

NUM_MUTANTS = 40
MODULE = "timing_models_of_a_test"


class Sound:
    """A timing model that counts its calls, and answers one of them otherwise if it is told to."""

    wrong_call = -1
    by_ms = 0.0

    def __init__(self) -> None:
        self.num_calls = 0

    def prefill(self, batch_size: int, mean_isl: int, mean_prefix: int) -> float:
        return self._answer(2.0 + mean_isl / 512.0)

    def decode(self, batch_size: int, active_kv_tokens: int, mean_context_length: int, total_kv_tokens: int) -> float:
        return self._answer(1.0 + batch_size / 64.0)

    def _answer(self, ms: float) -> float:
        self.num_calls += 1
        return ms + self.by_ms if self.num_calls - 1 == self.wrong_call else ms


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A golden names its timing model; each run gets a fresh one."""
    module = ModuleType(MODULE)
    monkeypatch.setattr(Sound, "__module__", MODULE)
    module.Sound = Sound  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    yield
    Sound.wrong_call, Sound.by_ms = -1, 0.0


def test_every_mutant_is_caught(tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = [
        make_row(rng.uniform(0, 500), rng.randint(20, 900), rng.randint(1, 30), hash_ids=[i % 5, 50 + i])
        for i in range(80)
    ]
    rows.sort(key=lambda row: row["timestamp"])
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    config = {"engine": {"num_gpu_blocks": 60, "max_num_seqs": 8, "timing_model": Sound()}}
    goldens = GoldenFolder(tmp_path / "goldens")
    for name, with_log in (("digests", False), ("log", True)):
        record_golden(goldens, name, trace, load_engine_config(config), ReplayOptions(), with_log=with_log)
        config["engine"]["timing_model"] = Sound()
    num_calls = calls_of(trace, config)
    caught = 0
    for seed in range(NUM_MUTANTS):
        rng = random.Random(seed)
        # Times are rounded to whole nanoseconds: two of them cannot vanish in a tie, as one can.
        Sound.wrong_call, Sound.by_ms = rng.randrange(num_calls), rng.choice([-2e-6, 2e-6, 0.001, 3.0])
        fresh = tmp_path / "fresh.jsonl"
        config["engine"]["timing_model"] = Sound()
        replay(trace, config, events=fresh)
        first = first_other_line(goldens.events("log"), fresh)
        by_digest, by_log = check_golden(goldens, "digests"), check_golden(goldens, "log")
        context = f"seed {seed}: call {Sound.wrong_call} of {num_calls}, {Sound.by_ms} ms"
        assert_caught(by_digest, by_log, first, context)
        caught += 1
        Sound.wrong_call = -1
        assert check_golden(goldens, "digests").status == Status.SAME, "no false alarm between mutants"
    assert caught == NUM_MUTANTS


def assert_caught(by_digest: GoldenResult, by_log: GoldenResult, first: int, context: str) -> None:
    assert by_digest.status == by_log.status == Status.DIFFERS, context
    assert by_digest.block is not None
    assert by_digest.block.seq <= first <= by_digest.block.last_seq, context
    assert by_log.diff is not None, context
    assert by_log.diff.first is not None
    assert by_log.diff.first.seq == first, context


def calls_of(trace: Path, config: dict[str, dict[str, object]]) -> int:
    model = Sound()
    config["engine"]["timing_model"] = model
    replay(trace, config)
    return model.num_calls


def first_other_line(a: Path, b: Path) -> int:
    """The first line in which two logs differ, found by reading both."""
    with EventLogReader(a) as first, EventLogReader(b) as second:
        pairs = enumerate(zip(first.lines(), second.lines(), strict=False))
        return next(seq for seq, (line, other) in pairs if line != other)
