from typing_extensions import disjoint_base

from .sched_reads import ReadingScheduler

@disjoint_base
class OffloadScheduler(ReadingScheduler):
    def held_by_requests(self) -> int: ...
