from typing_extensions import disjoint_base

from .scheduler import Scheduler

@disjoint_base
class BlockScheduler(Scheduler): ...
