"""One worker: its ranks behind one barrier, and the prefill cadence they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.model.config import ModelConfig
from tests.model.records import forward_pass_record
from tests.model.scheduler import PassResult, Rank


@dataclass
class Group:
    """One pass of a worker: the ranks that had work, and the shared end."""

    start_ms: float
    end_ms: float
    results: dict[int, PassResult]


class Worker:
    def __init__(self, config: ModelConfig, index: int) -> None:
        self.config, self.index = config, index
        self.ranks = [
            Rank(config, (config.mtp_seed + index * config.dp_size + rank) % 2**64) for rank in range(config.dp_size)
        ]
        self.in_pass: Group | None = None
        self.wave = 0
        self.next_rank = 0
        self.published = [rank.gauges() for rank in self.ranks]
        self.visible: list[set[int]] = [set() for _ in self.ranks]  # identities a router knows of

    def take_rank(self) -> int:
        rank = self.next_rank
        self.next_rank = (rank + 1) % self.config.dp_size
        return rank

    def publish(self, rank: int) -> None:
        self.published[rank] = self.ranks[rank].gauges()

    @property
    def ready(self) -> bool:
        return self.in_pass is None and any(rank.has_work for rank in self.ranks)

    def start_pass(self, now_ms: float) -> Group:
        results = {i: rank.execute(now_ms, self.wave) for i, rank in enumerate(self.ranks) if rank.has_work}
        self.wave += 1
        end_ms = max(result.end_ms for result in results.values())
        self.in_pass = Group(now_ms, end_ms, results)
        return self.in_pass

    def finish_pass(self) -> tuple[Group, list[dict[str, Any]]]:
        """The group just ended and one forward-pass record a rank."""
        group = self.in_pass
        assert group is not None
        self.in_pass = None
        if not any(rank.has_work for rank in self.ranks):
            self.wave = 0
        records = []
        for index in range(len(self.ranks)):
            self.publish(index)
            self.visible[index] = set(self.ranks[index].pool.copies_of)
            result = group.results.get(index)
            record = result.record if result else forward_pass_record([], [])
            wall_time = (group.end_ms - group.start_ms) / 1000.0
            records.append({"worker_id": self.index, "dp_rank": index, "wall_time": wall_time, **record})
        return group, records
