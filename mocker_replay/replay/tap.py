"""What a realtime replay sees of its machines: every step, and every record before it is forgotten.

Decides nothing: it counts, records, and hands on. One tap sees the steps of all machines in the order they were taken,
which is the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.fleet import Fleet
from mocker_replay.events import EventKind
from mocker_replay.log.records import append_records
from mocker_replay.log.wall import WallRecorder
from mocker_replay.report.realtime import Punctuality
from mocker_replay.shells.realtime import Given, Observer

_TERMINAL: Final = EventKind.TERMINAL.value


class Tap:
    """Between the shells of all workers and the books of the run.

    Args:
        consume: takes the records of a step, with the measured time [ms].
        on_end: called with the requests that ended, and with none after each step taken while none is in flight.
        tells_idle: also with none after each step that leaves a machine idle.
        on_failure: called when a step could not be dealt with; nothing is taken after that.
    """

    def __init__(
        self,
        fleet: Fleet,
        recorder: WallRecorder,
        punctuality: Punctuality,
        consume: Callable[[EventBuffer, float], None],
        on_end: Callable[[list[int]], None],
        on_failure: Callable[[Exception], None],
        *,
        tells_idle: bool = False,
    ) -> None:
        self._fleet = fleet
        self._recorder = recorder
        self._punctuality = punctuality
        self._consume = consume
        self._on_end = on_end
        self._on_failure = on_failure
        self._tells_idle = tells_idle
        self._closed = False

    def of_worker(self, worker: int) -> Observer:
        """The observer for the shell of one worker."""
        return _WorkerTap(self, worker)

    def close(self) -> None:
        """The run is over: what machines do while they are being stopped is not part of it."""
        self._closed = True

    def stepped(
        self, worker: int, given: Given, deadline_ms: float | None, wall_ms: float, events: EventBuffer
    ) -> None:
        """One machine took a step."""
        if self._closed:
            return
        try:
            self._take(worker, given, deadline_ms, wall_ms, events)
        except Exception as exc:
            # A disk may be full; a shell in the middle of a step is not the one to end the run.
            self._closed = True
            self._on_failure(exc)

    def told(self, wall_ms: float) -> None:
        """Records that no step made: of handoffs, between the steps of machines."""
        events = self._fleet.out
        if self._closed or not len(events):
            return
        ended = events.requests_of(_TERMINAL)
        if ended:
            self._punctuality.in_flight.change(-len(ended), wall_ms)
        self._consume(events, wall_ms)
        self._fleet.clear_events()
        if ended:
            self._on_end(ended)

    def _take(self, worker: int, given: Given, deadline_ms: float | None, wall_ms: float, events: EventBuffer) -> None:
        _record(self._recorder, worker, given)
        if given.stimulus == "pass_timer" and deadline_ms is not None:
            self._punctuality.pass_ends.add(wall_ms - deadline_ms)
        ended: list[int] = []
        if len(events):
            ended = events.requests_of(_TERMINAL)
            if ended:
                self._punctuality.in_flight.change(-len(ended), wall_ms)
            if given.stimulus == "boundary_apply":
                # The fleet must see them, too: a client who was to leave later is gone, a follow-up may be due.
                append_records(self._fleet.out, events.records_array(), events.words_array())
                self._consume(self._fleet.out, wall_ms)
                self._fleet.clear_events()
            else:
                self._consume(events, wall_ms)
        idle = self._tells_idle and self._fleet.machines[worker].phase_name == "idle"
        if ended or idle or not self._punctuality.in_flight.now:
            self._on_end(ended)


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
