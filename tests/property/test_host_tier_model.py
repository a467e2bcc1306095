"""The host tier against a slow model: entries in a dict, victims by sorting, transfers in a list."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mocker_replay._core.offload import HostTier as CoreTier
from tests.model.host_tier import HostTier, TierConfig

NAMES = st.integers(0, 9)
COHORTS = st.lists(NAMES, min_size=1, max_size=6)
STEPS_MS = st.sampled_from((0.0, 0.5, 1.0, 2.0, 5.0, 50.0))


def number_of(name: int) -> int:
    """What ties are broken by: another order than that of the names."""
    return (name * 7 + 3) % 10 + 1


class TierMachine(RuleBasedStateMachine):
    @initialize(
        blocks=st.integers(1, 8),
        d2h=st.sampled_from((0.0, 1.0, 0.3)),
        h2d=st.sampled_from((0.0, 1.0, 0.7)),
        latency=st.sampled_from((0.0, 2.0)),
    )
    def start(self, blocks: int, d2h: float, h2d: float, latency: float) -> None:
        self.model = HostTier(TierConfig(blocks, 1_000_000, d2h, h2d, latency), number_of)
        self.core = CoreTier(blocks, 1e6, d2h, h2d, latency, 1, 1)
        self.keys = {name: self.core.key(name, number_of(name)) for name in range(10)}
        self.loads: dict[int, int] = {}  # transfer -> ordinal of the load
        self.now_ms = 0.0

    @rule(cohort=COHORTS)
    def prepare(self, cohort: list[int]) -> None:
        before = len(self.model.evicted)
        expected = self.model.prepare_store(cohort)
        got, evicted = self.core.py_prepare([self.keys[name] for name in cohort])
        assert got == expected
        assert evicted == [self.keys[name] for name in self.model.evicted[before:]]

    @rule()
    def submit(self) -> None:
        expected = [(t.number, t.end_ms) for t in self.model.submit_prepared(self.now_ms)]
        assert self.core.py_submit(self.now_ms) == expected

    @rule(cohort=COHORTS, later_ms=STEPS_MS)
    def load(self, cohort: list[int], later_ms: float) -> None:
        names = list(dict.fromkeys(cohort))
        expected = self.model.schedule_load(names, self.now_ms + later_ms)
        got = self.core.py_load([self.keys[name] for name in names], self.now_ms + later_ms)
        assert (got is None) == (expected is None)
        if got is not None and expected is not None:
            assert (got[0], got[2]) == (expected.number, expected.end_ms)
            self.loads[got[0]] = got[1]

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        under_way = [number for number in self.loads if number in self.model.transfers]
        if under_way:
            number = data.draw(st.sampled_from(under_way))
            self.model.cancel_load(number)
            self.core.py_cancel(self.loads[number])

    @rule(step_ms=STEPS_MS)
    def tick(self, step_ms: float) -> None:
        self.now_ms += step_ms
        assert self.core.py_tick(self.now_ms) == [t.number for t in self.model.tick(self.now_ms)]

    @rule(name=NAMES)
    def touch(self, name: int) -> None:
        self.model.touch(name)
        self.core.py_touch(self.keys[name])

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "model"):
            return
        self.model.check()
        self.core.check()
        assert self.core.num_entries == len(self.model.entries)
        assert self.core.lru_order() == [self.keys[name] for name in self.model.victims([])]
        end_ms = self.model.next_end_ms
        assert self.core.next_end == (float("inf") if end_ms is None else end_ms)


TestTier = TierMachine.TestCase
TestTier.settings = settings(max_examples=60, stateful_step_count=40)
