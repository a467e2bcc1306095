"""Graphs of requests by their definitions: who is ready when is worked out anew at every question.

Decides due times, skips, lanes, and what reports say of plays. Knows nothing of engines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.model.report import statistics
from tests.model.workload import Turn

if TYPE_CHECKING:
    from tests.model.engine_model import Figures, ModelRun

Row = Mapping[str, Any]


class GraphModel:
    """The workload of an agentic Mooncake trace, in the form of tests.model.workload.Workload."""

    concurrency = None

    def __init__(self, text: str, speedup: float, lanes: int | None) -> None:
        header, *rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        self.block_size: int = header["block_size"]
        self.source = header["source"]
        self.rows: dict[str, Row] = {
            row["request_id"]: row for row in sorted(rows, key=lambda r: r["request_id"].encode())
        }
        self.turns = {name: _turn(number, row) for number, (name, row) in enumerate(self.rows.items())}
        self.speedup = speedup
        self.plays = sorted({row["play_id"] for row in rows}, key=self._play_order)
        origin = min(row["not_before_ms"] for row in rows)
        self.floors = {name: (row["not_before_ms"] - origin) / speedup for name, row in self.rows.items()}
        self.dispatched: dict[str, float] = {}
        self.completed: dict[str, float] = {}
        self.ended_badly: dict[str, tuple[float, str]] = {}
        self.lane_of: dict[str, int] = {}
        self.start_of: dict[str, float] = {}
        self.lanes = lanes
        self._just_ended: list[str] = []
        self._released: set[str] = set()
        if lanes is None:
            self.start_of = dict.fromkeys(self.plays, 0.0)
        else:
            for lane in range(min(lanes, len(self.plays))):
                self._start_next(lane, 0.0)

    def _play_order(self, play: str) -> tuple[int, bytes]:
        ordinals = {row.get("source_play_ordinal") for row in self.rows.values() if row["play_id"] == play}
        return min(ordinal or 0 for ordinal in ordinals), play.encode()

    def dependencies(self, name: str) -> Sequence[Mapping[str, Any]]:
        return self.rows[name].get("dependencies") or ()

    def of_play(self, play: str) -> list[str]:
        return [name for name, row in self.rows.items() if row["play_id"] == play]

    def roots(self, play: str) -> list[str]:
        return [name for name in self.of_play(play) if not self.dependencies(name)]

    def failed(self, play: str) -> bool:
        return any(self.rows[name]["play_id"] == play for name in self.ended_badly)

    def skipped(self) -> list[str]:
        return [n for n, row in self.rows.items() if n not in self.dispatched and self.failed(row["play_id"])]

    def settled(self, play: str) -> bool:
        names = self.of_play(play)
        running = [n for n in names if n in self.dispatched and n not in self.completed and n not in self.ended_badly]
        return not running and (self.failed(play) or all(n in self.completed for n in names))

    def ready_ms(self, name: str) -> float | None:
        """When a request may start; None while that is not known."""
        play = self.rows[name]["play_id"]
        if play not in self.start_of:
            return None
        floor = self.floors[name]
        if self.lanes is not None:
            first = min(self.floors[root] for root in self.roots(play))
            floor = self.start_of[play] + max(0.0, floor - first)
        times = [floor]
        for edge in self.dependencies(name):
            fired = (self.dispatched if edge["trigger"] == "dispatch" else self.completed).get(edge["request_id"])
            if fired is None:
                return None
            times.append(fired + edge["delay_ms"] / self.speedup)
        return max(times)

    def _next(self) -> tuple[float, bytes, str] | None:
        self._release_lanes()
        ready = [
            (at_ms, name.encode(), name)
            for name, row in self.rows.items()
            if name not in self.dispatched and not self.failed(row["play_id"])
            if (at_ms := self.ready_ms(name)) is not None
        ]
        return min(ready, default=None)

    def _release_lanes(self) -> None:
        for name in sorted(self._just_ended, key=str.encode):
            play = self.rows[name]["play_id"]
            if self.lanes is not None and play not in self._released and self.settled(play):
                self._released.add(play)
                self._start_next(self.lane_of[play], self._ended_ms)
        self._just_ended = []

    def _start_next(self, lane: int, now_ms: float) -> None:
        if len(self.start_of) < len(self.plays):
            play = self.plays[len(self.start_of)]
            self.start_of[play], self.lane_of[play] = now_ms, lane

    @property
    def next_due_ms(self) -> float | None:
        found = self._next()
        return None if found is None else found[0]

    def pop_due(self, now_ms: float) -> list[tuple[float, Turn]]:
        popped = []
        while (found := self._next()) is not None and found[0] <= now_ms:
            due_ms, _, name = found
            self.dispatched[name] = due_ms
            popped.append((due_ms, self.turns[name]))
        return popped

    def ended(self, turn: Turn, now_ms: float, status: str) -> None:
        name = list(self.rows)[turn.row]
        if status == "completed":
            self.completed[name] = now_ms
        else:
            self.ended_badly[name] = now_ms, status
        self._just_ended.append(name)
        self._ended_ms = now_ms

    # -- what a report says of it -------------------------------------------------------------------

    def record(self, figures: Figures) -> dict[str, Any]:
        """What the record of a request has besides."""
        name = list(self.rows)[figures.turn.row]
        row = self.rows[name]
        agentic = {"request_id": name, "play_id": row["play_id"], "conversation_id": row["session_id"]}
        if self.lanes is not None:
            agentic["lane_id"] = f"lane:{self.lane_of[row['play_id']]}"
        roots = self.roots(row["play_id"])
        if len(roots) == 1:
            agentic["root_id"] = roots[0]
        spawners = [edge["request_id"] for edge in self.dependencies(name) if edge["relation"] == "spawn"]
        if spawners:
            agentic["parent_id"] = min(spawners, key=str.encode)
        return {
            "request_id": name, "play_id": row["play_id"], "agentic": agentic, "session_id": row["session_id"],
            "dispatched_at_ms": figures.arrival_ms,
        }  # fmt: skip

    def summary(self, run: ModelRun) -> dict[str, Any]:
        whole = [play for play in self.plays if all(name in self.completed for name in self.of_play(play))]
        took = [
            max(self.completed[name] for name in self.of_play(play))
            - min(self.dispatched[root] for root in self.roots(play))
            for play in whole
        ]
        figures = statistics("trajectory_e2e_latency_ms", took)
        return {
            "skipped_requests": len(self.skipped()),
            "total_trajectories": len(self.plays),
            "completed_trajectories": len(whole),
            "incomplete_trajectories": len(self.plays) - len(whole),
            **figures,
            "p50_trajectory_e2e_latency_ms": figures["median_trajectory_e2e_latency_ms"],
            "agentic_graph": {
                "source": self.source,
                "block_size": self.block_size,
                "node_count": len(self.rows),
                "play_count": len(self.plays),
                "source_models": sorted({row["model"] for row in self.rows.values()}),
            },
            "agentic_play_outcomes": [self._outcome(play) for play in self.plays],
        }

    def _outcome(self, play: str) -> dict[str, Any]:
        names = self.of_play(play)
        ends = {n: self.completed[n] for n in names if n in self.completed}
        bad = [(at_ms, n, status) for n, (at_ms, status) in self.ended_badly.items() if n in names]
        outcome: dict[str, Any] = {"play_id": play, "status": "incomplete"}
        if self.settled(play):
            outcome["status"] = "failed" if bad else "completed"
            outcome["settled_at_ms"] = max([*ends.values(), *(at_ms for at_ms, _, _ in bad)])
        if bad:
            at_ms, name, status = min(bad, key=lambda end: (end[0], end[1].encode()))
            outcome |= {"causal_terminal_ms": at_ms, "failure_request_id": name, "failure_status": status}
        elif ends:
            outcome["causal_terminal_ms"] = max(ends.values())
        return outcome


def _turn(number: int, row: Row) -> Turn:
    return Turn(
        row=number,
        session=number,
        session_name=row["session_id"],
        turn=0,
        input_tokens=row["input_length"],
        output_tokens=row["output_length"],
        hash_ids=row["hash_ids"],
        first_ms=None,
        delay_ms=0.0,
        cancel_after_ms=math.inf,
        priority=row.get("priority") or 0,
    )
