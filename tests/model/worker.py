"""One worker: its ranks behind one barrier, the prefill cadence they share, and commands on their way to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tests.model.config import ModelConfig
from tests.model.offload import OffloadRank
from tests.model.policies import FCFS, ModelPolicy
from tests.model.records import forward_pass_record
from tests.model.scheduler import PassResult, Rank
from tests.model.sglang import SglangRank, Standstill
from tests.model.shared_tier import SharedTier, SharingRank
from tests.model.trtllm import TrtllmRank


@dataclass
class Group:
    """One pass of a worker: the ranks that had work, and the shared end."""

    start_ms: float
    end_ms: float
    results: dict[int, PassResult]

    @property
    def only_loads(self) -> bool:
        """It had no length, and all that its ranks did was to begin loads."""
        results = self.results.values()
        did = [r.scheduled or r.preemptions or r.completed or r.rejected or r.failed for r in results]
        return self.end_ms == self.start_ms and not any(did) and any(r.began_loads for r in results)

    @property
    def is_idle(self) -> bool:
        """It had no length, and no rank did anything."""
        results = self.results.values()
        did = [r.scheduled or r.preemptions or r.completed or r.rejected or r.failed for r in results]
        return self.end_ms == self.start_ms and not any(did) and not any(r.began_loads for r in results)


@dataclass
class Submission:
    """A request in the queue of its rank whose command the driver has not taken yet.

    That makes no difference to the passes, which are computed when they start; it does to cancellations.
    """

    rank: int
    number: int
    gone: bool = False  # its client has left: the cancellation follows


class Worker:
    def __init__(
        self, config: ModelConfig, index: int, policy: ModelPolicy = FCFS, shared: SharedTier | None = None
    ) -> None:
        self.config, self.index = config, index
        self.ranks: list[Rank | SglangRank] = []
        for rank in range(config.dp_size):
            seed = (config.mtp_seed + index * config.dp_size + rank) % 2**64
            if config.backend == "trtllm":
                self.ranks.append(TrtllmRank(config, seed))
            elif config.backend == "sglang":
                self.ranks.append(SglangRank(config, seed))
            elif config.tier is None:
                self.ranks.append(Rank(config, seed, policy))
            elif shared is None:
                self.ranks.append(OffloadRank(config, seed, policy))
            else:
                self.ranks.append(SharingRank(config, seed, policy, shared))
        self.in_pass: Group | None = None
        self.wave = 0
        self.next_rank = 0
        self.pending: list[Submission] = []
        self.cancels: list[tuple[int, int]] = []  # (rank, request) on the cancellation lane
        # With host memory of its own it lets the others go first behind a pass of no length.
        self.rests_between = config.tier is not None and shared is None
        self.rests = False
        self.effects = 0  # passes that did more than to begin loads
        self.at_boundary = False  # a pass ended at this instant and nothing was taken from the lanes yet
        self.published = [rank.gauges() for rank in self.ranks]
        self.visible: list[set[int]] = [set() for _ in self.ranks]  # identities a router knows of

    def take_rank(self) -> int:
        rank = self.next_rank
        self.next_rank = (rank + 1) % self.config.dp_size
        return rank

    def publish(self, rank: int, *, pending_count: bool = True) -> None:
        """Show the state of a rank; a command that was applied shows its queues without what is still pending."""
        gauges = self.ranks[rank].gauges()
        if not pending_count:
            gauges["waiting_requests"] -= sum(submission.rank == rank for submission in self.pending)
        self.published[rank] = gauges

    def leave(self, rank: int, number: int) -> None:
        """The client of a request that has not ended goes away."""
        waiting = [submission for submission in self.pending if submission.number == number]
        for submission in waiting:
            submission.gone = True
        if not waiting:
            self.cancels.append((rank, number))

    def cancel(self, rank: int, number: int) -> float:
        """Apply a cancellation; returns the time it is stamped with when a pass is in flight, else NaN."""
        self.ranks[rank].cancel(number, self.in_pass.results.get(rank) if self.in_pass else None)
        self.publish(rank, pending_count=False)
        if self.in_pass is not None:
            return self.in_pass.start_ms
        pending = {submission.number for submission in self.pending}
        held = (r for ranks in self.ranks for r in (*ranks.running, *ranks.waiting))
        if all(r.number in pending for r in held) and not any(rank.copies for rank in self.ranks):
            self.wave = 0
        return math.nan

    def apply_first(self) -> list[Submission]:
        """Submissions the driver takes before it looks at the cancellation lane again; the others stay pending."""
        count = len(self.pending) if self.at_boundary else 1
        taken, self.pending = self.pending[:count], self.pending[count:]
        for submission in taken:
            self.publish(submission.rank, pending_count=False)
        return taken

    @property
    def ready(self) -> bool:
        return self.in_pass is None and any(rank.is_ready for rank in self.ranks)

    @property
    def next_internal_ms(self) -> float:
        """When background copies of an idle worker next need it; infinite while a pass hides them."""
        ends = [] if self.in_pass else [ms for rank in self.ranks if (ms := rank.next_internal_ms) is not None]
        return min(ends, default=math.inf)

    def process_internal(self, now_ms: float) -> None:
        while self.next_internal_ms <= now_ms:
            for rank in self.ranks:
                rank.process_internal(now_ms)
            self._settle()

    def _settle(self) -> None:
        """The cadence begins anew when nothing is left here, nor on its way to the host."""
        if not any(rank.has_work or rank.copies for rank in self.ranks):
            self.wave = 0

    def start_pass(self, now_ms: float) -> Group:
        for rank in self.ranks:
            rank.prefilled = rank.worked = False
        results = {i: rank.execute(now_ms, self.wave) for i, rank in enumerate(self.ranks) if rank.joins}
        self.wave += 1
        self._tell_group()
        end_ms = max(result.end_ms for result in results.values())
        if end_ms == now_ms and all(self.ranks[i].stuck for i in results):
            raise Standstill(f"worker {self.index} at {now_ms} ms")
        self.in_pass = Group(now_ms, end_ms, results)
        self.effects += not self.in_pass.is_idle and not (self.in_pass.only_loads and self.rests_between)
        return self.in_pass

    def _tell_group(self) -> None:
        """Ranks of the SGLang flavour count passes together."""
        prefilled, worked = (any(getattr(rank, name) for rank in self.ranks) for name in ("prefilled", "worked"))
        for rank in self.ranks:
            rank.group_over(prefilled, worked)

    def finish_pass(self) -> tuple[Group, list[dict[str, Any]]]:
        """The group just ended and one forward-pass record a rank."""
        group = self.in_pass
        assert group is not None
        self.in_pass = None
        self.at_boundary = True
        idle = group.end_ms == group.start_ms and not any(result.scheduled for result in group.results.values())
        only_loads = group.only_loads and self.rests_between
        for rank in self.ranks:
            if not only_loads:  # copies that end at once are seen behind the pass
                rank.pass_ended(group.end_ms, idle)
        self.rests = self.rests_between and group.end_ms == group.start_ms and not group.is_idle
        self._settle()
        records = []
        for index in range(len(self.ranks)):
            self.publish(index)
            self.visible[index] = self.ranks[index].visible()
            result = group.results.get(index)
            record = result.record if result else forward_pass_record([], [])
            wall_time = (group.end_ms - group.start_ms) / 1000.0
            records.append({"worker_id": self.index, "dp_rank": index, "wall_time": wall_time, **record})
        return group, records
