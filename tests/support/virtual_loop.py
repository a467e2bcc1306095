"""An asyncio loop whose time moves only when a test says so: no waiting, the same order of callbacks in each run.

Decides: when a timer of the loop is due (never by a real clock) and when the loop has come to rest. Descriptors and
`call_soon_threadsafe` are real and are looked at once a turn, without blocking. Never moves time by itself: a loop
with nothing left to run fails with `VirtualStall` and says who waits for what, instead of hanging.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import selectors
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVar

from mocker_replay.shells.clock import ms_from_ns, ns_from_ms

Result = TypeVar("Result")

START_NS = 1_000_000_000_000  # not 0: nobody may take the origin of the clock for the start of a run
MAX_TURNS = 100_000
CLOSING_S = 10.0  # real time that threads of the default executor get to end with the loop


class VirtualStall(AssertionError):
    """Nothing can run any more: everybody waits for time that nobody moves, or for nothing at all."""


class NotSettled(AssertionError):
    """The loop was asked to come to rest, and there was always one more callback."""


class LeftBehind(AssertionError):
    """The main coroutine ended and left pending tasks, or errors that nobody saw."""


class _Selector(selectors.DefaultSelector):
    """Never blocks; tells the loop about each turn."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return self.loop.look_around(super().select, nothing_ready=timeout is None)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` is virtual and stands still; timers are kept in exact nanoseconds, those of one instant in order."""

    def __init__(self, start_ns: int = START_NS, outside_s: float = 0.0) -> None:
        """`outside_s`: how long [s, real] a loop at rest may wait for threads and descriptors before it is stalled."""
        self.now_ns = start_ns
        self.outside_s = outside_s
        self.num_turns = 0
        self._num_timers = 0
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._settling: list[tuple[asyncio.Future[None], int]] = []
        self._in_turn: dict[int, Callable[[], object]] = {}
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now_ns / 1e9

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Nearest nanosecond: `time() + delay` carries the rounding of a sum, and no more."""
        return self.call_at_ns(round(when * 1e9), callback, *args, context=context)

    def call_at_ns(
        self, deadline_ns: int, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call when time stands at `deadline_ns` or later; a deadline that is reached is called in the next turn."""
        handle = asyncio.TimerHandle(deadline_ns / 1e9, callback, args, self, context)
        self._num_timers += 1
        heapq.heappush(self._timers, (deadline_ns, self._num_timers, handle))
        return handle

    def next_deadline_ns(self) -> int | None:
        """The deadline of the first timer that was not cancelled."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def in_turn(self, num_turn: int, callback: Callable[[], object]) -> None:
        """Call at the start of that turn, before anything that runs in it; nobody else notices."""
        self._in_turn[num_turn] = callback

    def move_to(self, now_ns: int) -> None:
        assert now_ns >= self.now_ns, "time never goes back"
        self.now_ns = now_ns

    def at_rest(self, max_turns: int) -> asyncio.Future[None]:
        """Done in the first turn that finds nothing to run, or failed after so many turns."""
        future: asyncio.Future[None] = self.create_future()
        self._settling.append((future, self.num_turns + max_turns))
        return future

    def look_around(self, poll: Callable[[float], list[Any]], nothing_ready: bool) -> list[Any]:
        """One turn, before its callbacks run: descriptors, due timers, and what is to be done at rest."""
        self.num_turns += 1
        if self.num_turns in self._in_turn:
            self._in_turn.pop(self.num_turns)()
            nothing_ready = nothing_ready and not self._ready  # type: ignore[attr-defined]
        found = poll(0)
        if self._hand_out_due() or found or not nothing_ready:
            for future, last_turn in self._settling:
                if self.num_turns > last_turn and not future.done():
                    future.set_exception(NotSettled(f"still running after turn {last_turn}: {self.who_waits()}"))
        elif self._settling:
            for future, _ in self._settling:
                if not future.done():
                    future.set_result(None)
        else:
            found = self._wait_outside(poll)
        self._settling = [waiting for waiting in self._settling if not waiting[0].done()]
        return found

    def _hand_out_due(self) -> bool:
        due = False
        while (deadline_ns := self.next_deadline_ns()) is not None and deadline_ns <= self.now_ns:
            self.call_soon(_run_unless_cancelled, heapq.heappop(self._timers)[2])
            due = True
        return due

    def _wait_outside(self, poll: Callable[[float], list[Any]]) -> list[Any]:
        end_s = time.monotonic() + self.outside_s
        while (rest_s := end_s - time.monotonic()) > 0:
            if found := poll(rest_s):
                return found
        raise VirtualStall(f"nothing can run at {self.now_ns} ns: {self.who_waits()}")

    def who_waits(self) -> str:
        deadline_ns = self.next_deadline_ns()
        timer = "no timer" if deadline_ns is None else f"next timer in {ms_from_ns(deadline_ns - self.now_ns)} ms"
        return "\n  ".join([timer, *sorted(describe_task(task) for task in asyncio.all_tasks(self))])


def describe_task(task: asyncio.Task[Any]) -> str:
    """Its name and the lines it stands in, from the outermost coroutine to what it waits for."""
    places, waiting = [], task.get_coro()
    while (frame := getattr(waiting, "cr_frame", None)) is not None:
        places.append(f"{waiting.__name__}:{frame.f_lineno}")
        waiting = waiting.cr_await
    return f"{task.get_name()} in {' > '.join(places)}, waits for {type(waiting).__name__}"


def _run_unless_cancelled(handle: asyncio.TimerHandle) -> None:
    if not handle.cancelled():
        handle._run()


class VirtualTimer:
    """The `Timer` of `VirtualClock`."""

    def __init__(self, loop: VirtualTimeLoop, on_expiry: Callable[[], None]) -> None:
        self._loop = loop
        self._on_expiry = on_expiry
        self._handle: asyncio.Handle | None = None
        self._closed = False

    def arm(self, deadline_ns: int) -> None:
        if self._closed:
            raise RuntimeError("the timer is closed")
        self.disarm()
        if deadline_ns <= self._loop.now_ns:
            self._handle = self._loop.call_soon(self._on_expiry)
        else:
            self._handle = self._loop.call_at_ns(deadline_ns, self._on_expiry)

    def disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        self.disarm()
        self._closed = True


class VirtualClock:
    """The `Clock` of a virtual loop, and the only hand that moves it."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.loop = loop
        self._moving = False

    def now_ns(self) -> int:
        return self.loop.now_ns

    def now_ms(self) -> float:
        """Milliseconds since the clock was started."""
        return ms_from_ns(self.loop.now_ns - START_NS)

    def timer(self, on_expiry: Callable[[], None]) -> VirtualTimer:
        return VirtualTimer(self.loop, on_expiry)

    async def turns(self, num_turns: int) -> None:
        """Let every other task run so many turns; time stands still."""
        for _ in range(num_turns):
            await asyncio.sleep(0)

    async def settle(self, max_turns: int = MAX_TURNS) -> None:
        """Run the loop until no callback is ready; time stands still."""
        await self.loop.at_rest(max_turns)

    def stall_ms(self, duration_ms: float) -> None:
        """Time goes by and nothing runs, as on a machine that is busy with something else."""
        self.loop.move_to(self.loop.now_ns + ns_from_ms(duration_ms))

    async def advance_ms(self, duration_ms: float) -> None:
        await self.advance_ns(ns_from_ms(duration_ms))

    async def advance_ns(self, duration_ns: int) -> None:
        """Move time, stopping at each deadline on the way until the loop has come to rest there."""
        with self._one_hand():
            end_ns = self.loop.now_ns + duration_ns
            await self.settle()
            while (deadline_ns := self.loop.next_deadline_ns()) is not None and deadline_ns <= end_ns:
                self.loop.move_to(deadline_ns)
                await self.settle()
            self.loop.move_to(end_ns)
            await self.settle()

    async def until_done(self, awaitable: Awaitable[Result]) -> Result:
        """Move time from deadline to deadline for as long as it takes, no further; its result."""
        future = asyncio.ensure_future(awaitable)
        with self._one_hand():
            try:
                await self.settle()
                while not future.done():
                    deadline_ns = self.loop.next_deadline_ns()
                    if deadline_ns is None:
                        raise VirtualStall(f"no deadline is left to move to: {self.loop.who_waits()}")
                    self.loop.move_to(deadline_ns)
                    await self.settle()
            finally:
                future.cancel()
        return await future

    @contextmanager
    def _one_hand(self) -> Iterator[None]:
        if self._moving:
            raise RuntimeError("two tasks move one clock; their order would decide the test")
        self._moving = True
        try:
            yield
        finally:
            self._moving = False


def run_virtual(
    main: Callable[[VirtualClock], Coroutine[Any, Any, Result]], *, outside_s: float = 0.0, collect: bool = True
) -> Result:
    """Run `main` on a loop of its own; what it leaves behind fails the test.

    Args:
        main: called with the clock; runs as the first task.
        outside_s: how long [s, real] a loop at rest may wait for threads and descriptors. 0: not at all.
        collect: collect garbage at the end, which finds errors of tasks that nobody looked at in cycles, too; takes
            some 10 ms, so that a property test may want to do without.

    Raises:
        LeftBehind: tasks are pending after `main`, or an exception reached the loop's handler.
        VirtualStall: nothing can run, and nobody moves the time.
    """
    loop = VirtualTimeLoop(outside_s=outside_s)
    seen: list[str] = []
    loop.set_exception_handler(lambda _, context: seen.append(_describe(context)))

    async def watched() -> Result:
        clock = VirtualClock(loop)
        result = await main(clock)
        await clock.settle()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        seen.extend(sorted(f"pending: {describe_task(task)}" for task in left))
        return result

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            result = runner.run(watched())
        except BaseException as error:
            for text in seen:
                error.add_note(text)
            raise
        finally:
            loop.outside_s = CLOSING_S
        if collect:
            gc.collect()
    if seen:
        raise LeftBehind("\n".join(seen))
    return result


def _describe(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context['message']}: {error!r}" if error is not None else context["message"]
