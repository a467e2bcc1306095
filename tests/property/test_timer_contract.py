"""The precise timer and the one of the virtual loop, under the same script: one contract."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_replay.shells import sleeper
from mocker_replay.shells.clock import Timer
from mocker_replay.shells.sleeper import PreciseTimer
from tests.support.descriptors import VirtualDescriptor, num_descriptors
from tests.support.virtual_loop import VirtualClock, run_virtual


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("arm"), st.integers(-2, 20)),
            st.tuples(st.just("advance"), st.integers(0, 15)),
            st.tuples(st.sampled_from(["disarm", "stray", "turn"]), st.just(0)),
        ),
        max_size=25,
    )
)
def test_precise_and_virtual_timers_keep_one_contract(script: list[tuple[str, int]]) -> None:
    """The same script for both: the same expiries at the same instants, whatever wakes the descriptor."""

    async def main(clock: VirtualClock) -> None:
        fired: dict[str, list[int]] = {"precise": [], "virtual": []}
        descriptors: list[VirtualDescriptor] = []

        def make() -> VirtualDescriptor:
            descriptors.append(VirtualDescriptor(clock))
            return descriptors[-1]

        timers: list[Timer] = [
            PreciseTimer(lambda: fired["precise"].append(clock.now_ns()), make),
            clock.timer(lambda: fired["virtual"].append(clock.now_ns())),
        ]
        for action, value in script:
            for timer in timers:
                if action == "arm":
                    timer.arm(clock.now_ns() + value)
                elif action == "disarm":
                    timer.disarm()
            if action == "stray" and descriptors:
                descriptors[0].stray()
            elif action == "advance":
                await clock.advance_ns(value)
                assert fired["precise"] == fired["virtual"]
            elif action == "turn":
                await clock.turns(1)
        await clock.advance_ns(30)
        assert fired["precise"] == fired["virtual"]
        assert len(descriptors) <= 1
        for timer in timers:
            timer.close()

    with pytest.MonkeyPatch.context() as patch:
        before = num_descriptors()

        async def patched(clock: VirtualClock) -> None:
            patch.setattr(sleeper, "monotonic_ns", clock.now_ns)
            await main(clock)

        run_virtual(patched, collect=False)
        assert num_descriptors() == before
