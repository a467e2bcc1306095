"""An event log being written: header, event lines, footer.

Decides: what header and footer say and when the log counts as whole. Never decides what happened: lines come from
the encoder, bytes go through an output that appears only when the footer is written. What a realtime run says about
the clock is put behind a line; counts and digest do not see it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import orjson

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay._core.log_encoder import LogEncoder
from mocker_replay.events import EVENT_SCHEMA, EventLevel, LogEvent, RunEnd
from mocker_replay.log.compression import Sink, open_encoder
from mocker_replay.log.digest import EventDigest
from mocker_replay.log.wall import with_wall
from mocker_replay.outputs import Output, open_output

HEADER_KEYS = ("clock", "trace", "config", "options")


class EventLogWriter:
    """Consumes event buffers; `close` makes the log whole, `abort` drops it.

    Used as a context manager it aborts when left with an exception or without `close`.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | Sink,
        level: EventLevel | str,
        *,
        header: Mapping[str, Any],
        num_workers: int = 1,
        dp_size: int = 1,
        with_terms: bool = False,
    ) -> None:
        """Open the log and write its header.

        Args:
            target: a path (compressed by its suffix, `-` is standard output), or a sink that stays the caller's.
            level: how much the log holds.
            header: clock, trace, config and options, further keys after them, `wall` as the last one; JSON values
                only.
            num_workers: workers of the run.
            dp_size: attention-DP ranks of a worker.
            with_terms: arrivals tell their priority and deadline; a policy may have asked for them.

        Raises:
            OutputError: the target cannot be written.
            ValueError: unknown level, or a header without one of its keys.
        """
        self._encoder = LogEncoder(level, num_workers, dp_size, with_terms)
        first_line = _header_line(self._encoder.level, header)
        self._digest = EventDigest()
        self._output: Output | None = None
        if isinstance(target, (str, os.PathLike)):
            self._output = open_output(target)
            self._stream = open_encoder(self._output, os.fspath(target))
        else:
            self._stream = open_encoder(target, "")
        self._open = True
        self._write(first_line)

    @property
    def wants(self) -> int:
        """Want bits the engine must be given."""
        return self._encoder.wants

    @property
    def level(self) -> str:
        return self._encoder.level

    def counts(self) -> dict[str, int]:
        """Events written and where the requests went, so far."""
        return self._encoder.counts()

    def add_names(self, first_row: int, names: Sequence[str | None]) -> None:
        """Name the requests of the rows from `first_row` on; before any of them appears."""
        self._encoder.add_names(first_row, names)

    def consume(self, events: EventBuffer, wall: bytes | Callable[[], bytes] | None = None) -> bool:
        """Write the lines of all records of `events`, which must hold whole groups.

        Args:
            wall: what the first of these lines says about the clock, as the JSON text of an object, or what makes
                that text; it is asked only if a line is written.

        Returns:
            Whether any line was written; the level may leave all of them out.
        """
        lines = self._encoder.encode(events)
        if not lines:
            return False
        self._digest.update(lines)
        if wall is not None:
            first, rest = lines.split(b"\n", 1)
            lines = with_wall(first, wall if isinstance(wall, bytes) else wall()) + b"\n" + rest
        self._write(lines)
        return True

    def close(
        self,
        *,
        cut: bool = False,
        interrupted: bool = False,
        stopped: bool = False,
        skipped: int | None = None,
        wall: bytes | None = None,
    ) -> dict[str, Any]:
        """Write the footer and make the log whole.

        Args:
            cut: the run ended at its time limit, with requests that are not terminal or rows that never arrived.
            interrupted: the user ended it.
            stopped: the engine could not go on.
            skipped: requests of a graph that never arrived because their play had failed; None: no graph.
            wall: what the footer says about the clock, as the JSON text of an object.

        Returns:
            The footer, without `wall`.
        """
        if not self._open:
            raise ValueError("the event log is closed already")
        end = RunEnd.COMPLETE
        if stopped:
            end = RunEnd.STOPPED
        elif interrupted:
            end = RunEnd.INTERRUPTED
        elif cut:
            end = RunEnd.TIME_LIMIT
        counts = self._encoder.counts()
        if skipped is not None:
            counts["skipped"] = skipped
        footer = {"event": LogEvent.FOOTER, **counts, "end": end, "digest": self._digest.hexdigest()}
        line = orjson.dumps(footer)
        self._write((line if wall is None else with_wall(line, wall)) + b"\n")
        try:
            self._stream.close()
            if self._output is not None:
                self._output.close()
        except BaseException:
            self.abort()
            raise
        self._open = False
        return footer

    def abort(self) -> None:
        """Drop the log; a target that existed stays as it was."""
        self._open = False
        if self._output is not None:
            self._output.abort()

    def __enter__(self) -> EventLogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            self.abort()

    def _write(self, data: bytes) -> None:
        try:
            self._stream.write(data)
        except BaseException:
            self.abort()
            raise


def _header_line(level: str, header: Mapping[str, Any]) -> bytes:
    missing = [key for key in HEADER_KEYS if key not in header]
    if missing:
        raise ValueError(f"the header of an event log needs {', '.join(missing)}")
    taken = {"event", "schema", "level"} & header.keys()
    if taken:
        raise ValueError(f"the writer sets {', '.join(sorted(taken))} in the header of an event log")
    first = {"event": LogEvent.HEADER, "schema": EVENT_SCHEMA, "level": level, **{k: header[k] for k in HEADER_KEYS}}
    line = first | dict(header)
    if "wall" in line:
        line["wall"] = line.pop("wall")  # a key stands where it was first set
    return orjson.dumps(line) + b"\n"
