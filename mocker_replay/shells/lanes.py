"""Bounded lanes of one event loop: FIFO, one reader, back-pressure, closed from either side.

Decides who goes next: the oldest waiting sender takes a free place the moment it appears, so a later one cannot
overtake it. Never decides what an item means. `asyncio.Queue` has no closed state before Python 3.13, and a late put
can overtake a woken one there.
"""

from __future__ import annotations

import asyncio
import enum
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from mocker_replay.shells.tokens import resolve

T = TypeVar("T")
Notify = Callable[[], None]


class LaneClosed(Exception):
    """The other side of the lane is gone."""


class LaneEmpty(Exception):
    """Nothing is on the lane now."""


class TicketState(enum.Enum):
    """Where a ticket's item is."""

    WAITING = "waiting"  # for a place
    PLACED = "placed"
    WITHDRAWN = "withdrawn"
    REFUSED = "refused"  # the lane was closed first


class Ticket(Generic[T]):
    """One item on its way onto a lane."""

    __slots__ = ("_line", "_on_done", "item", "state")

    def __init__(self, item: T, on_done: Callable[[TicketState], None] | None, line: Line[T]) -> None:
        self.item = item
        self.state = TicketState.WAITING
        self._on_done = on_done
        self._line = line

    def withdraw(self) -> bool:
        """Give up the wait for a place; False when the item is on the lane already or was refused."""
        if self.state is not TicketState.WAITING:
            return False
        self._line.pop(self, None)
        self.settle(TicketState.WITHDRAWN)
        return True

    def settle(self, state: TicketState) -> None:
        """The lane's word on what became of the item."""
        self.state = state
        if self._on_done is not None:
            self._on_done(state)


Line = OrderedDict[Ticket[T], None]  # tickets that wait, the oldest first; any of them may leave


class BoundedLane(Generic[T]):
    """A FIFO lane with one reader.

    Args:
        capacity: items that fit [items]; None for as many as there are.
        on_item: called when an item appears or a sender closes the lane. on_space: called when a place appears or the
            reader closes the lane. Both are called from whoever caused it and must only take note.
    """

    def __init__(self, capacity: int | None, *, on_item: Notify | None = None, on_space: Notify | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"a lane holds at least one item, got a capacity of {capacity}")
        self.capacity = capacity
        self.closed = False  # no item can be added any more
        self.reader_gone = False
        self._items: deque[T] = deque()
        self._waiting: Line[T] = OrderedDict()
        self._in_hand = 0  # taken, and not yet reported as dealt with
        self._on_item = on_item
        self._on_space = on_space
        self._reader: asyncio.Future[None] | None = None
        self._until_closed: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def unsettled(self) -> int:
        """Items on the lane, waiting for it, or taken and not reported by `done`."""
        return len(self._items) + len(self._waiting) + self._in_hand

    # -- senders ------------------------------------------------------------------------------------

    def try_send(self, item: T) -> bool:
        """Place an item if there is a place and nobody waits for it.

        Raises:
            LaneClosed: nothing can be placed any more.
        """
        if self.closed:
            raise LaneClosed
        if not self._has_space() or self._waiting:
            return False
        self._place(item)
        return True

    def put(self, item: T, on_done: Callable[[TicketState], None] | None = None) -> Ticket[T]:
        """Place an item now, or as soon as it is its turn.

        Args:
            on_done: called once with what became of the wait; at once if there was none.
        """
        ticket = Ticket(item, on_done, self._waiting)
        if self.closed:
            ticket.settle(TicketState.REFUSED)
        elif self._has_space() and not self._waiting:
            self._place(item)
            ticket.settle(TicketState.PLACED)
        else:
            self._waiting[ticket] = None
        return ticket

    async def send(self, item: T) -> None:
        """Place an item; waits for a place. A caller that is cancelled while there is none has sent nothing.

        Raises:
            LaneClosed: nothing can be placed any more.
        """
        placed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = self.put(item, lambda _: resolve(placed, None))
        if ticket.state is TicketState.WAITING:
            try:
                await placed
            except asyncio.CancelledError:
                ticket.withdraw()
                raise
        if ticket.state is TicketState.REFUSED:
            raise LaneClosed

    def close(self) -> None:
        """No more items; those on the lane can still be read."""
        if self.closed:
            return
        self.closed = True
        while self._waiting:
            ticket, _ = self._waiting.popitem(last=False)
            ticket.settle(TicketState.REFUSED)
        for closing in self._until_closed:
            resolve(closing, None)
        self._wake_reader()

    def items(self) -> list[T]:
        """What is on the lane, oldest first."""
        return list(self._items)

    # -- the reader ---------------------------------------------------------------------------------

    def take_nowait(self) -> T:
        """The oldest item.

        Raises:
            LaneEmpty: there is none now. LaneClosed: there will be none.
        """
        if not self._items:
            raise LaneClosed if self.closed else LaneEmpty
        item = self._items.popleft()
        self._in_hand += 1
        self._fill()
        return item

    async def take(self) -> T:
        """The oldest item; waits for one. Cancelling the wait loses nothing.

        Raises:
            LaneClosed: there will be none.
        """
        while not self._items:
            if self.closed:
                raise LaneClosed
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self.take_nowait()

    async def until_closed(self) -> None:
        """Until no item can be added any more; what is on the lane stays there."""
        if not self.closed:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._until_closed.append(waiting)
            await waiting

    def done(self) -> None:
        """Everything taken so far has been dealt with."""
        if self._in_hand:
            self._in_hand = 0
            if self._on_space is not None:
                self._on_space()

    def close_reader(self) -> None:
        """Nobody reads any more: what is on the lane is dropped, senders are told."""
        if self.reader_gone:
            return
        self.reader_gone = True
        self.close()
        self._items.clear()
        self._in_hand = 0
        if self._on_space is not None:
            self._on_space()

    # -- inside -------------------------------------------------------------------------------------

    def _has_space(self) -> bool:
        return self.capacity is None or len(self._items) < self.capacity

    def _place(self, item: T) -> None:
        self._items.append(item)
        self._wake_reader()

    def _fill(self) -> None:
        """A place has appeared: the oldest sender that still waits gets it."""
        while self._waiting and self._has_space():
            ticket, _ = self._waiting.popitem(last=False)
            self._place(ticket.item)
            ticket.settle(TicketState.PLACED)
        if self._on_space is not None:
            self._on_space()

    def _wake_reader(self) -> None:
        if self._on_item is not None:
            self._on_item()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
