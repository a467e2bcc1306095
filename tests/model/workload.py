"""Who arrives when: rows become sessions of turns, released by the clock, by answers, or by free slots.

Decides due times and their total order. Knows nothing of engines.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Turn:
    """One request of the trace."""

    row: int
    session: int
    session_name: str
    turn: int
    input_tokens: int
    output_tokens: int
    hash_ids: Sequence[int]
    first_ms: float | None  # timestamp of the row, raw
    delay_ms: float  # think time before this turn, raw
    cancel_after_ms: float  # its client leaves so long after the arrival; inf: it stays
    priority: int = 0
    deadline_ms: float | None = None  # from the arrival on


def _first(row: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    return None


def read_turns(rows: Sequence[Mapping[str, Any]], trace_block_size: int) -> list[list[Turn]]:
    """Sessions in order of first appearance, each a list of turns in file order."""
    sessions: list[list[Turn]] = []
    names: dict[str, int] = {}
    last_timestamp: dict[int, float] = {}
    for number, row in enumerate(rows):
        name = row.get("session_id")
        index = names.setdefault(name, len(sessions)) if name is not None else len(sessions)
        if index == len(sessions):
            sessions.append([])
        timestamp = _first(row, "timestamp", "created_time")
        delay = _first(row, "delay", "delay_ms")
        if not sessions[index]:
            wait = 0.0
        elif delay is not None:
            wait = float(delay)
        elif timestamp is not None:
            wait = float(timestamp) - last_timestamp[index]
        else:
            wait = 0.0
        if timestamp is not None:
            last_timestamp[index] = float(timestamp)
        input_tokens = _first(row, "input_length", "input_tokens")
        if input_tokens is None:
            input_tokens = len(row["hash_ids"]) * trace_block_size
        sessions[index].append(
            Turn(
                row=number,
                session=index,
                session_name=f"request_{number + 1}" if name is None else name,
                turn=len(sessions[index]),
                input_tokens=input_tokens,
                output_tokens=_first(row, "output_length", "output_tokens"),
                hash_ids=row["hash_ids"],
                first_ms=None if timestamp is None else float(timestamp),
                delay_ms=wait,
                cancel_after_ms=math.inf if row.get("cancel_after_ms") is None else float(row["cancel_after_ms"]),
                priority=row.get("priority") or 0,
                deadline_ms=row.get("deadline_ms"),
            )
        )
    return sessions


class Workload:
    """Turns ordered by (due time, session, turn)."""

    def __init__(self, sessions: list[list[Turn]], speedup: float, concurrency: int | None) -> None:
        self.sessions = sessions
        self.concurrency = concurrency
        self.speedup = 1.0 if concurrency is not None else speedup
        self.due: list[tuple[float, int, int]] = []
        self.next_session = 0
        if concurrency is None:
            firsts = [session[0].first_ms for session in sessions]
            origin = min(f for f in firsts if f is not None)
            for index, first in enumerate(firsts):
                assert first is not None
                heapq.heappush(self.due, ((first - origin) / self.speedup, index, 0))
        else:
            for _ in range(min(concurrency, len(sessions))):
                self._start_next(0.0)

    def _start_next(self, now_ms: float) -> None:
        if self.next_session < len(self.sessions):
            heapq.heappush(self.due, (now_ms, self.next_session, 0))
            self.next_session += 1

    @property
    def next_due_ms(self) -> float | None:
        return self.due[0][0] if self.due else None

    def pop_due(self, now_ms: float) -> list[tuple[float, Turn]]:
        """Everything due at or before `now_ms`, in total order, with its due time."""
        popped = []
        while self.due and self.due[0][0] <= now_ms:
            due_ms, session, turn = heapq.heappop(self.due)
            popped.append((due_ms, self.sessions[session][turn]))
        return popped

    def ended(self, turn: Turn, now_ms: float, status: str) -> None:
        """A turn ended, however it ended: its next turn, or the next session, becomes due."""
        session = self.sessions[turn.session]
        if turn.turn + 1 < len(session):
            delay = session[turn.turn + 1].delay_ms / self.speedup
            heapq.heappush(self.due, (now_ms + delay, turn.session, turn.turn + 1))
        elif self.concurrency is not None:
            self._start_next(now_ms)
