from collections.abc import Iterable

from typing_extensions import disjoint_base

from .scheduler import Scheduler

@disjoint_base
class Engine:
    worker: int
    dp_size: int
    schedulers: tuple[Scheduler, ...]
    in_pass: bool
    poisoned: bool
    pass_id: int
    pass_start_ms: float
    pass_end_ms: float
    pass_effect_free: bool
    def __new__(cls, worker: int, schedulers: Iterable[Scheduler], prefill_schedule_interval: int = 1) -> Engine: ...
    @property
    def internal_deadline_ms(self) -> float | None: ...
