from typing_extensions import disjoint_base

from .handoff import HandoffBook
from .sched_policy import PolicyScheduler

OWNERSHIP_NAMES: tuple[str, ...]

@disjoint_base
class HandoffScheduler(PolicyScheduler):
    handoffs: HandoffBook
    def standing(self, limit: int = 20) -> list[tuple[str, int, int, int, int]]: ...
    def ownership(self) -> list[tuple[int, int, str, int]]: ...
    def check(self) -> None: ...
