"""What a recorded run was given from outside: rows that arrived, and which command a step carries.

Decides how arrival line and step become a command again. Never gives it to a machine.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mocker_replay._core.lanes import Command
from mocker_replay.log.wall import StepTaken


class Arrived(NamedTuple):
    """One arrival line."""

    t_ms: float
    row: int
    name: str | None  # None where it follows from the row
    worker: int
    session: int  # -1: none told
    turn: int
    play: int  # of a graph; -1: none told
    deadline_after_ms: float  # NaN: none told
    command: Command  # without its id


class Script:
    """Rows on their way to the machines.

    A row is forgotten when it is applied, but for its rank: a cancellation may come long after its end.
    """

    def __init__(self, num_workers: int, dp_size: int, num_rows: int) -> None:
        self._num_workers, self._dp_size, self._num_rows = num_workers, dp_size, num_rows
        # By worker: what no step has taken from its lane yet, by row; and what the machine keeps until its pass ends.
        self._on_lane: list[dict[int, Command]] = [{} for _ in range(num_workers)]
        self._deferred: list[deque[Command]] = [deque() for _ in range(num_workers)]
        self._rank_of = array("h")  # by row, -1 before it arrives

    def arrive(self, event: Mapping[str, Any], hash_ids: object) -> Arrived:
        """Put a row on the lane of its worker.

        Raises:
            ValueError: the line is none of an arrival; the message names field, rule and value.
            LookupError: the row arrived before.
        """
        arrived = self._read(event, hash_ids)
        if self._rank(arrived.row) >= 0:
            raise LookupError(f"row {arrived.row} arrives, but did before")
        self._rank_of.extend([-1] * (arrived.row + 1 - len(self._rank_of)))
        self._rank_of[arrived.row] = arrived.command.rank
        self._place(arrived)
        return arrived

    def _place(self, arrived: Arrived) -> None:
        self._on_lane[arrived.worker][arrived.row] = arrived.command

    def _cancelled_rank(self, row: int) -> int:
        """Rank at which a row is cancelled, -1 where that cannot be."""
        return self._rank(row)

    def _command_taken(self, taken: StepTaken) -> Command | None:
        """What a step took from the lane of its worker, None where it is not there."""
        return self._on_lane[taken.worker].pop(taken.request, None)

    def _rank(self, row: int) -> int:
        """Rank of a row that arrived, else -1."""
        return self._rank_of[row] if 0 <= row < len(self._rank_of) else -1

    def _read(self, event: Mapping[str, Any], hash_ids: object) -> Arrived:
        if not isinstance(hash_ids, list) or not all(_is_whole(key, 2**64) for key in hash_ids):
            raise ValueError("wall.hash_ids: a rerun needs the hash ids of each arrival, unsigned 64-bit integers")
        name, t_ms = event.get("request"), event.get("t_ms")
        if not isinstance(name, str):
            raise ValueError(f"request: must be a name (got {name})")
        if not isinstance(t_ms, float):
            raise ValueError(f"t_ms: must be a number of ms (got {t_ms})")
        named = "row" in event
        if not named and not re.fullmatch("r[0-9]{1,10}", name):
            raise ValueError(f"row: a request with a name of its own must have its row (got {name})")
        row = _whole(event if named else {"row": int(name[1:])}, "row", self._num_rows)
        rank = _whole(event, "rank", self._dp_size)
        n_in, n_out = _whole(event, "input_tokens"), _whole(event, "output_tokens")
        session = _whole(event, "session") if "session" in event else -1
        turn = _whole(event, "turn") if "turn" in event else 0
        play = _whole(event, "play") if "play" in event else -1
        worker = _whole(event, "worker", self._num_workers)
        priority, deadline_ms = event.get("priority", 0), event.get("deadline_ms", math.nan)
        if not isinstance(priority, int) or not isinstance(deadline_ms, float):
            raise ValueError(f"priority, deadline_ms: must be a whole number and ms (got {priority}, {deadline_ms})")
        due_ms = math.inf if math.isnan(deadline_ms) else t_ms + deadline_ms
        command = Command(
            0, "submit", row, rank, n_in, n_out, tuple(hash_ids),
            priority=priority, arrival_ms=t_ms, deadline_ms=due_ms,
        )  # fmt: skip
        return Arrived(t_ms, row, name if named else None, worker, session, turn, play, deadline_ms, command)

    def command_of(self, taken: StepTaken) -> Command | None:
        """What a step carries.

        Raises:
            LookupError: its row did not arrive; the message says so.
        """
        if taken.stimulus == "command_item":
            submission = self._command_taken(taken)
            if submission is None:
                raise LookupError(
                    f"row {taken.request} is submitted, but does not wait on the lane of worker {taken.worker}"
                )
            return submission._replace(command_id=taken.command_id)
        if taken.stimulus in ("cancel_item", "boundary_apply"):
            rank = self._cancelled_rank(taken.request)
            if rank < 0:
                raise LookupError(f"row {taken.request} is cancelled, but did not arrive")
            return Command(taken.command_id, "cancel", taken.request, rank, discard=taken.discard)
        return None

    def was_taken(self, taken: StepTaken, command: Command | None, phase: str) -> None:
        """A machine took a step in this phase: a submission in mid-pass is deferred, and applied after it."""
        if phase == "in_pass" and taken.stimulus == "command_item" and command is not None:
            self._deferred[taken.worker].append(command)
        elif phase == "post_deferred" and taken.stimulus == "go":
            self._deferred[taken.worker].popleft()

    def not_applied(self, worker: int) -> Iterator[Command]:
        """Submissions that no engine has seen, in the order of the lane."""
        yield from self._deferred[worker]
        yield from self._on_lane[worker].values()


def _is_whole(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit


def _whole(event: Mapping[str, Any], field: str, limit: int = 2**31) -> int:
    value = event.get(field)
    if not _is_whole(value, limit):
        raise ValueError(f"{field}: must be a whole number from 0 to {limit - 1} (got {value})")
    assert isinstance(value, int)
    return value
