from typing_extensions import disjoint_base

from .sched_blocks import BlockScheduler

@disjoint_base
class CalendarScheduler(BlockScheduler): ...
