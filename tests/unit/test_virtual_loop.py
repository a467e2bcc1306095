"""The loop with virtual time: it never moves time by itself, and says so when nothing else is left."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_replay.shells.clock import Clock
from tests.support.virtual_loop import START_NS, LeftBehind, NotSettled, VirtualClock, VirtualStall, run_virtual


def test_time_stands_still_until_it_is_moved() -> None:
    async def main(clock: VirtualClock) -> None:
        loop = asyncio.get_running_loop()
        assert (clock.now_ns(), loop.time()) == (START_NS, START_NS / 1e9)
        await clock.turns(50)
        await clock.settle()
        assert clock.now_ns() == START_NS
        await clock.advance_ms(0.1)
        assert clock.now_ns() == START_NS + 100_000
        assert clock.now_ms() == 0.1

    run_virtual(main)


def test_sleeps_of_asyncio_end_at_their_instant() -> None:
    async def main(clock: VirtualClock) -> None:
        ends: list[tuple[str, float]] = []

        async def sleeper(name: str, *delays_s: float) -> None:
            for delay_s in delays_s:
                await asyncio.sleep(delay_s)
                ends.append((name, clock.now_ms()))

        tasks = [asyncio.create_task(sleeper("a", 0.0049, 0.0002)), asyncio.create_task(sleeper("b", 0.005))]
        await clock.advance_ms(4.899999)
        assert ends == []
        await clock.advance_ms(0.000001)
        assert ends == [("a", 4.9)]
        await clock.advance_ms(10)
        assert ends == [("a", 4.9), ("b", 5.0), ("a", 5.1)]
        assert all(task.done() for task in tasks)
        with pytest.raises(TimeoutError):
            await clock.until_done(asyncio.wait_for(asyncio.Event().wait(), 0.25))
        assert clock.now_ms() == 264.9

    run_virtual(main)


@given(st.lists(st.integers(-3, 40), max_size=12), st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_timers_fire_at_their_nanosecond_and_in_the_order_of_their_arming(
    deadlines: list[int], steps: list[int]
) -> None:
    async def main(clock: VirtualClock) -> None:
        fired: list[tuple[int, int]] = []
        for number, deadline in enumerate(deadlines):
            timer = clock.timer(lambda number=number: fired.append((clock.now_ns() - START_NS, number)))
            timer.arm(START_NS + deadline)
        assert fired == []
        for step in steps:
            await clock.advance_ns(step)
        # What was in the past at the start came in the first turn.
        expected = sorted((max(deadline, 0), number) for number, deadline in enumerate(deadlines))
        assert fired == [pair for pair in expected if pair[0] <= sum(steps)]

    run_virtual(main, collect=False)


def test_a_reached_deadline_comes_in_the_next_turn_and_never_from_arm() -> None:
    async def main(clock: VirtualClock) -> None:
        fired: list[str] = []
        timer = clock.timer(lambda: fired.append("timer"))
        timer.arm(clock.now_ns())
        assert fired == []
        await clock.turns(1)
        assert fired == ["timer"]

    run_virtual(main)


def test_arming_replaces_and_discards_an_expiry_not_yet_told() -> None:
    async def main(clock: VirtualClock) -> None:
        fired: list[int] = []
        timer = clock.timer(lambda: fired.append(clock.now_ns() - START_NS))
        other = clock.timer(lambda: timer.arm(START_NS + 30))
        # Both are due in one instant: when the first one's callback arms the second, that one's expiry is on its way.
        other.arm(START_NS + 10)
        timer.arm(START_NS + 10)
        await clock.advance_ns(20)
        assert fired == []
        await clock.advance_ns(10)
        assert fired == [30]
        timer.arm(START_NS + 40)
        timer.close()
        timer.close()
        await clock.advance_ns(100)
        assert fired == [30]
        with pytest.raises(RuntimeError, match="closed"):
            timer.arm(START_NS)

    run_virtual(main)


def test_advance_stops_at_deadlines_that_are_set_on_the_way() -> None:
    async def main(clock: VirtualClock) -> None:
        readings: list[float] = []

        def again() -> None:
            readings.append(clock.now_ms())
            timer.arm(clock.now_ns() + 2_000_000)

        timer = clock.timer(again)
        timer.arm(clock.now_ns() + 1_000_000)
        await clock.advance_ms(6)
        assert readings == [1.0, 3.0, 5.0]
        assert clock.now_ms() == 6.0

    run_virtual(main)


def test_settle_is_bounded() -> None:
    async def main(clock: VirtualClock) -> None:
        async def spin() -> None:
            while True:
                await asyncio.sleep(0)

        task = asyncio.create_task(spin())
        with pytest.raises(NotSettled, match="spin"):
            await clock.settle(max_turns=100)
        task.cancel()
        await clock.settle()
        assert task.cancelled()

    run_virtual(main)


def test_settle_runs_everything_that_can_run() -> None:
    async def main(clock: VirtualClock) -> None:
        async def chain(length: int) -> None:
            for _ in range(length):
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(chain(length)) for length in (1, 1000, 20)]
        await asyncio.gather(clock.settle(), clock.settle())
        assert all(task.done() for task in tasks)

    run_virtual(main)


def test_descriptors_are_noticed_while_time_stands_still() -> None:
    async def main(clock: VirtualClock) -> None:
        loop = asyncio.get_running_loop()
        left, right = socket.socketpair()
        with left, right:
            got: list[bytes] = []
            loop.add_reader(right, lambda: got.append(right.recv(10)))
            await clock.settle()
            left.send(b"ping")
            await clock.settle()
            assert got == [b"ping"]
            loop.remove_reader(right)

    run_virtual(main)


def test_threads_are_waited_for_when_asked() -> None:
    async def main(clock: VirtualClock) -> None:
        loop, come = asyncio.get_running_loop(), asyncio.Event()
        thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(come.set))
        thread.start()
        await come.wait()
        thread.join()
        assert await asyncio.to_thread(lambda: 7) == 7
        assert clock.now_ns() == START_NS

    run_virtual(main, outside_s=60.0)


def test_a_loop_with_nothing_to_run_says_who_waits() -> None:
    async def main(clock: VirtualClock) -> None:
        await asyncio.sleep(0.005)

    with pytest.raises(VirtualStall, match=r"next timer in 5\.0 ms\n.*main:\d+ > sleep:\d+, waits for"):
        run_virtual(main)

    async def nobody(clock: VirtualClock) -> None:
        await clock.until_done(asyncio.Event().wait())

    with pytest.raises(VirtualStall, match="no deadline is left"):
        run_virtual(nobody)


def test_two_hands_on_one_clock_are_refused() -> None:
    async def main(clock: VirtualClock) -> None:
        first = asyncio.create_task(clock.advance_ms(1))
        with pytest.raises(RuntimeError, match="two tasks"):
            await asyncio.gather(first, clock.advance_ms(1))
        await first

    run_virtual(main)


def test_the_runner_gives_the_result_and_the_error_of_main() -> None:
    async def good(clock: VirtualClock) -> int:
        return 7

    async def bad(clock: VirtualClock) -> None:
        raise LookupError("mine")

    assert run_virtual(good) == 7
    with pytest.raises(LookupError, match="mine"):
        run_virtual(bad)


def test_the_runner_fails_over_pending_tasks() -> None:
    async def main(clock: VirtualClock) -> asyncio.Task[bool]:
        return asyncio.create_task(asyncio.Event().wait(), name="forgotten")

    with pytest.raises(LeftBehind, match=r"pending: .*forgotten"):
        run_virtual(main)


@pytest.mark.parametrize("in_cycle", [False, True])
def test_the_runner_fails_over_errors_nobody_saw(in_cycle: bool) -> None:
    async def fail() -> None:
        me = asyncio.current_task() if in_cycle else None
        raise LookupError(f"lost, {me is not None}")

    async def main(clock: VirtualClock) -> None:
        # Nothing to keep the task: its error is told when it is forgotten.
        asyncio.create_task(fail())  # noqa: RUF006
        await clock.settle()

    with pytest.raises(LeftBehind, match="never retrieved: LookupError"):
        run_virtual(main)

    async def callback(clock: VirtualClock) -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)

    with pytest.raises(LeftBehind, match="ZeroDivisionError"):
        run_virtual(callback)


def test_the_clock_is_one() -> None:
    async def main(clock: VirtualClock) -> None:
        typed: Clock = clock
        assert typed.now_ns() == clock.loop.now_ns

    run_virtual(main)
