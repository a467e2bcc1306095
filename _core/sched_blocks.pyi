from .block_pool import BlockPool
from .prefix_index import PrefixIndex
from .scheduler import Scheduler

class BlockScheduler(Scheduler):
    index: PrefixIndex
    pool: BlockPool
    def check(self) -> None: ...
