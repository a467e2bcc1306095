"""Forty schedulers that misbehave once: the golden of a sound run catches each of them, and none that does not.

A mutant is a policy that answers every question as the engine would by itself, but for one: it lets a request jump the
queue, holds one back, preempts another one, or gives a pass one token less. Which, and when, comes from a seed.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import orjson
import pytest

from mocker_replay._core.python_policy import RankFacts, RequestFacts
from mocker_replay.config import ReplayOptions, load_engine_config
from mocker_replay.golden.check import check_golden
from mocker_replay.golden.folder import GoldenFolder
from mocker_replay.golden.record import record_golden
from mocker_replay.golden.result import Status
from mocker_replay.policies import Policy
from mocker_replay.replay import replay
from tests.conftest import make_row

NUM_MUTANTS = 40
MODULE = "policies_of_a_test"
KINDS = ("order", "veto", "victim", "budget")


class Sound(Policy):
    """First come, first served; misbehaves in the n-th decision of a kind if it is told to."""

    reason = "misbehaves"
    wrong: tuple[str, int] | None = None

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.last_opening: tuple[int, int] | None = None

    def misbehaves(self, kind: str) -> bool:
        """Whether this is the decision; only those are counted in which another answer makes another run."""
        self.asked[kind] += 1
        return self.wrong == (kind, self.asked[kind])

    def order_key(self, request: RequestFacts, rank: RankFacts) -> float:
        opening = rank.rank, rank.pass_number
        behind_another, self.last_opening = opening == self.last_opening, opening
        if behind_another and request.num_preemptions == 0:
            return -1.0 if self.misbehaves("order") else 0.0
        return 0.0

    def may_admit(self, request: RequestFacts, rank: RankFacts) -> bool:
        return rank.num_running == 0 or not self.misbehaves("veto")

    def choose_victim(self, running: Sequence[RequestFacts], rank: RankFacts) -> int:
        return 0 if len(running) > 1 and self.misbehaves("victim") else len(running) - 1

    def token_budget(self, rank: RankFacts) -> int:
        return rank.max_num_batched_tokens - self.misbehaves("budget")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A golden names its policy; each run gets a fresh one."""
    module = ModuleType(MODULE)
    monkeypatch.setattr(Sound, "__module__", MODULE)
    module.Sound = Sound  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    yield
    Sound.wrong = None


def test_every_mutant_is_caught(tmp_path: Path) -> None:
    rng = random.Random(7)
    rows = [
        make_row(rng.choice([0, 40, 90, 200]), rng.randint(20, 400), rng.randint(1, 200), hash_ids=[i % 5, 50 + i])
        for i in range(60)
    ]
    rows.sort(key=lambda row: row["timestamp"])
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    config = load_engine_config({"engine": {"num_gpu_blocks": 24, "max_num_seqs": 8, "max_num_batched_tokens": 600}})
    goldens = GoldenFolder(tmp_path / "goldens")
    options = ReplayOptions(policy=f"{MODULE}:Sound")
    record_golden(goldens, "digests", trace, config, options)
    record_golden(goldens, "log", trace, config, options, with_log=True)
    sound = Sound()
    plain, watched = tmp_path / "plain.jsonl", tmp_path / "watched.jsonl"
    replay(trace, config, events=plain)
    replay(trace, config, events=watched, policy=sound)
    assert lines_of(watched) == lines_of(plain), "it decides nothing of its own"
    assert min(sound.asked[kind] for kind in KINDS) >= 10, sound.asked
    caught: Counter[str] = Counter()
    for seed in range(NUM_MUTANTS):
        draw = random.Random(seed)
        kind = KINDS[seed % len(KINDS)]
        Sound.wrong = kind, draw.randint(1, sound.asked[kind])
        by_digest, by_log = check_golden(goldens, "digests"), check_golden(goldens, "log")
        assert by_digest.status == by_log.status == Status.DIFFERS, Sound.wrong
        assert by_log.diff is not None, Sound.wrong
        assert by_log.diff.first is not None
        assert by_digest.block is not None
        assert by_log.diff.first.seq is not None
        assert by_digest.block.seq <= by_log.diff.first.seq <= by_digest.block.last_seq
        caught[kind] += 1
        Sound.wrong = None
        assert check_golden(goldens, "digests").status == Status.SAME, "no false alarm between mutants"
    assert caught.total() == NUM_MUTANTS


def lines_of(log: Path) -> list[bytes]:
    return log.read_bytes().splitlines()[1:]
