from typing_extensions import disjoint_base

from .offload import HostTier
from .sched_handoff import HandoffScheduler

@disjoint_base
class ReadingScheduler(HandoffScheduler):
    @property
    def tier(self) -> HostTier | None: ...
