"""A short run of recordings of agents against the reference wheel; `tests.fuzz.peer --agents` runs long ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.agents import RECORDINGS, judge_recording
from tests.fuzz.verdict import Kind
from tests.fuzz.wheel import WHY_MISSING, Wheel, peer_python

FIRST_SEED = 31_000_000
CASES = 60


@pytest.fixture(scope="module")
def wheel() -> Iterator[Wheel]:
    python = peer_python()
    if python is None:
        pytest.skip(WHY_MISSING)
    with Wheel(python) as running:
        yield running


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_same_seed_gives_the_same_case(name: str) -> None:
    assert RECORDINGS[name](5) == RECORDINGS[name](5) != RECORDINGS[name](6)


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings_are_lowered_as_by_the_wheel(name: str, wheel: Wheel) -> None:
    differing, num_run = {}, 0
    for seed in range(FIRST_SEED, FIRST_SEED + CASES):
        case = RECORDINGS[name](seed)
        verdict = judge_recording(case, wheel)
        num_run += verdict.kind is Kind.COMPARED
        if verdict.differences:
            differing[case.name] = verdict.differences[:3]
    assert differing == {}
    assert num_run > CASES // 3
