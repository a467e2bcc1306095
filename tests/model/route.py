"""The life of one request, as the table of the boundary specification (section 4) says it, row by row.

Slow and plain on purpose: rows are data, the queue is a list, waiters look again after every operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

S, A, C, X = "submitting", "active", "cancelling", "closed"


@dataclass
class RouteModel:
    """State, flags and output queue of one route."""

    capacity: int
    state: str = S
    abandoned: bool = False
    terminal_seen: bool = False
    has_sender: bool = True
    buffered: list[int] = field(default_factory=list)
    waiters: int = 0  # who waits for the admission
    told: list[bool] = field(default_factory=list)

    def apply(self, operation: str, argument: int = 0) -> object:
        """The value the operation returns."""
        result = getattr(self, operation)(argument)
        if self.state in (A, X):
            self.told += [self.state == A] * self.waiters
            self.waiters = 0
        return result

    def activate(self, _: int) -> None:
        self.state = {S: A, A: A, C: C, X: X}[self.state]

    def abandon(self, _: int) -> bool:
        first = not self.abandoned
        self.abandoned, self.has_sender = True, False
        return first

    def wait(self, _: int) -> None:
        self.waiters += 1

    def begin(self, _: int) -> bool:
        begun = self.state == A
        self.state = C if begun else self.state
        return begun

    def applied(self, _: int) -> bool:
        return self._finish(remove=True)

    def noop(self, _: int) -> bool:
        return self._finish(remove=self.abandoned or self.terminal_seen)

    def error(self, _: int) -> bool:
        return self._finish(remove=self.terminal_seen)

    def _finish(self, *, remove: bool) -> bool:
        if self.state != C:
            return False
        self.state = X if remove else A
        self.has_sender = self.has_sender and not remove
        return remove

    def send(self, position: int) -> str:
        if not self.has_sender:
            return "closed"
        if len(self.buffered) == self.capacity:
            return "full"
        self.buffered.append(position)
        return "delivered"

    def terminal(self, _: int) -> bool:
        self.has_sender, self.terminal_seen = False, True
        self.state = {S: X, A: X, C: C, X: X}[self.state]
        return self.state != C

    def shutdown(self, _: int) -> None:
        self.state, self.has_sender = X, False

    def read(self, _: int) -> int | str:
        """What the reader finds: signals stay readable after the sender was taken."""
        if self.buffered:
            return self.buffered.pop(0)
        return "nothing yet" if self.has_sender else "end"
