"""The key `wall` of a realtime log: what the clock said, beside what was modelled.

Decides: the form of the key, and where it stands, which is at the very end of a line. A line without it, the bare
line, is the line of an accelerated log; digest, counts and comparisons are over bare lines. Never decides what a
reading means to a machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

# Quotes inside a string are escaped, so in a JSON line these bytes can only be the key itself.
_KEY = b',"wall":'
_KEYS_TO_LINE_END = re.compile(_KEY + rb"[^\n]*")

# What a step carries besides worker, stimulus and reading, in this order. A boundary apply is always a cancellation.
_CARRIED: dict[str, tuple[str, ...]] = {
    "lane_counts": ("num_cancels", "num_commands"),
    "command_item": ("command_id", "request"),
    "cancel_item": ("command_id", "request", "discard"),
    "boundary_apply": ("command_id", "request", "discard"),
    "refuse": ("request", "command_kind"),
    "leave": ("request",),
    "place": ("request", "place", "rank"),
}
# What is done with the handoffs, or to all workers, stands among the steps, of a worker that there is not.
NO_WORKER = -1
HANDOFF_STIMULI = ("settle", "refuse", "leave", "place")
LOOK = "look"  # whoever stands still looks again


class StepTaken(NamedTuple):
    """One step of one machine as it was taken: its stimulus, the clock reading, and what came with it."""

    worker: int
    stimulus: str
    reading_ms: float
    command_id: int = -1
    request: int = -1  # trace row
    discard: bool = False
    num_cancels: int = 0
    num_commands: int = 0
    command_kind: int = 0
    place: int = -1  # worker of its pool
    rank: int = -1


def pack_step(taken: StepTaken) -> list[object]:
    """A step as it stands in a log."""
    packed: list[object] = [taken.worker, taken.stimulus, float(taken.reading_ms)]
    carried = _CARRIED.get(taken.stimulus)
    if carried is not None:
        packed += [int(getattr(taken, field)) for field in carried]
    return packed


def read_step(packed: object) -> StepTaken:
    """The inverse of `pack_step`.

    Raises:
        ValueError: no step; the message says which rule it breaks.
    """
    if not isinstance(packed, list) or len(packed) < 3:
        raise ValueError(f"a step must be a list of worker, stimulus, reading and what came with it (got {packed!r})")
    worker, stimulus, reading_ms, *rest = packed
    carried = _CARRIED.get(stimulus, ()) if isinstance(stimulus, str) else ()
    if not _is_int(worker) or not isinstance(stimulus, str) or not _is_number(reading_ms):
        raise ValueError(f"a step must begin with a whole number, a name and a reading in ms (got {packed!r})")
    if len(rest) != len(carried) or not all(map(_is_int, rest)):
        wanted = " and ".join(carried) or "nothing"
        raise ValueError(f"a step with {stimulus} must carry {wanted} after its reading (got {packed!r})")
    fields: dict[str, Any] = dict(zip(carried, rest, strict=True))
    if "discard" in fields:
        fields["discard"] = bool(fields["discard"])
    return StepTaken(worker, stimulus, float(reading_ms), **fields)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class WallRecorder:
    """Collects what the next line of a log has to say about the clock.

    `clear` when a line was written with `text`; until then steps wait for the next line.
    """

    def __init__(self) -> None:
        self._steps: list[Sequence[object]] = []
        self._arrival: dict[str, object] = {}

    def step(self, taken: StepTaken) -> None:
        """A machine took this step."""
        self._steps.append(pack_step(taken))

    def packed_step(self, *packed: object) -> None:
        """A step as it stands in a log, from one who takes thousands a second (`pack_step` says the order)."""
        self._steps.append(packed)

    def arrival(self, planned_ms: float, hash_ids: Sequence[int]) -> None:
        """The next line is that of a row which was planned for `planned_ms` and handed over with these hash ids."""
        if self._arrival:
            raise ValueError("one arrival a line: write the line of the one before first")
        self._arrival = {"planned_ms": float(planned_ms), "hash_ids": list(hash_ids)}

    def text(self, wall_ms: float) -> bytes:
        """The object of the key, as JSON: the reading at which the line is made, and all that waits for a line."""
        wall: dict[str, object] = {"ms": float(wall_ms), **self._arrival}
        if self._steps:
            wall["steps"] = self._steps
        return orjson.dumps(wall)

    def clear(self) -> None:
        """The line is written."""
        self._steps.clear()
        self._arrival = {}


def with_wall(line: bytes, wall: bytes) -> bytes:
    """A bare line (without its LF) with the key at its end."""
    return line[:-1] + _KEY + wall + b"}"


def bare_line(line: bytes) -> bytes:
    """A line (without its LF) as an accelerated run would have written it."""
    at = line.find(_KEY)
    return line if at < 0 else line[:at] + b"}"


def bare_lines(block: bytes) -> bytes:
    """Whole lines without their wall keys."""
    return _KEYS_TO_LINE_END.sub(b"}", block)


def read_wall(line: bytes) -> tuple[bytes, dict[str, Any] | None]:
    """The bare line and the wall key of a line without its LF; None where it has none.

    Raises:
        ValueError: the key is no JSON object, or not the last one of its line.
    """
    at = line.find(_KEY)
    if at < 0:
        return line, None
    try:
        wall = orjson.loads(line[at + len(_KEY) : -1]) if line.endswith(b"}}") else None
    except orjson.JSONDecodeError:
        wall = None
    if not isinstance(wall, dict):
        raise ValueError("wall must be a JSON object and the last key of its line")
    return line[:at] + b"}", wall
