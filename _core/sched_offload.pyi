from typing_extensions import disjoint_base

from .offload import HostTier
from .sched_policy import PolicyScheduler

@disjoint_base
class OffloadScheduler(PolicyScheduler):
    @property
    def tier(self) -> HostTier | None: ...
