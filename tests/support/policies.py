"""Policies in Python that tests give to replays, and the same ones for the model."""

from __future__ import annotations

from collections.abc import Sequence

from mocker_replay._core.python_policy import RankFacts, RequestFacts
from mocker_replay.policies import Policy, RankLoad
from tests.model.policies import ModelPolicy


class OddJobs(Policy):
    """Departs in every way it can, by rules that follow from numbers alone."""

    reason = "odd_jobs"

    def order_key(self, request: RequestFacts, rank: RankFacts) -> float:
        return request.row * 7 % 5

    def choose_victim(self, running: Sequence[RequestFacts], rank: RankFacts) -> int:
        scores = [request.row * 3 % 4 for request in running]
        return max(index for index, score in enumerate(scores) if score == max(scores))

    def may_admit(self, request: RequestFacts, rank: RankFacts) -> bool:
        return rank.num_running == 0 or (request.row + rank.pass_number) % 3 != 0

    def token_budget(self, rank: RankFacts) -> int:
        return min(rank.max_num_batched_tokens, 3 + rank.pass_number % 7)


ODD_JOBS = ModelPolicy(
    order=lambda rank, request: request.number * 7 % 5,
    worst=lambda rank, request: request.number * 3 % 4,
    holds_back=lambda rank, request: bool(rank.running) and (request.number + rank.pass_number) % 3 == 0,
    budget=lambda rank: min(rank.config.max_num_batched_tokens, 3 + rank.pass_number % 7),
)


class Freshest(Policy):
    """Asks in every pass anew: who came last goes first, but for who has waited long."""

    reorders = True
    reason = "freshest"

    def order_key(self, request: RequestFacts, rank: RankFacts) -> float:
        waited_ms = rank.now_ms - request.arrival_ms
        return -1e9 if waited_ms > 20.0 else -request.arrival_ms


FRESHEST = ModelPolicy(
    order=lambda rank, request: -1e9 if rank.result.start_ms - request.arrival_ms > 20.0 else -request.arrival_ms
)


class SameAsNone(Policy):
    """Answers every question as the engine would without a policy."""

    def order_key(self, request: RequestFacts, rank: RankFacts) -> float:
        return 0.0

    def choose_victim(self, running: Sequence[RequestFacts], rank: RankFacts) -> int:
        return len(running) - 1

    def may_admit(self, request: RequestFacts, rank: RankFacts) -> bool:
        return True

    def token_budget(self, rank: RankFacts) -> int:
        return rank.max_num_batched_tokens


class LeastLoaded(Policy):
    """Places where the fewest tokens are outstanding."""

    reason = "least_loaded"

    def place(self, request: RequestFacts, ranks: Sequence[RankLoad]) -> tuple[int, int]:
        best = min(ranks, key=lambda load: (load.outstanding_tokens, load.worker, load.rank))
        return best.worker, best.rank
