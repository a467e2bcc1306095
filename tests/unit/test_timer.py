"""The precise timer: each rule of its contract, and what the reference's own tests ask of it ("companions").

On the real clock a test asks only that nothing comes early; what happens in which order is asked on the virtual one.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from mocker_replay._core.timerfd import available
from mocker_replay.shells import sleeper as module
from mocker_replay.shells.clock import Clock, MonotonicClock, monotonic_ns
from mocker_replay.shells.sleeper import COARSE_END_NS, MakeDescriptor, PreciseTimer, Sleeper, sleep_until_ns
from tests.support.descriptors import Creator, FailingDescriptor, Recorder, num_descriptors
from tests.support.virtual_loop import START_NS, NotSettled, VirtualClock, run_virtual

pytestmark = pytest.mark.skipif(not available, reason="no timerfd on this system")

HOUR_NS = 3_600 * 10**9


def ahead_ns(duration_ms: float) -> int:
    return monotonic_ns() + round(duration_ms * 1e6)


async def wait_ms(sleeper: Sleeper, duration_ms: float) -> None:
    """A wait that must not be early."""
    deadline_ns = ahead_ns(duration_ms)
    await sleeper.sleep_until_ns(deadline_ns)
    assert monotonic_ns() >= deadline_ns


def run_with(make: MakeDescriptor | None, main: Callable[[Sleeper], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        sleeper = Sleeper(make)
        try:
            await main(sleeper)
        finally:
            sleeper.close()

    asyncio.run(body())


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.LogCaptureFixture]:
    """What the timers warn of, as the first ones of their process."""
    monkeypatch.setattr(module, "_warned", False)
    with caplog.at_level(logging.WARNING, logger=module.__name__):
        yield caplog


# The reference's own tests.


def test_timer_companion_1_a_reached_deadline_is_pending_on_the_first_poll() -> None:
    creator = Creator()

    async def main(sleeper: Sleeper) -> None:
        for deadline_ns in (monotonic_ns(), monotonic_ns() - 10**9, 0, -5):
            wait = sleeper.sleep_until_ns(deadline_ns)
            assert wait.send(None) is None
            with pytest.raises(StopIteration):
                wait.send(None)

    run_with(creator.timer_fd, main)
    assert creator.num_attempts == 0


def test_timer_companion_2_two_waits_use_one_descriptor() -> None:
    creator = Creator()

    async def main(sleeper: Sleeper) -> None:
        await wait_ms(sleeper, 5)
        await wait_ms(sleeper, 5)
        assert sleeper.has_descriptor

    run_with(creator.timer_fd, main)
    assert creator.num_attempts == 1


def test_timer_companion_3_an_abandoned_wait_does_not_shorten_the_next_one() -> None:
    async def main(sleeper: Sleeper) -> None:
        abandoned = False
        while not abandoned:  # again, where the machine stalled over the whole of the wait
            abandoned_ns = ahead_ns(50)
            wait = asyncio.create_task(sleeper.sleep_until_ns(abandoned_ns))
            await asyncio.sleep(0.002)
            abandoned = wait.cancel()
            await asyncio.gather(wait, return_exceptions=True)
        time.sleep(0.055)  # its deadline passes, and nobody reads
        assert monotonic_ns() >= abandoned_ns
        await wait_ms(sleeper, 30)

    run_with(Creator().timer_fd, main)


def test_timer_companion_4_a_creation_failure_is_latched(warned: pytest.LogCaptureFixture) -> None:
    creator = Creator(fails=True)

    async def main(sleeper: Sleeper) -> None:
        await wait_ms(sleeper, 5)
        assert not sleeper.has_descriptor
        creator.fails = False
        await wait_ms(sleeper, 5)

    run_with(creator.timer_fd, main)
    assert creator.num_attempts == 1
    assert len(warned.messages) == 1


# The rules.


def test_timer_rule_1_deadlines_are_absolute_and_passed_on_whole() -> None:
    recorder = Recorder()

    async def main(sleeper: Sleeper) -> None:
        deadlines = [monotonic_ns() + HOUR_NS + 1, monotonic_ns() + 1_234_567_891_011]
        for deadline_ns in deadlines:
            wait = asyncio.create_task(sleeper.sleep_until_ns(deadline_ns))
            await asyncio.sleep(0)
            wait.cancel()
            await asyncio.gather(wait, return_exceptions=True)
        assert recorder.armed == deadlines
        far = asyncio.create_task(sleeper.sleep_until_ns(2**70))
        await asyncio.sleep(0)
        far.cancel()
        assert recorder.armed[2:] == [2**63 - 1]

    run_with(lambda: recorder, main)


def test_timer_rule_1_time_between_choice_and_wait_costs_nothing() -> None:
    creator = Creator()

    async def main(sleeper: Sleeper) -> None:
        deadline_ns = ahead_ns(5)
        time.sleep(0.006)
        await sleeper.sleep_until_ns(deadline_ns)

    run_with(creator.timer_fd, main)
    assert creator.num_attempts == 0  # it was reached when the wait began


def test_timer_rule_1_a_descriptor_that_wakes_early_is_not_believed() -> None:
    recorder = Recorder()

    async def main(sleeper: Sleeper) -> None:
        deadline_ns = ahead_ns(20)

        async def checked() -> None:
            await sleeper.sleep_until_ns(deadline_ns)
            assert monotonic_ns() >= deadline_ns

        wait = asyncio.create_task(checked())
        await asyncio.sleep(0)
        recorder.expire()
        while len(recorder.armed) < 2 and not wait.done():
            await asyncio.sleep(0)
        time.sleep(max(0, deadline_ns - monotonic_ns()) / 1e9)
        recorder.expire()
        await wait
        # Armed twice, or less where the machine stalled for 20 ms.
        assert set(recorder.armed) <= {deadline_ns}

    run_with(lambda: recorder, main)


@pytest.mark.parametrize("has_descriptor", [False, True])
def test_timer_rule_2_a_reached_deadline_yields_exactly_once(has_descriptor: bool) -> None:
    creator = Creator()

    async def main(sleeper: Sleeper) -> None:
        if has_descriptor:
            await wait_ms(sleeper, 0.3)
        turns: list[int] = []

        async def count() -> None:
            for turn in range(4):
                turns.append(turn)
                await asyncio.sleep(0)

        other = asyncio.create_task(count())
        for number in range(1, 4):
            await sleeper.sleep_until_ns(monotonic_ns())
            assert turns == list(range(number))
        await other

    run_with(creator.timer_fd, main)
    assert creator.num_attempts == has_descriptor


def test_timer_rule_2_arming_for_the_past_calls_back_in_the_next_turn() -> None:
    creator = Creator()

    async def main() -> None:
        fired: list[int] = []
        timer = PreciseTimer(lambda: fired.append(1), creator.timer_fd)
        timer.arm(monotonic_ns())
        assert fired == []
        await asyncio.sleep(0)
        assert fired == [1]
        timer.arm(0)
        timer.disarm()
        await asyncio.sleep(0)
        assert fired == [1]
        timer.close()

    asyncio.run(main())
    assert creator.num_attempts == 0


def test_timer_rule_3_one_descriptor_an_instance_for_many_waits() -> None:
    creator = Creator()
    before = num_descriptors()

    async def main(sleeper: Sleeper) -> None:
        opened = num_descriptors()
        for number in range(30):
            await wait_ms(sleeper, number % 4 * 0.17)
        assert num_descriptors() == opened + 1

    run_with(creator.timer_fd, main)
    assert creator.num_attempts == 1
    assert num_descriptors() == before


def test_timer_rule_3_an_instance_may_move_to_another_loop() -> None:
    creator = Creator()
    sleeper = Sleeper(creator.timer_fd)
    for _ in range(3):
        asyncio.run(wait_ms(sleeper, 0.7))
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    for loop in (first, second, first):
        loop.run_until_complete(wait_ms(sleeper, 0.7))
    assert not second.remove_reader(creator.created[0])
    sleeper.close()
    assert not first.remove_reader(creator.created[0])
    for loop in (first, second):
        loop.close()
    assert creator.num_attempts == 1


def test_timer_rule_4_an_unread_expiry_is_discarded() -> None:
    async def main() -> None:
        fired: list[int] = []
        timer = PreciseTimer(lambda: fired.append(monotonic_ns()))
        timer.arm(ahead_ns(1))
        time.sleep(0.002)  # expired, and the loop has had no turn to see it
        deadline_ns = ahead_ns(10)
        timer.arm(deadline_ns)
        while not fired:
            await asyncio.sleep(0.001)
        assert len(fired) == 1
        assert fired[0] >= deadline_ns

        timer.arm(ahead_ns(1))
        time.sleep(0.002)
        timer.disarm()
        await asyncio.sleep(0.002)
        assert len(fired) == 1
        timer.close()

    asyncio.run(main())


def test_timer_rule_4_an_expiry_the_loop_has_collected_is_discarded() -> None:
    """The loop finds socket and timer readable in one turn, and the socket's callback arms the timer anew."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        left, right = socket.socketpair()
        fired: list[int] = []
        deadlines: list[int] = []
        timer = PreciseTimer(lambda: fired.append(monotonic_ns()))

        def on_socket() -> None:
            loop.remove_reader(right)
            deadlines.append(ahead_ns(10))
            timer.arm(deadlines[0])

        loop.add_reader(right, on_socket)
        left.send(b"first")
        timer.arm(ahead_ns(20))
        time.sleep(0.021)
        while not fired:
            await asyncio.sleep(0.001)
        assert fired[0] >= deadlines[0]
        timer.close()
        left.close()
        right.close()

    asyncio.run(main())


def test_timer_rule_4_a_setting_for_the_past_replaces_one_ahead() -> None:
    async def main() -> None:
        fired: list[int] = []
        timer = PreciseTimer(lambda: fired.append(1))
        timer.arm(ahead_ns(5))
        timer.arm(0)
        await asyncio.sleep(0)
        time.sleep(0.006)
        await asyncio.sleep(0.001)
        assert fired == [1]
        timer.close()

    asyncio.run(main())


@pytest.mark.parametrize("fails_at", ["arm", "drain"])
def test_timer_rule_5_a_failure_switches_for_good_and_the_wait_completes(
    fails_at: str, warned: pytest.LogCaptureFixture
) -> None:
    made: list[FailingDescriptor] = []

    def make() -> FailingDescriptor:
        made.append(FailingDescriptor(fails_at))
        return made[-1]

    async def main(sleeper: Sleeper) -> None:
        for _ in range(3):
            await wait_ms(sleeper, 3.4)
            assert not sleeper.has_descriptor

    before = num_descriptors()
    run_with(make, main)
    run_with(make, main)  # another instance tries again
    calls = ["arm", "close"] if fails_at == "arm" else ["arm", "drain", "close"]
    assert [descriptor.calls for descriptor in made] == [calls, calls]
    assert len(warned.messages) == 1
    assert "says the test" in warned.messages[0]
    assert num_descriptors() == before


def test_timer_rule_5_a_descriptor_that_cannot_be_disarmed_is_given_up(warned: pytest.LogCaptureFixture) -> None:
    descriptor = FailingDescriptor("disarm")

    async def main() -> None:
        fired: list[int] = []
        timer = PreciseTimer(lambda: fired.append(1), lambda: descriptor)
        timer.arm(ahead_ns(5))
        timer.disarm()
        timer.arm(0)
        await asyncio.sleep(0)
        assert fired == [1]
        time.sleep(0.006)
        await asyncio.sleep(0.001)
        assert fired == [1]
        timer.close()

    asyncio.run(main())
    assert descriptor.calls == ["arm", "disarm", "close"]
    assert len(warned.messages) == 1


class NoReaders(asyncio.SelectorEventLoop):
    """A loop that cannot watch descriptors, as the one of Windows."""

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> Any:
        raise NotImplementedError

    def remove_reader(self, fd: Any) -> bool:
        raise NotImplementedError


def test_timer_rule_5_a_loop_without_readers_waits_with_its_own_timer(warned: pytest.LogCaptureFixture) -> None:
    creator = Creator()
    sleeper = Sleeper(creator.timer_fd)
    before = num_descriptors()
    with asyncio.Runner(loop_factory=NoReaders) as runner:
        for _ in range(2):
            runner.run(wait_ms(sleeper, 3.3))
    assert creator.num_attempts == len(warned.messages) == 1
    assert num_descriptors() == before


def test_timer_rule_6_without_timerfd_there_is_no_descriptor_and_no_warning(warned: pytest.LogCaptureFixture) -> None:
    async def main(sleeper: Sleeper) -> None:
        before = num_descriptors()
        for duration_ms in (0.2, 1.9, 2.1, 5.7):
            await wait_ms(sleeper, duration_ms)
            assert num_descriptors() == before
        assert not sleeper.has_descriptor

    run_with(None, main)
    assert warned.messages == []


class FakeTime:
    """A monotonic clock that goes on by `step_ns` with each reading."""

    def __init__(self, step_ns: int) -> None:
        self.now_ns = START_NS
        self.step_ns = step_ns

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


class NotedLoop(asyncio.SelectorEventLoop):
    """Notes how long its timers were to take, moves the fake time there (or half-way), and calls at once."""

    def __init__(self, fake: FakeTime, share: float) -> None:
        super().__init__()
        self.fake, self.share = fake, share
        self.delays_ns: list[int] = []

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, **context: Any) -> Any:
        self.delays_ns.append(round(delay * 1e9))
        self.fake.now_ns += round(delay * 1e9 * self.share)
        return self.call_soon(callback, *args, **context)


@pytest.mark.parametrize(("share", "num_timers"), [(1.0, 1), (0.5, 12)])
def test_timer_rule_6_coarse_to_two_ms_before_then_turns(
    share: float, num_timers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-way: the loop's clock runs twice as fast as the monotonic one, and is not believed."""
    fake = FakeTime(step_ns=1_000)
    monkeypatch.setattr(module, "monotonic_ns", fake)
    with asyncio.Runner(loop_factory=lambda: NotedLoop(fake, share)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, NotedLoop)
        deadline_ns = START_NS + 10_000_000
        runner.run(Sleeper(None).sleep_until_ns(deadline_ns))
        # Three readings come before the first timer: wait, arm, and the rest that is left.
        assert loop.delays_ns[0] == 10_000_000 - COARSE_END_NS - 3_000
        assert abs(len(loop.delays_ns) - num_timers) <= 1
        assert deadline_ns <= fake.now_ns <= deadline_ns + 2_000


def test_timer_rule_6_an_abandoned_wait_takes_no_more_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(clock: VirtualClock) -> None:
        monkeypatch.setattr(module, "monotonic_ns", clock.now_ns)
        wait = asyncio.create_task(Sleeper(None).sleep_until_ns(clock.now_ns() + 10_000_000))
        await clock.advance_ms(7.9)
        await clock.settle(max_turns=50)
        clock.loop.move_to(clock.now_ns() + 200_000)
        with pytest.raises(NotSettled):
            await clock.settle(max_turns=50)
        wait.cancel()
        await clock.settle(max_turns=50)
        assert wait.cancelled()

    run_virtual(main)


def test_timer_rule_7_no_deadline_waits_for_ever() -> None:
    creator = Creator()

    async def main(clock: VirtualClock) -> None:
        sleeper = Sleeper(creator.timer_fd)
        wait = asyncio.create_task(sleeper.sleep_until_ns(None))
        await clock.advance_ms(1e12)
        assert not wait.done()
        wait.cancel()
        await clock.settle()
        assert wait.cancelled()
        sleeper.close()

    run_virtual(main)
    assert creator.num_attempts == 0


# What follows from them.


def test_a_wait_cancelled_when_it_had_just_ended_leaves_nothing_behind() -> None:
    async def main(sleeper: Sleeper) -> None:
        wait = asyncio.create_task(sleeper.sleep_until_ns(ahead_ns(1)))
        await asyncio.sleep(0)
        time.sleep(0.002)
        await asyncio.sleep(0)  # the expiry is read in this turn, the task has not run
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
        await wait_ms(sleeper, 8)

    run_with(Creator().timer_fd, main)


def test_a_sleeper_carries_one_wait_at_a_time() -> None:
    async def main(sleeper: Sleeper) -> None:
        wait = asyncio.create_task(sleeper.sleep_until_ns(monotonic_ns() + HOUR_NS))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one wait"):
            await sleeper.sleep_until_ns(monotonic_ns() + HOUR_NS)
        assert not wait.done()
        sleeper.close()
        with pytest.raises(RuntimeError, match="closed during a wait"):
            await wait
        with pytest.raises(RuntimeError, match="closed"):
            await sleeper.sleep_until_ns(0)

    run_with(Creator().timer_fd, main)


def test_nothing_of_a_timer_is_left_whatever_ended_it() -> None:
    async def main() -> None:
        before = num_descriptors()
        for _ in range(10):
            await sleep_until_ns(ahead_ns(0.3))
        wait = asyncio.create_task(sleep_until_ns(monotonic_ns() + HOUR_NS))
        await asyncio.sleep(0)
        assert num_descriptors() == before + 1
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
        assert num_descriptors() == before
        timer = PreciseTimer(lambda: None)
        timer.arm(monotonic_ns() + HOUR_NS)
        timer.close()
        timer.close()
        assert num_descriptors() == before
        with pytest.raises(RuntimeError, match="closed"):
            timer.arm(0)

    before = num_descriptors()
    asyncio.run(main())
    assert num_descriptors() == before

    async def forgets() -> None:
        for _ in range(5):
            PreciseTimer(lambda: None).arm(monotonic_ns() + HOUR_NS)

    asyncio.run(forgets())
    gc.collect()
    assert num_descriptors() == before


def test_setting_the_same_deadline_again_does_not_ask_the_kernel() -> None:
    recorder = Recorder()

    async def main() -> None:
        timer = PreciseTimer(lambda: None, lambda: recorder)
        deadline_ns = monotonic_ns() + HOUR_NS
        for _ in range(5):
            timer.arm(deadline_ns)
        timer.arm(deadline_ns + 1)
        timer.disarm()
        timer.arm(deadline_ns + 1)
        assert recorder.armed == [deadline_ns, deadline_ns + 1, deadline_ns + 1]
        timer.close()

    asyncio.run(main())


def test_the_real_clock_hands_out_precise_timers() -> None:
    clock: Clock = MonotonicClock()
    assert isinstance(clock.timer(lambda: None), PreciseTimer)
    creator = Creator()
    counting: Clock = MonotonicClock(lambda on_expiry: PreciseTimer(on_expiry, creator.timer_fd))

    async def main() -> None:
        fired = asyncio.Event()
        timer = counting.timer(fired.set)
        for _ in range(2):
            deadline_ns = counting.now_ns() + 700_000
            timer.arm(deadline_ns)
            await fired.wait()
            assert counting.now_ns() >= deadline_ns
            fired.clear()
        timer.close()

    asyncio.run(main())
    assert creator.num_attempts == 1
