"""The footer: lines and requests counted again, and the digest.

Decides sums over the whole log. Never looks at the order of anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from mocker_replay.events import LogEvent, RunEnd
from mocker_replay.log.audit.findings import Findings, Place
from mocker_replay.log.audit.form import Event
from mocker_replay.log.audit.header import Setup

_COUNTED: Final = {
    LogEvent.ARRIVAL: "arrived",
    LogEvent.FINISH: "finished",
    LogEvent.FAILURE: "failed",
    LogEvent.REJECTION: "rejected",
    LogEvent.CANCELLATION: "cancelled",
    LogEvent.CUT: "cut",
}
_KEYS: Final = ("event", "events", "arrived", "finished", "failed", "rejected", "cancelled", "cut")
_LAST_KEYS: Final = ("end", "digest")


class Totals:
    """The rules `footer`, `digest`, and `end-word` as far as the word goes."""

    def __init__(self, setup: Setup, findings: Findings) -> None:
        self._keys = (*_KEYS, *(() if setup.num_plays is None else ("skipped",)), *_LAST_KEYS)
        self._findings = findings
        self._lines: Counter[str] = Counter()
        self.any = {event.value: self._count for event in _COUNTED}

    def _count(self, event: Event) -> None:
        self._lines[event["event"]] += 1

    def finish(
        self, footer: Mapping[str, Any], num_events: int, digest: str, at: Place, *, follow_requests: bool
    ) -> None:
        """Hold the footer against what was read; `follow_requests`: each request was seen to its end."""
        keys = tuple(key for key in footer if key != "wall")
        if keys != self._keys:
            self._findings.add("footer", "keys of the footer", list(keys), list(self._keys), at=at)
        derived = {name: self._lines[event] for event, name in _COUNTED.items()}
        for name, count in {"events": num_events, **derived}.items():
            if footer.get(name) != count:
                self._findings.add("footer", f"{name}, by the lines", footer.get(name), count, at=at)
        ends = sum(count for name, count in derived.items() if name != "arrived")
        if derived["arrived"] != ends and not follow_requests:
            self._findings.add("left-over", "requests that arrived, and their ends", derived["arrived"], ends, at=at)
        if footer.get("digest") != digest:
            self._findings.add("digest", "digest of the lines", footer.get("digest"), digest, at=at)
        if footer.get("end") not in list(RunEnd):
            self._findings.add("end-word", "how the run ended", footer.get("end"), [str(end) for end in RunEnd], at=at)
