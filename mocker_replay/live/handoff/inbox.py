"""What happens to one party of a session: facts of its engine, messages, ends of its own actions, time.

Decides nothing but the order within a kind: first come, first served. A party looks at the kinds in its own order of
priority; whichever of them woke it decides nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from mocker_replay.live.errors import LiveError
from mocker_replay.live.handoff.control import HandoffEvents
from mocker_replay.live.handoff.facts import HandoffFact
from mocker_replay.live.handoff.transport import Endpoint, Message
from mocker_replay.live.operations import Operation
from mocker_replay.live.request import Signal
from mocker_replay.live.stream import RequestStream
from mocker_replay.shells.alarm import Alarm
from mocker_replay.shells.clock import Clock
from mocker_replay.shells.lanes import BoundedLane

OnEnd = Callable[[bool, str], None]  # (outcome, why it failed); no text where it did not


class Inbox:
    """Belongs to one party, which must `close` it.

    Args:
        clock: whose time counts. origin_ns: its reading that is 0 ms.
    """

    def __init__(self, clock: Clock, origin_ns: int) -> None:
        self.facts: deque[HandoffFact] = deque()
        self.others: deque[Callable[[], None]] = deque()
        self._alarm = Alarm(clock, origin_ns)
        self._listeners: list[asyncio.Task[None]] = []
        self._actions: set[asyncio.Task[None]] = set()

    def ring(self) -> None:
        """Have the party look again."""
        self._alarm.ring()

    def note(self, happened: Callable[[], None]) -> None:
        """Something of no special priority, to be called when it is its turn."""
        self.others.append(happened)
        self.ring()

    def listen(self, events: HandoffEvents, endpoint: Endpoint, on_message: Callable[[Message | None], None]) -> None:
        """Take facts and messages as they come; the last message is None."""
        self._listeners += [
            asyncio.create_task(self._take_facts(events), name="facts of a handoff session"),
            asyncio.create_task(self._take_messages(endpoint, on_message), name="messages of a handoff session"),
        ]

    def watch(self, lane: BoundedLane[Signal], on_end: Callable[[], None]) -> None:
        """Note when nothing can come on a lane any more. Its reader is not kept alive for it."""

        async def until_ended() -> None:
            await lane.until_closed()
            self.note(on_end)

        self._listeners.append(asyncio.create_task(until_ended(), name="end of a handoff session's stream"))

    def read(self, stream: RequestStream, on_end: Callable[[Signal | None], None]) -> None:
        """Read a stream that is the party's own; its end is noted, with the last signal if there was one."""

        async def until_ended() -> None:
            last: Signal | None = None
            async for signal in stream:
                last = signal
            self.note(lambda: on_end(last))

        self._listeners.append(asyncio.create_task(until_ended(), name="output of a handoff session"))

    def follow(self, operation: Operation, on_end: OnEnd) -> None:
        """Note the end of an operation that was begun."""

        async def until_ended() -> None:
            try:
                value = await operation.wait()
            except LiveError as exc:
                text = str(exc)
                self.note(lambda: on_end(False, text))
            else:
                self.note(lambda: on_end(value, ""))

        task = asyncio.create_task(until_ended(), name="action of a handoff session")
        self._actions.add(task)
        task.add_done_callback(self._actions.discard)

    def stop_actions(self) -> None:
        """Nobody waits for the actions that were started so far; their ends are not noted."""
        for task in self._actions:
            task.cancel()

    async def wait(self, until_ms: float) -> None:
        """Until something was noted, or the time is reached."""
        await self._alarm.sleep_until(until_ms)

    async def close(self) -> None:
        """Stop listening and waiting for actions."""
        tasks = [*self._listeners, *self._actions]
        for task in tasks:
            task.cancel()
        self._alarm.close()
        if tasks:
            await asyncio.wait(tasks)

    async def _take_facts(self, events: HandoffEvents) -> None:
        async for fact in events:
            self.facts.append(fact)
            self.ring()

    async def _take_messages(self, endpoint: Endpoint, on_message: Callable[[Message | None], None]) -> None:
        message: Message | None = None
        while (message := await endpoint.receive()) is not None:
            self._hand_over(message, on_message)
        self._hand_over(None, on_message)

    def _hand_over(self, message: Message | None, on_message: Callable[[Message | None], None]) -> None:
        self.note(lambda: on_message(message))
