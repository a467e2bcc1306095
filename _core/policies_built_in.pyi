from typing import final

from .policy import SchedulingPolicy

@final
class ShortestJobFirst(SchedulingPolicy):
    def __init__(self) -> None: ...

@final
class LongestPrefixMatch(SchedulingPolicy):
    def __new__(cls, max_waiting: int = 128) -> LongestPrefixMatch: ...

@final
class Priority(SchedulingPolicy):
    def __init__(self) -> None: ...

@final
class EarliestDeadlineFirst(SchedulingPolicy):
    default_deadline_ms: float
    def __new__(cls, default_deadline_ms: float = ...) -> EarliestDeadlineFirst: ...
