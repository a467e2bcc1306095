from typing_extensions import disjoint_base

from .sched_reads import ReadingScheduler

@disjoint_base
class HostedScheduler(ReadingScheduler): ...
