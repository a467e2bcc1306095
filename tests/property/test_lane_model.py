"""Bounded lanes and watches against slow models, step by step, and with tasks that are cancelled at any moment."""

from __future__ import annotations

import asyncio
import math

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mocker_replay.shells.lanes import BoundedLane, LaneClosed, LaneEmpty, Ticket, TicketState
from mocker_replay.shells.tokens import CancelToken, Watch, WatchClosed
from tests.support.virtual_loop import VirtualClock, run_virtual


class LaneAgainstModel(RuleBasedStateMachine):
    """Any interleaving without waiting: items in order, the oldest waiting sender first, both sides may close."""

    @initialize(capacity=st.one_of(st.none(), st.integers(1, 3)))
    def start(self, capacity: int | None) -> None:
        self.noted_items = self.noted_space = 0
        self.lane: BoundedLane[int] = BoundedLane(capacity, on_item=self.note_item, on_space=self.note_space)
        self.capacity = math.inf if capacity is None else capacity
        self.items: list[int] = []
        self.tickets: list[tuple[Ticket[int], list[TicketState]]] = []
        self.waiting: list[int] = []  # numbers of tickets
        self.states: list[TicketState] = []
        self.in_hand = 0
        self.closed = self.reader_gone = False
        self.number = 0

    def note_item(self) -> None:
        self.noted_items += 1

    def note_space(self) -> None:
        self.noted_space += 1

    def fill(self) -> None:
        while self.waiting and len(self.items) < self.capacity:
            number = self.waiting.pop(0)
            self.items.append(self.tickets[number][0].item)
            self.states[number] = TicketState.PLACED

    @rule()
    def try_send(self) -> None:
        self.number += 1
        try:
            placed = self.lane.try_send(self.number)
        except LaneClosed:
            assert self.closed
            return
        assert not self.closed
        assert placed == (len(self.items) < self.capacity and not self.waiting)
        if placed:
            self.items.append(self.number)

    @rule(num_items=st.integers(1, 3))
    def put(self, num_items: int) -> None:
        for _ in range(num_items):
            self.put_one()

    def put_one(self) -> None:
        self.number += 1
        told: list[TicketState] = []
        noted = self.noted_items
        ticket = self.lane.put(self.number, told.append)
        if self.closed:
            state = TicketState.REFUSED
        elif len(self.items) < self.capacity and not self.waiting:
            state = TicketState.PLACED
            self.items.append(self.number)
            assert self.noted_items > noted
        else:
            state = TicketState.WAITING
            self.waiting.append(len(self.tickets))
        self.tickets.append((ticket, told))
        self.states.append(state)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(max(0, len(self.tickets) - 3), len(self.tickets) - 1))
        possible = self.states[number] is TicketState.WAITING
        assert self.tickets[number][0].withdraw() == possible
        if possible:
            self.waiting.remove(number)
            self.states[number] = TicketState.WITHDRAWN

    @rule()
    def take(self) -> None:
        noted = self.noted_space
        try:
            item = self.lane.take_nowait()
        except LaneEmpty:
            assert not self.items
            assert not self.closed
        except LaneClosed:
            assert not self.items
            assert self.closed
        else:
            assert item == self.items.pop(0)
            self.in_hand += 1
            self.fill()
            assert self.noted_space > noted

    @rule()
    def done(self) -> None:
        self.lane.done()
        self.in_hand = 0

    @precondition(lambda self: self.number > 12)
    @rule()
    def close(self) -> None:
        self.lane.close()
        self.close_model()

    @precondition(lambda self: self.number > 12)
    @rule()
    def close_reader(self) -> None:
        self.lane.close_reader()
        self.close_model()
        self.items, self.in_hand, self.reader_gone = [], 0, True

    def close_model(self) -> None:
        self.closed = True
        for number in self.waiting:
            self.states[number] = TicketState.REFUSED
        self.waiting = []

    @invariant()
    def agrees(self) -> None:
        assert len(self.lane) == len(self.items)
        assert (self.lane.closed, self.lane.reader_gone) == (self.closed, self.reader_gone)
        assert self.lane.unsettled == len(self.items) + len(self.waiting) + self.in_hand
        for (ticket, told), state in zip(self.tickets, self.states, strict=True):
            assert ticket.state is state
            assert told == ([] if state is TicketState.WAITING else [state])  # once


TestLaneAgainstModel = LaneAgainstModel.TestCase

ACTION = st.one_of(
    st.tuples(st.just("send"), st.just(0)),
    st.tuples(st.just("cancel a sender"), st.integers(0, 30)),
    st.tuples(st.just("take"), st.just(0)),
    st.tuples(st.just("cancel the reader"), st.just(0)),
    st.tuples(st.just("turn"), st.integers(1, 3)),
)


@given(st.lists(ACTION, max_size=60), st.integers(1, 3), st.booleans())
def test_cancelled_tasks_lose_and_double_nothing(script: list[tuple[str, int]], capacity: int, close: bool) -> None:
    async def main(clock: VirtualClock) -> None:
        lane: BoundedLane[int] = BoundedLane(capacity)
        senders: list[asyncio.Task[None]] = []
        got: list[int] = []
        reader: asyncio.Task[None] | None = None

        async def take() -> None:
            got.append(await lane.take())

        for action, argument in script:
            if action == "send":
                senders.append(asyncio.ensure_future(lane.send(len(senders))))
            elif action == "cancel a sender" and senders:
                senders[argument % len(senders)].cancel()
            elif action == "take" and (reader is None or reader.done()):
                reader = asyncio.ensure_future(take())
            elif action == "cancel the reader" and reader is not None:
                reader.cancel()
            elif action == "turn":
                await clock.turns(argument)
        await clock.settle()
        if reader is not None:
            reader.cancel()
        if close:
            lane.close()
        await clock.settle()
        while len(lane):
            got.append(await lane.take())
            await clock.settle()
        assert got == sorted(set(got))  # in the order of sending, each once
        for number, sender in enumerate(senders):
            assert sender.done()
            if not sender.cancelled():
                # Who was not cancelled knows what became of the item.
                assert (number in got) == (sender.exception() is None)
        assert lane.unsettled == len(got)
        lane.done()
        assert lane.unsettled == 0

    run_virtual(main, collect=False)


WATCH_ACTION = st.sampled_from(["set", "set twice", "close", "turn", "watch", "cancel", "fire"])


@given(st.lists(WATCH_ACTION, max_size=40))
def test_watchers_never_miss_the_last_value(script: list[str]) -> None:
    async def main(clock: VirtualClock) -> None:
        watch: Watch[int] = Watch(0)
        token = CancelToken()
        seen: list[list[int]] = []
        tasks: list[asyncio.Task[str]] = []

        async def follow(values: list[int]) -> str:
            version = watch.version
            while True:
                try:
                    changed = await watch.changed(version, token)
                except WatchClosed:
                    return "closed"
                if changed == version:
                    return "fired"
                version = changed
                values.append(watch.value)

        for action in script:
            if action.startswith("set") and not watch.closed:
                for _ in range(1 + ("twice" in action)):
                    watch.set(watch.value + 1)
            elif action == "close":
                watch.close()
            elif action == "turn":
                await clock.turns(2)
            elif action == "watch":
                seen.append([])
                tasks.append(asyncio.ensure_future(follow(seen[-1])))
                await clock.turns(1)
            elif action == "cancel" and tasks:
                tasks[-1].cancel()
            elif action == "fire":
                token.cancel()
        await clock.settle()
        assert len(watch._waiters) == sum(not task.done() for task in tasks)  # who went away is forgotten
        for values, task in zip(seen, tasks, strict=True):
            assert values == sorted(set(values))
            if not task.done() or (not task.cancelled() and task.result() == "closed"):
                assert not values or values[-1] == watch.value
            elif not task.cancelled():
                assert token.cancelled
            task.cancel()
        await clock.settle()
        assert not watch._waiters
        assert not token._callbacks

    run_virtual(main, collect=False)
