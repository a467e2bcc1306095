"""What a realtime replay sees of its machines: every step, and every record before it is forgotten.

Decides nothing: it counts, records, and hands on. One tap sees the steps of all machines in the order they were taken,
which is the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.fleet import Fleet
from mocker_replay.events import EventKind
from mocker_replay.log.wall import WallRecorder
from mocker_replay.report.realtime import Punctuality
from mocker_replay.shells.realtime import Given, Observer


class Tap:
    """Between the shells of all workers and the books of the run.

    Args:
        consume: takes the records of a step, with the measured time [ms]. on_end: called when requests ended.
    """

    def __init__(
        self,
        fleet: Fleet,
        recorder: WallRecorder,
        punctuality: Punctuality,
        consume: Callable[[EventBuffer, float], None],
        on_end: Callable[[], None],
    ) -> None:
        self._fleet = fleet
        self._recorder = recorder
        self._punctuality = punctuality
        self._consume = consume
        self._on_end = on_end
        self._closed = False
        self._ended: list[int] = []

    def of_worker(self, worker: int) -> Observer:
        """The observer for the shell of one worker."""
        return _WorkerTap(self, worker)

    def close(self) -> None:
        """The run is over: what machines do while they are being stopped is not part of it."""
        self._closed = True

    def take_ended(self) -> list[int]:
        """Requests that ended by a command of their boundary's owner since the last call; the fleet sees all others."""
        ended, self._ended = self._ended, []
        return ended

    def stepped(
        self, worker: int, given: Given, deadline_ms: float | None, wall_ms: float, events: EventBuffer
    ) -> None:
        """One machine took a step."""
        if self._closed:
            return
        _record(self._recorder, worker, given)
        if given.stimulus == "pass_timer" and deadline_ms is not None:
            self._punctuality.pass_ends.add(wall_ms - deadline_ms)
        if not len(events):
            return
        records = events.records_array()
        ended = records["request"][records["kind"] == EventKind.TERMINAL].tolist()
        if ended:
            self._punctuality.in_flight.change(-len(ended), wall_ms)
        if given.stimulus == "boundary_apply":
            self._ended += ended
        self._consume(events, wall_ms)
        if ended:
            self._on_end()


class _WorkerTap:
    def __init__(self, tap: Tap, worker: int) -> None:
        self._tap = tap
        self._worker = worker

    def stepped(self, given: Given, deadline_ms: float | None, wall_ms: float, events: EventBuffer) -> None:
        self._tap.stepped(self._worker, given, deadline_ms, wall_ms, events)


def _record(recorder: WallRecorder, worker: int, given: Given) -> None:
    """The step in the form of the log."""
    stimulus, reading_ms, command, num_cancels, num_commands = given
    if command is None:
        if stimulus == "lane_counts":
            recorder.packed_step(worker, stimulus, reading_ms, num_cancels, num_commands)
        else:
            recorder.packed_step(worker, stimulus, reading_ms)
    elif stimulus == "command_item":
        recorder.packed_step(worker, stimulus, reading_ms, command.command_id, command.request)
    else:
        recorder.packed_step(worker, stimulus, reading_ms, command.command_id, command.request, int(command.discard))
