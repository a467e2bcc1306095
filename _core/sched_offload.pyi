from .offload import HostTier
from .sched_policy import PolicyScheduler

class OffloadScheduler(PolicyScheduler):
    @property
    def tier(self) -> HostTier | None: ...
