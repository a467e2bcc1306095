"""What a driver publishes: records of one step, cut into the events of the driver specification.

Decides where one event ends and the next begins. Source: driver specification, section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from mocker_replay.events import CommandFlag, CommandKind, EventKind

if TYPE_CHECKING:
    from mocker_replay._core.event_buffer import EventBuffer
    from mocker_replay.shells.boundary import Boundary

_ID_MASK: Final = 2**64 - 1  # ids are unsigned, records are not
_IN_PASS: Final = CommandFlag.IN_PASS.value
_SUPPRESSED: Final = CommandFlag.SUPPRESSED.value
_KINDS: Final = {kind.value: kind for kind in EventKind}
_HEADS: Final = frozenset((EventKind.COMMAND, EventKind.PASS_START, EventKind.PASS_END, EventKind.INTERNAL_WORK))


class EventRecord(NamedTuple):
    """One record of an EventBuffer; `_core/event_buffer.pxd` says what a to f mean for each kind."""

    t_ms: float
    x: float
    a: int
    b: int
    c: int
    d: int
    e: int
    f: int
    kind: int  # EventKind
    worker: int
    rank: int
    request: int


# As EventRecord._make, without the Python function that is in it.
_make_record: Final[Callable[[tuple[float | int, ...]], EventRecord]] = partial(tuple.__new__, EventRecord)


class Published(NamedTuple):
    """One event on the lane: CommandApplied, PassStarted, InternalWorkCompleted or PassCompleted."""

    kind: EventKind  # of the first record: COMMAND, PASS_START, INTERNAL_WORK, PASS_END
    records: list[EventRecord]
    words: list[int]  # payloads; records hold offsets into them
    boundary: Boundary | None  # of a completed pass; whoever takes the event must finish it

    @property
    def head(self) -> EventRecord:
        return self.records[0]

    @property
    def command_id(self) -> int:
        """Of a command event."""
        return self.records[0].d & _ID_MASK

    @property
    def in_pass(self) -> bool:
        """The command of this event was applied while a pass was in flight."""
        return bool(self.records[0].c & _IN_PASS)

    @property
    def suppressed(self) -> bool:
        """The command of this event dropped output that the pass in flight holds."""
        return bool(self.records[0].c & _SUPPRESSED)

    @property
    def is_request_cancellation(self) -> bool:
        return self.records[0].a == CommandKind.CANCEL

    def of(self, kind: EventKind) -> list[EventRecord]:
        """Records of one kind, in order."""
        return [record for record in self.records if record.kind == kind]


def read_records(events: EventBuffer) -> tuple[list[EventRecord], list[int]]:
    """All records of a buffer with their payload words."""
    rows, words = events.rows()
    return list(map(_make_record, rows)), words


def split_events(events: EventBuffer, make_boundary: Callable[[], Boundary]) -> list[Published]:
    """The events one step published, in order."""
    records, words = read_records(events)
    starts = [at for at, record in enumerate(records) if record.kind in _HEADS]
    published = []
    for start, end in zip(starts, [*starts[1:], len(records)], strict=True):
        kind = _KINDS[records[start].kind]
        boundary = make_boundary() if kind is EventKind.PASS_END else None
        published.append(Published(kind, records[start:end], words, boundary))
    return published
