from typing_extensions import disjoint_base

from .radix_tree import RadixTree
from .sched_handoff import HandoffScheduler

@disjoint_base
class PageScheduler(HandoffScheduler):
    tree: RadixTree
    def held_by_requests(self) -> int: ...
    def check(self) -> None: ...
