"""Placement by a policy of the user's.

Keeps what a router may know of each rank, from the event stream alone, and asks the policy. Never looks into an engine.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from mocker_replay._core.event_buffer import KIND_NAMES, EventBuffer
from mocker_replay._core.fleet import Fleet
from mocker_replay._core.python_policy import RequestFacts
from mocker_replay._core.types import EngineError
from mocker_replay.policies import RankLoad

_GAUGES, _TERMINAL = KIND_NAMES.index("gauges"), KIND_NAMES.index("terminal")


class _Rank(Struct):
    num_requests: int = 0
    outstanding_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    active_blocks: int = 0


class PolicyPlacement:
    """Asks a policy where a request goes.

    Args:
        policy: has `place` and `reason`, see `mocker_replay.policies.Policy`.
    """

    def __init__(self, policy: Any, num_workers: int, dp_size: int, num_blocks: int) -> None:
        self._policy = policy
        self._dp_size = dp_size
        self._num_blocks = num_blocks
        self._ranks = [_Rank() for _ in range(num_workers * dp_size)]
        self._active: dict[int, tuple[int, int]] = {}  # request -> rank, its tokens

    def choose(self, fleet: Fleet) -> tuple[int, int, bytes]:
        """Worker, rank and reason for the row that is due; it counts as placed from here on.

        Raises:
            EngineError: the answer is no place.
        """
        request, input_tokens, _ = fleet.next_arrival()
        output_tokens, priority, deadline_ms, arrival_ms = fleet.next_terms()
        facts = RequestFacts(
            request, input_tokens, output_tokens, priority=priority, arrival_ms=arrival_ms, deadline_ms=deadline_ms
        )
        answer = self._policy.place(facts, [self._load(at) for at in range(len(self._ranks))])
        worker, rank = self._checked(answer)
        at = worker * self._dp_size + rank
        self._active[request] = at, input_tokens + output_tokens
        self._ranks[at].num_requests += 1
        self._ranks[at].outstanding_tokens += input_tokens + output_tokens
        return worker, rank, str(self._reason()).encode()

    def _reason(self) -> object:
        return getattr(self._policy, "reason", "placement")

    def _load(self, at: int) -> RankLoad:
        rank = self._ranks[at]
        worker, number = divmod(at, self._dp_size)
        return RankLoad(
            worker, number, rank.num_requests, rank.outstanding_tokens, rank.num_running, rank.num_waiting,
            rank.active_blocks, self._num_blocks,
        )  # fmt: skip

    def _checked(self, answer: object) -> tuple[int, int]:
        if isinstance(answer, tuple) and len(answer) == 2 and all(type(part) is int for part in answer):
            worker, rank = answer
            if 0 <= rank < self._dp_size and 0 <= worker * self._dp_size < len(self._ranks):
                return worker, rank
        last = len(self._ranks) // self._dp_size - 1
        raise EngineError(
            f"policy {type(self._policy).__name__}: place must be (worker, rank), from (0, 0) to "
            f"({last}, {self._dp_size - 1}) (got {answer!r})"
        )

    def consume(self, events: EventBuffer) -> None:
        """Take in what became visible: gauges and ends."""
        records = events.records_array()
        kinds = records["kind"]
        for record in records[(kinds == _GAUGES) | (kinds == _TERMINAL)]:
            if record["kind"] == _TERMINAL:
                at, tokens = self._active.pop(int(record["request"]))
                self._ranks[at].num_requests -= 1
                self._ranks[at].outstanding_tokens -= tokens
                continue
            rank = self._ranks[int(record["worker"]) * self._dp_size + int(record["rank"])]
            rank.active_blocks, rank.num_running = int(record["a"]), int(record["c"])
            rank.num_waiting = int(record["d"])
