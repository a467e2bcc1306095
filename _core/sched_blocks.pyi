from typing_extensions import disjoint_base

from .block_pool import BlockPool
from .prefix_index import PrefixIndex
from .scheduler import Scheduler

@disjoint_base
class BlockScheduler(Scheduler):
    index: PrefixIndex
    pool: BlockPool
    def check(self) -> None: ...
