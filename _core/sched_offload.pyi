from typing_extensions import disjoint_base

from .sched_hosted import HostedScheduler

@disjoint_base
class OffloadScheduler(HostedScheduler):
    def held_by_requests(self) -> int: ...
