"""Plays of a graph: who may arrive, how many plays run at a time, how many requests never came.

Decides by the lines alone; which request waits for which stands in the trace, not in the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mocker_replay.events import LogEvent, RunEnd
from mocker_replay.log.audit.findings import Findings, Place
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup


class Plays:
    """The rules `play`, `lanes` and `skipped`."""

    def __init__(self, setup: Setup, findings: Findings) -> None:
        self._setup = setup
        self._findings = findings
        self._play_of: dict[str, int] = {}  # of requests that live
        self._running: Counter[int] = Counter()  # live requests by play; none at 0
        self._failed: set[int] = set()
        self._num_arrived = 0
        ends = (LogEvent.FINISH, LogEvent.REJECTION, LogEvent.FAILURE, LogEvent.CANCELLATION)
        self.before = {LogEvent.ARRIVAL.value: self._arrival} | {event.value: self._end for event in ends}

    def _arrival(self, event: Event) -> None:
        self._num_arrived += 1
        play, num_plays = event.get("play"), self._setup.num_plays
        if num_plays is None:
            if play is not None:
                self._findings.add("play", "the trace is no graph", play, None)
            return
        if play is None or play >= num_plays:
            self._findings.add("play", "number of the play, of which there are", play, num_plays)
            return
        if play in self._failed:
            self._findings.add(
                "play", f"a request of play {play} ended otherwise than by finishing: nothing of it starts"
            )
        self._play_of[event["request"]] = play
        self._running[play] += 1
        lanes = self._setup.agentic_lanes
        if lanes is not None and len(self._running) > lanes:
            self._findings.add("lanes", "plays that run", len(self._running), lanes)

    def _end(self, event: Event) -> None:
        play = self._play_of.pop(event["request"], None)
        if play is None:
            return
        self._running[play] -= 1
        if not self._running[play]:
            del self._running[play]
        if event["event"] != LogEvent.FINISH:
            self._failed.add(play)

    def finish(self, footer: Mapping[str, Any], at: Place) -> None:
        """The log is over: who did not arrive was skipped."""
        skipped = footer.get("skipped")
        if self._setup.num_plays is None or not isinstance(skipped, int):
            return
        missing = self._setup.trace_rows - self._num_arrived
        wrong = skipped != missing if footer.get("end") == RunEnd.COMPLETE else not 0 <= skipped <= missing
        if wrong or (skipped and not self._failed):
            expected = missing if self._failed else 0
            self._findings.add("skipped", "requests that a failed play never started", skipped, expected, at=at)
